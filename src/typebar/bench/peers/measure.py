"""The speed job: what an adapter does with its engine, the same for all. Standard library only."""

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

DECODE_PROMPT = 16
PREFILL_PROMPT = 512
DECODE_TOKENS = 128


class Engine(Protocol):
    """A loaded model. Nothing is kept between calls: a prompt that comes again is computed again."""

    def complete(self, tokens: list[int], count: int) -> int:
        """Draws the `count` tokens that greedily follow `tokens`, end tokens among them; returns how many came."""


def run(load: Callable[[dict[str, Any]], Engine]) -> None:
    """Reads the job from the command line, runs it and prints one JSON line.

    Job: `model` (path), `threads`, `context` (tokens that the cache must hold), `tokens` (ids to take prompts from, at
    least `context`), `repeats`.
    """
    job = json.loads(sys.argv[1])
    engine = load(job)
    tokens, repeats = job["tokens"], job["repeats"]
    engine.complete(tokens[:DECODE_PROMPT], 1)
    first_token_at = time.monotonic()
    prefill = [_seconds(engine, tokens[:PREFILL_PROMPT], 1) for _ in range(repeats)]
    # The prompt's own time is taken off by a run that stops at its first token.
    start = [_seconds(engine, tokens[:DECODE_PROMPT], 1) for _ in range(repeats)]
    whole = [_seconds(engine, tokens[:DECODE_PROMPT], 1 + DECODE_TOKENS) for _ in range(repeats)]
    decode = statistics.median(whole) - statistics.median(start)
    _seconds(engine, tokens[: job["context"] - 64], 32)
    print(
        json.dumps(
            {
                "first_token_at": first_token_at,
                "prefill_tps": PREFILL_PROMPT / statistics.median(prefill),
                "decode_tps": DECODE_TOKENS / decode,
                "peak_rss_mb": _peak_rss() / 1e6,
            }
        )
    )


def _seconds(engine: Engine, tokens: list[int], count: int) -> float:
    start = time.perf_counter()
    drawn = engine.complete(tokens, count)
    seconds = time.perf_counter() - start
    if drawn != count:
        raise RuntimeError(f"{count} tokens were asked for, {drawn} came")
    return seconds


def _peak_rss() -> int:
    """Bytes; mapped files count as far as they are in memory."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
