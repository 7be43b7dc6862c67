"""Writers of AWQ, GPTQ and compressed-tensors folders, made from descriptions of the formats, not from our readers."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from tiny_folder import edit_json, tiny_network, write_tiny_tokenizer

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # nibble i of a word is this output


@dataclass(frozen=True)
class Rounded:
    """Codes [outputs, inputs], f16 scales and zeros [outputs, groups], the group of each input; and their weights."""

    codes: NDArray[np.int32]
    scales: NDArray[np.float16]
    zeros: NDArray[np.int32]
    group_of: NDArray[np.int32]

    @property
    def weights(self) -> NDArray[np.float32]:
        zeros, scales = self.zeros[:, self.group_of], self.scales[:, self.group_of].astype(np.float32)
        return (self.codes - zeros).astype(np.float32) * scales


def round_to_nearest(
    weights: NDArray[np.float32], bits: int, group: int, symmetric: bool, order: NDArray[np.int64] | None = None
) -> Rounded:
    """Groups of `group` inputs (-1: all) as they stand in `order`."""
    rows, cols = weights.shape
    group = cols if group == -1 else group
    top = (1 << bits) - 1
    group_of = np.empty(cols, np.int32)
    group_of[np.arange(cols) if order is None else order] = np.arange(cols) // group
    by_group = weights[:, np.argsort(group_of, kind="stable")].reshape(rows, -1, group)
    low, high = np.minimum(by_group.min(axis=2), 0), np.maximum(by_group.max(axis=2), 0)
    if symmetric:
        scales = (2 * np.maximum(-low, high) / top).astype(np.float16)
        zeros = np.full(scales.shape, (top + 1) // 2, np.int32)
    else:
        scales = ((high - low) / top).astype(np.float16)
        zeros = np.clip(np.rint(-low / _steps(scales)), 1, top).astype(np.int32)
    codes = np.rint(weights / _steps(scales)[:, group_of]) + zeros[:, group_of]
    return Rounded(np.clip(codes, 0, top).astype(np.int32), scales, zeros, group_of)


def _steps(scales: NDArray[np.float16]) -> NDArray[np.float32]:
    """To divide by: groups of zeros have a scale of 0."""
    return np.where(scales == 0, np.float16(1), scales).astype(np.float32)


def pack(codes: NDArray[np.int32], bits: int, order: list[int] | None = None) -> NDArray[np.int32]:
    """[n, m] → [n, m·bits / 32]: each word is so many neighbours of a row, in `order` from its lowest bits on."""
    per_word = 32 // bits
    words = np.zeros((len(codes), codes.shape[1] // per_word), np.uint32)
    for place in range(per_word):
        words |= codes[:, (order or range(per_word))[place] :: per_word].astype(np.uint32) << np.uint32(bits * place)
    return words.view(np.int32)


def awq_parts(layer: Rounded) -> dict[str, NDArray[Any]]:
    return {
        "qweight": pack(layer.codes.T, 4, AWQ_ORDER),
        "qzeros": pack(layer.zeros.T, 4, AWQ_ORDER),
        "scales": np.ascontiguousarray(layer.scales.T),
    }


def gptq_parts(layer: Rounded, bits: int, version: int = 1) -> dict[str, NDArray[Any]]:
    return {
        "qweight": np.ascontiguousarray(pack(layer.codes, bits).T),
        "qzeros": pack(layer.zeros.T - (version == 1), bits),
        "scales": np.ascontiguousarray(layer.scales.T),
        "g_idx": layer.group_of,
    }


def compressed_parts(layer: Rounded, bits: int, layout: str, symmetric: bool) -> dict[str, Any]:
    """By the packer of the compressed-tensors package, as torch tensors with scales in bfloat16."""
    import torch
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    def signed(values: NDArray[np.int32]) -> torch.Tensor:
        return torch.from_numpy((values - (1 << bits - 1)).astype(np.int8))

    codes, zeros = signed(layer.codes), signed(layer.zeros)
    parts = {"weight_scale": torch.from_numpy(layer.scales)}
    if layout == "pack-quantized":
        parts |= {"weight_packed": pack_to_int32(codes, bits), "weight_shape": torch.tensor(codes.shape)}
        zeros = pack_to_int32(zeros, bits, packed_dim=0)
    else:
        parts["weight"] = codes
    return parts if symmetric else parts | {"weight_zero_point": zeros}


def awq_config(group: int, **more: Any) -> dict[str, Any]:
    return {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm",
            "modules_to_not_convert": None, **more}  # fmt: skip


def gptq_config(bits: int, group: int, version: int = 1, **more: Any) -> dict[str, Any]:
    layout = "gptq" if version == 1 else "gptq_v2"
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "checkpoint_format": layout, "desc_act": False,
            "sym": True, "damp_percent": 0.01, "true_sequential": True, **more}  # fmt: skip


def compressed_config(bits: int, group: int, layout: str, symmetric: bool = True, **more: Any) -> dict[str, Any]:
    weights = {
        "num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "channel" if group == -1 else "group",
        "group_size": None if group == -1 else group, "dynamic": False, "actorder": None, "observer": "minmax",
    }  # fmt: skip
    inputs = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
    scheme = {"targets": ["Linear"], "weights": weights, "output_activations": None,
              "input_activations": inputs if layout == "int-quantized" else None}  # fmt: skip
    return {"quant_method": "compressed-tensors", "format": layout, "quantization_status": "compressed",
            "ignore": ["lm_head"], "kv_cache_scheme": None, "config_groups": {"group_0": scheme}, **more}  # fmt: skip


Parts = Callable[[str, NDArray[np.float32]], tuple[dict[str, Any], NDArray[np.float32]]]


def awq_writer(group: int) -> Parts:
    def parts(module: str, weights: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
        layer = round_to_nearest(weights, 4, group, False)
        return awq_parts(layer), layer.weights

    return parts


def gptq_writer(bits: int, group: int, symmetric: bool, version: int, sorts: bool) -> Parts:
    """`sorts`: with an order of inputs that layers with the same input share."""
    rng, orders = np.random.default_rng(1), dict[str, np.ndarray]()

    def parts(module: str, weights: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
        shared = module.replace("k_proj", "q_proj").replace("v_proj", "q_proj").replace("up_proj", "gate_proj")
        order = orders.setdefault(shared, rng.permutation(weights.shape[1])) if sorts else None
        layer = round_to_nearest(weights, bits, group, symmetric, order)
        return gptq_parts(layer, bits, version), layer.weights

    return parts


def compressed_writer(bits: int, group: int, layout: str, symmetric: bool) -> Parts:
    def parts(module: str, weights: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
        layer = round_to_nearest(weights, bits, group, symmetric)
        return compressed_parts(layer, bits, layout, symmetric), layer.weights

    return parts


def write_quantized_folder(
    folder: Path, quantization_config: dict[str, Any] | None, parts: Parts, architecture: str = "qwen2", **config: Any
) -> Any:
    """A tiny model whose layers `parts` (module, weights) turns into tensors and the weights that they stand for.

    Returns the network with those weights. Embeddings, norms and biases stay as they are.
    """
    import torch
    from safetensors.torch import save_file as save_torch

    network = tiny_network(architecture, **config)
    network.config.save_pretrained(folder)
    write_tiny_tokenizer(folder)
    if quantization_config:
        edit_json(folder / "config.json", quantization_config=quantization_config)
    state = {name: value.clone() for name, value in network.state_dict().items()}
    for name in [name for name in state if name.endswith("_proj.weight")]:
        module = name.removesuffix(".weight")
        tensors, weights = parts(module, state.pop(name).numpy())
        network.get_submodule(module).weight.data = torch.from_numpy(weights)
        state |= {f"{module}.{part}": torch.as_tensor(value).contiguous() for part, value in tensors.items()}
    if network.config.tie_word_embeddings:
        del state["lm_head.weight"]
    save_torch(state, folder / "model.safetensors", {"format": "pt"})
    return network


def rewrite(folder: Path, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    """Changes the tensors of a folder."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
