"""The machine of a run, and who else used it meanwhile."""

from __future__ import annotations

import os
import platform
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from typebar import _native
from typebar.memory import total_memory

BANDWIDTH_SECONDS = 0.5
# Shares of one processor above which a round counts as disturbed. An idle system's own services take about 1 %.
STEAL_LIMIT = 0.03
OTHERS_LIMIT = 0.10

Json = dict[str, Any]


def describe(threads: int) -> Json:
    """Processor, memory, and the bandwidth that `typebar doctor` measures, in GB/s with this many threads."""
    cpu = _native.cpu_info()
    return {
        "cpu": cpu["model_name"],
        "physical_cores": cpu["physical_cores"],
        "logical_cpus": cpu["logical_cpus"],
        "quota_cpus": cpu["quota_cpus"],
        "features": cpu["features"],
        "memory_bytes": total_memory(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "threads": threads,
        "bandwidth_gb_s": read_bandwidth(threads),
        "load_average": round(os.getloadavg()[0], 2),
    }


def read_bandwidth(threads: int) -> float:
    """GB/s that so many threads read now; on a machine that others share it changes from minute to minute."""
    return round(_native.measure_read_bandwidth(threads, BANDWIDTH_SECONDS), 1)


@dataclass(frozen=True, slots=True)
class Ticks:
    """Seconds of all processors together since the machine started: at work, and taken by the hypervisor."""

    busy: float
    steal: float


def read_ticks() -> Ticks:
    """From /proc/stat; zeros where the system has none."""
    try:
        [first, *_] = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return Ticks(0.0, 0.0)
    user, nice, system, _, _, irq, softirq, steal, *_ = (
        int(word) / os.sysconf("SC_CLK_TCK") for word in first.split()[1:]
    )
    return Ticks(user + nice + system + irq + softirq, steal)


class Watch:
    """What others took from a stretch of time: `with Watch() as watch`, then `steal` and `others`, as processors.

    Counts as own what this process and its ended children used. 0.1 is a tenth of one processor.
    """

    seconds = steal = others = 0.0

    def __enter__(self) -> Self:
        self._start = time.monotonic(), read_ticks(), _own_seconds()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        began, ticks, own = self._start
        now = read_ticks()
        self.seconds = max(1e-9, time.monotonic() - began)
        self.steal = (now.steal - ticks.steal) / self.seconds
        self.others = max(0.0, now.busy - ticks.busy - (_own_seconds() - own)) / self.seconds

    @property
    def disturbed(self) -> bool:
        return self.steal > STEAL_LIMIT or self.others > OTHERS_LIMIT

    def as_json(self) -> Json:
        return {
            "seconds": round(self.seconds, 1),
            "steal_cpus": round(self.steal, 3),
            "others_cpus": round(self.others, 3),
            "disturbed": self.disturbed,
        }


def _own_seconds() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
