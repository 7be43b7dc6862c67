"""Programs of a model: which of them count as done, and what they cannot do."""

import os
import time
from pathlib import Path

import pytest

from typebar.eval.sandbox import runs_to_its_end


def test_a_program_that_comes_to_its_end() -> None:
    assert runs_to_its_end("import math, re, collections\nassert math.gcd(4, 6) == 2")
    assert runs_to_its_end("if __name__ == '__main__':\n    raise SystemExit('a demonstration')")
    assert runs_to_its_end("def open(*names): raise OSError\nos = None")


@pytest.mark.parametrize(
    "program",
    [
        "assert 1 == 2",
        "raise SystemExit(0)",
        "import os\nos._exit(0)",
        "import os\nos.kill(os.getpid(), 9)",
        "this is not Python",
        "x = bytearray(4 << 30)",
        "open('big', 'wb').write(bytes(2 << 20))",
        "files = [open(f'{n}', 'w') for n in range(100)]",
        "input()",
        "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (0, 0))\nwhile True: pass",
    ],
    ids=lambda program: program.splitlines()[-1],
)
def test_a_program_that_does_not(program: str) -> None:
    assert not runs_to_its_end(program)


@pytest.mark.parametrize(
    "program", ["while True: pass", "import time\ntime.sleep(1000)", "try:\n while 1: pass\nfinally: 0"]
)
def test_a_program_without_end_is_stopped(program: str) -> None:
    assert not runs_to_its_end(program, seconds=1)


def test_environment_and_standard_input_are_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "42")
    assert runs_to_its_end("import os, sys\nassert 'A_SECRET' not in os.environ and sys.stdin.read() == ''")


def test_files_go_to_a_folder_that_is_deleted(tmp_path: Path) -> None:
    note = tmp_path / "where"
    assert runs_to_its_end(f"import os\nopen('here', 'w').close()\nopen({str(note)!r}, 'w').write(os.getcwd())")
    assert note.read_text() and not Path(note.read_text()).exists()


def test_what_it_started_is_ended(tmp_path: Path) -> None:
    """Where root runs the tests; anyone else's program cannot start anything."""
    note = tmp_path / "pid"
    program = (
        "import subprocess\nchild = subprocess.Popen(['sleep', '1000'])\n"
        f"open({str(note)!r}, 'w').write(str(child.pid))\n"
    )
    assert runs_to_its_end(program) is (os.geteuid() == 0)
    if note.exists():
        while _runs(int(note.read_text())):  # killed, but the system takes its time
            time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"
