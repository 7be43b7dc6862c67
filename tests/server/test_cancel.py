"""A client that leaves, cancels or is too slow costs nothing more: seats, computation and memory are free at once."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from raw_client import RawClient
from server_process import ServerProcess, running

CHAT, TEXT, NATIVE = "/v1/chat/completions", "/v1/completions", "/completion"
LONG_PROMPT = "a b c d e f g. " * 1000  # about 12 000 tokens of the random model
CONTEXT = 32768


@pytest.fixture(scope="module")
def server(long_path: Path) -> Iterator[ServerProcess]:
    """Two seats, and answers that take more than half a minute when nobody stops them."""
    with running(long_path, "--max-model-len", str(CONTEXT), "--max-num-seqs", "2", "--drain", "0") as server:
        assert len(server.post("/tokenize", {"content": LONG_PROMPT}).json()["tokens"]) > 8000
        yield server


@pytest.fixture(autouse=True)
def ends_idle(server: ServerProcess) -> Iterator[None]:
    yield
    server.wait_until_idle()


def endless(path: str = CHAT, text: str = "go", **fields: Any) -> dict[str, Any]:
    prompt = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    return {**prompt, "temperature": 0, "ignore_eos": True, "max_tokens": CONTEXT, **fields}


def eventually(holds: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def generated(server: ServerProcess) -> float:
    return server.metric("vllm:generation_tokens_total")


def ended(server: ServerProcess, reason: str) -> float:
    found = re.search(
        rf'^typebar:sequences_ended_total{{.*reason="{reason}".*}} (\S+)$', server.get("/metrics").text, re.M
    )
    assert found
    return float(found[1])


def wait_for_tokens(server: ServerProcess, count: int) -> None:
    before = generated(server)
    eventually(lambda: generated(server) >= before + count)


def assert_idle(server: ServerProcess) -> None:
    """Nobody is there, and no step is made."""
    server.wait_until_idle(10)
    steps = server.metric("llamacpp:n_decode_total")
    time.sleep(0.2)
    assert server.metric("llamacpp:n_decode_total") == steps


@pytest.mark.parametrize("path", [CHAT, TEXT, NATIVE])
@pytest.mark.parametrize(
    ("stream", "leave"), [(True, RawClient.close), (False, RawClient.reset)], ids=["stream, close", "whole, reset"]
)
def test_client_that_leaves_while_tokens_are_drawn_frees_its_seat(
    server: ServerProcess, path: str, stream: bool, leave: Callable[[RawClient], None]
) -> None:
    cancelled, before = ended(server, "cancelled"), generated(server)
    client = RawClient(server, path, endless(path, stream=stream))
    wait_for_tokens(server, 20)
    leave(client)
    assert_idle(server)
    assert ended(server, "cancelled") == cancelled + 1
    assert generated(server) - before < CONTEXT / 4


def test_many_clients_that_leave_at_once_leave_nothing_behind(server: ServerProcess) -> None:
    cancelled = ended(server, "cancelled")
    for _ in range(5):
        clients = [RawClient(server, CHAT, endless(stream=n % 2 == 0, text=f"n{n}")) for n in range(6)]
        wait_for_tokens(server, 5)
        for client in clients:
            client.reset()
    eventually(lambda: ended(server, "cancelled") == cancelled + 30)
    assert_idle(server)
    assert server.chat("still here?", max_tokens=3)["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_client_that_leaves_during_its_prompt_stops_it_and_what_is_computed_is_kept(
    server: ServerProcess, stream: bool
) -> None:
    salt = f"prefill {stream}"
    body = endless(TEXT, LONG_PROMPT, cache_salt=salt, max_tokens=1)
    cancelled, drawn = ended(server, "cancelled"), generated(server)
    steps = server.metric("llamacpp:n_decode_total")
    client = RawClient(server, TEXT, {**body, "stream": stream})
    eventually(lambda: server.metric("llamacpp:n_decode_total") >= steps + 2)
    client.close()
    assert_idle(server)
    assert ended(server, "cancelled") == cancelled + 1 and generated(server) == drawn
    usage = server.post(TEXT, body).json()["usage"]
    assert 0 < usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"] - 1


def test_answer_that_was_cancelled_can_be_reused(server: ServerProcess) -> None:
    body = endless(NATIVE, "keep this", cache_salt="kept", return_tokens=True)
    client = RawClient(server, NATIVE, {**body, "stream": True})
    wait_for_tokens(server, 200)
    client.close()
    server.wait_until_idle()
    answer = server.post(NATIVE, {**body, "n_predict": 150}).json()["tokens"]
    prompt = server.post("/tokenize", {"content": "keep this"}).json()["tokens"]
    again = server.post(NATIVE, {**body, "prompt": prompt + answer, "n_predict": 1}).json()
    assert again["timings"]["cache_n"] >= 144


def test_requests_that_wait_vanish_with_their_clients(server: ServerProcess) -> None:
    running = [RawClient(server, CHAT, endless(text=f"seat {n}", stream=True)) for n in range(2)]
    for client in running:
        client.read_until(b'"content"')
    eventually(lambda: server.metric("vllm:num_requests_running") == 2)
    begin = len(server.log)
    dead = [RawClient(server, CHAT, endless(text=f"dead {n}", stream=n % 2 == 0)) for n in range(3)]
    eventually(lambda: server.metric("vllm:num_requests_waiting") == 3)
    for client in dead:
        client.close()
    eventually(lambda: server.metric("vllm:num_requests_waiting") == 0)
    eventually(lambda: len(re.findall(r" 0 out .*cancelled", server.log[begin:])) == 3)
    last = RawClient(server, CHAT, endless(text="alive", max_tokens=3))
    eventually(lambda: server.metric("vllm:num_requests_waiting") == 1)
    running[0].close()
    assert b'"completion_tokens":3' in last.read_until(b'"usage"') + last.read_until(b"}}")
    assert server.metric("vllm:num_requests_running") == 1
    running[1].close()


class Answer(threading.Thread):
    """A whole answer that is waited for beside the test."""

    def __init__(self, server: ServerProcess, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        super().__init__(daemon=True)
        self._call = lambda: server.post(CHAT, body, headers=headers)
        self.start()

    def run(self) -> None:
        self._response = self._call()

    def get(self) -> httpx.Response:
        self.join(60)
        return self._response


def test_cancel_by_response_id_ends_a_stream_cleanly(server: ServerProcess) -> None:
    client = RawClient(server, CHAT, endless(stream=True, n=2, stream_options={"include_usage": True}))
    match = re.search(rb'"id":"([^"]+)"', client.read_until(b'"content":"'))
    assert match
    wait_for_tokens(server, 20)
    answer = server.post(f"/v1/requests/{match[1].decode()}/cancel")
    assert answer.status_code == 200 and answer.json()["cancelled"] == 1
    text = client.read_until(b"data: [DONE]").decode()
    events = [json.loads(data) for data in re.findall(r"^data: (\{.*\})$", text, re.M)]
    ends = [choice for event in events for choice in event["choices"] if choice["finish_reason"]]
    assert [(end["finish_reason"], end["stop_reason"]) for end in ends] == [("stop", "cancelled")] * 2
    assert {end["index"] for end in ends} == {0, 1}
    assert 20 <= events[-1]["usage"]["completion_tokens"] < CONTEXT
    assert server.post(f"/v1/requests/{match[1].decode()}/cancel").status_code == 404
    client.close()


@pytest.mark.parametrize("moment", ["decode", "prefill", "queue"])
def test_cancel_by_the_callers_id_ends_a_whole_answer(server: ServerProcess, moment: str) -> None:
    seats = [RawClient(server, CHAT, endless(text=f"s{n}", stream=True)) for n in range(2 if moment == "queue" else 0)]
    for seat in seats:
        seat.read_until(b'"content":"')
    steps = server.metric("llamacpp:n_decode_total")
    text = LONG_PROMPT if moment == "prefill" else "go"
    answer = Answer(server, endless(text=text, cache_salt=f"cancel {moment}"), {"X-Request-Id": f"mine-{moment}"})
    if moment == "queue":
        eventually(lambda: server.metric("vllm:num_requests_waiting") == 1)
    else:
        eventually(lambda: server.metric("llamacpp:n_decode_total") >= steps + (20 if moment == "decode" else 2))
    assert server.post(f"/v1/requests/mine-{moment}/cancel").json()["cancelled"] == 1
    response = answer.get()
    choice = response.json()["choices"][0]
    assert response.status_code == 200 and response.headers["x-request-id"] == f"mine-{moment}"
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "cancelled")
    drawn = response.json()["usage"]["completion_tokens"]
    assert 0 < drawn < CONTEXT / 2 if moment == "decode" else drawn == 0
    for seat in seats:
        seat.close()


def test_callers_id_may_be_any_visible_text(server: ServerProcess) -> None:
    for id in ("tenant/7", "a+b", "100%?#", "../../health"):
        answer = Answer(server, endless(), {"X-Request-Id": id})
        eventually(lambda: server.metric("vllm:num_requests_running") == 1)
        response = server.post(f"/v1/requests/{quote(id, safe='')}/cancel")
        assert response.status_code == 200 and response.json() == {"id": id, "cancelled": 1}
        assert answer.get().headers["x-request-id"] == id
        server.wait_until_idle()


def test_cancel_reaches_every_request_with_that_id_and_only_them(server: ServerProcess) -> None:
    answers = [Answer(server, endless(text=f"q{n}"), {"X-Request-Id": "shared"}) for n in range(2)]
    other = Answer(server, endless(max_tokens=5000), {"X-Request-Id": "other"})
    eventually(lambda: server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting") == 3)
    assert server.post("/v1/requests/nobody/cancel").status_code == 404
    assert server.post("/v1/requests/shared/cancel").json()["cancelled"] == 2
    assert {answer.get().json()["choices"][0]["stop_reason"] for answer in answers} == {"cancelled"}
    assert server.post("/v1/requests/other/cancel").json()["cancelled"] == 1
    assert other.get().json()["choices"][0]["stop_reason"] == "cancelled"


@pytest.mark.parametrize("limit", [{"max_time": 0.5}, {"t_max_predict_ms": 500}], ids=["max_time", "llama-server"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_answer_ends_when_its_time_is_over(server: ServerProcess, limit: dict[str, float], stream: bool) -> None:
    before = ended(server, "timeout")
    if stream:
        *_, last, done = server.events(CHAT, endless(**limit))
        assert done == "[DONE]"
        choice = last["choices"][0]
    else:
        choice = server.chat("go", ignore_eos=True, **limit)["choices"][0]
        assert choice["message"]["content"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "timeout")
    assert ended(server, "timeout") == before + 1


def test_time_that_is_over_before_the_first_token_is_an_error(server: ServerProcess) -> None:
    seats = [RawClient(server, CHAT, endless(text=f"t{n}", stream=True)) for n in range(2)]
    for seat in seats:
        seat.read_until(b'"content":"')
    response = server.post(CHAT, endless(max_time=0.2))
    assert response.status_code == 504 and response.json()["error"]["code"] == "timeout"
    assert response.json()["error"]["type"] == "timeout_error"
    opening, event, done = server.events(CHAT, endless(max_time=0.2))
    assert event["error"]["code"] == "timeout" and done == "[DONE]"
    assert opening["choices"][0]["finish_reason"] is None
    for seat in seats:
        seat.close()


def test_client_that_closes_after_the_end_has_not_cancelled(server: ServerProcess) -> None:
    cancelled = ended(server, "cancelled")
    for number, last in enumerate([b"data: [DONE]", b'"finish_reason":"length"'] * 10):
        client = RawClient(server, CHAT, endless(stream=True, max_tokens=1 + number % 4))
        client.read_until(last)
        (client.reset if number % 3 else client.close)()
    assert_idle(server)
    assert ended(server, "cancelled") == cancelled


@pytest.fixture(scope="module")
def impatient(long_path: Path) -> Iterator[ServerProcess]:
    arguments = ("--max-model-len", str(CONTEXT), "--write-timeout", "1", "--drain", "0")
    with running(long_path, *arguments) as server:
        yield server


def memory(server: ServerProcess) -> int:
    """Bytes of the server's own memory, without the page cache."""
    found = re.search(r"^RssAnon:\s+(\d+) kB$", Path(f"/proc/{server.pid}/status").read_text(), re.M)
    assert found
    return int(found[1]) << 10


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_reader_that_stalls_is_cut_and_harms_nobody(impatient: ServerProcess, path: str) -> None:
    """Eight answers with log-probabilities fill what the kernel buffers in a second or two."""
    expected = impatient.chat("hello", max_tokens=20)["choices"][0]["message"]["content"]
    many = {"logprobs": 20} if path == TEXT else {"logprobs": True, "top_logprobs": 20}
    before, drawn, overflow = memory(impatient), generated(impatient), ended(impatient, "overflow")
    stalled = RawClient(impatient, path, endless(path, stream=True, n=8, **many), receive_buffer=4096)
    eventually(lambda: impatient.metric("vllm:num_requests_running") == 8)
    peak, deadline = 0, time.monotonic() + 60
    while impatient.metric("vllm:num_requests_running"):
        assert impatient.chat("hello", max_tokens=20)["choices"][0]["message"]["content"] == expected
        assert time.monotonic() < deadline, "the reader was not cut"
        peak = max(peak, memory(impatient))
    eventually(lambda: ended(impatient, "overflow") == overflow + 8)
    assert generated(impatient) - drawn < 8 * CONTEXT / 2
    assert peak - before < 96 << 20
    assert b"[DONE]" not in stalled.read_all()
    stalled.close()


