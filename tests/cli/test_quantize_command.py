import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from commands import TYPEBAR, start, typebar

from tiny_model import write_tiny_gguf
from typebar.bench.quality import typebar_logits
from typebar.model.checkpoint import open_checkpoint
from typebar.model.dequantize import dequantize
from typebar.model.rope import RopeSpec

gguf = pytest.importorskip("gguf")


def quantized(source, to, *options):
    result = typebar("quantize", source, to, *options)
    assert result.returncode == 0, result.stderr
    return to


def weights_of(path):
    tensors = open_checkpoint(path).tensors
    return {name: dequantize(tensor.read(), tensor.type, tensor.shape) for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ((), "Q4_0"),
        (("--asymmetric",), "Q4_1"),
        (("--bits", 5), "Q5_0"),
        (("--bits", 5, "--asymmetric"), "Q5_1"),
        (("--bits", 8), "Q8_0"),
    ],
)
def test_tensors_and_metadata_for_the_reader_of_gguf(options, kind, tiny_path, tmp_path):
    old, new = gguf.GGUFReader(tiny_path), gguf.GGUFReader(quantized(tiny_path, tmp_path / "q.gguf", *options))
    assert [tensor.name for tensor in old.tensors] == [tensor.name for tensor in new.tensors]
    for before, after in zip(old.tensors, new.tensors, strict=True):
        assert before.shape.tolist() == after.shape.tolist()
        if len(before.shape) == 1:
            assert np.array_equal(before.data, after.data)
            continue
        assert after.tensor_type.name == ("Q8_0" if before.name == "token_embd.weight" else kind)
        error = gguf.dequantize(after.data, after.tensor_type) - before.data
        assert 0 < np.abs(error).mean() < 0.1 * np.abs(before.data).mean()
    changed = {"general.file_type", "general.quantization_version"}
    assert changed <= set(new.fields)
    for name in old.fields.keys() - changed:
        if not name.startswith("GGUF."):
            assert old.fields[name].types == new.fields[name].types, name
            assert np.array_equal(old.fields[name].contents(), new.fields[name].contents()), name


def test_split_model_becomes_one_file(tmp_path):
    rope = RopeSpec(theta=10_000.0, frequency_divisors=tuple(np.linspace(1, 4, 8)))
    source = write_tiny_gguf(
        tmp_path / "m.gguf", "llama", tied_embeddings=False, rope=rope, types="BF16", tensors_per_shard=5
    ).path
    made = quantized(source.with_name(source.name.replace("00001", "00002")), tmp_path / "q.gguf", "--bits", 8)
    before, after = weights_of(source), weights_of(made)
    assert before.keys() == after.keys()
    for name, weights in before.items():
        assert np.abs(after[name] - weights).max() < 0.01 * np.abs(weights).max()
    assert open_checkpoint(made).spec.rope.frequency_divisors == open_checkpoint(source).spec.rope.frequency_divisors


LLAMA_CPP = """
import json, sys
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx, params.n_parallel, params.n_gpu_layers = 128, 1, 0
params.fit_params = params.warmup = False
params.verbosity = 0
asked = dict(prompt=json.loads(sys.argv[2]), max_tokens=1, temperature=0, n_probs=20)
answer = xllamacpp.Server(params).handle_completions(asked)
top = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
print("\\n", json.dumps({entry["id"]: entry["logprob"] for entry in top}), sep="")
"""


@pytest.mark.parametrize("options", [(), ("--bits", 5, "--asymmetric")])
def test_llama_cpp_runs_it_as_we_do(options, smollm_path, tmp_path):
    """KL over the likeliest tokens; what is left between the engines is the rounding of activations."""
    pytest.importorskip("xllamacpp")
    made = quantized(smollm_path, tmp_path / "q.gguf", *options)
    tokens = open_checkpoint(made).build_tokenizer().encode("one, two, three, four, five, six, seven,")
    run = subprocess.run(
        [sys.executable, "-c", LLAMA_CPP, str(made), json.dumps(tokens)], capture_output=True, text=True, check=True
    )
    theirs = {int(id): value for id, value in json.loads(run.stdout.splitlines()[-1]).items()}
    logits = typebar_logits(made, tokens)[-1].astype(np.float64)
    ours = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    assert len(theirs) >= 20 and max(theirs, key=theirs.get) == ours.argmax()
    assert sum(np.exp(value) * (value - ours[id]) for id, value in theirs.items()) < 0.01


