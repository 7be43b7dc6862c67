import json
import signal
import time

import pytest
from commands import start, typebar

from tiny_model import write_tiny_gguf

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("The ferry crossed the river at noon, and nobody on board could say who steered it. " * 3)
    return path


def test_quantizations_side_by_side(tiny_path, text, tmp_path):
    report, chart = tmp_path / "report.json", tmp_path / "chart.png"
    result = typebar(
        "eval", tiny_path, "--quant", "f32,q8,q4", "--text", text, "--tasks", "fizzbuzz,zh-qa", "--limit", 2,
        "--json", report, "--plot", chart,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    found = json.loads(report.read_text())
    reference, f32, q8, q4 = found["rows"]
    assert reference["is_reference"] and reference["text"]["mean_kl"] is None
    assert f32["text"]["perplexity"] == reference["text"]["perplexity"]
    assert f32["text"]["mean_kl"] < 1e-6 < q8["text"]["mean_kl"] < q4["text"]["mean_kl"]
    assert q4["token_bytes"] < q8["token_bytes"] < f32["token_bytes"] and f32["bits_per_weight"] == 32
    assert q4["texts"] == {str(text): q4["text"]} and q4["text"]["tokens"] > 100
    for row in (f32, q8, q4):
        assert row["decode_tps"] > 0
        assert {name: task["problems"] for name, task in row["tasks"].items()} == {"fizzbuzz": 2, "zh-qa": 2}
        assert all(len(task["answers"]) == 2 and task["pass_percent"] == 0 for task in row["tasks"].values())
    assert chart.read_bytes().startswith(PNG)
    for quantization in ("f32", "q8", "q4"):
        assert f"tiny.gguf@{quantization} " in result.stdout
    assert "FIZZBUZZ" in result.stdout and "tiny.gguf@q4: zh-qa" in result.stderr


def test_real_model(coder_path, text, tmp_path):
    report = tmp_path / "report.json"
    result = typebar(
        "eval", coder_path, "--text", text, "--tokens", 40, "--tasks", "zh-qa,fizzbuzz", "--limit", 1, "--json", report
    )
    assert result.returncode == 0, result.stderr
    _, row = json.loads(report.read_text())["rows"]
    assert row["text"]["tokens"] == 39 and row["text"]["perplexity"] < 60
    assert 0 < row["text"]["mean_kl"] < 0.01 and row["text"]["same_top_percent"] > 90
    assert row["tasks"]["zh-qa"]["passed"] == 1 and row["tasks"]["fizzbuzz"]["passed"] == 1


def test_another_model_as_reference(tiny_path, text, tmp_path):
    other = write_tiny_gguf(tmp_path / "other.gguf", seed=5)
    report = tmp_path / "report.json"
    arguments = ("eval", f"{tiny_path}@q8", "--text", text, "--json", report)
    assert typebar(*arguments, "--against", other.path).returncode == 0
    reference, row = json.loads(report.read_text())["rows"]
    assert reference["file"] == "other.gguf" and reference["quantization"] == "f32"
    assert row["quantization"] == "q8" and row["text"]["mean_kl"] > 0.1


def test_what_auto_came_to_is_shown(tiny_path, text, tmp_path):
    report = tmp_path / "report.json"
    result = typebar("eval", tiny_path, "--quant", "auto", "--text", text, "--json", report)
    assert result.returncode == 0, result.stderr
    _, row = json.loads(report.read_text())["rows"]
    assert row["quantization"] in ("keep", "q8")
    assert f"tiny.gguf@{row['quantization']} " in result.stdout and "@auto" not in result.stdout


def test_name_on_this_disk_may_end_in_a_quantization(text, tmp_path):
    model = write_tiny_gguf(tmp_path / "m.gguf").path.rename(tmp_path / "m.gguf@q8")
    (tmp_path / "m@q8").mkdir()
    model.rename(tmp_path / "m@q8" / "m.gguf")
    result = typebar("eval", tmp_path / "m@q8", "--text", text)
    assert result.returncode == 0, result.stderr
    assert "m@q8@keep " in result.stdout


def test_context_shorter_than_a_window(text, tmp_path):
    model = write_tiny_gguf(tmp_path / "short.gguf", context_length=32)
    report = tmp_path / "report.json"
    result = typebar("eval", f"{model.path}@q8", "--text", text, "--json", report)
    assert result.returncode == 0, result.stderr
    found = json.loads(report.read_text())
    assert found["window"] == 32 and found["rows"][1]["text"]["tokens"] > 100


def test_tasks_without_texts(tiny_path, tmp_path):
    chart = tmp_path / "chart.png"
    result = typebar("eval", tiny_path, "--text", "none", "--tasks", "zh-qa", "--limit", 1, "--plot", chart)
    assert result.returncode == 0, result.stderr
    assert "reference" not in result.stderr and "PPL" not in result.stdout
    assert chart.read_bytes().startswith(PNG)


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["nowhere.gguf"], 1, "nowhere.gguf does not exist"),
        (["{tiny}", "--quant", "q8,q3"], 2, "quantization must be one of"),
        (["{tiny}", "--quant", ","], 2, "--quant must be names by commas"),
        (["{tiny}", "--tasks", "gsm8k"], 2, "--tasks must be names out of"),
        (["{tiny}", "--text", "/nowhere.txt"], 1, "/nowhere.txt cannot be read: No such file"),
        (["{tiny}", "--text", "{folder}"], 1, "cannot be read: Is a directory"),
        (["{tiny}", "--text", "{tiny}"], 1, "tiny.gguf is not UTF-8 text"),
        (["{tiny}", "--text", "/dev/null"], 1, "/dev/null is empty"),
        (["{tiny}", "--text", "none"], 1, "nothing to measure"),
        (["{tiny}", "--json", "/nowhere/report.json"], 1, "/nowhere/report.json cannot be written"),
        (["{tiny}", "--plot", "{folder}"], 1, "it is a folder"),
        (["{tiny}", "--against", "{tiny}@q4"], 1, "so give --against {tiny}"),
        (["{tiny}", "--against", "{other}"], 1, "have different vocabularies (285 and 284 tokens)"),
    ],
)
def test_errors_come_before_work(tiny_path, tmp_path, arguments, code, named):
    names = {"tiny": tiny_path, "folder": tmp_path, "other": tmp_path / "other.gguf"}
    if "{other}" in arguments:
        names["other"] = _smaller(names["other"])
        named = "have different vocabularies"
    result = typebar("eval", *(word.format(**names) for word in arguments))
    named = named.format(tiny=tiny_path)
    assert result.returncode == code and named in result.stderr and "Traceback" not in result.stderr
    assert "texts" not in result.stderr and result.stdout == ""


def _smaller(path):
    """A tiny model one of whose merged tokens is another word."""
    import tiny_model

    original = tiny_model.MERGES
    tiny_model.MERGES = [*original[:-1], "x y"]
    try:
        return write_tiny_gguf(path).path
    finally:
        tiny_model.MERGES = original


def test_ctrl_c_ends_it_while_answers_are_written(tiny_path):
    process = start("eval", tiny_path, "--text", "none", "--tasks", "humaneval")
    for line in process.stderr:
        if b"humaneval" in line:
            break
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and b"Traceback" not in errors
