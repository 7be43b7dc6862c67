"""ModelSpec from the `config.json` of a Hugging Face folder.

Keys and their defaults are those of transformers, in the form of its version 5 (`rope_parameters`) and in the older one
(`rope_theta`, `rope_scaling`).
"""

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from typebar.model.config_keys import Keys, shown
from typebar.model.rope import RopeSpec
from typebar.model.spec import (
    DEFAULT_THETA,
    FEED_FORWARD_LIMIT,
    GEMMA3_LOCAL_THETA,
    GEMMA3_PATTERN,
    SUPPORTED,
    ModelSpec,
    local_windows,
    with_gemma3,
)

log = logging.getLogger(__name__)

DEFAULT_HEAD_DIM = {"qwen3": 128, "gemma3": 256}  # of the others hidden size / heads

# Model types whose architecture has another name in GGUF files; "gemma3" itself is that of the models with images.
_ARCHITECTURES = {"qwen2": "qwen2", "qwen3": "qwen3", "llama": "llama", "gemma3_text": "gemma3"}

# What models of other kinds have in their config.json.
_OTHER_KINDS = (
    (("vision_config", "vision_tower", "image_token_id"), "a model that reads images"),
    (("audio_config", "audio_token_id"), "a model that reads sound"),
    (("num_experts", "num_local_experts", "n_routed_experts"), "a mixture of experts"),
)
_LAYER_TYPES = ["full_attention", "sliding_attention"]
_ENCODERS = ("bert", "roberta", "xlm-roberta", "distilbert", "albert", "electra", "deberta-v2", "modernbert", "mpnet")

# Keys that change the computation in a way typebar lacks, with the value that means "off".
_FEATURES_NOT_RUN: dict[str, tuple[object, str]] = {
    "hidden_act": ("silu", "another activation than SiLU"),
    "mlp_bias": (False, "biases in the feed-forward layers"),
    "is_causal": (True, "attention that is not causal"),
    "use_bidirectional_attention": (False, "attention that is not causal"),
    "is_encoder_decoder": (False, "an encoder"),
    "attn_logit_softcapping": (None, "capped attention scores"),
    "final_logit_softcapping": (None, "capped logits"),
}
_GEMMA3_FEATURES_NOT_RUN = {key: of for key, of in _FEATURES_NOT_RUN.items() if key != "hidden_act"} | {
    "hidden_activation": ("gelu_pytorch_tanh", "another activation than GELU"),
}


def spec_from_config(config: Mapping[str, Any], path: Path) -> ModelSpec:
    """The spec that a parsed `config.json` states; `path` is its file, for errors and the model's name.

    Raises ModelFileError that names what is missing, out of range or not run.
    """
    keys = Keys(path, config)
    architecture = _architecture(keys)
    is_gemma3 = architecture == "gemma3"
    for key, (off, feature) in (_GEMMA3_FEATURES_NOT_RUN if is_gemma3 else _FEATURES_NOT_RUN).items():
        if config.get(key, off) not in (off, None):
            raise keys.error(f"the model has {feature} ({key} = {str(config[key])[:80]}), which typebar lacks")
    num_heads = keys.count("num_attention_heads", 1024)
    num_kv_heads = keys.count("num_key_value_heads", 1024, default=num_heads)
    if num_heads % num_kv_heads:
        raise keys.error(f"{num_heads} attention heads are not a multiple of {num_kv_heads} key/value heads")
    num_layers = keys.count("num_hidden_layers", 1024)
    hidden_size = keys.count("hidden_size", 1 << 17)
    head_dim = _head_dim(keys, architecture, hidden_size, num_heads)
    rope, context_length = _rope(keys, architecture, head_dim)
    if not is_gemma3:
        _refuse_sliding_window(keys, num_layers, context_length)
    spec = ModelSpec(
        architecture=architecture,
        name=path.parent.name or architecture,
        vocab_size=keys.count("vocab_size", 1 << 22),
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=keys.count("intermediate_size", FEED_FORWARD_LIMIT),
        rms_norm_eps=keys.number("rms_norm_eps", low=0.0, high=1.0),
        rope=rope,
        context_length=context_length,
        tied_embeddings=keys.flag("tie_word_embeddings", default=is_gemma3),
        qkv_bias=architecture == "qwen2" or keys.flag("attention_bias"),
        qk_norm=architecture in ("qwen3", "gemma3"),
        rope_interleaved=False,
    )
    return _gemma3(keys, spec) if is_gemma3 else spec


