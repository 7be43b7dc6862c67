"""Programs that a model wrote, each run in a process of its own with limits on time, memory and files.

It guards against mistakes, not against malice: without privileges a process can neither be cut off the network nor kept
from reading what its user may read.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from typebar.eval import launch

SECONDS = 10
WALL_FACTOR = 3  # the processors may be busy with the model meanwhile

_running: set[subprocess.Popen[bytes]] = set()


def runs_to_its_end(program: str, seconds: int = SECONDS) -> bool:
    """Whether a Python program comes to its last line within the limits: no exception, exit or crash before.

    `seconds` of processor time; three times as long where it waits.
    """
    with _temporary_folder() as folder:
        path, done = folder / "program.py", folder / secrets.token_hex(8)
        # The name of the file that says so is not known to the code above the line that writes it.
        end = f"import os\nos.close(os.open({str(done)!r}, os.O_CREAT | os.O_WRONLY))\n"
        path.write_text(f"{program}\n{end}", encoding="utf-8", errors="replace")
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(
            [sys.executable, "-I", launch.__file__, str(path), str(seconds)],
            cwd=folder, env={}, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True,
        )  # fmt: skip
        _running.add(process)
        try:
            process.wait(WALL_FACTOR * seconds)
        except subprocess.TimeoutExpired:
            return False
        finally:
            _running.discard(process)
            _kill_group(process)
            process.wait()
        return done.exists()


def end_running() -> None:
    """Ends the programs that other threads wait for: they count as not done."""
    for process in _running.copy():
        _kill_group(process)


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    """Removed by rm, which follows folders of any depth; what a program still running adds meanwhile stays there."""
    folder = tempfile.mkdtemp(prefix="typebar-")
    try:
        yield Path(folder)
    finally:
        subprocess.run(["rm", "-rf", folder], stderr=subprocess.DEVNULL, check=False)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """With what the program may have started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
