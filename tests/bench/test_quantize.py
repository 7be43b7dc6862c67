"""Files of one block type that llama.cpp's quantizer makes of others."""

import sys
from pathlib import Path

import numpy as np
import pytest

from typebar.bench.engines import BLOCK_TYPES, RIVALS

gguf = pytest.importorskip("gguf")
pytest.importorskip("xllamacpp")


def made(kind: str, source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TYPEBAR_CACHE", str(cache))
    return RIVALS[f"llama.cpp-{kind.lower()}"].model(source, sys.executable)


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_matrices_get_the_type_and_the_rest_stays(
    kind: str, tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = gguf.GGUFReader(tiny_path), gguf.GGUFReader(made(kind, tiny_path, tmp_path, monkeypatch))
    for before, after in zip(old.tensors, new.tensors, strict=True):
        assert before.name == after.name and before.shape.tolist() == after.shape.tolist()
        if len(before.shape) == 1:
            assert np.array_equal(before.data, after.data)
            continue
        assert after.tensor_type.name == kind
        weights = gguf.dequantize(before.data, before.tensor_type)
        error = gguf.dequantize(after.data, after.tensor_type) - weights
        assert 0 < np.abs(error).mean() < 0.12 * np.abs(weights).mean()
    changed = {"general.file_type", *(name for name in old.fields if name.startswith("GGUF."))}
    for name in old.fields.keys() - changed:
        assert np.array_equal(old.fields[name].contents(), new.fields[name].contents()), name


def test_blocks_are_those_of_the_format(tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = gguf.GGUFReader(tiny_path), gguf.GGUFReader(made("Q4_0", tiny_path, tmp_path, monkeypatch))
    matrices = [(a, b) for a, b in zip(old.tensors, new.tensors, strict=True) if len(a.shape) == 2]
    assert matrices
    for before, after in matrices:
        expected = gguf.quantize(gguf.dequantize(before.data, before.tensor_type), after.tensor_type)
        assert (expected == after.data).mean() > 0.999, before.name  # a quotient may be rounded otherwise


def test_file_is_made_once(tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = made("Q4_0", tiny_path, tmp_path, monkeypatch)
    moment = first.stat().st_mtime_ns
    assert made("Q4_0", tiny_path, tmp_path, monkeypatch) == first and first.stat().st_mtime_ns == moment
