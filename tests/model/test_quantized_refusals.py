"""Quantized folders that are damaged or of a kind that does not run are refused by name, before they are packed."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quantizers import (
    awq_config,
    compressed_config,
    compressed_writer,
    gptq_config,
    gptq_writer,
    rewrite,
    write_quantized_folder,
)
from tiny_folder import edit_json

from typebar.errors import ModelFileError
from typebar.model.checkpoint import open_checkpoint
from typebar.model.load import load_model

SIZES: dict[str, Any] = {"hidden_size": 128, "head_dim": 32, "intermediate_size": 256}
UP = "model.layers.1.mlp.up_proj"


@pytest.fixture(scope="module")
def sorted_gptq(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gptq")
    write_quantized_folder(folder, gptq_config(4, 32, desc_act=True), gptq_writer(4, 32, True, 1, True), **SIZES)
    return folder


@pytest.fixture
def folder(sorted_gptq: Path, tmp_path: Path) -> Path:
    shutil.copytree(sorted_gptq, tmp_path / "copy")
    return tmp_path / "copy"


COMPRESSED = compressed_config(4, 32, "pack-quantized")


def scheme(**changes: Any) -> dict[str, Any]:
    [group] = COMPRESSED["config_groups"].values()
    return {"config_groups": {"group_0": {**group, **changes}}}


def weights(**changes: Any) -> dict[str, Any]:
    return scheme(weights={**COMPRESSED["config_groups"]["group_0"]["weights"], **changes})


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no method": ({"bits": 4}, r"quantized with None, which typebar does not run \(it runs awq, gptq, compressed-tens"),
    "another method": ({"quant_method": "bitsandbytes"}, "quantized with 'bitsandbytes', .* a GGUF file of it"),
    "a method that is a list": ({"quant_method": ["awq"]}, r"quantized with \['awq'\]"),
    "gemv": (awq_config(128, version="GEMV"), "in the layout 'GEMV', typebar runs gemm: use the bfloat16"),
    "no zero points": (awq_config(128, zero_point=False), "have no zero points"),
    "3 bits of awq": (awq_config(128, bits=3), "have 3 bits, typebar runs 4 here"),
    "no bits": (awq_config(128, bits=None), r"'quantization_config\.bits' is missing"),
    "bits a text": (awq_config(128, bits="4"), r"'quantization_config\.bits' is '4'"),
    "group 0": (awq_config(0), r"'quantization_config\.group_size' is 0, expected 1 to"),
    "2 bits of gptq": (gptq_config(2, 128), "have 2 bits, typebar runs 4 and 8 here"),
    "marlin": (gptq_config(4, 128, checkpoint_format="marlin"), "the layout 'marlin', typebar runs gptq and gptq_v2"),
    "marlin, older": (gptq_config(4, 128, is_marlin_format=True), "the layout 'marlin'"),
    "words of 16 bits": (gptq_config(4, 128, pack_dtype="int16"), "packed in 'int16', not int32"),
    "desc_act a text": (gptq_config(4, 128, desc_act="yes"), r"'quantization_config\.desc_act' is 'yes'"),
    "fp8": (COMPRESSED | {"format": "float-quantized"}, "in the format 'float-quantized', typebar runs pack-quantized"),
    "fp4 in a group": (COMPRESSED | scheme(format="nvfp4-pack-quantized"), "in the format 'nvfp4-pack-quantized'"),
    "floats": (COMPRESSED | weights(type="float"), "of type 'float', typebar runs int"),
    "3 bits": (COMPRESSED | weights(num_bits=3), "have 3 bits, typebar runs 4 and 8 here"),
    "by block": (COMPRESSED | weights(strategy="block"), "shared by 'block', typebar runs group, channel and tensor"),
    "no group size": (COMPRESSED | weights(group_size=None), r"'\S+\.weights\.group_size' is missing"),
    "outputs": (COMPRESSED | scheme(output_activations={"num_bits": 8}), "outputs are quantized"),
    "activations only": (COMPRESSED | scheme(weights=None), r"group_0\.weights' is missing"),
    "not compressed": (COMPRESSED | {"quantization_status": "frozen"}, "the weights are not compressed .*= 'frozen'"),
    "keys and values": (COMPRESSED | {"kv_cache_scheme": {"num_bits": 8}}, "keys and values are quantized"),
    "transforms": (COMPRESSED | {"transform_config": {"a": {}}}, "the network has transforms"),
    "sparse": (COMPRESSED | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse .'sparse-24-bitmask'"),
    "no groups": (COMPRESSED | {"config_groups": {}}, r"'quantization_config\.config_groups' is missing"),
    "a group of nothing": (COMPRESSED | {"config_groups": {"group_0": {}}}, "names no weights"),
    "another method than the tensors'": (awq_config(32), r"layer 'model\.layers\.0\.\w+\.q_proj' has a 'qweight' of"),
    "another group": (gptq_config(4, 64, desc_act=True), r"q_proj' has a 'qzeros' of I32 .*do not belong together"),
    "other bits": (gptq_config(8, 32, desc_act=True), "q_proj' has a 'qweight' of I32 "),
    "groups of 48": (gptq_config(4, 48), "has groups of 48 of its 128 inputs, .* 32, 64 or 128"),
    "groups of 16": (gptq_config(4, 16), "has groups of 16 of its 128 inputs"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_configuration_that_does_not_run_is_refused_by_name(folder: Path, case: str) -> None:
    config, problem = REFUSED[case]
    edit_json(folder / "config.json", quantization_config=config)
    with pytest.raises(ModelFileError, match=problem):
        open_checkpoint(folder)


def test_older_key_of_compressed_tensors(folder: Path) -> None:
    edit_json(folder / "config.json", quantization_config=None, compression_config=COMPRESSED | {"format": "marlin-24"})
    with pytest.raises(ModelFileError, match="in the format 'marlin-24'"):
        open_checkpoint(folder)


def test_quantization_that_is_not_an_object(folder: Path) -> None:
    edit_json(folder / "config.json", quantization_config="awq")
    with pytest.raises(ModelFileError, match=r"'quantization_config' is 'awq', expected an object"):
        open_checkpoint(folder)


DAMAGED: dict[str, tuple[Callable[[dict[str, np.ndarray]], object], str]] = {
    "no zero points": (lambda state: state.pop(f"{UP}.qzeros"), rf"'{UP}' has no 'qzeros': incomplete model"),
    "no groups": (lambda state: state.pop(f"{UP}.g_idx"), rf"'{UP}' has no g_idx although desc_act is true"),
    "no layer": (
        lambda state: [state.pop(f"{UP}.{part}") for part in ("qweight", "qzeros", "scales", "g_idx")],
        rf"tensor '{UP}\.weight' is missing",
    ),
    "scales of integers": (
        lambda state: state.update({f"{UP}.scales": np.ones((4, 256), np.int32)}), r"has a 'scales' of I32 \(4, 256\)",
    ),
    "words cut": (
        lambda state: state.update({f"{UP}.qweight": state[f"{UP}.qweight"][:-1]}),
        r"has a 'qweight' of I32 \(15, 256\), expected I32 \(16, 256\)",
    ),
    "a group beyond": (
        lambda state: state[f"{UP}.g_idx"].__setitem__(0, 4), "'g_idx' that does not put 32 inputs in each of 4",
    ),
    "a negative group": (lambda state: state[f"{UP}.g_idx"].__setitem__(0, -1), "'g_idx' that does not put 32 inputs"),
    "groups of other sizes": (lambda state: state[f"{UP}.g_idx"].fill(1), "'g_idx' that does not put 32 inputs"),
    "an order of its own": (
        lambda state: state[f"{UP}.g_idx"].sort(),
        r"groups its inputs \(g_idx\) in another way than the others of gate, up beside it, .*without desc_act",
    ),
    "a plain layer beside": (
        lambda state: [
            state.update({f"{UP}.weight": np.ones((256, 128), np.float32)}),
            *(state.pop(f"{UP}.{part}") for part in ("qweight", "qzeros", "scales", "g_idx")),
        ],
        "in another way than the others of gate, up",
    ),
    "plain weights too": (
        lambda state: state.update({f"{UP}.weight": np.ones((256, 128), np.float32)}),
        rf"'{UP}' has a 'weight' beside its 'qweight'",
    ),
    "an infinite scale": (
        lambda state: state[f"{UP}.scales"].__setitem__((0, 0), np.inf), rf"'{UP}' has a scale, or .* not a finite num",
    ),
    "a scale that is not a number": (
        lambda state: state[f"{UP}.scales"].__setitem__((0, 0), np.nan), rf"'{UP}' has a scale, or .* not a finite num",
    ),
    "a minimum beyond f16": (
        lambda state: state[f"{UP}.scales"].__setitem__((0, 0), 1e4), rf"'{UP}' has a scale, or .* 65504 of f16",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_named(folder: Path, case: str) -> None:
    change, problem = DAMAGED[case]
    rewrite(folder, change)
    with pytest.raises(ModelFileError, match=problem):
        load_model(folder, threads=1)


def test_scales_beyond_f16_are_refused(tmp_path: Path) -> None:
    def parts(module: str, weights: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
        tensors, kept = compressed_writer(4, 32, "pack-quantized", True)(module, weights)
        return tensors | {"weight_scale": tensors["weight_scale"].float() * 1e7}, kept

    write_quantized_folder(tmp_path, COMPRESSED, parts, **SIZES)
    with pytest.raises(ModelFileError, match=r"q_proj' has a scale, or .* beyond the 65504 of f16"):
        load_model(tmp_path, threads=1)


def test_shape_beside_packed_weights_must_agree(tmp_path: Path) -> None:
    write_quantized_folder(tmp_path, COMPRESSED, compressed_writer(4, 32, "pack-quantized", True), **SIZES)
    rewrite(tmp_path, lambda state: state[f"{UP}.weight_shape"].__setitem__(1, 127))
    with pytest.raises(ModelFileError, match=rf"'{UP}' has the weight_shape \[256, 127\], expected \[256, 128\]"):
        open_checkpoint(tmp_path)
