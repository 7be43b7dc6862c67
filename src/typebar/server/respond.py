"""Whole JSON answers, straight over ASGI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.types import Send

from typebar.server.errors import APIError

_encoder = msgspec.json.Encoder()


async def json_response(send: Send, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
    """Send `body` as one JSON answer. Header values are latin-1."""
    data = _encoder.encode(body)
    head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(data))]
    head += [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in (headers or {}).items()]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": data})


async def send_error(send: Send, error: APIError) -> None:
    """Send the error as the whole answer of an HTTP request."""
    await json_response(send, error.status, error.body(), error.headers)
