"""`typebar serve`: the HTTP server."""

import os
from inspect import Parameter, Signature
from typing import Annotated, Any

import typer

from typebar.cli.layers import resolve
from typebar.cli.settings import PANELS, Kind, Setting
from typebar.presets import listing

# Sizes are read by the same function whether they come from here, the environment or a file.
_TYPES: dict[Kind, Any] = {
    "text": str, "list": list[str], "integer": int, "number": float, "size": str, "switch": bool,
}  # fmt: skip


def serve(model_argument: str | None = None, **flags: Any) -> None:
    """Serve a model over HTTP, as OpenAI's clients and llama-server's expect it.

    Each flag can also be an environment variable (TYPEBAR_MAX_QUEUE for --max-queue; lists separated by commas) or a
    key of the file of --config (max-queue = 16). A flag wins over the environment, that over the file, that over the
    preset. Containers may say MODEL_ID, MAX_MODEL_LEN and QUANTIZE.
    """
    if flags["preset"] == "help":
        print(listing())
        return
    if model_argument is not None:
        if flags["model"] not in (None, model_argument):
            raise typer.BadParameter(f"MODEL is {model_argument} and --model {flags['model']}: give one of them")
        flags["model"] = model_argument
    settings = resolve(flags, os.environ)
    from typebar.server.lifecycle import serve as run_server

    raise typer.Exit(run_server(settings))


def _signature() -> Signature:
    """One parameter a setting, so that what typer offers and what files and environment know is the same list."""
    help = "Catalog name, .gguf file, folder, org/name or URL. Without it: the default model."
    argument = _parameter("model_argument", str, typer.Argument(metavar="MODEL", help=help, show_default=False))
    options = [
        _parameter(setting.name, _TYPES[setting.kind], _option(setting, panel))
        for panel, settings in PANELS.items()
        for setting in settings
    ]
    return Signature([argument, *options])


def _option(setting: Setting, panel: str) -> Any:
    flag = f"{setting.flag}/--no-{setting.flag[2:]}" if setting.kind == "switch" else setting.flag
    return typer.Option(
        flag,
        *setting.more_flags,
        help=f"{setting.help} Default: {setting.default}." if setting.default else setting.help,
        metavar=setting.metavar or ("SIZE" if setting.kind == "size" else None),
        rich_help_panel=panel,
        show_default=False,
    )


def _parameter(name: str, type: Any, info: Any) -> Parameter:
    return Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=Annotated[type | None, info])


serve.__signature__ = _signature()  # type: ignore[attr-defined]
