"""What the generating routes have in common: run a job and answer with it, in one piece or as a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from typebar.server import sse
from typebar.server.engine import SequenceRequest
from typebar.server.exchange import Exchange
from typebar.server.jobs import Job
from typebar.server.sampling import time_limit
from typebar.server.schema.sampling import SamplingFields


class Answer(sse.Chunks, Protocol):
    """How a route words its response."""

    async def whole(self, ignored: Sequence[str]) -> object:
        """Wait for all of it. `ignored`: the fields of the request to warn of."""
        ...


async def generate(
    exchange: Exchange,
    route: str,
    fields: SamplingFields,
    id: str,
    requests: Sequence[SequenceRequest],
    answer: Callable[[Job], Answer],
    done: bytes = sse.DONE,
    gather: float = 0.0,
) -> None:
    """Run `requests` as one job and send what `answer` makes of it. The job ends when the client leaves.

    A stream gathers text for up to `gather` seconds.
    """
    settings = exchange.state.settings
    timeout = time_limit(fields, settings.request_timeout)
    with exchange.ready().jobs.run(id, exchange.caller_id, route, requests, timeout) as job:
        async with exchange.watching(job):
            response = answer(job)
            if fields.stream:
                ping = exchange.ping(fields.sse_ping_interval)
                progress = fields.return_progress
                await sse.stream(exchange, job, response, ping=ping, with_progress=progress, gather=gather, done=done)
            else:
                await exchange.json(await response.whole(exchange.ignored))
