"""What the engine will hold of a model, tensor by tensor, worked out from the header of its files.

The rules are those of the native core (pack.cpp, model_load.cpp); the tests compare the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from typebar.config import EngineConfig
from typebar.engine.blocks import BLOCK_TOKENS, blocks_for
from typebar.memory import MIB, available_memory
from typebar.model.checkpoint import open_checkpoint
from typebar.model.spec import ModelSpec
from typebar.model.tensor import Tensor

OTHER_MEMORY = 256 * MIB  # that a loaded model must find free: tokenizer, interpreter, buffers, padding of huge pages
TILE_ROWS = 8  # rows are padded to whole tiles
# Resident set of a process beside weights, keys and values, measured with vocabularies of 49 152 and 151 936 tokens:
# interpreter and libraries, then the tokenizer and the buffers of logits.
PROCESS_BYTES = 44 * MIB
PROCESS_BYTES_PER_TOKEN = 100


@dataclass(frozen=True, slots=True)
class Layout:
    """How a matrix is held: `bits` for a weight, and for each `group` of them (0: none) an f16 scale, perhaps a min.

    With `has_multipliers` each 32 weights of a group have a byte, too.
    """

    format: str
    bits: int
    group: int = 0
    has_min: bool = False
    has_multipliers: bool = False

    @property
    def bits_per_weight(self) -> float:
        scales = 16 * (1 + self.has_min) / self.group if self.group else 0
        return self.bits + scales + (8 / 32 if self.has_multipliers else 0)


F32 = Layout("f32", 32)
Q4, Q5, Q6, Q8 = (Layout(f"q{bits}", bits, group=32) for bits in (4, 5, 6, 8))
Q4_SPANS = Layout("q4", 4, group=128, has_multipliers=True)  # instead of Q4 by `--quant`, where rows are whole spans
# By type in the file: the layout that changes no weight.
LOSSLESS: dict[str, Layout] = {
    "F32": F32,
    "F16": Layout("f16", 16),
    "BF16": Layout("bf16", 16),
    "Q4_0": Q4,
    "Q4_1": Layout("q4", 4, 32, has_min=True),
    "Q5_0": Q5,
    "Q5_1": Layout("q5", 5, 32, has_min=True),
    "Q8_0": Q8,
    "Q4_K": Layout("q4", 4, 32, has_min=True),
    "Q5_K": Layout("q5", 5, 32, has_min=True),
    "Q6_K": Layout("q6", 6, 16),
    "U4_64": Layout("q4", 4, 64, has_min=True),
    "U4_128": Layout("q4", 4, 128, has_min=True),
    "U8_32": Layout("q8", 8, 32, has_min=True),
    "U8_64": Layout("q8", 8, 64, has_min=True),
    "U8_128": Layout("q8", 8, 128, has_min=True),
}
# By `--quant`: what matrices become, and what the output layer does; those of no more bits stay.
REQUANTIZED: dict[str, tuple[Layout, Layout]] = {
    "q8": (Q8, Q8),
    "q6": (Q6, Q6),
    "q5": (Q5, Q6),
    "q4": (Q4, Q6),
    "f32": (F32, F32),
}
# Bits of a code that the first pass of a screened output layer leaves out, by format; symmetric matrices only.
SCREENED = {"q8": 4, "q6": 2}
IN_FILE = "in file"  # an embedding that is not the output layer: its rows are read from the file as they are needed


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """`format` is what the weights are held in, of `bytes`; `low_bytes` of them a screened output layer mostly skips.

    A vector has one row. `type` and `file_bytes` are those in the file.
    """

    name: str
    type: str
    format: str
    rows: int
    cols: int
    bits_per_weight: float
    file_bytes: int
    bytes: int
    low_bytes: int = 0

    @property
    def is_matrix(self) -> bool:
        return self.rows > 1


@dataclass(frozen=True, slots=True)
class Plan:
    """All tensors of a model and what they come to, in bytes. `file_bytes`: of the files, with header and padding."""

    spec: ModelSpec
    quantization: str
    kv_dtype: str
    tensors: tuple[PlannedTensor, ...]
    file_bytes: int

    @property
    def matrices(self) -> list[PlannedTensor]:
        """Those that the engine packs."""
        return [tensor for tensor in self.tensors if tensor.is_matrix and tensor.format != IN_FILE]

    @property
    def weight_bytes(self) -> int:
        """Of the matrices held."""
        return sum(tensor.bytes for tensor in self.matrices)

    @property
    def held_bytes(self) -> int:
        """Of matrices and vectors."""
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def bits_per_weight(self) -> float:
        """Over the matrices held, scales and padding rows included."""
        return 8 * self.weight_bytes / sum(tensor.rows * tensor.cols for tensor in self.matrices)

    def token_bytes(self, screened_head: bool = True) -> int:
        """Of weights that are read for a decoded token. `screened_head`: its first pass alone, where it is possible."""
        return self.weight_bytes - (sum(tensor.low_bytes for tensor in self.tensors) if screened_head else 0)

    @property
    def kv_token_bytes(self) -> int:
        """Keys and values of a token."""
        return kv_token_bytes(self.spec, self.kv_dtype)

    def memory(self, context: int) -> int:
        """About the resident set of a process that holds one sequence of `context` tokens."""
        kv = blocks_for(context) * BLOCK_TOKENS * self.kv_token_bytes
        return self.held_bytes + kv + PROCESS_BYTES + PROCESS_BYTES_PER_TOKEN * self.spec.vocab_size


def open_plan(path: Path, quantization: str = "keep", kv_dtype: str = "f16") -> Plan:
    """The plan of the model in a GGUF file, split or not, or in a Hugging Face folder. Raises ModelFileError."""
    checkpoint = open_checkpoint(path)
    quantization = choose_quantization(
        checkpoint.spec, checkpoint.tensors, EngineConfig(quantization=quantization, kv_dtype=kv_dtype)
    )
    files = {tensor.path for tensor in checkpoint.tensors.values()}
    size = sum(file.stat().st_size for file in files)
    return Plan(checkpoint.spec, quantization, kv_dtype, tuple(plan_tensors(checkpoint.tensors, quantization)), size)


def choose_quantization(spec: ModelSpec, tensors: Mapping[str, Tensor], config: EngineConfig) -> str:
    """What "auto" comes to here; any other quantization of `config` as it is.

    Quantized weights are kept; float ones get the most bits with which the whole context fits the free memory.
    """
    if config.quantization != "auto":
        return config.quantization
    if any(LOSSLESS[tensor.type].group for name, tensor in tensors.items() if name.startswith("layers.")):
        return "keep"
    context = config.max_model_len or min(config.default_max_model_len, spec.context_length)
    kv_bytes = config.kv_memory or blocks_for(context) * BLOCK_TOKENS * kv_token_bytes(spec, config.kv_dtype)
    room = available_memory()[0] - OTHER_MEMORY - kv_bytes
    for quantization in ("q8", "q6", "q5"):
        if sum(tensor.bytes for tensor in plan_tensors(tensors, quantization)) <= room:
            return quantization
    return "q4"


def kv_token_bytes(spec: ModelSpec, kv_dtype: str) -> int:
    """Keys and values of a token: f16 numbers, or codes of a byte and a scale of four for each vector."""
    vector = spec.head_dim + 4 if kv_dtype == "q8" else 2 * spec.head_dim
    return 2 * spec.num_layers * spec.num_kv_heads * vector


def plan_tensors(tensors: Mapping[str, Tensor], quantization: str) -> list[PlannedTensor]:
    """One planned tensor for each of a model, by canonical name."""
    return [_planned(name, tensor, quantization, tied="head" not in tensors) for name, tensor in tensors.items()]


def _planned(name: str, tensor: Tensor, quantization: str, tied: bool) -> PlannedTensor:
    if len(tensor.shape) == 1:
        cols, file_bytes = tensor.shape[0], tensor.nbytes
        return PlannedTensor(name, tensor.type, "f32", 1, cols, F32.bits_per_weight, file_bytes, 4 * cols)
    rows, cols = tensor.shape
    if name == "embed" and not tied:
        bits = 8 * tensor.nbytes / prod(tensor.shape)
        return PlannedTensor(name, tensor.type, IN_FILE, rows, cols, bits, tensor.nbytes, 0)
    is_head = name in ("embed", "head")
    layout = _held(tensor.type, quantization, is_head, cols)
    padded = -(-rows // TILE_ROWS) * TILE_ROWS * cols
    low_bits = SCREENED.get(layout.format, 0) if is_head and not layout.has_min else 0
    return PlannedTensor(
        name, tensor.type, layout.format, rows, cols, layout.bits_per_weight, tensor.nbytes,
        bytes=int(padded * layout.bits_per_weight) // 8, low_bytes=padded * low_bits // 8,
    )  # fmt: skip


def _held(type: str, quantization: str, is_head: bool, cols: int) -> Layout:
    lossless = LOSSLESS[type]
    if quantization == "keep":
        return lossless
    wanted = REQUANTIZED[quantization][is_head]
    if wanted != F32 and lossless.bits <= wanted.bits:
        return lossless
    return Q4_SPANS if wanted == Q4 and cols % Q4_SPANS.group == 0 else wanted
