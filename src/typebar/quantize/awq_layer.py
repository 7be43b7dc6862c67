"""Rounded weights as the words of an AWQ layer; model/awq.py tells the layout and is the way back."""

from __future__ import annotations

import numpy as np

from typebar.model.awq import PER_WORD, POSITIONS
from typebar.model.dequantize import Bytes, Floats
from typebar.quantize.rounding import Rounded


def layer_parts(rounded: Rounded) -> list[Bytes]:
    """The bytes of qweight, qzeros and scales of weights rounded to 4 bits with Zero.CODE."""
    return [pack(rounded.codes.T), pack(_zeros(rounded).T), np.ascontiguousarray(rounded.scales.T).view(np.uint8)]


def _zeros(rounded: Rounded) -> Bytes:
    """The codes of zero, 0 where all weights of a group are."""
    scales: Floats = rounded.scales.astype(np.float32)
    zeros = np.divide(-rounded.offsets, scales, out=np.zeros_like(scales), where=scales != 0)
    return np.rint(zeros).astype(np.uint8)


def pack(codes: Bytes) -> Bytes:
    """[n, outputs] codes → [n, outputs / 2] bytes, those of little-endian words."""
    nibbles = np.empty((len(codes), codes.shape[1] // PER_WORD, PER_WORD), np.uint8)
    nibbles[:, :, POSITIONS] = codes.reshape(nibbles.shape)
    packed: Bytes = nibbles[:, :, ::2] | nibbles[:, :, 1::2] << np.uint8(4)
    return packed.reshape(len(codes), -1)
