"""The tokenizer of Gemma, from its GGUF file and from a folder, against transformers' own."""

import json
import shutil
from array import array
from pathlib import Path
from typing import Any

import pytest

from text_reference import hf_gemma_tokenizer, random_texts
from typebar.errors import ModelFileError
from typebar.quantize.tokenizer_texts import tokenizer_texts
from typebar.text.chat import ChatTemplate, ChatTemplateError
from typebar.text.stream import TextStream
from typebar.text.tokenizer import USER_DEFINED, Tokenizer
from typebar.text.tokenizer_json import TokenizerFiles

PAD, EOS, BOS, START_OF_TURN, END_OF_TURN = 0, 1, 2, 105, 106

# Facts of the Gemma 3 vocabulary.
IDS = {
    "Hello world": [9259, 1902],
    "  two   spaces\n\n\tx": [138, 13498, 139, 35220, 108, 255968, 236781],
    "日本語のテスト、です。": [94951, 236945, 88733, 236951, 3652, 236924],
    "def f(x):\n    return x\r\n": [2063, 517, 236769, 236781, 1473, 107, 140, 2060, 1123, 251, 107],
    "<end_of_turn>": [236820, 643, 236779, 1340, 236779, 887, 236813],
    "<table></s>": [168, 212],
    "\x00": [238],
    "\u0378": [443, 422],  # no such character: two bytes
    "": [],
}


@pytest.fixture(scope="module")
def reference(gemma_metadata: dict[str, Any]) -> Any:
    return hf_gemma_tokenizer(gemma_metadata)


@pytest.fixture(scope="module")
def folder(reference: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gemma")
    reference.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"add_bos_token": True}))  # as on the hub
    return folder


@pytest.mark.parametrize("text", IDS)
def test_facts(gemma: Tokenizer, text: str) -> None:
    assert gemma.encode(text) == IDS[text]
    assert gemma.decode(IDS[text]) == text


def test_same_ids_as_transformers_on_30_000_texts(gemma: Tokenizer, reference: Any) -> None:
    texts = list(random_texts(30_000, seed=1))
    for text, expected in zip(
        texts, reference._tokenizer.encode_batch_fast(texts, add_special_tokens=False), strict=True
    ):
        assert gemma.encode(text, parse_special=True) == expected.ids, ascii(text)


def test_round_trip(gemma: Tokenizer) -> None:
    for text in random_texts(2_000, seed=3):
        text = text.replace("\u2581", "")  # stands for a space
        assert gemma.decode(gemma.encode(text)) == text


def test_control_tokens_only_on_request(gemma: Tokenizer) -> None:
    text = "<bos><start_of_turn>user\nhi<end_of_turn>"
    assert gemma.encode(text, parse_special=True) == [BOS, START_OF_TURN, 2364, 107, 2202, END_OF_TURN]
    assert not gemma.special_ids & set(gemma.encode(text))
    assert gemma.encode("hi", add_special=True) == [BOS, 2202]
    assert gemma.decode([BOS, 2202, END_OF_TURN]) == "hi"


def test_tags_of_html_are_text_and_end_nothing(gemma: Tokenizer) -> None:
    assert gemma.end_ids == {EOS, END_OF_TURN}
    assert "</s>" not in gemma.control_tokens
    assert gemma.decode(gemma.encode("<s>a</s>\n\n")) == "<s>a</s>\n\n"


def test_characters_of_several_bytes_stream_whole(gemma: Tokenizer) -> None:
    ids = gemma.encode("a\u0378\U0003ffffb")
    stream = TextStream(gemma)
    pieces = [stream.feed(id) for id in ids]
    assert "".join(pieces) + stream.finish() == "a\u0378\U0003ffffb"
    assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("text", ["a" * 200_000, "_" * 200_000, "汉" * 100_000, " " * 200_000, "\n" * 200_000])
def test_long_runs(gemma: Tokenizer, text: str) -> None:
    assert gemma.decode(gemma.encode(text)) == text


def test_folder_gives_the_same_tokenizer(gemma: Tokenizer, folder: Path) -> None:
    built = TokenizerFiles.read(folder).build(gemma.vocab_size)
    for text in random_texts(3_000, seed=5):
        for parse in (False, True):
            assert built.encode(text, parse_special=parse) == gemma.encode(text, parse_special=parse), ascii(text)
    assert [built.token_bytes(id) for id in range(gemma.vocab_size)] == [
        gemma.token_bytes(id) for id in range(gemma.vocab_size)
    ]
    assert built.special_ids == gemma.special_ids
    assert built.control_tokens == gemma.control_tokens
    assert (built.bos_id, built.add_bos) == (BOS, True)
    assert built.end_ids == gemma.end_ids


