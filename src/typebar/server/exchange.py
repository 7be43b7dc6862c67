"""One HTTP request and its response."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from uuid import uuid4

import msgspec
from starlette.datastructures import Headers, QueryParams
from starlette.types import Receive, Scope, Send

from typebar.engine.request import ContextLengthError
from typebar.errors import ParameterError, TypebarError
from typebar.server.body import read_json
from typebar.server.client import ClientGone, timed_send
from typebar.server.errors import APIError
from typebar.server.jobs import Job
from typebar.server.schema.fields import ModelFields, read_fields
from typebar.server.state import ServerState, Serving
from typebar.text.messages import MessageError

log = logging.getLogger(__name__)

Fields = TypeVar("Fields", bound=ModelFields)

MAX_CALLER_ID = 128
_CALLER_ID = re.compile(rf"[\x21-\x7e]{{1,{MAX_CALLER_ID}}}")
_EVENT_STREAM = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",  # nginx would collect events otherwise
}


def caller_id(text: object) -> str | None:
    """An id that a client chose, None where it is none that can be echoed: up to 128 visible ASCII characters."""
    return text if isinstance(text, str) and _CALLER_ID.fullmatch(text) else None


class Exchange:
    """What a route reads of its request, and how it answers. The response starts once."""

    def __init__(self, state: ServerState, scope: Scope, receive: Receive, send: Send) -> None:
        self.state = state
        self.scope = scope
        self.headers = Headers(scope=scope)
        self.query = QueryParams(scope["query_string"])
        self.path: Mapping[str, Any] = scope.get("path_params", {})
        self.caller_id = caller_id(self.headers.get("x-request-id"))
        self.request_id = uuid4().hex
        self.ignored: Sequence[str] = ()  # fields of the request without meaning here
        self.prompt_field = "prompt"  # of the request, for what is wrong with the prompt as a whole
        self.started = False
        self._receive = receive
        self._send = timed_send(send, scope, state.settings.write_timeout)

    def ready(self) -> Serving:
        return self.state.ready()

    def ping(self, wanted: float | None) -> float:
        """Seconds of silence after which a stream sends a comment; a client may ask for fewer than the server's."""
        usual = self.state.settings.sse_ping
        return max(0.1, min(wanted, usual)) if wanted is not None and wanted > 0 else usual

    async def read(self) -> dict[str, Any]:
        """The JSON object of the body. APIError where there is none, ClientGone."""
        return await read_json(self.scope, self._receive, self.state.settings)

    async def fields(self, kind: type[Fields]) -> tuple[Serving, Fields]:
        """The model and the request for it. APIError where either is missing or wrong, ClientGone."""
        serving = self.ready()
        fields, self.ignored = read_fields(await self.read(), kind)
        serving.check_model(fields.model, self.state.settings.strict_model)
        return serving, fields

    async def json(self, value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Answer with JSON."""
        await self.respond(msgspec.json.encode(value), "application/json", status, headers)

    async def respond(
        self, body: bytes, content_type: str, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        fixed = {"content-type": content_type, "content-length": str(len(body))}
        await self._start(status, {**fixed, **(headers or {})})
        await self._send({"type": "http.response.body", "body": body})

    async def start_events(self, data: bytes) -> None:
        """Begin a stream of events with its first bytes."""
        await self._start(200, _EVENT_STREAM)
        await self.write(data)

    async def write(self, data: bytes) -> None:
        """More of a stream. ClientGone where the reader has stalled for too long."""
        if data:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end_events(self, data: bytes) -> None:
        """The last bytes of a stream."""
        await self._send({"type": "http.response.body", "body": data})

    @asynccontextmanager
    async def watching(self, job: Job) -> AsyncIterator[None]:
        """End the job when the client goes away."""
        watch = asyncio.create_task(self._watch(job))
        try:
            yield
        finally:
            watch.cancel()

    async def _watch(self, job: Job) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        job.end("cancelled")

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.started = True
        fields = {**headers, "x-request-id": self.caller_id or self.request_id}
        if self.ignored:
            fields["x-typebar-ignored"] = ", ".join(self.ignored)
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})


Handler = Callable[[Exchange], Awaitable[None]]


class Endpoint:
    """A route as an ASGI application, with its errors as JSON."""

    def __init__(self, state: ServerState, handler: Handler) -> None:
        self._state = state
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(self._state, scope, receive, send)
        with contextlib.suppress(ClientGone):  # then there is nobody to tell
            try:
                await self._handler(exchange)
            except Exception as error:
                if exchange.started or isinstance(error, ClientGone):
                    raise
                refusal = api_error(error, exchange.prompt_field)
                await exchange.json(refusal.body(), refusal.status, refusal.headers)


def api_error(error: Exception, prompt_field: str) -> APIError:
    """Any exception as what the client is told. What nobody expected goes into the log."""
    match error:
        case APIError():
            return error
        case ContextLengthError():  # LiteLLM and LangChain know it by its first words
            return APIError(400, f"prompt is too long: {error}", param=prompt_field, code="context_length_exceeded",
                            n_prompt_tokens=error.prompt_tokens, n_ctx=error.max_model_len)  # fmt: skip
        case ParameterError():
            field = {"prompt_token_ids": prompt_field}.get(error.field, error.field)
            return APIError(400, f"{field} must be {error.expected}", param=field, code="invalid_value")
        case MessageError():
            return APIError(400, str(error), param=error.param, code="invalid_value")
        case TypebarError():
            return APIError(400, str(error))
    log.error("a request failed unexpectedly", exc_info=error)
    return APIError(500, "the server failed; its log says where", code="internal_error")
