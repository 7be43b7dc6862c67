"""The client at the other end of a connection: when it is gone, and how to be rid of one that does not read."""

from __future__ import annotations

import asyncio

from starlette.types import Message, Scope, Send

ABORT = "typebar.abort"  # the ASGI extension that cuts a connection at once: a callable, see http_protocol.py


class ClientGone(Exception):
    """The connection ended, or was cut, before the request or its answer did: nobody is left to be told."""


class ReaderStalled(ClientGone):
    """The connection was cut because the client did not read."""


def timed_send(send: Send, scope: Scope, timeout: float) -> Send:
    """`send` for answers of any length to clients of any speed: cuts the connection of one that stalls.

    The returned function raises ReaderStalled when the connection took no more bytes for `timeout` seconds (0: no
    limit), which it then has aborted, and ClientGone when a WebSocket is already closed. An HTTP client that left is
    not reported here: uvicorn swallows what is sent to it, and `receive` says http.disconnect.
    """

    async def send_in_time(message: Message) -> None:
        try:
            async with asyncio.timeout(timeout or None) as limit:
                await send(message)
        except OSError:  # a TimeoutError is one, and so is uvicorn's ClientDisconnected
            if limit.expired():
                scope["extensions"][ABORT]()
                raise ReaderStalled from None
            raise ClientGone from None

    return send_in_time
