"""Which file a name means, without any network."""

import os
import tempfile
from pathlib import Path

import pytest

from typebar.errors import ModelFileError, TypebarError
from typebar.model.catalog import CATALOG, DEFAULT_MODEL, HubFile, WebFile, Wheels, find
from typebar.model.choose import choose, local_model, shards, texts
from typebar.model.download import local_path, parse, resolve_model

REPO = [
    "README.md", "m-fp16.gguf", "m-q2_k.gguf", "m-q4_0.gguf", "m-q4_k_m.gguf", "m-q8_0.gguf", "mmproj-m-q4_k_m.gguf"
]  # fmt: skip


def test_preference() -> None:
    assert choose(REPO, None, "org/m") == "m-q4_k_m.gguf"
    assert choose([n for n in REPO if "q4_k" not in n], None, "org/m") == "m-q8_0.gguf"
    assert choose(["only-IQ4_XS.gguf"], None, "org/m") == "only-IQ4_XS.gguf"


@pytest.mark.parametrize(
    ("wanted", "file"), [("m-q2_k.gguf", "m-q2_k.gguf"), ("Q2_K", "m-q2_k.gguf"), ("q8_0", "m-q8_0.gguf")]
)
def test_wanted(wanted: str, file: str) -> None:
    assert choose(REPO, wanted, "org/m") == file


def test_q4_k_is_not_q4_k_m() -> None:
    with pytest.raises(TypebarError, match=r"org/m has no 'Q4_K'; it has .*m-q4_k_m\.gguf"):
        choose(REPO, "Q4_K", "org/m")


def test_split_models_are_one_choice() -> None:
    names = [f"Q8_0/m-Q8_0-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    assert choose(names, None, "org/m") == names[0]
    assert choose(names, names[2], "org/m") == names[0]
    assert shards(names[1]) == names


FOLDER = [
    "README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "original/x.pth"
]  # fmt: skip


def test_safetensors_where_no_gguf_is() -> None:
    assert choose(FOLDER, None, "org/m") == "config.json"
    assert choose([*FOLDER, "m-q8_0.gguf"], None, "org/m") == "m-q8_0.gguf"
    for wanted in ("safetensors", "model.safetensors"):
        assert choose([*FOLDER, "m-q8_0.gguf"], wanted, "org/m") == "config.json"
    assert texts([*FOLDER, "chat_template.jinja", "sub/tokenizer.json"]) == [
        "config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        (["README.md"], "org/m has no GGUF file and no model in safetensors"),
        (["model.safetensors", "unet/config.json"], r"holds safetensors files but no config\.json"),
        (["adapter_config.json", "adapter_model.safetensors"], "holds an adapter"),
        (["config.json", "unet/model.safetensors"], "no model in safetensors"),
        (["config.json", "pytorch_model.bin"], r"pickled Python objects \(pytorch_model\.bin\).* save_pretrained"),
        (["config.json", "pytorch_model-00001-of-00002.bin"], "pickled Python objects"),
        (["config.json", "original/consolidated.00.pth"], "pickled Python objects"),
        (["config.json", "training_args.bin"], "no model in safetensors"),
    ],
)
def test_nothing_to_choose(files: list[str], problem: str) -> None:
    with pytest.raises(TypebarError, match=problem):
        choose(files, None, "org/m")


def test_quantization_where_no_gguf_is() -> None:
    with pytest.raises(TypebarError, match=r"org/m has no 'Q8_0'; it has no GGUF file"):
        choose(FOLDER, "Q8_0", "org/m")


def test_local_folders_of_safetensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes(b"{}")
    for path in (tmp_path, tmp_path / "model.safetensors"):
        assert resolve_model(str(path)).path == tmp_path
    monkeypatch.chdir(tmp_path)
    resolved = resolve_model("./")
    assert (resolved.path.resolve(), resolved.name) == (tmp_path, tmp_path.name)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ModelFileError, match=r"model\.safetensors is not a \.gguf file, nor a folder with config"):
        resolve_model(str(tmp_path / "model.safetensors"))


def test_local_files(tmp_path: Path) -> None:
    single = tmp_path / "a-q4_0.gguf"
    single.write_bytes(b"GGUF")
    resolved = resolve_model(str(single))
    assert (resolved.path, resolved.source, resolved.substituted) == (single, "local file", False)
    (tmp_path / "a-q8_0.gguf").write_bytes(b"GGUF")
    assert resolve_model(str(tmp_path)).path == tmp_path / "a-q8_0.gguf"


