"""What a written GGUF file says of the model: as the source says it, or made of a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from typebar.errors import ModelFileError
from typebar.model.rope import RopeSpec, attention_factor
from typebar.model.spec import ModelSpec
from typebar.quantize import gguf_entries as entry
from typebar.quantize.gguf_entries import Entries
from typebar.text.tokenizer import CONTROL, UNUSED, USER_DEFINED
from typebar.text.tokenizer_json import TokenizerFiles, is_sentence_piece

NORMAL = 1
QUANTIZATION_VERSION = 2  # of ggml's block types
# How llama.cpp calls the ways of cutting text that the native core knows.
PRE_NAMES = {"qwen2": "qwen2", "llama3": "llama-bpe", "smollm": "smollm", "gpt2": "gpt-2"}
ROPE_RUN = ("none", "linear", "yarn", "llama3")


def of_gguf(path: Path, file_type: int) -> Entries:
    """The entries of a GGUF file, split or not, for a file of one piece with other tensor types."""
    left_out = ("split.", "general.alignment")
    entries = {key: value for key, value in entry.read_entries(path).items() if not key.startswith(left_out)}
    return entries | _quantization(file_type)


def of_folder(spec: ModelSpec, folder: Path, file_type: int) -> Entries:
    """The entries for the model in a Hugging Face folder. ModelFileError where GGUF cannot say what it does."""
    return _architecture(spec, folder) | _tokenizer(spec, TokenizerFiles.read(folder)) | _quantization(file_type)


def _quantization(file_type: int) -> Entries:
    return {
        "general.file_type": entry.uint32(file_type),
        "general.quantization_version": entry.uint32(QUANTIZATION_VERSION),
    }


def _architecture(spec: ModelSpec, folder: Path) -> Entries:
    counts = {
        "block_count": spec.num_layers,
        "context_length": spec.context_length,
        "embedding_length": spec.hidden_size,
        "feed_forward_length": spec.intermediate_size,
        "attention.head_count": spec.num_heads,
        "attention.head_count_kv": spec.num_kv_heads,
        "attention.key_length": spec.head_dim,
        "attention.value_length": spec.head_dim,
        "rope.dimension_count": spec.head_dim,
        "vocab_size": spec.vocab_size,
    }
    values = {key: entry.uint32(count) for key, count in counts.items()}
    values["attention.layer_norm_rms_epsilon"] = entry.float32(spec.rms_norm_eps)
    values |= _rope(spec.rope, folder)
    general = {"architecture": spec.architecture, "type": "model", "name": spec.name}
    return {f"general.{key}": entry.string(text) for key, text in general.items()} | {
        f"{spec.architecture}.{key}": value for key, value in values.items()
    }


def _rope(rope: RopeSpec, folder: Path) -> Entries:
    if rope.scaling not in ROPE_RUN:
        raise ModelFileError(f"{folder}: its RoPE scaling {rope.scaling!r} has no form in GGUF that typebar writes")
    values = {"rope.freq_base": entry.float32(rope.theta)}
    if rope.scaling in ("linear", "yarn"):
        values["rope.scaling.type"] = entry.string(rope.scaling)
        values["rope.scaling.factor"] = entry.float32(rope.factor)
    if rope.scaling == "yarn":
        derived = attention_factor(RopeSpec(rope.theta, "yarn", rope.factor))
        values["rope.scaling.original_context_length"] = entry.uint32(rope.original_context_length)
        values["rope.scaling.attn_factor"] = entry.float32(attention_factor(rope) / derived)
        values["rope.scaling.yarn_beta_fast"] = entry.float32(rope.beta_fast)
        values["rope.scaling.yarn_beta_slow"] = entry.float32(rope.beta_slow)
    return values


def _tokenizer(spec: ModelSpec, files: TokenizerFiles) -> Entries:
    if is_sentence_piece(files.tokenizer):
        raise ModelFileError(f"{files.path}: typebar writes no GGUF file with a tokenizer of SentencePiece's kind")
    tokenizer = files.build(spec.vocab_size)
    tokens = [f"[PAD{id}]" for id in range(spec.vocab_size)]
    types = np.full(spec.vocab_size, UNUSED)
    for text, id in files.tokens().items():
        tokens[id], types[id] = text, NORMAL
    for id in tokenizer.control_tokens.values():
        types[id] = CONTROL if id in tokenizer.special_ids else USER_DEFINED
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in files.tokenizer["model"]["merges"]]
    entries = {
        "model": entry.string("gpt2"),
        "pre": entry.string(PRE_NAMES[files.pre_tokenizer().words]),
        "tokens": entry.strings(tokens),
        "token_type": entry.int32s(types),
        "merges": entry.strings(merges),
        "add_bos_token": entry.boolean(tokenizer.add_bos),
    }
    ends = sorted(tokenizer.end_ids - {tokenizer.eos_id})
    eos = tokenizer.eos_id if tokenizer.eos_id is not None else next(iter(ends), None)
    ids = {"bos": tokenizer.bos_id, "eos": eos, "unknown": tokenizer.unk_id, "padding": tokenizer.pad_id}
    entries |= {f"{name}_token_id": entry.uint32(id) for name, id in ids.items() if id is not None}
    found = {f"tokenizer.ggml.{key}": value for key, value in entries.items()}
    if tokenizer.chat_template is not None:
        found["tokenizer.chat_template"] = entry.string(tokenizer.chat_template)
    return found
