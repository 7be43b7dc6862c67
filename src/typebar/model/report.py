"""What a person sees of a download: one-line notices, and a progress bar where stderr is a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Advance = Callable[[int], None]


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Report:
    """`log` takes one line; `bars` says whether progress bars may be drawn."""

    log: Callable[[str], None] = to_stderr
    bars: bool = True

    @contextlib.contextmanager
    def bar(self, total: int | None) -> Iterator[Advance]:
        """Yields a function that is told how many of `total` bytes are there (None: size not known)."""
        if not (self.bars and sys.stderr.isatty()):
            yield lambda done: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn
        from rich.progress import TransferSpeedColumn as SpeedColumn

        columns = (BarColumn(), DownloadColumn(), SpeedColumn())
        with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("", total=total)
            yield lambda done: progress.update(task, completed=done)
