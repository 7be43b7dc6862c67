import random
import subprocess
import sys
import threading
import time
import tracemalloc
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tokenizers import normalizers

from text_reference import GPT2_WORDS, QWEN2_WORDS, SlowBPE, hf_qwen2_tokenizer, library_bpe, random_texts
from typebar.errors import ModelFileError
from typebar.text.nfc import nfc
from typebar.text.tokenizer import Tokenizer

IM_START, IM_END, ENDOFTEXT = 151644, 151645, 151643

# Facts of the Qwen2 vocabulary.
QWEN_IDS = {
    "龘": [82912, 246],
    "🫠": [9284, 104, 254],
    "𝄞": [124596, 252],
    "Ⅷ": [70467, 100],
    "①": [48312, 254],
    "é": [963],
    "e\u0301": [963],
    "\u212b": [144044],
    "\u1100\u1161": [19969],
    "\ufb01": [144300],
    "2024": [17, 15, 17, 19],
    "->": [405],
    "\\n": [1699],
    "\n\n": [271],
    "(x):\n": [2075, 982],
    "<|im_end|>": [27, 91, 318, 6213, 91, 29],
}


@pytest.mark.parametrize("text", QWEN_IDS)
def test_qwen_facts(coder: Tokenizer, text: str) -> None:
    assert coder.encode(text) == QWEN_IDS[text]


@pytest.mark.parametrize("char", "🦙🤖😀𠮷齉")
def test_one_token_characters(coder: Tokenizer, char: str) -> None:
    assert len(coder.encode(char)) == 1


def test_same_ids_as_transformers_on_100_000_texts(coder: Tokenizer, coder_metadata: dict[str, Any]) -> None:
    reference = hf_qwen2_tokenizer(coder_metadata)
    texts = list(random_texts(100_000, seed=1))
    for text, expected in zip(
        texts, reference._tokenizer.encode_batch_fast(texts, add_special_tokens=False), strict=True
    ):
        assert coder.encode(text, parse_special=True) == expected.ids, ascii(text)


