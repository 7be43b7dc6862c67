"""What a soak saw, as plain data, and what of it is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from typebar.bench.gauges import Gauges
from typebar.bench.process import Footprint

MIB = 1024 * 1024
RSS_GROWTH = 12 * MIB  # after warm-up
SLACK = 4  # file descriptors or threads that a server may have opened lazily since it was first idle
WINDOW = 5  # samples whose median counts as the memory of a moment
EXAMPLES = 20  # of wrong texts and failures that are kept


@dataclass(frozen=True, slots=True)
class Sample:
    """A moment: seconds and finished requests since the start, the process, the server's own gauges."""

    seconds: float
    requests: int
    footprint: Footprint | None
    gauges: Gauges
    kv_was_full: bool


@dataclass(slots=True)
class Latencies:
    """Seconds: first byte, first text, between pieces of text, from a cancel to the end of the answer, /health."""

    first_byte: list[float] = field(default_factory=list)
    first_text: list[float] = field(default_factory=list)
    gap: list[float] = field(default_factory=list)
    cancel: list[float] = field(default_factory=list)
    health: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Findings:
    """Everything that was seen. `samples[warm]` is the first after warm-up; None: warm-up never ended."""

    counts: Counter[str] = field(default_factory=Counter)
    latencies: Latencies = field(default_factory=Latencies)
    wrong_texts: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    warm: int | None = None
    idle_before: Footprint | None = None
    idle_after: Footprint | None = None
    seconds: float = 0.0
    interrupted: bool = False

    @property
    def requests(self) -> int:
        """Requests that came to an end of any kind, the expected refusals among them."""
        return sum(self.counts.values())

    def wrong_text(self, what: str) -> None:
        self.counts["wrong"] += 1
        if len(self.wrong_texts) < EXAMPLES:
            self.wrong_texts.append(what)

    def failure(self, what: str) -> None:
        self.counts["failed"] += 1
        if len(self.failures) < EXAMPLES:
            self.failures.append(what)


def problems(findings: Findings) -> list[str]:
    """What is wrong, one line each; nothing where the server did everything right."""
    counts = findings.counts
    found = []
    if counts["wrong"]:
        found.append(f"{counts['wrong']} answers differ from the solo run, first: {findings.wrong_texts[0]}")
    if counts["failed"]:
        found.append(f"{counts['failed']} failures, first: {findings.failures[0]}")
    if not counts["completed"]:
        found.append("not one request was completed")
    return found + _leaks(findings) + _memory_problems(findings)


def _leaks(findings: Findings) -> list[str]:
    before, after = findings.idle_before, findings.idle_after
    if before is None or after is None:
        return []
    pairs = (("file descriptors", before.fds, after.fds), ("threads", before.threads, after.threads))
    return [
        f"{name} grew from {first} to {last} between two idle moments"
        for name, first, last in pairs
        if last > first + SLACK
    ]


def _memory_problems(findings: Findings) -> list[str]:
    growth = memory_growth(findings)
    if growth is None:
        watched = any(sample.footprint for sample in findings.samples)
        if not watched or findings.interrupted:
            return []
        return ["memory could not be judged: the run ended before the KV cache was full (run longer, or --kv-memory)"]
    return [f"RssAnon grew by {growth / MIB:.1f} MiB after warm-up"] if growth > RSS_GROWTH else []


def memory_growth(findings: Findings) -> int | None:
    """Bytes by which RssAnon rose above its value after warm-up; None where too little was sampled after it."""
    if findings.warm is None:
        return None
    series = [sample.footprint.rss_anon for sample in findings.samples[findings.warm :] if sample.footprint]
    if len(series) < WINDOW:
        return None
    smooth = [median(series[start : start + WINDOW]) for start in range(len(series) - WINDOW + 1)]
    return int(max(smooth) - smooth[0])


def percentiles(values: Sequence[float]) -> dict[str, float] | None:
    """p50, p95, p99 and max; None of nothing."""
    if not values:
        return None
    p50, p95, p99 = np.percentile(np.asarray(values), [50, 95, 99])
    return {"p50": float(p50), "p95": float(p95), "p99": float(p99), "max": float(max(values))}
