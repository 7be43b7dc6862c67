from dataclasses import replace
from operator import truediv

import numpy as np
import pytest

from typebar.model.rope import RopeSpec, half_split_rows, inverse_frequencies

SHORT = tuple(1.0 + 0.01 * i for i in range(32))
LONG = tuple(1.0 + 0.5 * i for i in range(32))
CASES = {
    "none": (RopeSpec(1e6), {"rope_type": "default"}),
    "linear": (RopeSpec(1e4, "linear", factor=4.0), {"rope_type": "linear", "factor": 4.0}),
    "dynamic within": (
        RopeSpec(1e4, "dynamic", factor=2.0, original_context_length=8192),
        {"rope_type": "dynamic", "factor": 2.0},
    ),
    "yarn": (
        RopeSpec(1e6, "yarn", factor=4.0, original_context_length=32768),
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    ),
    "yarn with all options": (
        RopeSpec(1e4, "yarn", 8.0, 4096, attention_factor=1.3, beta_fast=20.0, beta_slow=2.0),
        {
            "rope_type": "yarn",
            "factor": 8.0,
            "original_max_position_embeddings": 4096,
            "attention_factor": 1.3,
            "beta_fast": 20.0,
            "beta_slow": 2.0,
        },
    ),
    "llama3": (
        RopeSpec(5e5, "llama3", factor=32.0, original_context_length=8192, low_freq_factor=1.0, high_freq_factor=4.0),
        {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ),
    "longrope short": (
        RopeSpec(1e4, "longrope", 4.0, 4096, short_divisors=SHORT, long_divisors=LONG),
        {
            "rope_type": "longrope",
            "factor": 4.0,
            "short_factor": list(SHORT),
            "long_factor": list(LONG),
            "original_max_position_embeddings": 4096,
        },
    ),
}
CASES["dynamic beyond"] = CASES["dynamic within"]
CASES["longrope long"] = CASES["longrope short"]
POSITIONS = {"dynamic within": 4096, "dynamic beyond": 20_000, "longrope short": 4096, "longrope long": 4097}


@pytest.mark.parametrize("case", CASES)
def test_equals_transformers(case):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rope, parameters = CASES[case]
    config = LlamaConfig(
        hidden_size=512,
        num_attention_heads=8,
        head_dim=64,
        max_position_embeddings=8192,
        rope_parameters={"rope_theta": rope.theta, **parameters},
    )
    max_position = POSITIONS.get(case, 8192)
    if rope.scaling == "none":
        expected, factor = LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    else:
        expected, factor = ROPE_INIT_FUNCTIONS[rope.scaling](config, None, seq_len=max_position)
    ours, our_factor = inverse_frequencies(rope, 64, max_position)
    assert ours.typecode == "f"
    np.testing.assert_allclose(ours, expected.numpy(), rtol=3e-6)
    assert our_factor == pytest.approx(factor, rel=1e-9)


def test_scalings_differ_from_each_other():
    """A guard for the test above: the parameters are such that each method does something."""
    computed = {case: inverse_frequencies(rope, 64, POSITIONS.get(case, 8192))[0] for case, (rope, _) in CASES.items()}
    plain = {theta: inverse_frequencies(RopeSpec(theta), 64, 1)[0] for theta in (1e4, 5e5, 1e6)}
    for case, (rope, _) in CASES.items():
        assert (case in ("none", "dynamic within")) == np.array_equal(computed[case], plain[rope.theta]), case
    assert not np.array_equal(computed["longrope short"], computed["longrope long"])


def test_divisors_of_a_file_equal_the_llama3_formula():
    """Converters store what the llama3 method does as divisors of the plain frequencies."""
    llama3 = CASES["llama3"][0]
    scaled, plain = inverse_frequencies(llama3, 64, 1)[0], inverse_frequencies(RopeSpec(5e5), 64, 1)[0]
    stored = tuple(map(truediv, plain, scaled))
    ours, factor = inverse_frequencies(RopeSpec(5e5, frequency_divisors=stored), 64, 1)
    np.testing.assert_allclose(ours, scaled, rtol=1e-6)
    assert factor == 1.0


def test_divisors_of_another_length_are_refused():
    with pytest.raises(ValueError, match="31 frequency divisors for a head of 64, expected 32"):
        inverse_frequencies(replace(RopeSpec(1e4), frequency_divisors=(1.0,) * 31), 64, 1)


def test_half_split_rows_undo_the_order_of_interleaved_files():
    """Rotating pairs (2i, 2i+1) of the file's rows gives the scores that half-split rotation gives after reordering."""
    heads, dim, rng = 3, 8, np.random.default_rng(0)
    rows = half_split_rows(heads, dim)
    assert sorted(rows) == list(range(heads * dim))
    q, k = rng.standard_normal((2, heads * dim))
    frequencies = np.asarray(inverse_frequencies(RopeSpec(100.0), dim, 64)[0])

    def interleaved(x: np.ndarray, position: int) -> np.ndarray:
        pairs = x.reshape(heads, dim // 2, 2)
        turned = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * position * frequencies)
        return np.stack([turned.real, turned.imag], -1).reshape(heads, dim)

    def half_split(x: np.ndarray, position: int) -> np.ndarray:
        first, second = np.split(x.reshape(heads, dim), 2, axis=1)
        turned = (first + 1j * second) * np.exp(1j * position * frequencies)
        return np.concatenate([turned.real, turned.imag], axis=1)

    scores = (interleaved(q, 9) * interleaved(k, 4)).sum(axis=1)
    np.testing.assert_allclose((half_split(q[rows], 9) * half_split(k[rows], 4)).sum(axis=1), scores, rtol=1e-12)