@pytest.mark.parametrize("model", ["coder", "smollm"])
def test_same_ids_as_a_plain_bpe(model: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(model)
    metadata = request.getfixturevalue(f"{model}_metadata")
    qwen = model == "coder"
    reference = SlowBPE(metadata, QWEN2_WORDS if qwen else GPT2_WORDS, nfc=qwen, single_digits=not qwen)
    for text in random_texts(PLAIN_BPE_TEXTS, seed=2, assigned_only=True):
        assert tokenizer.encode(text) == reference.encode(text), ascii(text)


PLAIN_BPE_TEXTS = 20_000


def test_round_trip(coder: Tokenizer) -> None:
    for text in random_texts(2_000, seed=3, assigned_only=True):
        assert coder.decode(coder.encode(text)) == unicodedata.normalize("NFC", text)


def test_control_tokens_only_on_request(coder: Tokenizer) -> None:
    text = "a<|im_end|>\n<tool_call>b"
    assert not set(coder.encode(text)) & set(coder.control_tokens.values())
    assert coder.decode(coder.encode(text)) == text
    assert coder.encode(text, parse_special=True) == [64, IM_END, 198, 151657, 65]
    for token, id in coder.control_tokens.items():
        assert coder.encode(token, parse_special=True) == [id]
        assert id not in coder.encode(f"x{token} {token}")


def test_decode_hides_control_but_not_user_defined_tokens(coder: Tokenizer) -> None:
    ids = [IM_START, 64, 151657, IM_END]
    assert coder.decode(ids) == "a<tool_call>"
    assert coder.decode(ids, skip_special=False) == "<|im_start|>a<tool_call><|im_end|>"


def test_token_bytes(coder: Tokenizer) -> None:
    assert [coder.token_bytes(id) for id in (82912, 246)] == [b"\xe9\xbe", b"\x98"]
    assert coder.token_bytes(IM_END) == b"<|im_end|>"
    assert coder.token_bytes(151_900) == b""  # a padding row
    assert {coder.token_bytes(id) for id in range(256)} == {bytes([b]) for b in range(256)}
    for id in (-1, 151_936):
        with pytest.raises(ValueError, match="151936"):
            coder.token_bytes(id)


def test_incomplete_character_decodes_to_one_replacement(coder: Tokenizer) -> None:
    assert coder.decode([82912]) == "\ufffd"
    assert coder.decode([82912, 246]) == "龘"


def test_end_ids_are_a_union(coder: Tokenizer, smollm: Tokenizer, coder_metadata: dict[str, Any]) -> None:
    assert coder.end_ids == {IM_END, ENDOFTEXT}
    assert smollm.end_ids == {0, 2}
    for name in ("eot", "eom"):
        other = Tokenizer.from_gguf({**coder_metadata, f"tokenizer.ggml.{name}_token_id": 151_664})
        assert other.end_ids == {IM_END, ENDOFTEXT, 151_664}


def test_no_bos_for_qwen_and_none_needed(coder: Tokenizer, coder_metadata: dict[str, Any]) -> None:
    ids = coder.encode("The capital of Iceland is", add_special=True)
    assert len(ids) == 5
    assert not coder.add_bos
    bare = {k: v for k, v in coder_metadata.items() if "bos" not in k}
    assert Tokenizer.from_gguf(bare).encode("The capital of Iceland is", add_special=True) == ids
    assert Tokenizer.from_gguf({**bare, "tokenizer.ggml.add_bos_token": True}).add_bos is False


def test_bos_where_the_model_wants_it(smollm_metadata: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_gguf({**smollm_metadata, "tokenizer.ggml.add_bos_token": True})
    assert tokenizer.encode("a", add_special=True) == [1, *tokenizer.encode("a")]


@pytest.mark.parametrize(
    ("model", "pre"), [("coder", "qwen2"), ("coder", "llama-bpe"), ("coder", "gpt-2"), ("smollm", "smollm")]
)
def test_same_ids_as_the_tokenizers_library(model: str, pre: str, request: pytest.FixtureRequest) -> None:
    metadata = {**request.getfixturevalue(f"{model}_metadata"), "tokenizer.ggml.pre": pre}
    tokenizer, reference = Tokenizer.from_gguf(metadata), library_bpe(metadata, pre)
    rng = random.Random(6)
    texts = list(random_texts(10_000, seed=6))
    chars = "'stSTrevemldLLRE \n\r\tſ1٣a中.!é\u0301"
    texts += ["".join(rng.choices(chars, k=rng.randint(1, 12))) for _ in range(10_000)]
    texts += [rng.randbytes(rng.randint(1, 30)).decode("utf-8", "replace") for _ in range(5_000)]
    chars = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    texts += [f"{char} {char}1" for char in chars[:0x3000]]
    texts += [" ".join(f"a{char}{char}.{char}" for char in chars[i : i + 64]) for i in range(0x3000, len(chars), 64)]
    if pre == "smollm":  # the library's digits are those of Unicode 17
        texts = [text for text in texts if not DIGITS_OF_UNICODE_17 & set(text)]
    for text, expected in zip(texts, reference.encode_batch_fast(texts, add_special_tokens=False), strict=True):
        assert tokenizer.encode(text) == expected.ids, ascii(text)


DIGITS_OF_UNICODE_17 = {*map(chr, range(0x11DE0, 0x11DEA)), *map(chr, range(0x16FF4, 0x16FF7))}


def test_composed_form_is_that_of_the_tokenizers_library() -> None:
    library = normalizers.NFC()
    chars = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    marks = [char for char in chars if unicodedata.combining(char)] + list("가각\U00011935\U00011930")
    rng = random.Random(7)
    texts = ["".join(rng.choice(marks if rng.random() < 0.8 else chars) for _ in range(8)) for _ in range(20_000)]
    for text in [*chars, *texts]:
        assert nfc(text) == library.normalize_str(text), ascii(text)


def test_long_runs_of_marks_are_composed_too() -> None:
    library = normalizers.NFC()
    for text in ("e" + "\u0301\u0323" * 100_000, "\u0301" * 50_000 + "\u0323" * 50_000, "\u0f73\u0344" * 50_000):
        assert nfc(text) == library.normalize_str(text)
    rng = random.Random(8)
    pool = "\u0301\u0323\u0344\u0f73\u0f75\u0f81\u0f71\u3099\u05b0\u0345\U0001d165\u1161\u11a8\u0898\U00010efd가eA "
    for _ in range(2000):
        few = rng.choices(pool, k=6)
        text = "".join(rng.choices(few, k=rng.randrange(1, 200)))
        assert nfc(text) == library.normalize_str(text), ascii(text)


def test_llama3_words_take_three_digits_and_whole_tokens(coder_metadata: dict[str, Any]) -> None:
    changed = {"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.merges": ["Ġ t"]}
    tokenizer = Tokenizer.from_gguf({**coder_metadata, **changed})
    assert [tokenizer.decode([id]) for id in tokenizer.encode("hello heello")] == ["hello", " ", *"heello"]
    assert tokenizer.encode("12345") == [id for text in "12345" for id in tokenizer.encode(text)]


def test_a_word_of_a_megabyte(coder: Tokenizer) -> None:
    word = "abcdefghij" * 100_000
    start = time.thread_time()
    ids = coder.encode(word)
    assert time.thread_time() - start < 2
    assert coder.decode(ids) == word


def test_importing_and_building_take_no_tokenizer_library(coder_path: Path) -> None:
    code = (
        "import sys; from typebar.model.gguf import GGUFFile; from typebar.text.tokenizer import Tokenizer;"
        "print(Tokenizer.from_gguf(GGUFFile.open(sys.argv[1]).metadata).encode('é'), 'tokenizers' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(coder_path)]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60).stdout == "[963] False\n"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"tokenizer.ggml.model": "llama"}, "scores is not a number for each of 49152 tokens"),
        ({"tokenizer.ggml.model": "bert"}, "'bert'"),
        ({"tokenizer.ggml.model": None}, "tokenizer.ggml.model is None"),
        ({"tokenizer.ggml.pre": "default"}, "'default'"),
        ({"tokenizer.ggml.pre": None}, "tokenizer.ggml.pre is None"),
        ({"tokenizer.ggml.tokens": None}, "no tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.tokens": ["a", "b"]}, "token_type is not an integer for each of 2 tokens"),
        ({"tokenizer.ggml.merges": []}, "no tokenizer.ggml.merges"),
        ({"tokenizer.ggml.merges": ["ab"]}, r"merges\[0\], 'ab', is not two pieces"),
        ({"tokenizer.ggml.merges": ["a b", "日" * 40 + " yyyy"]}, r"merges\[1\], '日{26}', does not fit"),
        ({"tokenizer.ggml.merges": ["a b", "a b"]}, r"merges\[1\], 'a b', is the same as entry 0"),
        ({"tokenizer.ggml.merges": ["a b\0"]}, r"merges\[0\].*does not fit the vocabulary"),
        ({"tokenizer.ggml.tokens": ["a"] * 49152}, r"tokens\[.*'a', is the same as entry"),
        ({"tokenizer.ggml.eos_token_id": 49_152}, "eos_token_id is 49152"),
        ({"tokenizer.ggml.eos_token_id": "2"}, "eos_token_id is 2"),
        ({"tokenizer.ggml.bos_token_id": float("nan")}, "bos_token_id is nan"),
        ({"tokenizer.ggml.pre": ["smollm"]}, "tokenizer.ggml.pre is"),
        ({"tokenizer.ggml.token_type": ["1"] * 49_152}, "token_type is not an integer"),
        ({"tokenizer.ggml.add_bos_token": "false"}, "add_bos_token is not a boolean"),
        ({"tokenizer.chat_template": 7}, "chat_template not a text"),
    ],
)
def test_unusable_metadata_is_named(smollm_metadata: dict[str, Any], changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ModelFileError, match=problem):
        Tokenizer.from_gguf({**smollm_metadata, **changes})