@pytest.mark.parametrize(
    ("to", "options", "told"),
    [
        ("q.bin", (), "DST must be the name of a file that ends in .gguf, or of a folder"),
        ("q.gguf", ("--method", "magic"), "--method must be rtn or awq or gptq"),
        ("q.gguf", ("--bits", 3), "--bits must be 4, 5 or 8, got 3"),
        ("q.gguf", ("--bits", 8, "--asymmetric"), "--asymmetric must be left away"),
        ("q.gguf", ("--group", 64), "--group must be 32 for a GGUF file; a folder takes 32, 64 and 128, got 64"),
        ("folder", ("--group", 16), "--group must be 32, 64 or 128, got 16"),
        ("folder", ("--bits", 5), "--bits must be 4 for a folder"),
        ("folder", ("--asymmetric",), "--asymmetric must be left away for a folder"),
        ("folder", ("--target-bpw", 5), "--target-bpw must be left away for a folder"),
        ("q.gguf", ("--target-bpw", 4.4), "--target-bpw must be bits a weight from 4.5 (Q4_0) to 8.5 (Q8_0), got 4.4"),
        ("q.gguf", ("--target-bpw", 5, "--target-kl", 0.1), "--target-kl must be left away with --target-bpw"),
        ("q.gguf", ("--calibration", "text.txt"), "--calibration must be left away"),
        ("q.gguf", ("--method", "awq", "--calibration", "/no/text.txt"), "/no/text.txt cannot be read"),
        ("nowhere/q.gguf", (), "make the folder"),
    ],
)
def test_wrong_use_is_told_before_the_model_is_looked_at(to, options, told, tmp_path):
    result = typebar("quantize", "/there/is/no/model.gguf", tmp_path / to, *options)
    assert result.returncode in (1, 2) and told in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_calibrated_on_a_text(tiny_path, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("The ferry crossed the river at noon, and nobody on board could say who steered it. " * 3)
    made = quantized(tiny_path, tmp_path / "q.gguf", "--method", "awq", "--calibration", text)
    before, after = (weights_of(path)["layers.0.attn_norm"] for path in (tiny_path, made))
    assert not np.allclose(before, after)
    assert sorted(tmp_path.iterdir()) == [made, text]


def test_mixed_types_are_told(tiny_path, tmp_path):
    result = typebar("quantize", tiny_path, tmp_path / "q.gguf", "--target-bpw", 5)
    assert result.returncode == 0, result.stderr
    model, *layers, total, last = result.stdout.splitlines()
    types = {name: tensor.type for name, tensor in open_checkpoint(tmp_path / "q.gguf").tensors.items()}
    assert model.split() == ["model", "embed", types["embed"]]
    for index, line in enumerate(layers):
        q, o, gate, down = (types[f"layers.{index}.{part}"] for part in ("q", "o", "gate", "down"))
        assert line.split() == [str(index), "q", "k", "v", q, "o", o, "gate", "up", gate, "down", down]
    assert len(layers) == 2 and total.startswith(("4.", "5.00 ")) and " bits a weight, KL 0.0" in total
    assert last.startswith(str(tmp_path / "q.gguf"))


def test_what_is_there_stays(tiny_path, tmp_path):
    there = tmp_path / "q.gguf"
    there.write_text("mine")
    result = typebar("quantize", tiny_path, there)
    assert result.returncode == 1 and "exists already" in result.stderr
    assert there.read_text() == "mine" and list(tmp_path.iterdir()) == [there]


@pytest.mark.parametrize("to", [("q.gguf",), ("folder", "--group", "32")])
def test_full_disk_leaves_nothing(to, tiny_path, tmp_path):
    """The limit on the size of files stands for it: a write fails half way."""
    command = ["bash", "-c", 'ulimit -f 40; exec "$@"', "bash", *TYPEBAR, "quantize", str(tiny_path), *to]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 1 and "too large" in result.stderr.lower()
    assert list(tmp_path.iterdir()) == []


def test_interrupt_leaves_nothing(smollm_path: Path, tmp_path: Path):
    process = start("quantize", smollm_path, tmp_path / "q.gguf")
    while not list(tmp_path.iterdir()):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 130 and list(tmp_path.iterdir()) == []


def test_damaged_weight_is_named(tmp_path):
    source = write_tiny_gguf(tmp_path / "m.gguf").path
    tensor = open_checkpoint(source).tensors["layers.1.up"]
    with source.open("r+b") as file:
        file.seek(tensor.offset)
        file.write(np.float32(np.nan).tobytes())
    result = typebar("quantize", source, tmp_path / "q.gguf")
    assert result.returncode == 1 and "'layers.1.up' cannot be rounded to 4 bits" in result.stderr
    assert list(tmp_path.iterdir()) == [source]
