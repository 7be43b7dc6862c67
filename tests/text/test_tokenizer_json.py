"""Tokenizers of Hugging Face folders, against those of GGUF files and against the tokenizers library."""

import json
import os
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from text_reference import hf_qwen2_tokenizer, library_bpe, random_texts
from typebar.errors import ModelFileError
from typebar.text.chat import ChatTemplate
from typebar.text.tokenizer import Tokenizer
from typebar.text.tokenizer_json import TokenizerFiles

IM_END, ENDOFTEXT = 151645, 151643
CHAT = [{"role": "system", "content": "Your name is Tom."}, {"role": "user", "content": "hi <|im_end|> 你好"}]


def build(folder: Path, vocab_size: int | None = None) -> Tokenizer:
    return TokenizerFiles.read(folder).build(vocab_size)


def edit(path: Path, **changes: Any) -> None:
    """Sets entries of a JSON file; None removes one."""
    data = {**(json.loads(path.read_text()) if path.exists() else {}), **changes}
    path.write_text(json.dumps({name: value for name, value in data.items() if value is not None}))


def mixed_texts() -> list[str]:
    mixed = files("typebar.bench").joinpath("mixed.txt").read_text(encoding="utf-8")
    code = "\n".join(path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("*.py")))
    return [mixed, code, *random_texts(3000, seed=5)]


@pytest.fixture(scope="module")
def saved(coder_metadata: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Qwen2 tokenizer as transformers saves it."""
    folder = tmp_path_factory.mktemp("qwen2")
    hf_qwen2_tokenizer(coder_metadata).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy whose files may be changed."""
    for path in saved.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def test_same_ids_as_the_gguf_of_the_model_and_as_the_library(coder: Tokenizer, saved: Path) -> None:
    ours, library = build(saved, coder.vocab_size), tokenizers.Tokenizer.from_file(str(saved / "tokenizer.json"))
    for text in mixed_texts():
        ids = ours.encode(text, parse_special=True)
        assert ids == library.encode(text, add_special_tokens=False).ids, ascii(text)
        assert ids == coder.encode(text, parse_special=True), ascii(text)
        assert ours.encode(text) == coder.encode(text), ascii(text)
    assert [ours.token_bytes(id) for id in range(ours.vocab_size)] == [
        coder.token_bytes(id) for id in range(coder.vocab_size)
    ]


def test_same_facts_as_the_gguf_of_the_model(coder: Tokenizer, folder: Path) -> None:
    edit(folder / "config.json", eos_token_id=151664)
    edit(folder / "generation_config.json", eos_token_id=[IM_END, ENDOFTEXT])
    tokenizer = build(folder)
    assert tokenizer.control_tokens == coder.control_tokens
    assert tokenizer.special_ids == coder.special_ids
    assert tokenizer.end_ids == {IM_END, ENDOFTEXT, 151_664}
    assert tokenizer.eos_id == IM_END and tokenizer.bos_id is None and not tokenizer.add_bos
    assert tokenizer.chat_template == coder.chat_template
    assert tokenizer.vocab_size == 151_665
    assert build(folder, coder.vocab_size).vocab_size == coder.vocab_size


def test_chat_is_rendered_to_the_same_ids(coder: Tokenizer, saved: Path) -> None:
    ours = build(saved)
    for messages in (CHAT, CHAT[1:], [{"role": "system", "content": ""}, CHAT[1]]):
        expected = ChatTemplate(coder.chat_template, coder).encode(messages)
        assert expected[0] == 151_644
        assert ChatTemplate(ours.chat_template, ours).encode(messages) == expected


def test_merges_written_as_texts_and_as_pairs_are_the_same(coder: Tokenizer, folder: Path) -> None:
    path = folder / "tokenizer.json"
    saved = json.loads(path.read_text())
    assert isinstance(saved["model"]["merges"][0], list)
    saved["model"]["merges"] = [" ".join(pair) for pair in saved["model"]["merges"]]
    path.write_text(json.dumps(saved))
    tokenizer = build(folder)
    for text in random_texts(300, seed=9):
        assert tokenizer.encode(text) == coder.encode(text)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ 1 }}", "{{ 1 }}"),
        ([{"name": "tool_use", "template": "{{ 2 }}"}, {"name": "default", "template": "{{ 1 }}"}], "{{ 1 }}"),
        ([{"name": "tool_use", "template": "{{ 2 }}"}], None),
        ([{"name": ["default"], "template": "{{ 2 }}"}, "default"], None),
        (None, None),
    ],
)
def test_template_of_the_tokenizers_configuration(folder: Path, template: object, expected: str | None) -> None:
    edit(folder / "tokenizer_config.json", chat_template=template)
    assert "im_start" in (TokenizerFiles.read(folder).template or "")  # the file of its own comes first
    (folder / "chat_template.jinja").unlink()
    assert TokenizerFiles.read(folder).template == expected


