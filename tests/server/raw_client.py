"""Clients that do what no HTTP library does: leave, stall, or reset in the middle."""

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any

from server_process import ServerProcess


class RawClient:
    """One connection with one POST on it, whose answer is read by hand or not at all."""

    def __init__(
        self,
        server: ServerProcess,
        path: str,
        body: Mapping[str, Any],
        headers: Mapping[str, str] | None = None,
        receive_buffer: int | None = None,
    ) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(60)
        self.socket.connect(("127.0.0.1", server.port))
        data = json.dumps(body).encode()
        lines = [f"POST {path} HTTP/1.1", f"Host: 127.0.0.1:{server.port}", f"Content-Length: {len(data)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode() + data)
        self.received = b""

    def read_until(self, text: bytes) -> bytes:
        """Everything so far, once `text` is in it. AssertionError where the connection ends before."""
        while text not in self.received:
            data = self.socket.recv(65536)
            assert data, f"closed before {text!r}: {self.received[-500:]!r}"
            self.received += data
        return self.received

    def read_all(self) -> bytes:
        """Everything until the server closes; it may do so by a reset."""
        try:
            while data := self.socket.recv(65536):
                self.received += data
        except ConnectionResetError:
            pass
        return self.received

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Close with a reset, as a killed process or a router does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()
