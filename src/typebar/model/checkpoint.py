"""A model on disk as plain data, whether it lies there as a GGUF file or as a Hugging Face folder."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from typebar.model.gguf import GGUFFile
from typebar.model.names import match_tensors
from typebar.model.spec import ModelSpec
from typebar.model.tensor import Tensor
from typebar.text.tokenizer import UNUSED, Tokenizer, token_types


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What must be known of a model to load it. Nothing is open, and no weight is read yet.

    `tensors`: where they lie, by canonical name. `usable_vocab`: ids from there on are padding. `build_tokenizer` takes
    a fifth of a second and holds what the files say until then, 80 MB of a vocabulary of 152 000 tokens in JSON.
    """

    path: Path
    spec: ModelSpec
    tensors: Mapping[str, Tensor]
    usable_vocab: int
    build_tokenizer: Callable[[], Tokenizer]


def open_checkpoint(path: Path | str) -> Checkpoint:
    """The model in the GGUF file `path`, in the split one that it is a shard of, or in the folder `path`.

    Raises ModelFileError, naming the entry at fault, for what is damaged, incomplete or not run.
    """
    path = Path(path)
    if path.is_dir():
        from typebar.model.folder import open_folder  # brings numpy, which a GGUF file does without

        return open_folder(path)
    return _from_gguf(path)


def _from_gguf(path: Path) -> Checkpoint:
    gguf = GGUFFile.open(path)
    spec = ModelSpec.from_gguf(gguf)
    return Checkpoint(
        path=gguf.path,
        spec=spec,
        tensors=match_tensors(spec, gguf),
        usable_vocab=_usable_vocab(spec, gguf),
        build_tokenizer=partial(Tokenizer.from_gguf, gguf.metadata),
    )


def _usable_vocab(spec: ModelSpec, gguf: GGUFFile) -> int:
    """Rows of the vocabulary before the padding at its end."""
    if "tokenizer.ggml.token_type" not in gguf.metadata:
        return spec.vocab_size
    types = token_types(gguf.metadata, spec.vocab_size)
    return len(types.rstrip(bytes([UNUSED]))) or spec.vocab_size
