"""Reports as tables, and where they may be written."""

import json
import os
import resource
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


def test_devices_pipes_and_links_stay_what_they_are(tmp_path: Path) -> None:
    pipe, link, target = tmp_path / "pipe", tmp_path / "link", tmp_path / "target.json"
    os.mkfifo(pipe)
    link.symlink_to(target)
    for path in (pipe, link):
        tables.check_writable(path)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    tables.save(pipe, {"a": 1})
    assert json.loads(os.read(reader, 100)) == {"a": 1} and pipe.is_fifo()
    os.close(reader)
    tables.save(link, {"a": 2})
    assert json.loads(target.read_text()) == {"a": 2} and link.is_symlink()


def test_a_report_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypebarError, match="not finite"):
        tables.save(tmp_path / "report.json", {"kl": float("nan")})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(TypebarError, match="File too large"):
            tables.save(tmp_path / "report.json", {"long": "x" * 100})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []
