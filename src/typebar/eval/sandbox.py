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
from pathlib import Path

from typebar.eval import launch

SECONDS = 10
WALL_FACTOR = 3  # the processors may be busy with the model meanwhile


def runs_to_its_end(program: str, seconds: int = SECONDS) -> bool:
    """Whether a Python program comes to its last line within the limits: no exception, exit or crash before.

    `seconds` of processor time; three times as long where it waits.
    """
    with tempfile.TemporaryDirectory(prefix="typebar-") as folder:
        path, done = Path(folder) / "program.py", Path(folder) / secrets.token_hex(8)
        # The name of the file that says so is not known to the code above the line that writes it.
        end = f"import os\nos.close(os.open({str(done)!r}, os.O_CREAT | os.O_WRONLY))\n"
        path.write_text(f"{program}\n{end}", encoding="utf-8", errors="replace")
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(
            [sys.executable, "-I", launch.__file__, str(path), str(seconds)],
            cwd=folder, env={}, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(WALL_FACTOR * seconds)
        except subprocess.TimeoutExpired:
            return False
        finally:
            _end_group(process)
        return done.exists()


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends what the program may have started, too."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