@pytest.mark.parametrize(
    "text",
    [
        "a" * 200_000,
        "_" * 200_000,
        "汉" * 100_000,
        " " * 200_000,
        "\n" * 200_000,
        " " * 200_000 + "x",
        "\u0301" * 200_000,
        "\u200d" * 100_000,
        "7" * 200_000,
        " \n" * 100_000,
    ],
    ids=lambda text: f"{text[:2]!a}",
)
def test_long_runs_take_under_a_second(coder: Tokenizer, text: str) -> None:
    start = time.thread_time()
    ids = coder.encode(text)
    assert time.thread_time() - start < 1
    assert coder.decode(ids) == text


@pytest.mark.parametrize("char", ["a", "中", ".", " ", "\u0301", "\u200d", "👨\u200d"])
def test_long_runs_need_little_stack(coder: Tokenizer, char: str) -> None:
    text, ids = char * 30_000, []
    before = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(target=lambda: ids.extend(coder.encode(text)))
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    assert coder.decode(ids) == text


def test_64_threads(coder: Tokenizer) -> None:
    texts = list(random_texts(200, seed=4))
    special = [i % 2 == 0 for i in range(len(texts))]
    expected = [coder.encode(text, parse_special=s) for text, s in zip(texts, special, strict=True)]

    def work(_: int) -> list[list[int]]:
        return [coder.encode(text, parse_special=s) for text, s in zip(texts, special, strict=True)]

    with ThreadPoolExecutor(64) as pool:
        assert all(ids == expected for ids in pool.map(work, range(64)))


def test_other_threads_run_while_a_long_text_is_encoded(coder: Tokenizer) -> None:
    ticks = 0
    over = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not over.wait(0.002):
            ticks += 1

    thread = threading.Thread(target=tick)
    thread.start()
    coder.encode("hello world " * 600_000)  # 200 ms and more
    found = ticks
    over.set()
    thread.join()
    assert found > 10


def test_nul_and_lone_surrogates(coder: Tokenizer) -> None:
    assert coder.decode(coder.encode("a\0b")) == "a\0b"
    assert coder.decode(coder.encode("a\ud800b")) == "a\ufffdb"
    assert coder.decode(coder.encode("\ud83d\ude00")) == "😀"
    assert coder.encode("") == []


def test_decoding_keeps_no_table(coder: Tokenizer) -> None:
    tracemalloc.start()
    coder.decode(range(coder.vocab_size))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 2_000_000
