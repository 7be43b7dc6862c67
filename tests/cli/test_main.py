import pytest
from commands import typebar

import typebar as package
from typebar.__main__ import COMMANDS


def test_version():
    assert typebar("--version").stdout == f"typebar {package.__version__}\n"


def test_help_lists_every_command():
    result = typebar("--help")
    assert result.returncode == 0 and all(f" {name} " in result.stdout for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command(command):
    result = typebar(command, "--help")
    assert result.returncode == 0 and f"typebar {command}" in result.stdout.replace("python -m typebar", "typebar")


def test_unknown_command():
    result = typebar("rnu")
    assert result.returncode == 2 and "rnu" in result.stderr and "Traceback" not in result.stderr
