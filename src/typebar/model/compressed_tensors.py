"""Linear layers of compressed-tensors checkpoints, 4 or 8 bits: the formats pack-quantized and int-quantized.

w = scale·(code − zero), codes and zeros signed. `weight_scale` is [outputs, groups], or one number; symmetric layers
have no `weight_zero_point`. pack-quantized: `weight_packed` int32 [outputs, inputs·bits / 32] holds codes plus
2^(bits−1), the zero points are packed alike along the outputs; int-quantized: `weight` and zero points are int8.
"""

from collections.abc import Mapping
from functools import partial

import numpy as np

from typebar.model.dequantize import Bytes, Floats
from typebar.model.grouped_matrix import GroupedMatrix
from typebar.model.layer_parts import FLOAT_TYPES, LayerParts, floats, total_bytes
from typebar.model.packed_words import WORD_BITS, read_words, unpack_columns, unpack_rows
from typebar.model.quantization import Quantization
from typebar.model.tensor import FileTensor

# Scales of inputs, found once and for all, are left alone: here each 32 values get their own as they come.
PARTS = (
    "weight_packed", "weight", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx", "input_scale",
    "input_zero_point",
)  # fmt: skip


def compressed_layer(
    module: str, shape: tuple[int, int], tensors: Mapping[str, FileTensor], quantization: Quantization
) -> GroupedMatrix:
    """The layer `module` of weights `shape`, (outputs, inputs). ModelFileError where it does not fit that."""
    rows, cols = shape
    parts = LayerParts(module, tensors)
    if parts.find("weight_packed"):
        codes = parts.take("weight_packed", ("I32",), *((rows, cols * bits // WORD_BITS) for bits in (4, 8)))
        bits = codes.shape[1] * WORD_BITS // cols
        _check_shape(parts, shape)
    else:
        codes, bits = parts.take("weight", ("I8",), shape), 8
    sizes = quantization.groups(cols)
    one_number = ((1,), ()) if cols in sizes else ()
    scales = parts.take("weight_scale", FLOAT_TYPES, *((rows, cols // size) for size in sorted(sizes)), *one_number)
    groups = scales.shape[1] if len(scales.shape) == 2 else 1
    parts.count_groups(cols, group := cols // groups)
    zeros = _zeros(parts, bits, rows, scales.shape, groups)
    return GroupedMatrix(
        module, codes.path, bits, rows, cols, group, total_bytes(codes, scales, zeros),
        partial(_read, codes, scales, zeros, bits, (rows, groups)), parts.group_of("weight_g_idx", cols, groups),
    )  # fmt: skip


def _check_shape(parts: LayerParts, shape: tuple[int, int]) -> None:
    stated = parts.take("weight_shape", ("I64", "I32"), (2,))
    values = stated.read().view("<i8" if stated.type == "I64" else "<i4").tolist()
    if values != list(shape):
        raise parts.error(f"has the weight_shape {values}, expected {list(shape)}: damaged file, download it again")


def _zeros(parts: LayerParts, bits: int, rows: int, shape: tuple[int, ...], groups: int) -> FileTensor | None:
    found = parts.find("weight_zero_point")
    if found is None:
        return None
    if found.type == "I32":
        return parts.take("weight_zero_point", ("I32",), (-(-rows * bits // WORD_BITS), groups))
    return parts.take("weight_zero_point", ("I8",), shape)


def _read(
    codes: FileTensor, scales: FileTensor, zeros: FileTensor | None, bits: int, shape: tuple[int, int]
) -> tuple[Bytes, Floats, Bytes]:
    middle = 1 << bits - 1
    if codes.type == "I32":
        unsigned = unpack_columns(read_words(codes), bits)
    else:
        unsigned = codes.read().reshape(codes.shape) ^ np.uint8(middle)
    if zeros is None:
        zero_codes = np.full(1, middle, np.uint8)
    elif zeros.type == "I32":
        zero_codes = unpack_rows(read_words(zeros), bits)[:, : shape[0]].T
    else:
        zero_codes = zeros.read().reshape(zeros.shape) + np.uint8(middle)  # modulo 256: from signed to unsigned
    return unsigned, np.broadcast_to(floats(scales), shape), np.broadcast_to(zero_codes, shape)
