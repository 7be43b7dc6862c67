"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from typebar.engine.params import SamplingParams
from typebar.engine.request import Output
from typebar.server.answers import (
    FINGERPRINT,
    OpenAIAnswer,
    finish,
    ignored_warnings,
    shown_logprobs,
    timings,
    token_text,
)
from typebar.server.errors import APIError
from typebar.server.exchange import Exchange
from typebar.server.generate import generate
from typebar.server.jobs import Job
from typebar.server.prompts import echoed
from typebar.server.sampling import (
    check_stream_options,
    sampling_params,
    sequence_requests,
    stream_interval,
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
from typebar.server.schema.sampling import PromptProgress
from typebar.server.state import Serving
from typebar.server.structured import Form, compiled, wanted_form


async def chat_completions(exchange: Exchange) -> None:
    """Answer a conversation, in one piece or as a stream."""
    exchange.prompt_field = "messages"
    serving, fields = await exchange.fields(ChatRequest)
    check_stream_options(fields.stream, fields.stream_options)
    gather = stream_interval(fields.stream_options)
    form = wanted_form(fields)
    params = chat_params(fields, serving.sampling, form)
    serving.jobs.check_room()
    _grammar = await compiled(serving.prompter, form)
    prompt = await serving.prompter.chat(fields)
    id = f"chatcmpl-{exchange.request_id}"
    requests = sequence_requests(id, [prompt], params)
    await generate(
        exchange, "chat", fields, id, requests, lambda job: ChatAnswer(serving, job, fields, params), gather=gather
    )


def chat_params(fields: ChatRequest, defaults: Mapping[str, Any], form: Form | None) -> SamplingParams:
    logprobs = None
    if fields.logprobs:
        logprobs = fields.top_logprobs or 0
    elif fields.top_logprobs:
        raise APIError(400, "top_logprobs needs logprobs: true", param="top_logprobs", code="invalid_value")
    return sampling_params(fields, defaults, max_tokens=chat_max_tokens(fields), logprobs=logprobs, form=form)


def chat_max_tokens(fields: ChatRequest) -> int | None:
    """max_completion_tokens, max_tokens or llama-server's n_predict, where -1 sets no limit."""
    if fields.max_completion_tokens is not None:
        return fields.max_completion_tokens
    return fields.max_tokens if fields.max_tokens is not None or fields.n_predict == -1 else fields.n_predict


class ChatAnswer(OpenAIAnswer[ChatChunk]):
    """The response to one conversation, as one object or as chunks."""

    chunk_type = ChatChunk

    def __init__(self, serving: Serving, job: Job, fields: ChatRequest, params: SamplingParams) -> None:
        super().__init__(serving, job, fields, params)
        self._echo = echoed(fields)

    async def whole(self, ignored: Sequence[str]) -> ChatCompletion:
        """Wait for all answers."""
        texts = [[self._echo] for _ in self._job.requests]
        logprobs: list[list[TokenLogprob]] = [[] for _ in self._job.requests]
        async for index, output in self.tally.outputs():
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
        return TopLogprob(token=token_text(self._tokenizer, token), logprob=logprob, bytes=list(data))
