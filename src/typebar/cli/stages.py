"""Progress of long commands on stderr: a bar for each stage on a terminal, a line elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from typebar.cli.options import is_dumb
from typebar.model.report import to_stderr


@contextmanager
def stage(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A stage of `total` units. The context is a function that is told of those done since the last time."""
    if is_dumb(sys.stderr):
        to_stderr(title)
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.advance(task, done)
