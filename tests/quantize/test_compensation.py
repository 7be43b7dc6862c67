"""Rounding that makes up for its errors: what it does to outputs, and where there is nothing to make up for."""

from contextlib import contextmanager

import numpy as np
import pytest

from tiny_model import write_tiny_gguf
from typebar.errors import ModelFileError
from typebar.model.checkpoint import open_checkpoint
from typebar.quantize.compensation import InputProducts, compensate, round_compensated
from typebar.quantize.rounding import Grid, Zero, round_weights
from typebar.quantize.weights import Weights

GRIDS = [Grid(4, 32, Zero.CENTRE), Grid(4, 32, Zero.ANYWHERE), Grid(5, 64, Zero.CENTRE), Grid(8, 32, Zero.CENTRE)]


@contextmanager
def silent(title, total):
    yield lambda done: None


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("grid", GRIDS)
def test_inputs_that_go_together_leave_smaller_errors(grid):
    """Inputs from 24 sources: 320 columns, more than two blocks, of which the last is not whole."""
    x = normal(1000, 24) @ normal(24, 320, seed=1) + 0.1 * normal(1000, 320, seed=2)
    weights = normal(48, 320, seed=3)
    nearest = round_weights(weights, grid.bits, grid.group, grid.zero).values()
    made_up = round_compensated(weights, InputProducts.of(x), grid)
    assert made_up.codes.max() < 1 << grid.bits
    errors = [np.square(x @ (rounded - weights).T).mean() for rounded in (nearest, made_up.values())]
    assert errors[1] < 0.5 * errors[0]


@pytest.mark.parametrize("grid", GRIDS)
def test_inputs_that_do_not_go_together_are_rounded_to_the_nearest(grid):
    weights = normal(16, 256)
    nearest = round_weights(weights, grid.bits, grid.group, grid.zero)
    made_up = round_compensated(weights, InputProducts.of(np.eye(256, dtype=np.float32)), grid)
    assert np.array_equal(made_up.scales, nearest.scales) and np.array_equal(made_up.offsets, nearest.offsets)
    assert (made_up.codes != nearest.codes).mean() < 1e-3  # a weight half way between two codes


def test_input_that_is_always_zero():
    x = normal(100, 64)
    x[:, 5] = 0
    assert np.isfinite(round_compensated(normal(8, 64, seed=1), InputProducts.of(x), GRIDS[0]).values()).all()


def test_weight_that_is_not_finite_is_told_by_name(tmp_path):
    checkpoint = open_checkpoint(write_tiny_gguf(tmp_path / "m.gguf", "qwen2").path)
    weights = Weights(checkpoint)
    broken = weights.read("layers.1.gate")
    broken[3, 3] = np.inf
    weights.read = lambda name: broken if name == "layers.1.gate" else Weights.read(weights, name)
    with np.errstate(all="ignore"), pytest.raises(ModelFileError, match=r"layers\.1\.gate.*cannot be rounded"):
        compensate(checkpoint.spec, weights, [[1, 2, 3, 4]], {"layers.1.gate": GRIDS[0]}, silent)
