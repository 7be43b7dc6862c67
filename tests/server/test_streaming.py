"""Streams: their text, which is the same on every way, and the order and form of their events."""

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from asking import CHAT, COMPLETION, GREEDY, NATIVE, PLAIN, WAYS, WEBSOCKET, ask, body, user, websocket_turn
from openai.types import Completion
from openai.types.chat import ChatCompletionChunk
from server_process import ServerProcess

RARE = "龘🫠𝄞Ⅷ①"  # no character is one token
FOX = "The quick brown fox jumps over it. The quick brown fox jumps over it. The"


def continued(server: ServerProcess, prompt: str, stream: bool, **fields: Any) -> dict[str, Any]:
    """The choice of a greedy completion, its text joined."""
    request = {"prompt": prompt, **GREEDY, **fields}
    if not stream:
        response = server.post(COMPLETION, request)
        assert response.status_code == 200, response.text
        choice: dict[str, Any] = response.json()["choices"][0]
        return choice
    choices = [event["choices"][0] for event in server.events(COMPLETION, request) if event != "[DONE]"]
    return {**choices[-1], "text": "".join(choice["text"] for choice in choices)}


@pytest.mark.parametrize(
    "fields",
    [
        {**GREEDY, "max_tokens": 80},
        {**PLAIN, "seed": 3, "max_tokens": 150},
        {**PLAIN, "seed": 4, "max_tokens": 80, "stop": ["\u000f", "en", "\ufffd\ufffd\ufffd"]},
        {**PLAIN, "seed": 5, "max_tokens": 80, "stop": "e", "include_stop_str_in_output": True},
        {**PLAIN, "seed": 6, "max_tokens": 80, "logit_bias": {"287": 4}},  # the end token is likely
        {**PLAIN, "seed": 7, "max_tokens": 60, "logit_bias": {"287": 9}, "skip_special_tokens": False,
         "ignore_eos": True},
        {**PLAIN, "seed": 8, "max_tokens": 60, "frequency_penalty": 1.5, "repetition_penalty": 1.3, "min_p": 0.1},
    ],
)  # fmt: skip
def test_every_way_gives_the_same_answer(tiny_server: ServerProcess, fields: dict[str, Any]) -> None:
    """The tiny model's tokens are mostly single bytes: characters are split, cut off and broken."""
    plain = [ask(tiny_server, "go", route, stream, **fields) for route, stream in WAYS]
    with_logprobs = [ask(tiny_server, "go", route, stream, top=3, **fields) for route, stream in WAYS]
    ends = {(answer.text, answer.reason, answer.stop_reason) for answer in plain + with_logprobs}
    assert len(ends) == 1, ends
    assert plain[0].text
    if "stop" not in fields:  # the tokens of a stop string have log-probabilities too
        for (route, _), answer in zip(WAYS, with_logprobs, strict=True):
            if route in (CHAT, NATIVE):
                assert b"".join(answer.data).decode("utf-8", "replace") == answer.text


def test_split_characters_arrive_whole(coder_server: ServerProcess) -> None:
    prompt = RARE * 4
    whole = continued(coder_server, prompt, False, max_tokens=18, logprobs=2)
    assert whole["text"].startswith("龘🫠𝄞Ⅷ①")
    events = coder_server.events(COMPLETION, {"prompt": prompt, **GREEDY, "max_tokens": 18})
    pieces = [event["choices"][0]["text"] for event in events[:-1]]
    assert "".join(pieces) == whole["text"]
    assert not [piece for piece in pieces[:-1] if "\ufffd" in piece]
    assert any(len(token.encode()) > 2 and "\ufffd" in token for token in whole["logprobs"]["tokens"])


def test_cap_inside_a_character_gives_valid_text(coder_server: ServerProcess) -> None:
    prompt = RARE * 4
    logprobs = coder_server.post(
        NATIVE, {"prompt": prompt, **GREEDY, "n_predict": 9, "n_probs": 1}
    ).json()["completion_probabilities"]  # fmt: skip
    tokens = [bytes(entry["bytes"]) for entry in logprobs]
    with ThreadPoolExecutor(6) as pool:
        cases = [(count, stream) for count in range(1, 10) for stream in (False, True)]
        found = pool.map(lambda case: continued(coder_server, prompt, case[1], max_tokens=case[0]), cases)
    for (count, _), choice in zip(cases, found, strict=True):
        assert choice["text"] == b"".join(tokens[:count]).decode("utf-8", "replace")
        assert choice["finish_reason"] == "length"
    assert coder_server.get("/health").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_stop_string_over_several_tokens_does_not_leak(coder_server: ServerProcess, stream: bool) -> None:
    choice = continued(coder_server, FOX, stream, max_tokens=12, stop=["own fox"])
    assert choice["text"] == " quick br"
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "own fox")


