"""Where the context ends, and inputs of any size: refused or answered soon, and nobody else waits."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from asking import CHAT, COMPLETION, GREEDY, NATIVE, WAYS, WEBSOCKET, prompt_ids, user, websocket_turn
from server_process import ServerProcess

CONTEXT = 2048  # of tiny_server


def prompt_of(length: int) -> list[int]:
    return [33 + number % 90 for number in range(length)]


def chat_of(server: ServerProcess, length: int) -> list[dict[str, Any]]:
    """A conversation whose prompt has `length` tokens: every digit is one."""
    frame = len(prompt_ids(server, user("")))
    messages = user("7" * (length - frame))
    assert len(prompt_ids(server, messages)) == length
    return messages


def request_of(server: ServerProcess, route: str, length: int, **fields: Any) -> dict[str, Any]:
    if route in (CHAT, WEBSOCKET):
        return {"messages": chat_of(server, length), **GREEDY, **fields}
    return {"prompt": prompt_of(length), **GREEDY, **fields}


@pytest.mark.parametrize(("route", "stream"), WAYS)
@pytest.mark.parametrize("length", [CONTEXT, CONTEXT + 1, 20 * CONTEXT])
def test_prompt_over_the_context_is_refused_with_both_numbers(
    tiny_server: ServerProcess, route: str, stream: bool, length: int
) -> None:
    request = request_of(tiny_server, route, length, max_tokens=1)
    if route == WEBSOCKET:
        [frame] = websocket_turn(tiny_server, request)
        assert frame["type"] == "error"
        error = frame["error"]
    else:
        response = tiny_server.post(route, {**request, "stream": stream})
        assert (response.status_code, response.headers["content-type"]) == (400, "application/json")
        error = response.json()["error"]
    assert (error["code"], error["param"]) == (
        "context_length_exceeded",
        "messages" if "messages" in request else "prompt",
    )
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (length, CONTEXT)
    assert str(length) in error["message"]
    assert str(CONTEXT) in error["message"]


@pytest.mark.parametrize(("route", "stream"), WAYS)
@pytest.mark.parametrize("room", [1, 2])
def test_prompt_that_leaves_room_is_answered_up_to_the_end(
    tiny_server: ServerProcess, route: str, stream: bool, room: int
) -> None:
    request = request_of(tiny_server, route, CONTEXT - room, max_tokens=50, ignore_eos=True)
    if route == WEBSOCKET:
        *_, done = websocket_turn(tiny_server, request)
        reason, usage = done["choices"][0]["finish_reason"], done["usage"]
        counts = usage["prompt_tokens"], usage["completion_tokens"]
    elif route == NATIVE:
        value = tiny_server.events(route, request)[-1] if stream else tiny_server.post(route, request).json()
        assert value["truncated"] is False
        reason = {"limit": "length"}[value["stop_type"]]
        counts = value["tokens_evaluated"], value["tokens_predicted"]
    elif stream:
        *_, last, usage, _ = tiny_server.events(route, {**request, "stream_options": {"include_usage": True}})
        reason = last["choices"][0]["finish_reason"]
        counts = usage["usage"]["prompt_tokens"], usage["usage"]["completion_tokens"]
    else:
        value = tiny_server.post(route, request).json()
        reason = value["choices"][0]["finish_reason"]
        counts = value["usage"]["prompt_tokens"], value["usage"]["completion_tokens"]
    assert (reason, counts) == ("length", (CONTEXT - room, room))


@pytest.mark.parametrize("max_tokens", [50, 10**9, 2**31, 2**63, 10**30, None])
def test_wish_for_more_than_the_room_never_cuts_the_prompt(tiny_server: ServerProcess, max_tokens: int | None) -> None:
    request = {"messages": chat_of(tiny_server, CONTEXT - 5), "ignore_eos": True, "max_tokens": max_tokens}
    value = tiny_server.post(CHAT, request).json()
    assert (value["usage"]["prompt_tokens"], value["usage"]["completion_tokens"]) == (CONTEXT - 5, 5)
    assert value["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(("keep", "left"), [(-1, CONTEXT - 1), (5, 5), (CONTEXT - 1, CONTEXT - 1), (10**9, None)])
def test_prompt_is_cut_only_on_request(tiny_server: ServerProcess, keep: int, left: int | None) -> None:
    for route in (CHAT, COMPLETION):
        request = request_of(tiny_server, route, CONTEXT + 10, max_tokens=1, truncate_prompt_tokens=keep)
        response = tiny_server.post(route, request)
        if left is None:
            assert response.json()["error"]["code"] == "context_length_exceeded"
        else:
            assert response.json()["usage"]["prompt_tokens"] == left
    short = request_of(tiny_server, COMPLETION, 3, max_tokens=1, truncate_prompt_tokens=keep)
    assert tiny_server.post(COMPLETION, short).json()["usage"]["prompt_tokens"] == 3


def test_a_cut_prompt_keeps_its_end(tiny_server: ServerProcess) -> None:
    cut = {"prompt": prompt_of(300), "truncate_prompt_tokens": 40, **GREEDY, "max_tokens": 8}
    short = {"prompt": prompt_of(300)[-40:], **GREEDY, "max_tokens": 8}
    texts = [tiny_server.post(COMPLETION, request).json()["choices"][0]["text"] for request in (cut, short)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "prompt",
    ["", [], [[]], [""], ["a", ""], [[65], []], [-1], [288], [2**40], [2**70], [True], [1.0], [None], 5, {"a": 1},
     [[65, [66]]], [{}], ["a"] * 65, [["a"], [None]]],
)  # fmt: skip
def test_what_is_no_prompt_is_refused(tiny_server: ServerProcess, prompt: Any) -> None:
    for route in (COMPLETION, NATIVE):
        response = tiny_server.post(route, {"prompt": prompt, "max_tokens": 1})
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == "prompt"


@pytest.mark.parametrize(("prompt", "count"), [("a", 1), ([65], 1), ([65, "b", 66], 3), (["a"], 1), ([[65], "b"], 2)])
def test_prompts_of_every_form(tiny_server: ServerProcess, prompt: Any, count: int) -> None:
    value = tiny_server.post(COMPLETION, {"prompt": prompt, "max_tokens": 1}).json()
    assert value["usage"]["prompt_tokens"] == count


@contextmanager
def health_is_watched(server: ServerProcess) -> Iterator[list[float]]:
    """Seconds that /health took, asked again and again."""
    seconds: list[float] = []
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            start = time.monotonic()
            assert server.get("/health").status_code == 200
            seconds.append(time.monotonic() - start)
            over.wait(0.02)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield seconds
    finally:
        over.set()
        thread.join()


RUNS = {
    "letters": "a" * 200_000,
    "underscores": "_" * 200_000,
    "han": "汉" * 100_000,
    "spaces": " " * 200_000,
    "newlines": "\n" * 200_000,
    "dots": "." * 30_000,
    "accents": "\u0301" * 30_000,
    "joiners": "👩\u200d" * 30_000,
    "words": "hello world " * 20_000,
    "split": "龘" * 50_000,
}


@pytest.mark.parametrize("name", RUNS)
def test_long_runs_hold_nobody_up(coder_server: ServerProcess, name: str) -> None:
    with health_is_watched(coder_server) as seconds:
        response = coder_server.post("/tokenize", {"content": RUNS[name]})
        assert response.status_code == 200
        if response.json()["count"] >= 4096:
            refused = coder_server.post(CHAT, {"messages": user(RUNS[name]), "stream": True})
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert seconds
    assert max(seconds) < 5  # under 0.1 on a machine that does nothing else


def test_text_that_cannot_fit_is_refused_before_it_is_read(tiny_server: ServerProcess) -> None:
    with health_is_watched(tiny_server) as seconds:
        for path, fields in ((CHAT, {"messages": user("a" * 5_000_000)}), (COMPLETION, {"prompt": "a" * 5_000_000})):
            error = tiny_server.post(path, fields).json()["error"]
            assert (error["code"], error["n_ctx"]) == ("context_length_exceeded", CONTEXT)
            assert "at least" in error["message"]
    assert max(seconds) < 5


def test_many_small_messages_are_bounded_too(tiny_server: ServerProcess) -> None:
    with health_is_watched(tiny_server) as seconds:
        response = tiny_server.post(CHAT, {"messages": user("a") * 20_000})
        assert response.status_code in (400, 413), response.text
    assert max(seconds) < 5
    assert tiny_server.post(CHAT, {"messages": user("a") * 50, "max_tokens": 1}).status_code == 200


def test_any_number_of_unknown_fields_is_listed_shortly(tiny_server: ServerProcess) -> None:
    unknown = {f"field_{number}": 1 for number in range(300_000)}
    with health_is_watched(tiny_server) as seconds:
        response = tiny_server.post(CHAT, {"messages": user("a"), "max_tokens": 1, **unknown})
    assert response.status_code == 200
    assert len(response.json()["warnings"]) == 20
    assert len(response.headers["x-typebar-ignored"]) < 2000
    assert max(seconds) < 5


def test_pieces_of_a_long_text(tiny_server: ServerProcess) -> None:
    with health_is_watched(tiny_server) as seconds:
        fields = {"content": "hello world " * 16_000, "with_pieces": True, "return_token_strs": True}
        value = tiny_server.post("/tokenize", fields).json()
    assert "".join(piece["piece"] for piece in value["tokens"]) == "".join(value["token_strs"]) == fields["content"]
    assert max(seconds) < 5


def test_server_answers_as_before(coder_server: ServerProcess) -> None:
    """After all that: a greedy answer that is known."""
    assert coder_server.chat("Say only: hello", max_tokens=8)["choices"][0]["message"]["content"].lower()[:5] == "hello"


def test_text_of_any_length_is_cut_where_that_is_asked_for(tiny_server: ServerProcess) -> None:
    body = {"prompt": "0123456789" * 60_000, "max_tokens": 1, "truncate_prompt_tokens": 20}
    response = tiny_server.post("/v1/completions", body)
    assert response.status_code == 200, response.text
    assert response.json()["usage"]["prompt_tokens"] == 20
