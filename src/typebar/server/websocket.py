"""WS /v1/ws: one long connection for many turns, in JSON frames.

    client → {"type": "chat", "messages": […], "request_id", …the fields of /v1/chat/completions}
             {"type": "stop"}
    server → {"type": "start", "id", "model", "request_id", "ignored": […]}         what it ignored of the fields
             {"type": "progress", "id", "total", "cache", "processed", "time_ms"}    with return_progress
             {"type": "delta", "id", "index", "text"}
             {"type": "done", "id", "choices": [{"index", "finish_reason", "stop_reason"}], "usage", "timings"}
             {"type": "error", "id", "request_id", "error": {…}}

A request_id, where the client gives one, ties an answer to its chat, and cancels it under /v1/requests.
A chat that comes while one is answered interrupts it: the old one sends no more text, only its `done`.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from time import perf_counter
from typing import Any
from uuid import uuid4

import msgspec
from starlette.types import Message, Receive, Scope, Send

from typebar.server.answers import Tally, finish, prompt_progress
from typebar.server.body import decode_json
from typebar.server.chat import chat_params
from typebar.server.client import ClientGone, timed_send
from typebar.server.errors import APIError
from typebar.server.exchange import api_error, caller_id
from typebar.server.jobs import PROGRESS_INTERVAL, Job
from typebar.server.prompts import echoed
from typebar.server.sampling import sequence_requests, stream_interval, time_limit
from typebar.server.schema.chat import ChatRequest
from typebar.server.schema.fields import read_fields
from typebar.server.state import ServerState
from typebar.server.structured import compiled, wanted_form

MAX_TURNS = 16  # of one connection that have not ended; its further frames wait

_encode = msgspec.json.encode


@dataclass(slots=True, eq=False)
class Turn:
    """A chat on its way: `job` is there once its prompt is."""

    job: Job | None = None
    is_stopped: bool = False

    def stop(self) -> None:
        self.is_stopped = True
        if self.job is not None:
            self.job.end("cancelled")


class Conversations:
    """The route as an ASGI application."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(ClientGone):  # then there is nobody to tell
            await Conversation(self._state, scope, receive, send).run()


class Conversation:
    """One connection."""

    def __init__(self, state: ServerState, scope: Scope, receive: Receive, send: Send) -> None:
        self._state = state
        self._subprotocol: str | None = scope.get("state", {}).get("subprotocol")
        self._receive = receive
        self._send = timed_send(send, scope, state.settings.write_timeout)
        self._turn: Turn | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until the client goes away."""
        await self._receive()  # websocket.connect
        await self._send({"type": "websocket.accept", "subprotocol": self._subprotocol})
        try:
            while (message := await self._receive())["type"] == "websocket.receive":
                await self._take(message)
        finally:
            self._stop()
            for task in self._tasks:
                task.cancel()

    async def _take(self, message: Message) -> None:
        try:
            text = message.get("text")
            if text is None:
                raise APIError(400, "a frame must be text that holds JSON, not binary", code="invalid_json")
            data = decode_json(text.encode())
            kind = data.pop("type", None)
            if kind == "chat":
                await self._start(data)
            elif kind == "stop":
                self._stop()
            else:
                raise APIError(400, "type must be chat or stop", param="type", code="invalid_value")
        except APIError as error:
            await self._frame("error", error.body())

    async def _start(self, data: dict[str, Any]) -> None:
        self._stop()
        while len(self._tasks) >= MAX_TURNS:  # interrupted ones whose prompts are still being made
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        self._turn = Turn()
        task = asyncio.create_task(self._answer(self._turn, data))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # ClientGone: the reader of `run` hears of it too

    def _stop(self) -> None:
        if self._turn is not None:
            self._turn.stop()

    async def _answer(self, turn: Turn, data: dict[str, Any]) -> None:
        id = f"chatcmpl-{uuid4().hex}"
        named = caller_id(data.pop("request_id", None))
        echo = {} if named is None else {"request_id": named}
        try:
            await self._generate(turn, id, named, data)
        except ClientGone:
            raise
        except Exception as error:
            await self._frame("error", {"id": id, **echo, **api_error(error, "messages").body()})

    async def _generate(self, turn: Turn, id: str, named: str | None, data: dict[str, Any]) -> None:
        settings = self._state.settings
        serving = self._state.ready()
        fields, ignored = read_fields(data, ChatRequest)
        serving.check_model(fields.model, settings.strict_model)
        form = wanted_form(fields)
        gather = stream_interval(fields.stream_options)
        params = chat_params(fields, serving.sampling, form)
        serving.jobs.check_room()
        _grammar = await compiled(serving.prompter, form)
        requests = sequence_requests(id, [await serving.prompter.chat(fields)], params)
        with serving.jobs.run(id, named, "websocket", requests, time_limit(fields, settings.request_timeout)) as job:
            turn.job = job
            if turn.is_stopped:
                job.end("cancelled")
            start: dict[str, Any] = {"id": id, "model": serving.name}
            if named is not None:
                start["request_id"] = named
            if ignored:
                start["ignored"] = ignored
            await self._frame("start", start)
            tally = Tally(job, params.n)
            if (echo := echoed(fields)) and not turn.is_stopped:
                for index in range(params.n):
                    await self._frame("delta", {"id": id, "index": index, "text": echo})
            await self._deltas(turn, job, tally, fields.return_progress, gather)
            miss = serving.engine.tokenizer if fields.return_cache_miss else None
            await self._frame(
                "done",
                {"id": id, "choices": _choices(job, tally), "usage": tally.usage(miss), "timings": tally.timings()},
            )

    async def _deltas(self, turn: Turn, job: Job, tally: Tally, with_progress: bool, gather: float) -> None:
        start, processed = perf_counter(), -1
        async for outputs in job.outputs(PROGRESS_INTERVAL if with_progress else None, gather):
            if with_progress and not tally.completion_tokens:  # also beside the first token, which may come at once
                progress = prompt_progress(job, perf_counter() - start)
                if progress.processed != processed:
                    processed = progress.processed
                    await self._frame("progress", {"id": job.id, **msgspec.structs.asdict(progress)})
            for index, output in outputs:
                tally.add(index, output)
                if output.text and not turn.is_stopped:
                    await self._frame("delta", {"id": job.id, "index": index, "text": output.text})

    async def _frame(self, kind: str, fields: dict[str, Any]) -> None:
        text = _encode({"type": kind, **fields}).decode()
        await self._send({"type": "websocket.send", "text": text})


def _choices(job: Job, tally: Tally) -> list[dict[str, Any]]:
    choices = []
    for index, output in sorted(tally.last.items()):
        reason, stop_reason = finish(job, output)
        choices.append({"index": index, "finish_reason": reason, "stop_reason": stop_reason})
    return choices
