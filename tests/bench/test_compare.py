"""Comparisons of real engines on a tiny random model, and what their figures mean."""

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from typebar.bench import engines, metrics
from typebar.bench.compare import Task, compare, solo
from typebar.bench.convert import converted
from typebar.bench.engines import BLOCK_TYPES, Engine, Launch
from typebar.bench.machine import Watch
from typebar.bench.metrics import BUSY, BY_KEY, METRICS, SLOWDOWN
from typebar.bench.peers.measure import common_prefix, percentile
from typebar.bench.process import ServerProcess, busy_process, free_port
from typebar.errors import TypebarError

KEYS = [
    "load_s", "ttft_ms_32", "ttft_ms_512", "ttft_ms_2000", "prefill_tps_512", "decode_tps_0", "decode_tps_1000",
    "decode_tps_3500", "aggregate_tps_1", "aggregate_tps_4", "aggregate_tps_8", "p95_ttft_ms_4", "warm_ttft_ms",
    "peak_rss_mb",
]  # fmt: skip


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "typebar", "bench", "compare", *arguments]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)


def test_metrics_are_those_that_readers_of_the_json_expect() -> None:
    assert [metric.key for metric in METRICS] == KEYS
    assert metrics.choose([]) == METRICS
    assert [metric.key for metric in metrics.choose([], busy=True)] == [*KEYS, BUSY, SLOWDOWN]
    assert [metric.key for metric in metrics.choose([SLOWDOWN, "load_s"])] == ["load_s", SLOWDOWN]


@pytest.mark.parametrize("key", [*KEYS, BUSY, SLOWDOWN])
def test_ratio_above_one_means_that_ours_is_better(key: str) -> None:
    faster, slower = 200.0, 100.0
    best_first = (faster, slower) if "_tps_" in key else (slower, faster)
    assert metrics.ratio(BY_KEY[key], *best_first) == 2.0
    assert metrics.ratio(BY_KEY[key], *reversed(best_first)) == 0.5


