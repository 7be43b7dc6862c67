"""Fixtures for the tests of downloads."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from file_server import FileServer


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer() as running:
        yield running


@pytest.fixture
def env(tmp_path: Path, server: FileServer, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A machine with empty caches, whose hubs are `server`."""
    monkeypatch.setenv("TYPEBAR_CACHE", str(tmp_path / "typebar"))
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    return dict(
        os.environ,
        HF_HOME=str(tmp_path / "hf"),
        HF_ENDPOINT=server.url,
        MODELSCOPE_DOMAIN=server.url,
        HF_HUB_DISABLE_TELEMETRY="1",
        PYTHONPATH=os.pathsep.join(sys.path),
    )
