"""A load client for OpenAI-compatible servers: it asks, and notes what came and when."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import perf_counter
from types import TracebackType
from typing import Any, Self

import httpx
from websockets.asyncio.client import ClientConnection, connect

Json = dict[str, Any]

CONNECT_TIMEOUT = 10.0


@dataclass(slots=True)
class Reply:
    """One answer as its client saw it, filled while it comes. Moments in seconds of `perf_counter()`; 0: never.

    `status` is 0 until the head of the response is there. `arrivals` has the moment of every piece of text. `ended` is
    set when the server has said everything, so it stays 0 where the client went away first.
    """

    status: int = 0
    id: str = ""
    text: str = ""
    finish_reason: str = ""
    usage: Json = field(default_factory=dict)
    timings: Json = field(default_factory=dict)
    error: Json = field(default_factory=dict)
    started: float = 0.0
    first_byte: float = 0.0
    ended: float = 0.0
    arrivals: list[float] = field(default_factory=list)

    @property
    def ttfb(self) -> float:
        """Seconds until the head of the response."""
        return self.first_byte - self.started

    @property
    def ttft(self) -> float:
        """Seconds until the first text; of a plain answer, until all of it."""
        return (self.arrivals[0] if self.arrivals else self.ended) - self.started

    @property
    def gaps(self) -> list[float]:
        """Seconds between pieces of text."""
        return [after - before for before, after in zip(self.arrivals, self.arrivals[1:], strict=False)]

    @property
    def completion_tokens(self) -> int:
        return int(self.usage.get("completion_tokens", 0))

    @property
    def cached_tokens(self) -> int:
        return int((self.usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0))

    def take(self, message: Json) -> None:
        """Add a whole response or one chunk of a stream."""
        self.id = self.id or message.get("id", "")
        self.usage = message.get("usage") or self.usage
        self.timings = message.get("timings") or self.timings
        if error := message.get("error"):
            self.error = error if isinstance(error, dict) else {"message": str(error)}
        for choice in message.get("choices") or []:
            self.add_text((choice.get("delta") or choice.get("message") or {}).get("content") or "")
            self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def add_text(self, text: str) -> None:
        if text:
            self.text += text
            self.arrivals.append(perf_counter())


class Client:
    """Connections to one server. `async with Client(url) as client` closes them at the end.

    model: asked for where a body names none. keep_alive: whether a connection serves more than one request; llama.cpp's
    server ends them without saying so.
    """

    def __init__(self, url: str, api_key: str = "", *, model: str = "default", keep_alive: bool = True) -> None:
        self.url = url.rstrip("/")
        self.model = model
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers={**self._headers, "Accept-Encoding": "identity"},
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT),  # of an answer: the caller's business
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64 if keep_alive else 0),
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def chat(self, body: Json, *, stream: bool = True, request_id: str = "", reply: Reply | None = None) -> Reply:
        """Ask for a chat completion. `reply` is filled as the answer comes, and keeps it where this is cancelled.

        A refusal is a reply with its status and error; httpx.HTTPError where the connection breaks, ValueError where
        an event of a stream is no JSON object.
        """
        reply = reply or Reply()
        body = {"model": self.model, **body, "stream": stream}
        if stream:
            body["stream_options"] = {"include_usage": True}
        headers = {"X-Request-Id": request_id} if request_id else {}
        reply.started = perf_counter()
        async with self._http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
            reply.first_byte = perf_counter()
            reply.status = response.status_code
            if stream and response.is_success:
                async for event in _events(response):
                    reply.take(_object(event))
            else:
                reply.take(_json(await response.aread()))
        reply.ended = perf_counter()
        return reply

    async def cancel(self, request_id: str) -> int:
        """Cancel a request by its X-Request-Id or response id. The status of the answer."""
        return (await self._http.post(f"/v1/requests/{request_id}/cancel")).status_code

    async def send(self, method: str, path: str, content: bytes = b"") -> tuple[int, Json]:
        """Any request with any body: its status, and the body where that is a JSON object."""
        headers = {"Content-Type": "application/json"} if content else {}
        response = await self._http.request(method, path, content=content, headers=headers)
        return response.status_code, _json(response.content)

    async def send_half(self, method: str, path: str, content: bytes) -> None:
        """Send the head and the first half of a body, then hang up."""
        url = httpx.URL(self.url)
        _, writer = await asyncio.open_connection(url.host, url.port or 80)
        head = f"{method} {path} HTTP/1.1\r\nHost: {url.netloc.decode()}\r\nContent-Type: application/json\r\n"
        length = f"Content-Length: {len(content)}\r\n\r\n"
        writer.write((head + length).encode() + content[: len(content) // 2])
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def text(self, path: str) -> str:
        """What a page says. httpx.HTTPStatusError where it is not 2xx."""
        return (await self._http.get(path)).raise_for_status().text

    @asynccontextmanager
    async def socket(self) -> AsyncIterator[Socket]:
        """A WebSocket connection to typebar's /v1/ws. It pings every 20 s and fails where no pong comes."""
        url = "ws" + self.url.removeprefix("http") + "/v1/ws"
        headers: Sequence[tuple[str, str]] = list(self._headers.items())
        async with connect(url, additional_headers=headers, max_size=None, proxy=None) as connection:
            yield Socket(connection)


class Socket:
    """One WebSocket connection, on which chats follow or interrupt each other."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._open: list[Reply] = []  # in the order asked

    async def ask(self, body: Json) -> Reply:
        """Send a chat, which ends the one that runs. The empty reply is for `read`."""
        return await self.send(json.dumps({"type": "chat", **body}, ensure_ascii=False))

    async def send(self, text: str) -> Reply:
        """Send any text that will be answered."""
        reply = Reply(started=perf_counter())
        self._open.append(reply)
        await self._connection.send(text)
        return reply

    async def stop(self) -> None:
        await self._connection.send('{"type": "stop"}')

    async def read(self, reply: Reply) -> Reply:
        """Take frames until this answer is over; those of other answers go to them.

        websockets.ConnectionClosed where the server hangs up. One task at a time may read.
        """
        while not reply.ended:
            self._take(json.loads(await self._connection.recv()))
        return reply

    def _take(self, frame: Json) -> None:
        kind, id = frame.pop("type"), frame.get("id", "")
        # An answer gets its id with its first frame, and answers start in the order asked.
        reply = next((reply for reply in self._open if reply.id == id), None)
        reply = reply or next(reply for reply in self._open if not reply.id)
        reply.id = id
        reply.first_byte = reply.first_byte or perf_counter()
        if kind == "start":
            reply.status = 200
        elif kind == "delta":
            reply.add_text(frame["text"])
        elif kind in ("done", "error"):
            reply.take(frame)
            reply.ended = perf_counter()
            self._open.remove(reply)


async def _events(response: httpx.Response) -> AsyncIterator[bytes]:
    """The data of server-sent events up to [DONE]; comments are left out.

    Lines are cut from bytes: httpx's own `aiter_lines` also ends a line at U+2028, which JSON may hold.
    """
    rest = b""
    async for part in response.aiter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if line.startswith(b"data:") and data != b"[DONE]":
                yield data


def _object(content: bytes) -> Json:
    value = json.loads(content)
    if not isinstance(value, dict):
        raise ValueError(f"no JSON object: {content[:60]!r}")
    return value


def _json(content: bytes) -> Json:
    try:
        return _object(content)
    except ValueError:
        return {}
