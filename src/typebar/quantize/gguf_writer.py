"""GGUF files written a tensor at a time, so that no more than one is in memory."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from typebar.model.block_types import BLOCK_TYPES, tensor_nbytes
from typebar.model.dequantize import Bytes
from typebar.quantize.gguf_entries import sized

ALIGNMENT = 32
_NUMBERS = {block.name: number for number, block in BLOCK_TYPES.items()}


@dataclass(frozen=True, slots=True)
class NewTensor:
    """A tensor to be written: `make` computes its bytes, as many as its type and row-major shape take."""

    name: str
    type: str
    shape: tuple[int, ...]
    make: Callable[[], Bytes]

    @property
    def nbytes(self) -> int:
        return tensor_nbytes(self.type, self.shape)


def write_gguf(
    path: Path, entries: Mapping[str, bytes], tensors: Sequence[NewTensor], done: Callable[[int], None]
) -> None:
    """Write a file of version 3, `entries` as in gguf_entries.py. `done` is told of the bytes of each tensor."""
    with path.open("xb") as file:
        file.write(_padded(header(entries, tensors)))
        for tensor in tensors:
            data = tensor.make()
            if data.size != tensor.nbytes:
                raise ValueError(
                    f"{tensor.name} is {data.size} bytes, {tensor.type} {tensor.shape} takes {tensor.nbytes}"
                )
            file.write(data.data)
            file.write(bytes(-data.size % ALIGNMENT))
            done(tensor.nbytes)


def header(entries: Mapping[str, bytes], tensors: Sequence[NewTensor]) -> bytes:
    """All that stands before the data."""
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(entries))]
    parts += [sized(key) + value for key, value in entries.items()]
    offset = 0
    for tensor in tensors:
        dims = tensor.shape[::-1]
        parts.append(sized(tensor.name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims))
        parts.append(struct.pack("<IQ", _NUMBERS[tensor.type], offset))
        offset += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    return b"".join(parts)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT)


def file_nbytes(entries: Mapping[str, bytes], tensors: Sequence[NewTensor]) -> int:
    """What write_gguf will write."""
    sizes = [len(header(entries, tensors)), *(tensor.nbytes for tensor in tensors)]
    return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)
