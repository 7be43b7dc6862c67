"""Canonical tensor names, their shapes, and how a GGUF file and a Hugging Face folder call them.

embed, head (absent where tied), final_norm, and for each layer i `layers.{i}.` + attn_norm, q, k, v, o, q_bias, k_bias,
v_bias, q_norm, k_norm, attn_post_norm, mlp_norm, gate, up, down, mlp_post_norm. Matrices are [outputs, inputs], so
y = W·x.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from typebar.errors import ModelFileError
from typebar.model.gguf import GGUFFile
from typebar.model.spec import ModelSpec
from typebar.model.tensor import FileTensor, Tensor, TensorT

# Canonical part → name in the file; {} is the number of the layer.
_GGUF_NAMES = {
    "embed": "token_embd.weight",
    "head": "output.weight",
    "final_norm": "output_norm.weight",
    "attn_norm": "blk.{}.attn_norm.weight",
    "q": "blk.{}.attn_q.weight",
    "k": "blk.{}.attn_k.weight",
    "v": "blk.{}.attn_v.weight",
    "o": "blk.{}.attn_output.weight",
    "q_bias": "blk.{}.attn_q.bias",
    "k_bias": "blk.{}.attn_k.bias",
    "v_bias": "blk.{}.attn_v.bias",
    "q_norm": "blk.{}.attn_q_norm.weight",
    "k_norm": "blk.{}.attn_k_norm.weight",
    "attn_post_norm": "blk.{}.post_attention_norm.weight",
    "mlp_norm": "blk.{}.ffn_norm.weight",
    "gate": "blk.{}.ffn_gate.weight",
    "up": "blk.{}.ffn_up.weight",
    "down": "blk.{}.ffn_down.weight",
    "mlp_post_norm": "blk.{}.post_ffw_norm.weight",
}
# Tables of RoPE angles: the first is read into RopeSpec, the second is derived data in old conversions.
_GGUF_NOT_WEIGHTS = re.compile(r"rope_freqs\.weight|blk\.\d+\.attn_rot_embd\.weight")

# The types of numbers that a folder may hold, as safetensors and the native core call them.
PLAIN_TYPES = ("F32", "F16", "BF16")
_FOLDER_NAMES = {
    "embed": "model.embed_tokens.weight",
    "head": "lm_head.weight",
    "final_norm": "model.norm.weight",
    "attn_norm": "model.layers.{}.input_layernorm.weight",
    "q": "model.layers.{}.self_attn.q_proj.weight",
    "k": "model.layers.{}.self_attn.k_proj.weight",
    "v": "model.layers.{}.self_attn.v_proj.weight",
    "o": "model.layers.{}.self_attn.o_proj.weight",
    "q_bias": "model.layers.{}.self_attn.q_proj.bias",
    "k_bias": "model.layers.{}.self_attn.k_proj.bias",
    "v_bias": "model.layers.{}.self_attn.v_proj.bias",
    "q_norm": "model.layers.{}.self_attn.q_norm.weight",
    "k_norm": "model.layers.{}.self_attn.k_norm.weight",
    "mlp_norm": "model.layers.{}.post_attention_layernorm.weight",
    "gate": "model.layers.{}.mlp.gate_proj.weight",
    "up": "model.layers.{}.mlp.up_proj.weight",
    "down": "model.layers.{}.mlp.down_proj.weight",
}
# Where attention's output has a norm, the name that others give to the MLP's norm is that one's.
_POST_NORM_FOLDER_NAMES = _FOLDER_NAMES | {
    "attn_post_norm": "model.layers.{}.post_attention_layernorm.weight",
    "mlp_norm": "model.layers.{}.pre_feedforward_layernorm.weight",
    "mlp_post_norm": "model.layers.{}.post_feedforward_layernorm.weight",
}
# RoPE angles of old conversions; an output layer beside a tied embedding and biases that the architecture lacks (some
# GPTQ checkpoints have one of zeros for each layer), which checkpoint.py looks at.
_FOLDER_NOT_WEIGHTS = re.compile(
    r"lm_head\.weight|model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq|"
    r"model\.layers\.\d+\.(self_attn\.[qkvo]|mlp\.(gate|up|down))_proj\.bias"
)


def expected_tensors(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Canonical name → row-major shape of every tensor that a model of this spec has."""
    hidden = spec.hidden_size
    expected: dict[str, tuple[int, ...]] = {"embed": (spec.vocab_size, hidden), "final_norm": (hidden,)}
    if not spec.tied_embeddings:
        expected["head"] = (spec.vocab_size, hidden)
    layer = _layer_shapes(spec)
    for index in range(spec.num_layers):
        expected |= {f"layers.{index}.{part}": shape for part, shape in layer.items()}
    return expected


