"""The `typebar` command. Only the module of the command that was asked for is imported."""

import functools
import io
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import typer

COMMANDS = {
    "run": "typebar.cli.run",
    "chat": "typebar.cli.chat",
    "serve": "typebar.cli.serve",
    "pull": "typebar.cli.pull",
    "rm": "typebar.cli.pull",
    "inspect": "typebar.cli.inspect",
    "eval": "typebar.cli.eval",
    "compare": "typebar.cli.compare",
    "quantize": "typebar.cli.quantize",
    "bench": "typebar.cli.bench",
    "doctor": "typebar.cli.doctor",
}
INTERRUPTED = 130  # 128 + SIGINT, as shells report it
BROKEN_PIPE = 141  # 128 + SIGPIPE


def main() -> None:
    """Run the command line. Exit codes: 0, 1 for a failure, 2 for wrong usage, 130 after Ctrl-C."""
    _open_missing_streams()
    _print_what_can_be_encoded()
    arguments = sys.argv[1:]
    if arguments[:1] in (["--version"], ["-V"]):
        from typebar import __version__

        print(f"typebar {__version__}")
        return
    _guarded(_run)(arguments)


def _open_missing_streams() -> None:
    """Gives closed standard streams the null device, which also keeps their numbers from the next file opened."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def _print_what_can_be_encoded() -> None:
    """A question mark for another character, where the environment asks for an encoding such as Latin-1."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")


def _run(arguments: list[str]) -> None:
    wanted = arguments[0] if arguments else ""
    if wanted == "serve":
        from typebar.cli import plain

        if (code := plain.serve(arguments[1:])) is not None:
            sys.exit(code)
    import typer

    app = typer.Typer(
        name="typebar",
        help="Small language models at typewriter speed on an ordinary CPU. `typebar --version` tells the version.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(lambda: None)  # keeps the name of the command in the usage where only one is registered
    for name in [wanted] if wanted in COMMANDS else COMMANDS:
        command: Callable[..., Any] | typer.Typer = getattr(import_module(COMMANDS[name]), name)
        if isinstance(command, typer.Typer):
            app.add_typer(_guarded_group(command), name=name)
        else:
            app.command(name)(_guarded(command))
    app(args=arguments)


def _guarded_group(group: "typer.Typer") -> "typer.Typer":
    """`group` with the errors of each of its commands told that way."""
    for command in group.registered_commands:
        if command.callback:
            command.callback = _guarded(command.callback)
    return group


def _guarded(command: Callable[..., Any]) -> Callable[..., Any]:
    """`command` with its errors as one line on stderr and an exit code."""

    @functools.wraps(command)
    def guarded(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
            sys.stdout.flush()
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        except BrokenPipeError:
            # The reader has gone. Nothing more may be written, not even by the interpreter's own last flush.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(BROKEN_PIPE)
        except OSError as error:
            print(f"typebar: {error}", file=sys.stderr)
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what could not be written stays unwritten
            sys.exit(1)
        except Exception as error:
            from typebar.errors import ParameterError, TypebarError

            if not isinstance(error, TypebarError):
                raise
            print(f"typebar: {error}", file=sys.stderr)
            sys.exit(2 if isinstance(error, ParameterError) else 1)

    return guarded


if __name__ == "__main__":
    main()
