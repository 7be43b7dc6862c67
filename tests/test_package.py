"""`pip install .` on a machine with a compiler: a wheel that works away from the sources."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment in which typebar is installed from a copy of what git tracks."""
    folder = tmp_path_factory.mktemp("package")
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    source = folder / "source"
    for name in filter(None, files.decode().split("\0")):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv/bin/python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", str(source)], check=True, stdin=subprocess.DEVNULL)
    return python


def run(python: Path, folder: Path, *arguments: str) -> str:
    """Runs the installed Python in `folder`, without anything that could lead to the sources."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    result = subprocess.run([python, *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_answers_from_another_folder(installed: Path, tmp_path: Path, smollm_path: Path) -> None:
    answer = run(
        installed, tmp_path, "-m", "typebar", "run", "-m", str(smollm_path), "--max-tokens", "8", "--temperature", "0",
        "Say hello.",
    )  # fmt: skip
    assert answer.strip()
    assert (installed.parent / "typebar").exists()


def test_holds_what_it_needs_and_no_more(installed: Path, tmp_path: Path) -> None:
    names = run(
        installed, tmp_path, "-c",
        "import typebar, pathlib; print(*(p.name for p in pathlib.Path(typebar.__file__).parent.rglob('*')))",
    ).split()  # fmt: skip
    assert len([name for name in names if name.startswith("_native") and name.endswith(".so")]) == 1
    assert {"_native.pyi", "py.typed", "mixed.txt", "zh.txt"} <= set(names)
    listed = run(installed, tmp_path, "-m", "pip", "list", "--format=freeze").lower()
    assert "torch" not in listed
    assert "typebar==" in listed


def test_version_is_the_same_everywhere(installed: Path, tmp_path: Path) -> None:
    from typebar import __version__

    assert run(installed, tmp_path, "-m", "typebar", "--version") == f"typebar {__version__}\n"
    script = "from importlib.metadata import version; print(version('typebar'))"
    assert run(installed, tmp_path, "-c", script).strip() == __version__
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"## [{__version__}]" in changelog or "## [Unreleased]" in changelog


def test_importing_stays_light() -> None:
    script = "import sys, typebar; from typebar import LLM; print(*sys.modules)"
    names = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "transformers", "huggingface_hub", "rich", "typer", "gguf"} & set(names)
