"""Fixtures for every test: real weights, fetched once into the user's cache by typebar's own downloader."""

import signal
from pathlib import Path

import pytest

from tiny_model import write_tiny_gguf
from typebar.model.download import resolve_model

# A shell that runs a job in the background ignores SIGINT for it, and children inherit that: Ctrl-C would mean nothing.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def coder_path() -> Path:
    """Qwen2.5-Coder-0.5B-Instruct, Q4_K_M, 491 MB."""
    return resolve_model("qwen2.5-coder-0.5b-instruct", progress=False).path


@pytest.fixture(scope="session")
def smollm_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1, 98 MB."""
    return resolve_model("smollm2-135m-instruct", progress=False).path


@pytest.fixture(scope="session")
def gemma_path() -> Path:
    """Gemma 3 270M, the base model, Q4_K_M, 253 MB."""
    return resolve_model("gemma-3-270m", progress=False).path


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random qwen2 of 2 layers, 288 tokens, context 2048: for what runs around the arithmetic."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    return write_tiny_gguf(path, context_length=2048).path
