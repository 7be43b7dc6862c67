"""Tokenizer, built from a GGUF vocabulary here and from a Hugging Face folder in tokenizer_json.py.

It is a byte-level BPE, as Qwen2.5, Qwen3, Llama 3 and SmolLM2 have, or a BPE of characters as SentencePiece makes them,
as Gemma has.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from typebar import _native
from typebar.errors import ModelFileError
from typebar.model.strings import StringArray
from typebar.text.nfc import nfc

# GGUF token types (`tokenizer.ggml.token_type`).
NORMAL, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 3, 4, 5, 6
_LEFT_OUT = bytes(type in (CONTROL, USER_DEFINED, UNUSED) for type in range(256))
_ADDED = re.compile(b"[%c%c]" % (CONTROL, USER_DEFINED))

# Tokens that end a turn or a text in every family that has them, whatever the metadata forgets to say.
END_TOKENS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "</s>", "<end_of_turn>")

# The texts of Gemma's that a user must not be able to write, though a file may call them user-defined.
_TURNS = ("<start_of_turn>", "<end_of_turn>")

# Kinds of tokens in the native core, by their type in a GGUF file: whatever is neither text nor a byte is 0.
_SENTENCE_PIECE_KINDS = bytes({NORMAL: 1, BYTE: 2}.get(type, 0) for type in range(256))


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How text is cut before BPE. `words`: the rule's name in the native core."""

    words: str
    nfc: bool = False
    whole_words: bool = False  # a word that is itself a token is taken whole
    add_bos: bool = False  # where the metadata does not say


