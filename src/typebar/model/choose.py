"""Choosing what to run of a repository or folder: a GGUF file among its quantizations, or its safetensors.

A model in safetensors is a folder of files, of which `config.json` stands for all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path, PurePosixPath

from typebar.errors import ModelFileError, TypebarError

# Best first: the balance of speed and quality on a CPU, then the larger ones, then those that only fit a big machine.
PREFERENCE = (
    "Q4_K_M", "Q8_0", "Q5_K_M", "Q6_K", "Q4_K_S", "Q5_K_S", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "F16", "BF16", "F32"
)  # fmt: skip

CONFIG = "config.json"
QUANTIZE_CONFIG = "quantize_config.json"  # of old GPTQ checkpoints
# What such a folder says besides the weights.
_TEXTS = (
    CONFIG, "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "chat_template.jinja", "model.safetensors.index.json", QUANTIZE_CONFIG,
)  # fmt: skip

_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE | re.DOTALL)
_NOT_A_MODEL = re.compile(r"mmproj|imatrix|(^|[/.-])lora[.-]", re.IGNORECASE)
_PICKLE = re.compile(r"(.*/)?((pytorch_)?model[^/]*\.bin|[^/]*\.(pt|pth|ckpt))")


def shards(file: str) -> list[str]:
    """All files of the split model that `file` belongs to, first to last; `[file]` if it is not split."""
    match = _SHARD.fullmatch(file)
    if match is None:
        return [file]
    stem, _, count = match.groups()
    return [f"{stem}-{i:05d}-of-{count}.gguf" for i in range(1, int(count) + 1)]


def has_quantization(file: str, quantization: str) -> bool:
    """Whether the name of `file` says that it is of `quantization` ("Q4_K_M"), in any case."""
    return re.search(rf"(^|[^A-Za-z0-9]){re.escape(quantization)}([^A-Za-z0-9_]|$)", file, re.IGNORECASE) is not None


def texts(files: Iterable[str]) -> list[str]:
    """Which of a repository's `files` say what a model in safetensors is, its configuration first."""
    return sorted(set(files) & set(_TEXTS), key=_TEXTS.index)


def choose(files: Iterable[str], wanted: str | None, where: str) -> str:
    """The file to take from `files` (paths relative to `where`): a GGUF file, of a split one the first shard, or the
    `config.json` of a model in safetensors.

    `wanted` is a file name, a quantization, "safetensors", or None for the first of `PREFERENCE` that is there, and for
    safetensors where no GGUF file is. Raises TypebarError if nothing fits, naming what there is.
    """
    names = sorted(files)
    models = [name for name in names if name.lower().endswith(".gguf") and not _NOT_A_MODEL.search(name)]
    firsts = [name for name in models if shards(name)[0] == name]
    if (wanted is None and not firsts) or (wanted or "").lower().endswith("safetensors"):
        return _safetensors(names, where)
    if wanted in names:
        return shards(wanted)[0]
    for quantization in (wanted,) if wanted else PREFERENCE:
        for name in sorted(firsts, key=lambda name: (len(PurePosixPath(name).parts), len(name))):
            if has_quantization(name, quantization):
                return name
    if wanted is None and len(firsts) == 1:
        return firsts[0]
    what = f"no {wanted!r}" if wanted else "no GGUF file of a type that typebar prefers"
    there = f"it has {', '.join(firsts)}: name one of these after a colon" if firsts else "it has no GGUF file"
    raise TypebarError(f"{where} has {what}; {there}")


def _safetensors(names: Collection[str], where: str) -> str:
    has_weights = any(name.endswith(".safetensors") and "/" not in name for name in names)
    if has_weights and CONFIG in names:
        return CONFIG
    if "adapter_config.json" in names:
        problem = "holds an adapter (LoRA), not a model: merge it into its base model first"
    elif has_weights:
        problem = "holds safetensors files but no config.json: take the folder that transformers reads"
    elif pickle := next(filter(_PICKLE.fullmatch, names), None):
        problem = (
            f"holds its weights as pickled Python objects ({pickle}), which can run any code when they are read, so "
            "typebar does not: take a repository with safetensors or GGUF files, or write them once with transformers' "
            "save_pretrained where you trust them"
        )
    else:
        problem = "has no GGUF file and no model in safetensors"
    raise TypebarError(f"{where} {problem}")


def model_path(file: Path) -> Path:
    """What is loaded where `file` was chosen: itself, or the folder of a model in safetensors."""
    return file.parent if file.name == CONFIG else file


def local_model(path: Path) -> Path:
    """The model that a user's `path` means: a GGUF file (any shard of a split one), a folder that holds one or a model
    in safetensors, or a .safetensors file of such a folder.

    Returns the first shard of a split model, and the folder of safetensors. Raises ModelFileError if a shard or the
    file is missing, or the folder cannot be read.
    """
    if path.is_dir():
        try:
            os.scandir(path).close()
        except OSError as error:
            raise ModelFileError(f"{path} cannot be read: {error.strerror}") from error
        # Not deeper: a folder such as /home holds models that nobody meant.
        files = [*path.glob("*"), *path.glob("*/*")]
        names = [str(file.relative_to(path)) for file in files if file.is_file()]
        chosen = path / choose(names, None, str(path))
        if chosen.name == CONFIG:
            return path
        path = chosen
    missing = [name for name in shards(path.name) if not path.with_name(name).is_file()]
    if missing:
        raise ModelFileError(f"{path.with_name(missing[0])} does not exist")
    if path.suffix.lower() == ".safetensors" and path.with_name(CONFIG).is_file():
        return path.parent
    if path.suffix.lower() != ".gguf":
        raise ModelFileError(f"{path} is not a .gguf file, nor a folder with config.json and safetensors")
    return path.with_name(shards(path.name)[0])
