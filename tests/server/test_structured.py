"""Answers in a given form: response_format on every route that takes it."""

import json
from typing import Any

import pytest
from asking import CHAT, COMPLETION, WEBSOCKET, ask, body, user
from server_process import ServerProcess

WAYS = [(CHAT, False), (CHAT, True), (COMPLETION, False), (COMPLETION, True), (WEBSOCKET, True)]


def forced(text: str) -> dict[str, Any]:
    """A schema that only the JSON string `text` fits."""
    schema = {"enum": [text]}
    return {"type": "json_schema", "json_schema": {"name": "f", "strict": True, "schema": schema}}


@pytest.mark.parametrize(("route", "stream"), WAYS)
def test_json_object_is_one_object(tiny_server: ServerProcess, route: str, stream: bool) -> None:
    for seed in range(8):
        answer = ask(tiny_server, "go", route, stream, response_format={"type": "json_object"}, seed=seed,
                     temperature=1.0, max_tokens=400)  # fmt: skip
        if answer.reason == "stop":
            assert isinstance(json.loads(answer.text), dict)
        else:
            assert (answer.reason, answer.text[0]) == ("length", "{")


@pytest.mark.parametrize(("route", "stream"), WAYS)
@pytest.mark.parametrize("text", ["龘🫠𝄞Ⅷ①", "say pleas", "", 'a "b" \\ \n\t /', "<|im_end|>", " x "])
def test_forced_text_comes_whole(tiny_server: ServerProcess, route: str, stream: bool, text: str) -> None:
    answer = ask(tiny_server, "go", route, stream, response_format=forced(text), stop=['"END'], max_tokens=200)
    assert (json.loads(answer.text), answer.reason) == (text, "stop")
    assert all("\ufffd" not in piece for piece in answer.pieces)


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"type": "yaml"}, "response_format.type"),
        ({}, "response_format.type"),
        ("json", "response_format"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"name": "f"}}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": "string"}}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": [1]}}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": {"type": "foo"}}}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": {"not": {}}}}, "response_format.json_schema.schema"),
        ({"type": "json_object", "schema": {"$ref": "#/none"}}, "response_format.schema"),
    ],
)
def test_what_is_no_form_is_refused(tiny_server: ServerProcess, given: Any, param: str) -> None:
    for stream in (False, True):
        response = tiny_server.post(CHAT, {"messages": user("go"), "response_format": given, "stream": stream})
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    response = tiny_server.post(CHAT, body(tiny_server, CHAT, "go", max_tokens=1))
    assert response.status_code == 200
