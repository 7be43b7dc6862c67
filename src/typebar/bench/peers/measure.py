"""What an adapter measures with its engine, the same for all. Standard library only.

One process, one job: a JSON object on the command line, a JSON line as the answer. Job: `model` (path), `threads`,
`context` (tokens that the cache must hold), `tokens` (ids to take prompts from), `chats` (ids of short prompts for
several users), `edit` (ids of a prompt whose answer repeats most of it), `metrics` (those wanted).
"""

import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

FIRST_PROMPT = 16  # tokens of the prompt whose first token ends the start
DECODE_TOKENS = 64
CHAT_TOKENS = 64
EDIT_TOKENS = 128
NEW_IN_TURN = 32
REPEATS = {32: 3, 512: 2, 2000: 1}  # of a first token, by tokens of the prompt
WAVES = 2  # of chats that start together, where their first tokens are looked at

Arrived = Callable[[int], None]


class Engine(Protocol):
    """A loaded model."""

    def about(self) -> dict[str, Any]:
        """`version`, `format` and `flags` as text, and `token_bytes`: weights read for a token."""

    def complete(self, prompts: Sequence[list[int]], count: int, arrived: Arrived, keep: bool) -> int:
        """Draws greedily the `count` tokens that follow each prompt, end tokens among them; how many came for each.

        arrived: called with the number of the prompt whenever a token of its answer is there. keep: keys and values of
        earlier calls may be reused, and these are kept, where the engine can.
        """


def run(load: Callable[[dict[str, Any]], Engine]) -> None:
    """Reads the job from the command line, does it and prints one JSON line."""
    job = json.loads(sys.argv[1])
    engine = load(job)
    complete(engine, [job["tokens"][:FIRST_PROMPT]], 1)
    first_token_at = time.monotonic()
    session = Session(engine, job)
    figures = session.figures()
    print(
        json.dumps(
            {"first_token_at": first_token_at, "figures": figures, "streams": session.streams, **engine.about()}
        ),
        flush=True,
    )


class Answers:
    """What came for prompts that were asked together: moments in seconds from the asking."""

    def __init__(self, firsts: list[float], arrivals: int, end: float, count: int) -> None:
        self.firsts, self.arrivals, self.end, self.count = firsts, arrivals, end, count

    @property
    def tps(self) -> float:
        """Tokens a second, of all answers together, from the first token of any to the last of all."""
        return len(self.firsts) * (self.count - 1) / (self.end - min(self.firsts))


def complete(engine: Engine, prompts: Sequence[list[int]], count: int, keep: bool = False) -> Answers:
    """Asks and notes what came when."""
    firsts: dict[int, float] = {}
    arrivals = 0
    start = time.perf_counter()

    def arrived(number: int) -> None:
        nonlocal arrivals
        arrivals += 1
        firsts.setdefault(number, time.perf_counter() - start)

    drawn = engine.complete(prompts, count, arrived, keep)
    end = time.perf_counter() - start
    if drawn != count or len(firsts) != len(prompts):
        raise RuntimeError(f"{count} tokens were asked for, {drawn} came, for {len(firsts)} of {len(prompts)} prompts")
    return Answers(list(firsts.values()), arrivals, end, count)


class Session:
    """All wanted figures of one engine, short prompts first, so that memory is read before the longest."""

    def __init__(self, engine: Engine, job: dict[str, Any]) -> None:
        self.engine, self.wanted = engine, set(job["metrics"])
        self.tokens, self.chats, self.edit = job["tokens"], job["chats"], job["edit"]
        self.streams: bool | None = None  # None: no answer of several tokens was measured
        self.keeps = False

    def figures(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for length, repeats in REPEATS.items():
            if self._wants(f"ttft_ms_{length}", *(["prefill_tps_512"] if length == 512 else [])):
                found[f"ttft_ms_{length}"] = self._first_token_ms(length, repeats)
        if self._wants("prefill_tps_512"):
            found["prefill_tps_512"] = 512e3 / found["ttft_ms_512"]
        for length in (0, 1000):
            if self._wants(f"decode_tps_{length}"):
                found[f"decode_tps_{length}"] = self._decode_tps(length)
        if self._wants("edit_tps"):
            found["edit_tps"] = self._complete([self.edit], EDIT_TOKENS).tps
        if self._wants("warm_ttft_ms"):
            found["warm_ttft_ms"] = self._warm_ms(self.tokens[: 512 + NEW_IN_TURN])
        if self._wants("shared_ttft_ms"):
            other = self.tokens[:480] + self.tokens[600 : 600 + NEW_IN_TURN]
            found["shared_ttft_ms"] = self._warm_ms(other)
        for users in (1, 4, 8):
            found |= self._aggregate(users)
        if self._wants("peak_rss_mb"):
            if not self._wants("ttft_ms_2000"):
                self._first_token_ms(2000, 1)
            found["peak_rss_mb"] = peak_rss("self") / 1e6
        if self._wants("decode_tps_3500"):
            found["decode_tps_3500"] = self._decode_tps(3500)
        return {name: value for name, value in found.items() if name in self.wanted}

    def _complete(self, prompts: Sequence[list[int]], count: int, keep: bool = False) -> Answers:
        """As `complete`, but first asks for one token more where `keep` changes: some engine is made anew for that."""
        if keep != self.keeps:
            complete(self.engine, [self.tokens[:FIRST_PROMPT]], 1, keep)
            self.keeps = keep
        return complete(self.engine, prompts, count, keep)

    def _wants(self, *names: str) -> bool:
        return not self.wanted.isdisjoint(names)

    def _first_token_ms(self, length: int, repeats: int) -> float:
        prompts = [self.tokens[:length]]
        return 1e3 * statistics.median(self._complete(prompts, 1).firsts[0] for _ in range(repeats))

    def _decode_tps(self, context: int) -> float:
        answers = self._complete([self.tokens[: context or FIRST_PROMPT]], 1 + DECODE_TOKENS)
        self.streams = answers.arrivals >= DECODE_TOKENS // 8  # a token may end within a character and show nothing
        return answers.tps

    def _warm_ms(self, second: list[int]) -> float:
        """First token of a prompt that begins as an earlier one did."""
        self._complete([self.tokens[:512]], 1, keep=True)
        return 1e3 * self._complete([second], 1, keep=True).firsts[0]

    def _aggregate(self, users: int) -> dict[str, float]:
        p95 = f"p95_ttft_ms_{users}"
        if not self._wants(f"aggregate_tps_{users}", p95):
            return {}
        waves = WAVES if self._wants(p95) else 1
        all_answers = [self._complete(self.chats[:users], CHAT_TOKENS) for _ in range(waves)]
        firsts = [first for answers in all_answers for first in answers.firsts]
        speed = statistics.median(answers.tps for answers in all_answers)
        return {f"aggregate_tps_{users}": speed, p95: 1e3 * percentile(firsts, 95)}


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """How many ids both begin with."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(first), len(second)))


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of all do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def peak_rss(pid: int | str) -> int:
    """Bytes that a process held at most (VmHWM); mapped files count as far as they are in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