def _layer_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    hidden, ffn = spec.hidden_size, spec.intermediate_size
    query, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm": (hidden,),
        "q": (query, hidden),
        "k": (kv, hidden),
        "v": (kv, hidden),
        "o": (hidden, query),
        "mlp_norm": (hidden,),
        "gate": (ffn, hidden),
        "up": (ffn, hidden),
        "down": (hidden, ffn),
    }
    if spec.qkv_bias:
        shapes |= {"q_bias": (query,), "k_bias": (kv,), "v_bias": (kv,)}
    if spec.qk_norm:
        shapes |= {"q_norm": (spec.head_dim,), "k_norm": (spec.head_dim,)}
    if spec.post_norms:
        shapes |= {"attn_post_norm": (hidden,), "mlp_post_norm": (hidden,)}
    return shapes


def gguf_names(spec: ModelSpec) -> dict[str, str]:
    """GGUF name → canonical name of every tensor that a model of this spec has."""
    return {_file_name(_GGUF_NAMES, canonical): canonical for canonical in expected_tensors(spec)}


def folder_names(spec: ModelSpec) -> dict[str, str]:
    """Name in a Hugging Face folder → canonical name of every tensor that a model of this spec has."""
    names = _POST_NORM_FOLDER_NAMES if spec.post_norms else _FOLDER_NAMES
    return {_file_name(names, canonical): canonical for canonical in expected_tensors(spec)}


def _file_name(names: Mapping[str, str], canonical: str) -> str:
    *layer, part = canonical.split(".")
    return names[part].format(*layer[1:])


def match_tensors(spec: ModelSpec, gguf: GGUFFile) -> dict[str, FileTensor]:
    """Canonical name → the file's tensor, each expected one exactly once.

    Raises ModelFileError naming the first tensor that is missing, misshapen or unknown.
    """
    names = gguf_names(spec)
    _refuse_unknown(spec, gguf.path, gguf.tensors, names, _GGUF_NOT_WEIGHTS)
    return _checked(spec, gguf.path, {canonical: (name, gguf.tensors.get(name)) for name, canonical in names.items()})


def match_folder(spec: ModelSpec, folder: Path, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As match_tensors, of the tensors of a Hugging Face folder."""
    names = folder_names(spec)
    _refuse_unknown(spec, folder, tensors, names, _FOLDER_NOT_WEIGHTS)
    found = {canonical: (name, tensors.get(name)) for name, canonical in names.items()}
    for name, tensor in found.values():
        if isinstance(tensor, FileTensor) and tensor.type not in PLAIN_TYPES:
            raise ModelFileError(
                f"{tensor.path}: tensor {name!r} has the type {tensor.type}, typebar reads {', '.join(PLAIN_TYPES)}: "
                "use the bfloat16 weights of this model, or a GGUF file of it"
            )
    return _checked(spec, folder, found)


def _refuse_unknown(
    spec: ModelSpec, path: Path, tensors: Iterable[str], names: Mapping[str, str], not_weights: re.Pattern[str]
) -> None:
    for name in tensors:
        if name not in names and not not_weights.fullmatch(name):
            raise ModelFileError(f"{path}: tensor {name!r:.200} is unknown for the architecture {spec.architecture}")


def _checked(spec: ModelSpec, path: Path, found: Mapping[str, tuple[str, TensorT | None]]) -> dict[str, TensorT]:
    """The tensors by canonical name, where none of them, given with its name in the file, is missing or misshapen."""
    shapes = expected_tensors(spec)
    matched: dict[str, TensorT] = {}
    for canonical, (name, tensor) in found.items():
        if tensor is None:
            raise ModelFileError(f"{path}: tensor {name!r} is missing: incomplete model, download it again")
        if tensor.shape != shapes[canonical]:
            raise ModelFileError(f"{path}: tensor {name!r} has the shape {tensor.shape}, expected {shapes[canonical]}")
        matched[canonical] = tensor
    return matched
