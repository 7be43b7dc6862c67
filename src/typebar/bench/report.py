"""The findings of a soak for people and for programs."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from typebar.bench.verdict import MIB, Findings, memory_growth, percentiles

SERIES_ROWS = 12


def as_json(findings: Findings, problems: list[str]) -> str:
    """Everything, as one JSON object; latencies in seconds as percentiles, memory in bytes."""
    report = {
        **asdict(findings),
        "requests": findings.requests,
        "counts": dict(findings.counts),
        "latencies": {name: percentiles(values) for name, values in asdict(findings.latencies).items()},
        "memory_growth": memory_growth(findings),
        "problems": problems,
    }
    return json.dumps(report, ensure_ascii=False, indent=1)


def print_report(console: Console, findings: Findings, problems: list[str]) -> None:
    """Tables of counts, latencies and the process over time, then what is wrong."""
    counts = ", ".join(f"{number} {name}" for name, number in findings.counts.items() if number)
    console.print(f"{findings.requests} requests in {findings.seconds:.0f} s: {counts or 'nothing'}")
    console.print(_latency_table(findings))
    if any(sample.footprint for sample in findings.samples):
        console.print(_series_table(findings))
    growth = memory_growth(findings)
    if growth is not None:
        console.print(f"memory after warm-up: {growth / MIB:+.1f} MiB")
    for what, process in (("before", findings.idle_before), ("after", findings.idle_after)):
        if process:
            memory = f"{process.rss_anon / MIB:.1f} MiB RssAnon"
            console.print(f"idle {what}: {process.fds} file descriptors, {process.threads} threads, {memory}")
    if findings.interrupted:
        console.print("interrupted: this is what was seen until then")
    for problem in problems:
        console.print(f"[bold red]problem:[/] {_plain(problem)}", highlight=False)
    if not problems:
        console.print("[bold green]nothing wrong[/]")


def _latency_table(findings: Findings) -> Table:
    table = Table("MS", box=None, header_style="bold", pad_edge=False)
    for column in ("P50", "P95", "P99", "MAX", "COUNT"):
        table.add_column(column, justify="right")
    for name, values in asdict(findings.latencies).items():
        if figures := percentiles(values):
            table.add_row(
                name.replace("_", " "), *(f"{1e3 * value:.1f}" for value in figures.values()), str(len(values))
            )
    return table


def _series_table(findings: Findings) -> Table:
    """Some of the samples, evenly spread."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("SECONDS", "REQUESTS", "RSSANON MIB", "FDS", "THREADS", "RUNNING", "WAITING", "KV %", ""):
        table.add_column(column, justify="right")
    samples, warm = findings.samples, findings.warm
    last = len(samples) - 1
    rows = {round(last * number / (SERIES_ROWS - 1)) for number in range(SERIES_ROWS)} | ({warm} if warm else set())
    for row in sorted(rows):
        sample = samples[row]
        process, gauges = sample.footprint, sample.gauges
        if process:
            table.add_row(
                f"{sample.seconds:.0f}", str(sample.requests), f"{process.rss_anon / MIB:.1f}", str(process.fds),
                str(process.threads), str(gauges.running), str(gauges.waiting), f"{100 * gauges.kv_usage:.0f}",
                "warm" if row == warm else "",
            )  # fmt: skip
    return table


def _plain(text: str) -> str:
    """Brackets in answers are no markup."""
    return text.replace("[", r"\[")
