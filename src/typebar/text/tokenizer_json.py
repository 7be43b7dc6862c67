"""The tokenizer of a Hugging Face folder: `tokenizer.json` and what lies beside it."""

from __future__ import annotations

import json
import math
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from stat import S_ISREG
from typing import Any

from typebar import _native
from typebar.errors import ModelFileError
from typebar.model.strings import StringArray
from typebar.text.tokenizer import (
    SENTENCE_PIECE,
    AddedToken,
    PreTokenizer,
    Tokenizer,
    byte_pairs,
    sentence_pieces,
    split_verbatim,
)

# More ids than any vocabulary has, and more bytes than any file of one.
MAX_TOKENS = 1 << 24
MAX_FILE_BYTES = 128 << 20

# The rules that cut text into words, as they are written there, and their names in the native core.
SPACE = "\u2581"  # how SentencePiece writes one
_BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")
_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3_SPLIT = _QWEN2_SPLIT.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
WORDS = {
    (("Split", _QWEN2_SPLIT, "Isolated", False), ("ByteLevel", False, False)): "qwen2",
    (("Split", _LLAMA3_SPLIT, "Isolated", False), ("ByteLevel", False, False)): "llama3",
    (("Digits", True), ("ByteLevel", False, True)): "smollm",
    (("ByteLevel", False, True),): "gpt2",
}


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What a folder says about its tokenizer, parsed but not built.

    `path` and `tokenizer`: the tokenizer.json. `config`: the entries of special_tokens_map.json and, before them, of
    tokenizer_config.json. `end_ids`: those of generation_config.json and config.json. `template`: the chat template.
    """

    path: Path
    tokenizer: Mapping[str, Any]
    config: Mapping[str, Any]
    end_ids: frozenset[int]
    template: str | None

    @staticmethod
    def read(folder: Path) -> TokenizerFiles:
        """Raises ModelFileError where the folder has no tokenizer.json, or one of the files is damaged."""
        path = folder / "tokenizer.json"
        if not path.exists():
            raise ModelFileError(
                f"{folder} has no tokenizer.json: download it, or write it once with transformers "
                "(AutoTokenizer.from_pretrained(…).save_pretrained(…))"
            )
        tokenizer = _read_json(path)
        config = _read_json(folder / "special_tokens_map.json", optional=True)
        config |= {
            k: v for k, v in _read_json(folder / "tokenizer_config.json", optional=True).items() if v is not None
        }
        return TokenizerFiles(path, tokenizer, config, _end_ids(folder), _template(folder, config))

    def tokens(self) -> dict[str, int]:
        """Token → id, those added to the vocabulary included."""
        try:
            ids: dict[str, int] = {**self.tokenizer["model"]["vocab"]}
            ids.update((token["content"], token["id"]) for token in self.tokenizer.get("added_tokens") or [])
            if wrong := [token for token, id in ids.items() if type(id) is not int]:
                raise ValueError(f"the id of the token {wrong[0]!r} is no whole number")
            if not 0 <= min(ids.values()) <= max(ids.values()) < MAX_TOKENS:
                raise ValueError(f"the token ids go from {min(ids.values())} to {max(ids.values())}")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise _unusable(self.path, error) from error
        return ids

    def used_ids(self, vocab_size: int | None = None) -> int:
        """The first id after all tokens. ModelFileError where a model of `vocab_size` ids lacks one of them."""
        used = max(self.tokens().values()) + 1
        if vocab_size is not None and used > vocab_size:
            raise ModelFileError(
                f"{self.path} has ids up to {used - 1} but the model only {vocab_size} rows for them: "
                "the files are not those of one model, download them again"
            )
        return used

    def pre_tokenizer(self) -> PreTokenizer:
        """How text is cut before BPE. ModelFileError for a way that typebar does not know."""
        return _pre_tokenizer(self.path, self.tokenizer)

    def build(self, vocab_size: int | None = None) -> Tokenizer:
        """The tokenizer, of `vocab_size` ids where the model has more than tokens.

        Raises ModelFileError for anything but BPE of bytes or as SentencePiece makes it, and where the files do not
        fit together or the model.
        """
        try:
            return _build(self, vocab_size)
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise _unusable(self.path, error) from error


def _unusable(path: Path, error: Exception) -> ModelFileError:
    problem = f"the entry {error} is missing" if isinstance(error, KeyError) else str(error)
    return ModelFileError(f"{path} is not a tokenizer that typebar can build: {problem[:300]}: download it again")


def _build(files: TokenizerFiles, vocab_size: int | None) -> Tokenizer:
    of_characters = is_sentence_piece(files.tokenizer)
    pre = SENTENCE_PIECE if of_characters else _pre_tokenizer(files.path, files.tokenizer)
    ids = files.tokens()
    vocab_size = vocab_size or files.used_ids()
    added = [
        AddedToken(
            token["id"],
            token["content"],
            special=bool(token.get("special")),
            lstrip=bool(token.get("lstrip")),
            rstrip=bool(token.get("rstrip")),
            single_word=bool(token.get("single_word")),
        )
        for token in files.tokenizer.get("added_tokens") or []
    ]
    verbatim: list[AddedToken] = []
    core: _native.Bpe | _native.SentencePiece
    if of_characters:
        core = _sentence_piece(files.tokenizer["model"], ids, added, vocab_size)
        added, verbatim = split_verbatim(added)
        verbatim = [replace(token, text=token.text.replace(SPACE, " ")) for token in verbatim]
    else:
        core = _core(files.tokenizer["model"], ids, added, pre, vocab_size)
    special = {name: _token_id(files.config, name, ids) for name in ("bos", "eos", "unk", "pad")}
    end_ids = files.end_ids if special["eos"] is None else files.end_ids | {special["eos"]}
    add_bos = files.config.get("add_bos_token")
    if not isinstance(add_bos, bool | None):
        raise ModelFileError(
            f"{files.path.with_name('tokenizer_config.json')}: 'add_bos_token' is {add_bos!r:.80}, not true or false"
        )
    if add_bos is None:  # Llama 3 says it in the post-processor only
        bos = json.dumps(_text(files.config.get("bos_token")), ensure_ascii=False)
        add_bos = special["bos"] is not None and bos in json.dumps(
            files.tokenizer.get("post_processor"), ensure_ascii=False
        )
    return Tokenizer(
        core,
        added,
        verbatim=verbatim,
        nfc=pre.nfc,
        vocab_size=vocab_size,
        bos_id=special["bos"],
        eos_id=special["eos"],
        unk_id=special["unk"],
        pad_id=special["pad"],
        end_ids=[id for id in end_ids if id < vocab_size],
        add_bos=bool(add_bos),
        chat_template=files.template,
    )


def _pre_tokenizer(path: Path, data: Mapping[str, Any]) -> PreTokenizer:
    model = data.get("model") or {}
    if model.get("type") != "BPE" or '"ByteLevel"' not in json.dumps([data.get("decoder"), data.get("pre_tokenizer")]):
        kind = f"{model.get('type')!r} tokenizer" if model.get("type") != "BPE" else "BPE tokenizer of characters"
        raise ModelFileError(f"{path} holds a {kind}; typebar runs byte-level BPE tokenizers and Gemma's")
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise ModelFileError(f"{path}: its tokens have a {key}, which typebar's byte-level BPE lacks")
    pre = data.get("pre_tokenizer") or {}
    steps = tuple(_step(step) for step in pre.get("pretokenizers", [pre]))
    if steps not in WORDS:
        raise ModelFileError(
            f"{path} cuts text in a way that typebar does not know: {str(steps)[:300]} (it knows Qwen2, Llama 3, "
            "SmolLM and GPT-2); a guess would give wrong token ids"
        )
    normalizer = data.get("normalizer")
    if normalizer and normalizer["type"] != "NFC":
        raise ModelFileError(
            f"{path} cuts text in a way that typebar does not know: it changes it first ({normalizer['type']}), "
            "where typebar knows NFC; a guess would give wrong token ids"
        )
    return PreTokenizer(WORDS[steps], nfc=bool(normalizer), whole_words=bool(model.get("ignore_merges")))


def _step(step: Mapping[str, Any]) -> tuple[Any, ...]:
    """What matters of a pre-tokenizer, as in WORDS."""
    match step:
        case {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior}:
            return "Split", pattern, behavior, step.get("invert", False)
        case {"type": "Digits", "individual_digits": individual}:
            return "Digits", individual
        case {"type": "ByteLevel", "add_prefix_space": prefix}:
            return "ByteLevel", prefix, step.get("use_regex", True)
    return (step.get("type"),)


def _core(
    model: Mapping[str, Any], ids: Mapping[str, int], added: Sequence[AddedToken], pre: PreTokenizer, vocab_size: int
) -> _native.Bpe:
    """ValueError or TypeError, which name the entry, where vocabulary and merges disagree."""
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    return byte_pairs(_pieces(ids, vocab_size), _left_out(added, vocab_size), StringArray.of(merges), pre)


def is_sentence_piece(data: Mapping[str, Any]) -> bool:
    """Whether the tokens are of characters, with bytes for those that have none, and no space comes before a text."""
    model = data.get("model") or {}
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    cuts_at_spaces = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    return (
        (model.get("type"), model.get("byte_fallback")) == ("BPE", True)
        and data.get("normalizer") == spaces
        and data.get("pre_tokenizer") in (None, cuts_at_spaces)  # there are none any more
    )


def _sentence_piece(
    model: Mapping[str, Any], ids: Mapping[str, int], added: Sequence[AddedToken], vocab_size: int
) -> _native.SentencePiece:
    """The order of the merges gives the scores. ValueError or TypeError, as _core."""
    kinds = bytearray(b"\1" * vocab_size)
    for text, id in ids.items():
        if _BYTE.fullmatch(text):
            kinds[id] = 2
    for token in added:
        kinds[token.id] = 0
    scores = array("f", [-math.inf]) * vocab_size
    for rank, merge in enumerate(model["merges"]):
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        id = ids[left + right]
        scores[id] = max(scores[id], -float(rank))
    return sentence_pieces(_pieces(ids, vocab_size), bytes(kinds), scores)


def _pieces(ids: Mapping[str, int], vocab_size: int) -> StringArray:
    tokens = [""] * vocab_size
    for text, id in ids.items():
        if tokens[id]:
            raise ValueError(f"{tokens[id]!r} and {text!r} have the same id {id}")
        tokens[id] = text
    return StringArray.of(tokens)


def _left_out(added: Sequence[AddedToken], vocab_size: int) -> bytes:
    left_out = bytearray(vocab_size)
    for token in added:
        left_out[token.id] = 1
    return bytes(left_out)


def _text(token: object) -> str | None:
    """The text of a special token, which is written as it is or as an object with its flags."""
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def _token_id(config: Mapping[str, Any], name: str, ids: Mapping[str, int]) -> int | None:
    text = _text(config.get(f"{name}_token"))
    return ids.get(text) if text else None


def _end_ids(folder: Path) -> frozenset[int]:
    ends: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        listed = _read_json(folder / name, optional=True).get("eos_token_id")
        for id in listed if isinstance(listed, list) else [listed]:
            if id is not None and type(id) is not int:
                raise ModelFileError(f"{folder / name}: 'eos_token_id' is {id!r:.80}, not the id of a token")
            if id is not None and id >= 0:
                ends.add(id)
    return frozenset(ends)


def _template(folder: Path, config: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.exists():
        return _read_text(path)
    template = config.get("chat_template")
    if isinstance(template, list):  # several named ones
        entries = [entry for entry in template if isinstance(entry, dict) and entry.get("name") == "default"]
        template = entries[-1].get("template") if entries else None
    if not isinstance(template, str | None):
        raise ModelFileError(
            f"{folder / 'tokenizer_config.json'}: 'chat_template' is neither a text nor a list of them"
        )
    return template


def _read_json(path: Path, optional: bool = False) -> dict[str, Any]:
    if optional and not path.exists():
        return {}
    try:
        data = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"cannot read {path}: {error}: download it again") from error
    if not isinstance(data, dict):
        raise ModelFileError(f"{path} does not hold a JSON object")
    return data


def _read_text(path: Path) -> str:
    """Without a byte order mark. Nothing but a regular file, as a pipe would wait and a device never end."""
    try:
        status = path.stat()
        if not S_ISREG(status.st_mode):
            raise ModelFileError(f"cannot read {path}: it is no regular file")
        if status.st_size > MAX_FILE_BYTES:
            raise ModelFileError(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB: damaged file")
        return path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(f"cannot read {path}: {error}") from error
