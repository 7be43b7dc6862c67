"""OpenAI's own client, against the real model."""

import asyncio
import copy
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai_types import checked
from pydantic import ValidationError
from server_process import ServerProcess

MODEL = "qwen2.5-coder-0.5b-instruct"  # any name will do: one model is served
COUNT: list[Any] = [{"role": "user", "content": "Count from 1 to 10, separated by commas."}]
POEM: list[Any] = [{"role": "user", "content": "Write a poem about the sea."}]


@pytest.fixture(scope="module")
def client(coder_server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{coder_server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


def ask(client: OpenAI, messages: list[Any] = COUNT, **fields: Any) -> ChatCompletion:
    return checked(
        client.chat.completions.create(model=MODEL, messages=messages, **{"temperature": 0, "max_tokens": 24, **fields})
    )


def stream(client: OpenAI, messages: list[Any] = COUNT, **fields: Any) -> list[ChatCompletionChunk]:
    fields = {"temperature": 0, "max_tokens": 24, "stream": True, **fields}
    return [checked(chunk) for chunk in client.chat.completions.create(model=MODEL, messages=messages, **fields)]


def text_of(chunks: list[ChatCompletionChunk], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(choice.delta.content or "" for choice in choices)


def test_the_check_of_types_refuses_what_openai_does_not_document(client: OpenAI) -> None:
    sent = ask(client, max_tokens=1).to_dict()
    checked(ChatCompletion.construct(**sent))

    def damaged(path: list[Any], value: object) -> ChatCompletion:
        target: Any = (answer := copy.deepcopy(sent))
        for step in path[:-1]:
            target = target[step]
        target[path[-1]] = value
        return ChatCompletion.construct(**answer)

    for path, value in [
        (["object"], "chat"),
        (["created"], "1796031436"),
        (["choices", 0, "finish_reason"], "abort"),
        (["choices", 0, "message", "role"], "user"),
        (["usage", "prompt_tokens"], 1.5),
    ]:
        with pytest.raises(ValidationError):
            checked(damaged(path, value))
    for path in (["debug"], ["choices", 0, "message", "debug"], ["usage", "prompt_tokens_details", "debug"]):
        with pytest.raises(AssertionError, match="undocumented"):
            checked(damaged(path, 1))


def test_a_chat(client: OpenAI) -> None:
    answer = ask(client, max_tokens=40)
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == next(iter(client.models.list())).id
    (choice,) = answer.choices
    assert "1, 2, 3, 4, 5, 6, 7, 8, 9, 10" in (choice.message.content or "")
    assert (choice.message.role, choice.finish_reason, choice.logprobs) == ("assistant", "stop", None)
    usage = answer.usage
    assert usage is not None and usage.prompt_tokens > 20 and usage.completion_tokens > 20
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_a_stream_says_what_the_whole_answer_says(client: OpenAI) -> None:
    chunks = stream(client, max_tokens=40)
    assert len({(chunk.id, chunk.created) for chunk in chunks}) == 1
    first, *rest = chunks
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert all(chunk.choices[0].delta.role is None for chunk in rest)
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * len(rest) + ["stop"]
    assert all(chunk.usage is None for chunk in chunks)
    assert len(chunks) > 20  # as it comes, not in one piece
    assert text_of(chunks) == ask(client, max_tokens=40).choices[0].message.content


def test_usage_of_a_stream(client: OpenAI) -> None:
    *chunks, last = stream(client, stream_options={"include_usage": True})
    assert all(chunk.usage is None and "usage" in chunk.model_fields_set for chunk in chunks)
    assert last.choices == []
    whole = ask(client).usage
    assert last.usage is not None and whole is not None
    counts = [(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) for usage in (last.usage, whole)]
    assert counts[0] == counts[1] and counts[0][1] == 24


def test_a_known_prompt_is_counted_as_cached(client: OpenAI) -> None:
    messages = [{"role": "user", "content": "Tell me what the word syzygy means, in one short sentence for children."}]
    ask(client, messages, max_tokens=1)
    usage = ask(client, messages, max_tokens=1).usage
    assert usage is not None and usage.prompt_tokens_details is not None
    assert usage.prompt_tokens - 17 < (usage.prompt_tokens_details.cached_tokens or 0) < usage.prompt_tokens


def test_the_chat_of_many_turns(client: OpenAI) -> None:
    messages: list[Any] = [{"role": "system", "content": "You answer in one short sentence."}]
    for question in ("My name is Ada. Say hello.", "Name a colour.", "What is my name?"):
        messages.append({"role": "user", "content": question})
        answer = ask(client, messages, max_tokens=30)
        messages.append(answer.choices[0].message)
    assert "Ada" in messages[-1].content
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    assert (answer.usage.prompt_tokens_details.cached_tokens or 0) > answer.usage.prompt_tokens / 2


def test_forms_of_messages_that_the_client_allows(client: OpenAI) -> None:
    parts = [{"type": "text", "text": "Count from 1 to 10,"}, {"type": "text", "text": " separated by commas."}]
    system = {"role": "system", "content": "Be brief."}
    plain = ask(client, [system, *COUNT])
    developer = ask(client, [{**system, "role": "developer"}, {"role": "user", "content": parts, "name": "ada"}])
    assert developer.choices[0].message.content == plain.choices[0].message.content


def test_limits_of_length(client: OpenAI) -> None:
    for fields in ({"max_tokens": 3}, {"max_tokens": 9, "max_completion_tokens": 3}):
        answer = ask(client, **fields)
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage is not None and answer.usage.completion_tokens == 3


@pytest.mark.parametrize("stop", ["5", ["zzz", ", 5"]])
def test_stop_strings(client: OpenAI, stop: Any) -> None:
    answer = ask(client, stop=stop).choices[0]
    assert (answer.message.content or "").rstrip(", ").endswith("4")
    assert answer.finish_reason == "stop"
    chunks = stream(client, stop=stop)
    assert text_of(chunks) == answer.message.content
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_log_probabilities(client: OpenAI) -> None:
    answer = ask(client, logprobs=True, top_logprobs=4).choices[0]
    assert answer.logprobs is not None
    tokens = answer.logprobs.content or []
    assert b"".join(bytes(token.bytes or []) for token in tokens).decode() == answer.message.content
    for token in tokens:
        assert len(token.top_logprobs) == 4
        likely = [top.logprob for top in token.top_logprobs]
        assert likely == sorted(likely, reverse=True) and likely[0] <= 0
        assert (token.token, token.logprob) == (token.top_logprobs[0].token, likely[0])  # it is greedy
    streamed = [
        token
        for chunk in stream(client, logprobs=True, top_logprobs=4)
        if chunk.choices[0].logprobs
        for token in chunk.choices[0].logprobs.content or []
    ]
    assert [token.token for token in streamed] == [token.token for token in tokens]
    without = ask(client, logprobs=True, max_tokens=2).choices[0].logprobs
    assert without is not None and [token.top_logprobs for token in without.content or []] == [[], []]


def test_several_answers_and_a_seed(client: OpenAI) -> None:
    fields: dict[str, Any] = {"n": 3, "temperature": 1.2, "seed": 11, "max_tokens": 16}
    answer = ask(client, POEM, **fields)
    texts = [choice.message.content for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert [choice.message.content for choice in ask(client, POEM, **fields).choices] == texts
    chunks = stream(client, POEM, **fields)
    assert [text_of(chunks, index) for index in range(3)] == texts
    assert [choice.message.content for choice in ask(client, POEM, **{**fields, "seed": 12}).choices] != texts
    assert answer.usage is not None and answer.usage.completion_tokens <= 48


def test_the_helper_for_streams(client: OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=COUNT, temperature=0, max_tokens=40, stream_options={"include_usage": True}, logprobs=True
    ) as events:
        kinds = [event.type for event in events]
        final = events.get_final_completion()
    assert {"chunk", "content.delta", "content.done", "logprobs.content.delta", "logprobs.content.done"} == set(kinds)
    whole = ask(client, logprobs=True, max_tokens=40)
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert final.choices[0].finish_reason == whole.choices[0].finish_reason == "stop"
    assert final.usage is not None and final.usage.completion_tokens > 20
    assert final.choices[0].logprobs is not None and whole.choices[0].logprobs is not None
    assert len(final.choices[0].logprobs.content or []) == len(whole.choices[0].logprobs.content or [])


def test_headers(client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=COUNT, max_tokens=1, user="ada", extra_headers={"X-Request-Id": "turn-1"}
    )
    assert raw.headers["content-type"] == "application/json"
    assert raw.headers["x-request-id"] == "turn-1" == raw.request_id
    assert raw.headers["x-typebar-ignored"] == "user"
    assert (checked(raw.parse()).model_extra or {})["warnings"] == ["user has no meaning here and was ignored"]
    with client.chat.completions.with_streaming_response.create(
        model=MODEL, messages=COUNT, max_tokens=1, stream=True
    ) as streamed:
        assert streamed.headers["content-type"].startswith("text/event-stream")
        assert "no-cache" in streamed.headers["cache-control"]
        assert streamed.headers["x-request-id"]
        lines = [line for line in streamed.iter_lines() if line.startswith("data:")]
    assert lines[-1] == "data: [DONE]"


def test_models(client: OpenAI) -> None:
    (model,) = client.models.list()
    assert MODEL in checked(model).id
    assert (model.model_extra or {})["max_model_len"] == 4096
    assert checked(client.models.retrieve(model.id)) == model


def test_extras_that_the_client_passes_on(client: OpenAI) -> None:
    answer = ask(client, temperature=2, extra_body={"top_k": 1, "repetition_penalty": 1, "return_cache_miss": True})
    assert answer.choices[0].message.content == ask(client).choices[0].message.content
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    assert set((answer.usage.prompt_tokens_details.model_extra or {})["cache_miss"]) == {"position", "text"}
    progress = stream(client, max_tokens=1, extra_body={"return_progress": True, "cache_prompt": False})
    assert any("prompt_progress" in (chunk.model_extra or {}) for chunk in progress)


@pytest.mark.parametrize("seed", range(3))
def test_text_of_any_kind_keeps_to_the_types(tiny_server: ServerProcess, seed: int) -> None:
    fields: dict[str, Any] = {"seed": seed, "temperature": 1.5, "n": 2, "max_tokens": 60}
    shown = {"logprobs": True, "top_logprobs": 20}
    with OpenAI(base_url=f"{tiny_server.url}/v1", api_key="none", max_retries=0) as client:
        whole = ask(client, **fields, **shown)
        chunks = stream(client, **fields, **shown)
        assert [text_of(chunks, index) for index in (0, 1)] == [choice.message.content for choice in whole.choices]
        complete(client, **fields, logprobs=20)


# Text completions.


def complete(client: OpenAI, prompt: Any = "def add(a, b):\n", **fields: Any) -> Completion:
    fields = {"temperature": 0, "max_tokens": 12, **fields}
    return checked(client.completions.create(model=MODEL, prompt=prompt, **fields))


def test_a_text_completion(client: OpenAI) -> None:
    answer = complete(client)
    assert answer.id.startswith("cmpl-")
    assert "return a + b" in answer.choices[0].text
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None and answer.usage.completion_tokens == 12
    chunks = [
        checked(chunk)
        for chunk in client.completions.create(
            model=MODEL, prompt="def add(a, b):\n", temperature=0, max_tokens=12, stream=True,
            stream_options={"include_usage": True},
        )
    ]  # fmt: skip
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == answer.choices[0].text
    assert [chunk.choices[0].finish_reason for chunk in chunks[-2:-1]] == ["length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 12


def test_several_prompts_with_several_answers(client: OpenAI) -> None:
    answer = complete(client, ["def add(a, b):\n", "print('hello"], n=2, temperature=0.9, seed=5, max_tokens=4)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    repeated = complete(client, ["def add(a, b):\n", "print('hello"], n=2, temperature=0.9, seed=5, max_tokens=4)
    assert [choice.text for choice in repeated.choices] == [choice.text for choice in answer.choices]


def test_prompts_of_token_ids_and_echo(client: OpenAI, coder_server: ServerProcess) -> None:
    ids = coder_server.post("/tokenize", {"content": "def add(a, b):\n"}).json()["tokens"]
    echoed = complete(client, ids, echo=True).choices[0].text
    assert echoed == "def add(a, b):\n" + complete(client).choices[0].text


def test_log_probabilities_of_a_text(client: OpenAI) -> None:
    choice = complete(client, logprobs=3).choices[0]
    shown = choice.logprobs
    assert shown is not None and shown.tokens and shown.token_logprobs and shown.top_logprobs and shown.text_offset
    assert "".join(shown.tokens) == choice.text
    assert len(shown.tokens) == len(shown.token_logprobs) == len(shown.top_logprobs) == len(shown.text_offset) == 12
    for token, logprob, top, offset in zip(
        shown.tokens, shown.token_logprobs, shown.top_logprobs, shown.text_offset, strict=True
    ):
        assert len(top) == 3 and top[token] == max(top.values()) == logprob
        assert choice.text[offset:].startswith(token)


# The asynchronous client.


def test_asynchronous_clients_share_the_server(coder_server: ServerProcess, client: OpenAI) -> None:
    whole = ask(client).choices[0].message.content
    text = complete(client).choices[0].text

    async def main() -> None:
        async with AsyncOpenAI(base_url=f"{coder_server.url}/v1", api_key="none", max_retries=0) as asynchronous:
            answers = await asyncio.gather(
                *[_whole(asynchronous) for _ in range(2)],
                *[_streamed(asynchronous) for _ in range(2)],
                _text(asynchronous),
            )
            assert answers == [whole] * 4 + [text]
            assert len([checked(model) async for model in asynchronous.models.list()]) == 1

    asyncio.run(main())


async def _whole(client: AsyncOpenAI) -> str | None:
    answer = await client.chat.completions.create(model=MODEL, messages=COUNT, temperature=0, max_tokens=24)
    return checked(answer).choices[0].message.content


async def _streamed(client: AsyncOpenAI) -> str:
    chunks: AsyncIterator[ChatCompletionChunk] = await client.chat.completions.create(
        model=MODEL, messages=COUNT, temperature=0, max_tokens=24, stream=True
    )
    return text_of([checked(chunk) async for chunk in chunks])


async def _text(client: AsyncOpenAI) -> str:
    answer = await client.completions.create(model=MODEL, prompt="def add(a, b):\n", temperature=0, max_tokens=12)
    return checked(answer).choices[0].text