def test_queue_of_one_answer_is_bounded_however_patient_the_server(long_path: Path) -> None:
    """No write timeout here: the outputs that nobody takes are counted, and at 8192 the answer ends."""
    with running(long_path, "--max-model-len", str(CONTEXT), "--write-timeout", "600", "--drain", "0") as server:
        before = memory(server)
        body = endless(stream=True, n=8, logprobs=True, top_logprobs=20)
        stalled = RawClient(server, CHAT, body, receive_buffer=4096)
        eventually(lambda: ended(server, "overflow") == 8, 90)
        server.wait_until_idle(10)
        assert 8192 <= generated(server) < 8 * CONTEXT / 2
        assert memory(server) - before < 256 << 20
        stalled.close()


def test_server_side_time_limit_holds_for_everybody(long_path: Path) -> None:
    with running(long_path, "--max-model-len", str(CONTEXT), "--request-timeout", "0.5", "--drain", "0") as server:
        choice = server.chat("go", ignore_eos=True, max_time=50)["choices"][0]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "timeout")
    # Far less than the prompt takes, on any machine.
    with running(long_path, "--max-model-len", str(CONTEXT), "--request-timeout", "0.02", "--drain", "0") as server:
        response = server.post(TEXT, endless(TEXT, LONG_PROMPT, max_tokens=1))
        assert response.status_code == 504 and response.json()["error"]["code"] == "timeout"
        server.wait_until_idle(10)
