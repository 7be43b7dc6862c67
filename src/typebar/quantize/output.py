"""What is written appears under its name when it is whole, and leaves nothing behind where it fails."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from typebar.errors import TypebarError
from typebar.model.cache import megabytes


def check_new(path: Path) -> None:
    """TypebarError where something is there already, or its folder cannot be written."""
    if path.exists() or path.is_symlink():
        raise TypebarError(f"{path} exists already: give another name, or delete it first")
    folder = path.absolute().parent
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise TypebarError(f"{path} cannot be written: make the folder {folder}, or write elsewhere")


def check_space(path: Path, nbytes: int) -> None:
    """TypebarError where the disk has less than `nbytes` free."""
    free = shutil.disk_usage(path.absolute().parent).free
    if free < nbytes:
        raise TypebarError(f"{path} takes {megabytes(nbytes)}, its disk has {megabytes(free)} free: write elsewhere")


@contextmanager
def made_whole(path: Path) -> Iterator[Path]:
    """A name to write a file or folder under, which is renamed to `path` at the end or deleted after an error."""
    part = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield part
        check_new(path)
        part.rename(path)
    finally:
        if part.is_dir():
            shutil.rmtree(part)
        else:
            part.unlink(missing_ok=True)
