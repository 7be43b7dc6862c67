"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from typebar.engine.params import SamplingParams
from typebar.engine.request import Output
from typebar.server import sse
from typebar.server.answers import FINGERPRINT, Tally, finish, ignored_warnings, shown_logprobs, timings, token_text
from typebar.server.errors import APIError
from typebar.server.exchange import Exchange
from typebar.server.jobs import Job
from typebar.server.prompts import echoed
from typebar.server.sampling import (
    check_response_format,
    check_stream_options,
    sampling_params,
    sequence_requests,
    time_limit,
)
from typebar.server.schema.chat import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatMessage,
    ChatRequest,
    ChoiceLogprobs,
    TokenLogprob,
    TopLogprob,
)
from typebar.server.schema.fields import read_fields
from typebar.server.schema.sampling import PromptProgress, StreamOptions, Usage
from typebar.server.state import Serving


async def chat_completions(exchange: Exchange) -> None:
    """Answer a conversation, in one piece or as a stream."""
    serving = exchange.ready()
    exchange.prompt_field = "messages"
    fields, exchange.ignored = read_fields(await exchange.read(), ChatRequest)
    serving.check_model(fields.model, exchange.state.settings.strict_model)
    check_stream_options(fields.stream, fields.stream_options)
    check_response_format(fields.response_format)
    params = chat_params(fields, serving.sampling)
    prompt = await serving.prompter.chat(fields)
    id = f"chatcmpl-{exchange.request_id}"
    requests = sequence_requests(id, [prompt], params)
    timeout = time_limit(fields, exchange.state.settings.request_timeout)
    with serving.jobs.run(id, exchange.caller_id, "chat", requests, timeout) as job:
        answer = ChatAnswer(serving, job, fields, params)
        async with exchange.watching(job):
            if fields.stream:
                ping = exchange.ping(fields.sse_ping_interval)
                await sse.stream(exchange, job, answer, ping=ping, with_progress=fields.return_progress)
            else:
                await exchange.json(await answer.whole(exchange.ignored))


def chat_params(fields: ChatRequest, defaults: Mapping[str, Any]) -> SamplingParams:
    logprobs = None
    if fields.logprobs:
        logprobs = fields.top_logprobs or 0
    elif fields.top_logprobs:
        raise APIError(400, "top_logprobs needs logprobs: true", param="top_logprobs", code="invalid_value")
    return sampling_params(fields, defaults, max_tokens=chat_max_tokens(fields), logprobs=logprobs)


def chat_max_tokens(fields: ChatRequest) -> int | None:
    """max_completion_tokens, max_tokens or llama-server's n_predict, where -1 sets no limit."""
    if fields.max_completion_tokens is not None:
        return fields.max_completion_tokens
    return fields.max_tokens if fields.max_tokens is not None or fields.n_predict == -1 else fields.n_predict


class ChatAnswer:
    """The response to one conversation, as one object or as chunks."""

    def __init__(self, serving: Serving, job: Job, fields: ChatRequest, params: SamplingParams) -> None:
        self.tally = Tally(job, params.n)
        self._job = job
        self._params = params
        self._tokenizer = serving.engine.tokenizer
        self._model = serving.name
        self._created = int(time.time())
        self._options = fields.stream_options or StreamOptions()
        self._cache_miss = self._tokenizer if fields.return_cache_miss else None
        self._echo = echoed(fields)

    async def whole(self, ignored: Sequence[str]) -> ChatCompletion:
        """Wait for all answers."""
        texts = [[self._echo] for _ in self._job.requests]
        logprobs: list[list[TokenLogprob]] = [[] for _ in self._job.requests]
        async for outputs in self._job.outputs():
            for index, output in outputs:
                self.tally.add(index, output)
                texts[index].append(output.text)
                logprobs[index] += self._logprobs(output)
        choices = []
        for index, output in sorted(self.tally.last.items()):
            reason, stop_reason = finish(self._job, output)
            choices.append(
                ChatChoice(
                    index=index,
                    message=ChatMessage(content="".join(texts[index])),
                    finish_reason=reason,
                    stop_reason=stop_reason,
                    logprobs=None if self._params.logprobs is None else ChoiceLogprobs(content=logprobs[index]),
                )
            )
        return ChatCompletion(
            id=self._job.id,
            created=self._created,
            model=self._model,
            choices=choices,
            usage=self._usage(),
            timings=self.tally.timings(),
            system_fingerprint=FINGERPRINT,
            warnings=ignored_warnings(ignored),
        )

    def opening(self) -> list[ChatChunk]:
        """The role of every answer."""
        delta = ChatDelta(role="assistant", content=self._echo)
        return [self._chunk(ChatChunkChoice(index=index, delta=delta)) for index in range(len(self._job.requests))]

    def chunk(self, index: int, output: Output) -> list[ChatChunk]:
        """The text of an output, and the reason for the end after the last."""
        chunks = []
        logprobs = self._logprobs(output)
        if output.text or logprobs:
            shown = ChoiceLogprobs(content=logprobs) if logprobs else None
            delta = ChatDelta(content=output.text)
            chunks.append(self._chunk(ChatChunkChoice(index=index, delta=delta, logprobs=shown)))
        if output.finish_reason is not None:
            reason, stop_reason = finish(self._job, output)
            choice = ChatChunkChoice(index=index, delta=ChatDelta(), finish_reason=reason, stop_reason=stop_reason)
            chunks.append(self._chunk(choice))
            chunks[-1].timings = timings(output)
        return chunks

    def progress(self, progress: PromptProgress) -> ChatChunk:
        """A chunk without text that tells how far the prompt is."""
        chunk = self._chunk(ChatChunkChoice(index=0, delta=ChatDelta()))
        chunk.prompt_progress = progress
        return chunk

    def closing(self) -> list[ChatChunk]:
        """The usage, where it was asked for."""
        if not self._options.include_usage:
            return []
        chunk = self._chunk()
        chunk.usage, chunk.timings = self._usage(), self.tally.timings()
        return [chunk]

    def _chunk(self, *choices: ChatChunkChoice) -> ChatChunk:
        usage: Usage | UnsetType | None = UNSET
        if self._options.include_usage:
            usage = self._usage() if self._options.continuous_usage_stats else None
        return ChatChunk(
            id=self._job.id,
            created=self._created,
            model=self._model,
            choices=list(choices),
            system_fingerprint=FINGERPRINT,
            usage=usage,
        )

    def _usage(self) -> Usage:
        return self.tally.usage(self._cache_miss)

    def _logprobs(self, output: Output) -> list[TokenLogprob]:
        return [
            TokenLogprob(
                token=token_text(self._tokenizer, entry.token),
                logprob=entry.logprob,
                bytes=list(data),
                top_logprobs=[self._top(token, logprob) for token, logprob in entry.top],
            )
            for entry, data in shown_logprobs(output, self._params, self._tokenizer)
        ]

    def _top(self, token: int, logprob: float) -> TopLogprob:
        data = self._tokenizer.token_bytes(token)
        return TopLogprob(token=data.decode("utf-8", "replace"), logprob=logprob, bytes=list(data))
