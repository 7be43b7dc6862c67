"""How much memory this process may still take: the machine's and its containers' limits together."""

import resource
import sys
from pathlib import Path

MIB = 1 << 20


def available_memory() -> tuple[int, str]:
    """Bytes that can still be taken, and what sets the limit. Page cache counts as free."""
    limits = [(_meminfo("MemAvailable"), "free memory of the machine"), *_cgroup_limits()]
    return min(limits)


def total_memory() -> int:
    """Bytes of memory in the machine."""
    return _meminfo("MemTotal")


def peak_rss() -> int:
    """The largest resident set of this process so far, in bytes.

    From VmHWM, since Linux counts in getrusage's ru_maxrss what the parent had when it started this program.
    """
    for line in _read(Path("/proc/self/status")).splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _meminfo(key: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    raise OSError(f"/proc/meminfo has no {key}")


def _cgroup_limits(
    proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> list[tuple[int, str]]:
    """Room below each memory limit of the cgroups that this process is in, v2 and v1, with the file that sets it."""
    limits = []
    for line in _read(proc).splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            base, names = root, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base, names = root / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        group = base / path.lstrip("/")
        while group.is_relative_to(base):
            limits += _room(group, *names)
            group = group.parent
    return limits


def _room(group: Path, limit_file: str, usage_file: str, cache_key: str) -> list[tuple[int, str]]:
    limit, usage = _read(group / limit_file).strip(), _read(group / usage_file).strip()
    if not limit.isdigit() or not usage.isdigit() or int(limit) > 1 << 60:
        return []
    cache = [line.split()[1] for line in _read(group / "memory.stat").splitlines() if line.split()[0] == cache_key]
    used = int(usage) - (int(cache[0]) if cache else 0)
    return [(max(0, int(limit) - used), str(group / limit_file))]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