def test_template_that_is_no_text_is_named(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    edit(folder / "tokenizer_config.json", chat_template={"default": "x"})
    with pytest.raises(ModelFileError, match=r"tokenizer_config\.json: 'chat_template' is neither a text"):
        TokenizerFiles.read(folder)


def test_byte_order_mark_is_no_part_of_the_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes(b"\xef\xbb\xbf{{ 1 }}")
    assert TokenizerFiles.read(folder).template == "{{ 1 }}"


def test_start_token_by_a_text_is_refused(folder: Path) -> None:
    edit(folder / "tokenizer_config.json", add_bos_token="false")
    with pytest.raises(ModelFileError, match=r"config\.json: 'add_bos_token' is 'false', not true or false"):
        build(folder)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"])
def test_pipes_and_devices_are_not_read(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(ModelFileError, match=f"{name}: it is no regular file"):
        TokenizerFiles.read(folder)
    (folder / name).unlink()
    (folder / name).symlink_to("/dev/zero")
    with pytest.raises(ModelFileError, match=f"{name}: it is no regular file"):
        TokenizerFiles.read(folder)


def test_end_token_by_a_text_is_refused(folder: Path) -> None:
    edit(folder / "generation_config.json", eos_token_id=["1"])
    with pytest.raises(ModelFileError, match=r"config\.json: 'eos_token_id' is '1', not the id of a token"):
        TokenizerFiles.read(folder)


def test_end_and_start_tokens_of_older_folders(folder: Path) -> None:
    """Texts or objects with flags, in tokenizer_config.json or in special_tokens_map.json only."""
    token = {"content": "<|fim_pad|>", "lstrip": False}
    edit(folder / "tokenizer_config.json", eos_token=None, pad_token=None, bos_token="<|endoftext|>")
    edit(folder / "special_tokens_map.json", eos_token=token, pad_token="<|endoftext|>", bos_token="<|im_end|>")
    tokenizer = build(folder)
    assert tokenizer.token_bytes(tokenizer.eos_id or 0) == b"<|fim_pad|>"
    assert tokenizer.eos_id in tokenizer.end_ids
    assert (tokenizer.bos_id, tokenizer.pad_id, tokenizer.add_bos) == (ENDOFTEXT, ENDOFTEXT, False)
    edit(folder / "tokenizer_config.json", add_bos_token=True)
    assert build(folder).encode("a", add_special=True) == [ENDOFTEXT, 64]


def test_start_token_that_only_the_post_processor_adds(folder: Path) -> None:
    """As in Llama 3."""
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    library.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", ENDOFTEXT)]
    )
    library.save(str(folder / "tokenizer.json"))
    edit(folder / "tokenizer_config.json", bos_token="<|endoftext|>")
    assert build(folder).encode("a b", add_special=True) == library.encode("a b").ids


def test_flags_of_added_tokens_are_those_of_the_library(folder: Path) -> None:
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    flags: dict[str, dict[str, bool]] = {
        "<left>": {"lstrip": True}, "<right>": {"rstrip": True}, "<word>": {"single_word": True}, "<plain>": {},
    }  # fmt: skip
    library.add_tokens([tokenizers.AddedToken(text, normalized=False, **kinds) for text, kinds in flags.items()])
    library.add_special_tokens([tokenizers.AddedToken("<control>", normalized=False)])
    library.save(str(folder / "tokenizer.json"))
    ours = build(folder)
    for mark in (*flags, "<control>"):
        id = library.token_to_id(mark)
        assert id == ours.control_tokens[mark] and (id in ours.special_ids) == (mark == "<control>")
        for text in ("a @ b", "a@b", "@", "@@", "  @\n x", "_@ @é", "é@.", "1@", "@<left> <right> @"):
            text = text.replace("@", mark)
            assert ours.encode(text, parse_special=True) == library.encode(text, add_special_tokens=False).ids, text


def test_other_families(smollm_metadata: dict[str, Any], tmp_path: Path) -> None:
    for pre in ("smollm", "llama-bpe", "gpt-2"):
        library_bpe(smollm_metadata, pre).save(str(tmp_path / "tokenizer.json"))
        ours, theirs = build(tmp_path), Tokenizer.from_gguf({**smollm_metadata, "tokenizer.ggml.pre": pre})
        for text in random_texts(200, seed=8):
            assert ours.encode(text) == theirs.encode(text)


@pytest.fixture(scope="module")
def small(smollm_metadata: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("small") / "tokenizer.json"
    library_bpe(smollm_metadata, "gpt-2").save(str(path))
    data: dict[str, Any] = json.loads(path.read_text())
    return data


UNKNOWN_CUTS: dict[str, tuple[dict[str, Any], str]] = {
    "prefix space": ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}}, "'ByteLevel', True, True"),
    "white space": ({"pre_tokenizer": {"type": "Whitespace"}, "decoder": {"type": "ByteLevel"}}, "'Whitespace'"),
    "other regex": (
        {
            "pre_tokenizer": {"type": "Split", "pattern": {"Regex": r"\p{Han}+"}, "behavior": "Isolated"},
            "decoder": {"type": "ByteLevel"},
        },
        r"\\p\{Han\}",
    ),
    "lower case": ({"normalizer": {"type": "Lowercase"}}, "Lowercase"),
    "NFKC": ({"normalizer": {"type": "NFKC"}}, "NFKC"),
}


