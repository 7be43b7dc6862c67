"""Choosing a GGUF file: among the quantizations of a repository or folder, and among the shards of a split model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from typebar.errors import ModelFileError, TypebarError

# Best first: the balance of speed and quality on a CPU, then the larger ones, then those that only fit a big machine.
PREFERENCE = (
    "Q4_K_M", "Q8_0", "Q5_K_M", "Q6_K", "Q4_K_S", "Q5_K_S", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "F16", "BF16", "F32"
)  # fmt: skip

_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE | re.DOTALL)
_NOT_A_MODEL = re.compile(r"mmproj|imatrix|(^|[/.-])lora[.-]", re.IGNORECASE)


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


def choose(files: Iterable[str], wanted: str | None, where: str) -> str:
    """The GGUF file to take from `files` (paths relative to `where`); of a split one, the first shard.

    `wanted` is a file name, a quantization, or None for the first of `PREFERENCE` that is there.
    Raises TypebarError if nothing fits, naming what there is.
    """
    names = sorted(files)
    models = [name for name in names if name.lower().endswith(".gguf") and not _NOT_A_MODEL.search(name)]
    if wanted in names:
        return shards(wanted)[0]
    firsts = [name for name in models if shards(name)[0] == name]
    if not firsts:
        raise _nothing(names, where)
    for quantization in (wanted,) if wanted else PREFERENCE:
        for name in sorted(firsts, key=lambda name: (len(PurePosixPath(name).parts), len(name))):
            if has_quantization(name, quantization):
                return name
    if wanted is None and len(firsts) == 1:
        return firsts[0]
    what = f"no {wanted!r}" if wanted else "no GGUF file of a type that typebar prefers"
    raise TypebarError(f"{where} has {what}; it has {', '.join(firsts)}: name one of these after a colon")


def _nothing(names: list[str], where: str) -> TypebarError:
    if any(name.endswith(".safetensors") for name in names):
        return TypebarError(
            f"{where} holds safetensors files, which typebar does not read yet: "
            "take the GGUF form of the model, often in a repository whose name ends in -GGUF"
        )
    return TypebarError(f"{where} has no GGUF file")


def local_model(path: Path) -> Path:
    """The GGUF file that a user's `path` means: a file (any shard of a split model), or a folder that holds one.

    Returns the first shard of a split model. Raises ModelFileError if a shard or the file is missing.
    """
    if path.is_dir():
        # Not deeper: a folder such as /home holds models that nobody meant.
        files = [*path.glob("*"), *path.glob("*/*")]
        names = [str(file.relative_to(path)) for file in files if file.is_file()]
        path = path / choose(names, None, str(path))
    missing = [name for name in shards(path.name) if not path.with_name(name).is_file()]
    if missing:
        raise ModelFileError(f"{path.with_name(missing[0])} does not exist")
    if path.suffix.lower() != ".gguf":
        raise ModelFileError(f"{path} is not a .gguf file")
    return path.with_name(shards(path.name)[0])
