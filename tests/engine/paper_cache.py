"""A KV cache on paper: each slot records which prefix it was computed from, and reading a wrong one is an error.

It stands where the C++ core stands, so that scheduler and cache can be tried millions of times with the core's memory
rules but without its arithmetic.
"""

import numpy as np

from typebar.engine.blocks import BLOCK_TOKENS
from typebar.engine.scheduler import Plan, Scheduler

EMPTY = 0


def prefix_hash(previous: int, token: int) -> int:
    return hash((previous, token)) or 1


def draw(prefix: int, vocabulary: int) -> int:
    """The token that follows a prefix."""
    return (prefix >> 7) % vocabulary


class PaperCache:
    def __init__(self, blocks: int, vocabulary: int) -> None:
        self.slots = np.full((blocks, BLOCK_TOKENS), EMPTY, np.int64)
        self.vocabulary = vocabulary

    def run(self, plan: Plan) -> list[list[int]]:
        """Compute a plan, in the order of the core: copies, all writes, all reads, all draws."""
        for source, destination in plan.copies:
            self.slots[destination] = self.slots[source]
        prefixes = [self._write(request, tokens) for request, tokens in zip(plan.requests, plan.counts, strict=True)]
        for request, tokens in zip(plan.requests, plan.counts, strict=True):
            self._read(request, request.computed + tokens)
        return [self._draw(request, after) for request, after in zip(plan.requests, prefixes, strict=True)]

    def _draw(self, request, prefixes: list[int]) -> list[int]:
        """The token after the last that is known, and those after guesses as long as these are right."""
        drawn = []
        if request.computed + len(prefixes) < request.length:
            return drawn
        guesses = request.tokens[request.length : request.length + request.proposed].tolist()
        for prefix, guess in zip(prefixes[len(prefixes) - 1 - request.proposed :], [*guesses, None], strict=True):
            drawn.append(draw(prefix, self.vocabulary))
            if drawn[-1] != guess:
                break
        return drawn

    def _write(self, request, tokens: int) -> list[int]:
        """What stands for the prefixes that end with each of the new tokens."""
        table, value, prefixes = request.lease.table, EMPTY, []
        if request.computed:
            block, offset = divmod(request.computed - 1, BLOCK_TOKENS)
            value = int(self.slots[table[block], offset])
        for position in range(request.computed, request.computed + tokens):
            assert position // BLOCK_TOKENS < request.lease.num_blocks, "written beyond the sequence's blocks"
            assert position // BLOCK_TOKENS >= len(request.lease.nodes), "a shared block was written"
            value = prefix_hash(value, int(request.tokens[position]))
            self.slots[table[position // BLOCK_TOKENS], position % BLOCK_TOKENS] = value
            prefixes.append(value)
        return prefixes

    def _read(self, request, end: int) -> None:
        value = EMPTY
        for position in range(end):
            value = prefix_hash(value, int(request.tokens[position]))
            found = self.slots[request.lease.table[position // BLOCK_TOKENS], position % BLOCK_TOKENS]
            assert found == value, f"{request.id} reads another sequence's keys at position {position}"


def solo_answer(prompt: list[int], tokens: int, vocabulary: int) -> list[int]:
    """What a request must give, whatever runs beside it."""
    value, answer = EMPTY, []
    for token in prompt:
        value = prefix_hash(value, token)
    for _ in range(tokens):
        answer.append(draw(value, vocabulary))
        value = prefix_hash(value, answer[-1])
    return answer


def step(scheduler: Scheduler, cache: PaperCache, ms: float = 1.0) -> list:
    """One step; returns the requests that reached their length, which were removed."""
    plan = scheduler.schedule()
    assert len(plan) or not (scheduler.running or scheduler.waiting), "requests are there and nothing is computed"
    assert len(set(map(id, plan.requests))) == len(plan)
    drawn = cache.run(plan)
    scheduler.update(plan, drawn, ms)
    done = [request for request in plan.requests if request.length == request.max_length]
    for request in done:
        scheduler.remove(request)
    return done
