"""Programs of a model: which of them count as done, and what they cannot do."""

import os
import time
from pathlib import Path
from queue import Queue

import pytest

from typebar.engine.params import SamplingParams
from typebar.eval.problems import Problem, Task
from typebar.eval.sandbox import runs_to_its_end
from typebar.eval.tasks import run_task
from typebar.llm import LLM


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


def test_an_interrupt_ends_the_programs_of_other_problems(tiny_path: Path, tmp_path: Path) -> None:
    note = tmp_path / "runs"
    sleeps = f"open({str(note)!r}, 'w').close()\nimport time\ntime.sleep(10**6)"
    verdicts: Queue[bool] = Queue()

    def interrupt(answer: str) -> bool:
        while not note.exists():
            time.sleep(0.01)
        raise KeyboardInterrupt

    def judge(answer: str) -> bool:
        verdicts.put(runs_to_its_end(sleeps, seconds=10**5))
        return False

    ask = [{"role": "user", "content": "a"}]
    problems = [Problem("first", ask, interrupt), Problem("second", ask, judge)]
    task = Task("both", SamplingParams(temperature=0, max_tokens=1), lambda: problems)
    with LLM(str(tiny_path)) as llm, pytest.raises(KeyboardInterrupt):
        run_task(llm, task, problems, lambda done: None)
    assert verdicts.get() is False


def test_what_it_leaves_does_not_change_the_verdict(tmp_path: Path) -> None:
    note = tmp_path / "where"
    program = (
        f"import os\nopen({str(note)!r}, 'w').write(os.getcwd())\nfor _ in range(3000):\n os.mkdir('d'); os.chdir('d')"
    )
    assert runs_to_its_end(program)
    assert not Path(note.read_text()).exists()


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"
