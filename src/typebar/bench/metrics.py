"""What engines are compared by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from typebar.errors import ParameterError


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure. `context`: tokens that it needs at least; `users`: 0 where one process alone is asked."""

    key: str
    title: str
    higher_is_better: bool
    context: int
    users: int = 0


METRICS = (
    Metric("load_s", "process start to first token, s", False, 32),
    Metric("ttft_ms_32", "first token of 32, ms", False, 48),
    Metric("ttft_ms_512", "first token of 512, ms", False, 528),
    Metric("ttft_ms_2000", "first token of 2000, ms", False, 2016),
    Metric("prefill_tps_512", "prefill of 512, tokens/s", True, 528),
    Metric("decode_tps_0", "decode, tokens/s", True, 96),
    Metric("decode_tps_1000", "decode after 1000, tokens/s", True, 1072),
    Metric("decode_tps_3500", "decode after 3500, tokens/s", True, 3572),
    Metric("aggregate_tps_1", "1 user, tokens/s", True, 256, 1),
    Metric("aggregate_tps_4", "4 users, tokens/s of all", True, 256, 4),
    Metric("aggregate_tps_8", "8 users, tokens/s of all", True, 256, 8),
    Metric("p95_ttft_ms_4", "4 users, first token p95, ms", False, 256, 4),
    Metric("warm_ttft_ms", "first token of a second turn, ms", False, 560),
    Metric("peak_rss_mb", "peak memory, MB", False, 2048, 1),
)
BUSY, SLOWDOWN = "busy_decode_tps_0", "busy_slowdown"
BESIDE_BUSY = (
    Metric(BUSY, "decode beside a busy process, tokens/s", True, 96),
    Metric(SLOWDOWN, "slower beside a busy process, times", False, 96),
)
BY_KEY = {metric.key: metric for metric in (*METRICS, *BESIDE_BUSY)}


def choose(keys: Iterable[str], busy: bool = False) -> tuple[Metric, ...]:
    """Metrics by their keys, in the usual order; METRICS of no keys. ParameterError names one that is unknown.

    busy: those of BESIDE_BUSY too.
    """
    wanted = set(keys) or {metric.key for metric in METRICS}
    if unknown := sorted(wanted - set(BY_KEY)):
        raise ParameterError("only", f"of {', '.join(BY_KEY)}", ", ".join(unknown))
    if busy:
        wanted |= {metric.key for metric in BESIDE_BUSY}
    return tuple(metric for metric in BY_KEY.values() if metric.key in wanted)


def summary(values: Sequence[float]) -> dict[str, float]:
    """The median of rounds, and their range."""
    return {"median": median(values), "min": min(values), "max": max(values)}


def ratio(metric: Metric, ours: float, theirs: float) -> float:
    """How many times better `ours` is, below 1 where it is worse, whichever direction is better."""
    return ours / theirs if metric.higher_is_better else theirs / ours
