"""A numpy dequantizer of the GGUF tensor types, which serves as the reference.

The engine itself unpacks blocks in C++; this module is for tests, evaluation and folders.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from typebar.model.block_types import BY_NAME, tensor_nbytes

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


def dequantize(raw: Bytes, type_name: str, shape: tuple[int, ...]) -> Floats:
    """The float32 weights [shape] that `raw` (uint8, as in the file) stands for; exact, one rounding per operation.

    Raises ValueError where the type is not known or the byte count does not fit the shape.
    """
    if type_name not in BY_NAME:
        raise ValueError(f"tensor type {type_name!r} is not one of {', '.join(BY_NAME)}")
    if raw.size != tensor_nbytes(type_name, shape):
        raise ValueError(f"{type_name} {shape} takes {tensor_nbytes(type_name, shape)} bytes, not {raw.size}")
    blocks = np.ascontiguousarray(raw).reshape(-1, BY_NAME[type_name].nbytes)
    return _DECODERS[type_name](blocks).reshape(shape)


def _f16(blocks: Bytes, start: int) -> Floats:
    """The f16 at byte `start` of every block, as a float32 column [n, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view(np.float16).astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """[..., n] bytes → [..., 2n] values: all low nibbles, then all high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _bits(packed: Bytes) -> Bytes:
    """[n, 4] bytes → the [n, 32] bits of a little-endian word, lowest first."""
    return np.unpackbits(packed, axis=-1, bitorder="little")


def _bf16(blocks: Bytes) -> Floats:
    words = blocks.view(np.uint16).astype(np.uint32) << 16
    return words.view(np.float32)


def _q4_0(blocks: Bytes) -> Floats:
    return _f16(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _q4_1(blocks: Bytes) -> Floats:
    return _f16(blocks, 0) * _nibbles(blocks[:, 4:]).astype(np.float32) + _f16(blocks, 2)


def _q5_0(blocks: Bytes) -> Floats:
    q = _nibbles(blocks[:, 6:]) | _bits(blocks[:, 2:6]) << 4
    return _f16(blocks, 0) * (q.astype(np.float32) - 16)


def _q5_1(blocks: Bytes) -> Floats:
    q = _nibbles(blocks[:, 8:]) | _bits(blocks[:, 4:8]) << 4
    return _f16(blocks, 0) * q.astype(np.float32) + _f16(blocks, 2)


def _q8_0(blocks: Bytes) -> Floats:
    return _f16(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _k_scales(packed: Bytes) -> tuple[Floats, Floats]:
    """[n, 12] bytes → scales and minima [n, 8], 6 bits each.

    Bytes 0-3 and 4-7 hold scales 0-3 and minima 0-3 in their low 6 bits; bytes 8-11 hold the low nibbles of scales 4-7
    (low) and of minima 4-7 (high), whose top 2 bits are the top 2 bits of bytes 0-3 and 4-7.
    """
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=1)
    minima = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _k_affine(blocks: Bytes, q: NDArray[Any]) -> Floats:
    """q [n, 8, 32] with the scales of Q4_K and Q5_K: d·scale·q − dmin·minimum."""
    scales, minima = _k_scales(blocks[:, 4:16])
    step, offset = _f16(blocks, 0) * scales, _f16(blocks, 2) * minima
    return step[:, :, None] * q.astype(np.float32) - offset[:, :, None]


def _q4_k(blocks: Bytes) -> Floats:
    q = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return _k_affine(blocks, q)


def _q5_k(blocks: Bytes) -> Floats:
    low = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    # Bit j of byte l is the fifth bit of weight l of group j.
    high = blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return _k_affine(blocks, low | high << 4)


def _q6_k(blocks: Bytes) -> Floats:
    # Two halves of 128 weights, each 64 bytes of low nibbles and 32 bytes of four 2-bit tops.
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & 3
    q = (low | high << 4).astype(np.float32) - 32
    step = _f16(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return step[:, :, None] * q.reshape(-1, 16, 16)


_DECODERS: dict[str, Callable[[Bytes], Floats]] = {
    "F32": lambda blocks: blocks.view(np.float32),
    "F16": lambda blocks: _f16(blocks, 0),
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
