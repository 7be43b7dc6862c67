"""Streams of server-sent events: one `data:` line of JSON for each, comments while nothing comes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from time import perf_counter
from typing import Protocol

import msgspec

from typebar.engine.request import Output
from typebar.server.answers import Tally, prompt_progress
from typebar.server.client import ClientGone
from typebar.server.exchange import Exchange, api_error
from typebar.server.jobs import PROGRESS_INTERVAL, Job
from typebar.server.schema.sampling import PromptProgress

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"

_encoder = msgspec.json.Encoder()


class Chunks(Protocol):
    """How a route words its stream."""

    @property
    def tally(self) -> Tally: ...

    def opening(self) -> Sequence[object]:
        """Chunks that are sent at once."""
        ...

    def chunk(self, index: int, output: Output) -> Sequence[object]:
        """Chunks for an output; none where it has no text to show."""
        ...

    def progress(self, progress: PromptProgress) -> object: ...

    def closing(self) -> Sequence[object]:
        """Chunks after the last output."""
        ...


def event(value: object) -> bytes:
    return b"data: " + _encoder.encode(value) + b"\n\n"


async def stream(
    exchange: Exchange,
    job: Job,
    chunks: Chunks,
    *,
    ping: float,
    with_progress: bool,
    gather: float,
    done: bytes = DONE,
) -> None:
    """Send a job's outputs as they come, and a comment before silence has lasted `ping` seconds.

    Several outputs that wait are sent together; those of `gather` seconds are gathered into one event. An error that
    comes now is an event, since the status is sent.
    """
    await exchange.start_events(b": typebar\n\n" + b"".join(map(event, chunks.opening())))
    try:
        async for data in _events(job, chunks, ping, with_progress, gather):
            await exchange.write(data)
        rest = b"".join(map(event, chunks.closing()))
    except ClientGone:
        raise
    except Exception as error:
        rest = event(api_error(error, exchange.prompt_field).body())
    await exchange.end_events(rest + done)


async def _events(job: Job, chunks: Chunks, ping: float, with_progress: bool, gather: float) -> AsyncIterator[bytes]:
    start = sent = perf_counter()
    processed = -1
    tick = PROGRESS_INTERVAL if with_progress else min(ping / 4, 1.0)
    async for outputs in job.outputs(tick, min(gather, ping)):
        data = []
        now = perf_counter()
        if with_progress and not chunks.tally.completion_tokens:  # also beside the first token, which may come at once
            progress = prompt_progress(job, now - start)
            if progress.processed != processed:
                processed = progress.processed
                data.append(event(chunks.progress(progress)))
        for index, output in outputs:
            chunks.tally.add(index, output)
            data += [event(value) for value in chunks.chunk(index, output)]
        if not data and now - sent + tick > ping:
            data.append(PING)
        if data:
            sent = now
            yield b"".join(data)
