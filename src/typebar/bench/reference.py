"""What transformers computes in float32 on the dequantized weights of a GGUF file: the truth for quality figures.

Nothing comes from a hub: configuration and weights are those of the file.
"""

import hashlib
import os
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from typebar.eval.divergence import kl_divergence, log_softmax
from typebar.model.cache import cache_dir, sha256_file
from typebar.model.dequantize import dequantize
from typebar.model.gguf import GGUFFile
from typebar.model.names import folder_names, match_tensors
from typebar.model.rope import half_split_rows
from typebar.model.spec import ModelSpec
from typebar.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

CACHE_VERSION = 1


@dataclass(frozen=True, slots=True)
class Reference:
    """log p of every next token, float16 [tokens, vocab], and the most likely ids, int32 [tokens]."""

    log_probs: NDArray[np.float16]
    top: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Divergence:
    """How far logits are from the reference.

    Mean and largest KL(reference ‖ logits) over the tokens, in nats; how often the most likely id is the same, in %.
    """

    tokens: int
    mean_kl: float
    max_kl: float
    same_top_percent: float


def mixed_tokens(model: Path, count: int = 512) -> list[int]:
    """The first `count` tokens of the mixed text (English, Chinese, Spanish, code) that quality is measured on."""
    text = files("typebar.bench").joinpath("mixed.txt").read_text(encoding="utf-8")
    tokens = Tokenizer.from_gguf(GGUFFile.open(model).metadata).encode(text, add_special=True)
    if len(tokens) < count:
        raise ValueError(f"the mixed text has {len(tokens)} tokens, fewer than {count}")
    return tokens[:count]


def reference(model: Path, tokens: list[int]) -> Reference:
    """The reference for one sequence from position 0; computed once and kept in typebar's cache, 2 bytes a value."""
    key = hashlib.sha256(f"{CACHE_VERSION} {sha256_file(model)} {tokens}".encode()).hexdigest()[:24]
    path = cache_dir() / "reference" / f"{key}.npz"
    if not path.exists():
        result = _compute(model, tokens)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{key}.{os.getpid()}.npz")
        np.savez(temporary, log_probs=result.log_probs, top=result.top)
        temporary.replace(path)
    with np.load(path) as arrays:
        return Reference(arrays["log_probs"], arrays["top"])


def _compute(model: Path, tokens: list[int]) -> Reference:
    import torch

    network = transformers_model(model)
    with torch.inference_mode():
        log_probs = network(torch.tensor([tokens])).logits[0].log_softmax(-1)
    return Reference(log_probs.to(torch.float16).numpy(), log_probs.argmax(-1).to(torch.int32).numpy())


def divergence(expected: Reference, logits: NDArray[np.float32]) -> Divergence:
    """Compares logits [tokens, vocab] with the reference, a position at a time in float64."""
    kl = np.empty(len(logits))
    for position, row in enumerate(logits):
        kl[position] = kl_divergence(log_softmax(expected.log_probs[position]), log_softmax(row))
    same = float((logits.argmax(axis=-1) == expected.top).mean())
    return Divergence(len(logits), float(kl.mean()), float(kl.max()), 100 * same)


def transformers_model(model: Path) -> "PreTrainedModel":
    """The float32 network of transformers with the weights of a GGUF file."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    gguf = GGUFFile.open(model)
    spec = ModelSpec.from_gguf(gguf)
    if spec.rope.scaling != "none" or spec.rope.frequency_divisors is not None:
        raise ValueError(f"{model}: the reference has no RoPE scaling")
    config = AutoConfig.for_model(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        intermediate_size=spec.intermediate_size,
        rms_norm_eps=spec.rms_norm_eps,
        max_position_embeddings=spec.context_length,
        tie_word_embeddings=spec.tied_embeddings,
        **_family(spec),
    )
    network = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    network.eval()
    missing, unexpected = network.load_state_dict(_state(gguf, spec), strict=False, assign=True)
    if unexpected or set(missing) - {"lm_head.weight"} or (missing and not spec.tied_embeddings):
        raise ValueError(f"{model}: transformers misses {missing} and does not know {unexpected}")
    network.tie_weights()
    return cast("PreTrainedModel", network)


def _family(spec: ModelSpec) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": spec.rope.theta}
    if spec.local_rope is None:
        return {"model_type": spec.architecture, "rope_parameters": rope}
    return {
        "model_type": "gemma3_text",
        "rope_parameters": {
            "full_attention": rope,
            "sliding_attention": {"rope_type": "default", "rope_theta": spec.local_rope.theta},
        },
        "layer_types": ["sliding_attention" if window else "full_attention" for window in spec.windows],
        "sliding_window": max(spec.windows),
        "query_pre_attn_scalar": round((spec.attention_scale or spec.head_dim**-0.5) ** -2),
    }


def _state(gguf: GGUFFile, spec: ModelSpec) -> "dict[str, torch.Tensor]":
    import torch

    names = {canonical: name for name, canonical in folder_names(spec).items()}
    state = {}
    for canonical, tensor in match_tensors(spec, gguf).items():
        weight = dequantize(tensor.read(), tensor.type, tensor.shape)
        part = canonical.split(".")[-1]
        if spec.rope_interleaved and part in ("q", "k", "q_bias", "k_bias"):
            weight = weight[half_split_rows(len(weight) // spec.head_dim, spec.head_dim)]
        if spec.architecture == "gemma3" and part.endswith("norm"):
            weight -= 1  # transformers adds it
        state[names[canonical]] = torch.from_numpy(weight)
    return state