def test_llamacpp_is_compared_with_one_command(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("xllamacpp")
    monkeypatch.setenv("TYPEBAR_CACHE", str(tmp_path / "cache"))
    wanted = ["load_s", "ttft_ms_32", "decode_tps_0", "aggregate_tps_4", "p95_ttft_ms_4", "warm_ttft_ms", "peak_rss_mb"]
    file = tmp_path / "compare.json"
    done = run(
        "-m", str(tiny_path), "--peers", "llama.cpp,vllm", "--rounds", "2", "--threads", "1",
        "--only", ",".join(wanted), "--json", str(file),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(file.read_text())
    assert set(report["engines"]) == {"typebar", "llama.cpp"} and report["rounds"] == 2
    for name, engine in report["engines"].items():
        assert engine["version"] and engine["format"] and "threads=1" in engine["flags"], name
        assert list(engine["metrics"]) == wanted
        assert all(0 < figure["min"] <= figure["median"] <= figure["max"] for figure in engine["metrics"].values())
        assert isinstance(engine["streams"], bool)
        assert len(engine["watch"]) == 2 and "steal_cpus" in engine["watch"][0]
        speeds = [figures["decode_tps_0"] for figures in engine["rounds"]]
        percents = [
            100 * engine["hardware"]["decode_gb_s"] / statistics.median(speeds) * speed / watch["bandwidth_gb_s"]
            for speed, watch in zip(speeds, engine["watch"], strict=True)
        ]
        assert engine["hardware"]["decode_bandwidth_percent"] == pytest.approx(statistics.median(percents))
    assert report["engines"]["typebar"]["streams"]
    ours, theirs = (report["engines"][name]["metrics"] for name in ("typebar", "llama.cpp"))
    for key, ratio in report["ratios"]["llama.cpp"].items():
        a, b = ours[key]["median"], theirs[key]["median"]
        assert ratio == pytest.approx(a / b if "tps" in key else b / a)
    assert report["machine"]["bandwidth_gb_s"] > 0
    assert "--peers vllm --install" in report["missing"]["vllm"] and "without vllm" in done.stdout
    assert "decode_tps_3500" in report["left_out"]
    assert [path.name for path in tmp_path.iterdir()] == ["compare.json"]


def test_speed_of_llamacpp_is_that_of_the_wheels_that_its_server_is_from(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("xllamacpp")
    (tmp_path / "llama_cpp.py").write_text("raise SystemExit('another build, for logits only')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    task = Task.of(tiny_path, 1, metrics.choose(["ttft_ms_32"]))
    about, figures = solo(engines.RIVALS["llama.cpp"], sys.executable, tiny_path, task, ["ttft_ms_32"])
    assert about["version"].startswith("xllamacpp ") and figures["ttft_ms_32"] > 0


def test_weights_of_four_bits_are_compared_with_one_command(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("xllamacpp")
    monkeypatch.setenv("TYPEBAR_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "compare.json"
    done = run(
        "-m", str(tiny_path), "--peers", "llama.cpp-q4_0,llama.cpp-iq4_nl", "--rounds", "1", "--threads", "1",
        "--quant", "q4", "--only", "decode_tps_0,aggregate_tps_4", "--busy", "--json", str(file),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(file.read_text())
    assert report["missing"] == {} and "quantization=q4" in report["engines"]["typebar"]["flags"]
    assert report["quantization"] == "q4"
    for kind in BLOCK_TYPES:
        assert f"{kind} alone" in report["engines"][f"llama.cpp-{kind.lower()}"]["format"]
    for name, engine in report["engines"].items():
        figures = {key: figure["median"] for key, figure in engine["metrics"].items()}
        assert list(figures) == ["decode_tps_0", "aggregate_tps_4", BUSY, SLOWDOWN], name
        assert figures[SLOWDOWN] == pytest.approx(figures["decode_tps_0"] / figures[BUSY]), name
    assert "slower beside a busy process" in done.stdout


def test_what_auto_came_to_is_shown(tiny_path: Path) -> None:
    task = Task.of(tiny_path, 1, metrics.choose(["ttft_ms_32"]), "auto")
    report = compare(task, [], {}, 1, lambda doing, share: None)
    ours = report["engines"]["typebar"]
    assert report["quantization"] in ("keep", "q8")
    assert f"quantization={report['quantization']}" in ours["flags"] and "auto" not in ours["format"]


def test_server_under_measurement_has_the_weights_that_are_compared(tiny_path: Path) -> None:
    assert engines.TYPEBAR.server
    port = free_port()
    command = engines.TYPEBAR.server(Launch(sys.executable, tiny_path, port, 4, 1, "q4"))
    with ServerProcess(command, port) as server:
        words = Path(f"/proc/{server.pid}/cmdline").read_text().split("\0")
    assert words[words.index("--quant") + 1] == "q4"


def test_transformers_runs_on_the_same_weights(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not find_spec("transformers"):
        pytest.skip("transformers is not installed")
    monkeypatch.setenv("TYPEBAR_CACHE", str(tmp_path))
    task = Task.of(tiny_path, 1, metrics.choose(["ttft_ms_32", "aggregate_tps_4"]))
    report = compare(task, [engines.RIVALS["transformers"]], {}, 1, lambda doing, share: None)
    assert report["missing"] == {}
    assert set(report["ratios"]["transformers"]) == {"ttft_ms_32", "aggregate_tps_4"}
    assert "float32" in report["engines"]["transformers"]["format"]


@pytest.mark.parametrize("name", ["openvino", "onnxruntime", "ctranslate2"])
def test_library_runs_on_weights_that_are_converted_once(
    name: str, tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(engines.RIVALS[name].module)
    monkeypatch.setenv("TYPEBAR_CACHE", str(tmp_path))
    wanted = metrics.choose(["ttft_ms_32", "aggregate_tps_4", "warm_ttft_ms"])
    task = Task.of(tiny_path, 1, wanted)
    report = compare(task, [engines.RIVALS[name]], {}, 1, lambda doing, share: None)
    assert report["missing"] == {} and len(report["ratios"][name]) == 3


def test_interrupted_conversion_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypebarError, match="could not be converted to made"):
        converted(tmp_path / "float16", "made", sys.executable, tmp_path / "no_such_adapter.py")
    assert list(tmp_path.iterdir()) == []


def test_peer_that_fails_is_told_and_the_others_go_on(tiny_path: Path) -> None:
    broken = Engine("broken", "no_such_adapter.py", "typebar")
    task = Task.of(tiny_path, 1, metrics.choose(["ttft_ms_32"]))
    kept: list[int] = []
    report = compare(task, [broken], {}, 2, lambda doing, share: None, lambda report: kept.append(report["rounds"]))
    assert kept == [1, 2], "the report so far is kept after every round"
    assert set(report["engines"]) == {"typebar"}
    assert "no_such_adapter.py" in report["missing"]["broken"]


@pytest.mark.parametrize("said", ["", "loaded", "5", "{}", '["figures"]'])
def test_peer_without_a_result_is_an_error_with_what_it_said(said: str, tiny_path: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter.py"
    adapter.write_text(f"import sys; print({said!r}); print('the end', file=sys.stderr)")
    task = Task.of(tiny_path, 1, metrics.choose(["ttft_ms_32"]))
    with pytest.raises(TypebarError, match=r"vague gave no result(?s:.*)the end"):
        solo(Engine("vague", str(adapter), "typebar"), sys.executable, tiny_path, task, ["ttft_ms_32"])


def test_missing_peer_is_told_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TYPEBAR_CACHE", str(tmp_path))
    absent = Engine("absent", "ours.py", "no_such_module")
    monkeypatch.setitem(engines.RIVALS, "absent", absent)
    found, missing = engines.choose(["absent"])
    assert found == []
    assert "not installed" in missing["absent"] and "--peers absent --install" in missing["absent"]


def test_unknown_names_are_refused() -> None:
    for arguments in (["--peers", "gpt"], ["--only", "speed"], ["--quant", "q3"]):
        done = run(*arguments)
        assert done.returncode == 2 and arguments[1] in done.stderr


@pytest.mark.parametrize("command", ["compare", "ladder"])
def test_folder_of_safetensors_is_refused_before_anything_is_made(command: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    words = [sys.executable, "-m", "typebar", "bench", command, "-m", str(tmp_path)]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert f"needs a GGUF file: {tmp_path} is a folder of safetensors" in done.stderr


def test_work_of_others_is_noticed() -> None:
    """A process that this one has not waited for counts as somebody else's."""
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        with Watch() as watch:
            subprocess.run([sys.executable, "-c", "import time; time.sleep(1)"], check=True)
    finally:
        busy.kill()
        busy.wait()
    assert watch.others > 0.1 and watch.disturbed


def test_busy_process_has_the_last_processor_and_is_no_disturbance() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    with busy_process() as pid:
        assert os.sched_getaffinity(pid) == {max(os.sched_getaffinity(0))}
        while (used := _seconds_of(pid)) < 0.2:
            time.sleep(0.01)
    assert not Path(f"/proc/{pid}").exists()
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before >= used, "counted as our own work"


def _seconds_of(pid: int) -> float:
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])
    return ticks / os.sysconf("SC_CLK_TCK")


def test_common_prefix_ends_where_either_does() -> None:
    assert common_prefix([1, 2, 3], [1, 2, 4, 5]) == 2
    assert common_prefix([1, 2], [1, 2, 3]) == common_prefix([1, 2, 3], [1, 2]) == 2
    assert common_prefix([], [1]) == 0


def test_percentile_is_a_value_that_was_seen() -> None:
    assert percentile([3.0, 1.0, 2.0, 4.0], 95) == 4.0
    assert percentile([3.0, 1.0, 2.0, 4.0], 50) == 2.0
