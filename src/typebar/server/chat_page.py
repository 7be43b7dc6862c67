"""The chat page: the files that Vite built out of web/, where that was done."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from typebar.server import pages
from typebar.server.errors import APIError
from typebar.server.exchange import Exchange

FOLDER = Path(__file__).resolve().parent.parent / "web"

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "vary": "Accept-Encoding",
}
_FOREVER = "public, max-age=31536000, immutable"  # the names of assets hold a hash of what is in them


class ChatPage:
    """Serves a folder with an index.html and hashed files in assets/, some with a .gz beside them."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._assets = folder / "assets"

    async def index(self, exchange: Exchange) -> None:
        """The page, or the one that needs no script where it was not built."""
        path = self._folder / "index.html"
        if path.is_file():
            await _send(exchange, path, "no-cache")
        else:
            await pages.start_page(exchange)

    async def asset(self, exchange: Exchange) -> None:
        """A file of the page. APIError 404 for anything but a file of a known type in the folder."""
        path = self._files().get(exchange.path["name"])
        if path is None:
            raise APIError(404, "the page has no such file; it may be of another version: reload it", code="not_found")
        await _send(exchange, path, _FOREVER)

    def _files(self) -> dict[str, Path]:
        """By name. Only a name that is there is ever looked up, so no name can lead out of the folder."""
        if not self._assets.is_dir():
            return {}
        return {path.name: path for path in self._assets.iterdir() if path.suffix in _TYPES and not path.is_symlink()}


async def _send(exchange: Exchange, path: Path, cache_control: str) -> None:
    compressed = path.with_name(path.name + ".gz")
    is_compressed = _takes_gzip(exchange.headers) and compressed.is_file()
    sent = compressed if is_compressed else path
    status = sent.stat()
    etag = f'"{status.st_mtime_ns:x}-{status.st_size:x}{"-gz" if is_compressed else ""}"'
    headers = {**_HEADERS, "cache-control": cache_control, "etag": etag}
    if is_compressed:
        headers["content-encoding"] = "gzip"
    if _knows(exchange.headers.get("if-none-match", ""), etag):
        await exchange.respond(b"", _TYPES[path.suffix], 304, headers)
    else:
        await exchange.respond(sent.read_bytes(), _TYPES[path.suffix], headers=headers)


def _takes_gzip(headers: Mapping[str, str]) -> bool:
    for part in headers.get("accept-encoding", "").split(","):
        name, _, parameters = part.partition(";")
        if name.strip().lower() in ("gzip", "*"):
            return parameters.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _knows(header: str, etag: str) -> bool:
    """Whether an If-None-Match names the tag; a weak comparison, as for every GET."""
    tags = [tag.strip().removeprefix("W/") for tag in header.split(",")]
    return etag in tags or "*" in tags