def _architecture(keys: Keys) -> str:
    model_type = keys.values.get("model_type")
    if not isinstance(model_type, str):
        raise keys.error("'model_type' is missing, the file is not the config.json of a model of transformers")
    kind = next((kind for marks, kind in _OTHER_KINDS if any(keys.values.get(mark) for mark in marks)), None)
    if model_type in _ENCODERS or keys.values.get("is_encoder_decoder") is True:
        kind = "an encoder"
    runs = f"typebar runs the dense decoders {', '.join(SUPPORTED)}"
    architecture = _ARCHITECTURES.get(model_type)
    if architecture is None or kind:
        what = f"the architecture {model_type[:80]!r}" + (f", {kind}," if kind else "")
        raise keys.error(f"{what} is not supported; {runs}")
    classes = keys.values.get("architectures")
    if isinstance(classes, list) and classes and not any(str(name).endswith("ForCausalLM") for name in classes):
        raise keys.error(f"the folder holds a {str(classes[0])[:80]}, not a model that writes text; {runs}")
    return architecture


def _gemma3(keys: Keys, spec: ModelSpec) -> ModelSpec:
    """`spec` with what the configuration says of Gemma 3 alone."""
    window = keys.count("sliding_window", 1 << 27, default=4096)
    types = keys.values.get("layer_types")
    if types is None:
        pattern = keys.count("sliding_window_pattern", 1024, default=GEMMA3_PATTERN)
        windows = local_windows(spec.num_layers, window, pattern)
    elif isinstance(types, list) and len(types) == spec.num_layers and all(kind in _LAYER_TYPES for kind in types):
        windows = tuple(window * _LAYER_TYPES.index(kind) for kind in types)
    else:
        raise keys.error(f"'layer_types' is {shown(types)}, expected {' or '.join(_LAYER_TYPES)} for each layer")
    rope = keys.object("rope_parameters")
    rope = (rope and rope.object("sliding_attention")) or Keys(keys.path, {})
    if rope.values.get("rope_type", "default") != "default":
        raise rope.error(f"layers with a window have the RoPE scaling {shown(rope.values['rope_type'])}, which typebar "
                         "lacks there")  # fmt: skip
    theta = rope.number("rope_theta", keys.number("rope_local_base_freq", GEMMA3_LOCAL_THETA), low=1.0, high=1e12)
    scale = keys.number("query_pre_attn_scalar", 256.0, low=0.0, high=1e6) ** -0.5
    return with_gemma3(spec, windows, RopeSpec(theta), scale)


def _refuse_sliding_window(keys: Keys, num_layers: int, context_length: int) -> None:
    """By layer types where they are given; else the window is in use where `use_sliding_window` says so."""
    types = keys.values.get("layer_types")
    if isinstance(types, list):
        used = any(kind != "full_attention" for kind in types)
    else:
        first = keys.values.get("max_window_layers")
        used = keys.flag("use_sliding_window") and not (isinstance(first, int) and first >= num_layers)
    if used and keys.values.get("sliding_window") is None:
        raise keys.error(f"attention has the layer types {shown(types)}, typebar runs full attention in every layer")
    if used and (window := keys.number("sliding_window")) < context_length:
        raise keys.error(f"attention is limited to a sliding window of {window:.0f} tokens, which typebar lacks")


