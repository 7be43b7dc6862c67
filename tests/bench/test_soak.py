"""Short soaks of a real server, and of servers that do wrong."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from typebar.bench import soak as soak_module
from typebar.bench.client import Client
from typebar.bench.gauges import read_gauges
from typebar.bench.mix import Mix
from typebar.bench.process import ServerProcess, free_port, serve_command
from typebar.bench.soak import Soak
from typebar.bench.verdict import Findings, problems
from typebar.bench.workload import Texts, scripts
from typebar.errors import ParameterError


@pytest.fixture(scope="module")
def server(tiny_path: Path) -> Iterator[ServerProcess]:
    port = free_port()
    with ServerProcess(serve_command(str(tiny_path), port, "--kv-memory", "2M", "--threads", "1"), port) as process:
        yield process
    assert process.exit_code == 0


def short(**changes: object) -> Mix:
    settings = {
        "minutes": None, "requests": 120, "concurrency": 8, "websockets": 3, "bad": 0.2, "pool": 15, "warmup": 30,
        "sample_every": 0.05, "timeout": 120.0,
    }  # fmt: skip
    return Mix(**{**settings, **changes})  # type: ignore[arg-type]


def run(server: ServerProcess, mix: Mix) -> Findings:
    return asyncio.run(Soak(mix, server.url, pid=server.pid).run())


def test_short_soak_finds_nothing_wrong(server: ServerProcess) -> None:
    findings = run(server, short())
    assert problems(findings) == []
    assert findings.requests >= 120
    for kind in ("completed", "closed", "cancelled", "refused"):
        assert findings.counts[kind] > 0, f"nothing was {kind}"
    assert findings.latencies.gap and findings.latencies.cancel and findings.latencies.health
    assert findings.warm is not None and findings.samples[-1].gauges.requests == 0


def test_server_is_idle_after_a_soak(server: ServerProcess) -> None:
    async def gauges_after() -> int:
        await Soak(short(requests=20), server.url).run()
        async with Client(server.url) as client:
            return (await read_gauges(client)).requests

    assert asyncio.run(gauges_after()) == 0


def test_other_text_than_alone_is_noticed(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers are recorded with another number of tokens than is then asked for."""
    soak = Soak(short(requests=20, cancel=0.0, bad=0.0), server.url)
    prepare = soak_module.prepare

    async def prepare_and_change(*args: object) -> object:
        workload = await prepare(*args)  # type: ignore[arg-type]
        for chat in workload.chats:
            chat.body["max_tokens"] += 1
        return workload

    monkeypatch.setattr(soak_module, "prepare", prepare_and_change)
    findings = asyncio.run(soak.run())
    assert findings.counts["wrong"] > 0
    assert "answers differ" in problems(findings)[0]


def test_answer_without_an_end_is_noticed(server: ServerProcess) -> None:
    findings = run(server, short(requests=10, cancel=0.0, bad=0.0, websockets=0, timeout=0.0))
    assert findings.counts["failed"] >= 10
    assert "had no end after 0 s" in problems(findings)[0]


def test_same_seed_asks_the_same() -> None:
    import random

    def drawn(seed: int) -> list[object]:
        return list(scripts(random.Random(seed), Texts(3.0), 4096, 40, 0.2))

    assert drawn(1) == drawn(1) != drawn(2)


def test_scripts_have_the_wanted_number_of_turns() -> None:
    import random

    for seed in range(20):
        drawn = list(scripts(random.Random(seed), Texts(3.0), 4096, 40, 0.2))
        assert sum(len(script.turns) for script in drawn) == 40
        kinds = {script.name.rsplit(" ", 1)[0] for script in drawn}
        assert kinds == {"long", "shared system", "multi-turn", "short"}


@pytest.mark.parametrize("wrong", [{"cancel": 1.5}, {"concurrency": 0, "websockets": 0}, {"pool": 0}])
def test_mix_that_cannot_be_run_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ParameterError):
        short(**wrong)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "typebar", "bench", "soak", *arguments]


def test_command_soaks_a_server_of_its_own(coder_path: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    settings = ["--requests", "20", "--concurrency", "4", "--websockets", "1", "--pool", "5", "--long", "0"]
    result = subprocess.run(
        command("-m", str(coder_path), *settings, "--json", str(report)),
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    found = json.loads(report.read_text())["problems"]
    # So few requests do not fill the KV cache; nothing else may be wrong.
    assert [problem for problem in found if "could not be judged" not in problem] == [], result.stdout
    assert result.returncode == (1 if found else 0)
    assert "RSSANON" in result.stdout and "Traceback" not in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_reports_what_was_seen(server: ServerProcess, number: signal.Signals) -> None:
    process = subprocess.Popen(
        command("--url", server.url, "--pid", str(server.pid), "--minutes", "30", "--pool", "4"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        _wait_for_load(server)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, stdout + stderr
    assert "interrupted" in stdout and "nothing wrong" in stdout and "Traceback" not in stderr


def test_server_that_dies_ends_the_soak(tiny_path: Path) -> None:
    port = free_port()
    with ServerProcess(serve_command(str(tiny_path), port, "--threads", "1"), port) as process:

        async def soak_and_kill() -> Findings:
            soaking = asyncio.create_task(Soak(short(requests=None), process.url, pid=process.pid).run())
            while not soaking.done() and (await _running(process)) < 4:
                await asyncio.sleep(0.02)
            os.kill(process.pid, signal.SIGKILL)
            return await soaking

        findings = asyncio.run(soak_and_kill())
    assert findings.counts["failed"] > 0 and problems(findings)


async def _running(process: ServerProcess) -> int:
    async with Client(process.url) as client:
        return (await read_gauges(client)).requests


def _wait_for_load(process: ServerProcess) -> None:
    while asyncio.run(_running(process)) < 4:
        time.sleep(0.05)
