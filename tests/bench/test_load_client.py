"""The load client and the comparison with llama.cpp, on llama.cpp's own server with a tiny random model."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from typebar.bench.client import Client, Reply
from typebar.bench.concurrent import PEER, SLOTS, chats, print_table, turns
from typebar.bench.process import ServerProcess, footprint, free_port
from typebar.errors import TypebarError

pytest.importorskip("xllamacpp")

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def llamacpp(tiny_path: Path) -> Iterator[ServerProcess]:
    port = free_port()
    job = {"model": str(tiny_path), "threads": 1, "slots": SLOTS, "context": 2048, "port": port}
    with ServerProcess([sys.executable, str(PEER), json.dumps(job)], port) as server:
        yield server
    assert server.exit_code == 0


def ask(server: ServerProcess, body: dict[str, object], stream: bool) -> Reply:
    async def run() -> Reply:
        async with Client(server.url) as client:
            return await client.chat(body, stream=stream)

    return asyncio.run(run())


def test_stream_and_plain_answer_are_the_same(llamacpp: ServerProcess) -> None:
    body = {"messages": HELLO, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    streamed, plain = ask(llamacpp, body, True), ask(llamacpp, body, False)
    assert streamed.text == plain.text != ""
    assert streamed.finish_reason == plain.finish_reason == "length"
    assert streamed.completion_tokens == plain.completion_tokens == 12
    assert streamed.started < streamed.first_byte <= streamed.arrivals[0] < streamed.arrivals[-1] <= streamed.ended
    assert len(streamed.gaps) == len(streamed.arrivals) - 1 and min(streamed.gaps) >= 0
    assert 0 < streamed.ttfb <= streamed.ttft


def test_refusal_is_a_reply_with_its_error(llamacpp: ServerProcess) -> None:
    reply = ask(llamacpp, {"messages": "Hello"}, True)
    assert reply.status >= 400 and reply.error["message"] and reply.text == ""


def test_reply_of_a_cancelled_chat_keeps_what_came(llamacpp: ServerProcess) -> None:
    async def run() -> Reply:
        reply = Reply()
        async with Client(llamacpp.url) as client:
            body = {"messages": HELLO, "max_tokens": 1900, "temperature": 0, "ignore_eos": True}
            task = asyncio.create_task(client.chat(body, reply=reply))
            while len(reply.arrivals) < 3:
                await asyncio.sleep(0.001)
            task.cancel()
            await asyncio.wait({task})
        return reply

    reply = asyncio.run(run())
    assert reply.text and not reply.ended and not reply.finish_reason


def test_server_that_cannot_start_tells_its_log(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no such model')"]
    with pytest.raises(TypebarError, match="exit code 1:\nno such model"), ServerProcess(command, free_port()):
        pass


def test_server_does_not_outlive_the_program_that_started_it(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "from typebar.bench.process import ServerProcess\n"
        "server = ServerProcess([sys.executable, '-c', 'import os, time; print(os.getpid()); time.sleep(600)'], 1)\n"
        "server._wait = lambda: None\n"
        "with server:\n"
        "    print(server.pid, flush=True)\n"
        "    import time; time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        pid = int(process.stdout.readline())
        process.terminate()
    assert process.returncode == 128 + 15
    assert not Path("/proc", str(pid)).exists()


def test_footprint_counts_files_and_threads() -> None:
    before = footprint(os.getpid())
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    with Path("/dev/null").open():
        thread.start()
        during = footprint(os.getpid())
    release.set()
    thread.join()
    assert (during.fds, during.threads) == (before.fds + 1, before.threads + 1)
    assert during.rss_anon > 1 << 20


def test_footprint_of_no_process_is_an_error() -> None:
    with pytest.raises(TypebarError, match="cannot be watched"):
        footprint(2**22 + 1)


def test_scenarios_run_and_print(llamacpp: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    async def run() -> tuple[dict[str, float], dict[str, float]]:
        async with Client(llamacpp.url) as client:
            return await chats(client), await turns(client)

    chat_figures, turn_figures = asyncio.run(run())
    assert chat_figures["decode_tps_4"] > 0 and chat_figures["first_token_ms_4"] >= chat_figures["first_byte_ms_4"]
    # A later turn computes less than the first, which has the system message.
    assert 0 < turn_figures["turn_6_new_tokens"] < turn_figures["turn_1_new_tokens"]
    print_table("chats", {"typebar": [chat_figures], "llama.cpp": [chat_figures]})
    assert "decode_tps_4" in capsys.readouterr().out


def test_ratio_is_above_one_where_typebar_is_better(capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = {"decode_tps_4": 30.0, "first_token_ms_4": 20.0}, {"decode_tps_4": 10.0, "first_token_ms_4": 80.0}
    print_table("chats", {"typebar": [ours], "llama.cpp": [theirs]})
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()[-2:]] == ["3.00", "4.00"]