@pytest.mark.parametrize(("stop", "text"), [("①", RARE[:4]), ("\U0001fae0", "龘"), ("Ⅷ①龘", RARE[:3])])
def test_stop_string_of_split_characters(coder_server: ServerProcess, stop: str, text: str) -> None:
    choices = [continued(coder_server, RARE * 4, stream, max_tokens=20, stop=stop) for stream in (False, True)]
    assert [choice["text"] for choice in choices] == [text, text]


def test_stop_string_within_one_token(coder_server: ServerProcess) -> None:
    """Two newlines are one token, and so is a newline after a bracket: a stop need not end where a token does."""
    for stop in ("\n", "\n\n"):
        choice = continued(coder_server, "a\n\nb\n\nc\n\na\n\nb\n\nc\n\na", True, max_tokens=8, stop=stop)
        assert choice["finish_reason"] == "stop"
        assert stop not in choice["text"]


def test_long_stop_string_delays_nothing(coder_server: ServerProcess) -> None:
    request = {"prompt": FOX, **GREEDY, "max_tokens": 10}

    def pieces(**fields: Any) -> list[str]:
        events = coder_server.events(COMPLETION, {**request, **fields})
        return [event["choices"][0]["text"] for event in events[:-1]]

    assert pieces(stop=["<" + 200 * "x"]) == pieces()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reason", ["stop", "length"])
def test_text_held_for_a_stop_string_is_given_out(coder_server: ServerProcess, stream: bool, reason: str) -> None:
    """The end of the answer is the beginning of a stop string that does not come."""
    fields = {**GREEDY, "max_tokens": 12 if reason == "stop" else 2}
    free = ask(coder_server, "Say only: hello", **fields)
    assert free.reason == reason
    held = ask(coder_server, "Say only: hello", CHAT, stream, stop=[free.text[-4:] + "ZZZ"], **fields)
    assert (held.text, held.reason) == (free.text, reason)


def test_chunks_of_a_chat(tiny_server: ServerProcess) -> None:
    request = {"messages": user("go"), **PLAIN, "seed": 1, "n": 3, "max_tokens": 9, "logprobs": True}
    *chunks, done = tiny_server.events(CHAT, request)
    assert done == "[DONE]"
    for key in ("id", "created", "model", "object", "system_fingerprint"):
        assert len({chunk[key] for chunk in chunks}) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"
    assert chunks[0]["id"].startswith("chatcmpl-")
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
        [choice] = chunk["choices"]
        assert {"index", "delta", "finish_reason", "logprobs"} <= choice.keys()
        assert "usage" not in chunk
    for index in range(3):
        choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert not [choice for choice in choices[1:] if "role" in choice["delta"]]
        assert choices[-1]["delta"] == {}
        assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
        assert choices[-1]["finish_reason"] in ("stop", "length")


def test_chunks_of_a_completion(tiny_server: ServerProcess) -> None:
    request = {"prompt": ["go", "on"], **PLAIN, "seed": 1, "n": 2, "max_tokens": 9, "echo": True}
    *chunks, done = tiny_server.events(COMPLETION, request)
    whole = tiny_server.post(COMPLETION, request).json()
    assert done == "[DONE]"
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    assert (chunks[0]["object"], chunks[0]["id"][:5]) == ("text_completion", "cmpl-")
    for chunk in chunks:
        [choice] = chunk["choices"]
        assert {"index", "text", "finish_reason", "logprobs"} <= choice.keys()
        if choice["finish_reason"]:  # openai's type of the whole answer is all that it has for chunks too
            Completion.model_validate(chunk, strict=True)
    for index in range(4):
        choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert "".join(choice["text"] for choice in choices) == whole["choices"][index]["text"]
        assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]


@pytest.mark.parametrize("route", [CHAT, COMPLETION])
@pytest.mark.parametrize("wanted", [True, False, None])
def test_usage_comes_after_the_end_and_only_if_wanted(
    tiny_server: ServerProcess, route: str, wanted: bool | None
) -> None:
    options = {} if wanted is None else {"stream_options": {"include_usage": wanted}}
    request = body(tiny_server, route, "go", **GREEDY, max_tokens=5, n=2, **options)
    *chunks, done = tiny_server.events(route, request)
    assert done == "[DONE]"
    if not wanted:
        assert not [chunk for chunk in chunks if "usage" in chunk]
        assert all(chunk["choices"] for chunk in chunks)
        return
    *others, last = chunks
    assert last["choices"] == []
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in others)
    assert others[-1]["choices"][0]["finish_reason"]
    request = {key: value for key, value in request.items() if key != "stream_options"}
    usage = tiny_server.post(route, request).json()["usage"]
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [last["usage"][key] for key in counts] == [usage[key] for key in counts]


