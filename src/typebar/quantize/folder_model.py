"""A model written as a Hugging Face folder, the matrices of its layers in the layout of AWQ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from typebar.errors import ModelFileError, ParameterError
from typebar.model.awq import PARTS, PER_WORD
from typebar.model.checkpoint import Checkpoint
from typebar.model.dequantize import Bytes
from typebar.model.names import folder_names
from typebar.model.safetensors import SINGLE_FILE
from typebar.quantize.awq_layer import layer_parts
from typebar.quantize.folder_texts import Texts
from typebar.quantize.rounded_tensor import Rows, Source, split_rows
from typebar.quantize.rounding import Grid, Rounded
from typebar.quantize.safetensors_writer import NewTensors, write_safetensors


def check_groups(checkpoint: Checkpoint, group: int) -> None:
    """ParameterError where the inputs of a layer are not whole groups, ModelFileError where its outputs fill no words.

    Readers of AWQ take all layers of a folder to be quantized.
    """
    for name, tensor in checkpoint.tensors.items():
        if not _is_rounded(name, tensor.shape):
            continue
        rows, cols = tensor.shape
        if cols % group:
            fits = [str(size) for size in (64, 32) if cols % size == 0 and size < group]
            remedy = " or ".join(fits) or "left away with a GGUF file as DST"
            raise ParameterError("--group", f"{remedy} for this model: {name!r} has {cols} inputs", group)
        if rows % PER_WORD:
            raise ModelFileError(f"{name!r} has {rows} outputs, AWQ packs them in eights: write a GGUF file")


def plan_folder(checkpoint: Checkpoint, source: Source, grid: Grid) -> list[NewTensors]:
    """The tensors of a folder, all but the matrices of its layers in f16. A tied output layer is left away."""
    names = {canonical: name for name, canonical in folder_names(checkpoint.spec).items()}
    is_gguf = checkpoint.path.is_file()
    tensors = []
    for canonical, tensor in checkpoint.tensors.items():
        rows = split_rows(checkpoint.spec, canonical) if is_gguf else None
        if _is_rounded(canonical, tensor.shape):
            module = names[canonical].removesuffix(".weight")
            tensors.append(_layer(module, tensor.shape, partial(source.rounded, canonical, rows, grid), grid.group))
        else:
            make = partial(_halves, source, canonical, rows)
            tensors.append(NewTensors({names[canonical]: ("F16", tensor.shape)}, make))
    return tensors


def write_folder(folder: Path, texts: Texts, tensors: Sequence[NewTensors], done: Callable[[int], None]) -> None:
    """Make `folder`. `done` is told of each entry of `tensors`."""
    folder.mkdir()
    for name, content in texts.items():
        (folder / name).write_bytes(content)
    write_safetensors(folder / SINGLE_FILE, tensors, done)


def _is_rounded(canonical: str, shape: tuple[int, ...]) -> bool:
    return canonical.startswith("layers.") and len(shape) == 2


def _layer(module: str, shape: tuple[int, ...], rounded: Callable[[], Rounded], group: int) -> NewTensors:
    rows, cols = shape
    words, groups = rows // PER_WORD, cols // group
    layouts = (("I32", (cols, words)), ("I32", (groups, words)), ("F16", (groups, rows)))
    layout = {f"{module}.{part}": layout for part, layout in zip(PARTS, layouts, strict=True)}
    return NewTensors(layout, lambda: layer_parts(rounded()))


def _halves(source: Source, name: str, rows: Rows | None) -> list[Bytes]:
    with np.errstate(over="ignore"):
        halves = source.values(name, rows).astype(np.float16)
    if not np.isfinite(halves).all():
        raise ModelFileError(f"tensor {name!r} has a value that f16 does not hold: write a GGUF file")
    return [halves.reshape(-1).view(np.uint8)]
