"""Answers in a given form: OpenAI's own client and the real model."""

import json
import threading
from collections.abc import Iterator
from enum import Enum
from typing import Any

import pytest
from asking import CHAT, user
from openai import BadRequestError, LengthFinishReasonError, OpenAI
from pydantic import BaseModel, Field
from server_process import ServerProcess

MODEL = "any"
MESSAGES: list[Any] = [{"role": "user", "content": "Alice is 30 and likes red and blue. Give name, age and colors."}]
FREE: list[Any] = [{"role": "user", "content": "Write a poem about the sea."}]


class Color(Enum):
    RED = "red"
    GREEN = "green"
    BLUE = "blue"


class Pet(BaseModel):
    name: str
    legs: int | None


class Person(BaseModel):
    name: str
    age: int = Field(ge=0, le=150, description="in years")
    colors: list[Color] = Field(max_length=3)
    pet: Pet | None


@pytest.fixture(scope="module")
def client(coder_server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{coder_server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


def test_parse_gives_the_object(client: OpenAI) -> None:
    completion = client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=Person, temperature=0, max_tokens=200
    )
    [choice] = completion.choices
    person = choice.message.parsed
    assert person is not None
    assert (person.name, person.age, set(person.colors)) == ("Alice", 30, {Color.RED, Color.BLUE})
    assert choice.finish_reason == "stop"


def test_parse_of_a_stream_gives_the_same_object(client: OpenAI) -> None:
    fields: dict[str, Any] = {"messages": MESSAGES, "response_format": Person, "temperature": 0, "max_tokens": 200}
    whole = client.chat.completions.parse(model=MODEL, **fields).choices[0].message
    with client.chat.completions.stream(model=MODEL, **fields) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        last = stream.get_final_completion().choices[0].message
    assert "".join(deltas) == whole.content
    assert len(deltas) > 5
    assert last.parsed == whole.parsed


def test_every_of_several_hot_answers_parses(client: OpenAI) -> None:
    completion = client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=Person, temperature=1.5, seed=1, n=4, max_tokens=300
    )
    assert all(isinstance(choice.message.parsed, Person) for choice in completion.choices)
    assert len({choice.message.content for choice in completion.choices}) > 1


def test_an_answer_that_was_cut_is_told_as_such(client: OpenAI) -> None:
    with pytest.raises(LengthFinishReasonError):
        client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Person, max_tokens=5)


@pytest.mark.parametrize("question", ["Write me something.", "Hello!", "Three cities with their populations, please."])
def test_json_object_without_a_word_of_json(client: OpenAI, question: str) -> None:
    for temperature in (0, 1):
        completion = client.chat.completions.create(
            model=MODEL, messages=user(question), response_format={"type": "json_object"}, n=2, seed=2,
            temperature=temperature, max_tokens=256,
        )  # fmt: skip
        for choice in completion.choices:
            text = choice.message.content or ""
            assert "        " not in text.replace('"', "\n")
            if choice.finish_reason == "stop":
                assert isinstance(json.loads(text), dict)
        assert any(choice.finish_reason == "stop" for choice in completion.choices)


def test_schema_that_cannot_be_kept_to_is_refused(client: OpenAI) -> None:
    format: Any = {"type": "json_schema", "json_schema": {"name": "f", "schema": {"type": "object", "not": {}}}}
    with pytest.raises(BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, response_format=format)
    assert caught.value.param == "response_format.json_schema.schema"
    assert "not" in caught.value.message


