"""The GGUF tensor types that typebar reads, and their sizes.

A row of a quantized tensor is a sequence of blocks, each with its own f16 scale (and minimum). Layouts are those of
ggml (https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h).
"""

from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class BlockType:
    """A ggml tensor type: `length` weights of a row are stored in `nbytes` bytes."""

    name: str
    length: int
    nbytes: int


# By the type number stored in the file.
BLOCK_TYPES: dict[int, BlockType] = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2),
    2: BlockType("Q4_0", 32, 18),
    3: BlockType("Q4_1", 32, 20),
    6: BlockType("Q5_0", 32, 22),
    7: BlockType("Q5_1", 32, 24),
    8: BlockType("Q8_0", 32, 34),
    12: BlockType("Q4_K", 256, 144),
    13: BlockType("Q5_K", 256, 176),
    14: BlockType("Q6_K", 256, 210),
    30: BlockType("BF16", 1, 2),
}
BY_NAME: dict[str, BlockType] = {block.name: block for block in BLOCK_TYPES.values()}

# Types that exist but are not read, so that an error can call them by their name.
OTHER_TYPE_NAMES: dict[int, str] = {
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4",
}  # fmt: skip


def bits_a_weight(type_name: str) -> float:
    """With scales."""
    block = BY_NAME[type_name]
    return 8 * block.nbytes / block.length


def is_quantized(type_name: str) -> bool:
    """Whether it is a type of blocks: not of floats, nor one that is not read."""
    return type_name in BY_NAME and BY_NAME[type_name].length > 1


def tensor_nbytes(type_name: str, shape: tuple[int, ...]) -> int:
    """Bytes that a tensor of this type and row-major shape takes. The last dimension must be whole blocks."""
    block = BY_NAME[type_name]
    if shape[-1] % block.length:
        raise ValueError(f"{shape[-1]} columns are not a multiple of the {block.length} of a {type_name} block")
    return prod(shape) // block.length * block.nbytes
