"""`typebar serve` whose engine does what a file says, read before every step.

    run    as ever        block  the step does not return until the file says something else
    slow   0.2 s longer   fail   the step raises what nobody expects
    lose   requests are accepted and never reach the engine

A program: `python faulty_server.py FILE serve MODEL …`.
"""

import sys
import time
from pathlib import Path
from typing import Any

from typebar.__main__ import main
from typebar.engine.engine import Engine
from typebar.engine.worker import Worker

fault = Path(sys.argv.pop(1))
sound_step, sound_submit = Engine.step, Worker.submit


def step(self: Engine) -> Any:
    while (word := fault.read_text()) == "block":
        time.sleep(0.02)
    if word == "fail":
        raise AssertionError("a bug in the engine")
    time.sleep(0.2 if word == "slow" else 0)
    return sound_step(self)


def submit(self: Worker, *arguments: Any) -> None:
    if fault.read_text() != "lose":
        sound_submit(self, *arguments)


Engine.step, Worker.submit = step, submit  # type: ignore[method-assign]
main()
