"""Answers in one piece: their shape, the reason for their end, their counts and log-probabilities."""

import json
import math
from typing import Any

import pytest
from asking import CHAT, COMPLETION, GREEDY, NATIVE, ask, body, prompt_ids, user, websocket_turn
from openai.types import Completion
from openai.types.chat import ChatCompletion
from server_process import ServerProcess


def strict_json(text: str) -> Any:
    """JSON without NaN and infinities, which Python's reader takes and others do not."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def answer(server: ServerProcess, route: str, **fields: Any) -> dict[str, Any]:
    response = server.post(route, body(server, route, "go", **fields))
    assert response.status_code == 200, response.text
    value: dict[str, Any] = strict_json(response.text)
    return value


def test_shape_of_a_chat(tiny_server: ServerProcess) -> None:
    value = answer(tiny_server, CHAT, **GREEDY, max_tokens=4, n=2, top=2)
    ChatCompletion.model_validate(value, strict=True)
    assert value["object"] == "chat.completion"
    assert value["id"].startswith("chatcmpl-")
    assert value["model"] == "tiny"
    assert [choice["index"] for choice in value["choices"]] == [0, 1]
    for choice in value["choices"]:
        assert choice["message"].keys() >= {"role", "content"}
        assert choice["finish_reason"] == "length"


def test_shape_of_a_completion(tiny_server: ServerProcess) -> None:
    value = tiny_server.post(COMPLETION, {"prompt": ["a", "b"], "n": 2, "max_tokens": 4, "logprobs": 2}).json()
    Completion.model_validate(value, strict=True)
    assert value["object"] == "text_completion"
    assert value["id"].startswith("cmpl-")
    assert [choice["index"] for choice in value["choices"]] == [0, 1, 2, 3]


def test_completion_ends_after_16_tokens_unless_told_otherwise(tiny_server: ServerProcess) -> None:
    value = tiny_server.post(COMPLETION, {"prompt": "a", "ignore_eos": True}).json()
    assert value["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize("route", [CHAT, COMPLETION, NATIVE])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "reason", "stop_reason"),
    [
        ({"max_tokens": 3, "ignore_eos": True}, "length", None),
        ({"max_tokens": 30, "logit_bias": {"287": 100}}, "stop", None),  # <|im_end|> of the tiny vocabulary
        ({"max_tokens": 30, "logit_bias": {"286": 100}, "stop": ["<|im_start|>"], "skip_special_tokens": False}, "stop",
         "<|im_start|>"),
        ({"max_tokens": 30, "logit_bias": {"68": 100}, "stop": ["ee"]}, "stop", "ee"),
        ({"content": "7" * 1990, "ignore_eos": True, "max_tokens": 4000}, "length", None),  # the context ends it
    ],
)  # fmt: skip
def test_reason_of_the_end(
    tiny_server: ServerProcess, route: str, stream: bool, fields: dict[str, Any], reason: str, stop_reason: str | None
) -> None:
    found = ask(tiny_server, route=route, stream=stream, **{"content": "go", **fields})
    assert (found.reason, found.stop_reason) == (reason, stop_reason)


@pytest.mark.parametrize("stream", [False, True])
def test_stop_token_is_the_reason_and_not_in_the_text(tiny_server: ServerProcess, stream: bool) -> None:
    fields = {"max_tokens": 9, "logit_bias": {"68": 100}, "stop_token_ids": [68]}
    for route in (CHAT, COMPLETION):
        found = ask(tiny_server, "go", route, stream, **fields)
        assert (found.text, found.reason, found.stop_reason) == ("", "stop", 68)


def test_end_token_stays_out_of_the_answer(coder_server: ServerProcess) -> None:
    value = coder_server.chat("Say hi", max_tokens=60, logprobs=True)
    [choice] = value["choices"]
    assert choice["finish_reason"] == "stop"
    assert "<|" not in choice["message"]["content"]
    assert "".join(entry["token"] for entry in choice["logprobs"]["content"]) == choice["message"]["content"]
    assert value["usage"]["completion_tokens"] == len(choice["logprobs"]["content"]) + 1  # the end token counts


@pytest.mark.parametrize("token", ["151645", "151643"])
def test_every_end_token_ends(coder_server: ServerProcess, token: str) -> None:
    value = coder_server.chat("Say hi", max_tokens=9, logit_bias={token: 100})
    assert value["choices"][0]["finish_reason"] == "stop"
    assert value["choices"][0]["message"]["content"] == ""


def test_usage_counts_each_prompt_once(tiny_server: ServerProcess) -> None:
    value = answer(tiny_server, CHAT, max_tokens=5, n=3, ignore_eos=True)
    assert value["usage"]["prompt_tokens"] == len(prompt_ids(tiny_server, user("go")))
    assert value["usage"]["completion_tokens"] == 15
    fields = {"prompt": [[65, 66], [67, 68, 69]], "max_tokens": 5, "n": 2, "ignore_eos": True}
    usage = tiny_server.post(COMPLETION, fields).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (5, 20, 25)


@pytest.mark.parametrize("route", [CHAT, COMPLETION])
def test_usage_is_the_same_from_the_cache(tiny_server: ServerProcess, route: str) -> None:
    request = body(tiny_server, route, f"what is in the cache, {route}", **GREEDY, max_tokens=3)
    first, second = (tiny_server.post(route, request).json()["usage"] for _ in range(2))
    for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert first[key] == second[key]
    assert first["prompt_tokens_details"]["cached_tokens"] < 32
    assert second["prompt_tokens_details"]["cached_tokens"] >= (second["prompt_tokens"] - 1) // 16 * 16
    for fields in ({"cache_prompt": False}, {"cache_salt": route}):
        usage = tiny_server.post(route, {**request, **fields}).json()["usage"]
        assert (usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]) == (first["prompt_tokens"], 0)


def test_cache_miss_is_shown_on_request(tiny_server: ServerProcess) -> None:
    head = [65 + number % 20 for number in range(64)]
    tiny_server.post(COMPLETION, {"prompt": [*head, 40], "max_tokens": 1})
    fields = {"prompt": [*head[:48], 64, 65, 66], "max_tokens": 1, "return_cache_miss": True}
    details = tiny_server.post(COMPLETION, fields).json()["usage"]["prompt_tokens_details"]
    assert details["cached_tokens"] == details["cache_miss"]["position"] == 48
    assert details["cache_miss"]["text"] == tiny_server.post("/detokenize", {"tokens": [64, 65, 66]}).json()["content"]


@pytest.mark.parametrize("top", [0, 1, 20])
def test_logprobs_of_a_chat(tiny_server: ServerProcess, top: int) -> None:
    value = answer(tiny_server, CHAT, **GREEDY, max_tokens=8, top=top, ignore_eos=True)
    entries = value["choices"][0]["logprobs"]["content"]
    assert len(entries) == 8
    for entry in entries:
        best = [other["logprob"] for other in entry["top_logprobs"]]
        assert len(best) == top
        assert best == sorted(best, reverse=True)
        assert all(-9999 <= logprob <= 0 for logprob in [entry["logprob"], *best])
        if top:
            assert entry["token"] == entry["top_logprobs"][0]["token"]


def test_no_logprobs_unless_wanted(tiny_server: ServerProcess) -> None:
    for fields in ({}, {"logprobs": False}, {"logprobs": False, "top_logprobs": 0}):
        assert answer(tiny_server, CHAT, max_tokens=2, **fields)["choices"][0]["logprobs"] is None
    assert answer(tiny_server, COMPLETION, max_tokens=2)["choices"][0]["logprobs"] is None
    value = answer(tiny_server, COMPLETION, max_tokens=2, top=0, ignore_eos=True)
    assert value["choices"][0]["logprobs"]["top_logprobs"] == [{}, {}]


@pytest.mark.parametrize("shown", [False, True])
def test_control_tokens_that_end_nothing_have_logprobs(tiny_server: ServerProcess, shown: bool) -> None:
    """They count as tokens of the answer: what adds up log-probabilities must find each."""
    name = "<|im_end|>"
    fields = {"max_tokens": 3, "ignore_eos": True, "logit_bias": {"287": 100}, "skip_special_tokens": not shown}
    request = body(tiny_server, CHAT, "go", top=0, **fields)
    entries = tiny_server.post(CHAT, request).json()["choices"][0]["logprobs"]["content"]
    assert [(entry["token"], bytes(entry["bytes"])) for entry in entries] == [(name, shown * name.encode())] * 3
    streamed = [event["choices"][0]["logprobs"] for event in tiny_server.events(CHAT, request)[:-1]]
    assert [entry for found in streamed if found for entry in found["content"]] == entries
    text = answer(tiny_server, COMPLETION, top=0, **fields)["choices"][0]
    offsets = [0, len(name), 2 * len(name)] if shown else [0, 0, 0]
    assert (text["logprobs"]["tokens"], text["logprobs"]["text_offset"]) == ([name] * 3, offsets)
    native = answer(tiny_server, NATIVE, top=1, **fields)["completion_probabilities"]
    assert [(entry["token"], bytes(entry["bytes"])) for entry in native] == [(name, shown * name.encode())] * 3


@pytest.mark.parametrize("route", [CHAT, COMPLETION, NATIVE])
@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_stay_finite(tiny_server: ServerProcess, route: str, stream: bool) -> None:
    """With filters that leave one token, and bans and boosts that make others impossible."""
    fields: dict[str, Any] = {"logit_bias": {str(id): -100 for id in range(280)}, "top_p": 0.1, "temperature": 0.01}
    request = body(tiny_server, route, "go", top=20, max_tokens=5, stream=stream, **fields)
    text = tiny_server.post(route, request).text
    lines = text.split("\n\n") if stream else [text]
    numbers: list[float] = []
    for line in lines:
        data = line.removeprefix("data: ")
        if data and data[0] == "{":
            numbers += list(logprobs_in(strict_json(data)))
    assert numbers
    assert all(math.isfinite(number) and -9999 <= number <= 0 for number in numbers)


def logprobs_in(value: Any) -> Any:
    """Every number below a key that speaks of log-probabilities."""
    if isinstance(value, list):
        for item in value:
            yield from logprobs_in(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key in ("logprob", "token_logprobs", "top_logprobs") and not isinstance(item, dict | list):
                yield item
            elif key == "token_logprobs":
                yield from item
            else:
                yield from logprobs_in(item)


def test_offsets_of_a_completion_lie_in_its_text(coder_server: ServerProcess) -> None:
    request = {"prompt": "龘🫠龘🫠龘🫠", **GREEDY, "max_tokens": 10, "logprobs": 1}
    whole = coder_server.post(COMPLETION, request).json()["choices"][0]
    shown = whole["logprobs"]
    assert len({len(shown[key]) for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}) == 1
    for token, offset in zip(shown["tokens"], shown["text_offset"], strict=True):
        if "\ufffd" not in token:
            assert whole["text"][offset : offset + len(token)] == token
    assert shown["text_offset"] == sorted(shown["text_offset"])
    offsets: list[int] = []
    for event in coder_server.events(COMPLETION, request)[:-1]:
        offsets += (event["choices"][0]["logprobs"] or {"text_offset": []})["text_offset"]
    assert offsets == shown["text_offset"]


def test_echo_puts_the_prompt_first(tiny_server: ServerProcess) -> None:
    request = {"prompt": ["go on", [65, 66]], **GREEDY, "max_tokens": 3}
    plain, echoed = (
        [choice["text"] for choice in tiny_server.post(COMPLETION, {**request, "echo": echo}).json()["choices"]]
        for echo in (False, True)
    )
    prompts = ["go on", tiny_server.post("/detokenize", {"tokens": [65, 66]}).json()["content"]]
    assert echoed == [prompt + text for prompt, text in zip(prompts, plain, strict=True)]
    refused = tiny_server.post(COMPLETION, {**request, "echo": True, "logprobs": 1})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "logprobs")


@pytest.mark.parametrize("way", ["whole", "stream", "websocket"])
def test_echo_of_a_chat_repeats_what_is_continued(tiny_server: ServerProcess, way: str) -> None:
    request = {"messages": [*user("go"), {"role": "assistant", "content": "Once"}], **GREEDY, "max_tokens": 3}

    def text(**fields: Any) -> str:
        if way == "whole":
            content: str = tiny_server.post(CHAT, {**request, **fields}).json()["choices"][0]["message"]["content"]
            return content
        if way == "websocket":
            return "".join(frame.get("text", "") for frame in websocket_turn(tiny_server, {**request, **fields}))
        chunks = tiny_server.events(CHAT, {**request, **fields})[:-1]
        return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)

    assert text(echo=True) == "Once" + text()


def test_fields_without_meaning_are_listed(tiny_server: ServerProcess) -> None:
    fields = {"user": "u", "metadata": {"a": 1}, "store": True, "service_tier": "auto", "parallel_tool_calls": True}
    request = body(tiny_server, CHAT, "go", max_tokens=1, **fields)
    response = tiny_server.post(CHAT, request)
    assert response.status_code == 200
    assert response.headers["x-typebar-ignored"] == ", ".join(fields)
    assert [warning.split()[0] for warning in response.json()["warnings"]] == list(fields)
    assert tiny_server.post(CHAT, {**request, "stream": True}).headers["x-typebar-ignored"] == ", ".join(fields)
    strange = tiny_server.post(CHAT, {**body(tiny_server, CHAT, "go", max_tokens=1), "a\r\nSet-Cookie: x": 1})
    assert "set-cookie" not in strange.headers
    assert "warnings" not in answer(tiny_server, CHAT, max_tokens=1)


@pytest.mark.parametrize(
    "field",
    ["best_of", "suffix", "prompt_logprobs", "use_beam_search", "grammar", "guided_grammar", "functions",
     "function_call", "bad_words", "allowed_token_ids"],
)  # fmt: skip
def test_fields_that_would_change_the_answer_are_refused(tiny_server: ServerProcess, field: str) -> None:
    for route in (CHAT, COMPLETION, NATIVE):
        response = tiny_server.post(route, body(tiny_server, route, "go", **{field: 2}))
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["param"], error["code"]) == (field, "unsupported")
        assert tiny_server.post(route, body(tiny_server, route, "go", max_tokens=1, **{field: None})).status_code == 200


def test_callers_id_comes_back(tiny_server: ServerProcess) -> None:
    request = body(tiny_server, CHAT, "go", max_tokens=1)
    assert tiny_server.post(CHAT, request, headers={"X-Request-Id": "mine-1"}).headers["x-request-id"] == "mine-1"
    for bad in ("with space", "x" * 200):
        made = tiny_server.post(CHAT, request, headers={"X-Request-Id": bad}).headers["x-request-id"]
        assert made != bad
    first, second = (tiny_server.post(CHAT, request).json()["id"] for _ in range(2))
    assert first != second


def test_any_model_name_is_taken_and_the_own_one_told(tiny_server: ServerProcess) -> None:
    for name in ("gpt-4o", "", None):
        assert answer(tiny_server, CHAT, max_tokens=1, model=name)["model"] == "tiny"
