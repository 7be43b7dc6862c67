"""Runs every check and ends with the line `N passed, N failed`: the test cases of pytest and of the native tests.

    python tools/check.py            everything
    python tools/check.py STAGE …    only these stages
    python tools/check.py format     rewrites the sources in the project's format

A stage that fails does not keep the others from running. One that fails in another way than by a test case (a linter, a
compiler, a crash, no test at all) counts as one failure.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import page

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
BUILD = ROOT / "build"
PYTHON_SOURCES = ["src", "tests", "tools"]


@dataclass(frozen=True, slots=True)
class Result:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: "Result") -> "Result":
        return Result(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)


def main(names: list[str]) -> int:
    os.chdir(ROOT)
    os.environ["PATH"] = f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"
    if names == ["format"]:
        return format_sources()
    stages = select(names)
    total, notes = Result(), []
    for name, stage in stages.items():
        print(f"\n== {name}", flush=True)
        start = time.monotonic()
        result = stage()
        total += result
        verdict = "FAILED" if result.failed else "ok"
        notes.append(f"{verdict:6} {name:8} {time.monotonic() - start:6.1f} s  {summary(result)}")
    print("\n" + "\n".join(notes))
    print(summary(total), flush=True)
    return 1 if total.failed else 0


def select(names: list[str]) -> dict[str, Callable[[], Result]]:
    stages: dict[str, Callable[[], Result]] = {
        "lint": lint,
        "native": lambda: native_tests("native"),
        "asan": lambda: native_tests("asan"),
        "tsan": lambda: native_tests("tsan", without_address_randomization()),
        "aarch64": lambda: native_tests("aarch64", ["qemu-aarch64"]),
        "page": vitest,
        "pytest": pytest,
    }
    if platform.machine() == "aarch64":
        del stages["aarch64"]  # "native" is that
    if unknown := set(names) - set(stages):
        sys.exit(f"check: unknown stage {', '.join(sorted(unknown))}; there are {', '.join(stages)} and format")
    return {name: stage for name, stage in stages.items() if not names or name in names}


def summary(result: Result) -> str:
    skipped = f", {result.skipped} skipped" if result.skipped else ""
    return f"{result.passed} passed, {result.failed} failed{skipped}"


def native_sources() -> list[str]:
    return [str(path) for path in sorted((ROOT / "native").rglob("*")) if path.suffix in {".h", ".cpp", ".inc"}]


def lint() -> Result:
    commands = [
        # Without its cache, which knows nothing of files that moved and so of the order of imports.
        ["ruff", "check", "--no-cache", "--quiet", *PYTHON_SOURCES],
        ["ruff", "format", "--check", "--quiet", *PYTHON_SOURCES],
        ["mypy", "--strict", "src"],
        ["clang-format", "--dry-run", "-Werror", *native_sources()],
    ]
    return Result(failed=sum(run(command)[0] != 0 for command in commands))


def format_sources() -> int:
    commands = [
        ["ruff", "check", "--fix", *PYTHON_SOURCES],
        ["ruff", "format", *PYTHON_SOURCES],
        ["clang-format", "-i", *native_sources()],
    ]
    return max([run(command)[0] for command in commands])


def native_tests(preset: str, launcher: list[str] | None = None) -> Result:
    """Builds a preset of CMakePresets.json and runs its doctest program."""
    if not (BUILD / preset / "build.ninja").exists() and run(["cmake", "--preset", preset])[0]:
        return Result(failed=1)
    if run(["cmake", "--build", "--preset", preset])[0]:
        return Result(failed=1)
    code, output = run([*(launcher or []), str(BUILD / preset / "native_tests"), "--no-colors"])
    counts = re.search(r"test cases:\s*(\d+)\s*\|\s*(\d+) passed\s*\|\s*(\d+) failed", output)
    passed, failed = (int(counts[2]), int(counts[3])) if counts else (0, 0)
    return judged(code, Result(passed, failed))


def without_address_randomization() -> list[str]:
    """The shadow memory of older ThreadSanitizers collides with a kernel that randomizes 32 bits of mappings."""
    setarch = shutil.which("setarch")
    return [setarch, "-R"] if setarch and subprocess.run([setarch, "-R", "true"]).returncode == 0 else []


def vitest() -> Result:
    """Types and unit tests of the chat page."""
    node = page.find_node([Path(folder) for folder in sys.path])
    if node is None:
        print(f"no Node.js: {page.REMEDY}", flush=True)
        return Result(skipped=1)
    if not page.install(node):
        return Result(failed=1)
    os.environ["PATH"] = f"{node}{os.pathsep}{os.environ['PATH']}"
    npm = ["npm", "--prefix", str(page.SOURCES), "run", "--silent"]
    types = Result(failed=int(run([*npm, "check"])[0] != 0))
    report = BUILD / "vitest.json"
    report.unlink(missing_ok=True)
    code, _ = run([*npm, "test", "--", "--reporter=default", "--reporter=json", f"--outputFile={report}"])
    if not report.exists():
        return types + Result(failed=1)
    counts = json.loads(report.read_text())
    return types + judged(code, Result(counts["numPassedTests"], counts["numFailedTests"], counts["numPendingTests"]))


def pytest() -> Result:
    report = BUILD / "pytest.xml"
    report.unlink(missing_ok=True)
    code, _ = run([sys.executable, "-m", "pytest", f"--junitxml={report}", "--durations=15"])
    if not report.exists():
        return Result(failed=1)
    suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
    tests, failures, errors, skipped = (
        sum(int(suite.get(key, "0")) for suite in suites) for key in ("tests", "failures", "errors", "skipped")
    )
    return judged(code, Result(tests - failures - errors - skipped, failures + errors, skipped))


def judged(code: int, result: Result) -> Result:
    """Adds a failure where the exit code tells of one that the counts do not, or where nothing ran."""
    hidden = result.failed == 0 and (code != 0 or result.passed == 0)
    return result + Result(failed=1) if hidden else result


def run(command: list[str]) -> tuple[int, str]:
    """Exit code and output, which is also shown as it comes."""
    shown = " ".join(command)
    print("$", shown if len(shown) < 160 else shown[:150] + " …", flush=True)
    lines = []
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        print(error, flush=True)
        return 127, str(error)
    with process:
        assert process.stdout
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    return process.returncode, "".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
