import numpy as np
import pytest

from typebar.model.dequantize import dequantize
from typebar.quantize.block_codes import ROUNDINGS, encode
from typebar.quantize.rounding import Zero, round_weights

gguf = pytest.importorskip("gguf")


def normal(rows=96, cols=256, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, cols)).astype(np.float32)


@pytest.mark.parametrize("type_name", ROUNDINGS)
def test_blocks_are_read_as_what_was_meant(type_name):
    weights = normal()
    rounding = ROUNDINGS[type_name]
    rounded = round_weights(weights, rounding.bits, 32, rounding.zero)
    raw = encode(rounded, type_name)
    expected = rounded.values()
    assert np.abs(dequantize(raw, type_name, weights.shape) - expected).max() < 1e-5
    kind = gguf.GGMLQuantizationType[type_name]
    assert np.abs(gguf.dequantize(raw.reshape(len(weights), -1), kind) - expected).max() < 1e-5


@pytest.mark.parametrize("type_name", ROUNDINGS)
def test_error_is_at_most_that_of_the_usual_rounding(type_name):
    weights = normal()
    rounding = ROUNDINGS[type_name]
    error = np.square(round_weights(weights, rounding.bits, 32, rounding.zero).values() - weights).mean()
    kind = gguf.GGMLQuantizationType[type_name]
    usual = np.square(gguf.dequantize(gguf.quantize(weights, kind), kind) - weights).mean()
    assert error <= usual * (0.97 if rounding.bits == 4 else 1.0), (error, usual)


def test_what_counts_more_is_rounded_more_finely():
    weights, importance = normal(), np.ones(256, np.float32)
    importance[::8] = 100
    for zero in Zero:
        even, uneven = (round_weights(weights, 4, 32, zero, counts).values() for counts in (None, importance))
        assert np.square(uneven - weights)[:, ::8].mean() < 0.8 * np.square(even - weights)[:, ::8].mean()


@pytest.mark.parametrize("zero", Zero)
def test_groups_of_one_value_and_of_zeros(zero):
    weights = np.zeros((2, 64), np.float32)
    weights[1] = 0.25
    assert np.abs(round_weights(weights, 4, 32, zero).values() - weights).max() < 1e-3


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e9])
def test_values_beyond_the_scales_are_refused(bad):
    weights = normal(4, 64)
    weights[1, 40] = bad
    for zero in Zero:
        with pytest.raises(ValueError, match="not a finite number, or too large"):
            round_weights(weights, 4, 32, zero)


def test_the_code_of_zero_is_a_code_where_the_scale_is_subnormal():
    weights = np.linspace(-1.3e-6, 0, 64, dtype=np.float32).reshape(2, 32)
    rounded = round_weights(weights, 4, 32, Zero.CODE)
    assert rounded.scales.any()
    codes = -rounded.offsets / rounded.scales.astype(np.float32)
    assert codes.max() <= 15
