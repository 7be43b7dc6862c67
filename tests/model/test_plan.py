"""The plan, made from the header alone, against what the native core holds once a model is loaded."""

from math import prod
from pathlib import Path

import pytest
from tiny_folder import write_tiny_folder

from tiny_model import TinyModel, write_tiny_gguf
from typebar.config import KV_DTYPES, QUANTIZATIONS
from typebar.engine.blocks import BLOCK_TOKENS
from typebar.memory import MIB
from typebar.model.block_types import BY_NAME
from typebar.model.gguf import GGUFFile
from typebar.model.load import load_model
from typebar.model.plan import IN_FILE, OTHER_MEMORY, Plan, open_plan

PARTS = ["q", "k", "v", "o", "gate", "up", "down"]


def expect_as_loaded(path: Path, quantization: str, kv_dtype: str = "f16") -> Plan:
    plan = open_plan(path, quantization, kv_dtype)
    loaded = load_model(
        path, quantization=quantization, kv_dtype=kv_dtype, max_model_len=64, max_num_seqs=1, max_step_tokens=32
    )
    held = {(t.name, t.format, t.rows, t.cols, t.bytes) for t in plan.matrices}
    assert held == set(loaded.native.describe())
    memory = loaded.native.memory()
    assert plan.weight_bytes == memory["weights"]
    assert plan.token_bytes(screened_head=loaded.native.screens) == memory["token_read"]
    assert plan.kv_token_bytes * BLOCK_TOKENS == memory["kv_block"]
    return plan


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_real_model_is_held_as_planned(coder_path: Path, quantization: str) -> None:
    plan = expect_as_loaded(coder_path, quantization)
    assert plan.file_bytes == coder_path.stat().st_size
    assert plan.token_bytes() <= plan.weight_bytes <= plan.held_bytes


def test_keys_and_values_of_8_bits_take_little_more_than_half(coder_path: Path) -> None:
    f16, q8 = (expect_as_loaded(coder_path, "keep", kv_dtype) for kv_dtype in KV_DTYPES)
    assert q8.kv_token_bytes == f16.kv_token_bytes * (64 + 4) // (2 * 64)
    room = {"kv_memory": 4096 * f16.kv_token_bytes, "max_model_len": 64}
    blocks = [load_model(coder_path, kv_dtype=kv_dtype, **room).kv_blocks for kv_dtype in KV_DTYPES]
    assert blocks == [256, 256 * 128 // 68]


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
@pytest.mark.parametrize(("tied", "first"), [(True, 6), (False, 0), (False, 8)])
def test_every_type_is_held_as_planned(tmp_path: Path, quantization: str, tied: bool, first: int) -> None:
    names = list(BY_NAME)
    types = {f"layers.0.{part}": names[(first + n) % len(names)] for n, part in enumerate(PARTS)}
    types |= {"embed": names[first], "head": names[(first + 1) % len(names)], "default": "Q8_0"}
    model = write_tiny_gguf(
        tmp_path / "m.gguf", types=types,
        hidden_size=256, head_dim=64, intermediate_size=512, vocab_size=289, tied_embeddings=tied,
    )  # fmt: skip
    plan = expect_as_loaded(model.path, quantization)
    assert [tensor.name for tensor in plan.tensors if tensor.format == IN_FILE] == ([] if tied else ["embed"])


def test_a_screened_output_layer_reads_half_of_its_codes(tmp_path: Path) -> None:
    model = write_tiny_gguf(tmp_path / "m.gguf", types="Q8_0")
    plan = open_plan(model.path)
    assert plan.token_bytes(screened_head=False) - plan.token_bytes() == 288 * 64 // 2


def test_sizes_of_a_split_file_are_those_of_all_shards(tmp_path: Path) -> None:
    model: TinyModel = write_tiny_gguf(tmp_path / "m.gguf", tensors_per_shard=10)
    shards = list(tmp_path.glob("*.gguf"))
    assert len(shards) > 1
    plan = open_plan(model.path)
    assert plan.file_bytes == sum(path.stat().st_size for path in shards)
    assert sum(t.file_bytes for t in plan.tensors) == sum(t.nbytes for t in GGUFFile.open(model.path).tensors.values())
    assert sum(t.rows * t.cols for t in plan.tensors) == sum(map(prod, (w.shape for w in model.weights.values())))


def test_memory_grows_by_keys_and_values(tmp_path: Path) -> None:
    plan = open_plan(write_tiny_gguf(tmp_path / "m.gguf").path)
    assert plan.kv_token_bytes == 2 * 2 * 2 * 2 * 16  # layers, heads, keys and values, f16, head_dim
    assert plan.memory(161) - plan.memory(1) == 160 * plan.kv_token_bytes
    assert plan.memory(1) - plan.memory(16) == 0  # a block
    assert 40 * MIB < plan.memory(16) < 50 * MIB


@pytest.mark.parametrize("quantization", ["keep", "q4"])
def test_a_folder_is_held_as_planned(tmp_path: Path, quantization: str) -> None:
    write_tiny_folder(tmp_path, dtype="bfloat16", shard_size="60KB")
    shards = list(tmp_path.glob("*.safetensors"))
    assert len(shards) > 1
    plan = expect_as_loaded(tmp_path, quantization)
    assert plan.file_bytes == sum(path.stat().st_size for path in shards)
    assert {tensor.type for tensor in plan.matrices} == {"BF16"}


@pytest.mark.parametrize("bits", ["q8", "q6", "q5", "q4"])
@pytest.mark.parametrize("spare", [0, 9000])
def test_auto_takes_the_most_bits_that_the_loader_admits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bits: str, spare: int
) -> None:
    model = write_tiny_gguf(tmp_path / "m.gguf", types="F16")
    plan = open_plan(model.path, bits)
    context = plan.spec.context_length
    room = plan.held_bytes + OTHER_MEMORY + context * plan.kv_token_bytes + spare
    for module in ("plan", "load"):
        monkeypatch.setattr(f"typebar.model.{module}.available_memory", lambda: (room, "the test"))
    loaded = load_model(model.path, quantization="auto", max_num_seqs=1, max_step_tokens=32)
    assert loaded.config.quantization == bits
    assert loaded.max_model_len == context


def test_auto_keeps_what_is_quantized(tmp_path: Path) -> None:
    model = write_tiny_gguf(tmp_path / "m.gguf", types="Q4_0")
    assert open_plan(model.path, "auto").quantization == "keep"