def _head_dim(keys: Keys, architecture: str, hidden_size: int, num_heads: int) -> int:
    default = DEFAULT_HEAD_DIM.get(architecture, hidden_size // num_heads)
    if keys.values.get("head_dim") is None and architecture not in DEFAULT_HEAD_DIM and hidden_size % num_heads:
        raise keys.error(
            f"the hidden size {hidden_size} is not a multiple of {num_heads} heads and no head_dim is given"
        )
    head_dim = keys.count("head_dim", 1024, default or None)
    if head_dim % 2 or head_dim < 4:
        raise keys.error(f"heads have {head_dim} values, expected an even number from 4")
    return head_dim


def _rope(keys: Keys, architecture: str, head_dim: int) -> tuple[RopeSpec, int]:
    """The rotation, and the longest context that it is made for."""
    context_length = keys.count("max_position_embeddings", 1 << 27)
    rope = keys.object("rope_scaling") or keys.object("rope_parameters") or Keys(keys.path, {}, "rope_parameters.")
    rope = rope.object("full_attention") or rope  # given for each kind of attention, of which typebar runs this one
    merged = {key: keys.values.get(key) for key in ("rope_theta", "partial_rotary_factor")} | dict(rope.values)
    rope = Keys(rope.path, merged, rope.of)
    if rope.number("partial_rotary_factor", 1.0) != 1.0:
        raise rope.error(f"only part of each head is rotated ({rope.of}partial_rotary_factor), which typebar lacks")
    theta = _theta(rope, architecture)
    # A length beside the object wins over one within.
    source = keys if keys.values.get("original_max_position_embeddings") is not None else rope
    trained = source.count("original_max_position_embeddings", 1 << 27, context_length)
    kind = merged.get("rope_type") or merged.get("type") or "default"
    match kind:
        case "default":
            return RopeSpec(theta), context_length
        case "linear":
            return RopeSpec(theta, "linear", _factor(rope)), context_length
        case "dynamic":
            factor = _factor(rope)
            longest = min(int(context_length * factor), 1 << 27)
            return RopeSpec(theta, "dynamic", factor, original_context_length=context_length), longest
        case "yarn":
            factor = _factor(rope, context_length / trained)
            return _yarn(rope, theta, factor, trained), max(context_length, min(int(trained * factor), 1 << 27))
        case "llama3":
            return _llama3(rope, theta, trained), context_length
        case "longrope":
            return _longrope(rope, theta, trained, context_length, head_dim), context_length
    raise rope.error(
        f"the RoPE scaling {shown(kind)} is not supported; typebar runs default, linear, dynamic, yarn, llama3 and "
        "longrope"
    )


def _theta(rope: Keys, architecture: str) -> float:
    default = DEFAULT_THETA[architecture]
    if rope.values.get("rope_theta") is None:
        log.warning("%s: 'rope_theta' is missing, assuming %g; answers may degrade over long contexts",
                    rope.path, default)  # fmt: skip
    return rope.number("rope_theta", default, low=1.0, high=1e12)


def _factor(rope: Keys, default: float | None = None) -> float:
    return rope.number("factor", default, low=1e-3, high=1e4)


def _yarn(rope: Keys, theta: float, factor: float, trained: int) -> RopeSpec:
    if rope.values.get("truncate") is False:
        raise rope.error(f"YaRN without rounding ({rope.of}truncate = false) is not supported")
    attention_factor = rope.values.get("attention_factor")
    if attention_factor is not None:
        attention_factor = rope.number("attention_factor", low=1e-3, high=1e3)
    elif rope.values.get("mscale") and rope.values.get("mscale_all_dim"):
        scales = (rope.number(key, low=0.0, high=1e3) for key in ("mscale", "mscale_all_dim"))
        above, below = (1 + 0.1 * scale * math.log(max(factor, 1.0)) for scale in scales)
        attention_factor = above / below
    return RopeSpec(
        theta,
        "yarn",
        factor,
        trained,
        attention_factor=attention_factor,
        beta_fast=rope.number("beta_fast", 32.0, low=1e-3, high=1e4),
        beta_slow=rope.number("beta_slow", 1.0, low=1e-3, high=1e4),
    )


def _llama3(rope: Keys, theta: float, trained: int) -> RopeSpec:
    low, high = (rope.number(key, low=1e-3, high=1e4) for key in ("low_freq_factor", "high_freq_factor"))
    if high <= low:
        raise rope.error(f"'{rope.of}high_freq_factor' is {high:g}, expected more than low_freq_factor, {low:g}")
    return RopeSpec(theta, "llama3", _factor(rope), trained, low_freq_factor=low, high_freq_factor=high)


def _longrope(rope: Keys, theta: float, trained: int, context_length: int, head_dim: int) -> RopeSpec:
    if trained < 2:
        raise rope.error("longrope needs an original_max_position_embeddings of 2 or more")
    attention_factor = rope.values.get("attention_factor")
    return RopeSpec(
        theta,
        "longrope",
        _factor(rope, context_length / trained),
        trained,
        attention_factor=None if attention_factor is None else rope.number("attention_factor", low=1e-3, high=1e3),
        short_divisors=rope.numbers("short_factor", head_dim // 2),
        long_divisors=rope.numbers("long_factor", head_dim // 2),
    )