def test_log_probabilities_are_of_all_tokens_of_the_text(client: OpenAI) -> None:
    format: Any = {"type": "json_schema", "json_schema": {"name": "f", "schema": {"enum": ["龘①汉字"]}}}
    fields: dict[str, Any] = {"messages": user("go"), "response_format": format, "max_tokens": 60, "temperature": 0}
    plain = client.chat.completions.create(model=MODEL, **fields).choices[0].message.content
    [choice] = client.chat.completions.create(model=MODEL, logprobs=True, top_logprobs=20, top_p=0.1, **fields).choices
    assert choice.logprobs is not None
    entries = choice.logprobs.content or []
    assert (choice.message.content, choice.finish_reason) == (plain, "stop")
    assert b"".join(bytes(entry.bytes or []) for entry in entries).decode() == plain == '"龘①汉字"'
    assert all(len(entry.top_logprobs) == 20 and entry.logprob > -10_000 for entry in entries)


@pytest.mark.parametrize("limit", range(1, 10))
def test_cap_inside_a_character(coder_server: ServerProcess, limit: int) -> None:
    request = {
        "messages": user("go"),
        "temperature": 0,
        "max_tokens": limit,
        "structured_outputs": {"choice": ["龘" * 4]},
    }
    choice = coder_server.post(CHAT, request).json()["choices"][0]
    assert "龘龘龘龘".startswith(choice["message"]["content"].rstrip("\ufffd"))
    assert choice["finish_reason"] == ("stop" if choice["message"]["content"] == "龘龘龘龘" else "length")
    events = coder_server.events(CHAT, request)[:-1]
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == choice["message"]["content"]


def test_free_answers_beside_constrained_ones_are_as_alone(client: OpenAI) -> None:
    def answer(**fields: Any) -> str | None:
        completion = client.chat.completions.create(model=MODEL, temperature=0, max_tokens=60, **fields)
        return completion.choices[0].message.content

    bound: dict[str, Any] = {"messages": MESSAGES, "response_format": {"type": "json_object"}}
    alone = [answer(messages=FREE), answer(**bound)]
    together: list[str | None] = [None] * 6
    requests = [{"messages": FREE}, bound] * 3

    def run(number: int) -> None:
        together[number] = answer(**requests[number])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone * 3


def test_cancel_in_the_middle_frees_the_seat(client: OpenAI, coder_server: ServerProcess) -> None:
    format: Any = {"type": "json_schema", "json_schema": {"name": "f", "schema": {"type": "string", "minLength": 3000}}}
    for _ in range(3):
        stream = client.chat.completions.create(
            model=MODEL, messages=FREE, response_format=format, stream=True, max_tokens=2000
        )
        assert [next(iter(stream)) for _ in range(4)]
        stream.close()
    coder_server.wait_until_idle()


def test_second_turn_reuses_the_first(client: OpenAI) -> None:
    format: Any = {"type": "json_object"}
    first = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, response_format=format, temperature=0, max_tokens=200
    )
    messages = [*MESSAGES, {"role": "assistant", "content": first.choices[0].message.content}, *user("Now for Bob, 7.")]
    second = client.chat.completions.create(
        model=MODEL, messages=messages, response_format=format, temperature=0, max_tokens=200
    )
    assert json.loads(second.choices[0].message.content or "")
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert (second.usage.prompt_tokens_details.cached_tokens or 0) >= (
        first.usage.prompt_tokens if first.usage else 999
    )


def test_a_form_that_grows_too_large_is_an_error_in_a_body(coder_server: ServerProcess) -> None:
    """Where it shows only while the answer is drawn; others and the server go on."""
    lengths = "|".join(f"[a-z]{{{length}}}" for length in range(1, 200))
    request = {"messages": user("go"), "seed": 1, "temperature": 1.5, "max_tokens": 300,
               "json_schema": {"type": "string", "pattern": f".*({lengths}).*[0-9]{{50}}"}}  # fmt: skip
    response = coder_server.post(CHAT, request)
    assert response.status_code == 500
    assert "structured_outputs cannot be followed further" in response.json()["error"]["message"]
    assert "cannot be followed further" in coder_server.events(CHAT, request)[-2]["error"]["message"]
    assert coder_server.chat("Hi", max_tokens=1)["choices"][0]["finish_reason"] == "length"
