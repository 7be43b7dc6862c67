"""Load on real servers, and on one that fails."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from random import Random
from threading import Thread

import pytest

from typebar.bench import load
from typebar.bench.load import Plan
from typebar.bench.process import ServerProcess, free_port, serve_command
from typebar.bench.prompts import scripts
from typebar.bench.workload import Texts
from typebar.errors import ParameterError


@pytest.fixture(scope="module")
def typebar(tiny_path: Path) -> Iterator[ServerProcess]:
    port = free_port()
    with ServerProcess(serve_command(str(tiny_path), port, "--threads", "1"), port) as process:
        yield process


def run(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "typebar", "bench", "load", "--url", url, "--max-tokens", "12", *arguments]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("mode", [("--concurrency", "3"), ("--rate", "40")])
def test_server_is_loaded_by_users_and_at_a_rate(typebar: ServerProcess, tmp_path: Path, mode: tuple[str, str]) -> None:
    file = tmp_path / "load.json"
    done = run(typebar.url, "--requests", "12", *mode, "--json", str(file))
    assert done.returncode == 0, done.stderr + done.stdout
    report = json.loads(file.read_text())
    assert report["requests"] == report["completed"] == 12 and report["errors"] == {}
    for name in ("ttft", "itl", "whole"):
        figures = report["latencies_ms"][name]
        assert 0 <= figures["p50"] <= figures["p95"] <= figures["p99"] <= figures["max"], name
    assert 0 < report["completion_tokens"] <= 12 * 12
    assert report["output_tps"] == pytest.approx(report["completion_tokens"] / report["seconds"])
    assert sum(kind["requests"] for kind in report["kinds"].values()) == 12
    assert "12 of 12 answered" in done.stdout


def test_llamacpp_server_is_loaded_too(tiny_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    from typebar.bench.engines import RIVALS, Launch

    port = free_port()
    server = RIVALS["llama.cpp"].server
    assert server
    with ServerProcess(server(Launch(sys.executable, tiny_path, port, users=2, threads=1)), port) as process:
        done = run(process.url, "--requests", "4", "--concurrency", "2")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "4 of 4 answered" in done.stdout


class Answering(BaseHTTPRequestHandler):
    """Knows one model, tells what a first plain request needs, and answers streamed chats as `stream` says."""

    def do_GET(self) -> None:
        self._send(200, {"data": [{"id": "small", "max_model_len": 512}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["model"] != "small":
            self._send(404, {"error": {"message": f"no model {body['model']}"}})
        elif body["stream"]:
            self.stream()
        else:
            self._send(200, {"usage": {"prompt_tokens": 200}})

    def stream(self) -> None:
        self._send(503, {"error": {"message": "too busy"}})

    def _send(self, status: int, body: object) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def test_refusals_are_counted_and_told() -> None:
    with serving(Answering) as url:
        done = run(url, "--requests", "5")
    assert done.returncode == 1
    assert "0 of 5 answered" in done.stdout and "too busy" in done.stdout


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (b"data: {broken", "an answer that is no JSON"),
        (b"data: 5", "an answer that is no JSON"),
        (b'data: {"error": "out of memory"}', "status 200: out of memory"),
        (b'data: {"choices": null}', "an empty answer without a reason"),
    ],
)
def test_broken_answers_are_counted_and_the_load_goes_on(event: bytes, error: str) -> None:
    class Broken(Answering):
        def stream(self) -> None:
            self._send(200, event + b"\n\n")

    shares: list[float] = []
    with serving(Broken) as url:
        report = asyncio.run(load.run(Plan(requests=5), url, "", lambda doing, share: shares.append(share)))
    assert report["completed"] == 0 and report["errors"][error] > 0
    assert sum(report["errors"].values()) == 5
    assert shares == sorted(shares) and shares[-1] == 1.0


def test_connections_that_break_are_counted() -> None:
    class Leaving(Answering):
        def stream(self) -> None:
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 9\r\n\r\nnot gzip!")

    with serving(Leaving) as url:
        report = asyncio.run(load.run(Plan(requests=3), url, "", lambda doing, share: None))
    assert report["errors"]["the connection broke: DecodingError"] > 0


def test_load_ends_with_its_last_answer() -> None:
    """At this rate the next conversation would come in days."""
    plan = Plan(requests=1, rate=1e-6)

    async def within_a_minute(url: str) -> dict[str, object]:
        async with asyncio.timeout(60):
            return await load.run(plan, url, "", lambda doing, share: None)

    with serving(Answering) as url:
        assert asyncio.run(within_a_minute(url))["requests"] == 1


def test_nobody_there_is_told() -> None:
    done = run(f"http://127.0.0.1:{free_port()}")
    assert done.returncode == 1 and "no server that can be measured" in done.stderr


def test_plans_out_of_range_are_refused() -> None:
    with pytest.raises(ParameterError, match="rate"):
        Plan(rate=0.0)
    with pytest.raises(ParameterError, match="requests"):
        Plan(requests=0)


def test_prompts_are_of_every_kind_and_repeat_with_the_seed() -> None:
    made = scripts(Random(1), Texts(3.0), 100, 2048)
    assert {script.kind for script in made} == {"chinese", "code", "document", "conversation"}
    assert sum(len(script.turns) for script in made) == 100
    assert made == scripts(Random(1), Texts(3.0), 100, 2048) != scripts(Random(2), Texts(3.0), 100, 2048)
    assert all(len(script.turns) > 1 for script in made[:-1] if script.kind == "conversation")
