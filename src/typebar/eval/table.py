"""The report of `typebar eval` as a table."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

Json = dict[str, Any]


def print_report(console: Console, report: Json) -> None:
    """A row a model and quantization; what a model is compared with stands above it."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("MODEL", overflow="fold", min_width=8)
    columns = ["BITS", "MB/TOKEN", "TOKENS/S"]
    if report["texts"]:
        columns += ["PPL", "KL", "P99", "MAX", "TOP-1"]
    columns += [name.upper() for name in report["tasks"]]
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for row in report["rows"]:
        table.add_row(*_cells(row, report), style="dim" if row["is_reference"] else "")
    console.print(table)
    for line in _notes(report):
        console.print(line, style="dim", highlight=False)


def _cells(row: Json, report: Json) -> list[str]:
    cells = [
        escape(f"{row['model']}@{row['quantization']}"),
        f"{row['bits_per_weight']:.2f}",
        f"{row['token_bytes'] / 1e6:.1f}",
        _figure(row["decode_tps"], ".1f"),
    ]
    if report["texts"]:
        text = row["text"]
        cells += [
            f"{text['perplexity']:.3f}",
            _figure(text["mean_kl"], ".5f"),
            _figure(text["p99_kl"], ".4f"),
            _figure(text["max_kl"], ".3f"),
            _figure(text["same_top_percent"], ".1f", " %"),
        ]
    for name in report["tasks"]:
        task = row["tasks"].get(name)
        cells.append(f"{task['pass_percent']:.1f} %" if task else "")
    return cells


def _figure(value: float | None, form: str, unit: str = "") -> str:
    return "" if value is None else f"{value:{form}}{unit}"


def _notes(report: Json) -> list[str]:
    notes = []
    if report["texts"]:
        tokens = report["rows"][0]["text"]["tokens"]
        names = ", ".join(map(escape, report["texts"]))
        notes.append(
            f"{tokens} predictions in windows of {report['window']} tokens ({names}); "
            "KL in nats from the f32 row above: mean, 99th percentile, largest"
        )
    if report["tasks"]:
        counts = ", ".join(f"{name} of {count}" for name, count in report["tasks"].items())
        notes.append(f"problems solved at the first, greedy attempt: {counts}")
    return notes
