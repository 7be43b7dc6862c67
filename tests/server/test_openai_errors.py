"""What OpenAI's client raises, and what the engine does when it gives up."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from server_process import ServerProcess, running

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
LONG = {"max_tokens": 3000, "temperature": 1.0, "extra_body": {"ignore_eos": True}}  # a minute and more


@contextmanager
def client_of(server: ServerProcess, **options: Any) -> Iterator[OpenAI]:
    options = {"api_key": "none", "max_retries": 0, "timeout": 120, **options}
    with OpenAI(base_url=f"{server.url}/v1", **options) as client:
        yield client


@pytest.fixture(scope="module")
def client(tiny_server: ServerProcess) -> Iterator[OpenAI]:
    with client_of(tiny_server) as client:
        yield client


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": "Hello"}, "messages", "invalid_value"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content", "invalid_value"),
        ({"temperature": -1}, "temperature", "invalid_value"),
        ({"temperature": "hot"}, "temperature", "invalid_type"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_completion_tokens": 1.5}, "max_completion_tokens", "invalid_type"),
        ({"n": 0}, "n", "invalid_value"),
        ({"n": 1000}, "n", "invalid_value"),
        ({"stop": [str(n) for n in range(17)]}, "stop", "invalid_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "invalid_value"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
        ({"extra_body": {"best_of": 2}}, "best_of", "unsupported"),
        ({"messages": [{"role": "user", "content": "far too long " * 400}]}, "messages", "context_length_exceeded"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_requests(client: OpenAI, fields: dict[str, Any], param: str, code: str, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": "tiny", "messages": HELLO, "stream": stream, **fields})
    error = caught.value
    assert (error.status_code, error.type, error.param, error.code) == (400, "invalid_request_error", param, code)
    assert isinstance(error.body, dict) and error.body["message"]
    assert error.request_id


def test_options_of_a_stream_without_one(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=HELLO, stream_options={"include_usage": True})
    assert caught.value.param == "stream_options"


def test_a_prompt_over_the_context_tells_both_numbers(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt="far too long " * 400)
    body = caught.value.body
    assert isinstance(body, dict)
    assert body["code"] == "context_length_exceeded"
    assert body["n_ctx"] == 2048 < body["n_prompt_tokens"]


def test_a_strict_server_knows_its_models_only(tiny_path: Path) -> None:
    with running(tiny_path, "--served-model-name", "org/tiny", "--strict-model") as server, client_of(server) as client:
        with pytest.raises(openai.NotFoundError) as caught:
            client.chat.completions.create(model="gpt-4o", messages=HELLO)
        assert (caught.value.param, caught.value.code) == ("model", "model_not_found")
        assert client.chat.completions.create(model="org/tiny", messages=HELLO, max_tokens=1).model == "org/tiny"
        assert client.models.retrieve("org/tiny").id == "org/tiny"
        requests = {
            "/v1/completions": {"prompt": "x"}, "/completion": {"prompt": "x"}, "/tokenize": {"content": "x"},
            "/detokenize": {"tokens": [1]}, "/apply-template": {"messages": HELLO},
        }  # fmt: skip
        for route, request in requests.items():
            assert server.post(route, {**request, "model": "gpt-4o"}).status_code == 404, route


def test_a_model_or_route_that_is_not_there(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-4o")
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError) as caught:
        client.moderations.create(input="x")
    assert caught.value.code == "route_not_found"


def test_a_server_with_a_key(tiny_path: Path) -> None:
    key = "sk-typebar-right"
    with running(tiny_path, env={"TYPEBAR_API_KEY": key}) as server:
        with client_of(server, api_key="sk-wrong") as client, pytest.raises(openai.AuthenticationError) as caught:
            client.chat.completions.create(model="tiny", messages=HELLO)
        assert caught.value.code == "invalid_api_key"
        assert "sk-wrong" not in str(caught.value) and key not in str(caught.value)
        with client_of(server, api_key=key) as client:
            assert client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=1).choices
        server.stop()  # its log is whole
        assert key not in server.log and "sk-wrong" not in server.log


def test_a_full_queue_asks_to_wait_and_the_client_does(coder_path: Path) -> None:
    with running(coder_path, "--max-num-seqs", "1", "--max-queue", "0") as server, client_of(server) as client:
        with pytest.raises(openai.BadRequestError) as refused:  # waiting would not help
            client.chat.completions.create(model="m", messages=HELLO, n=2)
        assert refused.value.param == "n"
        holder = client.chat.completions.create(model="m", messages=HELLO, stream=True, **LONG)
        next(holder)
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(model="m", messages=HELLO)
        assert (caught.value.type, caught.value.code) == ("rate_limit_error", "queue_full")
        assert caught.value.response.headers["retry-after"] == "1"

        times: list[float] = []

        def free_the_seat(response: object) -> None:
            times.append(time.monotonic())
            holder.close()

        hooked = openai.DefaultHttpxClient(event_hooks={"response": [free_the_seat]})
        with client_of(server, max_retries=3, http_client=hooked) as patient:
            answer = patient.chat.completions.create(model="m", messages=HELLO, max_tokens=1)
        assert answer.choices
        assert len(times) > 1 and times[1] - times[0] >= 1  # without Retry-After it comes again after half a second


def tokens_until_idle(server: ServerProcess, before: float) -> float:
    server.wait_until_idle()
    return server.metric("vllm:generation_tokens_total") - before


@pytest.fixture
def generated(coder_server: ServerProcess) -> float:
    coder_server.wait_until_idle()
    return coder_server.metric("vllm:generation_tokens_total")


def test_closing_a_stream_frees_the_engine(coder_server: ServerProcess, generated: float) -> None:
    with client_of(coder_server) as client:
        chunks = client.chat.completions.create(model="m", messages=HELLO, stream=True, **LONG)
        for _ in range(5):
            next(chunks)
        chunks.close()
        assert tokens_until_idle(coder_server, generated) < 1000


def test_a_timeout_of_the_client_frees_the_engine(coder_server: ServerProcess, generated: float) -> None:
    with client_of(coder_server, timeout=1) as client, pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(model="m", messages=HELLO, **LONG)
    assert tokens_until_idle(coder_server, generated) < 1000


def test_a_cancelled_task_frees_the_engine(coder_server: ServerProcess, generated: float) -> None:
    async def main() -> None:
        async with AsyncOpenAI(base_url=f"{coder_server.url}/v1", api_key="none", max_retries=0) as client:
            request = client.chat.completions.create(model="m", messages=HELLO, **LONG)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(request, 1)

    asyncio.run(main())
    assert tokens_until_idle(coder_server, generated) < 1000


def test_a_cancel_by_id_ends_the_answer_for_its_reader(coder_server: ServerProcess) -> None:
    with client_of(coder_server) as client:
        chunks = client.chat.completions.create(model="m", messages=HELLO, stream=True, **LONG)
        first = next(chunks)
        threading.Timer(0.3, coder_server.post, (f"/v1/requests/{first.id}/cancel",)).start()
        *_, last = chunks
    assert last.choices[0].finish_reason == "stop"
    assert (last.choices[0].model_extra or {})["stop_reason"] == "cancelled"
    coder_server.wait_until_idle()
