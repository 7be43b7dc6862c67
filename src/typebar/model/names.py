"""Canonical tensor names, their shapes, and how a GGUF file calls them.

embed, head (absent where tied), final_norm, and for each layer i `layers.{i}.` + attn_norm, q, k, v, o, q_bias, k_bias,
v_bias, q_norm, k_norm, mlp_norm, gate, up, down. Matrices are [outputs, inputs], so y = W·x.
"""

import re

from typebar.errors import ModelFileError
from typebar.model.gguf import GGUFFile, GGUFTensor
from typebar.model.spec import ModelSpec

_MODEL_NAMES = {"embed": "token_embd.weight", "head": "output.weight", "final_norm": "output_norm.weight"}
_LAYER_NAMES = {
    "attn_norm": "attn_norm.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "o": "attn_output.weight",
    "q_bias": "attn_q.bias",
    "k_bias": "attn_k.bias",
    "v_bias": "attn_v.bias",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
    "mlp_norm": "ffn_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
}
# Tables of RoPE angles: the first is read into RopeSpec, the second is derived data in old conversions.
_NOT_WEIGHTS = re.compile(r"rope_freqs\.weight|blk\.\d+\.attn_rot_embd\.weight")


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
    return shapes


def gguf_names(spec: ModelSpec) -> dict[str, str]:
    """GGUF name → canonical name of every tensor that a model of this spec has."""
    return {_gguf_name(canonical): canonical for canonical in expected_tensors(spec)}


def _gguf_name(canonical: str) -> str:
    if canonical in _MODEL_NAMES:
        return _MODEL_NAMES[canonical]
    _, index, part = canonical.split(".")
    return f"blk.{index}.{_LAYER_NAMES[part]}"


def match_tensors(spec: ModelSpec, gguf: GGUFFile) -> dict[str, GGUFTensor]:
    """Canonical name → the file's tensor, each expected one exactly once.

    Raises ModelFileError naming the first tensor that is missing, misshapen or unknown.
    """
    names, shapes = gguf_names(spec), expected_tensors(spec)
    for name in gguf.tensors:
        if name not in names and not _NOT_WEIGHTS.fullmatch(name):
            raise ModelFileError(f"{gguf.path}: tensor {name!r} is unknown for the architecture {spec.architecture}")
    matched: dict[str, GGUFTensor] = {}
    for name, canonical in names.items():
        tensor = gguf.tensors.get(name)
        if tensor is None:
            raise ModelFileError(f"{gguf.path}: tensor {name!r} is missing: incomplete file, download it again")
        if tensor.shape != shapes[canonical]:
            raise ModelFileError(
                f"{gguf.path}: tensor {name!r} has the shape {tensor.shape}, expected {shapes[canonical]}"
            )
        matched[canonical] = tensor
    return matched
