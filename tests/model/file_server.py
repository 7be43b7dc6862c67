"""A real HTTP server on 127.0.0.1 for download tests, with the faults that servers have."""

from __future__ import annotations

import hashlib
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Page:
    """What one path answers.

    `cuts` are body lengths after which the connection drops, one per request. `statuses` are refusals, one per GET,
    before it answers normally; `refuse_all` is one for ever. `pause_s` comes between pieces of 64 kB;
    after the first piece the answer waits for `gate`.
    """

    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    etag: str | None = None
    ranges: bool = True
    cuts: list[int] = field(default_factory=list)
    statuses: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    refuse_all: tuple[int, dict[str, str]] | None = None
    redirect: str | None = None
    announced: int | None = None
    pause_s: float = 0.0
    hang_after: int | None = None
    gate: threading.Event | None = None


class FileServer:
    """Serves `pages` by path. `requests` records (method, path, headers) of every request."""

    def __init__(self) -> None:
        self.pages: dict[str, Page] = {}
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.released = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                server.answer(self)

            def do_GET(self) -> None:
                server.answer(self)

            def log_message(self, *args: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def __enter__(self) -> FileServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.released.set()
        self.http.shutdown()
        self.http.server_close()

    def gets(self, path: str) -> list[dict[str, str]]:
        """The headers of every GET of `path`."""
        return [headers for method, got, headers in self.requests if (method, got) == ("GET", path)]

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = request.path.partition("?")[0]
        headers = {name.title(): value for name, value in request.headers.items()}
        self.requests.append((request.command, path, headers))
        request.close_connection = True
        page = self.pages.get(path)
        if page is None:
            self._refuse(request, 404, {})
        elif page.refuse_all:
            self._refuse(request, *page.refuse_all)
        elif page.statuses and request.command == "GET":
            self._refuse(request, *page.statuses.pop(0))
        elif page.redirect:
            self._refuse(request, 302, {"Location": page.redirect, **page.headers})
        else:
            self._send(request, page)

    def _refuse(self, request: BaseHTTPRequestHandler, status: int, headers: dict[str, str]) -> None:
        request.send_response(status)
        for name, value in {"Content-Length": "0", **headers}.items():
            request.send_header(name, value)
        request.send_header("Connection", "close")
        request.end_headers()

    def _send(self, request: BaseHTTPRequestHandler, page: Page) -> None:
        start = self._range_start(request, page)
        size = len(page.body)
        if start is not None and start >= size:
            self._refuse(request, 416, {"Content-Range": f"bytes */{size}"})
            return
        request.send_response(200 if start is None else 206)
        if start is not None:
            request.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
        request.send_header("Content-Length", str(page.announced or size - (start or 0)))
        if page.etag:
            request.send_header("ETag", page.etag)
        for name, value in page.headers.items():
            request.send_header(name, value)
        request.send_header("Connection", "close")
        request.end_headers()
        if request.command == "GET":
            self._body(request, page, page.body[start or 0 :])

    def _range_start(self, request: BaseHTTPRequestHandler, page: Page) -> int | None:
        asked = request.headers.get("Range")
        if not asked or not page.ranges:
            return None
        condition = request.headers.get("If-Range")
        if condition is not None and condition not in (page.etag, page.headers.get("Last-Modified")):
            return None
        return int(asked.removeprefix("bytes=").rstrip("-"))

    def _body(self, request: BaseHTTPRequestHandler, page: Page, body: bytes) -> None:
        if page.cuts:
            body = body[: page.cuts.pop(0)]
        try:
            for at in range(0, len(body), 1 << 16):
                if page.hang_after is not None and at >= page.hang_after:
                    request.wfile.flush()
                    self.released.wait(20)
                    return
                request.wfile.write(body[at : at + (1 << 16)])
                time.sleep(page.pause_s)
                if page.gate:
                    page.gate.wait(60)
        except OSError:
            pass  # the client went away, as some tests want


def gguf_like(size: int, seed: int = 0) -> bytes:
    """`size` bytes that start as a GGUF file does."""
    stream = hashlib.shake_128(seed.to_bytes(4, "little")).digest(size - 4)
    return b"GGUF" + stream


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
