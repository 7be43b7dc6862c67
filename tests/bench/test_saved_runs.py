"""Saved runs as a page and as charts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from typebar.bench import page, plots
from typebar.errors import TypebarError

FIGURES = {"median": 40.0, "min": 39.0, "max": 41.0}
ENGINE = {"version": "1", "format": "GGUF <q4>", "flags": "threads=2", "watch": [{"disturbed": True}]}
COMPARISON = {
    "machine": {"cpu": "a processor", "threads": 2, "bandwidth_gb_s": 18.0, "system": "Linux"},
    "model": {"file": "small.gguf"},
    "rounds": 1,
    "engines": {
        "typebar": {**ENGINE, "metrics": {"decode_tps_0": FIGURES}},
        "llama.cpp": {**ENGINE, "metrics": {"decode_tps_0": {"median": 20.0, "min": 19.0, "max": 22.0}}},
    },
    "ratios": {"llama.cpp": {"decode_tps_0": 2.0}},
    "missing": {"openvino": "not installed"},
    "left_out": ["load_s"],
}
LADDER = {
    "machine": {"cpu": "a processor"},
    "model": "small.gguf",
    "steps": [
        {
            "title": "transformers, float32", "quantization": None, "threads": 1, "first_token_ms": 50.0,
            "tokens_s": 3.0, "peak_rss_mb": None, "mean_kl": 0.0, "watch": {"disturbed": False},
        },
        {
            "title": "INT8 weights", "quantization": "q8", "threads": 1, "first_token_ms": 12.0, "tokens_s": 30.0,
            "peak_rss_mb": None, "mean_kl": 0.01, "watch": {"disturbed": False},
        },
    ],
}  # fmt: skip
SPREAD = {"p50": 1.0, "p95": 2.0, "p99": 3.0, "max": 4.0}
LOAD = {
    "model": "m", "url": "http://127.0.0.1:1", "completed": 3, "requests": 4, "seconds": 2.0, "output_tps": 5.0,
    "latencies_ms": {"ttft": SPREAD, "itl": None}, "errors": {"status 503": 1},
}  # fmt: skip


def saved(folder: Path, **runs: object) -> list[Path]:
    paths = []
    for name, run in runs.items():
        paths.append(folder / f"{name}.json")
        paths[-1].write_text(json.dumps(run))
    return paths


def test_runs_of_every_kind_are_joined_into_one_page(tmp_path: Path) -> None:
    paths = saved(
        tmp_path, compare=COMPARISON, ladder=LADDER, load=LOAD, soak={"problems": [], "requests": 9, "seconds": 1.0}
    )
    target = tmp_path / "report.html"
    command = [sys.executable, "-m", "typebar", "bench", "report", *map(str, paths), "-o", str(target)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    html = target.read_text()
    for text in ("compare.json", "2.00x", "GGUF &lt;q4&gt;", "openvino: not installed", "INT8 weights", "status 503"):
        assert text in html
    assert "nothing wrong" in html
    assert "http://" not in html.replace("http://127.0.0.1:1", "") and "https://" not in html and "<script" not in html


def test_other_files_are_refused_by_name(tmp_path: Path) -> None:
    [other] = saved(tmp_path, other={"a": 1})
    with pytest.raises(TypebarError, match=r"other\.json is no saved run"):
        page.render([other])
    with pytest.raises(TypebarError, match="absent"):
        page.render([tmp_path / "absent.json"])


def test_bars_of_typebar_are_known_as_ours() -> None:
    assert [bar.ours for bar in plots.comparison_bars(COMPARISON, "decode_tps_0")] == [True, False]
    assert [(bar.title, bar.ours) for bar in plots.ladder_bars(LADDER)] == [
        ("transformers, float32", False),
        ("INT8 weights", True),
    ]


def test_charts_are_drawn(tmp_path: Path) -> None:
    paths = [path for report in (COMPARISON, LADDER) for path in plots.draw(report, tmp_path)]
    assert [path.name for path in paths] == ["decode_tps_0.png", "ladder.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_missing_matplotlib_is_told_before_anything_runs(tmp_path: Path) -> None:
    without = "import sys; sys.modules['matplotlib'] = None; from typebar.__main__ import main; main()"
    command = [sys.executable, "-c", without, "bench", "compare", "--plot", str(tmp_path / "charts")]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "matplotlib" in done.stderr
