"""Quality against bytes and speed as a PNG file. It needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

Json = dict[str, Any]

INK, GRID = "#1f6feb", "#d0d7de"


def draw(report: Json, path: Path) -> None:
    """One point for each model and quantization: KL where texts were measured, otherwise the first task's score."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    rows = [row for row in report["rows"] if not row["is_reference"]]
    title, values = quality(report)
    several = len({row["model"] for row in rows}) > 1
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    panels = {
        left: ("MB of weights read a token", [row["token_bytes"] / 1e6 for row in rows]),
        right: ("tokens/s", [row["decode_tps"] for row in rows]),
    }
    for axes, (label, positions) in panels.items():
        axes.scatter(positions, values, color=INK, zorder=3)
        for row, x, y in zip(rows, positions, values, strict=True):
            name = f"{row['model']} {row['quantization']}" if several else row["quantization"]
            axes.annotate(name, (x, y), xytext=(5, 5), textcoords="offset points")
        axes.set_xlabel(label)
        axes.margins(x=0.2)
        axes.grid(color=GRID, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    left.set_ylabel(title)
    if report["texts"] and min(values) > 0:
        left.set_yscale("log")
    figure.savefig(path, dpi=150, format="png")


def quality(report: Json) -> tuple[str, list[float]]:
    """What the upright axis shows, and its value of each row that is not a reference."""
    rows = [row for row in report["rows"] if not row["is_reference"]]
    if report["texts"]:
        return "mean KL, nats (less is better)", [row["text"]["mean_kl"] for row in rows]
    name = next(iter(report["tasks"]))
    return f"{name}, % solved (more is better)", [row["tasks"][name]["pass_percent"] for row in rows]
