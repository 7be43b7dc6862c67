"""A model written as a GGUF file, its matrices rounded."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from typebar.model.block_types import bits_a_weight, is_quantized
from typebar.model.checkpoint import Checkpoint
from typebar.model.dequantize import Bytes
from typebar.model.gguf import GGUFFile
from typebar.model.names import gguf_names
from typebar.model.rope import RopeSpec, inverse_frequencies
from typebar.model.spec import ModelSpec
from typebar.quantize import gguf_metadata
from typebar.quantize.block_codes import GROUP, ROUNDINGS, encode
from typebar.quantize.divergence import head_name
from typebar.quantize.gguf_entries import Entries
from typebar.quantize.gguf_writer import NewTensor
from typebar.quantize.rounded_tensor import Rows, Source, interleaved_rows

HEAD_TYPE = "Q8_0"  # of the output layer, which decides between near likelihoods
# What llama.cpp calls a file that has mostly these.
FILE_TYPES = {"Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q4_K": 15, "Q5_K": 17, "Q6_K": 18}

Types = Mapping[str, str]  # of the matrices, by canonical name


def uniform_types(checkpoint: Checkpoint, source: Source, type_name: str) -> dict[str, str]:
    """All matrices of one type, but for the output layer, and for those that the source has in no more bits."""
    head = head_name(checkpoint)
    types = {}
    for name, tensor in checkpoint.tensors.items():
        if len(tensor.shape) == 2:
            wanted = HEAD_TYPE if name == head else type_name
            stays = source.weights.is_as_read(name, tensor.type) and is_within(tensor.type, wanted)
            types[name] = tensor.type if stays else wanted
    return types


def is_within(own: str, wanted: str) -> bool:
    """Whether a type of a file has no more bits a weight than is asked for: rounding it would only lose."""
    return is_quantized(own) and bits_a_weight(own) <= bits_a_weight(wanted)


def plan_gguf(checkpoint: Checkpoint, source: Source, types: Types) -> tuple[Entries, list[NewTensor]]:
    """Entries and tensors of a file whose matrices have `types`, those whose rows are not whole groups F16."""
    names = {canonical: name for name, canonical in gguf_names(checkpoint.spec).items()}
    from_folder = checkpoint.path.is_dir()
    tensors = []
    for canonical, tensor in checkpoint.tensors.items():
        wanted = written_type(tensor.shape, types.get(canonical))
        rows = interleaved_rows(checkpoint.spec, canonical) if from_folder else None
        make: Callable[[], Bytes]
        if rows is None and source.weights.is_as_read(canonical, wanted):
            make = tensor.read
        else:
            make = partial(_bytes, source, canonical, wanted, rows)
        tensors.append(NewTensor(names[canonical], wanted, tensor.shape, make))
    file_type = _file_type(checkpoint, types)
    if from_folder:
        entries = gguf_metadata.of_folder(checkpoint.spec, checkpoint.path, file_type)
        return entries, tensors + _rope_divisors(checkpoint.spec)
    return gguf_metadata.of_gguf(_first_shard(checkpoint.path), file_type), tensors + _others(checkpoint, tensors)


def written_type(shape: tuple[int, ...], wanted: str | None) -> str:
    """Vectors stay exact, as do matrices whose rows are not whole groups, to f16."""
    if wanted is None:
        return "F32"
    return "F16" if shape[-1] % GROUP else wanted


def _file_type(checkpoint: Checkpoint, types: Types) -> int:
    """By the type of most weights of the layers."""
    counts: Counter[str] = Counter()
    for name, type_name in types.items():
        if name.startswith("layers.") and type_name in FILE_TYPES:
            counts[type_name] += math.prod(checkpoint.tensors[name].shape)
    return FILE_TYPES[counts.most_common(1)[0][0] if counts else HEAD_TYPE]


def _bytes(source: Source, name: str, type_name: str, rows: Rows | None) -> Bytes:
    if type_name in ROUNDINGS:
        return encode(source.rounded(name, rows, ROUNDINGS[type_name].grid), type_name)
    number = {"F32": np.float32, "F16": np.float16}[type_name]
    return source.values(name, rows).astype(number).reshape(-1).view(np.uint8)


def _rope_divisors(spec: ModelSpec) -> list[NewTensor]:
    """The form that the scaling of Llama 3 has in GGUF."""
    if spec.rope.scaling != "llama3":
        return []
    plain, _ = inverse_frequencies(RopeSpec(spec.rope.theta), spec.head_dim, spec.context_length)
    scaled, _ = inverse_frequencies(spec.rope, spec.head_dim, spec.context_length)
    divisors = np.asarray(plain) / scaled
    return [NewTensor("rope_freqs.weight", "F32", divisors.shape, lambda: divisors.view(np.uint8))]


def _first_shard(path: Path) -> Path:
    """Where a split model says what it is."""
    return Path(re.sub(r"-\d{5}(-of-\d{5}\.gguf)$", r"-00001\1", str(path)))


def _others(checkpoint: Checkpoint, tensors: list[NewTensor]) -> list[NewTensor]:
    """Tables of a GGUF file that are not weights, as they are."""
    there = {tensor.name for tensor in tensors}
    found = GGUFFile.open(checkpoint.path).tensors
    return [NewTensor(name, other.type, other.shape, other.read) for name, other in found.items() if name not in there]
