"""A matrix of a model rounded, its rows in the order of the file that it is written to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from typebar.errors import ModelFileError
from typebar.model.dequantize import Floats
from typebar.model.rope import half_split_rows
from typebar.model.spec import ModelSpec
from typebar.quantize.rounding import Grid, Rounded, round_weights
from typebar.quantize.weights import Weights

Rows = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Source:
    """The weights to write; `importance`: by name of a matrix, what the squared error at each of its inputs counts."""

    weights: Weights
    importance: Mapping[str, Floats]

    def values(self, name: str, rows: Rows | None) -> Floats:
        """float32; row r is row rows[r] of the source."""
        values = self.weights.read(name)
        return values if rows is None else values[rows]

    def rounded(self, name: str, rows: Rows | None, grid: Grid) -> Rounded:
        """As rounded before, or to the nearest. ModelFileError for weights that no f16 scale holds."""
        if name in self.weights.rounded:
            rounded = self.weights.rounded[name]
            return rounded if rows is None else rounded.taken(rows)
        try:
            return round_weights(self.values(name, rows), grid.bits, grid.group, grid.zero, self.importance.get(name))
        except ValueError as error:
            raise ModelFileError(f"tensor {name!r} cannot be rounded to {grid.bits} bits: {error}") from error


def interleaved_rows(spec: ModelSpec, canonical: str) -> Rows | None:
    """Row r of a GGUF file is row rows[r] of a folder's; None where the orders agree."""
    rows = split_rows(spec, canonical)
    return None if rows is None else np.argsort(rows)


def split_rows(spec: ModelSpec, canonical: str) -> Rows | None:
    """Row r of a folder is row rows[r] of a GGUF file's; None where the orders agree."""
    part = canonical.rsplit(".", 1)[-1].removesuffix("_bias")
    heads = {"q": spec.num_heads, "k": spec.num_kv_heads}.get(part)
    if spec.architecture != "llama" or heads is None:
        return None
    return np.asarray(half_split_rows(heads, spec.head_dim))
