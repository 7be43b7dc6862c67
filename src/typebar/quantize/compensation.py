"""Rounding that makes up for its errors (GPTQ, arXiv 2210.17323): a column at a time, the columns that are still to be
rounded take over what the last one got wrong, as far as inputs go together.

With H = XᵀX of the inputs X [tokens, cols] and the upper triangular U, UᵀU = H⁻¹, an error e at column j is least for
the outputs when the columns k > j change by −e·U[j, k] / U[j, j].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from typebar.errors import ModelFileError
from typebar.model.dequantize import Floats
from typebar.model.spec import ModelSpec
from typebar.quantize.forward import ForwardPass
from typebar.quantize.rounding import Grid, Rounded, round_weights
from typebar.quantize.scaling import sites
from typebar.quantize.stage import Stage
from typebar.quantize.weights import Weights

BLOCK = 128  # columns that are corrected one by one; those behind them take all corrections of a block at once
DAMPING = 0.01  # of the mean square of an input, added to each: inputs that never vary leave H without an inverse


@dataclass(frozen=True, slots=True)
class InputProducts:
    """What rounding needs of the inputs [tokens, cols] of matrices: the diagonal of H, and U."""

    importance: Floats
    factor: Floats

    @staticmethod
    def of(x: Floats) -> InputProducts:
        products = (x.T @ x).astype(np.float64)
        diagonal = np.diagonal(products).copy()
        products[np.diag_indices_from(products)] += DAMPING * diagonal.mean() + np.finfo(np.float64).tiny
        # Of the reversed matrix the lower factor L gives H⁻¹ = UᵀU with U = the reversed L⁻¹.
        lower = np.linalg.cholesky(products[::-1, ::-1])
        factor = np.ascontiguousarray(np.linalg.inv(lower)[::-1, ::-1], np.float32)
        return InputProducts(diagonal.astype(np.float32), factor)


def round_compensated(weights: Floats, inputs: InputProducts, grid: Grid) -> Rounded:
    """Codes of `weights` [rows, cols]; a group's scale is chosen when its turn comes. ValueError as round_weights."""
    rows, cols = weights.shape
    left = weights.copy()
    groups = cols // grid.group
    found = Rounded(
        np.empty((rows, cols), np.uint8), np.empty((rows, groups), np.float16), np.empty((rows, groups), np.float32)
    )
    block = max(BLOCK, grid.group)
    for start in range(0, cols, block):
        end = min(start + block, cols)
        errors = np.empty((rows, end - start), np.float32)
        for begin in range(start, end, grid.group):
            _round_group(left, begin, end, inputs, grid, found, errors[:, begin - start :])
        left[:, end:] -= errors @ inputs.factor[start:end, end:]
    return found


def _round_group(
    left: Floats, begin: int, end: int, inputs: InputProducts, grid: Grid, found: Rounded, errors: Floats
) -> None:
    """Round the group at column `begin`, correct the columns up to `end`, and note `errors` over U[j, j] of each."""
    columns = slice(begin, begin + grid.group)
    group, factor = begin // grid.group, inputs.factor
    chosen = round_weights(
        np.ascontiguousarray(left[:, columns]), grid.bits, grid.group, grid.zero, inputs.importance[columns]
    )
    found.scales[:, group], found.offsets[:, group] = chosen.scales[:, 0], chosen.offsets[:, 0]
    scale, offset = chosen.scales[:, 0].astype(np.float32), chosen.offsets[:, 0]
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
    for at in range(begin, begin + grid.group):
        code = np.clip(np.rint((left[:, at] - offset) * inverse), 0, (1 << grid.bits) - 1)
        found.codes[:, at] = code
        error = (left[:, at] - (code * scale + offset)) / factor[at, at]
        errors[:, at - begin] = error
        left[:, at + 1 : end] -= error[:, None] * factor[at, at + 1 : end]


def compensate(
    spec: ModelSpec, weights: Weights, windows: Sequence[Sequence[int]], grids: Mapping[str, Grid], stage: Stage
) -> None:
    """Round those matrices of the layers in `weights` that `grids` names, each for what comes out of the rounded layers
    before it over `windows` of token ids. One layer is in memory at a time. ModelFileError for weights that no f16
    scale holds.
    """
    forward = ForwardPass(spec, weights, windows)
    with stage("rounding", spec.num_layers) as done:
        for index in range(spec.num_layers):
            before = forward.hidden
            for site in sites(spec, index, forward.layer(index)):
                names = [name for name in site.matrices if name in grids]
                if names:
                    _round_matrices(weights, names, InputProducts.of(site.x), grids)
            forward.hidden = before
            forward.layer(index)
            done(1)


def _round_matrices(weights: Weights, names: Sequence[str], inputs: InputProducts, grids: Mapping[str, Grid]) -> None:
    for name in names:
        try:
            weights.rounded[name] = round_compensated(weights.read(name), inputs, grids[name])
        except ValueError as error:
            raise ModelFileError(f"tensor {name!r} cannot be rounded: {error}") from error
