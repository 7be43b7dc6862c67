"""Servers that many tests share: real processes, started once."""

import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_process import ServerProcess, running
from written import Written

from tiny_model import write_tiny_gguf


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


@pytest.fixture(scope="session")
def long_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The random model with a context of 32768: prompts and answers that take seconds."""
    return write_tiny_gguf(tmp_path_factory.mktemp("long") / "long.gguf", context_length=32768).path


@pytest.fixture
def free_port() -> int:
    """A port on which nobody listens, for tests that must know it before the server says it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture
def stderr(capsys: pytest.CaptureFixture[str]) -> Iterator[Written]:
    """What the log writes, with every logger as before afterwards."""
    names = (None, "typebar", "uvicorn", "uvicorn.error", "uvicorn.access")
    loggers = [logging.getLogger(name) for name in names]
    before = [(logger, logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    loggers[0].handlers = []  # pytest's own, which would be closed
    yield Written(capsys)
    for logger, handlers, level, propagate in before:
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)
