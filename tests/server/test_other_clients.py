"""Clients that people use beside OpenAI's own, against the real model. None of them may ask another machine."""

import asyncio
import http.client
import ipaddress
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from server_process import ServerProcess

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would fetch its prices when it is imported
os.environ["LANGSMITH_TRACING"] = os.environ["LANGCHAIN_TRACING_V2"] = "false"

MODEL = "qwen2.5-coder-0.5b-instruct"
SYSTEM = "You are a calculator. You answer with one number and nothing else."
QUESTION = "What is 2 + 3?"
MESSAGES = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
COUNT = "Count from 1 to 10, separated by commas."
COUNTED = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10"

asked: set[str] = set()  # hosts that this process looked up or connected to


def _note_host(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.getaddrinfo":
        asked.add(str(arguments[0]))
    elif event == "socket.connect" and isinstance(arguments[1], tuple):
        asked.add(str(arguments[1][0]))


@pytest.fixture(scope="module", autouse=True)
def hosts() -> Iterator[None]:
    sys.addaudithook(_note_host)
    yield
    assert "127.0.0.1" in asked, "no connection was noted"


@pytest.fixture(autouse=True)
def loopback_only() -> Iterator[None]:
    yield
    assert all(host == "localhost" or ipaddress.ip_address(host).is_loopback for host in asked), asked


# LiteLLM.


@pytest.fixture(scope="module")
def litellm_fields(coder_server: ServerProcess) -> dict[str, Any]:
    base = {"api_base": f"{coder_server.url}/v1", "api_key": "none", "temperature": 0, "max_tokens": 40, "timeout": 120}
    return {**base, "model": f"openai/{MODEL}", "num_retries": 0}


def test_litellm(litellm_fields: dict[str, Any]) -> None:
    import litellm

    answer = litellm.completion(messages=MESSAGES, **litellm_fields)
    assert answer.choices[0].message.content.strip() == "5"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens > 20
    other = asyncio.run(litellm.acompletion(messages=MESSAGES, **litellm_fields))
    assert other.choices[0].message.content == answer.choices[0].message.content


def test_litellm_streams(litellm_fields: dict[str, Any]) -> None:
    import litellm

    messages = [{"role": "user", "content": COUNT}]
    options = {"messages": messages, "stream": True, "stream_options": {"include_usage": True}, **litellm_fields}
    chunks = list(litellm.completion(**options))
    assert COUNTED in "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert len(chunks) > 20
    whole = litellm.stream_chunk_builder(chunks, messages=messages)
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage.completion_tokens > 20

    async def streamed() -> str:
        stream = await litellm.acompletion(**options)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

    assert asyncio.run(streamed()) == whole.choices[0].message.content


def test_litellm_text_completion_and_errors(litellm_fields: dict[str, Any]) -> None:
    import litellm

    fields = {**litellm_fields, "model": f"text-completion-openai/{MODEL}", "max_tokens": 12}
    answer = litellm.text_completion(prompt="def add(a, b):\n", **fields)
    assert "return a + b" in answer.choices[0].text
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(messages=[{"role": "user", "content": "too long " * 4000}], **litellm_fields)
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        litellm.completion(messages=MESSAGES, **{**litellm_fields, "temperature": -1})


# LangChain.


@pytest.fixture(scope="module")
def langchain(coder_server: ServerProcess) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=f"{coder_server.url}/v1", api_key="none", model=MODEL, temperature=0, max_tokens=40, max_retries=0
    )  # type: ignore[call-arg]


def test_langchain(langchain: ChatOpenAI) -> None:
    answer = langchain.invoke([SystemMessage(SYSTEM), HumanMessage(QUESTION)])
    assert str(answer.content).strip() == "5"
    assert answer.response_metadata["finish_reason"] == "stop"
    usage = answer.usage_metadata
    assert usage is not None and usage["input_tokens"] > 20 and usage["output_tokens"] >= 1
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    again = langchain.invoke([SystemMessage(SYSTEM), HumanMessage(QUESTION)]).usage_metadata
    assert again is not None and again["input_token_details"]["cache_read"] > 0


