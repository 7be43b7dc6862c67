import json
import os
import re

import pytest
from commands import start, typebar

from tiny_model import write_tiny_gguf


def test_table_of_the_real_model(coder_path, tmp_path):
    target = tmp_path / "plan.json"
    result = typebar("inspect", coder_path, "--context", 2048, "--json", target)
    assert result.returncode == 0, result.stderr
    assert re.search(r"^layers\.23\.down +Q4_K +q4 +896 × 4864 +5 +2723840$", result.stdout, re.MULTILINE)
    assert re.search(r"^attention +14 heads of 64, 2 for keys and values", result.stdout, re.MULTILINE)
    report = json.loads(target.read_text())
    assert report["file_bytes"] == coder_path.stat().st_size and report["context"] == 2048
    assert report["kv_token_bytes"] == 2 * 24 * 2 * 64 * 2
    assert len(report["tensors"]) == 291 and report["architecture"]["vocab_size"] == 151936
    assert result.stdout.count("\nlayers.") == 24 * 12


def test_windows_are_told(tmp_path):
    write_tiny_gguf(tmp_path / "m.gguf", "gemma3", num_layers=4)
    words = " ".join(typebar("inspect", tmp_path / "m.gguf").stdout.split())
    assert "4 heads of 16, 2 for keys and values, 2 layers see the last 100 tokens" in words


def test_expected_memory_is_that_of_a_process(coder_path, tmp_path):
    """A context of 512 tokens is filled; what a process takes beside weights and keys is known to 10 MB."""
    target = tmp_path / "plan.json"
    typebar("inspect", coder_path, "--context", 512, "--json", target)
    prompt = "one two three four five " * 90
    answer = typebar("run", "-m", coder_path, "--max-model-len", 512, "--max-tokens", 2, "--json", stdin=prompt)
    measured = json.loads(answer.stdout)
    assert 450 < measured["prompt_tokens"] < 512
    expected = json.loads(target.read_text())["memory_bytes"]
    assert expected / 1e6 == pytest.approx(measured["timings"]["peak_rss_mb"], rel=0.05)


def test_quantization_changes_the_plan(coder_path):
    small = typebar("inspect", coder_path, "--quant", "q4").stdout
    assert re.search(r"^layers\.0\.q +Q5_0 +q4 ", small, re.MULTILINE)


def test_keys_and_values_in_8_bits_change_the_plan(coder_path, tmp_path):
    target = tmp_path / "plan.json"
    result = typebar("inspect", coder_path, "--kv-dtype", "q8", "--context", 2048, "--json", target)
    assert re.search(r"^keys, values +\S+ \S+ a token, q8 *$", result.stdout, re.MULTILINE)
    report = json.loads(target.read_text())
    assert report["kv_dtype"] == "q8" and report["kv_token_bytes"] == 2 * 24 * 2 * (64 + 4)


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["nowhere.gguf"], 1, "nowhere.gguf does not exist"),
        (["no-such-model"], 1, "no-such-model"),
        (["{tiny}", "--quant", "q3"], 2, "quantization must be one of"),
        (["{tiny}", "--kv-dtype", "q4"], 2, "kv_dtype must be one of f16, q8"),
        (["{tiny}", "--context", "4096"], 2, "--context must be at most 2048"),
        (["{tiny}", "--json", "/nowhere/plan.json"], 1, "/nowhere/plan.json cannot be written"),
        (["{tiny}", "--json", "/"], 1, "/ cannot be written"),
        ([], 2, "MODEL"),
    ],
)
def test_errors_name_the_thing(tiny_path, arguments, code, named):
    result = typebar("inspect", *(word.format(tiny=tiny_path) for word in arguments))
    assert result.returncode == code and named in result.stderr and "Traceback" not in result.stderr
    assert result.stdout == ""


def test_reader_that_has_gone(tiny_path):
    read, write = os.pipe()
    os.close(read)
    process = start("inspect", tiny_path, stdout=write)
    os.close(write)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 141 and not errors


def test_output_that_cannot_express_a_character(tiny_path, tmp_path):
    odd = tmp_path / "模型.gguf"
    odd.write_bytes(tiny_path.read_bytes())
    result = typebar("inspect", odd, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert result.returncode == 0, result.stderr
    assert "??.gguf" in result.stdout
