"""Charts of saved runs as PNG files, for a README. They need matplotlib."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typebar.bench.engines import TYPEBAR
from typebar.bench.metrics import BY_KEY
from typebar.errors import TypebarError

Json = dict[str, Any]

OURS, THEIRS = "#1f6feb", "#9aa4b1"


@dataclass(frozen=True, slots=True)
class Bar:
    """One row of a chart. `figures`: median, min and max; `ours`: of typebar, and so in its colour."""

    title: str
    figures: Json
    ours: bool


def require() -> None:
    """TypebarError where charts cannot be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise TypebarError("charts need matplotlib: pip install matplotlib, or leave --plot away")


def draw(report: Json, folder: Path) -> list[Path]:
    """The charts of one run of `compare` or `ladder`; their paths."""
    require()
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    if "ratios" in report:
        return _draw_comparison(report, folder)
    return [_draw_bars(ladder_bars(report), "tokens/s", folder / "ladder.png")]


def _draw_comparison(report: Json, folder: Path) -> list[Path]:
    """One chart a metric, engines side by side with the range of the rounds."""
    paths = []
    for key, metric in BY_KEY.items():
        if bars := comparison_bars(report, key):
            better = "more is better" if metric.higher_is_better else "less is better"
            paths.append(_draw_bars(bars, f"{metric.title} ({better})", folder / f"{key}.png"))
    return paths


def comparison_bars(report: Json, key: str) -> list[Bar]:
    """One metric of every engine that has it."""
    return [
        Bar(name, engine["metrics"][key], name == TYPEBAR.name)
        for name, engine in report["engines"].items()
        if key in engine["metrics"]
    ]


def ladder_bars(report: Json) -> list[Bar]:
    """The speed of every step that has one."""
    return [
        Bar(
            step["title"],
            dict.fromkeys(("median", "min", "max"), step["tokens_s"]),
            step["quantization"] is not None,
        )
        for step in report["steps"]
        if step["tokens_s"] is not None
    ]


def _draw_bars(bars: list[Bar], title: str, path: Path) -> Path:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 0.8 + 0.45 * len(bars)), layout="constrained")
    axes = figure.subplots()
    medians = [bar.figures["median"] for bar in bars]
    below = [bar.figures["median"] - bar.figures["min"] for bar in bars]
    above = [bar.figures["max"] - bar.figures["median"] for bar in bars]
    colours = [OURS if bar.ours else THEIRS for bar in bars]
    axes.barh([bar.title for bar in bars], medians, xerr=[below, above], color=colours, capsize=3)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_title(title, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    return path
