"""Oracles for the tokenizer tests: random text, a plain BPE in Python, and Hugging Face tokenizers on the same data."""

import random
import unicodedata
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import regex

QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

_PHRASES = (
    "The quick brown fox",
    "用Python写一个快速排序",
    "def f(x):\n    return x\r\n",
    "I'LL don't we've 'S 'Ret",
    "2024-11-30 3.14159",
    "for (int i = 0; i < n; ++i) {\n\t\ta[i] += 1;\n}",
    "नमस्ते दुनिया",
    "สวัสดีชาวโลก",
    "مرحبا ٣٤",
    "한국어 조선",
    "日本語のテスト、です。",
    "😀🤖🦙🫠👨‍👩‍👧‍👦🇨🇳",
    "é e\u0301 \u212b \u1100\u1161 \ufb01",
    "Ⅷ①²½",
    "   \t\t  ",
    "\n\n\n",
    "\r\n\r\n",
    "->=>!=<|im_end|>",
    "https://example.com/a?b=c&d=%20",
    '{"a": [1, 2.5e-3, null]}',
    "x² + y² = z²",
    "don’t “quote” — dash…",
)


def random_texts(count: int, seed: int, assigned_only: bool = False) -> Iterator[str]:
    """Mixed text: phrases, code points of all planes, white space, digits, combining marks, surrogates never.

    `assigned_only` leaves out code points that this Python's Unicode tables do not know, and combining marks younger
    than Unicode 3.2: libraries with tables of different age disagree on the class and the order of those.
    """
    rng = random.Random(seed)

    def char() -> str:
        low, high = rng.choice(
            [
                (0x20, 0x7E),
                (0x20, 0x7E),
                (0, 0x24F),
                (0x300, 0x36F),
                (0x370, 0x1FFF),
                (0x2000, 0x2BFF),
                (0x3000, 0x9FFF),
                (0xA000, 0xD7FF),
                (0xE000, 0xFFFF),
                (0x10000, 0x1FFFF),
                (0x1F300, 0x1FAFF),
                (0x20000, 0x3FFFF),
                (0x40000, 0x10FFFF),
            ]
        )
        return chr(rng.randint(low, high))

    def piece() -> str:
        match rng.randrange(8):
            case 0 | 1:
                return rng.choice(_PHRASES)
            case 2:
                return "".join(rng.choices(" \t\n\r\u00a0\u3000", k=rng.randint(1, 6)))
            case 3:
                return str(rng.randrange(10 ** rng.randint(1, 9)))
            case 4:
                return char() * rng.randint(1, 9)
            case 5:
                return rng.choice("aeouAEOUกนह가") + "".join(
                    chr(rng.randint(0x300, 0x36F)) for _ in range(rng.randint(1, 3))
                )
            case 6:
                return rng.choice(_PHRASES)[rng.randrange(4) :][: rng.randint(1, 9)]
            case _:
                return "".join(char() for _ in range(rng.randint(1, 6)))

    for _ in range(count):
        text = "".join(piece() for _ in range(rng.randint(1, 5)))
        if assigned_only:
            text = "".join(filter(_in_old_tables, text))
        yield text


def _in_old_tables(char: str) -> bool:
    tables = unicodedata.ucd_3_2_0 if unicodedata.combining(char) else unicodedata
    return tables.category(char) != "Cn"


class SlowBPE:
    """Byte-level BPE by its definition: cut words, then merge the pair of the lowest rank until none is left.

    Bytes that the vocabulary lacks (SmolLM2 lacks six control characters and the lead bytes of planes 4 to 11)
    are dropped, as Hugging Face does.
    """

    def __init__(self, metadata: Mapping[str, Any], words: str, nfc: bool, single_digits: bool) -> None:
        self.ids = {token: id for id, token in enumerate(metadata["tokenizer.ggml.tokens"])}
        self.ranks = {merge: rank for rank, merge in enumerate(metadata["tokenizer.ggml.merges"])}
        self.words = regex.compile(words)
        self.nfc, self.single_digits = nfc, single_digits
        visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
        hidden = sorted(set(range(256)) - set(visible))
        self.char_of = {b: chr(b) for b in visible} | {b: chr(256 + n) for n, b in enumerate(hidden)}
        self.known: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        if self.nfc:
            text = unicodedata.normalize("NFC", text)
        parts = regex.split(r"(\p{N})", text) if self.single_digits else [text]
        return [id for part in parts for word in self.words.findall(part) for id in self._word(word)]

    def _word(self, word: str) -> list[int]:
        if word not in self.known:
            chars = (self.char_of[byte] for byte in word.encode())
            self.known[word] = self._merge([char for char in chars if char in self.ids])
        return self.known[word]

    def _merge(self, parts: list[str]) -> list[int]:
        while len(parts) > 1:
            pairs = [f"{left} {right}" for left, right in pairwise(parts)]
            best = min(pairs, key=lambda pair: self.ranks.get(pair, len(self.ranks)))
            if best not in self.ranks:
                break
            merged: list[str] = []
            i = 0
            while i < len(parts):
                if i < len(pairs) and pairs[i] == best:
                    merged.append(parts[i] + parts[i + 1])
                    i += 2
                else:
                    merged.append(parts[i])
                    i += 1
            parts = merged
        return [self.ids[part] for part in parts]


