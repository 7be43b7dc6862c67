"""Asking the sources of a model in order, each at most once, and saying why one is passed over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import PurePosixPath
from urllib.parse import quote, unquote, urlsplit

from typebar.errors import TypebarError
from typebar.model import hub, transfer, wheels
from typebar.model.cache import CachedFile, describe, model_dir
from typebar.model.catalog import HubFile, Model, ModelScopeFile, Source, WebFile, Wheels, source_name
from typebar.model.choose import shards
from typebar.model.report import Report
from typebar.model.transfer import Download, SourceError, fetch

MODELSCOPE = "modelscope.cn"


def modelscope() -> str:
    """The address of ModelScope; `MODELSCOPE_DOMAIN` names another host, as in its own tools."""
    domain = os.environ.get("MODELSCOPE_DOMAIN", MODELSCOPE).rstrip("/")
    return domain if "://" in domain else f"https://{domain}"


class Sources:
    """The sources during one request. It remembers which could not be reached, so that none is waited for twice."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self._reasons: dict[str, str | None] = {}
        self._said: set[str] = set()

    def fetch(self, model: Model) -> tuple[list[CachedFile], str]:
        """The files of `model` and the name of the source that had them.

        Raises TypebarError that lists every source and why it did not serve.
        """
        reasons = []
        for i, source in enumerate(model.sources):
            name = source_name(source)
            try:
                return self._from(source, model), name
            except SourceError as error:
                reasons.append(f"{name}: {error}")
                self._pass_over(reasons[-1], model.sources[i + 1 :])
        raise TypebarError(
            f"{model.name} could not be fetched ({'; '.join(reasons)}). Check the network or the proxy "
            "(HTTPS_PROXY), set HF_ENDPOINT to a mirror, or give -m a .gguf file that you have"
        )

    def _pass_over(self, reason: str, following: tuple[Source, ...]) -> None:
        """Says once why a source is passed over, and which one is next."""
        if reason not in self._said:
            self._said.add(reason)
            self.report.log(reason + (f", trying {source_name(following[0])}" if following else ""))

    def unreachable(self, url: str) -> str | None:
        """Why the server of `url` does not answer, or None; probed once."""
        parts = urlsplit(url)
        root = f"{parts.scheme}://{parts.netloc}/"
        if root not in self._reasons:
            self._reasons[root] = transfer.unreachable(root)
        return self._reasons[root]

    def _require(self, url: str) -> None:
        if reason := self.unreachable(url):
            raise SourceError(f"not reachable ({reason})")

    def _from(self, source: Source, model: Model) -> list[CachedFile]:
        title = f"{model.name} from {source_name(source)}"
        match source:
            case HubFile():
                return hub.from_hub(source, model.sha256, title, self.report, lambda: self.unreachable(hub.endpoint()))
            case ModelScopeFile(repo, file):
                self._require(modelscope())
                self._starts(title, model)
                return [describe(fetch(item, self.report)) for item in _modelscope_items(repo, file, model)]
            case WebFile(url):
                self._require(url)
                self._starts(title, model)
                return [describe(fetch(item, self.report)) for item in _web_items(url, model)]
            case Wheels(file):
                self._starts(title, model)
                assert model.sha256 is not None
                path = wheels.assemble(source, model.sha256, model_dir(model.key) / file, self.report)
                return [describe(path)]

    def _starts(self, title: str, model: Model) -> None:
        size = f" (about {model.about_mb} MB)" if model.about_mb else ""
        self.report.log(f"fetching {title}{size}")


def _modelscope_items(repo: str, file: str, model: Model) -> Iterator[Download]:
    """The downloads of a ModelScope file. Its file listing gives the size and the sha256 of each."""
    known = _modelscope_listing(repo)
    for name in shards(file):
        if known and name not in known:
            raise SourceError(f"{repo} has no {name}")
        size, sha256 = known.get(name, (None, None))
        if model.sha256 and sha256 not in (None, model.sha256):
            raise SourceError(f"its {name} has another sha256 ({sha256}) than the one expected ({model.sha256})")
        url = f"{modelscope()}/models/{repo}/resolve/master/{quote(name)}"
        yield Download(url, model_dir(model.key) / PurePosixPath(name).name, size, model.sha256 or sha256)


def _modelscope_listing(repo: str) -> dict[str, tuple[int | None, str | None]]:
    """Size and sha256 of each file of `repo`; empty if ModelScope lists none."""
    url = f"{modelscope()}/api/v1/models/{repo}/repo/files?Revision=master&Recursive=true"
    try:
        files = transfer.get_json(url)["Data"]["Files"]
        return {str(f["Path"]): (int(f["Size"]) or None, transfer.digest_of(f.get("Sha256"))) for f in files}
    except (SourceError, KeyError, TypeError, ValueError):
        # Without the listing the file itself can still be asked for, with what its headers say.
        return {}


def _web_items(url: str, model: Model) -> Iterator[Download]:
    parts = urlsplit(url)
    folder, _, file = parts.path.rpartition("/")
    for name in shards(file):
        path = quote(f"{folder}/{name}", safe="/%:@!$&'()*+,;=~")
        address = parts._replace(path=path, fragment="").geturl()
        yield Download(address, model_dir(model.key) / unquote(name).replace("/", "_"), None, model.sha256)


def reachable_sources() -> dict[str, str | None]:
    """For each source of models: None if it answers within 3 s, else the reason. Asks the network."""
    results = {"Hugging Face": transfer.unreachable(hub.endpoint()), "ModelScope": transfer.unreachable(modelscope())}
    try:
        results["PyPI"] = wheels.unreachable_index(wheels.pip_command(), "pip")
    except SourceError as error:
        results["PyPI"] = str(error)
    return results
