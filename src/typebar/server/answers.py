"""From outputs of the engine to what responses tell of them: reasons, counts, times, log-probabilities."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from msgspec import UNSET, UnsetType

from typebar import __version__
from typebar.engine.params import SamplingParams
from typebar.engine.request import Output, TokenLogprob
from typebar.server.jobs import Job
from typebar.server.schema.chat import ChatChunk, ChatRequest, FinishReason
from typebar.server.schema.completion import Completion, CompletionRequest
from typebar.server.schema.sampling import (
    CacheMiss,
    CompletionTokensDetails,
    PromptProgress,
    PromptTokensDetails,
    StreamOptions,
    Timings,
    Usage,
)
from typebar.server.state import Serving
from typebar.text.tokenizer import Tokenizer

FINGERPRINT = f"typebar-{__version__}"
CACHE_MISS_TOKENS = 8  # shown of the prompt where the reuse ended

Chunk = TypeVar("Chunk", ChatChunk, Completion)


@dataclass(slots=True)
class Tally:
    """What has come of a job: of each sequence the number of tokens, and the last output."""

    job: Job
    n: int  # sequences for each prompt
    completion_tokens: int = 0
    last: dict[int, Output] = field(default_factory=dict)

    def add(self, index: int, output: Output) -> None:
        self.completion_tokens += len(output.token_ids)
        if output.finish_reason is not None:
            self.last[index] = output

    async def outputs(self) -> AsyncIterator[tuple[int, Output]]:
        """All outputs of the job, each with the index of its sequence, counted."""
        async for outputs in self.job.outputs():
            for index, output in outputs:
                self.add(index, output)
                yield index, output

    def usage(self, tokenizer: Tokenizer | None = None) -> Usage:
        """Counts so far; each prompt once, however many answers it has. A `tokenizer` shows where the reuse ended."""
        requests = self.job.requests
        prompt_tokens = sum(len(request.prompt) for request in requests[:: self.n])
        cached = sum(self.job.progress(index).cached for index in range(0, len(requests), self.n))
        miss = None
        if tokenizer is not None and len(requests) == self.n:
            missed = requests[0].prompt[cached : cached + CACHE_MISS_TOKENS]
            miss = CacheMiss(position=cached, text=tokenizer.decode(missed, skip_special=False))
        return Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=self.completion_tokens,
            total_tokens=prompt_tokens + self.completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=cached, cache_miss=miss),
            completion_tokens_details=CompletionTokensDetails(),
        )

    def timings(self) -> Timings:
        """Of the first sequence, which has ended."""
        return timings(self.last[0])


class OpenAIAnswer(Generic[Chunk]):
    """What the responses of OpenAI's two routes have alike. `chunk_type`: what their streams are made of."""

    chunk_type: ClassVar[type[Any]]

    def __init__(
        self, serving: Serving, job: Job, fields: ChatRequest | CompletionRequest, params: SamplingParams
    ) -> None:
        self.tally = Tally(job, params.n)
        self._job = job
        self._params = params
        self._tokenizer = serving.engine.tokenizer
        self._model = serving.name
        self._created = int(time.time())
        self._options = fields.stream_options or StreamOptions()
        self._cache_miss = self._tokenizer if fields.return_cache_miss else None

    def closing(self) -> list[Chunk]:
        """The usage, where it was asked for."""
        if not self._options.include_usage:
            return []
        chunk = self._chunk()
        chunk.usage, chunk.timings = self._usage(), self.tally.timings()
        return [chunk]

    def _chunk(self, *choices: Any) -> Chunk:
        usage: Usage | UnsetType | None = UNSET
        if self._options.include_usage:
            usage = self._usage() if self._options.continuous_usage_stats else None
        chunk: Chunk = self.chunk_type(
            id=self._job.id,
            created=self._created,
            model=self._model,
            choices=list(choices),
            system_fingerprint=FINGERPRINT,
            usage=usage,
        )
        return chunk

    def _usage(self) -> Usage:
        return self.tally.usage(self._cache_miss)


def timings(output: Output) -> Timings:
    summary = output.summary
    assert summary is not None
    timing = summary.timing
    prompt_n = summary.prompt_tokens - summary.cached_tokens
    prompt_ms = _ms(timing.scheduled, timing.first_token)
    predicted_n = summary.completion_tokens
    # The first token comes with the prompt's last step: the time between tokens is that of the others.
    predicted_ms = _ms(timing.first_token, timing.last_token)
    return Timings(
        cache_n=summary.cached_tokens,
        prompt_n=prompt_n,
        prompt_ms=prompt_ms,
        prompt_per_token_ms=_ratio(prompt_ms, prompt_n),
        prompt_per_second=_ratio(1e3 * prompt_n, prompt_ms),
        predicted_n=predicted_n,
        predicted_ms=predicted_ms,
        predicted_per_token_ms=_ratio(predicted_ms, predicted_n - 1),
        predicted_per_second=_ratio(1e3 * (predicted_n - 1), predicted_ms),
        queue_ms=_ms(timing.arrival, timing.scheduled),
        ttft_ms=_ms(timing.arrival, timing.first_token),
    )


def prompt_progress(job: Job, seconds: float) -> PromptProgress:
    progress = job.progress()
    return PromptProgress(
        total=progress.total, cache=progress.cached, processed=progress.processed, time_ms=round(1e3 * seconds, 1)
    )


def finish(job: Job, output: Output) -> tuple[FinishReason, str | int | None]:
    """`finish_reason` and `stop_reason` of a last output.

    OpenAI's clients know no reason for an answer that was ended from outside: "length" stands for the time limit and
    "stop" for a cancel, and stop_reason tells.
    """
    match output.finish_reason:
        case "stop":
            return "stop", output.stop_reason
        case "length":
            return "length", None
    return ("length", "timeout") if job.ended_by == "timeout" else ("stop", job.ended_by or "cancelled")


def shown_logprobs(
    output: Output, params: SamplingParams, tokenizer: Tokenizer
) -> Iterator[tuple[TokenLogprob, bytes]]:
    """Log-probabilities of the tokens drawn, with the bytes of each that are in the text: none of a hidden one.

    The token that ended the answer is left out; those of a stop string, whose text is left out, are among them.
    """
    ended_by_token = output.finish_reason == "stop" and not isinstance(output.stop_reason, str)
    for index, entry in enumerate(output.logprobs):
        is_end = ended_by_token and index == len(output.logprobs) - 1
        if is_end and output.stop_reason is None and entry.token not in tokenizer.end_ids:
            is_end = False  # the form of the answer was complete with it
        if is_end and not (params.include_stop_str_in_output and output.stop_reason is not None):
            continue
        is_hidden = params.skip_special_tokens and entry.token in tokenizer.special_ids
        yield entry, b"" if is_hidden else tokenizer.token_bytes(entry.token)


def ignored_warnings(ignored: Sequence[str]) -> list[str] | UnsetType:
    """A warning for each field of the request that has no meaning here."""
    return [f"{name} has no meaning here and was ignored" for name in ignored] or UNSET


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """The text of one token; bytes that are no whole character become U+FFFD."""
    return tokenizer.token_bytes(token).decode("utf-8", "replace")


def _ms(start: float, end: float) -> float:
    return round(max(0.0, end - start) * 1e3, 3) if start and end else 0.0


def _ratio(above: float, below: float) -> float:
    return round(above / below, 3) if below > 0 and above > 0 else 0.0