_QWEN2 = PreTokenizer("qwen2", nfc=True)
_LLAMA3 = PreTokenizer("llama3", whole_words=True, add_bos=True)
SENTENCE_PIECE = PreTokenizer("", add_bos=True)
_PRE_TOKENIZERS = {
    "qwen2": _QWEN2,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "smollm": PreTokenizer("smollm"),
    "gpt-2": PreTokenizer("gpt2"),
}


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token matched as a whole. `special`: control token, hidden from decoded text. `lstrip`/`rstrip`: eats the
    white space before/after it. `single_word`: not where a letter, digit or _ adjoins."""

    id: int
    text: str
    special: bool
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


class Tokenizer:
    """Text to token ids and back. Immutable after construction; any number of threads may share one.

    Attributes:
        vocab_size: number of ids, the rows of the embedding (padding rows included).
        bos_id, eos_id, unk_id, pad_id: ids, or None where the model has none.
        add_bos: whether `encode(..., add_special=True)` puts `bos_id` first.
        end_ids: every id that ends generation: the union of all sources and of the known end tokens.
        control_tokens: text to id of all tokens that are matched whole where the text may hold them, both control and
            user-defined; not those of `verbatim`.
        special_ids: the ids of control tokens, which `decode` leaves out by default.
        chat_template: the model's Jinja2 template, or None.
    """

    def __init__(
        self,
        core: _native.Bpe | _native.SentencePiece,
        added: Iterable[AddedToken],
        *,
        verbatim: Iterable[AddedToken] = (),
        nfc: bool = False,
        vocab_size: int,
        bos_id: int | None = None,
        eos_id: int | None = None,
        unk_id: int | None = None,
        pad_id: int | None = None,
        end_ids: Iterable[int] = (),
        add_bos: bool = False,
        chat_template: str | None = None,
    ) -> None:
        self._core, self._nfc = core, nfc
        self._added = {token.text: token for token in added if token.text}
        self._verbatim = {token.text: token for token in verbatim if token.text}
        self._known = self._added | self._verbatim
        self._text_of = {token.id: token.text for token in self._known.values()}
        self._known_pattern = _added_pattern(self._known.values())
        self._verbatim_pattern = _added_pattern(self._verbatim.values())
        self.control_tokens = {token.text: token.id for token in self._added.values()}
        self.special_ids = frozenset(token.id for token in self._added.values() if token.special)
        self.vocab_size = vocab_size
        self.bos_id, self.eos_id, self.unk_id, self.pad_id = bos_id, eos_id, unk_id, pad_id
        self.add_bos = add_bos and bos_id is not None
        known = (self.control_tokens[text] for text in END_TOKENS if text in self.control_tokens)
        self.end_ids = frozenset(end_ids) | frozenset(known)
        self.chat_template = chat_template

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """Build from GGUF metadata (keys `tokenizer.ggml.*` and `tokenizer.chat_template`).

        Raises ModelFileError where the tokenizer is of a kind that typebar does not run or its arrays disagree.
        """
        tokens = _gguf_strings(metadata, "tokens")
        types = token_types(metadata, len(tokens))
        added = [
            AddedToken(match.start(), tokens[match.start()], special=types[match.start()] == CONTROL)
            for match in _ADDED.finditer(types)
        ]
        verbatim: list[AddedToken] = []
        core: _native.Bpe | _native.SentencePiece
        if metadata.get("tokenizer.ggml.model") == "llama":
            pre = SENTENCE_PIECE
            added, verbatim = split_verbatim(added)
            core = _gguf_sentence_piece(metadata, tokens, types)
        else:
            pre = gguf_pre_tokenizer(metadata)
            core = _gguf_byte_pairs(metadata, tokens, types, pre)
        names = ("bos", "eos", "eot", "eom", "unknown", "padding")
        ids = {name: _gguf_id(metadata, name, len(tokens)) for name in names}
        add_bos = metadata.get("tokenizer.ggml.add_bos_token")
        template = metadata.get("tokenizer.chat_template")
        if not isinstance(add_bos, bool | None) or not isinstance(template, str | None):
            raise ModelFileError("tokenizer.ggml.add_bos_token is not a boolean, or tokenizer.chat_template not a text")
        return cls(
            core,
            added,
            verbatim=verbatim,
            nfc=pre.nfc,
            vocab_size=len(tokens),
            bos_id=ids["bos"],
            eos_id=ids["eos"],
            unk_id=ids["unknown"],
            pad_id=ids["padding"],
            end_ids=[end for name in ("eos", "eot", "eom") if (end := ids[name]) is not None],
            add_bos=pre.add_bos if add_bos is None else add_bos,
            chat_template=template,
        )

    def encode(self, text: str, *, parse_special: bool = False, add_special: bool = False) -> list[int]:
        """Token ids of `text`. Control tokens written in it stay plain text unless `parse_special`; `add_special`
        puts the BOS first where the model wants one. Lone surrogates are read as U+FFFD."""
        ids: list[int] = [self.bos_id] if add_special and self.add_bos and self.bos_id is not None else []
        pattern = self._known_pattern if parse_special else self._verbatim_pattern
        if pattern is None:
            return ids + self._encode_plain(text)
        end = 0
        before: AddedToken | None = None
        for match in pattern.finditer(text):
            after = self._known[match[0]]
            ids += self._encode_plain(_between(text[end : match.start()], before, after))
            ids.append(after.id)
            end, before = match.end(), after
        return ids + self._encode_plain(_between(text[end:], before, None))

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Text of `ids`; control tokens are left out unless `skip_special` is False, bytes that are not UTF-8
        become U+FFFD. Raises ValueError for an id outside 0 .. vocab_size - 1."""
        hidden = self.special_ids if skip_special else frozenset()
        return b"".join(self.token_bytes(id) for id in ids if id not in hidden).decode("utf-8", "replace")

    def token_bytes(self, id: int) -> bytes:
        """The bytes that token `id` stands for; a control token gives its text, a padding row nothing.
        Raises ValueError for an id outside 0 .. vocab_size - 1."""
        if not 0 <= id < self.vocab_size:
            raise ValueError(f"token id {id} is outside the vocabulary of {self.vocab_size}")
        if (text := self._text_of.get(id)) is not None:
            return text.encode()
        return self._core.token_bytes(id)

    def _encode_plain(self, text: str) -> list[int]:
        try:
            return self._core.encode((nfc(text) if self._nfc else text).encode())
        except UnicodeEncodeError:
            return self._encode_plain(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def _added_pattern(tokens: Iterable[AddedToken]) -> re.Pattern[str] | None:
    """Alternation of the added tokens, longest first: the leftmost-longest match that Hugging Face makes."""
    longest_first = sorted(tokens, key=lambda token: len(token.text), reverse=True)
    return re.compile("|".join(map(_token_pattern, longest_first))) if longest_first else None


def _token_pattern(token: AddedToken) -> str:
    pattern = re.escape(token.text)
    return rf"(?<!\w){pattern}(?!\w)" if token.single_word else pattern


def _between(text: str, before: AddedToken | None, after: AddedToken | None) -> str:
    """Plain text between two added tokens, without the white space that they eat."""
    if before and before.rstrip:
        text = text.lstrip()
    return text.rstrip() if after and after.lstrip else text


def byte_pairs(tokens: StringArray, left_out: bytes, merges: StringArray, pre: PreTokenizer) -> _native.Bpe:
    """`left_out`: 1 for each token that no text becomes, 0 for others. ValueError, which names the entry, where the
    arrays disagree."""
    return _native.Bpe(
        pieces=tokens.text,
        piece_ends=tokens.ends,
        left_out=left_out,
        merges=merges.text,
        merge_ends=merges.ends,
        words=pre.words,
        whole_words=pre.whole_words,
    )


def split_verbatim(added: Iterable[AddedToken]) -> tuple[list[AddedToken], list[AddedToken]]:
    """Control tokens, and marks of turns whatever their kind, apart from those that SentencePiece finds in any text."""
    tokens = [replace(token, special=token.special or token.text in _TURNS) for token in added]
    return [token for token in tokens if token.special], [token for token in tokens if not token.special]


def sentence_pieces(tokens: StringArray, kinds: bytes, scores: memoryview | array[float]) -> _native.SentencePiece:
    """See _native.SentencePiece. ValueError, which names the entry, where the arrays disagree."""
    return _native.SentencePiece(pieces=tokens.text, piece_ends=tokens.ends, kinds=kinds, scores=scores)


def _gguf_byte_pairs(metadata: Mapping[str, Any], tokens: StringArray, types: bytes, pre: PreTokenizer) -> _native.Bpe:
    merges = _gguf_strings(metadata, "merges")
    try:
        return byte_pairs(tokens, types.translate(_LEFT_OUT), merges, pre)
    except ValueError as error:
        raise ModelFileError(f"tokenizer.ggml.{error}: damaged file, download it again") from error


def _gguf_sentence_piece(metadata: Mapping[str, Any], tokens: StringArray, types: bytes) -> _native.SentencePiece:
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, memoryview) or scores.format != "f" or len(scores) != len(tokens):
        raise ModelFileError(f"tokenizer.ggml.scores is not a number for each of {len(tokens)} tokens")
    if metadata.get("tokenizer.ggml.add_space_prefix") is not False:
        raise ModelFileError(
            "the tokenizer puts a space before a text (tokenizer.ggml.add_space_prefix), which typebar lacks; of those "
            "that SentencePiece makes it runs the ones of Gemma"
        )
    try:
        return sentence_pieces(tokens, types.translate(_SENTENCE_PIECE_KINDS), scores)
    except ValueError as error:
        raise ModelFileError(f"tokenizer.ggml.{error}: damaged file, download it again") from error


