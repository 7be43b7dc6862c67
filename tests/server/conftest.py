"""Servers that many tests share: real processes, started once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from server_process import ServerProcess, running


@pytest.fixture(scope="session")
def coder_server(coder_path: Path) -> Iterator[ServerProcess]:
    """The real 0.5B model with a context of 4096 and 8 seats."""
    with running(coder_path, "--max-model-len", "4096", "--max-num-seqs", "8", "--drain", "1") as server:
        yield server


@pytest.fixture(scope="session")
def tiny_server(tiny_path: Path) -> Iterator[ServerProcess]:
    """The random model of 288 tokens: fast, and its answers hold every kind of broken text. Context 2048."""
    with running(tiny_path, "--served-model-name", "tiny", "--drain", "1") as server:
        yield server
