"""From the bytes of a request to its JSON object."""

from __future__ import annotations

import asyncio
import codecs
from itertools import accumulate
from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.types import Receive, Scope

from typebar.server.client import ClientGone
from typebar.server.errors import APIError
from typebar.server.settings import ServerSettings

MAX_DEPTH = 64  # of arrays and objects in each other
MAX_CONTAINERS = 200_000  # arrays and objects in all

_STRUCTURE = b'[]{}"'
_NOT_STRUCTURE = bytes(set(range(256)) - set(_STRUCTURE))
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # +1 and -1 as int8
_decoder = msgspec.json.Decoder()


async def read_json(scope: Scope, receive: Receive, settings: ServerSettings) -> dict[str, Any]:
    """The JSON object in the body of an HTTP request.

    Raises APIError, 400 for what `decode_json` refuses, 408 for a body not complete after `read_timeout`, 413 for one
    above `max_body`, 415 for a compressed one or one that a web page sent as anything but JSON; and ClientGone.
    """
    headers = Headers(scope=scope)
    _check_encoding(headers)
    _check_type(headers)
    _check_length(headers, settings.max_body)
    try:
        async with asyncio.timeout(settings.read_timeout):
            data = await _read(receive, settings.max_body)
    except TimeoutError:
        message = (
            f"The body was not complete after {settings.read_timeout:g} s; send it whole, or raise the read timeout."
        )
        raise APIError(408, message, headers={"Connection": "close"}) from None
    return decode_json(data)


def decode_json(data: bytes) -> dict[str, Any]:
    """The JSON object that `data` holds in UTF-8, with or without a byte order mark.

    Of equal keys the last counts. Raises APIError (400), whose text never repeats the data.
    """
    data = data.removeprefix(codecs.BOM_UTF8)
    _check_text(data)
    _check_nesting(data)
    try:
        value = _decoder.decode(data)
    except RecursionError:
        raise _too_deep() from None
    except UnicodeDecodeError:
        raise _malformed("not UTF-8") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise _malformed(_reason(data, error)) from None
    if not isinstance(value, dict):
        raise APIError(400, 'The request must be a JSON object, such as {"messages": […]}.', code="invalid_json")
    return value


def _check_encoding(headers: Headers) -> None:
    for encoding in headers.getlist("content-encoding"):
        if encoding.strip().lower() not in ("", "identity"):
            message = "Compressed bodies are not read: send the body without Content-Encoding."
            raise APIError(415, message, headers={"Accept-Encoding": "identity"})


def _check_type(headers: Headers) -> None:
    """A page of a foreign site may send text/plain without asking (no preflight), so pages must say JSON."""
    if "origin" not in headers:
        return
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise APIError(415, "A web page must send its request as JSON: set Content-Type to application/json.")


def _check_length(headers: Headers, limit: int) -> None:
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise APIError(400, "Content-Length must be a number of bytes.")
    if len(length) > 19 or int(length) > limit:
        raise _too_large(limit)


async def _read(receive: Receive, limit: int) -> bytes:
    data = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        data += message.get("body", b"")
        if len(data) > limit:
            raise _too_large(limit)
        if not message.get("more_body", False):
            return bytes(data)


def _check_text(data: bytes) -> None:
    if not data.strip(b" \t\r\n"):
        raise APIError(400, "The request is empty; send a JSON object.", code="invalid_json")
    # JSON begins with an ASCII character: a zero or a mark among the first two bytes is UTF-16 or UTF-32.
    if b"\0" in data[:2] or data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise _malformed("it is UTF-16 or UTF-32, send UTF-8")


def _reason(data: bytes, error: Exception) -> str:
    """Why msgspec refused it. Its texts hold byte offsets and never the data."""
    try:
        data.decode()
    except UnicodeDecodeError as bad:
        return f"not UTF-8 (byte {bad.start})"
    return str(error).removeprefix("JSON is malformed: ").partition(" - ")[0].lower()


def _check_nesting(data: bytes) -> None:
    """Refuse deep JSON, and so many containers that they hold up the event loop (5 million empty ones: 2.5 s).

    Nothing is built for it, and only whole buffers are worked on: escaped quotes go first, then all but structure. An
    empty pair of quotes then is a string, or the seam of two; the even pieces between the others are outside strings.
    """
    marks = data.replace(rb"\\", b"").replace(rb"\"", b"").translate(_STEPS, _NOT_STRUCTURE).replace(b'""', b"")
    steps = memoryview(b"".join(marks.split(b'"')[::2])).cast("b")
    if max(accumulate(steps[: 2 * MAX_CONTAINERS]), default=0) > MAX_DEPTH:
        raise _too_deep()
    if len(steps) > 2 * MAX_CONTAINERS:
        raise APIError(413, f"The JSON holds more than {MAX_CONTAINERS} arrays and objects; send less in one request.")


def _malformed(reason: str) -> APIError:
    return APIError(400, f"The request is not valid JSON: {reason}.", code="invalid_json")


def _too_deep() -> APIError:
    return APIError(400, f"The JSON is nested deeper than {MAX_DEPTH} levels; make it flatter.", code="invalid_json")


def _too_large(limit: int) -> APIError:
    return APIError(413, f"The body is larger than {limit} bytes; send less or raise the body limit.")
