"""A Hugging Face folder as plain data: its texts, its tensors, and what typebar leaves alone of them."""

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from typebar.errors import ModelFileError
from typebar.model.checkpoint import Checkpoint
from typebar.model.choose import CONFIG, QUANTIZE_CONFIG
from typebar.model.dequantize import Bytes, dequantize
from typebar.model.hf_config import spec_from_config
from typebar.model.names import PLAIN_TYPES, folder_names, match_folder
from typebar.model.quantization import Quantization, read_quantization
from typebar.model.quantized_folder import quantized_layers
from typebar.model.safetensors import parse_object, read_folder, read_prefix
from typebar.model.spec import ModelSpec
from typebar.model.tensor import FileTensor, MadeTensor, Tensor
from typebar.text.tokenizer_json import TokenizerFiles

log = logging.getLogger(__name__)

MAX_CONFIG_BYTES = 1 << 20
COMPARED_PIECES, PIECE_BYTES = 64, 4096


def open_folder(folder: Path) -> Checkpoint:
    """The model in `folder`. Raises ModelFileError, naming the entry at fault, for what is damaged or not run."""
    spec, tokenizer, quantization = read_folder_texts(folder)
    tensors = read_folder(folder)
    _check_unused(spec, tensors)
    found, orders = quantized_layers(spec, quantization, tensors) if quantization else (tensors, {})
    return Checkpoint(
        path=folder,
        spec=spec,
        tensors={**_canonical(spec, match_folder(spec, folder, found)), **orders},
        usable_vocab=tokenizer.used_ids(spec.vocab_size),
        build_tokenizer=partial(tokenizer.build, spec.vocab_size),
    )


def _canonical(spec: ModelSpec, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as GGUF files have them: there the norms of Gemma hold what they multiply with, here 1 less."""
    if spec.architecture != "gemma3":
        return tensors
    return {name: _plus_one(tensor) if name.endswith("norm") else tensor for name, tensor in tensors.items()}


def _plus_one(vector: Tensor) -> MadeTensor:
    def make() -> Bytes:
        return (dequantize(vector.read(), vector.type, vector.shape) + np.float32(1)).view(np.uint8)

    return MadeTensor(vector.name, "F32", vector.shape, vector.path, vector.nbytes, make)


def read_folder_texts(folder: Path) -> tuple[ModelSpec, TokenizerFiles, Quantization | None]:
    """What a Hugging Face folder says besides the weights. Raises ModelFileError for a model that cannot be run."""
    path, older = folder / CONFIG, folder / QUANTIZE_CONFIG
    config = _read_object(path)
    quantization = read_quantization(config, path, _read_object(older) if older.is_file() else None)
    return spec_from_config(config, path), TokenizerFiles.read(folder), quantization


def _read_object(path: Path) -> dict[str, Any]:
    return parse_object(path, read_prefix(path, MAX_CONFIG_BYTES))


def _check_unused(spec: ModelSpec, tensors: Mapping[str, FileTensor]) -> None:
    """Two kinds of tensors are left alone, which is right for certain values only."""
    embed, head = tensors.get("model.embed_tokens.weight"), tensors.get("lm_head.weight")
    if spec.tied_embeddings and head and embed and not _same(head, embed):
        log.warning(
            "%s: 'lm_head.weight' differs from the embedding, which serves instead: 'tie_word_embeddings' is true",
            head.path,
        )
    known = folder_names(spec)
    for name, tensor in tensors.items():
        if name.endswith("_proj.bias") and name not in known and not _is_zero(tensor):
            what = "the attention's output" if name.endswith(".o_proj.bias") else "a layer without one in this family"
            raise ModelFileError(f"{tensor.path}: {name!r} is a bias of {what}, which typebar lacks")


def _same(a: FileTensor, b: FileTensor) -> bool:
    """Whether two tables agree in a sample: 64 pieces of 4 kB, evenly spread, the first and the last among them.

    A model is opened several times by some commands, and both tables of one of 0.5B take 544 MB in BF16.
    """
    if (a.type, a.shape) != (b.type, b.shape):
        return False
    count = min(PIECE_BYTES, a.nbytes)
    with a.path.open("rb", buffering=0) as first, b.path.open("rb", buffering=0) as second:
        for piece in range(COMPARED_PIECES):
            start = (a.nbytes - count) * piece // (COMPARED_PIECES - 1)
            first.seek(a.offset + start)
            second.seek(b.offset + start)
            if first.read(count) != second.read(count):
                return False
    return True


def _is_zero(vector: FileTensor) -> bool:
    is_plain = vector.type in PLAIN_TYPES and len(vector.shape) == 1
    return is_plain and not dequantize(vector.read(), vector.type, vector.shape).any()
