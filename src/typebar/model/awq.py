"""Linear layers of AWQ checkpoints in the GEMM layout of AutoAWQ, 4 bits.

`qweight` int32 [inputs, outputs / 8], `qzeros` int32 [groups, outputs / 8], `scales` [groups, outputs]; the nibbles of
a word, from the lowest on, are the outputs 0 2 4 6 1 3 5 7 of its eight. w = scale·(code − zero).
"""

from collections.abc import Mapping
from functools import partial

import numpy as np

from typebar.model.dequantize import Bytes, Floats
from typebar.model.grouped_matrix import GroupedMatrix
from typebar.model.layer_parts import FLOAT_TYPES, LayerParts, floats, total_bytes
from typebar.model.packed_words import Words, read_words, unpack_columns
from typebar.model.quantization import Quantization
from typebar.model.tensor import FileTensor

PARTS = ("qweight", "qzeros", "scales")
PER_WORD = 8
POSITIONS = [0, 4, 1, 5, 2, 6, 3, 7]  # output j of the eight is in nibble POSITIONS[j]


def awq_layer(
    module: str, shape: tuple[int, int], tensors: Mapping[str, FileTensor], quantization: Quantization
) -> GroupedMatrix:
    """The layer `module` of weights `shape`, (outputs, inputs). ModelFileError where it does not fit that."""
    rows, cols = shape
    parts = LayerParts(module, tensors)
    group = quantization.group(cols)
    groups = parts.count_groups(cols, group)
    if rows % PER_WORD:
        raise parts.error(f"has {rows} outputs, AWQ packs them in eights: use the bfloat16 weights of this model")
    words, zeros, scales = (
        parts.take("qweight", ("I32",), (cols, rows // PER_WORD)),
        parts.take("qzeros", ("I32",), (groups, rows // PER_WORD)),
        parts.take("scales", FLOAT_TYPES, (groups, rows)),
    )
    return GroupedMatrix(
        module, words.path, 4, rows, cols, group, total_bytes(words, zeros, scales),
        partial(_read, words, zeros, scales),
    )  # fmt: skip


def _read(words: FileTensor, zeros: FileTensor, scales: FileTensor) -> tuple[Bytes, Floats, Bytes]:
    return unpack(read_words(words)).T, floats(scales).T, unpack(read_words(zeros)).T


def unpack(words: Words) -> Bytes:
    """[n, outputs / 8] words → [n, outputs] codes."""
    nibbles = unpack_columns(words, 4).reshape(len(words), -1, PER_WORD)
    return np.ascontiguousarray(nibbles[:, :, POSITIONS]).reshape(len(words), -1)
