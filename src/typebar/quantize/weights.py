"""The weights of a checkpoint as numbers, by canonical name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from typebar.errors import ModelFileError
from typebar.model.block_types import BY_NAME
from typebar.model.checkpoint import Checkpoint
from typebar.model.dequantize import Floats, dequantize
from typebar.quantize.rounding import Rounded


@dataclass(frozen=True, slots=True)
class Scales:
    """What each row and each column of a matrix is multiplied by; a vector has rows only. None: by 1."""

    rows: Floats | None = None
    cols: Floats | None = None

    def apply(self, values: Floats) -> Floats:
        if self.cols is not None:
            values = values * self.cols
        if self.rows is not None:
            values = values * (self.rows if values.ndim == 1 else self.rows[:, None])
        return values


class Readable(Protocol):
    """Numbers by canonical name."""

    def __contains__(self, name: str) -> bool: ...

    def read(self, name: str) -> Floats: ...


class Weights:
    """Reads a tensor at a time, those named in `scales` scaled, those in `rounded` as they are there."""

    def __init__(self, checkpoint: Checkpoint, scales: Mapping[str, Scales] | None = None) -> None:
        self._tensors = checkpoint.tensors
        self._scales = scales or {}
        self.rounded: dict[str, Rounded] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def is_as_read(self, name: str, type_name: str) -> bool:
        """Whether the file has a tensor in this type, and it is neither scaled nor rounded."""
        return self._tensors[name].type == type_name and name not in self._scales and name not in self.rounded

    def read(self, name: str) -> Floats:
        """float32, in the shape and row order of the file. Raises ModelFileError."""
        if name in self.rounded:
            return self.rounded[name].values()
        tensor = self._tensors[name]
        if tensor.type not in BY_NAME:
            raise ModelFileError(
                f"{tensor.path}: {tensor.name!r} is quantized in a way that is not rounded again: "
                "give the model with bfloat16 weights"
            )
        values = dequantize(tensor.read(), tensor.type, tensor.shape)
        scales = self._scales.get(name)
        return scales.apply(values) if scales else values


class HeldLayer:
    """The weights of a layer, each read once until `forget`, those in `replaced` as they are there."""

    def __init__(self, weights: Readable) -> None:
        self._weights = weights
        self._held: dict[str, Floats] = {}
        self.replaced: dict[str, Floats] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._weights

    def read(self, name: str) -> Floats:
        if name in self.replaced:
            return self.replaced[name]
        if not name.startswith("layers."):
            return self._weights.read(name)
        if name not in self._held:
            self._held[name] = self._weights.read(name)
        return self._held[name]

    def forget(self) -> None:
        self._held.clear()
