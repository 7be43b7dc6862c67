"""The files of the chat page: types, caching, compression, and nothing from outside the folder."""

import asyncio
import gzip
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from typebar.server.app import create_app
from typebar.server.chat_page import FOLDER, ChatPage
from typebar.server.settings import ServerSettings
from typebar.server.state import ServerState

FIRST_LOAD = 200_000  # bytes, compressed, that may come before the page can be used

SCRIPT = b"console.log('typebar')\n" * 50


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    web = tmp_path / "web"
    assets = web / "assets"
    assets.mkdir(parents=True)
    (web / "index.html").write_text('<!doctype html><script type="module" src="/assets/index-1.js"></script>')
    (assets / "index-1.js").write_bytes(SCRIPT)
    (assets / "index-1.js.gz").write_bytes(gzip.compress(SCRIPT))
    (assets / "font-1.woff2").write_bytes(b"wOF2")
    (assets / "notes.txt").write_text("not of the page")
    (tmp_path / "secret.js").write_text("secret")
    (assets / "link.js").symlink_to(tmp_path / "secret.js")
    return web


def get(folder: Path, path: str, headers: dict[str, str] | None = None, method: str = "GET") -> httpx.Response:
    state = ServerState(ServerSettings())
    transport = httpx.ASGITransport(app=create_app(state, ChatPage(folder)))

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.request(method, path, headers={"accept-encoding": "identity", **(headers or {})})

    return asyncio.run(ask())


def test_the_page_runs_scripts_and_styles_of_the_server_only(folder: Path) -> None:
    response = get(folder, "/")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    policy = dict(part.strip().split(" ", 1) for part in response.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert "unsafe" not in response.headers["content-security-policy"]


def test_where_the_page_is_not_built_a_plain_one_is_shown(tmp_path: Path) -> None:
    response = get(tmp_path / "absent", "/")
    assert response.status_code == 200
    assert "/v1/chat/completions" in response.text
    assert "script-src" not in response.headers["content-security-policy"]
    assert "<script" not in response.text
    assert get(tmp_path / "absent", "/assets/index-1.js").status_code == 404


def test_files_have_their_types_and_are_kept(folder: Path) -> None:
    script = get(folder, "/assets/index-1.js")
    assert script.content == SCRIPT
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    assert "immutable" in script.headers["cache-control"]
    assert script.headers["x-content-type-options"] == "nosniff"
    assert get(folder, "/assets/font-1.woff2").headers["content-type"] == "font/woff2"


@pytest.mark.parametrize(
    ("accepted", "is_compressed"),
    [("gzip", True), ("br, gzip;q=0.5", True), ("*", True), ("identity", False), ("gzip;q=0", False), ("br", False)],
)
def test_who_takes_gzip_gets_the_compressed_file(folder: Path, accepted: str, is_compressed: bool) -> None:
    response = get(folder, "/assets/index-1.js", {"accept-encoding": accepted})
    assert response.content == SCRIPT  # httpx unpacks it
    assert (response.headers.get("content-encoding") == "gzip") is is_compressed
    assert int(response.headers["content-length"]) < len(SCRIPT) or not is_compressed
    assert response.headers["vary"] == "Accept-Encoding"


def test_a_file_without_a_compressed_one_is_sent_as_it_is(folder: Path) -> None:
    response = get(folder, "/assets/font-1.woff2", {"accept-encoding": "gzip"})
    assert response.content == b"wOF2" and "content-encoding" not in response.headers


@pytest.mark.parametrize("path", ["/", "/assets/index-1.js"])
@pytest.mark.parametrize("form", ["{}", "W/{}", '"other", {}', "*"])
def test_who_has_the_file_is_told_so(folder: Path, path: str, form: str) -> None:
    etag = get(folder, path).headers["etag"]
    response = get(folder, path, {"if-none-match": form.format(etag)})
    assert response.status_code == 304 and response.content == b""
    assert response.headers["etag"] == etag
    assert get(folder, path, {"if-none-match": '"other"'}).status_code == 200


def test_the_tag_changes_with_the_page(folder: Path) -> None:
    etag = get(folder, "/").headers["etag"]
    (folder / "index.html").write_text("<!doctype html>another")
    response = get(folder, "/", {"if-none-match": etag})
    assert response.status_code == 200 and response.text.endswith("another")


@pytest.mark.parametrize(
    "path",
    [
        "/assets/absent.js",
        "/assets/",
        "/assets/../index.html",
        "/assets/%2e%2e/index.html",
        "/assets/..%2f..%2fsecret.js",
        "/assets//etc/passwd.js",
        "/assets/%2Fetc%2Fhosts.js",
        "/assets/link.js",
        "/assets/notes.txt",
        "/assets/index-1.js.gz",
        "/assets/index-1.js%00.css",
        "/assets/" + "a" * 5000 + ".js",
        "/index.html",
    ],
)
def test_nothing_else_is_served(folder: Path, path: str) -> None:
    response = get(folder, path)
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "not_found_error"


def test_files_are_read_only(folder: Path) -> None:
    assert get(folder, "/assets/index-1.js", method="POST").status_code == 405
    assert get(folder, "/assets/index-1.js", method="HEAD").status_code == 200


built = pytest.mark.skipif(not (FOLDER / "index.html").exists(), reason="the page is not built: make page")


@built
def test_the_first_load_is_small() -> None:
    html = (FOLDER / "index.html").read_text()
    names = re.findall(r'(?:src|href)="/(assets/[^"]+)"', html)
    assert any(name.endswith(".js") for name in names) and any(name.endswith(".css") for name in names)
    sizes = {name: len(gzip.compress((FOLDER / name).read_bytes())) for name in ["index.html", *names]}
    assert sum(sizes.values()) <= FIRST_LOAD, sizes


@built
def test_the_page_has_no_inline_script_and_names_no_other_host() -> None:
    html = (FOLDER / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)", html) and "<style" not in html and "style=" not in html
    assert not re.findall(r'(?:src|href)="(?!/)', html)
    for path in (FOLDER / "assets").glob("*.css"):
        assert not re.findall(r"url\((?!/assets/|#|data:)", path.read_text()), path.name


@built
def test_heights_follow_what_is_visible_on_a_phone() -> None:
    """100vh reaches below the toolbars of phones."""
    for path in (FOLDER / "assets").glob("index-*.css"):
        assert "100dvh" in path.read_text() and "100vh" not in path.read_text()


def test_the_state_is_refused_while_the_model_loads(folder: Path) -> None:
    assert get(folder, "/v1/status").status_code == 503


def test_the_state_of_the_server(tiny_server: Any) -> None:
    status = tiny_server.get("/v1/status").json()
    assert status["model"] == "tiny"
    assert status["max_model_len"] == 2048
    assert status["threads"] >= 1 and status["seats"] >= 1
    assert status["running"] == status["waiting"] == 0
    assert status["kv_tokens"] > 0 and 0 <= status["kv_used"] <= status["kv_filled"] <= 1
