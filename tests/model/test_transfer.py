"""One file over HTTP against a real server that cuts, hangs, lies, refuses and redirects."""

import contextlib
import json
import socket
import threading
import time
from pathlib import Path

import pytest
from file_server import FileServer, Page, gguf_like, sha256

from typebar.errors import TypebarError
from typebar.model.report import Report
from typebar.model.transfer import Download, Limits, SourceError, fetch, unreachable

BODY = gguf_like(1_000_000)
ONCE = Limits(read_s=2.0, tries=1, backoff_s=0.01)
PATIENT = Limits(read_s=2.0, tries=4, backoff_s=0.01)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "model.gguf"


def quiet() -> Report:
    return Report(lambda line: None, bars=False)


def leftovers(target: Path) -> list[str]:
    return sorted(path.name for path in target.parent.iterdir() if path != target)


def test_whole_file(server: FileServer, target: Path) -> None:
    server.pages["/m.gguf"] = Page(BODY)
    fetch(Download(f"{server.url}/m.gguf", target, len(BODY), sha256(BODY)), quiet(), ONCE)
    assert target.read_bytes() == BODY
    assert leftovers(target) == []


def test_a_verified_file_is_not_fetched_again(server: FileServer, target: Path) -> None:
    target.parent.mkdir()
    target.write_bytes(BODY)
    fetch(Download(f"{server.url}/m.gguf", target, None, sha256(BODY)), quiet(), ONCE)
    assert server.requests == []


def test_resume_in_a_later_call(server: FileServer, target: Path) -> None:
    server.pages["/m.gguf"] = Page(BODY, etag='"v1"', cuts=[300_000])
    item = Download(f"{server.url}/m.gguf", target, sha256=sha256(BODY))
    with pytest.raises(SourceError, match=r"ended after 300000 of 1000000 bytes.*kept for resume"):
        fetch(item, quiet(), ONCE)
    assert not target.exists()
    fetch(item, quiet(), ONCE)
    assert target.read_bytes() == BODY
    assert leftovers(target) == []
    resumed = server.gets("/m.gguf")[1]
    assert (resumed["Range"], resumed["If-Range"]) == ("bytes=300000-", '"v1"')


def test_broken_connections_are_taken_up_again(server: FileServer, target: Path) -> None:
    server.pages["/m.gguf"] = Page(BODY, etag='"v1"', cuts=[200_000, 300_000, 1])
    said: list[str] = []
    fetch(Download(f"{server.url}/m.gguf", target, sha256=sha256(BODY)), Report(said.append, False), PATIENT)
    assert target.read_bytes() == BODY
    assert [headers.get("Range") for headers in server.gets("/m.gguf")] == [
        None, "bytes=200000-", "bytes=500000-", "bytes=500001-"
    ]  # fmt: skip
    assert sum("trying again" in line for line in said) == 3


@pytest.mark.parametrize("known", [True, False])
def test_server_that_ignores_ranges_starts_over(server: FileServer, target: Path, known: bool) -> None:
    server.pages["/m.gguf"] = Page(BODY, etag='"v1"', cuts=[300_000], ranges=False)
    fetch(Download(f"{server.url}/m.gguf", target, sha256=sha256(BODY) if known else None), quiet(), PATIENT)
    assert target.read_bytes() == BODY


def test_truncating_server_without_ranges_ends(server: FileServer, target: Path) -> None:
    server.pages["/m.gguf"] = Page(BODY, cuts=[300_000] * 50, ranges=False)
    with pytest.raises(SourceError, match="ended after 300000 of 1000000"):
        fetch(Download(f"{server.url}/m.gguf", target), quiet(), PATIENT)
    assert len(server.gets("/m.gguf")) <= 2 * PATIENT.tries
    assert not target.exists()


def test_a_file_that_changed_meanwhile_is_fetched_whole(server: FileServer, target: Path) -> None:
    other = gguf_like(900_000, seed=1)
    server.pages["/m.gguf"] = Page(BODY, etag='"v1"', cuts=[300_000])
    with pytest.raises(SourceError):
        fetch(Download(f"{server.url}/m.gguf", target), quiet(), ONCE)
    server.pages["/m.gguf"] = Page(other, etag='"v2"')
    fetch(Download(f"{server.url}/m.gguf", target), quiet(), ONCE)
    assert target.read_bytes() == other


def test_a_weak_etag_is_no_ground_for_resume(server: FileServer, target: Path) -> None:
    server.pages["/m.gguf"] = Page(BODY, etag='W/"v1"', cuts=[300_000])
    with pytest.raises(SourceError):
        fetch(Download(f"{server.url}/m.gguf", target), quiet(), ONCE)
    fetch(Download(f"{server.url}/m.gguf", target), quiet(), ONCE)
    assert target.read_bytes() == BODY
    assert "Range" not in server.gets("/m.gguf")[1]


