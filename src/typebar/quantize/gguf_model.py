"""A model written as a GGUF file, its matrices rounded."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from typebar.errors import ModelFileError
from typebar.model.checkpoint import Checkpoint
from typebar.model.dequantize import Bytes, Floats
from typebar.model.gguf import GGUFFile
from typebar.model.names import gguf_names
from typebar.model.rope import RopeSpec, half_split_rows, inverse_frequencies
from typebar.model.spec import ModelSpec
from typebar.quantize import gguf_metadata
from typebar.quantize.block_codes import GROUP, ROUNDINGS, encode
from typebar.quantize.gguf_entries import Entries
from typebar.quantize.gguf_writer import NewTensor
from typebar.quantize.rounding import round_weights
from typebar.quantize.weights import Weights

HEAD_TYPE = "Q8_0"  # of the output layer, which decides between near likelihoods


def plan_gguf(
    checkpoint: Checkpoint, weights: Weights, type_name: str, importance: Mapping[str, Floats]
) -> tuple[Entries, list[NewTensor]]:
    """Entries and tensors of a file whose matrices have the type `type_name`, but for the output layer.

    `importance`: by canonical name of a matrix, what the squared error at each of its inputs counts.
    """
    names = {canonical: name for name, canonical in gguf_names(checkpoint.spec).items()}
    from_folder = checkpoint.path.is_dir()
    tensors = []
    for canonical, tensor in checkpoint.tensors.items():
        is_head = canonical in ("head", "embed") and not (canonical == "embed" and "head" in checkpoint.tensors)
        wanted = _type(tensor.shape, HEAD_TYPE if is_head else type_name)
        rows = _rows(checkpoint.spec, canonical) if from_folder else None
        make: Callable[[], Bytes]
        if tensor.type == wanted and rows is None and not weights.changed(canonical):
            make = tensor.read
        else:
            make = partial(_bytes, weights, canonical, wanted, rows, importance.get(canonical))
        tensors.append(NewTensor(names[canonical], wanted, tensor.shape, make))
    file_type = ROUNDINGS[type_name].file_type
    if from_folder:
        entries = gguf_metadata.of_folder(checkpoint.spec, checkpoint.path, file_type)
        return entries, tensors + _rope_divisors(checkpoint.spec)
    return gguf_metadata.of_gguf(_first_shard(checkpoint.path), file_type), tensors + _others(checkpoint, tensors)


def _type(shape: tuple[int, ...], wanted: str) -> str:
    """Vectors stay exact, as do matrices whose rows are not whole groups, to f16."""
    if len(shape) == 1:
        return "F32"
    return "F16" if shape[-1] % GROUP else wanted


def _bytes(
    weights: Weights, name: str, type_name: str, rows: NDArray[np.intp] | None, importance: Floats | None
) -> Bytes:
    if name in weights.rounded:
        rounded = weights.rounded[name]
        return encode(rounded if rows is None else rounded.taken(rows), type_name)
    values = weights.read(name)
    if rows is not None:
        values = values[rows]
    if type_name not in ROUNDINGS:
        return values.astype({"F32": np.float32, "F16": np.float16}[type_name]).reshape(-1).view(np.uint8)
    rounding = ROUNDINGS[type_name]
    try:
        return encode(round_weights(values, rounding.bits, GROUP, rounding.zero, importance), type_name)
    except ValueError as error:
        raise ModelFileError(f"tensor {name!r} cannot be rounded to {type_name}: {error}") from error


def _rows(spec: ModelSpec, canonical: str) -> NDArray[np.intp] | None:
    """Row r of the file is row rows[r] of a folder's; None where the orders agree."""
    part = canonical.rsplit(".", 1)[-1].removesuffix("_bias")
    heads = {"q": spec.num_heads, "k": spec.num_kv_heads}.get(part)
    if spec.architecture != "llama" or heads is None:
        return None
    return np.argsort(half_split_rows(heads, spec.head_dim))


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
