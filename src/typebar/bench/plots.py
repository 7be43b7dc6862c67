"""Charts of saved runs as PNG files, for a README. They need matplotlib."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from typebar.bench.metrics import BY_KEY
from typebar.errors import TypebarError

Json = dict[str, Any]

OURS, THEIRS = "#1f6feb", "#9aa4b1"


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
    return [_draw_bars(_ladder_bars(report), "tokens/s", folder / "ladder.png")]


def _draw_comparison(report: Json, folder: Path) -> list[Path]:
    """One chart a metric, engines side by side with the range of the rounds."""
    paths = []
    for key, metric in BY_KEY.items():
        bars = {
            name: engine["metrics"][key] for name, engine in report["engines"].items() if key in engine["metrics"]
        }  # fmt: skip
        if bars:
            better = "more is better" if metric.higher_is_better else "less is better"
            paths.append(_draw_bars(bars, f"{metric.title} ({better})", folder / f"{key}.png"))
    return paths


def _ladder_bars(report: Json) -> dict[str, Json]:
    return {
        step["title"]: dict.fromkeys(("median", "min", "max"), step["tokens_s"])
        for step in report["steps"]
        if step["tokens_s"] is not None
    }


def _draw_bars(bars: dict[str, Json], title: str, path: Path) -> Path:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 0.8 + 0.45 * len(bars)), layout="constrained")
    axes = figure.subplots()
    medians = [bar["median"] for bar in bars.values()]
    below = [bar["median"] - bar["min"] for bar in bars.values()]
    above = [bar["max"] - bar["median"] for bar in bars.values()]
    colours = [OURS if name.startswith(("typebar", "+")) else THEIRS for name in bars]
    axes.barh(list(bars), medians, xerr=[below, above], color=colours, capsize=3)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_title(title, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    return path
