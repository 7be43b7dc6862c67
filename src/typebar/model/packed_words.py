"""Codes of 4 or 8 bits in words of 32: AWQ, GPTQ and compressed-tensors fill them from the lowest bits on.

Words are int32 in the files, little-endian, as everything in safetensors.
"""

import numpy as np
from numpy.typing import NDArray

from typebar.model.dequantize import Bytes
from typebar.model.tensor import FileTensor

WORD_BITS = 32

Words = NDArray[np.uint32]


def read_words(tensor: FileTensor) -> Words:
    """The int32 matrix `tensor`, unsigned."""
    return tensor.read().view("<u4").reshape(tensor.shape)


def unpack_columns(words: Words, bits: int) -> Bytes:
    """[rows, n] words → [rows, n·32 / bits] codes: each word is so many neighbours of a row."""
    packed = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return packed
    codes = np.empty((*packed.shape, 2), np.uint8)
    np.bitwise_and(packed, 15, out=codes[..., 0])
    np.right_shift(packed, 4, out=codes[..., 1])
    return codes.reshape(len(packed), -1)


def unpack_rows(words: Words, bits: int) -> Bytes:
    """[n, columns] words → [columns, n·32 / bits] codes: each word is so many neighbours of a column."""
    return unpack_columns(words.T, bits)
