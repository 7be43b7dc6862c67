"""`typebar pull` and `typebar rm`: what lies in the model cache."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from typebar.errors import TypebarError
from typebar.model import cache
from typebar.model.catalog import CATALOG, DEFAULT_MODEL, find, source_name
from typebar.model.download import local_path, parse, resolve_model
from typebar.model.report import to_stderr


def pull(
    name: Annotated[
        str | None,
        typer.Argument(help="Catalog name, org/name, org/name:file or URL. Without it: the default model."),
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="Show the models, and which are here.")] = False,
) -> None:
    """Fetch a model into the cache and print the path of its file or folder."""
    if show:
        _print_table()
        return
    print(resolve_model(name, retry=True).path)


def rm(
    name: Annotated[str, typer.Argument(help="The model, as `typebar pull --list` names it.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a model from the cache."""
    if find(name) is None and local_path(name) is not None:
        raise TypebarError(f"{name} is your own file: typebar deletes only what it fetched")
    model = parse(name)
    record = cache.read_record(model.key)
    if record and record.substitute and not record.files:
        raise TypebarError(f"{model.name} is not in the cache: {record.substitute} serves instead and can be deleted")
    if not cache.model_dir(model.key).is_dir():
        raise TypebarError(f"{model.name} is not in the cache: `typebar pull --list` shows what is")
    with cache.locked(model.key, None):
        holding = _holding(model.key)
        if not yes and not _confirmed(model.name, holding):
            to_stderr("nothing was deleted")
            raise typer.Exit(1)
        for path in holding.shared:
            to_stderr(f"deleting {path} from the Hugging Face cache, which other programs share")
        _delete(model.key, holding)
    print(f"{model.name} is deleted: {holding.size} bytes ({cache.megabytes(holding.size)}) freed")


@dataclass(frozen=True, slots=True)
class _Holding:
    """What deleting a model takes away: its own files, those in the shared cache, and bytes on disk."""

    own: tuple[Path, ...]
    shared: tuple[Path, ...]
    size: int


def _holding(key: str) -> _Holding:
    folder = cache.model_dir(key)
    own = tuple(path for path in folder.iterdir() if path.is_file())
    record = cache.read_record(key)
    recorded = record.files if record else ()
    shared = tuple(file.path for file in recorded if folder not in file.path.parents and file.path.exists())
    freed = {_real(path) for path in own} | {_real(path) for path in shared if not _used_elsewhere(path)}
    # The record itself is not worth counting.
    return _Holding(own, shared, sum(path.stat().st_size for path in freed if path.suffix != ".json"))


def _real(path: Path) -> Path:
    return path.resolve()


def _used_elsewhere(link: Path) -> bool:
    """Whether another snapshot in the shared cache points at the same blob as `link`."""
    blob = link.resolve()
    if not link.is_symlink():
        return False
    snapshots = blob.parent.parent / "snapshots"
    return any(path != link and path.is_symlink() and path.resolve() == blob for path in snapshots.rglob("*"))


def _confirmed(name: str, holding: _Holding) -> bool:
    if not sys.stdin.isatty():
        raise TypebarError(f"deleting {name} must be confirmed: add --yes")
    for path in holding.shared:
        to_stderr(f"{path} lies in the Hugging Face cache: other programs may use it")
    return typer.confirm(f"Delete {name} and free {cache.megabytes(holding.size)}?", err=True)


def _delete(key: str, holding: _Holding) -> None:
    folder = cache.model_dir(key)
    with cache.writable(folder):
        # The record goes first: a deletion that is cut short must not leave a record of what is gone.
        (folder / "model.json").unlink(missing_ok=True)
        for path in holding.shared:
            blob = path.resolve()
            alone = not _used_elsewhere(path)
            path.unlink()
            if alone:
                blob.unlink(missing_ok=True)
        for path in holding.own:
            path.unlink(missing_ok=True)
        for path in folder.iterdir():
            to_stderr(f"{path} is not a file of typebar's: left in place")
            return
        folder.rmdir()


def _print_table() -> None:
    from rich.table import Table

    from typebar.cli.console import Console

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("NAME", "SIZE", "HERE FROM", "SOURCES"):
        table.add_column(column, justify="right" if column == "SIZE" else "left", no_wrap=column == "NAME")
    for model in CATALOG:
        sources = ", ".join(source_name(source) for source in model.sources)
        table.add_row(model.name, _size(model.key, model.about_mb), _here(model.key), sources)
    known = {model.key for model in CATALOG}
    for key, record in cache.records():
        if key not in known:
            name = record.name if record else key
            table.add_row(name, _size(key, 0), _here(key), record.source if record else "")
    Console().print(table)
    standing_in = cache.read_record(DEFAULT_MODEL)
    substitute = standing_in.substitute if standing_in else None
    print(f"default: {DEFAULT_MODEL}" + (f" ({substitute} serves instead)" if substitute else ""))


def _size(key: str, about_mb: int) -> str:
    record = cache.read_record(key)
    if record and record.files:
        return cache.megabytes(sum(file.size for file in record.files))
    return f"~{cache.megabytes(about_mb * 10**6)}" if about_mb else ""


def _here(key: str) -> str:
    record = cache.read_record(key)
    if record and record.files:
        return record.source if all(file.path.is_file() for file in record.files) else "(deleted)"
    partial = cache.partial_bytes(key)
    return f"{cache.megabytes(partial)} of it" if partial else "-"
