"""The forward pass against the oracle, and scales that change nothing but what rounding costs."""

from contextlib import contextmanager

import numpy as np
import pytest

from tiny_model import tiny_forward, write_tiny_gguf
from typebar.bench.quality import typebar_logits
from typebar.eval import texts
from typebar.eval.texts import read_texts
from typebar.model.checkpoint import open_checkpoint
from typebar.quantize.calibration_text import calibration_windows, read_calibration
from typebar.quantize.forward import ForwardPass
from typebar.quantize.quantize import Request, quantize
from typebar.quantize.rounding import Grid, Zero
from typebar.quantize.scaling import calibrate
from typebar.quantize.weights import Weights

ARCHITECTURES = ["qwen2", "qwen3", "llama"]
LOUD = slice(3, 64, 16)  # inputs that are 30 times as large as the others


@contextmanager
def silent(title, total):
    yield lambda done: None


def random_windows(count=3, length=50):
    return np.random.default_rng(3).integers(0, 288, (count, length)).tolist()


def logits_of(checkpoint, weights, windows):
    forward = ForwardPass(checkpoint.spec, weights, windows)
    for index in range(checkpoint.spec.num_layers):
        forward.layer(index)
    x = forward.hidden
    x = x / np.sqrt(np.square(x).mean(axis=1, keepdims=True) + checkpoint.spec.rms_norm_eps)
    return x * weights.read("final_norm") @ weights.read("embed").T


def with_loud_inputs(path, architecture="qwen2"):
    """A tiny model as trained ones are: a few channels after each norm are far larger, their weights smaller."""
    write_tiny_gguf(path, architecture)
    for name, tensor in open_checkpoint(path).tensors.items():
        part = name.rsplit(".", 1)[-1]
        if part not in ("attn_norm", "mlp_norm", "q", "k", "v", "gate", "up"):
            continue
        values = tensor.read().view(np.float32).reshape(tensor.shape)
        values[..., LOUD] *= 30 if part.endswith("norm") else 1 / 6
        with path.open("r+b") as file:
            file.seek(tensor.offset)
            file.write(values.tobytes())
    return path


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_forward_pass_equals_double_precision(architecture, tmp_path):
    model = write_tiny_gguf(tmp_path / "m.gguf", architecture)
    checkpoint, windows = open_checkpoint(model.path), random_windows()
    logits = logits_of(checkpoint, Weights(checkpoint), windows)
    expected = np.concatenate([tiny_forward(model, window) for window in windows])
    assert np.abs(logits - expected).max() < 2e-5 * np.abs(expected).max()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_scales_change_no_output(architecture, tmp_path):
    checkpoint, windows = open_checkpoint(with_loud_inputs(tmp_path / "m.gguf", architecture)), random_windows()
    found = calibrate(checkpoint.spec, Weights(checkpoint), windows, Grid(4, 32, Zero.CENTRE), set(), silent)
    assert found.scales["layers.0.q"].cols[LOUD].mean() > 1.5 * found.scales["layers.0.q"].cols.mean()
    assert all(np.isfinite(importance).all() for importance in found.importance.values())
    plain, scaled = (logits_of(checkpoint, Weights(checkpoint, scales), windows) for scales in (None, found.scales))
    assert np.abs(plain - scaled).max() < 2e-5 * np.abs(plain).max()


def divergence(expected, logits):
    p, q = (x - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)) - x.max(-1, keepdims=True)
            for x in (expected.astype(np.float64), logits.astype(np.float64)))  # fmt: skip
    return (np.exp(p) * (p - q)).sum(-1).mean()


@pytest.mark.parametrize("symmetric", [True, False])
def test_loud_inputs_cost_less(symmetric, tmp_path):
    source, text = with_loud_inputs(tmp_path / "m.gguf"), tmp_path / "text.txt"
    text.write_text("The ferry crossed the river at noon, and nobody on board could say who steered it. " * 20)
    made = {}
    for method, calibration in (("rtn", "builtin"), ("awq", str(text)), ("gptq", str(text))):
        made[method] = tmp_path / f"{method}.gguf"
        quantize(source, Request(made[method], 4, symmetric, method, calibration), silent)
    tokens = random_windows(1, 200)[0]
    expected = typebar_logits(source, tokens, "f32")
    rtn, *others = (divergence(expected, typebar_logits(path, tokens, "f32")) for path in made.values())
    assert min(others) > 0 and max(others) < 0.6 * rtn, (rtn, others)


def test_own_text_is_not_that_evaluated_on(coder_path):
    def lines(found):
        return {line.strip() for text in found for line in text.content.splitlines() if len(line.strip()) > 25}

    own = read_calibration("builtin")
    assert not lines(own) & lines(read_texts([texts.BUILTIN]))
    windows = calibration_windows(own, open_checkpoint(coder_path).build_tokenizer())
    assert sum(map(len, windows)) > 2000
