"""Tokenizers of the real models, and their GGUF metadata."""

from pathlib import Path
from typing import Any

import pytest

from typebar.model.gguf import GGUFFile
from typebar.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def coder_metadata(coder_path: Path) -> dict[str, Any]:
    return dict(GGUFFile.open(coder_path).metadata)


@pytest.fixture(scope="session")
def smollm_metadata(smollm_path: Path) -> dict[str, Any]:
    return dict(GGUFFile.open(smollm_path).metadata)


@pytest.fixture(scope="session")
def coder(coder_metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_gguf(coder_metadata)


@pytest.fixture(scope="session")
def smollm(smollm_metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_gguf(smollm_metadata)


@pytest.fixture(scope="session")
def gemma_metadata(gemma_path: Path) -> dict[str, Any]:
    return dict(GGUFFile.open(gemma_path).metadata)


@pytest.fixture(scope="session")
def gemma(gemma_metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_gguf(gemma_metadata)
