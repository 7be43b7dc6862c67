"""`typebar doctor`: what this machine has, what typebar makes of it, and what to do where something is wrong."""

import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from typebar import _native
from typebar.memory import MIB, available_memory, total_memory
from typebar.model import cache

BANDWIDTH_SECONDS = 0.5
NEEDED_MEMORY = 700 * MIB  # the default model with a short context
NEEDED_DISK = 1000 * MIB  # its file, beside the parts it is put together from
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong or slow here, and what to do about it."""

    what: str
    remedy: str


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Do not ask the network which sources answer.")] = False,
) -> None:
    """Examine this machine. The exit code is 1 where something is wrong; the remedy stands beside it."""
    report = examine(offline)
    if as_json:
        print(json.dumps(report, ensure_ascii=False))
    else:
        _print(report)
    if report["problems"]:
        raise typer.Exit(1)


def examine(offline: bool = False) -> dict[str, Any]:
    """Everything that `typebar doctor` knows, as plain data."""
    with ThreadPoolExecutor(1) as background:
        sources = background.submit(_sources, offline)
        cpu = _native.cpu_info()
        threads, reason = _native.choose_threads()
        counts = sorted({1, threads})
        bandwidth = {str(n): round(_native.measure_read_bandwidth(n, BANDWIDTH_SECONDS), 1) for n in counts}
        report: dict[str, Any] = {
            "cpu": cpu,
            "kernels": cpu["best_isa"],
            "threads": {"count": threads, "reason": reason},
            "huge_pages": _huge_pages(),
            "memory": _memory(),
            "bandwidth_gb_s": bandwidth,
            "disk": _disk(),
            "sources": sources.result(),
        }
    report["problems"] = [{"what": problem.what, "remedy": problem.remedy} for problem in find_problems(report)]
    return report


def find_problems(report: dict[str, Any]) -> list[Problem]:
    """What is wrong in a report of `examine`."""
    return [
        problem
        for check in (_check_kernels, _check_quota, _check_huge_pages, _check_memory, _check_disk, _check_sources)
        if (problem := check(report)) is not None
    ]


def _check_kernels(report: dict[str, Any]) -> Problem | None:
    if report["kernels"] != "scalar":
        return None
    return Problem(
        "the processor has neither AVX2 with FMA nor NEON dot products: the portable kernels are 5 to 20 times slower",
        "use a processor from 2013 (x86-64) or 2018 (ARM) on; in a virtual machine, pass the host's CPU through",
    )


def _check_quota(report: dict[str, Any]) -> Problem | None:
    quota = report["cpu"]["quota_cpus"]
    if not 0 < quota < 1:
        return None
    return Problem(
        f"the container may use {quota:g} of a CPU ({report['cpu']['quota_source']}): every answer is throttled",
        "give it at least one whole CPU (docker run --cpus, resources.limits.cpu)",
    )


def _check_huge_pages(report: dict[str, Any]) -> Problem | None:
    if report["huge_pages"] != "never":
        return None
    return Problem(
        "transparent huge pages are off, which costs 10 to 30 % of the speed",
        f"echo madvise | sudo tee {HUGE_PAGES}",
    )


def _check_memory(report: dict[str, Any]) -> Problem | None:
    memory = report["memory"]
    if memory["available"] >= NEEDED_MEMORY:
        return None
    return Problem(
        f"{memory['available'] / MIB:.0f} MiB of memory can be used ({memory['limit']}); the default model needs about "
        f"{NEEDED_MEMORY / MIB:.0f}",
        "end other programs, raise the limit, or use smollm2-135m-instruct",
    )


def _check_disk(report: dict[str, Any]) -> Problem | None:
    disk = report["disk"]
    if disk["cached_models"] or disk["free"] >= NEEDED_DISK:
        return None
    return Problem(
        f"{disk['free'] / MIB:.0f} MiB are free in {disk['cache']}, and no model is there yet",
        "free some space, or set TYPEBAR_CACHE to a folder on a larger disk",
    )


def _check_sources(report: dict[str, Any]) -> Problem | None:
    sources = report["sources"]
    if sources is None or report["disk"]["cached_models"] or any(reason is None for reason in sources.values()):
        return None
    return Problem(
        "no source of models answers, and no model is in the cache",
        "check the network and HTTPS_PROXY, set HF_ENDPOINT or pip's index to a mirror, or copy a .gguf file here and "
        "name it with -m",
    )


def _sources(offline: bool) -> dict[str, str | None] | None:
    if offline:
        return None
    from typebar.model.sources import reachable_sources

    return reachable_sources()


def _huge_pages() -> str:
    """always, madvise or never; unknown where the kernel does not say."""
    try:
        setting = HUGE_PAGES.read_text()
    except OSError:
        return "unknown"
    return setting.partition("[")[2].partition("]")[0] or "unknown"


def _memory() -> dict[str, Any]:
    available, limit = available_memory()
    return {"total": total_memory(), "available": available, "limit": limit}


def _disk() -> dict[str, Any]:
    folder = cache.cache_dir()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    models = sorted(record.name for _, record in cache.records() if record and record.files)
    return {"cache": str(folder), "free": shutil.disk_usage(existing).free, "cached_models": models}


def _print(report: dict[str, Any]) -> None:
    cpu, memory, disk = report["cpu"], report["memory"], report["disk"]
    quota = f"{cpu['quota_cpus']:g} CPUs ({cpu['quota_source']})" if cpu["quota_cpus"] else "none"
    rows = [
        ("processor", f"{cpu['model_name']}, {cpu['physical_cores']} cores, {cpu['logical_cpus']} logical"),
        ("features", " ".join(cpu["features"]) or "none that matter"),
        ("kernels", f"{report['kernels']} (of {', '.join(cpu['usable_isas'])})"),
        ("quota", quota),
        ("threads", f"{report['threads']['count']}: {report['threads']['reason']}"),
        ("huge pages", report["huge_pages"]),
        (
            "memory",
            f"{memory['available'] / MIB:.0f} of {memory['total'] / MIB:.0f} MiB can be used ({memory['limit']})",
        ),
        (
            "bandwidth",
            ", ".join(f"{speed} GB/s with {n}" for n, speed in report["bandwidth_gb_s"].items()) + " threads",
        ),
        ("disk", f"{cache.megabytes(disk['free'])} free in {disk['cache']}"),
        ("models", ", ".join(disk["cached_models"]) or "none in the cache"),
    ]
    if report["sources"] is not None:
        rows += [(name, reason or "reachable") for name, reason in report["sources"].items()]
    for name, value in rows:
        print(f"{name:>12}  {value}")
    for problem in report["problems"]:
        print(f"\nproblem: {problem['what']}\n remedy: {problem['remedy']}", file=sys.stderr)
    if not report["problems"]:
        print("\nEverything is fine.")
