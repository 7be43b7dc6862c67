"""A sequence gives the same bits however it is cut, whoever runs beside it, on every instruction set."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tiny_model import write_tiny_gguf
from typebar import _native
from typebar.bench.quality import mixed_tokens, sequence_logits
from typebar.engine.blocks import blocks_for
from typebar.model.load import LoadedModel, load_model

MIXED_TYPES = {
    "q": "Q5_0", "k": "Q8_0", "v": "Q6_K", "o": "Q5_1", "gate": "Q4_K", "up": "Q4_0", "down": "Q5_K", "embed": "Q8_0",
    "layers.1.q": "Q4_1", "layers.1.o": "F16", "layers.1.down": "BF16",
}  # fmt: skip
LENGTH = 700  # beyond one segment of attention (512)


Load = Callable[..., LoadedModel]


@pytest.fixture(params=[("keep", "f16"), ("keep", "q8"), ("q4", "f16")], ids="-".join)
def load(request: pytest.FixtureRequest) -> Load:
    quantization, kv_dtype = request.param
    return partial(
        load_model, max_model_len=1024, max_num_seqs=8, max_step_tokens=2048, quantization=quantization,
        kv_dtype=kv_dtype,
    )  # fmt: skip


@pytest.fixture(scope="module", params=["qwen2", "qwen3", "llama", "gemma3"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with a matrix of every format, and key biases of which 8-bit keys keep some apart."""
    return write_tiny_gguf(
        tmp_path_factory.mktemp("invariance") / "m.gguf", request.param, MIXED_TYPES, hidden_size=256, num_heads=14,
        num_kv_heads=2, head_dim=32, intermediate_size=512, context_length=1024, tied_embeddings=False, key_bias=6.0,
    ).path  # fmt: skip


def tokens_of(loaded: LoadedModel, count: int, seed: int = 2) -> list[int]:
    return np.random.default_rng(seed).integers(0, loaded.usable_vocab, count).tolist()


def random_chunks(total: int, seed: int) -> list[int]:
    rng = np.random.default_rng(seed)
    bounds = np.sort(rng.choice(np.arange(1, total), rng.integers(2, 12), replace=False))
    return np.diff([0, *bounds]).tolist()


def batched_logits(
    loaded: LoadedModel, sequences: list[list[int]], starts: list[int] | None = None, table: np.ndarray | None = None
) -> list[np.ndarray]:
    """Logits of several sequences computed in one step; their blocks are interleaved."""
    count, width = len(sequences), blocks_for(loaded.max_model_len)
    table = block_tables(loaded, count) if table is None else table
    lengths = np.array([len(tokens) for tokens in sequences], np.int32)
    logits = loaded.native.logits(
        np.concatenate(sequences).astype(np.int32), lengths, np.array(starts or [0] * count, np.int32), table[:, :width]
    )
    return np.split(logits, np.cumsum(lengths)[:-1])


def block_tables(loaded: LoadedModel, count: int) -> np.ndarray:
    width = loaded.kv_blocks // count
    return np.arange(width * count, dtype=np.int32).reshape(width, count).T.copy()


@pytest.mark.parametrize("chunks", [[1], [16] * 43, [511, 1, 1], [3, 4, 5], "random", "random again"])
def test_chunked_prefill_equals_one_shot(load: Load, tiny: Path, chunks: list[int] | str) -> None:
    loaded = load(tiny)
    tokens = tokens_of(loaded, LENGTH)
    whole = sequence_logits(loaded, tokens, [])
    if isinstance(chunks, str):
        chunks = random_chunks(LENGTH, len(chunks))
    np.testing.assert_array_equal(sequence_logits(loaded, tokens, chunks), whole)


def test_decoding_equals_prefill(load: Load, tiny: Path) -> None:
    loaded = load(tiny)
    tokens = tokens_of(loaded, 530)
    whole = sequence_logits(loaded, tokens, [])
    np.testing.assert_array_equal(sequence_logits(loaded, tokens, [500, *[1] * 29]), whole)


def test_alone_equals_in_a_batch_of_eight(load: Load, tiny: Path) -> None:
    loaded = load(tiny, kv_memory=1 << 30)
    lengths = [1, 2, 3, 17, 64, 100, 257, 529]
    sequences = [tokens_of(loaded, length, seed=length) for length in lengths]
    together = batched_logits(loaded, sequences)
    for tokens, logits in zip(sequences, together, strict=True):
        np.testing.assert_array_equal(sequence_logits(loaded, tokens, []), logits)


def test_decoding_beside_prefills_equals_alone(load: Load, tiny: Path) -> None:
    """Sequences of every kind in one step: one in its middle, some that decode, new ones."""
    loaded = load(tiny, kv_memory=1 << 30)
    sequences = [tokens_of(loaded, length, seed=length) for length in (600, 33, 520, 90, 7, 200, 16, 64)]
    alone = [sequence_logits(loaded, tokens, []) for tokens in sequences]
    starts = [300, 32, 519, 45, 6, 0, 15, 0]
    table = block_tables(loaded, 8)
    for row, (tokens, start) in enumerate(zip(sequences, starts, strict=True)):
        if start:
            batched_logits(loaded, [tokens[:start]], table=table[row : row + 1])
    rest = [tokens[start:] for tokens, start in zip(sequences, starts, strict=True)]
    for logits, whole, start in zip(batched_logits(loaded, rest, starts, table), alone, starts, strict=True):
        np.testing.assert_array_equal(logits, whole[start:])


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads(load: Load, tiny: Path, threads: int) -> None:
    spec = load(tiny, threads=1)
    tokens = tokens_of(spec, 550)
    many = load(tiny, threads=threads)
    np.testing.assert_array_equal(sequence_logits(many, tokens, [550]), sequence_logits(spec, tokens, [37]))


@pytest.mark.parametrize("isa", [name for name in _native.cpu_info()["usable_isas"] if name != "scalar"])
def test_every_instruction_set_equals_plain_code(load: Load, tiny: Path, isa: str) -> None:
    fast, plain = load(tiny, isa=isa), load(tiny, isa="scalar")
    assert (fast.native.isa, plain.native.isa) == (isa, "scalar")
    tokens = tokens_of(fast, 550)
    np.testing.assert_array_equal(sequence_logits(fast, tokens, []), sequence_logits(plain, tokens, [5]))


def test_real_model_chunked_and_in_a_batch(load: Load, coder_path: Path) -> None:
    loaded = load(coder_path)
    tokens = mixed_tokens(coder_path, 160)
    whole = sequence_logits(loaded, tokens, [])
    np.testing.assert_array_equal(sequence_logits(loaded, tokens, [1, 5, 90, 33]), whole)
    parts = [tokens[i : i + 5 + 4 * i] for i in range(7)]
    *_, last = batched_logits(loaded, [*parts, tokens])
    np.testing.assert_array_equal(last, whole)


@pytest.mark.skipif(_native.cpu_info()["best_isa"] == "scalar", reason="plain code is all this processor runs")
def test_real_model_on_plain_code(load: Load, coder_path: Path) -> None:
    tokens = mixed_tokens(coder_path, 24)
    fast = sequence_logits(load(coder_path), tokens, [])
    np.testing.assert_array_equal(sequence_logits(load(coder_path, isa="scalar"), tokens, []), fast)
