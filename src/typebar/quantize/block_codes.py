"""Rounded weights as the blocks of GGUF that llama.cpp reads too; block_types.py is the way back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from typebar.model.block_types import BY_NAME
from typebar.model.dequantize import Bytes
from typebar.quantize.rounding import Grid, Rounded, Zero

GROUP = 32


@dataclass(frozen=True, slots=True)
class Rounding:
    """How weights become blocks of a type."""

    bits: int
    zero: Zero

    @property
    def grid(self) -> Grid:
        return Grid(self.bits, GROUP, self.zero)


ROUNDINGS: dict[str, Rounding] = {
    "Q4_0": Rounding(4, Zero.CENTRE),
    "Q4_1": Rounding(4, Zero.ANYWHERE),
    "Q5_0": Rounding(5, Zero.CENTRE),
    "Q5_1": Rounding(5, Zero.ANYWHERE),
    "Q8_0": Rounding(8, Zero.CENTRE),
}


def encode(rounded: Rounded, type_name: str) -> Bytes:
    """The bytes of a tensor of a type in ROUNDINGS, whose bits and zero are those of `rounded`."""
    rounding = ROUNDINGS[type_name]
    codes = rounded.codes.reshape(-1, GROUP)
    parts = [rounded.scales.reshape(-1, 1).view(np.uint8)]
    if rounding.zero is Zero.ANYWHERE:
        parts.append(rounded.offsets.astype(np.float16).reshape(-1, 1).view(np.uint8))
    if rounding.bits == 5:
        parts.append(np.packbits(codes >> np.uint8(4), axis=1, bitorder="little"))
    if rounding.bits == 8:
        parts.append(codes ^ np.uint8(128))  # from 0 … 255 to −128 … 127
    else:
        first, second = np.split(codes & np.uint8(15), 2, axis=1)
        parts.append(first | second << np.uint8(4))
    blocks = np.concatenate(parts, axis=1)
    assert blocks.shape[1] == BY_NAME[type_name].nbytes
    return blocks.reshape(-1)
