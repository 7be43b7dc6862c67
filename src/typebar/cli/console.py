"""Where tables are printed."""

import rich.console


class Console(rich.console.Console):
    """That of rich, but a reader that has gone ends the command as any other: rich would exit with 1."""

    def on_broken_pipe(self) -> None:
        """Called while the BrokenPipeError is handled."""
        raise
