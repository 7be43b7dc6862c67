"""Saved runs joined into one HTML page that needs nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader

from typebar.bench.metrics import BY_KEY
from typebar.bench.tables import number
from typebar.errors import TypebarError

Json = dict[str, Any]

# What only reports of this kind have.
KINDS = {"compare": "ratios", "ladder": "steps", "load": "latencies_ms", "soak": "problems"}


def render(paths: Sequence[Path]) -> str:
    """The page of these files of `--json`. TypebarError names one that is no such file."""
    runs = [{"name": path.name, "report": report, "kind": _kind(path, report)} for path, report in _read(paths)]
    environment = Environment(loader=PackageLoader("typebar.bench", "."), autoescape=True, trim_blocks=True)
    environment.filters["number"] = number
    return environment.get_template("report.html").render(runs=runs, metrics=BY_KEY.values())


def write(paths: Sequence[Path], target: Path) -> None:
    """Render and write under a temporary name first."""
    page = render(paths)
    temporary = target.with_name(f".{target.name}.part")
    temporary.write_text(page, encoding="utf-8")
    temporary.replace(target)


def _read(paths: Sequence[Path]) -> list[tuple[Path, Json]]:
    runs = []
    for path in paths:
        try:
            report = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise TypebarError(f"{path} cannot be read as a saved run: {error}") from error
        runs.append((path, report))
    return runs


def _kind(path: Path, report: object) -> str:
    if isinstance(report, dict):
        for kind, key in KINDS.items():
            if key in report:
                return kind
    raise TypebarError(f"{path} is no saved run: give files that `typebar bench … --json` wrote")
