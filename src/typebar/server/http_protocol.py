"""uvicorn's protocols with deadlines and bounds: no connection is held for nothing, none grows without end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httptools
import msgspec
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from typebar.server.client import ABORT
from typebar.server.errors import APIError

MAX_PIPELINED = 16  # requests that wait on one connection for the answers before theirs


def http_protocol(read_timeout: float, max_head: int = 64 * 1024) -> type[HttpProtocol]:
    """The class for `uvicorn.Config(http=…)`.

    read_timeout: seconds (above 0) for a request head to arrive, on a new connection from its beginning, and for a
    client to take the end of what it was sent before its connection closes. max_head: bytes of a head, and of trailers
    and other bytes around a body; more is answered with 431.
    """
    return type("BoundHttpProtocol", (HttpProtocol,), {"read_timeout": read_timeout, "max_head": max_head})


class HttpProtocol(HttpToolsProtocol):
    """One connection. Requests find its abort() in scope["extensions"]["typebar.abort"]."""

    read_timeout = 30.0
    max_head = 64 * 1024

    _deadline: asyncio.TimerHandle | None = None  # while neither an answer nor uvicorn's keep-alive timer runs
    _running: RequestResponseCycle | None = None  # the request being answered; `cycle` is the last one read
    _in_head = False
    _idle_bytes = 0  # received since the parser last had a whole head, a piece of a body or the end of a message
    _refusal: APIError | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.access_log = False  # it would hold queries, and so keys

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm(self._close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._disconnect_running()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._idle_bytes += len(data)
        self._feed(data)
        if self.transport.is_closing() or self.transport.get_protocol() is not self:
            return
        if self._idle_bytes > self.max_head:
            self._refuse(self._head_too_large())
        elif not self._is_answering() and self._deadline is None:
            self._arm(self._close)

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self._refuse(self._refusal or APIError(400, "The request is not valid HTTP/1.1."))
        except httptools.HttpParserUpgrade as upgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            else:
                self._feed_again(data[upgrade.args[0] :])

    def _feed_again(self, rest: bytes) -> None:
        """Read a request that offers another protocol, such as h2c, as one that does not.

        Java's HttpClient offers it to every server. The parser takes an offer for a change: it would skip the body.
        """
        head = [self.parser.get_method(), b" ", self.url, b" HTTP/%s\r\n" % self.parser.get_http_version().encode()]
        for name, value in self.headers:
            if name != b"upgrade":
                head += [name, b": ", value, b"\r\n"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._feed(b"".join([*head, b"\r\n", rest]))

    # What the parser calls. An exception here ends in a refusal.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: self.transport.abort}  # type: ignore[dict-item]
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # else it is a trailer, which must not change a request under way
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._idle_bytes = 0
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > self.max_head:
            self._refusal = self._head_too_large()
            raise self._refusal
        if len(self.pipeline) >= MAX_PIPELINED:
            self._refusal = APIError(429, f"More than {MAX_PIPELINED} requests wait here; open more connections.")
            raise self._refusal
        self._disarm()
        if self._is_offer():
            return
        super().on_headers_complete()
        if self.pipeline:
            self.flow.resume_reading()  # uvicorn pauses here, and then would not see the client leave

    def on_body(self, body: bytes) -> None:
        self._idle_bytes = 0
        super().on_body(body)
        if self.pipeline and len(self.cycle.body) > HIGH_WATER_LIMIT:
            self._refusal = APIError(
                413, "The body is too large to wait behind another request; open a connection for it."
            )
            raise self._refusal

    def on_message_complete(self) -> None:
        self._idle_bytes = 0
        self._disarm()
        if not self._is_offer():
            super().on_message_complete()

    def _is_offer(self) -> bool:
        """Whether the parser takes the request for a change to a protocol that is not spoken here."""
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT" and not self._should_upgrade()

    # Answers.

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle

        async def run(scope: Any, receive: Any, send: Any) -> None:
            try:
                await app(scope, receive, _without_chunks(cycle, send) if scope["http_version"] == "1.0" else send)
            finally:
                self.loop.call_soon(self._linger)

        super()._start_asgi_task(cycle, run)

    def handle_websocket_upgrade(self) -> None:
        if self._is_answering():
            self._refuse(APIError(400, "A WebSocket cannot begin while an answer is under way on its connection."))
        else:
            self._disarm()
            super().handle_websocket_upgrade()

    def shutdown(self) -> None:
        super().shutdown()
        self._linger()

    def timeout_keep_alive_handler(self) -> None:
        self._close()

    def _refuse(self, error: APIError) -> None:
        """End the connection; say why only where that cannot be taken for the answer to another request."""
        if not self._is_answering() or not (self.pipeline or self.cycle.response_started):
            body = msgspec.json.encode(error.body())
            head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[error.status] + head + body)
        self._disconnect_running()
        self._close()

    def _head_too_large(self) -> APIError:
        message = f"The head of the request is larger than {self.max_head} bytes; send fewer headers."
        return APIError(431, message, type="invalid_request_error")

    def _is_answering(self) -> bool:
        return self._running is not None and not self._running.response_complete

    def _disconnect_running(self) -> None:
        """uvicorn tells only the last request that was read; a pipelined one would hide the loss from this one."""
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()

    # Deadlines.

    def _close(self) -> None:
        self.transport.close()
        self._linger()

    def _linger(self) -> None:
        """A transport that closes waits for its reader without end; this one waits `read_timeout`."""
        if self.transport.is_closing() and self in self.connections:
            self._arm(self.transport.abort)

    def _arm(self, action: Callable[[], None]) -> None:
        self._disarm()
        self._deadline = self.loop.call_later(self.read_timeout, action)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _without_chunks(cycle: RequestResponseCycle, send: Any) -> Any:
    """`send` for HTTP/1.0, which knows no chunks: a body without a length ends with the connection.

    uvicorn would write chunks there, and counts the bytes of everything else.
    """

    async def send_plain(message: Any) -> None:
        if message["type"] == "http.response.start":
            if not any(name.lower() == b"content-length" for name, _ in message["headers"]):
                cycle.chunked_encoding = False
        elif not cycle.chunked_encoding and not cycle.expected_content_length:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    return send_plain
