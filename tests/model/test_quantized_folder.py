"""AWQ, GPTQ and compressed-tensors folders run with their own codes and groups."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quantizers import (
    Parts,
    awq_config,
    awq_parts,
    awq_writer,
    compressed_config,
    compressed_parts,
    compressed_writer,
    gptq_config,
    gptq_parts,
    gptq_writer,
    pack,
    rewrite,
    round_to_nearest,
    write_quantized_folder,
)
from safetensors.numpy import load_file, save_file
from test_folder import TOKENS, oracle_logits, relative_error, transformers_logits
from tiny_folder import edit_json

from typebar.bench.quality import typebar_logits
from typebar.errors import ModelFileError
from typebar.model import awq, gptq
from typebar.model.checkpoint import open_checkpoint
from typebar.model.choose import texts
from typebar.model.compressed_tensors import compressed_layer
from typebar.model.load import load_model
from typebar.model.packed_words import unpack_columns, unpack_rows
from typebar.model.plan import open_plan
from typebar.model.quantization import Quantization
from typebar.model.safetensors import read_file

SIZES: dict[str, Any] = {"hidden_size": 128, "head_dim": 32, "intermediate_size": 256}
UP = "model.layers.1.mlp.up_proj"


def check(folder: Path, config: dict[str, Any], parts: Parts, *, symmetric: bool, **more: Any) -> None:
    """In float32 only the f16 of scale times zero point differs; as it runs, the rounding of activations too."""
    network = write_quantized_folder(folder, config, parts, **{**SIZES, **more})
    truth = oracle_logits(folder, network, TOKENS, np.float16)
    assert relative_error(typebar_logits(folder, TOKENS, "f32"), truth) <= (3e-4 if symmetric else 4e-3)
    assert relative_error(typebar_logits(folder, TOKENS), truth) <= 0.03


# Runs


@pytest.mark.parametrize("group", [32, 64, 128, -1])
@pytest.mark.parametrize("architecture", ["qwen2", "llama", "qwen3"])
def test_awq(tmp_path: Path, architecture: str, group: int) -> None:
    check(tmp_path, awq_config(group), awq_writer(group), symmetric=False, architecture=architecture)


@pytest.mark.parametrize("group", [32, 64, 128, -1])
@pytest.mark.parametrize("sorts", [False, True], ids=["neighbours", "desc_act"])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("bits", "symmetric"), [(4, True), (4, False), (8, True), (8, False)])
def test_gptq(tmp_path: Path, bits: int, symmetric: bool, version: int, sorts: bool, group: int) -> None:
    config = gptq_config(bits, group, version, desc_act=sorts, sym=symmetric)
    architecture = {32: "qwen2", 64: "llama", 128: "qwen3", -1: "qwen2"}[group]
    parts = gptq_writer(bits, group, symmetric, version, sorts)
    check(tmp_path, config, parts, symmetric=symmetric, architecture=architecture)


@pytest.mark.parametrize("group", [32, 128, -1])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("bits", "layout"), [(4, "pack-quantized"), (8, "pack-quantized"), (8, "int-quantized")])
def test_compressed_tensors(tmp_path: Path, bits: int, layout: str, symmetric: bool, group: int) -> None:
    config = compressed_config(bits, group, layout, symmetric)
    check(tmp_path, config, compressed_writer(bits, group, layout, symmetric), symmetric=symmetric)


def test_logits_are_those_of_transformers(tmp_path: Path) -> None:
    """Which reads the folder itself, through the compressed-tensors package."""
    write_quantized_folder(tmp_path, compressed_config(4, 64, "pack-quantized"),
                           compressed_writer(4, 64, "pack-quantized", True), **SIZES)  # fmt: skip
    assert relative_error(typebar_logits(tmp_path, TOKENS), transformers_logits(tmp_path, TOKENS)) <= 0.03


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("bits", "layout"), [(4, "pack-quantized"), (8, "pack-quantized"), (8, "int-quantized")])
def test_values_are_those_of_the_compressed_tensors_package(
    tmp_path: Path, bits: int, layout: str, symmetric: bool
) -> None:
    """Which quantizes, packs and unpacks here by itself; 12 outputs fill a word of packed zero points by half."""
    import torch
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams
    from safetensors.torch import save_file as save_torch

    compressor = BaseCompressor.get_value_from_registry(layout)
    scheme = QuantizationScheme(**compressed_config(bits, 64, layout, symmetric)["config_groups"]["group_0"])
    weights = torch.randn((12, 256), generator=torch.Generator().manual_seed(bits))
    by_group = weights.reshape(12, 4, 64)
    scales, zeros = calculate_qparams(by_group.amin(-1), by_group.amax(-1), scheme.weights)
    state = {"weight": weights, "weight_scale": scales.half().float()} | (
        {} if symmetric else {"weight_zero_point": zeros}
    )
    packed = compressor.compress(state, scheme)
    expected = compressor.decompress(packed, scheme)["weight"].numpy()
    save_torch({f"m.{part}": value.contiguous() for part, value in packed.items()}, tmp_path / "m.safetensors")
    layer = compressed_layer(
        "m", (12, 256), read_file(tmp_path / "m.safetensors"), Quantization("compressed-tensors", bits, frozenset({64}))
    )
    codes, d, zero_codes = layer.read()
    found = np.repeat(d, 64, axis=1) * (codes.astype(np.int32) - np.repeat(zero_codes, 64, axis=1))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    assert expected.std() > 0.9


@pytest.mark.parametrize("wide", [384, 96])
def test_groups_larger_than_a_block_and_rows_that_are_one_group(tmp_path: Path, wide: int) -> None:
    """A row of 384 is three blocks of 128, one of 96 three of 32; groups of 256 are two of 128."""
    check(tmp_path / "row", gptq_config(4, -1), gptq_writer(4, -1, True, 1, False), symmetric=True,
          intermediate_size=wide)  # fmt: skip
    check(tmp_path / "256", awq_config(256), awq_writer(256), symmetric=False, hidden_size=256, head_dim=64)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_scales_of_other_types(tmp_path: Path, dtype: str) -> None:
    import torch

    def parts(module: str, weights: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
        layer = round_to_nearest(weights, 4, 32, True)
        found = compressed_parts(layer, 4, "pack-quantized", True)
        scales = found["weight_scale"].to(getattr(torch, dtype))
        kept = (layer.codes - 8) * np.repeat(scales.float().numpy(), 32, axis=1)
        return found | {"weight_scale": scales}, kept.astype(np.float32)

    check(tmp_path, compressed_config(4, 32, "pack-quantized"), parts, symmetric=True)


def test_layers_left_out_stay_as_they_are(tmp_path: Path) -> None:
    def parts(module: str, weights: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
        if module == UP or module.startswith("model.layers.0"):
            return {"weight": weights}, weights
        return gptq_writer(4, 32, True, 1, False)(module, weights)

    check(tmp_path, gptq_config(4, 32, modules_in_block_to_quantize=[["mlp.up_proj"]]), parts, symmetric=True)
    held = {name: (type, held) for name, type, held in shown(tmp_path)}
    assert held["layers.0.q"] == ("F32", "f32")
    assert held["layers.1.gate"] == ("Q4_1", "q4")


def shown(folder: Path) -> list[tuple[str, str, str]]:
    return [(tensor.name, tensor.type, tensor.format) for tensor in open_plan(folder).tensors]


def test_output_layer(tmp_path: Path) -> None:
    """GPTQModel can quantize it too."""
    network = write_quantized_folder(tmp_path, gptq_config(4, 64), gptq_writer(4, 64, True, 1, False), **SIZES)
    state = load_file(tmp_path / "model.safetensors")
    layer = round_to_nearest(state.pop("lm_head.weight"), 4, 64, True)
    state |= {f"lm_head.{part}": value for part, value in gptq_parts(layer, 4).items()}
    save_file(state, tmp_path / "model.safetensors")
    import torch

    network.lm_head.weight.data = torch.from_numpy(layer.weights)
    truth = oracle_logits(tmp_path, network, TOKENS, np.float16)
    assert relative_error(typebar_logits(tmp_path, TOKENS), truth) <= 0.03
    assert ("head", "U4_64", "q4") in shown(tmp_path)


def test_old_folder_of_gptq_says_it_in_a_file_of_its_own(tmp_path: Path) -> None:
    write_quantized_folder(tmp_path, gptq_config(4, 32, desc_act=True), gptq_writer(4, 32, True, 1, True), **SIZES)
    expected = typebar_logits(tmp_path, TOKENS)
    edit_json(tmp_path / "config.json", quantization_config=None)
    with pytest.raises(ModelFileError, match=r"tensor 'model\.layers\.0\.\S+' is unknown"):
        open_checkpoint(tmp_path)
    assert "quantize_config.json" in texts(["config.json", "quantize_config.json"])  # is fetched too
    old = {"bits": 4, "group_size": 32, "damp_percent": 0.01, "desc_act": True, "sym": True, "true_sequential": True}
    (tmp_path / "quantize_config.json").write_text(json.dumps(old))
    np.testing.assert_array_equal(typebar_logits(tmp_path, TOKENS), expected)


def test_fixed_scales_of_inputs_are_left_alone(tmp_path: Path) -> None:
    def parts(module: str, weights: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
        tensors, kept = compressed_writer(8, -1, "int-quantized", True)(module, weights)
        return tensors | {"input_scale": np.full(1, 0.1, np.float32), "input_zero_point": np.zeros(1, np.int8)}, kept

    config = compressed_config(8, -1, "int-quantized")
    config["config_groups"]["group_0"]["input_activations"] |= {"dynamic": False, "strategy": "tensor"}
    check(tmp_path, config, parts, symmetric=True)


def test_one_scale_for_a_whole_layer(tmp_path: Path) -> None:
    def parts(module: str, weights: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
        scale = np.float32(np.abs(weights).max() / 127).astype(np.float16)
        codes = np.rint(weights / np.float32(scale)).astype(np.int8)
        return {"weight": codes, "weight_scale": np.full(1, scale)}, codes * np.float32(scale)

    config = compressed_config(8, -1, "int-quantized")
    config["config_groups"]["group_0"]["weights"]["strategy"] = "tensor"
    check(tmp_path, config, parts, symmetric=True)


def test_groups_larger_than_a_row_are_the_row(tmp_path: Path) -> None:
    check(tmp_path / "a", gptq_config(4, 256), gptq_writer(4, -1, True, 1, False), symmetric=True,
          intermediate_size=128)  # fmt: skip
    config = compressed_config(4, 256, "pack-quantized")
    check(tmp_path / "b", config, compressed_writer(4, -1, "pack-quantized", True), symmetric=True,
          intermediate_size=128)  # fmt: skip


def test_biases_of_zeros_beside_every_layer(tmp_path: Path) -> None:
    """As the official GPTQ checkpoints of Qwen2.5 have them."""
    write_quantized_folder(tmp_path, gptq_config(4, 32), gptq_writer(4, 32, True, 1, False), **SIZES)
    expected = typebar_logits(tmp_path, TOKENS)
    rewrite(tmp_path, lambda state: state.update({f"{UP}.bias": np.zeros(256, np.float16)}))
    np.testing.assert_array_equal(typebar_logits(tmp_path, TOKENS), expected)
    rewrite(tmp_path, lambda state: state.update({f"{UP}.bias": np.ones(256, np.float16)}))
    with pytest.raises(ModelFileError, match=rf"'{UP}\.bias' is a bias of a layer without one"):
        open_checkpoint(tmp_path)


# Words, against what the tools themselves packed

CODES = (np.arange(8)[:, None] * 5 + np.arange(64) * 3 + np.arange(64) // 8) % 16
ZEROS = (np.arange(8)[:, None] * 3 + np.arange(2) * 7) % 15 + 1


def words(*values: int) -> np.ndarray:
    return np.array(values, np.uint32)


def test_order_of_awq() -> None:
    """The word whose nibbles are 0 2 4 6 1 3 5 7, lowest first, is the outputs 0 to 7; then words of AutoAWQ 0.2.9."""
    assert awq.unpack(words(0x75316420)[:, None]).tolist() == [[0, 1, 2, 3, 4, 5, 6, 7]]
    packed = words(0x39F5E4A0, 0x6C2817D3, 0x9F5B4A06, 0xC28E7D39)
    np.testing.assert_array_equal(awq.unpack(packed[:, None]), CODES[:, :4].T)
    np.testing.assert_array_equal(awq.unpack(words(0x71A44D71, 0xE82BB5E8)[:, None]), ZEROS.T)


def test_order_of_gptq() -> None:
    """Words of GPTQModel 7.7, zero points in the first version of the format."""
    four = words(0xA741EB85, 0x30DA741E, 0xC9630DA7)
    np.testing.assert_array_equal(unpack_rows(four[:, None], 4)[0], CODES[1, :24])
    eight = words(0x0E0B0805, 0x0A070401, 0x0704010E)
    np.testing.assert_array_equal(unpack_rows(eight[:, None], 8)[0], CODES[1, :12])
    zeros = gptq.whole_zeros(words(0x630C9630, 0xDA741DA7)[:, None], 4)
    np.testing.assert_array_equal(unpack_columns(zeros, 4), ZEROS.T)
    zeros = gptq.whole_zeros(np.array([[0x09060300, 0x0603000C], [0x010D0A07, 0x0D0A0704]], np.uint32), 8)
    np.testing.assert_array_equal(unpack_columns(zeros, 8), ZEROS.T)


@pytest.mark.parametrize("bits", [4, 8])
def test_zero_point_of_zero_borrows_from_the_next_one(bits: int) -> None:
    """The first version subtracts from whole words, so reading must add to whole words."""
    zeros = np.array([[0, 5, 0, 0, 1, 15, 0, 9]], np.int32)
    stored = pack(zeros, bits).view(np.uint32) - np.uint32(gptq.ONES[bits])
    np.testing.assert_array_equal(unpack_columns(gptq.whole_zeros(stored, bits), bits), zeros)


@pytest.mark.parametrize(("rows", "cols", "group"), [(128, 896, 128), (896, 4864, 128), (8, 32, 32), (16, 896, -1)])
def test_values_of_blocks(tmp_path: Path, rows: int, cols: int, group: int) -> None:
    """A block is f16 d, f16 m and codes, 16 low halves before 16 high ones: of k_proj of the 0.5B seven a row."""
    weights = np.random.default_rng(rows).standard_normal((rows, cols)).astype(np.float32)
    layer = round_to_nearest(weights, 4, group, False)
    save_file({f"m.{part}": value for part, value in awq_parts(layer).items()}, tmp_path / "m.safetensors")
    quantization = Quantization("awq", 4, frozenset({max(group, 0)}))
    tensor = awq.awq_layer("m", (rows, cols), read_file(tmp_path / "m.safetensors"), quantization).tensor(None)
    size = {"Q4_1": 32, "U4_64": 64, "U4_128": 128}[tensor.type]
    blocks = tensor.read().reshape(rows, cols // size, 4 + size // 2)
    assert cols // size == (7 if cols == 896 else cols // size)
    d, m = (np.ascontiguousarray(blocks[:, :, at : at + 2]).view(np.float16) for at in (0, 2))
    runs = blocks[:, :, 4:].reshape(rows, cols // size, size // 32, 16)
    codes = np.concatenate([runs & 15, runs >> 4], axis=3).reshape(rows, cols)
    np.testing.assert_array_equal(codes, layer.codes)
    d, m = (np.repeat(values[:, :, 0], size, axis=1).astype(np.float32) for values in (d, m))
    step = np.abs(d).max()
    assert np.abs(d * codes + m - layer.weights).max() <= 15 * step / 2048


# Plan


def test_plan_is_what_the_engine_holds(tmp_path: Path) -> None:
    write_quantized_folder(tmp_path, gptq_config(4, 64, desc_act=True), gptq_writer(4, 64, True, 1, True), **SIZES)
    plan = open_plan(tmp_path)
    matrices = [(m.name, m.format, m.rows, m.cols, m.bytes) for m in plan.matrices]
    native = load_model(tmp_path, threads=1).native
    assert sorted(matrices) == sorted(native.describe())
    by_name = {tensor.name: tensor for tensor in plan.tensors}
    assert by_name["layers.0.down"].type == "U4_64"
    assert by_name["layers.0.down"].bits_per_weight == 4.5
    assert by_name["layers.0.down"].file_bytes == 256 * 128 // 2 + 4 * 128 // 2 + 4 * 128 * 2
    assert {name for name in by_name if name.endswith("_order")} == {
        f"layers.{i}.{name}_order" for i in range(2) for name in ("attn", "o", "mlp")
    }
    assert open_plan(tmp_path, "auto").quantization == "keep"


def test_inspect_shows_the_types(tmp_path: Path) -> None:
    folder = tmp_path / "tiny-awq"
    write_quantized_folder(folder, awq_config(64), awq_writer(64), **SIZES)
    command = [sys.executable, "-m", "typebar", "inspect", str(folder)]
    out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert [line.split()[1:3] for line in out.splitlines() if line.startswith("layers.1.up ")] == [["U4_64", "q4"]]


def test_requantized_on_request(tmp_path: Path) -> None:
    """The order of inputs holds for weights in any form."""
    network = write_quantized_folder(
        tmp_path, gptq_config(4, 64, desc_act=True), gptq_writer(4, 64, True, 1, True), **SIZES
    )
    truth = oracle_logits(tmp_path, network, TOKENS, np.float16)
    assert relative_error(typebar_logits(tmp_path, TOKENS, "q8"), truth) <= 0.05
