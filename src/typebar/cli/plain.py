"""The command line of `typebar serve` read without typer, which costs 0.15 s to start and 10 MB while it runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from typebar.cli.settings import SETTINGS, Setting

_BY_FLAG = {flag: setting for setting in SETTINGS.values() for flag in (setting.flag, *setting.more_flags)}
_OFF = {f"--no-{name.replace('_', '-')}": setting for name, setting in SETTINGS.items() if setting.kind == "switch"}


def serve(arguments: Sequence[str]) -> int | None:
    """Run the server; its exit code. None where typer has to read the arguments: they ask for help or are wrong."""
    flags = read(arguments)
    if flags is None:
        return None
    from typebar.cli.layers import resolve

    settings = resolve(flags, os.environ)
    from typebar.server.lifecycle import serve as run_server

    return run_server(settings)


def read(arguments: Sequence[str]) -> dict[str, Any] | None:
    """Values by name, as typer gives them to the command. None for anything but well-formed flags and one model."""
    flags: dict[str, Any] = {}
    words = list(arguments)
    while words:
        word, equals, text = words.pop(0).partition("=")
        if word in _OFF and not equals:
            flags[_OFF[word].name] = False
            continue
        setting = _BY_FLAG.get(word) if word.startswith("-") else SETTINGS["model"]
        is_short = word.startswith("-") and not word.startswith("--")
        if setting is None or (equals and (is_short or setting.kind == "switch")):
            return None
        if not word.startswith("-"):
            text = word + equals + text
        elif not equals and setting.kind != "switch":
            text = words.pop(0) if words else ""
        if not _add(flags, setting, text):
            return None
    return None if flags.get("preset") == "help" else flags


def _add(flags: dict[str, Any], setting: Setting, text: str) -> bool:
    """Take in a value; False where it is none, or the model is told twice."""
    name = setting.name
    if setting.kind == "switch":
        flags[name] = True
        return True
    if not text or text.startswith("-") or (name == "model" and name in flags):
        return False
    if setting.kind == "list":
        flags.setdefault(name, []).append(text)
        return True
    if not text.isascii() and setting.kind in ("integer", "number"):  # typer takes no other digits
        return False
    try:
        flags[name] = setting.from_text(text) if setting.kind in ("integer", "number") else text
    except ValueError:
        return False
    return True