def test_marks_of_turns_are_control_tokens_whatever_the_files_call_them(
    gemma: Tokenizer, gemma_metadata: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    types = gemma_metadata["tokenizer.ggml.token_type"]
    changed = array(types.format, types)
    changed[START_OF_TURN] = changed[END_OF_TURN] = USER_DEFINED
    of_gguf = Tokenizer.from_gguf(gemma_metadata | {"tokenizer.ggml.token_type": memoryview(changed)})
    copy = shutil.copytree(folder, tmp_path / "copy")
    data = json.loads((copy / "tokenizer.json").read_text())
    for token in data["added_tokens"]:
        token["special"] &= token["id"] not in (START_OF_TURN, END_OF_TURN)
    (copy / "tokenizer.json").write_text(json.dumps(data))
    for built in (of_gguf, TokenizerFiles.read(copy).build(gemma.vocab_size)):
        text = "a<end_of_turn>\n<start_of_turn>model\n"
        assert built.encode(text) == gemma.encode(text)
        assert built.control_tokens == gemma.control_tokens
        assert built.end_ids == gemma.end_ids
        assert built.decode([2202, END_OF_TURN]) == "hi"


def test_tokenizer_json_is_not_written(gemma: Tokenizer, gemma_metadata: dict[str, Any]) -> None:
    with pytest.raises(ModelFileError, match="SentencePiece's kind is not written"):
        tokenizer_texts(gemma_metadata, gemma, 1024)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"tokenizer.ggml.scores": None}, "scores is not a number for each of 262144 tokens"),
        ({"tokenizer.ggml.scores": memoryview(array("f", [0.0]))}, "scores is not a number for each"),
        ({"tokenizer.ggml.add_space_prefix": True}, "puts a space before a text"),
        ({"tokenizer.ggml.add_space_prefix": None}, "puts a space before a text"),
        ({"tokenizer.ggml.token_type": None}, "there is none for byte 0"),
        ({"tokenizer.ggml.model": "t5"}, "tokenizer.ggml.model is 't5'"),
    ],
)
def test_unusable_metadata_is_named(gemma_metadata: dict[str, Any], changes: dict[str, Any], problem: str) -> None:
    metadata = {key: value for key, value in (gemma_metadata | changes).items() if value is not None}
    with pytest.raises(ModelFileError, match=problem):
        Tokenizer.from_gguf(metadata)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"normalizer": {"type": "Prepend", "prepend": "\u2581"}}, "a BPE tokenizer of characters"),
        ({"pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581"}}, "a BPE tokenizer of characters"),
        ({"vocab": {"a": 0}, "merges": []}, "there is none for byte 0"),
        ({"merges": ["a 龘q"]}, "the entry 'a龘q' is missing"),
    ],
)
def test_unusable_folder_is_named(folder: Path, tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    data = json.loads((folder / "tokenizer.json").read_text())
    for key, value in changes.items():
        (data["model"] if key in data["model"] else data)[key] = value
    data["added_tokens"] = []
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(ModelFileError, match=problem):
        TokenizerFiles.read(tmp_path).build()


# Chats

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": " Hi <end_of_turn>\n<bos> "}
ASSISTANT = {"role": "assistant", "content": "Hello"}


def test_chat_without_a_template_is_that_of_gemma(gemma: Tokenizer) -> None:
    chat = ChatTemplate(None, gemma)
    assert chat.render([SYSTEM, USER, ASSISTANT, {"role": "user", "content": "x"}]) == (
        "<bos><start_of_turn>user\nBe brief.\n\nHi <end_of_turn>\n<bos><end_of_turn>\n<start_of_turn>model\nHello"
        "<end_of_turn>\n<start_of_turn>user\nx<end_of_turn>\n<start_of_turn>model\n"
    )
    assert chat.render([USER | {"content": "a"}], add_generation_prompt=False) == (
        "<bos><start_of_turn>user\na<end_of_turn>\n"
    )
    with pytest.raises(ChatTemplateError, match="a system message can only be the first"):
        chat.render([USER, SYSTEM])


def test_only_the_template_writes_control_tokens(gemma: Tokenizer) -> None:
    ids = ChatTemplate(None, gemma).encode([SYSTEM, USER])
    assert [id for id in ids if id in gemma.special_ids] == [BOS, START_OF_TURN, END_OF_TURN, START_OF_TURN]
    assert ids[:4] == [BOS, START_OF_TURN, 2364, 107]
    assert ids[-4:] == [107, START_OF_TURN, 4368, 107]


def test_ids_are_those_of_transformers(gemma: Tokenizer, reference: Any) -> None:
    chat = ChatTemplate(None, gemma)
    for text in random_texts(300, seed=9):
        messages = [{"role": "user", "content": text}, ASSISTANT, {"role": "user", "content": text + "?"}]
        if "<|im_end|>" not in text:
            assert chat.encode(messages) == reference.encode(chat.render(messages), add_special_tokens=False)