def test_langchain_streams(langchain: ChatOpenAI) -> None:
    chunks = list(langchain.stream(COUNT, stream_usage=True))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert COUNTED in whole.content
    assert len(chunks) > 20
    assert whole.response_metadata["finish_reason"] == "stop"
    assert whole.usage_metadata is not None and whole.usage_metadata["output_tokens"] > 20

    async def streamed() -> str:
        return "".join([str(chunk.content) async for chunk in langchain.astream(COUNT)])

    assert asyncio.run(streamed()) == whole.content


def test_langchain_batches(langchain: ChatOpenAI) -> None:
    questions = [[SystemMessage(SYSTEM), HumanMessage(f"What is {n} + {n}?")] for n in (1, 2, 3)]
    answers = langchain.batch(questions)  # type: ignore[arg-type]
    assert [str(answer.content).strip() for answer in answers] == ["2", "4", "6"]


def test_langchain_errors(langchain: ChatOpenAI) -> None:
    with pytest.raises(ContextOverflowError):
        langchain.invoke("too long " * 4000)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        langchain.bind(temperature=-1).invoke(QUESTION)


def test_langchain_log_probabilities(langchain: ChatOpenAI) -> None:
    answer = langchain.bind(logprobs=True, top_logprobs=2).invoke(COUNT)
    tokens = answer.response_metadata["logprobs"]["content"]
    assert "".join(token["token"] for token in tokens) == answer.content


# llm.


@pytest.fixture(scope="module")
def llm_models(coder_server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("llm")
    base = f"model_name: {MODEL}\n  api_base: {coder_server.url}/v1\n"
    (folder / "extra-openai-models.yaml").write_text(
        f"- model_id: typebar\n  {base}- model_id: typebar-text\n  {base}  completion: true\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLM_USER_PATH", str(folder))
        patch.setenv("LLM_LOAD_PLUGINS", "")
        import llm

        yield llm


@pytest.mark.parametrize("stream", [False, True])
def test_llm(llm_models: Any, stream: bool) -> None:
    model = llm_models.get_model("typebar")
    answer = model.prompt(QUESTION, system=SYSTEM, temperature=0, max_tokens=40, stream=stream)
    assert answer.text().strip() == "5"
    usage = answer.usage()
    assert usage.input > 20 and usage.output >= 1


def test_llm_conversation(llm_models: Any) -> None:
    conversation = llm_models.get_model("typebar").conversation()
    conversation.prompt("My name is Ada. Say hello.", temperature=0, max_tokens=30).text()
    answer = conversation.prompt("What is my name?", temperature=0, max_tokens=30)
    assert "Ada" in "".join(answer)  # as it comes


def test_llm_text_completion(llm_models: Any) -> None:
    model = llm_models.get_model("typebar-text")
    assert "return a + b" in model.prompt("def add(a, b):\n", temperature=0, max_tokens=12).text()


def test_llm_asynchronously(llm_models: Any) -> None:
    async def main() -> str:
        answer = llm_models.get_async_model("typebar").prompt(QUESTION, system=SYSTEM, temperature=0, max_tokens=40)
        return "".join([text async for text in answer])

    assert asyncio.run(main()).strip() == "5"


# No library at all.


def test_plain_http(coder_server: ServerProcess) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", coder_server.port, timeout=120)
    body = {"messages": MESSAGES, "temperature": 0, "max_tokens": 8}
    for _ in range(2):  # on one connection
        connection.request("POST", "/v1/chat/completions", json.dumps(body))  # no Content-Type, as from curl -d
        response = connection.getresponse()
        assert response.status == 200
        assert json.loads(response.read())["choices"][0]["message"]["content"].strip() == "5"
    connection.request("POST", "/v1/chat/completions", json.dumps({**body, "stream": True}))
    response = connection.getresponse()
    assert response.headers["Content-Type"].startswith("text/event-stream")
    events = response.read().decode().split("\n\n")
    assert events.pop() == "" and events[-1] == "data: [DONE]"
    texts = [json.loads(event[6:]) for event in events[:-1] if event.startswith("data: ")]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in texts).strip() == "5"
    connection.request("GET", "/health")
    assert connection.getresponse().read() == b'{"status":"ok"}'
    connection.close()
