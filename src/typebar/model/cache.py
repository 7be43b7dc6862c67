"""The model cache: where fetched files lie, what is remembered about them, and the lock around a download.

    <cache>/models/<key>/<file>.gguf        the model
    <cache>/models/<key>/model.json         its record: path, size, mtime and sha256 of each file
    <cache>/models/<key>/*.partial          what an interrupted download left, for resume
    <cache>/locks/<key>.lock                held while <key> is being fetched

Files from Hugging Face lie in its own shared cache; the record points at them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from typebar.errors import TypebarError

RECORD_VERSION = 1


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A file whose digest was computed when it had this size (bytes) and mtime (ns)."""

    path: Path
    size: int
    mtime_ns: int
    sha256: str

    def unchanged(self) -> bool:
        """Whether the file is there with the size and mtime it was checked with."""
        try:
            stat = self.path.stat()
        except OSError:
            return False
        return stat.st_size == self.size and stat.st_mtime_ns == self.mtime_ns


@dataclass(frozen=True, slots=True)
class Record:
    """What the cache knows about one model: its files, or the model that stands in for it."""

    name: str
    source: str
    files: tuple[CachedFile, ...]
    substitute: str | None = None


def cache_dir() -> Path:
    """`TYPEBAR_CACHE`, else `$XDG_CACHE_HOME/typebar`, else `~/.cache/typebar`."""
    if own := os.environ.get("TYPEBAR_CACHE"):
        return Path(own).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    # The XDG specification tells to ignore a relative path.
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    return root / "typebar"


def model_dir(key: str) -> Path:
    return cache_dir() / "models" / key


def megabytes(size: int) -> str:
    """`size` bytes for a person: "491 MB", "2.1 GB"."""
    if size >= 10**9:
        return f"{size / 1e9:.1f} GB"
    return f"{size / 1e6:.0f} MB" if size >= 10**6 else f"{size / 1e3:.1f} kB"


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def git_sha1_file(path: Path) -> str:
    """What git names a blob of these bytes: the SHA-1 of "blob", their number, a NUL and the bytes."""
    begin = partial(hashlib.sha1, b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        return hashlib.file_digest(file, begin).hexdigest()


def describe(path: Path) -> CachedFile:
    """Hashes `path` and notes the size and mtime that go with the digest."""
    stat = path.stat()
    return CachedFile(path, stat.st_size, stat.st_mtime_ns, sha256_file(path))


@contextlib.contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Makes `folder`, and turns a refused or failed write inside it into an error that names it and the remedy."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise TypebarError(f"the disk of {folder} is full: free some space, or set TYPEBAR_CACHE") from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            where = error.filename or folder
            raise TypebarError(f"cannot write to {where} ({error.strerror}): set TYPEBAR_CACHE") from error
        raise


def require_space(folder: Path, need: int) -> None:
    """Raises TypebarError unless the disk of `folder` has `need` bytes free."""
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(there).free
    if free < need:
        raise TypebarError(
            f"not enough space in {folder}: {megabytes(need)} needed, {megabytes(free)} free; "
            "free some, or set TYPEBAR_CACHE to a folder on another disk"
        )


def read_record(key: str) -> Record | None:
    """The record of `key`, or None if there is none that this version can read."""
    folder = model_dir(key)
    try:
        data: dict[str, Any] = json.loads((folder / "model.json").read_text())
        if data["version"] != RECORD_VERSION:
            return None
        # A relative path is relative to the record, so that the cache can be moved.
        files = tuple(
            CachedFile(folder / file["path"], int(file["size"]), int(file["mtime_ns"]), str(file["sha256"]))
            for file in data["files"]
        )
        return Record(str(data["name"]), str(data["source"]), files, data["substitute"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_record(key: str, record: Record) -> None:
    folder = model_dir(key)
    data = asdict(record) | {"version": RECORD_VERSION}
    for file in data["files"]:
        path: Path = file["path"]
        file["path"] = str(path.relative_to(folder) if path.is_relative_to(folder) else path)
    write_json(folder / "model.json", data)


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Writes `data` to a temporary name and renames it; the target where `path` is a link.

    What is no regular file, as a device or a pipe, is written to. ValueError for a number that is not finite.
    """
    text = json.dumps(data, indent=1, allow_nan=False)
    if path.exists() and not path.is_file():
        path.write_text(text)
        return
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def records() -> Iterator[tuple[str, Record | None]]:
    """Every key in the cache with its record; None where only an unfinished download lies."""
    models = cache_dir() / "models"
    if models.is_dir():
        for folder in sorted(models.iterdir()):
            if folder.is_dir():
                yield folder.name, read_record(folder.name)


def partial_bytes(key: str) -> int:
    """Bytes that unfinished downloads of `key` occupy."""
    return sum(path.stat().st_size for path in model_dir(key).glob("*.partial"))


@contextlib.contextmanager
def locked(key: str, on_wait: Callable[[], None] | None) -> Iterator[None]:
    """Holds the lock of `key`. If another process has it: calls `on_wait` and waits, or raises without `on_wait`."""
    folder = cache_dir() / "locks"
    with writable(folder):
        file = (folder / f"{key}.lock").open("w")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if on_wait is None:
                raise TypebarError(f"{key} is being downloaded by another process: stop that first") from None
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            # Some network file systems have no locks. Renames stay atomic, so the worst is a double download.
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                raise
        yield
