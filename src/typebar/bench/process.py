"""Server processes under measurement: started, watched through /proc, ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from typebar.errors import TypebarError

RUN_TIMEOUT = 3600.0  # of one engine in one round; float32 on a slow machine takes ten minutes
START_TIMEOUT = 600.0
STOP_TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a process holds: open file descriptors, threads, and bytes of anonymous memory (RssAnon)."""

    fds: int
    threads: int
    rss_anon: int


def footprint(pid: int) -> Footprint:
    """The footprint of a process now. TypebarError where it has gone or belongs to somebody else."""
    folder = Path("/proc", str(pid))
    try:
        fds = sum(1 for _ in (folder / "fd").iterdir())
        lines = (folder / "status").read_text().splitlines()
    except OSError as error:
        raise TypebarError(f"process {pid} cannot be watched: {error.strerror}") from error
    status = {key: value.split() for key, _, value in (line.partition(":") for line in lines)}
    if "RssAnon" not in status:
        raise TypebarError(f"process {pid} has ended")
    return Footprint(fds, int(status["Threads"][0]), int(status["RssAnon"][0]) * 1024)


@contextmanager
def busy_process() -> Iterator[int]:
    """The id of a process that only computes, on the last of the processors that this one may use, inside the block."""
    last = max(os.sched_getaffinity(0))
    program = f"import os; os.sched_setaffinity(0, [{last}]); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()  # it has its place
        try:
            yield process.pid
        finally:
            process.kill()


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on at this moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def serve_command(model: str | None, port: int, *options: str) -> list[str]:
    """The command line of `typebar serve`."""
    chosen = ["--model", model] if model else []
    return [sys.executable, "-m", "typebar", "serve", *chosen, "--port", str(port), *options]


class ServerProcess:
    """A server that runs inside a `with` block, in a session of its own, so that Ctrl-C is ours to handle.

    Entering waits until /health is 200; TypebarError with the end of its log where it ends instead. `exit_code`
    and `tail`, the end of its log, are known after the block.
    """

    def __init__(self, command: Sequence[str], port: int) -> None:
        self.command = list(command)
        self.url = f"http://127.0.0.1:{port}"
        self.exit_code: int | None = None
        self.tail = ""

    def __enter__(self) -> Self:
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _end)  # so that this block is left, and the server does not outlive us
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            self.command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, start_new_session=True
        )
        try:
            self._wait()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    def log_tail(self, size: int = 2000) -> str:
        """The last characters that it wrote to stdout and stderr."""
        end = self._log.seek(0, 2)
        self._log.seek(max(0, end - size))
        return self._log.read().decode("utf-8", "replace")

    def _wait(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        with httpx.Client(base_url=self.url, timeout=5, trust_env=False) as client:
            while time.monotonic() < deadline:
                if (code := self._process.poll()) is not None:
                    raise TypebarError(f"the server ended with exit code {code}:\n{self.log_tail()}")
                try:
                    if client.get("/health").is_success:
                        return
                except httpx.TransportError:
                    pass
                time.sleep(0.05)
        raise TypebarError(f"the server was not ready after {START_TIMEOUT:.0f} s:\n{self.log_tail()}")

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self.exit_code = self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self.exit_code = self._process.wait()
        self.tail = self.log_tail()
        self._log.close()


def _end(number: int, frame: object) -> None:
    sys.exit(128 + number)