def test_any_shard_means_the_first(tmp_path: Path) -> None:
    for name in shards("m-00001-of-00003.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    assert local_model(tmp_path / "m-00002-of-00003.gguf") == tmp_path / "m-00001-of-00003.gguf"
    (tmp_path / "m-00003-of-00003.gguf").unlink()
    with pytest.raises(ModelFileError, match=r"m-00003-of-00003\.gguf does not exist"):
        local_model(tmp_path / "m-00001-of-00003.gguf")


@pytest.mark.parametrize(
    "name",
    ["./nothing.gguf", "nothing.gguf", "nothing/model.safetensors", "~/nothing", "/nothing/at/all", "~nobody-here/x"],
)
def test_missing_local_file(name: str) -> None:
    with pytest.raises(ModelFileError, match="does not exist"):
        resolve_model(name)


def test_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ModelFileError, match=r"notes\.txt is not a \.gguf file"):
        resolve_model(str(tmp_path / "notes.txt"))


@pytest.mark.parametrize("name", ["qwen2.5-0.5b-instrct", "", "  ", "a b", "no\0body", "x" * 5000, "org/name/more"])
def test_names_that_mean_nothing(name: str) -> None:
    with pytest.raises(TypebarError):
        resolve_model(name)


def test_a_near_name_is_offered() -> None:
    with pytest.raises(TypebarError, match=r"did you mean qwen2\.5-0\.5b-instruct\?"):
        parse("qwen2.5-0.5b-instrct")


def test_a_catalog_name_wins_over_a_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / DEFAULT_MODEL).mkdir()
    monkeypatch.chdir(tmp_path)
    assert local_path(DEFAULT_MODEL) is None


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("Qwen/Qwen3-0.6B-GGUF", HubFile("Qwen/Qwen3-0.6B-GGUF", None)),
        ("Qwen/Qwen3-0.6B-GGUF:Q8_0", HubFile("Qwen/Qwen3-0.6B-GGUF", "Q8_0")),
        ("hf:a/b:sub/c.gguf", HubFile("a/b", "sub/c.gguf")),
        ("https://huggingface.co/a/b/blob/main/sub/c.gguf", HubFile("a/b", "sub/c.gguf")),
        ("https://huggingface.co/a/b/resolve/main/c.gguf?download=true", HubFile("a/b", "c.gguf")),
        ("https://example.org/x/c.gguf?k=1", WebFile("https://example.org/x/c.gguf?k=1")),
    ],
)
def test_forms(text: str, source: object) -> None:
    assert parse(text).sources == (source,)


@pytest.mark.parametrize(
    "text",
    [
        "a/b:../../etc/passwd.gguf", "a/b:/etc/x.gguf", "../b:x.gguf", "a/..:x.gguf", "https://u:p@example.org/x.gguf",
        "https://example.org/x.bin", "https://example.org/x.gguf#sha256=12", "https:///x.gguf", "a/b:c\\d.gguf",
    ],
)  # fmt: skip
def test_unsafe_or_broken_forms(text: str) -> None:
    with pytest.raises(TypebarError):
        resolve_model(text)


@pytest.mark.parametrize(
    "text", ["https://example.org/%2e%2e%2f%2e%2e%2fx.gguf", "https://example.org/../../x.gguf", "a/b:c.gguf", "a/b"]
)
def test_keys_stay_inside_the_cache(text: str) -> None:
    key = parse(text).key
    assert "/" not in key and not key.startswith(".") and len(key) < 120


def test_folder_that_may_not_be_read() -> None:
    folder, user = Path(tempfile.mkdtemp()), os.geteuid()
    folder.chmod(0)
    if user == 0:  # root may read everything
        os.seteuid(65534)
    try:
        with pytest.raises(ModelFileError, match=f"{folder} cannot be read: Permission denied"):
            local_model(folder)
    finally:
        os.seteuid(user)
        folder.rmdir()


def test_keys_differ() -> None:
    urls = ["https://a.org/x.gguf", "https://a.org/x.gguf?v=2", "http://a.org/x.gguf", "https://a.org/x-gguf.gguf"]
    assert len({parse(url).key for url in urls}) == len(urls)


def test_catalog_is_sound() -> None:
    assert len({model.name for model in CATALOG}) == len(CATALOG)
    default = find(DEFAULT_MODEL.upper())
    assert default is not None and default.substitute is not None
    substitute = find(default.substitute)
    assert substitute is not None and any(isinstance(source, Wheels) for source in substitute.sources)
    for model in CATALOG:
        for source in model.sources:
            if isinstance(source, Wheels):
                assert model.sha256 is not None and sum(part.size for part in source.parts) > 90_000_000
