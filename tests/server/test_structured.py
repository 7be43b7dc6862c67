"""Answers in a given form: response_format on every route that takes it."""

import json
from typing import Any

import pytest
from asking import CHAT, NATIVE, WAYS, ask, body, user
from server_process import ServerProcess


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


@pytest.mark.parametrize(("route", "stream"), WAYS)
@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"structured_outputs": {"json": {"enum": [1, "b"]}, "regex": None}}, {"1", '"b"'}),
        ({"structured_outputs": {"json_object": True, "choice": None}}, None),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, {"yes", "no"}),
        ({"structured_outputs": {"regex": "[ab]{2}"}}, {"aa", "ab", "ba", "bb"}),
        ({"guided_json": '{"const": null}'}, {"null"}),
        ({"guided_choice": ["yes", "no"]}, {"yes", "no"}),
        ({"guided_regex": "[ab]{2}"}, {"aa", "ab", "ba", "bb"}),
        ({"json_schema": {"const": {"a": []}}}, {'{"a":[]}', '{"a": []}'}),
        ({"response_format": {"type": "json_object", "schema": {"const": {}}}}, {"{}"}),
        ({"response_format": {"type": "text"}, "structured_outputs": {}, "guided_choice": ["a"]}, {"a"}),
    ],
)
def test_names_of_other_servers(
    tiny_server: ServerProcess, route: str, stream: bool, fields: dict[str, Any], texts: set[str] | None
) -> None:
    answer = ask(tiny_server, "go", route, stream, seed=1, temperature=1.0, max_tokens=60, **fields)
    if texts is None:
        assert answer.text.startswith("{")
    else:
        assert answer.text.replace("{ ", "{").replace(" }", "}") in texts or json.loads(answer.text) == {"a": []}


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
        (
            {"type": "json_schema", "json_schema": {"schema": {"multipleOf": 62615533}}},
            "response_format.json_schema.schema",
        ),
        (
            {"type": "json_object", "schema": {"multipleOf": 3000017, "$defs": {"a": {"multipleOf": 0}}}},
            "response_format.schema",
        ),
        ({"type": "json_object", "schema": {"multipleOf": True}}, "response_format.schema"),
        ({"type": "json_object", "schema": {"enum": ["abcd"] * 1_000_000}}, "response_format.schema"),
    ],
)
def test_what_is_no_form_is_refused(tiny_server: ServerProcess, given: Any, param: str) -> None:
    for stream in (False, True):
        response = tiny_server.post(CHAT, {"messages": user("go"), "response_format": given, "stream": stream})
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    response = tiny_server.post(CHAT, body(tiny_server, CHAT, "go", max_tokens=1))
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_object"}, "guided_choice": ["a"]}, "guided_choice"),
        ({"json_schema": {}, "guided_json": {}}, "json_schema"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"structured_outputs": {"json": 1}}, "structured_outputs.json"),
        ({"structured_outputs": {"grammar": "start: /a/"}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"choice": ["a"], "whitespace_pattern": " *"}}, "structured_outputs"),
        ({"structured_outputs": "json"}, "structured_outputs"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_regex": "(?=a)"}, "guided_regex"),
        ({"guided_regex": "a\0b"}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": [1]}, "guided_choice[0]"),
        ({"guided_grammar": "start: /a/"}, "guided_grammar"),
        ({"grammar": 'root ::= "a"'}, "grammar"),
        ({"json_schema": [1]}, "json_schema"),
        ({"json_schema": {"type": "x"}}, "json_schema"),
    ],
)
@pytest.mark.parametrize("route", [CHAT, NATIVE])
def test_what_is_no_form_is_refused_by_the_name_it_was_sent(
    tiny_server: ServerProcess, route: str, fields: dict[str, Any], param: str
) -> None:
    response = tiny_server.post(route, body(tiny_server, route, "go", **fields))
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert len(response.json()["error"]["message"]) < 500
