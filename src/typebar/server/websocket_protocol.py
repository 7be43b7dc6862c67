"""uvicorn's WebSockets with deadlines, whose log tells no secrets."""

from __future__ import annotations

import logging
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from typebar.server.client import ABORT

# uvicorn logs the path and query of each socket as information, and websockets at level debug its headers and messages.
# Keys and prompts are among them, so only warnings pass.
_log = logging.getLogger("uvicorn.error.websocket")
_log.setLevel(logging.WARNING)


def websocket_protocol(read_timeout: float) -> type[WebSocketProtocol]:
    """A class for connections that became WebSockets. read_timeout: seconds (above 0) that the closing may take."""
    return type("BoundWebSocketProtocol", (WebSocketProtocol,), {"read_timeout": read_timeout})


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One WebSocket. Its route finds abort() in scope["extensions"]["typebar.abort"]."""

    read_timeout = 30.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logger = _log
        self.conn.logger, self.conn.debug = _log, False

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.handshake_initiated:  # websockets refuses a head of over 128 headers, and then only waits
            self.transport.write(STATUS_LINE[400] + b"content-length: 0\r\nconnection: close\r\n\r\n")
            self.transport.close()

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if not self.handshake_complete:
            self.scope["extensions"][ABORT] = self.transport.abort  # type: ignore[assignment]

    async def run_asgi(self) -> None:
        await super().run_asgi()
        self._linger()

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self._linger()

    def shutdown(self) -> None:
        super().shutdown()
        self._linger()

    def _linger(self) -> None:
        if not self.disconnected:
            self.loop.call_later(self.read_timeout, self.transport.abort)
