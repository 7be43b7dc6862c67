"""GGUF files built byte by byte, so that tests can break each field. Format: ggml/docs/gguf.md."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = range(13)
_FORMATS = {
    UINT8: "B", INT8: "b", UINT16: "H", INT16: "h", UINT32: "I", INT32: "i", FLOAT32: "f", BOOL: "B",
    UINT64: "Q", INT64: "q", FLOAT64: "d",
}  # fmt: skip


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def scalar(kind: int, value: object) -> bytes:
    """A typed metadata value."""
    body = string(value) if isinstance(value, str | bytes) else struct.pack("<" + _FORMATS[kind], value)
    return struct.pack("<I", kind) + body


def array(kind: int, values: Sequence[object], count: int | None = None) -> bytes:
    """A typed metadata array; `count` overrides the stated length."""
    head = struct.pack("<IIQ", ARRAY, kind, len(values) if count is None else count)
    return head + b"".join(scalar(kind, value)[4:] for value in values)


@dataclass(frozen=True)
class Tensor:
    """An entry of the tensor list; `dims` in ggml order (columns first), `type` as its number."""

    name: str | bytes
    dims: tuple[int, ...]
    type: int = 0
    offset: int = 0

    def entry(self) -> bytes:
        dims = struct.pack(f"<I{len(self.dims)}Q", len(self.dims), *self.dims)
        return string(self.name) + dims + struct.pack("<IQ", self.type, self.offset)


def build(
    metadata: Sequence[tuple[str | bytes, bytes]] = (),
    tensors: Sequence[Tensor] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    tensor_count: int | None = None,
    metadata_count: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A file; `data` follows the header at the next multiple of `alignment`. Counts can be overridden."""
    counts = (
        len(tensors) if tensor_count is None else tensor_count,
        len(metadata) if metadata_count is None else metadata_count,
    )
    header = magic + struct.pack("<IQQ", version, *counts)
    header += b"".join(string(key) + value for key, value in metadata)
    header += b"".join(tensor.entry() for tensor in tensors)
    return header + b"\0" * (-len(header) % alignment if data else 0) + data