def token_types(metadata: Mapping[str, Any], vocab_size: int) -> bytes:
    """The type of each token of a GGUF file. ModelFileError where it does not say one, from 0 to 255, for each."""
    types = metadata.get("tokenizer.ggml.token_type")
    if types is None:
        return bytes([NORMAL]) * vocab_size
    if not isinstance(types, memoryview) or types.format not in "bBhHiIqQ" or len(types) != vocab_size:
        raise ModelFileError(f"tokenizer.ggml.token_type is not an integer for each of {vocab_size} tokens")
    data = types.tobytes()
    lowest = data[:: types.itemsize]  # its lowest byte
    if any(data[place :: types.itemsize].strip(b"\0") for place in range(1, types.itemsize)):
        raise ModelFileError("tokenizer.ggml.token_type holds a number that is no type of a token")
    return lowest


def _gguf_strings(metadata: Mapping[str, Any], name: str) -> StringArray:
    values = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(values, StringArray | list) or len(values) == 0:
        raise ModelFileError(f"the GGUF file has no tokenizer.ggml.{name}; get a file that carries its tokenizer")
    return StringArray.of(values) if isinstance(values, list) else values


def _gguf_id(metadata: Mapping[str, Any], name: str, vocab_size: int) -> int | None:
    id = metadata.get(f"tokenizer.ggml.{name}_token_id")
    if id is None:
        return None
    if not isinstance(id, int) or not 0 <= id < vocab_size:
        raise ModelFileError(f"tokenizer.ggml.{name}_token_id is {id}, outside the vocabulary of {vocab_size}")
    return id


def gguf_pre_tokenizer(metadata: Mapping[str, Any]) -> PreTokenizer:
    """How a GGUF file cuts text. ModelFileError for a way that typebar does not know."""
    model = metadata.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise ModelFileError(
            f"tokenizer.ggml.model is {model!r}; typebar runs byte-level BPE tokenizers ('gpt2'), "
            "as Qwen2.5, Qwen3, Llama 3 and SmolLM2 have, and those of SentencePiece ('llama') that Gemma has"
        )
    pre = metadata.get("tokenizer.ggml.pre")
    if pre is None and metadata.get("general.architecture") in ("qwen2", "qwen3"):
        pre = "qwen2"  # files older than the key; these architectures have one tokenizer
    if not isinstance(pre, str) or pre not in _PRE_TOKENIZERS:
        raise ModelFileError(
            f"tokenizer.ggml.pre is {pre!r}, a pre-tokenizer that typebar does not know "
            f"(it knows {', '.join(_PRE_TOKENIZERS)}); a guess would give wrong token ids"
        )
    return _PRE_TOKENIZERS[pre]
