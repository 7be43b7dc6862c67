"""Weights for engines that read no GGUF: a folder of float16 safetensors first, each engine's own format from there.

Everything is made once and kept: <cache>/bench/<digest of the GGUF file>/<form>.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from typebar.errors import TypebarError
from typebar.model.cache import cache_dir, sha256_file
from typebar.model.gguf import GGUFFile
from typebar.text.tokenizer import CONTROL


def half_precision_folder(gguf: Path) -> Path:
    """The weights of a GGUF file, dequantized, as a folder that transformers and converters read."""
    command = [sys.executable, "-m", "typebar.bench.convert", str(gguf)]
    return _made(cache_dir() / "bench" / sha256_file(gguf)[:16] / "float16", command)


def converted(folder: Path, name: str, python: str, script: Path) -> Path:
    """A folder in an engine's own format, made by its adapter in its Python from float16 weights."""
    return _made(folder.with_name(name), [python, str(script), "convert", str(folder)])


def requantized(gguf: Path, kind: str, name: str, python: str, script: Path) -> Path:
    """A GGUF file of one block type, made by an adapter in its Python from another one."""
    folder = cache_dir() / "bench" / sha256_file(gguf)[:16] / name
    return _made(folder, [python, str(script), "convert", str(gguf), kind]) / "model.gguf"


def _made(folder: Path, command: list[str]) -> Path:
    """`folder`, made by a command that gets its path as the last argument.

    It is written under another name first, so that what an interruption leaves is never taken for whole.
    """
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        part = Path(scratch) / "made"
        part.mkdir()
        done = subprocess.run([*command, str(part)], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            raise TypebarError(f"the weights could not be converted to {folder.name}:\n{done.stderr[-1000:]}")
        if not folder.exists():  # nobody else has made it meanwhile
            part.rename(folder)
    return folder


def write_half_precision(gguf: Path, folder: Path) -> None:
    """A folder of float16 safetensors with the model's configuration and tokenizer. It takes 4 bytes a weight."""
    from typebar.bench.reference import transformers_model

    network: Any = transformers_model(gguf)
    network.half().save_pretrained(folder)
    _write_tokenizer(GGUFFile.open(gguf), folder)


def _write_tokenizer(gguf: GGUFFile, folder: Path) -> None:
    """The vocabulary as a byte-level BPE. Prompts are given as ids, so how text is cut into words does not matter."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = [str(name) for name in cast("Sequence[str]", gguf.metadata["tokenizer.ggml.tokens"])]
    types = cast("Sequence[int]", gguf.metadata["tokenizer.ggml.token_type"])
    merges = [pair.partition(" ")[::2] for pair in cast("Sequence[str]", gguf.metadata["tokenizer.ggml.merges"])]
    core = Tokenizer(models.BPE(vocab={name: id for id, name in enumerate(names)}, merges=merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([name for name, kind in zip(names, types, strict=True) if kind == CONTROL])
    end = names[int(cast("int", gguf.metadata["tokenizer.ggml.eos_token_id"]))]
    fast: Any = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=end, pad_token=end)  # type: ignore[no-untyped-call]
    fast.save_pretrained(str(folder))


if __name__ == "__main__":
    write_half_precision(Path(sys.argv[1]), Path(sys.argv[2]))
