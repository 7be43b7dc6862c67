"""Requests while they run: where their outputs go, who may end them, and what is remembered of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from time import perf_counter

from typebar.engine.request import Output
from typebar.errors import TypebarError
from typebar.server.client import ReaderStalled
from typebar.server.engine import Engine, Progress, SequenceHandle, SequenceRequest
from typebar.server.errors import APIError
from typebar.server.record import EndReason, RequestRecord

MAX_PENDING = 8192  # outputs that nobody has taken; a reader this far behind is cut
PROGRESS_INTERVAL = 0.1  # seconds between looks at the prompt's progress

_ERRORS: dict[EndReason, tuple[int, str, str]] = {
    "timeout": (504, "timeout", "the time allowed for this request was over before an answer began"),
    "shutdown": (503, "server_shutdown", "the server is stopping; send the request again later"),
    "error": (500, "engine_error", "the engine failed; the server's log says why"),
}


class Job:
    """One request with its sequences. Lives in the event loop; `outputs` has one consumer."""

    def __init__(self, jobs: Jobs, id: str, caller_id: str | None, route: str, requests: Sequence[SequenceRequest]):
        self.id = id
        self.caller_id = caller_id
        self.route = route
        self.requests = requests
        self.ended_by: EndReason | None = None  # set where it did not end by itself
        self._jobs = jobs
        self._indices = {request.id: index for index, request in enumerate(requests)}
        self._unfinished = set(self._indices)
        self._pending: deque[Output] = deque()
        self._ready = asyncio.Event()
        self._pressing = asyncio.Event()  # set by outputs that are not to be gathered with later ones
        self._has_begun: set[str] = set()  # sequences that have a text
        self._arrival = perf_counter()
        self._last_token: dict[str, float] = {}
        self._num_tokens = dict.fromkeys(self._indices, 0)
        self._texts: defaultdict[str, list[str]] = defaultdict(list)  # filled where whole answers are wanted
        self._handles: Sequence[SequenceHandle] = ()
        self._is_given_up = False

    @property
    def is_done(self) -> bool:
        return not self._unfinished

    def unfinished(self) -> list[tuple[int | None, int]]:
        """max_tokens and the number of tokens so far, of each sequence that has not ended."""
        return [
            (request.params.max_tokens, self._num_tokens[request.id])
            for request in self.requests
            if request.id in self._unfinished
        ]

    def end(self, reason: EndReason) -> None:
        """Abort what still runs, within a step. The first reason counts."""
        if self.is_done:
            return
        self.ended_by = self.ended_by or reason
        for id in self._unfinished:
            self._jobs.engine.abort(id)

    def give_up(self, reason: EndReason) -> None:
        """End without waiting for the engine, which does not answer, whatever it was told before."""
        if self.is_done:
            return
        self.end(reason)
        self.ended_by = reason
        self._is_given_up = True
        self._unfinished.clear()
        self._ready.set()
        self._pressing.set()

    def progress(self, index: int = 0) -> Progress:
        """Of the prompt of a sequence."""
        return self._handles[index].progress()

    async def outputs(
        self, interval: float | None = None, gather: float = 0.0
    ) -> AsyncIterator[list[tuple[int, Output]]]:
        """Outputs as they come, each with the index of its sequence; an empty list after `interval` seconds of silence.

        With `gather` those that come within so many seconds of the last ones are gathered, to one for each sequence;
        the first text of a sequence and its end wait for nothing. Raises APIError instead of the last output where that
        would pass a failure of the server for an end of the answer, and where the time was over before anything came.
        """
        taken_at = -gather
        while self._pending or not self.is_done:
            try:
                async with asyncio.timeout(interval):
                    await self._ready.wait()
            except TimeoutError:
                yield []
                continue
            if gather:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(taken_at + gather - perf_counter()):
                        await self._pressing.wait()
                taken_at = perf_counter()
            taken, failure = self._take()
            if taken:
                yield _gathered(taken) if gather else taken
            if failure is not None:
                raise failure
        if self._is_given_up:
            raise self._error()

    def _take(self) -> tuple[list[tuple[int, Output]], APIError | None]:
        """What nobody has taken, up to an output that tells of a failure, and that failure."""
        self._ready.clear()
        self._pressing.clear()
        taken: list[tuple[int, Output]] = []
        while self._pending:
            output = self._pending.popleft()
            if output.finish_reason == "error":
                return taken, APIError(500, _error_of(output), code="engine_error")
            if output.finish_reason == "abort" and self._has_failed():
                return taken, self._error()
            taken.append((self._indices[output.request_id], output))
        return taken, None

    def _has_failed(self) -> bool:
        if self.ended_by == "timeout":
            return not any(self._num_tokens.values())
        return self.ended_by in ("shutdown", "error")

    def _error(self) -> APIError:
        status, code, message = _ERRORS[self.ended_by or "error"]
        return APIError(status, message, code=code)

    def start(self) -> None:
        self._handles = self._jobs.engine.submit(self.requests, self._receive)

    def _receive(self, output: Output) -> None:
        """Take in an output; called in the event loop for each."""
        now = perf_counter()
        if output.token_ids:
            if (last := self._last_token.get(output.request_id)) is not None:
                self._jobs.on_gap(now - last)
            self._last_token[output.request_id] = now
            self._num_tokens[output.request_id] += len(output.token_ids)
        self._pending.append(output)
        self._ready.set()
        is_first = bool(output.text) and output.request_id not in self._has_begun
        if is_first or output.finish_reason is not None:
            self._has_begun.add(output.request_id)
            self._pressing.set()
        if self._jobs.on_text is not None:
            self._texts[output.request_id].append(output.text)
        if output.finish_reason is not None:
            self._unfinished.discard(output.request_id)
            self._jobs.on_end(self._record(output, now))
            if self._jobs.on_text is not None:
                request = self.requests[self._indices[output.request_id]]
                self._jobs.on_text(request, "".join(self._texts[output.request_id]))
        elif len(self._pending) > MAX_PENDING:
            self.end("overflow")

    def _record(self, output: Output, now: float) -> RequestRecord:
        summary = output.summary
        assert summary is not None
        timing = summary.timing
        reason: EndReason = output.finish_reason if output.finish_reason != "abort" else self.ended_by or "cancelled"  # type: ignore[assignment]
        return RequestRecord(
            id=self.id if len(self.requests) == 1 else output.request_id,
            caller_id=self.caller_id,
            route=self.route,
            reason=reason,
            prompt_tokens=summary.prompt_tokens,
            cached_tokens=summary.cached_tokens,
            completion_tokens=summary.completion_tokens,
            max_tokens=self.requests[self._indices[output.request_id]].params.max_tokens,
            n=len(self.requests),
            queue=_span(timing.arrival, timing.scheduled or now),
            ttft=_span(timing.arrival, timing.first_token),
            prefill=_span(timing.scheduled, timing.first_token),
            decode=_span(timing.first_token, timing.last_token),
            e2e=now - self._arrival,
            preemptions=summary.preemptions,
            error=summary.error or "",
        )


class Jobs:
    """Every job that runs.

    on_end is called for each sequence that has ended, on_gap with the seconds between two tokens of a sequence,
    on_reject for each request that found the queue full. on_text, where given, gets each request with its whole answer.
    """

    def __init__(
        self,
        engine: Engine,
        max_queue: int,
        on_end: Callable[[RequestRecord], None],
        on_gap: Callable[[float], None],
        on_reject: Callable[[], None],
        on_text: Callable[[SequenceRequest, str], None] | None = None,
    ) -> None:
        self.engine = engine
        self.on_end = on_end
        self.on_gap = on_gap
        self.on_reject = on_reject
        self.on_text = on_text
        self.draining = False
        self._limit = engine.info.max_num_seqs + max_queue
        self._max_queue = max_queue
        self._jobs: set[Job] = set()

    def __iter__(self) -> Iterator[Job]:
        return iter(tuple(self._jobs))

    @property
    def num_sequences(self) -> int:
        """Sequences that run or wait, without those that were told to end, which the next step will do."""
        return sum(len(job.unfinished()) for job in self._jobs if job.ended_by is None)

    @contextmanager
    def run(
        self, id: str, caller_id: str | None, route: str, requests: Sequence[SequenceRequest], timeout: float | None
    ) -> Iterator[Job]:
        """Start a job and end it with the block, after `timeout` seconds at the latest.

        Raises APIError: 400 for what the engine refuses and for more than ever fits, 429 where too many wait, 503 where
        the server is stopping.
        """
        self._admit(len(requests))
        job = Job(self, id, caller_id, route, requests)
        try:
            job.start()
        except TypebarError as error:
            if (failure := self.engine.failure()) is not None:
                raise APIError(503, failure, code="engine_failed") from error
            raise
        self._jobs.add(job)
        timer = asyncio.get_running_loop().call_later(timeout, job.end, "timeout") if timeout else None
        try:
            yield job
        except ReaderStalled:
            job.end("overflow")
            raise
        finally:
            if timer is not None:
                timer.cancel()
            job.end("cancelled")
            self._jobs.discard(job)

    def cancel(self, id: str) -> int:
        """End the jobs with this response id or caller's id; returns how many there were."""
        found = [job for job in self._jobs if id in (job.id, job.caller_id)]
        for job in found:
            job.end("cancelled")
        return len(found)

    def end_all(self, reason: EndReason) -> None:
        for job in self:
            job.end(reason)

    def check_room(self) -> None:
        """Refuse what `run` would refuse whatever its prompt is, before that is made. APIError as there."""
        self._admit(1)

    def _admit(self, count: int) -> None:
        if self.draining:
            raise APIError(503, "the server is stopping; send the request again later", code="server_shutdown",
                           headers={"Retry-After": "5"})  # fmt: skip
        if count > self._limit:
            raise APIError(
                400,
                f"this server takes at most {self._limit} answers (prompts times n) at a time; ask for fewer, or start "
                "it with a larger --max-queue",
                param="n",
                code="invalid_value",
            )
        if self.num_sequences + count > self._limit:
            self.on_reject()
            raise APIError(
                429,
                f"there is no room for {count} more answers; try again later, or start the server with a larger "
                "--max-queue",
                code="queue_full",
                headers={"Retry-After": "1"},
            )


def _gathered(taken: list[tuple[int, Output]]) -> list[tuple[int, Output]]:
    """One output for each sequence, with all that its outputs hold."""
    parts: defaultdict[int, list[Output]] = defaultdict(list)
    for index, output in taken:
        parts[index].append(output)
    return [(index, _joined(outputs)) for index, outputs in parts.items()]


def _joined(outputs: Sequence[Output]) -> Output:
    return replace(
        outputs[-1],
        text="".join(output.text for output in outputs),
        token_ids=tuple(chain.from_iterable(output.token_ids for output in outputs)),
        logprobs=tuple(chain.from_iterable(output.logprobs for output in outputs)),
    )


def _span(start: float, end: float) -> float:
    return max(0.0, end - start) if start and end else 0.0


def _error_of(output: Output) -> str:
    return (output.summary and output.summary.error) or "the engine failed"
