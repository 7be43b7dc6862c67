"""The tokenizer of a GGUF file in the form of a Hugging Face folder; text/tokenizer_json.py is the way back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from typebar.errors import ModelFileError
from typebar.text.tokenizer import UNUSED, PreTokenizer, Tokenizer, gguf_pre_tokenizer, token_types
from typebar.text.tokenizer_json import WORDS


def tokenizer_texts(metadata: Mapping[str, Any], tokenizer: Tokenizer, context_length: int) -> dict[str, Any]:
    """By the names of their files, what they hold. `tokenizer`: built from `metadata`, that of a GGUF file.

    ModelFileError for a tokenizer that is not one of bytes.
    """
    texts = {token: id for id, token in enumerate(_strings(metadata, "tokens"))}
    types = token_types(metadata, tokenizer.vocab_size)
    name_of = {id: text for text, id in texts.items()}
    if metadata["tokenizer.ggml.model"] == "llama":
        raise ModelFileError("a tokenizer of SentencePiece's kind is not written as tokenizer.json: write a GGUF file")
    pre = gguf_pre_tokenizer(metadata)
    core = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added(id, text, id in tokenizer.special_ids)
            for text, id in sorted(tokenizer.control_tokens.items(), key=lambda item: item[1])
        ],
        "normalizer": {"type": "NFC"} if pre.nfc else None,
        "pre_tokenizer": _pre_tokenizer(pre),
        "post_processor": _post_processor(tokenizer, name_of),
        "decoder": _BYTES,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre.whole_words,
            "vocab": {text: id for text, id in texts.items() if types[id] != UNUSED},
            "merges": list(_strings(metadata, "merges")),
        },
    }
    ids = {"bos": tokenizer.bos_id, "eos": tokenizer.eos_id, "unk": tokenizer.unk_id, "pad": tokenizer.pad_id}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": tokenizer.add_bos,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context_length,
        **{f"{name}_token": name_of[id] for name, id in ids.items() if id is not None},
    }
    if tokenizer.chat_template is not None:
        config["chat_template"] = tokenizer.chat_template
    return {"tokenizer.json": core, "tokenizer_config.json": config}


_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}


def _strings(metadata: Mapping[str, Any], name: str) -> Sequence[str]:
    return [str(value) for value in cast("Sequence[str]", metadata[f"tokenizer.ggml.{name}"])]


def _added(id: int, text: str, special: bool) -> dict[str, Any]:
    return {
        "id": id,
        "content": text,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": special,
    }


def _pre_tokenizer(pre: PreTokenizer) -> dict[str, Any]:
    [steps] = (steps for steps, words in WORDS.items() if words == pre.words)
    return {"type": "Sequence", "pretokenizers": [_step(step) for step in steps]}


def _step(step: tuple[Any, ...]) -> dict[str, Any]:
    match step:
        case "Split", pattern, behavior, invert:
            return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}
        case "Digits", individual:
            return {"type": "Digits", "individual_digits": individual}
        case "ByteLevel", prefix, regex:
            return {**_BYTES, "add_prefix_space": prefix, "use_regex": regex}
    raise ValueError(f"{step} is no step of a pre-tokenizer")


def _post_processor(tokenizer: Tokenizer, name_of: Mapping[int, str]) -> dict[str, Any]:
    if not tokenizer.add_bos or tokenizer.bos_id is None:
        return _BYTES
    bos = name_of[tokenizer.bos_id]
    first, texts = {"SpecialToken": {"id": bos, "type_id": 0}}, ("A", "B")
    single, pair = ([first, *({"Sequence": {"id": id, "type_id": 0}} for id in ids)] for ids in (texts[:1], texts))
    special = {bos: {"id": bos, "ids": [tokenizer.bos_id], "tokens": [bos]}}
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}
