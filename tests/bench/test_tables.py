"""Reports as tables, and where they may be written."""

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from typebar.bench import tables
from typebar.errors import TypebarError

ODD = "a [red]b[/] [/c]"
SPREAD = {"p50": 1.0, "p95": 2.0, "p99": 3.0, "max": 4.0}
COMPARISON = {
    "machine": {"cpu": ODD, "threads": 2, "bandwidth_gb_s": 18.0},
    "model": {"file": ODD},
    "rounds": 1,
    "engines": {},
    "ratios": {},
    "missing": {"openvino": ODD},
    "left_out": [],
}
LOAD = {
    "model": ODD, "url": f"http://{ODD}", "load": {"closed": 1},
    "latencies_ms": {"ttft": SPREAD, "itl": None, "whole": SPREAD},
    "kinds": {}, "completed": 1, "requests": 2, "seconds": 1.0, "output_tps": 1.0,
    "prompt_tokens": 1, "cached_tokens": 0, "errors": {ODD: 1},
}  # fmt: skip


def test_names_with_brackets_are_no_markup() -> None:
    console = Console(file=StringIO(), width=200)
    tables.print_comparison(console, COMPARISON)
    tables.print_load(console, LOAD)
    assert isinstance(console.file, StringIO)
    assert console.file.getvalue().count(ODD) == 6


def test_folder_may_be_made_with_its_parents_but_not_in_a_file(tmp_path: Path) -> None:
    tables.check_folder(tmp_path)
    tables.check_folder(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    for wrong in (tmp_path / "file", tmp_path / "file" / "b"):
        with pytest.raises(TypebarError, match="file is no folder"):
            tables.check_folder(wrong)
