"""The quick reading of serve's command line: what it reads is what typer reads, and the rest it leaves to typer."""

import socket
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from typebar.cli.plain import read
from typebar.cli.serve import serve
from typebar.cli.settings import SETTINGS

VALUES = {"text": "some text", "list": "one", "integer": "12", "number": "0.5", "size": "512M"}


def typer_reads(arguments):
    """The values that typer gives to the command, without those that were not given; None where it refuses."""
    found = {}

    def command(model_argument=None, **flags):
        given = {name: value for name, value in flags.items() if value is not None}
        found.update({"model": model_argument} if model_argument is not None else {}, **given)

    command.__signature__ = serve.__signature__
    app = typer.Typer(add_completion=False)
    app.command()(command)
    return found if CliRunner().invoke(app, arguments).exit_code == 0 else None


def every_flag():
    for setting in SETTINGS.values():
        for flag in (setting.flag, *setting.more_flags):
            yield [flag] if setting.kind == "switch" else [flag, VALUES[setting.kind]]
        if setting.kind == "switch":
            yield [f"--no-{setting.flag[2:]}"]
        else:
            yield [f"{setting.flag}={VALUES[setting.kind]}"]


@pytest.mark.parametrize(
    "arguments",
    [
        *every_flag(),
        [],
        ["model.gguf"],
        ["folder/a=b.gguf", "--port", "0"],
        ["--port", "0", "model.gguf", "--log-prompts", "--threads=3"],
        ["--api-key", "a", "--api-key=b=c", "--served-model-name", "x"],
        ["--port", "1", "--port", "2", "--log-prompts", "--no-log-prompts"],
        ["--temperature", "1e-3", "--top-p", "1"],
    ],
    ids=" ".join,
)
def test_reads_what_typer_reads(arguments):
    assert read(arguments) == typer_reads(arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"], ["-h"], ["--preset", "help"], ["--port"], ["--port", ""], ["--port", "x"], ["--port", "1.5"],
        ["--port", "--threads", "2"], ["--prot", "1"], ["--log-prompts=yes"], ["--no-port"], ["a", "b"],
        ["a", "--model", "b"], ["--", "a"], ["-ma"], ["--temperature", "warm"], ["--thread", "2"], [""],
        ["-m=x"], ["--port", "٣"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_leaves_the_rest_to_typer(arguments):
    assert read(arguments) is None


def test_server_runs_without_typer():
    """Up to its listening: the port is taken."""
    code = (
        "import atexit, sys; from typebar.__main__ import main;"
        "atexit.register(lambda: print(*sorted({'typer', 'pydantic', 'rich', 'uvicorn'} & sys.modules.keys())));"
        "main()"
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        arguments = [sys.executable, "-c", code, "serve", "--port", str(taken.getsockname()[1])]
        result = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1 and "cannot listen" in result.stderr
    assert result.stdout == "uvicorn\n"