def test_partial_file_longer_than_the_file(server: FileServer, target: Path) -> None:
    server.pages["/m.gguf"] = Page(BODY, etag='"v1"', cuts=[300_000])
    with pytest.raises(SourceError):
        fetch(Download(f"{server.url}/m.gguf", target), quiet(), ONCE)
    partial = target.with_name("model.gguf.partial")
    partial.write_bytes(BODY + b"more")
    fetch(Download(f"{server.url}/m.gguf", target), quiet(), PATIENT)
    assert target.read_bytes() == BODY


def test_wrong_content_range_is_noticed(server: FileServer, target: Path) -> None:
    server.pages["/m.gguf"] = Page(BODY, etag='"v1"', cuts=[300_000])
    with pytest.raises(SourceError):
        fetch(Download(f"{server.url}/m.gguf", target), quiet(), ONCE)
    server.pages["/m.gguf"].statuses = [(206, {"Content-Range": "bytes 5-9/1000000"})]
    fetch(Download(f"{server.url}/m.gguf", target, sha256=sha256(BODY)), quiet(), PATIENT)
    assert target.read_bytes() == BODY


def test_wrong_digest_leaves_nothing(server: FileServer, target: Path) -> None:
    server.pages["/m.gguf"] = Page(BODY)
    with pytest.raises(SourceError, match=f"sha256 {sha256(BODY)}, expected is {'0' * 64}"):
        fetch(Download(f"{server.url}/m.gguf", target, sha256="0" * 64), quiet(), ONCE)
    assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize("header", ["ETag", "X-Linked-Etag"])
def test_digest_that_the_server_sends_is_checked(server: FileServer, target: Path, header: str) -> None:
    server.pages["/m.gguf"] = Page(BODY, headers={header: f'"{"a" * 64}"'})
    with pytest.raises(SourceError, match="expected is aaaa"):
        fetch(Download(f"{server.url}/m.gguf", target), quiet(), ONCE)
    server.pages["/m.gguf"] = Page(BODY, headers={header: f'"{sha256(BODY)}"'})
    said: list[str] = []
    fetch(Download(f"{server.url}/m.gguf", target), Report(said.append, False), ONCE)
    assert said == []


def test_missing_digest_is_said(server: FileServer, target: Path) -> None:
    server.pages["/m.gguf"] = Page(BODY)
    said: list[str] = []
    fetch(Download(f"{server.url}/m.gguf", target), Report(said.append, False), ONCE)
    assert said == ["model.gguf: the server sent no sha256, only the size was checked"]


def test_not_found_is_final(server: FileServer, target: Path) -> None:
    with pytest.raises(SourceError, match=r"/m\.gguf answers 404"):
        fetch(Download(f"{server.url}/m.gguf?token=secret", target), quiet(), PATIENT)
    assert len(server.gets("/m.gguf")) == 1


def test_secrets_in_a_url_are_not_shown(server: FileServer, target: Path) -> None:
    server.pages["/m.gguf"] = Page(BODY, etag='"v1"', cuts=[300_000])
    with pytest.raises(SourceError) as error:
        fetch(Download(f"{server.url}/m.gguf?token=secret", target), quiet(), ONCE)
    assert "secret" not in str(error.value)
    assert "secret" not in target.with_name("model.gguf.partial.json").read_text()


@pytest.mark.parametrize("status", [429, 500, 503])
def test_passing_refusals_are_tried_again(server: FileServer, target: Path, status: int) -> None:
    server.pages["/m.gguf"] = Page(BODY, statuses=[(status, {"Retry-After": "0"}), (status, {})])
    fetch(Download(f"{server.url}/m.gguf", target), quiet(), PATIENT)
    assert target.read_bytes() == BODY


def test_lasting_refusals_end(server: FileServer, target: Path) -> None:
    server.pages["/m.gguf"] = Page(BODY, statuses=[(503, {})] * 50)
    with pytest.raises(SourceError, match="answers 503"):
        fetch(Download(f"{server.url}/m.gguf", target), quiet(), PATIENT)
    assert len(server.gets("/m.gguf")) == PATIENT.tries


