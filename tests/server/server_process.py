"""A real `typebar serve` process for tests."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

READY = re.compile(r"is ready after .*: (https?)://\S+?:(\d+) ")


class ServerProcess:
    """A started server; `log` is what it wrote to stderr so far."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.port = 0
        self.scheme = "http"
        # httpx reads all certificates of the system for each client, 50 ms; connections are new for every request.
        self.client = httpx.Client(timeout=120, limits=httpx.Limits(max_keepalive_connections=0))

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return "".join(self._lines)

    def wait_until_ready(self, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if match := READY.search(self.log):
                self.scheme, self.port = match[1], int(match[2])
                return
            if self.process.poll() is not None:
                self._reader.join(5)
                raise RuntimeError(f"the server ended with {self.process.returncode}:\n{self.log}")
            time.sleep(0.02)
        raise RuntimeError(f"the server is not ready:\n{self.log}")

    def post(self, path: str, body: object = None, **options: Any) -> httpx.Response:
        return self.client.post(f"{self.url}{path}", json=body, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.client.get(f"{self.url}{path}", **options)

    def chat(self, content: str, **fields: Any) -> dict[str, Any]:
        """The answer to one greedy question."""
        body = {"messages": [{"role": "user", "content": content}], "temperature": 0, **fields}
        response = self.post("/v1/chat/completions", body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """All `data:` events of a stream, the last as the text [DONE] where it is sent."""
        with self.lines(path, body) as lines:
            events = [line[6:] for line in lines if line.startswith("data: ")]
        return [event if event == "[DONE]" else json.loads(event) for event in events]

    @contextmanager
    def lines(self, path: str, body: dict[str, Any]) -> Iterator[Iterator[str]]:
        """The lines of a stream as they come. httpx cuts the connection when nobody holds the iterator any more."""
        with self.client.stream("POST", f"{self.url}{path}", json={**body, "stream": True}) as response:
            assert response.status_code == 200, response.read()
            lines = response.iter_lines()
            yield lines

    def metric(self, name: str) -> float:
        """The value of a metric, summed over its labels."""
        text = self.get("/metrics").text
        return sum(float(value) for value in re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.M))

    def wait_until_idle(self, seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while self.metric("vllm:num_requests_running") + self.metric("vllm:num_requests_waiting"):
            assert time.monotonic() < deadline, "requests are still there"
            time.sleep(0.02)

    def wait_for_log(self, pattern: str, seconds: float = 30) -> "re.Match[str]":
        """The first match in the log; its lines may come after the answer that they tell of."""
        deadline = time.monotonic() + seconds
        while not (match := re.search(pattern, self.log, re.MULTILINE)):
            assert time.monotonic() < deadline, f"no line with {pattern!r}:\n{self.log}"
            time.sleep(0.02)
        return match

    def stop(self, number: int = signal.SIGTERM, seconds: float = 60) -> int:
        """Send a signal and wait; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(seconds)
        self._reader.join(5)
        return code

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.append(line)


def launch(model: Path, arguments: Sequence[str] = (), env: dict[str, str] | None = None) -> ServerProcess:
    """Start a server on a free port, without waiting for the model."""
    clean = {
        key: value for key, value in os.environ.items() if key == "TYPEBAR_CACHE" or not key.startswith("TYPEBAR_")
    }
    command = [sys.executable, "-m", "typebar", "serve", str(model), "--port", "0", *arguments]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        errors="replace", env={**clean, **(env or {})},
    )  # fmt: skip
    return ServerProcess(process)


@contextmanager
def running(model: Path, *arguments: str, env: dict[str, str] | None = None) -> Iterator[ServerProcess]:
    """A server that is ready; ended with the block."""
    server = launch(model, arguments, env)
    try:
        server.wait_until_ready()
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
        server.process.wait()
