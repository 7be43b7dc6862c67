"""`typebar pull --list` and `typebar rm` on a cache that was filled from servers on 127.0.0.1."""

import re
from pathlib import Path

import pytest
from downloads import BODY, hub_file, resolve
from file_server import FileServer, Page

from typebar.cli.pull import pull, rm
from typebar.errors import TypebarError
from typebar.model import cache

DEFAULT = "qwen2.5-0.5b-instruct"


def test_rm(server: FileServer, env: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    server.pages["/m.gguf"] = Page(BODY)
    url = f"{server.url}/m.gguf"
    path = resolve(env, url)[0]
    with pytest.raises(TypebarError, match="add --yes"):
        rm(url)
    assert path.exists()
    rm(url, yes=True)
    assert f"1000000 bytes ({cache.megabytes(1_000_000)}) freed" in capsys.readouterr().out
    assert not path.parent.exists()
    with pytest.raises(TypebarError, match="is not in the cache"):
        rm(url, yes=True)


def test_rm_says_that_it_touches_the_shared_cache(
    server: FileServer, env: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    hub_file(server, "org/m-GGUF", "m-q4_0.gguf")
    path = resolve(env, "org/m-GGUF:m-q4_0.gguf")[0]
    blob = path.resolve()
    rm("org/m-GGUF:m-q4_0.gguf", yes=True)
    said = capsys.readouterr()
    assert f"deleting {path} from the Hugging Face cache" in said.err
    assert "1000000 bytes" in said.out
    assert not path.exists() and not blob.exists()


def test_rm_leaves_a_users_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(TypebarError, match="is your own file"):
        rm(str(file), yes=True)
    assert file.exists()


def test_rm_while_it_is_fetched(env: dict[str, str]) -> None:
    cache.model_dir(DEFAULT).mkdir(parents=True)
    with cache.locked(DEFAULT, None), pytest.raises(TypebarError, match="is being downloaded by another process"):
        rm(DEFAULT, yes=True)


def test_list(
    server: FileServer, env: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    server.pages["/m.gguf"] = Page(BODY)
    hub_file(server, "Qwen/Qwen3-0.6B-GGUF", "Qwen3-0.6B-Q8_0.gguf")
    resolve(env, f"{server.url}/m.gguf")
    resolve(env, "qwen3-0.6b")
    pull(show=True)
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert re.search(r" +~491 MB +- +Hugging Face, ModelScope", rows[DEFAULT])
    assert re.search(r" 1 MB +Hugging Face +Hugging Face, ModelScope", rows["qwen3-0.6b"])
    assert re.search(r" 1 MB +127\.0\.0\.1", rows[f"{server.url}/m.gguf"])