def test_a_long_wait_is_not_waited(server: FileServer, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # a second try would succeed
    server.pages["/m.gguf"] = Page(BODY, statuses=[(429, {"Retry-After": "3600"})])
    with pytest.raises(SourceError, match="answers 429"):
        fetch(Download(f"{server.url}/m.gguf", target), quiet(), PATIENT)
    assert len(server.gets("/m.gguf")) == 1


def test_silence_in_the_middle(server: FileServer, target: Path) -> None:
    server.pages["/m.gguf"] = Page(BODY, etag='"v1"', hang_after=1 << 18)
    with pytest.raises(SourceError, match=r"no data for 0\.3 s; 262\.1 kB are kept"):
        fetch(Download(f"{server.url}/m.gguf", target), quiet(), Limits(read_s=0.3, tries=1))
    server.pages["/m.gguf"].hang_after = None
    fetch(Download(f"{server.url}/m.gguf", target), quiet(), ONCE)
    assert target.read_bytes() == BODY


def test_a_web_page_is_not_a_model(server: FileServer, target: Path) -> None:
    server.pages["/m.gguf"] = Page(b"<!DOCTYPE html><title>Please log in</title>")
    with pytest.raises(SourceError, match=r"is not a GGUF file: it starts with b'<!DOCTYPE"):
        fetch(Download(f"{server.url}/m.gguf", target), quiet(), PATIENT)
    assert list(target.parent.iterdir()) == []


def test_another_size_than_expected(server: FileServer, target: Path) -> None:
    server.pages["/m.gguf"] = Page(BODY)
    with pytest.raises(SourceError, match="has 1000000 bytes there, 5 are expected"):
        fetch(Download(f"{server.url}/m.gguf", target, size=5), quiet(), PATIENT)


def test_compressed_answer_is_refused(server: FileServer, target: Path) -> None:
    server.pages["/m.gguf"] = Page(BODY, headers={"Content-Encoding": "gzip"})
    with pytest.raises(SourceError, match="compressed"):
        fetch(Download(f"{server.url}/m.gguf", target), quiet(), ONCE)


def test_space_is_checked_before_the_first_byte(server: FileServer, target: Path) -> None:
    server.pages["/m.gguf"] = Page(BODY, announced=10**15)
    with pytest.raises(TypebarError, match=r"not enough space in .*: 1000000\.0 GB needed, .* free.*TYPEBAR_CACHE"):
        fetch(Download(f"{server.url}/m.gguf", target), quiet(), ONCE)
    assert not target.with_name("model.gguf.partial").exists()


def test_cache_that_cannot_be_written(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(TypebarError, match=r"cannot write to .*/file.*set TYPEBAR_CACHE"):
        fetch(Download(f"{server.url}/m.gguf", tmp_path / "file" / "x" / "model.gguf"), quiet(), ONCE)


def test_token_does_not_follow_to_another_host(server: FileServer, target: Path) -> None:
    with FileServer() as storage:
        storage.pages["/blob"] = Page(BODY)
        server.pages["/m.gguf"] = Page(redirect="/moved.gguf")
        server.pages["/moved.gguf"] = Page(redirect=f"{storage.url}/blob")
        token = {"Authorization": "Bearer secret"}
        fetch(Download(f"{server.url}/m.gguf", target, headers=token), quiet(), ONCE)
        assert target.read_bytes() == BODY
        assert server.gets("/moved.gguf")[0]["Authorization"] == "Bearer secret"
        assert "Authorization" not in storage.gets("/blob")[0]


def test_range_follows_a_redirect(server: FileServer, target: Path) -> None:
    with FileServer() as storage:
        storage.pages["/blob"] = Page(BODY, etag='"v1"', cuts=[300_000])
        server.pages["/m.gguf"] = Page(redirect=f"{storage.url}/blob?signed=1")
        fetch(Download(f"{server.url}/m.gguf", target, sha256=sha256(BODY)), quiet(), PATIENT)
        assert storage.gets("/blob")[1]["Range"] == "bytes=300000-"
    assert target.read_bytes() == BODY


def test_notes_of_another_url_are_not_trusted(server: FileServer, target: Path) -> None:
    server.pages["/m.gguf"] = Page(BODY, etag='"v1"')
    target.parent.mkdir()
    target.with_name("model.gguf.partial").write_bytes(b"GGUF" + b"x" * 1000)
    notes = {"url": "http://elsewhere/m.gguf", "validator": '"v1"', "sha256": None}
    target.with_name("model.gguf.partial.json").write_text(json.dumps(notes))
    fetch(Download(f"{server.url}/m.gguf", target), quiet(), ONCE)
    assert target.read_bytes() == BODY


def test_unreachable_reasons(server: FileServer) -> None:
    assert unreachable(server.url) is None  # a 404 is an answer
    assert unreachable("http://nothing.invalid") == "its name does not resolve"
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    assert unreachable(f"http://127.0.0.1:{port}") == "connection refused"


def test_silent_server_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert unreachable(f"http://127.0.0.1:{silent.getsockname()[1]}", 0.3) == "no answer in 0.3 s"


def test_trickling_server_is_given_up_in_time() -> None:
    """Each byte comes within the socket timeout, the whole answer never does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ended = threading.Event()

        def trickle() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                for byte in b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100:
                    connection.send(bytes([byte]))
                    time.sleep(0.1)
            ended.set()

        threading.Thread(target=trickle, daemon=True).start()
        assert unreachable(f"http://127.0.0.1:{listener.getsockname()[1]}", 0.5) == "no answer in 0.5 s"
        assert not ended.is_set()
