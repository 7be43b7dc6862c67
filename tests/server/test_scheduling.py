"""Many requests at once: each answer is the one that it gets alone, and everybody gets one."""

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from raw_client import RawClient
from server_process import ServerProcess, running

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
CONTEXT = 32768
LONG_PROMPT = "a b c d e f g. " * 1000  # about 8 000 tokens of the random model


@pytest.fixture(scope="module")
def server(long_path: Path) -> Iterator[ServerProcess]:
    """Four seats and room for two more requests to wait."""
    arguments = ("--max-model-len", str(CONTEXT), "--max-num-seqs", "4", "--max-queue", "2")
    with running(long_path, *arguments, "--drain", "0") as server:
        yield server


class Call(threading.Thread):
    """A request beside the test."""

    def __init__(self, server: ServerProcess, path: str, body: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self._server, self._path, self._body = server, path, body
        self.start()

    def run(self) -> None:
        self.response = self._server.post(self._path, self._body)

    def answer(self) -> dict[str, Any]:
        self.join(120)
        assert self.response.status_code == 200, self.response.text
        answer: dict[str, Any] = self.response.json()
        return answer

    def text(self) -> str:
        choice = self.answer()["choices"][0]
        text: str = choice["message"]["content"] if "message" in choice else choice["text"]
        return text


def chat(content: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "temperature": 0, **fields}


def endless(content: str, **fields: Any) -> dict[str, Any]:
    return chat(content, ignore_eos=True, max_tokens=CONTEXT, stream=True, **fields)


def wait_for(server: ServerProcess, running: int, waiting: int = 0, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while (server.metric("vllm:num_requests_running"), server.metric("vllm:num_requests_waiting")) != (
        running,
        waiting,
    ):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_real_answers_are_the_same_alone_and_in_a_crowd(coder_server: ServerProcess) -> None:
    """Seven questions and a long text at once; all seats are taken. Nothing is reused, so all is computed again."""
    places = ["kitchen", "forest", "garage", "school", "harbor", "theater", "field"]
    questions = [f"A thing in a {place}?" for place in places]
    bodies = [chat(question, max_tokens=7, cache_prompt=False) for question in questions]
    bodies.append(chat("The river rose and fell. " * 20 + "What rose?", max_tokens=6, cache_prompt=False))
    alone = [coder_server.post(CHAT, body).json()["choices"][0]["message"]["content"] for body in bodies]
    assert len(set(alone)) == len(alone)
    calls = [Call(coder_server, CHAT, body) for body in bodies]
    assert [call.text() for call in calls] == alone


def test_answers_do_not_depend_on_when_neighbours_come_and_go(tiny_server: ServerProcess) -> None:
    bodies = [chat(f"user {n} " * (1 + 20 * n % 71), max_tokens=120, ignore_eos=True, cache_prompt=False,
                   temperature=n % 2, seed=n) for n in range(16)]  # fmt: skip
    alone = [Call(tiny_server, CHAT, body).text() for body in bodies]
    assert len(set(alone)) == len(alone)
    calls = []
    for number, body in enumerate(bodies):
        calls.append(Call(tiny_server, CHAT, body))
        if number % 5 == 4:
            RawClient(tiny_server, CHAT, endless(f"gone {number}")).reset()
            time.sleep(0.02)
    assert [call.text() for call in calls] == alone


def test_stream_goes_on_while_a_long_prompt_is_computed(server: ServerProcess) -> None:
    body = chat("steady", ignore_eos=True, max_tokens=400)
    expected = server.post(CHAT, body).json()["choices"][0]["message"]["content"]
    talker = RawClient(server, CHAT, endless("steady"))
    talker.read_until(b'"content":"')
    chunks_before = server.metric("vllm:generation_tokens_total")
    long = Call(server, TEXT, {"prompt": LONG_PROMPT, "max_tokens": 1, "temperature": 0})
    assert long.answer()["usage"]["prompt_tokens"] > 8000
    assert server.metric("vllm:generation_tokens_total") - chunks_before > 20
    assert server.post(CHAT, body).json()["choices"][0]["message"]["content"] == expected
    talker.close()
    server.wait_until_idle()


def test_every_free_seat_is_taken(server: ServerProcess) -> None:
    """Four long prompts at once: all four run together, and a seat that becomes free goes to who waits."""
    clients = [RawClient(server, TEXT, {"prompt": f"{n} {LONG_PROMPT[:3000]}", "max_tokens": CONTEXT - 4000,
                                        "ignore_eos": True, "stream": True}) for n in range(6)]  # fmt: skip
    wait_for(server, 4, 2)
    for client in clients[:4]:
        client.read_until(b'"text":"')
    wait_for(server, 4, 2)
    clients[1].close()
    clients[4].read_until(b'"text":"')
    wait_for(server, 4, 1)
    for client in clients:
        client.close()
    server.wait_until_idle()


def test_full_queue_is_refused_with_the_time_to_come_again(server: ServerProcess) -> None:
    before = server.metric("typebar:requests_rejected_total")
    clients = [RawClient(server, CHAT, endless(f"full {n}")) for n in range(6)]
    wait_for(server, 4, 2)
    for path, body in ((CHAT, chat("x")), (TEXT, {"prompt": "x"}), ("/completion", {"prompt": "x", "stream": True})):
        response = server.post(path, body)
        assert response.status_code == 429 and int(response.headers["retry-after"]) >= 1
        error = response.json()["error"]
        assert (
            error["type"] == "rate_limit_error" and error["code"] == "queue_full" and "--max-queue" in error["message"]
        )
    assert server.metric("typebar:requests_rejected_total") == before + 3
    assert server.get("/health").status_code == 200
    assert server.get("/slots?fail_on_no_slot=1").status_code == 503
    clients[0].close()
    wait_for(server, 4, 1)
    late = Call(server, CHAT, chat("now there is room", max_tokens=2))
    wait_for(server, 4, 2)
    for client in clients:
        client.close()
    assert late.answer()["usage"]["completion_tokens"] <= 2
    server.wait_until_idle()


def test_answers_of_one_request_count_one_by_one(server: ServerProcess) -> None:
    assert server.post(CHAT, chat("many", n=7)).status_code == 400  # more than there will ever be room for
    client = RawClient(server, CHAT, endless("one"))
    client.read_until(b'"content":"')
    assert server.post(CHAT, chat("many", n=6, max_tokens=2)).status_code == 429
    client.close()
    server.wait_until_idle()
    assert len(server.post(CHAT, chat("many", n=6, max_tokens=2)).json()["choices"]) == 6


@pytest.fixture(scope="module")
def tight(long_path: Path) -> Iterator[ServerProcess]:
    """2048 tokens of keys and values, which one request alone nearly fills."""
    with running(long_path, "--max-model-len", "2000", "--kv-memory", "512K", "--drain", "0") as server:
        yield server


def test_everybody_finishes_though_their_keys_do_not_fit_together(tight: ServerProcess) -> None:
    bodies = [{"prompt": [n, *range(100, 250), *range(250)], "max_tokens": 1500, "temperature": 0, "ignore_eos": True}
              for n in range(4)]  # fmt: skip
    alone = [tight.post(TEXT, {**body, "max_tokens": 300}).json()["choices"][0]["text"] for body in bodies]
    before = tight.metric("vllm:num_preemptions_total")
    calls = [Call(tight, TEXT, body) for body in bodies]
    for call, expected in zip(calls, alone, strict=True):
        answer = call.answer()
        assert answer["choices"][0]["finish_reason"] == "length" and answer["usage"]["completion_tokens"] == 1500
        assert answer["choices"][0]["text"].startswith(expected.rstrip("\ufffd"))
    assert tight.metric("vllm:num_preemptions_total") > before
    steps = tight.metric("llamacpp:n_decode_total")
    time.sleep(0.2)
    assert tight.metric("llamacpp:n_decode_total") == steps
    assert tight.post(TEXT, {**bodies[0], "max_tokens": 300}).json()["choices"][0]["text"] == alone[0]


def test_answer_that_reaches_the_end_of_the_context_ends_there(tight: ServerProcess) -> None:
    answer = tight.post(TEXT, {"prompt": [1] * 1990, "max_tokens": 100, "ignore_eos": True}).json()
    assert answer["choices"][0]["finish_reason"] == "length" and answer["usage"]["completion_tokens"] == 10
    refused = tight.post(TEXT, {"prompt": [1] * 2000, "max_tokens": 1})
    assert refused.status_code == 400 and refused.json()["error"]["code"] == "context_length_exceeded"
    assert re.search(r"2000 tokens.*2000 tokens", refused.json()["error"]["message"])
