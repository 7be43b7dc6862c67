"""Linear layers of GPTQ checkpoints, 4 or 8 bits, as AutoGPTQ and GPTQModel write them.

`qweight` int32 [inputs·bits / 32, outputs], `qzeros` int32 [groups, outputs·bits / 32], `scales` [groups, outputs] and
`g_idx` int32 [inputs], the group of each input. w = scale·(code − zero). The first version of the format stores zero
points less one, subtracted from whole words.
"""

from collections.abc import Mapping
from functools import partial

import numpy as np

from typebar.model.dequantize import Bytes, Floats
from typebar.model.grouped_matrix import GroupedMatrix
from typebar.model.layer_parts import FLOAT_TYPES, LayerParts, floats, total_bytes
from typebar.model.packed_words import WORD_BITS, Words, read_words, unpack_columns, unpack_rows
from typebar.model.quantization import Quantization
from typebar.model.tensor import FileTensor

PARTS = ("qweight", "qzeros", "scales", "g_idx")
ONES = {4: 0x11111111, 8: 0x01010101}


def gptq_layer(
    module: str, shape: tuple[int, int], tensors: Mapping[str, FileTensor], quantization: Quantization
) -> GroupedMatrix:
    """The layer `module` of weights `shape`, (outputs, inputs). ModelFileError where it does not fit that."""
    rows, cols = shape
    parts = LayerParts(module, tensors)
    bits, group = quantization.bits, quantization.group(cols)
    per_word, groups = WORD_BITS // bits, parts.count_groups(cols, group)
    if rows % per_word or cols % per_word:
        raise parts.error(f"is {rows} × {cols}, not whole words of {per_word} codes: use the weights in bfloat16")
    words, zeros, scales = (
        parts.take("qweight", ("I32",), (cols // per_word, rows)),
        parts.take("qzeros", ("I32",), (groups, rows // per_word)),
        parts.take("scales", FLOAT_TYPES, (groups, rows)),
    )
    group_of = parts.group_of("g_idx", cols, groups)
    if group_of is None and quantization.sorts_inputs:
        raise parts.error("has no g_idx although desc_act is true: download the model again")
    return GroupedMatrix(
        module, words.path, bits, rows, cols, group, total_bytes(words, zeros, scales),
        partial(_read, words, zeros, scales, bits, quantization.zeros_less_one), group_of,
    )  # fmt: skip


def _read(
    words: FileTensor, zeros: FileTensor, scales: FileTensor, bits: int, less_one: bool
) -> tuple[Bytes, Floats, Bytes]:
    zero_words = read_words(zeros)
    if less_one:
        zero_words = whole_zeros(zero_words, bits)
    return unpack_rows(read_words(words), bits), floats(scales).T, unpack_columns(zero_words, bits).T


def whole_zeros(words: Words, bits: int) -> Words:
    """Words of zero points stored less one → of zero points. A zero point of 0 has borrowed from the next one."""
    return words + np.uint32(ONES[bits])
