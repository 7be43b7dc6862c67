import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from typebar.text.stream import TextStream
from typebar.text.tokenizer import Tokenizer

IM_END = 151645


@pytest.fixture(scope="session")
def ids_of_bytes(coder: Tokenizer) -> dict[int, int]:
    """Byte to the token that is just this byte: with these ids a text is split as finely as can be."""
    return {coder.token_bytes(id)[0]: id for id in range(256)}


def stream_all(
    tokenizer: Tokenizer, ids: list[int], stop: list[str], include_stop: bool = False
) -> tuple[list[str], str | None]:
    stream = TextStream(tokenizer, stop, include_stop)
    pieces = [stream.feed(id) for id in ids]
    return [*pieces, stream.finish()], stream.stop_reason


def first_stop(text: str, stop: list[str], include_stop: bool = False) -> tuple[str, str | None]:
    """Definition: the stop string that ends first; of those that end there, the longest."""
    for end in range(1, len(text) + 1):
        met = [s for s in stop if s and text[:end].endswith(s)]
        if met:
            longest = max(met, key=len)
            return text[: end if include_stop else end - len(longest)], longest
    return text, None


def may_become_stop(text: str, stop: list[str]) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of a stop string."""
    return max((n for s in stop for n in range(len(s)) if text.endswith(s[:n])), default=0)


def test_split_characters_are_held(coder: Tokenizer) -> None:
    stream = TextStream(coder)
    assert [stream.feed(id) for id in (82912, 246, 9284, 104, 254)] == ["", "龘", "", "", "🫠"]
    assert stream.finish() == ""


@pytest.mark.parametrize("text", ["龘🫠𝄞Ⅷ①", "龘①汉字", "e\u0301 👨‍👩‍👧", "a\r\n\tb"])
def test_joined_pieces_are_the_text(coder: Tokenizer, text: str) -> None:
    ids = coder.encode(text)
    pieces, _ = stream_all(coder, ids, [])
    assert "".join(pieces) == coder.decode(ids)
    assert "\ufffd" not in "".join(pieces)


@pytest.mark.parametrize("count", range(1, 9))
def test_cut_inside_a_character_is_still_utf8(coder: Tokenizer, count: int) -> None:
    ids = coder.encode("龘龘龘龘")[:count]
    pieces, _ = stream_all(coder, ids, [])
    assert "".join(pieces) == coder.decode(ids) == "龘" * (count // 2) + "\ufffd" * (count % 2)
    assert "\ufffd" not in "".join(pieces[:-1])


def test_unfinished_character_of_an_answer_that_was_cut_is_left_out(coder: Tokenizer) -> None:
    stream = TextStream(coder, ["END"])
    assert "".join(map(stream.feed, coder.encode("EN"))) == "" == stream.feed(82912)  # half of 龘
    assert stream.finish(cut=True) == "EN"


def test_bytes_of_tokens_join_to_the_text(coder: Tokenizer) -> None:
    stream, raw, text = TextStream(coder), b"", ""
    for id in [*coder.encode("龘①汉字"), IM_END]:
        text += stream.feed(id)
        raw += stream.last_bytes
    assert raw == (text + stream.finish()).encode() == "龘①汉字".encode()


def test_control_tokens_give_no_text(coder: Tokenizer) -> None:
    pieces, _ = stream_all(coder, [*coder.encode("hi"), IM_END], ["<|im_end|>"])
    assert "".join(pieces) == "hi"


def test_invalid_bytes_become_replacements(coder: Tokenizer, ids_of_bytes: dict[int, int]) -> None:
    pieces, _ = stream_all(coder, [ids_of_bytes[b] for b in b"a\xff\xe9b"], [])
    assert pieces == ["a", "\ufffd", "", "\ufffdb", ""]


def test_stop_over_many_tokens_never_leaks(coder: Tokenizer) -> None:
    ids = coder.encode("The quick brown fox jumps")
    pieces, reason = stream_all(coder, ids, ["own fox"])
    assert "".join(pieces) == "The quick br"
    assert reason == "own fox"
    assert stream_all(coder, ids, ["own fox"], include_stop=True)[0][-3:] == ["own fox", "", ""]


def test_stop_of_split_bytes(coder: Tokenizer) -> None:
    pieces, reason = stream_all(coder, coder.encode("a龘b🫠c"), ["b🫠"])
    assert ("".join(pieces), reason) == ("a龘", "b🫠")


def test_long_stop_does_not_delay(coder: Tokenizer) -> None:
    ids = coder.encode("Hello there, how are you? <tool_call> x")
    unhindered, _ = stream_all(coder, ids, [])
    assert stream_all(coder, ids, ["#" * 200])[0] == unhindered
    held, _ = stream_all(coder, ids, ["<" + "x" * 200])
    assert "".join(held) == "".join(unhindered)
    assert held[:7] == unhindered[:7]  # up to the token that is "<"


def test_held_text_is_flushed_at_the_end(coder: Tokenizer) -> None:
    stream = TextStream(coder, ['"END'])
    text = "".join(stream.feed(id) for id in coder.encode('"say pleas"'))
    assert text == '"say pleas'
    assert stream.feed(IM_END) == ""
    assert stream.finish() == '"'
    assert not stream.stopped


def test_nothing_after_the_stop(coder: Tokenizer, ids_of_bytes: dict[int, int]) -> None:
    stream = TextStream(coder, ["b"])
    assert [stream.feed(ids_of_bytes[byte]) for byte in b"abab"] == ["a", "", "", ""]
    assert (stream.finish(), stream.stopped) == ("", True)


def test_empty_stop_is_ignored(coder: Tokenizer, ids_of_bytes: dict[int, int]) -> None:
    assert stream_all(coder, [ids_of_bytes[b] for b in b"ab"], [""]) == (["a", "b", ""], None)


def test_linear_for_a_long_self_similar_stop(coder: Tokenizer, ids_of_bytes: dict[int, int]) -> None:
    stop = "a" * 100_000 + "b"
    text = ("a" * 50_000 + "c") * 4
    assert stream_all(coder, [ids_of_bytes[b] for b in text.encode()], [stop])[0][-2] == "a" * 50_000 + "c"


TEXTS = st.text(alphabet="abc龘\U0001fae0", max_size=30)
STOPS = st.lists(st.text(alphabet="abc龘\U0001fae0", max_size=5), max_size=4)


@given(TEXTS, STOPS, st.booleans())
@settings(max_examples=1000, deadline=None)
def test_any_text_byte_by_byte_equals_the_definition(
    coder: Tokenizer, ids_of_bytes: dict[int, int], text: str, stop: list[str], include_stop: bool
) -> None:
    pieces, reason = stream_all(coder, [ids_of_bytes[b] for b in text.encode()], stop, include_stop)
    assert ("".join(pieces), reason) == first_stop(text, stop, include_stop)


@given(TEXTS, STOPS)
@settings(max_examples=500, deadline=None)
def test_exactly_the_longest_partial_match_is_held(
    coder: Tokenizer, ids_of_bytes: dict[int, int], text: str, stop: list[str]
) -> None:
    stream = TextStream(coder, stop)
    sent = ""
    for i, char in enumerate(text, start=1):
        for byte in char.encode():
            sent += stream.feed(ids_of_bytes[byte])
        if stream.stopped:
            break
        assert sent == text[: i - may_become_stop(text[:i], stop)]


@given(st.binary(max_size=40))
@settings(deadline=None)
def test_any_bytes_equal_one_decode(coder: Tokenizer, ids_of_bytes: dict[int, int], data: bytes) -> None:
    pieces, _ = stream_all(coder, [ids_of_bytes[b] for b in data], [])
    assert "".join(pieces) == data.decode("utf-8", "replace")


def test_random_ids_equal_decode(coder: Tokenizer) -> None:
    rng = random.Random(7)
    for _ in range(200):
        ids = [rng.randrange(coder.vocab_size) for _ in range(50)]
        pieces, _ = stream_all(coder, ids, ["\x00never"])
        assert "".join(pieces) == coder.decode(ids)