def test_usage_of_every_chunk_only_grows(tiny_server: ServerProcess) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, _ = tiny_server.events(
        COMPLETION, {"prompt": "go", **GREEDY, "max_tokens": 6, "stream_options": options}
    )  # fmt: skip
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 6


def test_usage_of_every_chunk_tells_what_was_cached(tiny_server: ServerProcess) -> None:
    request = {"prompt": "the same again " * 8, **GREEDY, "max_tokens": 4, "return_cache_miss": True}
    tiny_server.post(COMPLETION, request)
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, _ = tiny_server.events(COMPLETION, {**request, "stream_options": options})
    details = [chunk["usage"]["prompt_tokens_details"] for chunk in chunks]
    assert details[0]["cached_tokens"] == details[0]["cache_miss"]["position"] >= 16
    assert all(detail == details[0] for detail in details)


def test_native_stream_ends_with_everything(tiny_server: ServerProcess) -> None:
    *chunks, last = tiny_server.events(NATIVE, {"prompt": "go", **GREEDY, "n_predict": 5})
    assert [chunk["stop"] for chunk in chunks] == [False] * len(chunks)
    assert (last["stop"], last["stop_type"], last["content"]) == (True, "limit", "")


@contextmanager
def raw_request(server: ServerProcess, path: str, fields: dict[str, Any], version: str = "1.1") -> Iterator[Any]:
    """A connection on which the request was sent, as a file to read from."""
    data = json.dumps(fields).encode()
    head = f"POST {path} HTTP/{version}\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nConnection: close\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        with connection.makefile("rb") as file:
            yield file


def test_headers_keep_proxies_from_buffering(tiny_server: ServerProcess) -> None:
    fields = {"messages": user("go"), "stream": True, "max_tokens": 3}
    response = tiny_server.post(CHAT, fields, headers={"Accept-Encoding": "gzip, br, deflate"})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache, no-transform"
    assert response.headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in response.headers
    assert "content-length" not in response.headers


def test_http_1_0_reader_gets_plain_events(tiny_server: ServerProcess) -> None:
    """nginx asks its upstream in HTTP/1.0 by default, which has no chunks: the end is that of the connection."""
    with raw_request(tiny_server, CHAT, {"messages": user("go"), "stream": True, "max_tokens": 3}, "1.0") as file:
        head, _, rest = file.read().partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert rest.startswith(b": ")
    assert rest.endswith(b"data: [DONE]\n\n")


def test_first_bytes_and_heartbeats_come_during_a_long_prompt(coder_server: ServerProcess) -> None:
    """And every block between blank lines is one comment or one event, so that no comment is inside an event."""
    prompt = f"{time.time()} " + "word and number 7, " * 50
    fields = {"messages": user(prompt), "stream": True, "max_tokens": 3, "sse_ping_interval": 0.1}
    with raw_request(coder_server, CHAT, fields, "1.0") as file:
        while file.readline().strip():
            pass
        assert file.readline().startswith(b":")
        assert file.readline() == b"\n"
        assert json.loads(file.readline()[6:])["choices"][0]["delta"]["role"] == "assistant"
        assert file.readline() == b"\n"
        rest = file.read()
    *blocks, end = rest.split(b"\n\n")
    assert end == b""
    assert blocks[0] == b": ping"  # so what came before it came before the first token
    for block in blocks:
        assert b"\n" not in block
        assert block == b": ping" or block.startswith(b"data: ")
    assert blocks[-1] == b"data: [DONE]"


def test_progress_of_the_prompt_grows_to_all_of_it(coder_server: ServerProcess) -> None:
    prompt = f"{time.time()} " + "word and number 7, " * 50
    *chunks, _ = coder_server.events(CHAT, {"messages": user(prompt), "max_tokens": 2, "return_progress": True})
    told = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
    assert [one["processed"] for one in told] == sorted(one["processed"] for one in told)
    assert told[0]["processed"] < told[0]["total"] == told[-1]["total"] > 200
    assert all(one["cache"] <= one["processed"] <= one["total"] for one in told)


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"n": 0}, "n"), ({"temperature": -1}, "temperature"), ({"stop": [""] * 3 + ["x"] * 17}, "stop"),
     ({"logit_bias": {"999999": 1}}, "logit_bias"), ({"max_tokens": 0}, "max_tokens")],
)  # fmt: skip
def test_errors_come_before_the_stream(tiny_server: ServerProcess, fields: dict[str, Any], param: str) -> None:
    for route in (CHAT, COMPLETION, NATIVE):
        response = tiny_server.post(route, body(tiny_server, route, "hi", stream=True, **fields))
        assert (response.status_code, response.headers["content-type"]) == (400, "application/json")
        assert response.json()["error"]["param"] == param
    [frame] = websocket_turn(tiny_server, body(tiny_server, WEBSOCKET, "hi", **fields))
    assert (frame["type"], frame["error"]["param"]) == ("error", param)
