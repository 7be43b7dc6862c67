"""Reports of comparisons, loads and ladders as rich tables, and saved as JSON."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from typebar.bench.metrics import BY_KEY
from typebar.errors import TypebarError
from typebar.model.cache import write_json

Json = dict[str, Any]


def save(path: Path, report: Json) -> None:
    """Write JSON under a temporary name and rename it. TypebarError where it cannot be written."""
    try:
        write_json(path, report)
    except OSError as error:
        raise TypebarError(f"{path} cannot be written: {error.strerror}") from error
    except ValueError as error:
        raise TypebarError(f"{path} cannot be written: a figure is not finite") from error


def check_writable(path: Path | None) -> None:
    """Before anything is measured: TypebarError where a report could not be written at the end."""
    if path is None:
        return
    if path.is_dir():
        raise TypebarError(f"{path} cannot be written: it is a folder, give the name of a file")
    if path.exists() and not path.is_file():  # a device or a pipe
        if not os.access(path, os.W_OK):
            raise TypebarError(f"{path} cannot be written: permission denied, write elsewhere")
        return
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise TypebarError(f"{path} cannot be written: make the folder {folder}, or write elsewhere")
    if not os.access(folder, os.W_OK):
        raise TypebarError(f"{path} cannot be written: the folder {folder} is read-only, write elsewhere")


def check_folder(path: Path) -> None:
    """As `check_writable`, of a folder that is made with its parents."""
    there = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    if not (there.is_dir() and os.access(there, os.W_OK)):
        raise TypebarError(f"{path} cannot be made: {there} is no folder that can be written, give another")


@contextmanager
def progress_bar(console: Console, name: str) -> Iterator[Any]:
    """A bar on a terminal, plain lines elsewhere. The context is a function of what is done and the share behind."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[doing]}"))
    bar = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
    with bar:
        task = bar.add_task(name, total=1.0, doing="")

        def show(doing: str, share: float) -> None:
            if not console.is_terminal:
                console.print(escape(doing), highlight=False)
            bar.update(task, completed=share, doing=escape(doing))

        yield show


def print_comparison(console: Console, report: Json) -> None:
    """Medians with their range and, for peers, the ratio; then what each engine was, and what was missing."""
    engines = report["engines"]
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(f"MEDIAN OF {report['rounds']} (RANGE), RATIO")
    for name in engines:
        table.add_column(name, justify="right")
    for key, metric in BY_KEY.items():
        cells = [
            _cell(engine["metrics"].get(key), report["ratios"].get(name, {}).get(key))
            for name, engine in engines.items()
        ]
        if any(cells):
            table.add_row(metric.title, *cells)
    for key, title in _HARDWARE.items():
        figures = [engine["hardware"].get(key) for engine in engines.values()]
        if any(figure is not None for figure in figures):
            table.add_row(title, *("" if figure is None else number(figure) for figure in figures), style="dim")
    table.add_row("streams", *(_YES[engine["streams"]] for engine in engines.values()), style="dim")
    console.print(table)
    console.print("ratio: how many times better typebar is; below 1 it is worse", style="dim")
    for name, engine in engines.items():
        console.print(
            f"[bold]{name}[/] {escape(engine['version'])}; {escape(engine['format'])}; {escape(engine['flags'])}"
        )
    machine = report["machine"]
    console.print(
        f"{escape(machine['cpu'])}, {machine['threads']} threads, {machine['bandwidth_gb_s']} GB/s read; "
        f"{escape(report['model']['file'])}",
        highlight=False,
    )
    for name, why in report["missing"].items():
        console.print(f"[yellow]without {name}:[/] {escape(why)}", highlight=False)
    if report["left_out"]:
        console.print(f"[dim]not measured: {', '.join(report['left_out'])}[/]", highlight=False)
    for name, engine in engines.items():
        for round_number, watch in enumerate(engine["watch"], 1):
            if watch["disturbed"]:
                console.print(
                    f"[yellow]disturbed:[/] {name} in round {round_number}: others used {watch['others_cpus']:.2f} "
                    f"processors, the hypervisor took {watch['steal_cpus']:.2f}",
                    highlight=False,
                )


def print_load(console: Console, report: Json) -> None:
    """Latencies, speed and errors of a load."""
    load = report["load"]
    how = f"{load['closed']} users" if "closed" in load else f"{load['poisson_requests_s']:g} requests a second"
    console.print(f"{escape(report['model'])} at {escape(report['url'])}, {how}", highlight=False)
    table = Table("MS", box=None, header_style="bold", pad_edge=False)
    for column in ("P50", "P95", "P99", "MAX"):
        table.add_column(column, justify="right")
    rows = {"first token": "ttft", "between pieces": "itl", "whole answer": "whole"}
    figures = {title: report["latencies_ms"][key] for title, key in rows.items()}
    figures |= {f"first token, {kind}": entry["ttft"] for kind, entry in report["kinds"].items()}
    for title, values in figures.items():
        if values:
            table.add_row(title, *(number(value) for value in values.values()))
    console.print(table)
    console.print(
        f"{report['completed']} of {report['requests']} answered in {report['seconds']:.1f} s, "
        f"{number(report['output_tps'])} tokens/s, {report['prompt_tokens']} prompt tokens "
        f"({report['cached_tokens']} of them cached)",
        highlight=False,
    )
    for error, count in report["errors"].items():
        console.print(f"[bold red]{count} failed:[/] {escape(error)}", highlight=False)


def print_ladder(console: Console, report: Json) -> None:
    """A row a step."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("STEP")
    for column in ("THREADS", "FIRST TOKEN, MS", "TOKENS/S", "MB", "KL"):
        table.add_column(column, justify="right")
    for step in report["steps"]:
        figures = [step[key] for key in ("first_token_ms", "tokens_s", "peak_rss_mb")]
        cells = ["" if figure is None else number(figure) for figure in figures]
        kl = "" if step["mean_kl"] is None else f"{step['mean_kl']:.4f}"
        disturbed = " [yellow](disturbed)[/]" if step["watch"]["disturbed"] else ""
        table.add_row(f"{step['title']}{disturbed}", str(step["threads"]), *cells, kl)
    console.print(table)


_HARDWARE = {
    "decode_gb_s": "decode, GB/s of weights",
    "decode_bandwidth_percent": "of the measured bandwidth, %",
    "prefill_gmac_s": "prefill, GMAC/s",
}
_YES = {True: "yes", False: "no", None: ""}


def number(value: float) -> str:
    """Three digits that matter."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _cell(figures: Json | None, ratio: float | None) -> str:
    if figures is None:
        return ""
    low, high = number(figures["min"]), number(figures["max"])
    spread = "" if low == high else f" [dim]({low} to {high})[/]"
    better = "" if ratio is None else f" [{'green' if ratio >= 1 else 'red'}]{ratio:.2f}x[/]"
    return f"{number(figures['median'])}{spread}{better}"
