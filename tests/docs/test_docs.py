"""What the documents say exists, and their examples run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from typebar.__main__ import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PATH = re.compile(r"`((?:src|native|tests|docs|tools)/[\w./-]+)`")
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)[^)]*\)")


def help_of(command: str) -> str:
    result = subprocess.run(
        [sys.executable, "-m", "typebar", command, "--help"],
        capture_output=True, text=True, check=True, env={"COLUMNS": "200", "NO_COLOR": "1", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    return result.stdout


def section(title: str) -> str:
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def mentions_flag(text: str, flag: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", text) is not None


def test_command_table_lists_every_command() -> None:
    assert re.findall(r"^\| `typebar (\w+)", section("Commands"), re.MULTILINE) == list(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_flags_in_a_row_are_those_of_its_command(command: str) -> None:
    row = re.search(rf"^\| `typebar {command}\b.*$", section("Commands"), re.MULTILINE)
    assert row
    text = help_of(command)
    for flag in re.findall(r"--[\w-]+", row[0]):
        assert mentions_flag(text, flag), f"typebar {command} has no {flag}"


@pytest.mark.parametrize("command", ["run", "chat"])
def test_flags_used_most_exist(command: str) -> None:
    paragraph = section("Commands").split("Those used most")[1]
    flags = re.findall(r"--[\w-]+", paragraph)
    text = help_of(command)
    assert len(flags) > 5
    assert [flag for flag in flags if not mentions_flag(text, flag)] == []


def test_every_flag_in_the_readme_is_known_somewhere() -> None:
    known = "".join(help_of(command) for command in COMMANDS) + "--help"
    assert [
        flag for flag in set(re.findall(r"(?<![\w-])--[a-z][\w-]+", README)) if not mentions_flag(known, flag)
    ] == []


def test_make_targets_exist() -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = re.findall(r"^make (\w+)", section("Start"), re.MULTILINE)
    assert named
    assert set(named) <= set(targets)


def test_environment_variables_are_read() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    for name in set(re.findall(r"`((?:TYPEBAR|HF)_[A-Z_]+)`", README)):
        assert name in sources, name


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_named_files_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    missing = [name for name in PATH.findall(text) if not (ROOT / name).exists()]
    missing += [link for link in LINK.findall(text) if not (document.parent / link).exists()]
    assert missing == []


def test_chat_commands_exist() -> None:
    from typebar.cli.chat import HELP

    row = re.search(r"^\| `typebar chat`.*$", section("Commands"), re.MULTILINE)
    assert row
    assert [name for name in re.findall(r"`(/\w+)`", row[0]) if name not in HELP] == []


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_python_example_runs(code: str, coder_path: Path) -> None:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert len(result.stdout) > 20
