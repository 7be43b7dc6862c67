"""What a written Hugging Face folder says besides the weights: the source's own files, or made of a GGUF file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from typebar.errors import ModelFileError
from typebar.model.checkpoint import Checkpoint
from typebar.model.choose import CONFIG
from typebar.model.gguf import GGUFFile
from typebar.model.rope import RopeSpec, attention_factor, inverse_frequencies
from typebar.model.spec import ModelSpec
from typebar.quantize.tokenizer_texts import tokenizer_texts
from typebar.text.tokenizer import Tokenizer

Texts = dict[str, bytes]  # by the names of their files

GENERATION = "generation_config.json"
COPIED = (
    GENERATION, "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "chat_template.jinja", "LICENSE", "LICENSE.txt",
)  # fmt: skip
CLASSES = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}
LLAMA3_LENGTH = 8192  # that all models with the scaling of Llama 3 were trained on before it


def folder_texts(checkpoint: Checkpoint, group: int) -> Texts:
    """ModelFileError for a GGUF file of a model that config.json cannot describe."""
    path = checkpoint.path
    if path.is_dir():
        config = json.loads((path / CONFIG).read_text("utf-8-sig"))
        texts = {name: (path / name).read_bytes() for name in COPIED if (path / name).is_file()}
    else:
        tokenizer = checkpoint.build_tokenizer()
        ids = _special_ids(tokenizer)
        config = _config(checkpoint.spec, path) | ids
        made = tokenizer_texts(GGUFFile.open(path).metadata, tokenizer, checkpoint.spec.context_length)
        texts = {name: _json(content) for name, content in (made | {GENERATION: ids}).items()}
    config |= {key: "float16" for key in ("torch_dtype", "dtype") if key in config or key == "torch_dtype"}
    return texts | {CONFIG: _json(config | {"quantization_config": _quantization(group)})}


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False, indent=2).encode()


def _quantization(group: int) -> dict[str, Any]:
    return {
        "quant_method": "awq",
        "version": "gemm",
        "bits": 4,
        "group_size": group,
        "zero_point": True,
        "modules_to_not_convert": None,
    }


def _special_ids(tokenizer: Tokenizer) -> dict[str, Any]:
    ends = sorted(tokenizer.end_ids, key=lambda id: (id != tokenizer.eos_id, id))
    ids = {"bos_token_id": tokenizer.bos_id, "eos_token_id": ends, "pad_token_id": tokenizer.pad_id}
    return {name: value for name, value in ids.items() if value not in (None, [])}


def _config(spec: ModelSpec, path: Path) -> dict[str, Any]:
    if spec.qkv_bias and spec.architecture != "qwen2":
        raise ModelFileError(f"{path}: config.json of {spec.architecture} has no form for biases of q, k, v alone")
    rope_scaling = _rope_scaling(spec, path)
    return {
        "architectures": [CLASSES[spec.architecture]],
        "model_type": spec.architecture,
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "intermediate_size": spec.intermediate_size,
        "hidden_act": "silu",
        "rms_norm_eps": _decimal(spec.rms_norm_eps),
        "max_position_embeddings": spec.context_length,
        "rope_theta": spec.rope.theta,
        "tie_word_embeddings": spec.tied_embeddings,
    } | ({"rope_scaling": rope_scaling} if rope_scaling else {})


def _decimal(value: float) -> float:
    """GGUF's float32 as it was meant: 1e-06, not 9.999999974752427e-07."""
    return float(f"{value:.7g}")


def _rope_scaling(spec: ModelSpec, path: Path) -> dict[str, Any] | None:
    rope = spec.rope
    if rope.frequency_divisors is not None:
        return _llama3(spec, rope.frequency_divisors, path)
    if rope.scaling == "none":
        return None
    found: dict[str, Any] = {"rope_type": rope.scaling, "factor": rope.factor}
    if rope.scaling == "yarn":
        found |= {
            "original_max_position_embeddings": rope.original_context_length,
            "attention_factor": attention_factor(rope),
            "beta_fast": rope.beta_fast,
            "beta_slow": rope.beta_slow,
        }
    return found


def _llama3(spec: ModelSpec, divisors: tuple[float, ...], path: Path) -> dict[str, Any]:
    """GGUF holds what the scaling comes to, so it is found again; other divisors have no name."""
    rope = RopeSpec(spec.rope.theta, "llama3", _decimal(max(divisors)), LLAMA3_LENGTH)
    plain, scaled = (
        np.asarray(inverse_frequencies(form, spec.head_dim, spec.context_length)[0])
        for form in (RopeSpec(spec.rope.theta), rope)
    )
    if spec.rope.scaling != "none" or not np.allclose(plain / scaled, divisors, rtol=1e-4):
        raise ModelFileError(
            f"{path}: its RoPE divisors have no form in config.json that typebar writes: give the folder of this model"
        )
    return {
        "rope_type": "llama3",
        "factor": rope.factor,
        "low_freq_factor": rope.low_freq_factor,
        "high_freq_factor": rope.high_freq_factor,
        "original_max_position_embeddings": LLAMA3_LENGTH,
    }
