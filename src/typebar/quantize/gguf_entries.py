"""Metadata entries of a GGUF file as bytes: the type of the value, then the value.

Kept so, what a file says is carried to another one without a change, the widths of its integers included.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

Entries = dict[str, bytes]
Read = Callable[[int], bytes]

_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_NBYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def uint32(value: int) -> bytes:
    return struct.pack("<II", _UINT32, value)


def float32(value: float) -> bytes:
    return struct.pack("<If", _FLOAT32, value)


def boolean(value: bool) -> bytes:
    return struct.pack("<I?", _BOOL, value)


def string(value: str) -> bytes:
    return struct.pack("<I", _STRING) + sized(value)


def strings(values: Iterable[str]) -> bytes:
    encoded = [sized(value) for value in values]
    return struct.pack("<IIQ", _ARRAY, _STRING, len(encoded)) + b"".join(encoded)


def int32s(values: ArrayLike) -> bytes:
    numbers = np.asarray(values, "<i4")
    return struct.pack("<IIQ", _ARRAY, _INT32, numbers.size) + numbers.tobytes()


def sized(text: str) -> bytes:
    """A string as GGUF writes all of them: its length, then its UTF-8."""
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def read_entries(path: Path) -> Entries:
    """The entries of a file that GGUFFile.open has read, and so checked."""
    entries: Entries = {}
    with path.open("rb") as file:
        file.seek(16)  # magic, version and the count of tensors
        (count,) = struct.unpack("<Q", file.read(8))
        for _ in range(count):
            key = file.read(_length(file.read(8))).decode()
            kind = file.read(4)
            entries[key] = kind + _read_value(file.read, struct.unpack("<I", kind)[0])
    return entries


def _read_value(read: Read, kind: int) -> bytes:
    if kind in _NBYTES:
        return read(_NBYTES[kind])
    if kind == _STRING:
        return _read_string(read)
    head = read(12)
    item, count = struct.unpack("<IQ", head)
    if item in _NBYTES:
        return head + read(count * _NBYTES[item])
    return head + b"".join(_read_string(read) for _ in range(count))


def _read_string(read: Read) -> bytes:
    size = read(8)
    return size + read(_length(size))


def _length(data: bytes) -> int:
    (length,) = struct.unpack("<Q", data)
    return int(length)
