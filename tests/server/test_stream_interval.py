"""stream_options.interval_ms: fewer events, the same answer, and nothing late that matters."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from asking import CHAT, COMPLETION, PLAIN, WEBSOCKET, body, user, websocket_turn
from openai import OpenAI
from server_process import ServerProcess

from typebar.engine.params import SamplingParams
from typebar.engine.request import FinishReason, Output, Summary, Timing
from typebar.server.engine import SequenceRequest
from typebar.server.errors import APIError
from typebar.server.jobs import Job, Jobs

LONGEST = 1000  # ms
TOKENS = 60


def answer(server: ServerProcess, route: str, interval: int | None, **fields: Any) -> list[dict[str, Any]]:
    """The events or frames of an answer of 60 tokens, the same ones every time."""
    usage = {"include_usage": True, "continuous_usage_stats": True}
    options = {**usage, **({} if interval is None else {"interval_ms": interval})}
    sampling = {**PLAIN, "seed": 3, "ignore_eos": True, "max_tokens": TOKENS}
    request = body(server, route, "go", stream_options=options, **sampling, **fields)
    return list(websocket_turn(server, request)) if route == WEBSOCKET else server.events(route, request)[:-1]


def pieces(events: list[dict[str, Any]]) -> dict[int, list[str]]:
    """The texts of each answer as they came."""
    found: dict[int, list[str]] = defaultdict(list)
    for event in events:
        if event.get("type") == "delta":
            found[event["index"]].append(event["text"])
        for choice in event.get("choices", ()):
            if text := choice.get("text") or choice.get("delta", {}).get("content"):
                found[choice["index"]].append(text)
    return found


@pytest.mark.parametrize("route", [CHAT, COMPLETION, WEBSOCKET])
@pytest.mark.parametrize("n", [1, 2])
def test_gathered_answers_are_the_same_in_fewer_events(tiny_server: ServerProcess, route: str, n: int) -> None:
    plain = pieces(answer(tiny_server, route, None, n=n))
    gathered = pieces(answer(tiny_server, route, LONGEST, n=n))
    assert set(plain) == set(gathered) == set(range(n))
    for index in range(n):
        assert "".join(gathered[index]) == "".join(plain[index])
        assert len(gathered[index]) < len(plain[index]) / 2


@pytest.mark.parametrize("route", [CHAT, COMPLETION])
def test_log_probabilities_and_counts_are_gathered_in_order(tiny_server: ServerProcess, route: str) -> None:
    plain, gathered = [answer(tiny_server, route, interval, top=2) for interval in (None, LONGEST)]

    def logprobs(events: list[dict[str, Any]]) -> list[Any]:
        found = [choice["logprobs"] for event in events for choice in event["choices"] if choice["logprobs"]]
        if route == CHAT:
            return [entry for one in found for entry in one["content"]]
        return [entry for one in found for entry in zip(*(one[name] for name in sorted(one)), strict=True)]

    assert len(logprobs(gathered)) == TOKENS
    assert logprobs(gathered) == logprobs(plain)
    counts = [event["usage"]["completion_tokens"] for event in gathered]
    assert counts == sorted(counts)
    assert counts[-1] == TOKENS
    assert gathered[-1]["choices"] == []
    *_, end = [choice for event in gathered for choice in event["choices"]]
    assert end["finish_reason"] == "length"


def test_the_openai_client_asks_for_it(tiny_server: ServerProcess) -> None:
    client = OpenAI(base_url=f"{tiny_server.url}/v1", api_key="none")
    chunks = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "go"}],
        max_tokens=TOKENS,
        stream=True,
        extra_body={"stream_options": {"interval_ms": LONGEST}, "ignore_eos": True},
    )
    texts = [chunk.choices[0].delta.content for chunk in chunks]
    assert 0 < len([text for text in texts if text]) < TOKENS / 2


@pytest.mark.parametrize("route", [CHAT, WEBSOCKET])
@pytest.mark.parametrize("interval", [-1, 1000.5, "100", True, [100]])
def test_wrong_intervals_are_refused_by_name(tiny_server: ServerProcess, route: str, interval: Any) -> None:
    request = {"messages": user("go"), "max_tokens": 2, "stream_options": {"interval_ms": interval}}
    if route == WEBSOCKET:
        [frame] = websocket_turn(tiny_server, request)
        assert frame["type"] == "error"
        error = frame["error"]
    else:
        response = tiny_server.post(route, {**request, "stream": True})
        assert response.status_code == 400
        error = response.json()["error"]
    assert error["param"] == "stream_options.interval_ms"


def test_a_cancelled_answer_ends_with_its_text(tiny_server: ServerProcess) -> None:
    request = {"messages": user("go"), **PLAIN, "ignore_eos": True, "stream_options": {"interval_ms": LONGEST}}
    with tiny_server.lines(CHAT, request) as lines:
        texts = (line for line in lines if '"content":"' in line and '"role"' not in line)
        id = next(texts).split('"id":"')[1].split('"')[0]
        assert tiny_server.post(f"/v1/requests/{id}/cancel").status_code == 200
        rest = list(lines)
    assert [line for line in rest if '"stop_reason":"cancelled"' in line]
    tiny_server.wait_until_idle()


@contextmanager
def job_of(*ids: str) -> Iterator[tuple[Job, Callable[[Output], None]]]:
    """A job whose engine gives out what the test hands to the second."""
    receivers: list[Callable[[Output], None]] = []

    def submit(requests: Any, receive: Callable[[Output], None]) -> list[Any]:
        receivers.append(receive)
        return []

    engine: Any = SimpleNamespace(
        info=SimpleNamespace(max_num_seqs=len(ids)), submit=submit, abort=lambda id: None, failure=lambda: None
    )
    jobs = Jobs(engine, 0, on_end=lambda record: None, on_gap=lambda seconds: None, on_reject=lambda: None)
    requests = [SequenceRequest(id, [1], SamplingParams()) for id in ids]
    with jobs.run("job", None, "chat", requests, None) as job:
        yield job, receivers[0]


def output(id: str, text: str, reason: FinishReason | None = None) -> Output:
    return Output(id, text, (7,), finish_reason=reason, summary=Summary(1, 0, 1, 0, Timing()) if reason else None)


async def settle() -> None:
    """Let everything run that waits for nothing."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_only_what_is_neither_first_nor_last_waits() -> None:
    """The interval is an hour: what waited for it would not come."""

    async def run() -> None:
        with job_of("a", "b") as (job, receive):
            taken: list[list[tuple[int, str, int]]] = []

            async def read() -> None:
                async for outputs in job.outputs(gather=3600):
                    taken.append([(index, one.text, len(one.token_ids)) for index, one in outputs])

            reader = asyncio.create_task(read())
            receive(output("a", "one"))
            await settle()
            receive(output("a", "two"))
            receive(output("b", ""))
            await settle()
            assert taken == [[(0, "one", 1)]]
            receive(output("b", "first"))
            await settle()
            assert taken[1:] == [[(0, "two", 1), (1, "first", 2)]]
            receive(output("b", "x"))
            receive(output("a", "three"))
            await settle()
            assert len(taken) == 2
            receive(output("a", "four", "stop"))
            await settle()
            assert taken[2:] == [[(1, "x", 1), (0, "threefour", 2)]]
            receive(output("b", "", "length"))
            await reader
            assert taken[3:] == [[(1, "", 1)]]

    asyncio.run(run())


def test_text_comes_before_the_error_that_follows_it() -> None:
    async def run() -> None:
        with job_of("a") as (job, receive):
            texts: list[str] = []
            receive(output("a", "one"))

            async def read() -> None:
                async for outputs in job.outputs(gather=3600):
                    texts.extend(one.text for _, one in outputs)

            reader = asyncio.create_task(read())
            await settle()
            receive(output("a", "two"))
            receive(output("a", "", "error"))
            with pytest.raises(APIError):
                await reader
            assert texts == ["one", "two"]

    asyncio.run(run())