def library_bpe(metadata: Mapping[str, Any], pre: str) -> Any:
    """The tokenizers library's BPE on the vocabulary of a GGUF, with the pre-tokenizer of `pre` and no added tokens."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    types = metadata["tokenizer.ggml.token_type"]
    vocab = {token: id for id, token in enumerate(metadata["tokenizer.ggml.tokens"]) if types[id] == 1}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    core = Tokenizer(models.BPE(vocab, merges, ignore_merges=pre == "llama-bpe"))
    split = {"qwen2": QWEN2_WORDS, "llama-bpe": QWEN2_WORDS.replace(r"|\p{N}|", r"|\p{N}{1,3}|")}.get(pre)
    steps = [pre_tokenizers.Digits(individual_digits=True)] if pre == "smollm" else []
    steps += [pre_tokenizers.Split(Regex(split), "isolated")] if split else []
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)]
    )
    if pre == "qwen2":
        core.normalizer = normalizers.NFC()
    return core


def hf_qwen2_tokenizer(metadata: Mapping[str, Any]) -> Any:
    """transformers' own Qwen2 tokenizer on the vocabulary of a GGUF, its added tokens as in the hub's file."""
    from tokenizers import AddedToken
    from transformers import Qwen2Tokenizer

    tokens, types = metadata["tokenizer.ggml.tokens"], [int(t) for t in metadata["tokenizer.ggml.token_type"]]
    tokenizer = Qwen2Tokenizer(
        vocab={token: id for id, token in enumerate(tokens) if types[id] == 1},
        merges=[tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]],
        eos_token=AddedToken("<|endoftext|>", special=True, normalized=False),
    )
    for id, kind in enumerate(types):
        if kind in (3, 4):
            tokenizer.add_tokens([AddedToken(tokens[id], special=kind == 3, normalized=False)])
            assert tokenizer.convert_tokens_to_ids(tokens[id]) == id
    tokenizer.eos_token = "<|im_end|>"
    tokenizer.chat_template = metadata["tokenizer.chat_template"]
    return tokenizer


def hf_gemma_tokenizer(metadata: Mapping[str, Any]) -> Any:
    """transformers' own Gemma tokenizer on the vocabulary of a GGUF, its merges and added tokens as in the hub's file:
    runs of spaces are tokens that merges make before all others."""
    from tokenizers import AddedToken
    from transformers import GemmaTokenizer

    types = [int(kind) for kind in metadata["tokenizer.ggml.token_type"]]
    raw = list(metadata["tokenizer.ggml.tokens"])
    tokens = [text.replace(" ", "\u2581") if types[id] == 4 else text for id, text in enumerate(raw)]
    scores = [1.0 if types[id] == 4 else score for id, score in enumerate(metadata["tokenizer.ggml.scores"])]
    pieces = {text: id for id, text in enumerate(tokens) if types[id] == 1 or text.startswith("\u2581\u2581")}
    merges = [
        (scores[id], cut, len(text) - cut, text[:cut], text[cut:])
        for text, id in pieces.items()
        for cut in range(1, len(text))
        if text[:cut] in pieces and text[cut:] in pieces
    ]
    merges.sort(key=lambda merge: merge[:3], reverse=True)
    tokenizer = GemmaTokenizer(
        vocab={text: id for id, text in enumerate(tokens)}, merges=[(left, right) for *_, left, right in merges]
    )
    tokenizer.add_tokens(
        [
            AddedToken(text, special=types[id] == 3, normalized=False)
            for id, text in enumerate(tokens)
            if types[id] in (3, 4)
        ]
    )
    assert len(tokenizer) == len(tokens)
    return tokenizer
