"""Safetensors files written a few tensors at a time, so that no more than those are in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from typebar.model.dequantize import Bytes
from typebar.model.safetensors import TYPE_BITS

ALIGNMENT = 8  # of the data, by spaces after the header


@dataclass(frozen=True, slots=True)
class NewTensors:
    """Tensors to be written one after another: `make` computes their bytes. `layout`: name → type and shape."""

    layout: Mapping[str, tuple[str, tuple[int, ...]]]
    make: Callable[[], Sequence[Bytes]]

    @property
    def sizes(self) -> list[int]:
        """Bytes of each."""
        return [prod(shape) * TYPE_BITS[type_name] // 8 for type_name, shape in self.layout.values()]


def write_safetensors(path: Path, tensors: Sequence[NewTensors], done: Callable[[int], None]) -> None:
    """Write a file that transformers takes for one of PyTorch weights. `done` is told of each entry of `tensors`."""
    with path.open("xb") as file:
        file.write(header(tensors))
        for together in tensors:
            made = together.make()
            if [data.size for data in made] != together.sizes:
                raise ValueError(f"{list(together.layout)} are {[data.size for data in made]} bytes, not as announced")
            for data in made:
                file.write(data.data)
            done(1)


def header(tensors: Sequence[NewTensors]) -> bytes:
    """All that stands before the data."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for together in tensors:
        for (name, (type_name, shape)), nbytes in zip(together.layout.items(), together.sizes, strict=True):
            entries[name] = {"dtype": type_name, "shape": shape, "data_offsets": (start, start + nbytes)}
            start += nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def file_nbytes(tensors: Sequence[NewTensors]) -> int:
    """What write_safetensors will write."""
    return len(header(tensors)) + sum(sum(together.sizes) for together in tensors)
