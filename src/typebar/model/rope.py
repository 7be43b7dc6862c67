"""Rotary position embedding: the frequencies of each scaling method, and the two row orders of q and k.

A head vector of `head_dim` values is rotated in pairs; pair i turns by position · inverse_frequencies[i] radians.
typebar pairs value i with value i + head_dim/2 ("half-split"); GGUF files of the llama architecture pair 2i with 2i + 1
("interleaved") and store the rows of q and k accordingly.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from operator import mul, truediv
from typing import Literal

RopeScaling = Literal["none", "linear", "yarn", "llama3", "dynamic", "longrope"]


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """How positions become angles. Fields that a scaling method does not use keep their defaults.

    `attention_factor` multiplies cos and sin; None means the method's own value. `frequency_divisors` [head_dim/2]
    divide the frequencies last (the `rope_freqs.weight` of Llama 3 files). `short_divisors` and `long_divisors`
    [head_dim/2] belong to longrope.
    """

    theta: float
    scaling: RopeScaling = "none"
    factor: float = 1.0
    original_context_length: int = 0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    frequency_divisors: tuple[float, ...] | None = None
    short_divisors: tuple[float, ...] = ()
    long_divisors: tuple[float, ...] = ()


def inverse_frequencies(rope: RopeSpec, head_dim: int, max_position: int) -> tuple[array[float], float]:
    """Radians per position for each pair, float32 [head_dim/2], and the factor on cos and sin.

    `max_position` is the longest context that will be used: "dynamic" and "longrope" depend on it, so a request's
    tokens do not change their angles while it grows. Computed in float64. Formulas: transformers'
    modeling_rope_utils.py; YaRN: arXiv 2309.00071; LongRoPE: arXiv 2402.13753. Raises ValueError for divisors of
    another length than head_dim/2.
    """
    theta = _dynamic_theta(rope, head_dim, max_position) if rope.scaling == "dynamic" else rope.theta
    frequencies = [theta ** -(i / head_dim) for i in range(0, head_dim, 2)]
    match rope.scaling:
        case "linear":
            frequencies = [frequency / rope.factor for frequency in frequencies]
        case "yarn":
            frequencies = list(map(mul, frequencies, _yarn_scales(rope, head_dim)))
        case "llama3":
            frequencies = [frequency * _llama3_scale(rope, frequency) for frequency in frequencies]
        case "longrope":
            is_long = max_position > rope.original_context_length
            frequencies = _divided(frequencies, rope.long_divisors if is_long else rope.short_divisors)
    if rope.frequency_divisors is not None:
        frequencies = _divided(frequencies, rope.frequency_divisors)
    return array("f", frequencies), attention_factor(rope)


def attention_factor(rope: RopeSpec) -> float:
    """The factor on cos and sin: as given, or what the scaling method derives from its stretch `factor`."""
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.factor <= 1:
        return 1.0
    if rope.scaling == "yarn":
        return 0.1 * math.log(rope.factor) + 1.0
    if rope.scaling == "longrope":
        return math.sqrt(1 + math.log(rope.factor) / math.log(rope.original_context_length))
    return 1.0


def half_split_rows(num_heads: int, head_dim: int) -> list[int]:
    """Which row of an interleaved q or k matrix is row r of the half-split one: `half_split = interleaved[rows]`."""
    return [row for head in range(num_heads) for half in (0, 1)
            for row in range(head * head_dim + half, (head + 1) * head_dim, 2)]  # fmt: skip


def _divided(frequencies: list[float], divisors: tuple[float, ...]) -> list[float]:
    if len(divisors) != len(frequencies):
        raise ValueError(
            f"{len(divisors)} frequency divisors for a head of {2 * len(frequencies)}, expected {len(frequencies)}"
        )
    return list(map(truediv, frequencies, divisors))


def _dynamic_theta(rope: RopeSpec, head_dim: int, max_position: int) -> float:
    """NTK-aware base for contexts beyond the trained length; the trained base up to there."""
    trained = rope.original_context_length
    stretch = rope.factor * max(max_position, trained) / trained - (rope.factor - 1)
    return float(rope.theta * stretch ** (head_dim / (head_dim - 2)))


def _yarn_scales(rope: RopeSpec, head_dim: int) -> list[float]:
    """1 for pairs that turn often within the trained context, 1/factor for slow ones, a ramp between."""

    def pair_turning(turns: float) -> float:
        """The (fractional) pair that makes `turns` full turns over the trained context."""
        return head_dim * math.log(rope.original_context_length / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low = max(math.floor(pair_turning(rope.beta_fast)), 0)
    high = min(math.ceil(pair_turning(rope.beta_slow)), head_dim - 1)
    ramps = [_unit((pair - low) / max(high - low, 0.001)) for pair in range(head_dim // 2)]
    return [1 - ramp + ramp / rope.factor for ramp in ramps]


def _llama3_scale(rope: RopeSpec, frequency: float) -> float:
    """1 for short wavelengths, 1/factor for long ones, and between them a mix by turns over the trained context."""
    turns = rope.original_context_length * frequency / (2 * math.pi)
    keep = _unit((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor))
    return keep + (1 - keep) / rope.factor


def _unit(value: float) -> float:
    """The nearest value from 0 to 1."""
    return min(max(value, 0.0), 1.0)
