"""What the Python API returns, with vLLM's attribute names."""

from dataclasses import dataclass, field

from typebar.engine.request import FinishReason, Output, Summary
from typebar.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Logprob:
    """Natural logarithm of a token's probability before temperature and filters. `rank` counts from 1, where known."""

    logprob: float
    rank: int | None
    decoded_token: str


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One answer. `logprobs[i]` maps token ids to Logprob: the token drawn i-th and the most likely ones.

    `finish_reason`: "stop" (an end token or stop string, `stop_reason` says which of the caller's), "length"
    (max_tokens or the context), "abort". `token_ids` holds the end token where there was one; `text` never does.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Moments in seconds of `time.perf_counter()`; 0 where one was never reached. For n > 1 over all answers."""

    arrival_time: float
    first_scheduled_time: float
    first_token_time: float
    finished_time: float
    num_prefill_tokens: int
    num_generation_tokens: int

    @property
    def ttft_ms(self) -> float:
        """Milliseconds from arrival to the first token."""
        return max(0.0, self.first_token_time - self.arrival_time) * 1e3

    @property
    def prefill_tps(self) -> float:
        """Prompt tokens computed per second, those from the cache left out. 0 where there was none."""
        return _rate(self.num_prefill_tokens, self.first_token_time - self.first_scheduled_time)

    @property
    def decode_tps(self) -> float:
        """Tokens per second after the first one. 0 where there was only one."""
        return _rate(self.num_generation_tokens - 1, self.finished_time - self.first_token_time)


def _rate(tokens: int, seconds: float) -> float:
    return tokens / seconds if tokens > 0 and seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A finished request. `prompt` is None for token ids and chats; `num_cached_tokens` were not computed anew."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    metrics: RequestMetrics
    num_cached_tokens: int
    finished: bool = True


@dataclass(slots=True)
class Answer:
    """Gathers the outputs of one answer."""

    index: int
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    cumulative_logprob: float = 0.0
    last: Output | None = None

    def add(self, output: Output, tokenizer: Tokenizer) -> None:
        self.text.append(output.text)
        self.token_ids.extend(output.token_ids)
        for entry in output.logprobs:
            self.cumulative_logprob += entry.logprob
            ranked = {
                token: _logprob(value, rank, token, tokenizer) for rank, (token, value) in enumerate(entry.top, start=1)
            }
            if entry.token not in ranked:
                ranked[entry.token] = _logprob(entry.logprob, None, entry.token, tokenizer)
            self.logprobs.append(ranked)
        if output.finish_reason is not None:
            self.last = output

    @property
    def summary(self) -> Summary | None:
        return self.last.summary if self.last else None

    def completion(self, with_logprobs: bool) -> CompletionOutput:
        return CompletionOutput(
            index=self.index,
            text="".join(self.text),
            token_ids=list(self.token_ids),
            cumulative_logprob=self.cumulative_logprob if with_logprobs else None,
            logprobs=list(self.logprobs) if with_logprobs else None,
            finish_reason=self.last.finish_reason if self.last else None,
            stop_reason=self.last.stop_reason if self.last else None,
        )


def metrics(answers: list[Answer]) -> RequestMetrics:
    """The moments of a request with these answers."""
    summaries = [answer.summary for answer in answers if answer.summary is not None]
    timings = [summary.timing for summary in summaries]
    return RequestMetrics(
        arrival_time=min((timing.arrival for timing in timings), default=0.0),
        first_scheduled_time=min((timing.scheduled for timing in timings), default=0.0),
        first_token_time=min((timing.first_token for timing in timings if timing.first_token), default=0.0),
        finished_time=max((timing.last_token for timing in timings), default=0.0),
        num_prefill_tokens=sum(summary.prompt_tokens - summary.cached_tokens for summary in summaries),
        num_generation_tokens=sum(summary.completion_tokens for summary in summaries),
    )


def _logprob(value: float, rank: int | None, token: int, tokenizer: Tokenizer) -> Logprob:
    return Logprob(value, rank, tokenizer.decode([token], skip_special=False))
