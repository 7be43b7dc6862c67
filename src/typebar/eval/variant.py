"""A model and what is held of it: `MODEL` or `MODEL@q4`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from typebar.config import QUANTIZATIONS, EngineConfig
from typebar.errors import TypebarError
from typebar.model.checkpoint import Checkpoint, open_checkpoint
from typebar.model.download import resolve_model
from typebar.text.chat import ChatTemplate, ChatTemplateError


@dataclass(frozen=True, slots=True)
class Variant:
    """A model on this disk and the `--quant` that it is loaded with."""

    name: str
    path: Path
    quantization: str
    context_length: int

    @property
    def label(self) -> str:
        """As a user writes it."""
        return f"{self.name}@{self.quantization}"

    def context(self, wanted: int) -> int:
        """So many tokens, or as many as the model can."""
        return min(wanted, self.context_length)

    def open(self) -> Checkpoint:
        """What the header says."""
        return open_checkpoint(self.path)


def split_name(text: str) -> tuple[str, str | None]:
    """A model and what stands after its last @, if that is a quantization and not the end of a name on this disk."""
    name, at, suffix = text.rpartition("@")
    is_there = os.path.exists(text)  # noqa: PTH110 - Path.exists raises for a text too long to be a name
    return (name, suffix) if at and suffix in QUANTIZATIONS and not is_there else (text, None)


def find_variants(text: str, quantizations: Sequence[str] = ("keep",)) -> list[Variant]:
    """The model that `text` names, fetched where it must be, with each quantization, or with the one in its own name.

    Raises TypebarError where there is no such model, ParameterError for an unknown quantization.
    """
    name, own = split_name(text)
    chosen = [own] if own else list(dict.fromkeys(quantizations))
    for quantization in chosen:
        EngineConfig(quantization=quantization)
    found = resolve_model(name)
    context = open_checkpoint(found.path).spec.context_length
    return [Variant(found.name, found.path, quantization, context) for quantization in chosen]


def find_reference(text: str) -> Variant:
    """The model that others are compared with. TypebarError where a quantization is named: it is held in float32."""
    name, quantization = split_name(text)
    if quantization:
        raise TypebarError(f"--against {text}: a reference is held in float32, so give --against {name}")
    return find_variants(text)[0]


def require_chat(variant: Variant) -> None:
    """TypebarError where the model has no chat template to answer with."""
    tokenizer = variant.open().build_tokenizer()
    try:
        ChatTemplate(tokenizer.chat_template, tokenizer)
    except ChatTemplateError as error:
        raise TypebarError(f"{variant.name}: {error}") from error


def require_same_vocabulary(model: Variant, reference: Variant) -> None:
    """TypebarError where ids do not mean the same: then there is nothing to compare."""
    if model.path == reference.path:
        return
    one, other = _vocabulary(model.open()), _vocabulary(reference.open())
    if one != other:
        difference = next((id for id, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
        where = f"{len(one)} and {len(other)} tokens" if difference is None else f"token {difference} differs"
        raise TypebarError(
            f"{model.name} and {reference.name} have different vocabularies ({where}): --against needs a model with "
            "the same tokens"
        )


def _vocabulary(checkpoint: Checkpoint) -> list[bytes]:
    tokenizer = checkpoint.build_tokenizer()
    return [tokenizer.token_bytes(id) for id in range(checkpoint.usable_vocab)]
