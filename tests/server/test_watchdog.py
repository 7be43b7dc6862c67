"""An engine that hangs, loses a request or dies: whoever waits is told, /health says so, nothing waits for ever."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from raw_client import RawClient
from server_process import ServerProcess
from websockets.sync.client import connect

CHAT = "/v1/chat/completions"
STALL = "1"  # seconds


class FaultyServer(ServerProcess):
    """A server whose engine can be told to misbehave."""

    def __init__(self, model: Path, fault: Path, *arguments: str) -> None:
        self._fault = fault
        self.engine_may("run")
        script = str(Path(__file__).with_name("faulty_server.py"))
        command = [sys.executable, script, str(fault), "serve", str(model), "--port", "0", *arguments]
        super().__init__(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                          stderr=subprocess.PIPE, text=True))  # fmt: skip

    def engine_may(self, word: str) -> None:
        new = self._fault.with_suffix(".new")
        new.write_text(word)
        new.replace(self._fault)

    def eventually(self, status: int, seconds: float = 30) -> dict[str, Any]:
        """The body of /health once it has that status."""
        deadline = time.monotonic() + seconds
        while (response := self.get("/health")).status_code != status:
            assert time.monotonic() < deadline, response.text
            time.sleep(0.02)
        body: dict[str, Any] = response.json()
        return body


@contextmanager
def faulty(model: Path, fault: Path, *arguments: str) -> Iterator[FaultyServer]:
    server = FaultyServer(model, fault, "--stall-timeout", STALL, *arguments)  # the last of equal flags counts
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.process.kill()
        server.process.wait()


@pytest.fixture(scope="module")
def server(long_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyServer]:
    fault = tmp_path_factory.mktemp("fault") / "word"
    with faulty(long_path, fault, "--max-model-len", "32768", "--max-num-seqs", "3", "--drain", "0") as server:
        yield server


@pytest.fixture(autouse=True)
def sound_again(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "server" in request.fixturenames:
        server = request.getfixturevalue("server")
        server.engine_may("run")
        server.eventually(200)
        server.wait_until_idle()


def body(content: str = "go", **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"messages": messages, "temperature": 0, "ignore_eos": True, "max_tokens": 30_000, **fields}


def error_of_stream(client: RawClient) -> dict[str, Any]:
    *_, event, done = (line for line in client.read_until(b"data: [DONE]").split(b"\n") if line.startswith(b"data: "))
    assert done.startswith(b"data: [DONE]")
    error: dict[str, Any] = json.loads(event[6:])["error"]
    return error


def test_blocked_engine_is_reported_its_clients_are_told_and_it_may_recover(server: FaultyServer) -> None:
    expected = server.chat("hello", max_tokens=20)["choices"][0]["message"]["content"]
    stream, whole = RawClient(server, CHAT, body(stream=True)), RawClient(server, CHAT, body("whole"))
    with connect(f"ws://127.0.0.1:{server.port}/v1/ws", open_timeout=60) as socket:
        socket.send(json.dumps({"type": "chat", **body("socket")}))
        while json.loads(socket.recv(60))["type"] != "delta":
            pass
        stream.read_until(b'"content":"')
        waiting = RawClient(server, CHAT, body("waits", stream=True))
        waiting.read_until(b'"role"')
        server.engine_may("block")

        health = server.eventually(503)
        assert health["error"]["code"] == "engine_stalled" and server.get("/v1/health").status_code == 503
        for client in (stream, waiting):
            assert error_of_stream(client)["code"] == "engine_error"
        assert whole.read_until(b"engine_error").startswith(b"HTTP/1.1 500 ")
        while (frame := json.loads(socket.recv(60)))["type"] != "error":
            assert frame["type"] == "delta"
        assert frame["error"]["code"] == "engine_error"
        refused = server.post(CHAT, body(max_tokens=1))
        assert refused.status_code == 503 and refused.headers["retry-after"]
        assert server.get("/metrics").status_code == 200

        server.engine_may("run")
        assert server.eventually(200) == {"status": "ok"}
        server.wait_until_idle()
        assert server.chat("hello", max_tokens=20)["choices"][0]["message"]["content"] == expected
        socket.send(json.dumps({"type": "chat", **body("socket", max_tokens=2)}))
        while (frame := json.loads(socket.recv(60)))["type"] != "done":
            assert frame["type"] != "error", frame
    for client in (stream, whole, waiting):
        client.close()
    server.wait_for_log("no step for")
    server.wait_for_log("steps again")


def test_request_that_the_engine_never_takes_up_is_given_up(server: FaultyServer) -> None:
    server.engine_may("lose")
    client = RawClient(server, CHAT, body(stream=True))
    assert error_of_stream(client)["code"] == "engine_error"
    client.close()
    server.engine_may("run")
    server.eventually(200)
    assert server.chat("hello", max_tokens=2)["usage"]["completion_tokens"] == 2


def test_slow_engine_and_idle_server_are_healthy(server: FaultyServer) -> None:
    seen = set()

    def watch(until: Callable[[], bool]) -> None:
        while not until():
            seen.add(server.get("/health").status_code)
            time.sleep(0.02)

    idle_until = time.monotonic() + 2 * float(STALL)
    watch(lambda: time.monotonic() > idle_until)
    server.engine_may("slow")
    client = RawClient(server, CHAT, body(stream=True))
    client.read_until(b'"role"')
    steps = server.metric("llamacpp:n_decode_total") + 3 * float(STALL) / 0.2
    watch(lambda: server.metric("llamacpp:n_decode_total") > steps)
    client.close()
    assert seen == {200}


def test_engine_that_dies_ends_its_answers_and_the_server(long_path: Path, tmp_path: Path) -> None:
    with faulty(long_path, tmp_path / "word", "--max-model-len", "32768", "--drain", "30") as server:
        stream, whole = RawClient(server, CHAT, body(stream=True)), RawClient(server, CHAT, body("whole"))
        stream.read_until(b'"content":"')
        while server.metric("vllm:num_requests_running") < 2:
            time.sleep(0.02)
        server.engine_may("fail")
        error = error_of_stream(stream)
        assert error["code"] == "engine_error" and error["type"] == "api_error"
        assert whole.read_until(b"engine_error").startswith(b"HTTP/1.1 500 ")
        assert server.process.wait(30) == 1
        server.stop()
        assert "the engine failed" in server.log and "AssertionError" in server.log


def test_blocked_engine_does_not_keep_the_server_from_ending(long_path: Path, tmp_path: Path) -> None:
    """Without a watchdog, which would have told the client before."""
    arguments = ("--max-model-len", "32768", "--drain", "0", "--stall-timeout", "0")
    with faulty(long_path, tmp_path / "word", *arguments) as server:
        stream = RawClient(server, CHAT, body(stream=True))
        stream.read_until(b'"content":"')
        server.engine_may("block")
        steps = -1.0
        while steps != (steps := server.metric("llamacpp:n_decode_total")):
            time.sleep(0.3)
        server.process.send_signal(signal.SIGTERM)
        assert error_of_stream(stream)["code"] == "server_shutdown"
        assert server.process.wait(60) == 1