@pytest.mark.parametrize("case", UNKNOWN_CUTS)
def test_ways_to_cut_text_that_are_not_known_are_named(small: dict[str, Any], tmp_path: Path, case: str) -> None:
    changes, named = UNKNOWN_CUTS[case]
    (tmp_path / "tokenizer.json").write_text(json.dumps(small | changes))
    with pytest.raises(ModelFileError, match=rf"cuts text in a way .*{named}"):
        build(tmp_path)


@pytest.mark.parametrize(
    "vocab",
    [{"a": 0, "b": 0}, {"a": -1}, {"a": 1 << 40}, {"a": "0"}, {"a": 0.0}, {"a": True}, {}, {"\ud800": 0}, []],
)
def test_damaged_vocabularies(small: dict[str, Any], tmp_path: Path, vocab: object) -> None:
    model = {**small["model"], "vocab": vocab, "merges": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps({**small, "model": model}))
    with pytest.raises(ModelFileError, match=r"tokenizer\.json is not"):
        build(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"added_tokens": [{"id": 1}]},
        {"added_tokens": {"id": 1}},
        {"added_tokens": [{"id": 1, "content": 1}]},
        {"model": {"type": "BPE", "merges": []}},
        {"normalizer": "NFC"},
        {"pre_tokenizer": {"pretokenizers": None}, "decoder": {"type": "ByteLevel"}},
        {"pre_tokenizer": {"pretokenizers": [1]}, "decoder": {"type": "ByteLevel"}},
    ],
)
def test_damaged_entries(small: dict[str, Any], tmp_path: Path, changes: dict[str, Any]) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps({**small, **changes}))
    with pytest.raises(ModelFileError, match=r"tokenizer\.json is not"):
        build(tmp_path)


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ({"type": "Unigram"}, "holds a 'Unigram' tokenizer"),
        ({"type": "WordPiece"}, "holds a 'WordPiece' tokenizer"),
        ({"end_of_word_suffix": "</w>"}, "end_of_word_suffix"),
        ({"continuing_subword_prefix": "##"}, "continuing_subword_prefix"),
    ],
)
def test_other_kinds_are_named(small: dict[str, Any], tmp_path: Path, model: dict[str, Any], problem: str) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps({**small, "model": {**small["model"], **model}}))
    with pytest.raises(ModelFileError, match=problem):
        build(tmp_path)


def test_characters_for_bytes_are_refused(small: dict[str, Any], tmp_path: Path) -> None:
    """As in Llama 2: BPE whose decoder is not the byte-level one."""
    changed = {**small, "pre_tokenizer": None, "decoder": {"type": "ByteFallback"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(changed))
    with pytest.raises(ModelFileError, match="holds a BPE tokenizer of characters; typebar runs byte-level BPE"):
        build(tmp_path)


def test_missing_entry_is_named(small: dict[str, Any], tmp_path: Path) -> None:
    model = {name: value for name, value in small["model"].items() if name != "merges"}
    (tmp_path / "tokenizer.json").write_text(json.dumps({**small, "model": model}))
    with pytest.raises(ModelFileError, match="the entry 'merges' is missing: download it again"):
        build(tmp_path)


def test_more_tokens_than_the_model_has_rows(small: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(small))
    files = TokenizerFiles.read(tmp_path)
    used = files.used_ids()
    assert files.used_ids(used) == used
    with pytest.raises(ModelFileError, match=rf"ids up to {used - 1} but the model only {used - 1} rows"):
        files.used_ids(used - 1)


def test_missing_and_damaged_files(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"has no tokenizer\.json: download it"):
        TokenizerFiles.read(tmp_path)
    path = tmp_path / "tokenizer.json"
    for text, problem in [("{", "cannot read"), ("[]", "JSON object"), ("[" * 100_000, "cannot read")]:
        path.write_text(text)
        with pytest.raises(ModelFileError, match=problem):
            TokenizerFiles.read(tmp_path)
    path.write_bytes(b"\xff{}")
    with pytest.raises(ModelFileError, match="cannot read"):
        TokenizerFiles.read(tmp_path)
    path.write_text("{}")
    for name in ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "config.json"):
        (tmp_path / name).write_text("[")
        with pytest.raises(ModelFileError, match=rf"cannot read .*{name}"):
            TokenizerFiles.read(tmp_path)
        (tmp_path / name).unlink()
    model = {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}
    path.write_text(json.dumps({"model": model, "decoder": {"type": "ByteLevel"}, "added_tokens": []}))
    with pytest.raises(ModelFileError, match=r"tokenizer\.json"):
        build(tmp_path)
