"""Activation-aware scaling (AWQ, arXiv 2306.00978): inputs that are large are multiplied by larger weights.

A column of weights times s and its input divided by s give the same product, but a weight that is larger within its
group is rounded more finely relative to itself. 1/s is folded into what makes the input: the norm before q, k, v and
before gate, up; the rows of v before o; the rows of up before down. So the model computes what it did before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from typebar.model.dequantize import Floats
from typebar.model.spec import ModelSpec
from typebar.quantize.forward import ForwardPass, LayerInputs
from typebar.quantize.rounding import Grid, round_weights
from typebar.quantize.stage import Stage
from typebar.quantize.weights import Scales, Weights

EXPONENTS = np.arange(0, 1, 0.1)  # of the mean magnitude of an input, that its scale is
SAMPLED_TOKENS = 512  # that errors are measured on
TINY = np.float32(np.finfo(np.float32).tiny)
SMALLEST = np.float32(1e-4)  # of the mean magnitude of all inputs: what an input counts as at least


@dataclass(frozen=True, slots=True)
class Calibration:
    """By canonical name: how tensors are scaled, and what the squared error at each input of a matrix counts."""

    scales: dict[str, Scales] = field(default_factory=dict)
    importance: dict[str, Floats] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Site:
    """Matrices that share an input `x` [tokens, inputs], and the tensor rows (or norm) that it is made of.

    `repeats`: as many heads in turn have their input from the same row.
    """

    matrices: Sequence[str]
    x: Floats
    before: Sequence[str]
    repeats: int = 1
    head_dim: int = 0

    def magnitude(self) -> Floats:
        """Of each input, the mean over tokens; the same for inputs made of the same row."""
        mean = self.spread(self.gather(np.abs(self.x).mean(axis=0)))
        magnitude: Floats = np.maximum(mean, SMALLEST * mean.mean() + TINY)
        return magnitude

    def gather(self, values: Floats) -> Floats:
        """A value for each row before."""
        if self.repeats == 1:
            return values
        means: Floats = values.reshape(-1, self.repeats, self.head_dim).mean(axis=1)
        return means.reshape(-1)

    def spread(self, values: Floats) -> Floats:
        """A value for each input."""
        if self.repeats == 1:
            return values
        return np.repeat(values.reshape(-1, 1, self.head_dim), self.repeats, axis=1).reshape(-1)


def calibrate(
    spec: ModelSpec,
    weights: Weights,
    windows: Sequence[Sequence[int]],
    grid: Grid,
    stays: Set[str],
    stage: Stage,
) -> Calibration:
    """The scales with the smallest output error over `windows` of token ids. One layer is in memory at a time.

    Matrices that share an input and all stay as they are, by canonical name, are not scaled.
    """
    found = Calibration()
    forward = ForwardPass(spec, weights, windows)
    sample = np.random.default_rng(0)
    with stage("calibrating", spec.num_layers) as done:
        for index in range(spec.num_layers):
            for site in sites(spec, index, forward.layer(index)):
                if not stays >= set(site.matrices):
                    _add(found, site, weights, grid, sample)
            done(1)
    return found


def sites(spec: ModelSpec, index: int, inputs: LayerInputs) -> Iterator[Site]:
    """Those of the layer `index`, in the order in which they are computed."""

    def names(*parts: str) -> list[str]:
        return [f"layers.{index}.{part}" for part in parts]

    v = names("v", "v_bias") if spec.qkv_bias else names("v")
    yield Site(names("q", "k", "v"), inputs.qkv, names("attn_norm"))
    yield Site(names("o"), inputs.o, v, spec.num_heads // spec.num_kv_heads, spec.head_dim)
    yield Site(names("gate", "up"), inputs.gate_up, names("mlp_norm"))
    yield Site(names("down"), inputs.down, names("up"))


def _add(found: Calibration, site: Site, weights: Weights, grid: Grid, sample: np.random.Generator) -> None:
    cols = site.x.shape[1]
    if cols % grid.group:
        return
    rows = sample.permutation(len(site.x))[:SAMPLED_TOKENS]
    importance = np.square(site.x).mean(axis=0)
    matrices = [weights.read(name) for name in site.matrices]
    scales = _best_scales(matrices, site.x[rows], site.magnitude(), importance, grid)
    for name in site.matrices:
        found.importance[name] = importance / np.square(scales)
        found.scales[name] = Scales(cols=scales)
    inverse: Floats = np.float32(1) / site.gather(scales)
    for name in site.before:
        before = found.scales.get(name)
        found.scales[name] = Scales(rows=inverse, cols=before.cols if before else None)


def _best_scales(matrices: Sequence[Floats], x: Floats, magnitude: Floats, importance: Floats, grid: Grid) -> Floats:
    """Scales [inputs] around 1 with the smallest error of the outputs, each matrix's relative to its own outputs."""
    best, best_error = np.ones_like(magnitude), float("inf")
    sizes = [float(np.square(x @ matrix.T).sum()) + float(TINY) for matrix in matrices]
    for exponent in EXPONENTS:
        scales = magnitude ** np.float32(exponent)
        scales /= np.sqrt(scales.max() * scales.min())
        counts = importance / np.square(scales)
        error = 0.0
        for matrix, size in zip(matrices, sizes, strict=True):
            rounded = round_weights(matrix * scales, grid.bits, grid.group, grid.zero, counts).values()
            error += float(np.square(x @ (rounded / scales - matrix).T).sum()) / size
        if error < best_error:
            best, best_error = scales, error
    return best
