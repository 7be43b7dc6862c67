"""Models from Hugging Face, kept in the cache that all its tools share.

huggingface_hub says where a file is, who may read it and how the cache is laid out. The bytes come through
`transfer`, because huggingface_hub starts an interrupted file from the beginning in the next process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from typebar.errors import TypebarError
from typebar.model.cache import CachedFile, describe, megabytes, writable
from typebar.model.catalog import HubFile
from typebar.model.choose import CONFIG, choose, shards, texts
from typebar.model.report import Report
from typebar.model.transfer import Download, SourceError, digest_of, fetch

ENDPOINT = "https://huggingface.co"
METADATA_S = 10.0
_GIT_SHA1 = re.compile(r"[0-9a-f]{40}")

T = TypeVar("T")


def endpoint() -> str:
    """`HF_ENDPOINT`, or the public hub."""
    return os.environ.get("HF_ENDPOINT", ENDPOINT).rstrip("/")


@dataclass(frozen=True, slots=True)
class _Remote:
    """One file as the hub describes it. `tag` is its name among the blobs of the shared cache: the sha256 of a large
    file, git's SHA-1 of a small one.
    """

    file: str
    tag: str
    size: int | None
    sha256: str | None


def from_hub(
    item: HubFile, sha256: str | None, title: str, report: Report, unreachable: Callable[[], str | None]
) -> list[CachedFile]:
    """The files of `item`, first shard or `config.json` first, out of the shared cache or fetched into it.

    `sha256` is the expected digest of an unsplit file, or None for what the hub says. `unreachable` gives the reason
    why the hub cannot be reached, or None. Raises SourceError, and ModelFileError for a model in safetensors that
    typebar does not run, before its weights are fetched.
    """
    from huggingface_hub import constants

    found = _cached(item, sha256, report)
    if found and not _lacks_texts(item, found, unreachable):
        return found
    if constants.HF_HUB_OFFLINE:
        raise SourceError("HF_HUB_OFFLINE is set, and its cache does not have the model")
    if reason := unreachable():
        raise SourceError(f"not reachable ({reason})")
    if not _unnamed(item):
        names = shards(str(item.file))
    else:
        listed = _asked(item, lambda: _list(item.repo))
        file = choose(listed, item.file, item.repo)
        if file == CONFIG:
            return _folder(item, listed, title, report)
        names = shards(file)
    remotes = [_asked(item, partial(_describe, item.repo, name)) for name in names]
    if sha256 and remotes[0].sha256 not in (None, sha256):
        raise SourceError(f"its {names[0]} has another sha256 ({remotes[0].sha256}) than the one expected ({sha256})")
    report.log(f"fetching {title} ({megabytes(sum(remote.size or 0 for remote in remotes))})")
    return [_bring(item, remote, sha256, report) for remote in remotes]


def _folder(item: HubFile, listed: list[str], title: str, report: Report) -> list[CachedFile]:
    """The files of a model in safetensors."""
    # Imported here because they bring numpy, which a start with the model at hand has no need of this early.
    from typebar.model.folder import read_folder_texts
    from typebar.model.safetensors import weight_files

    def described(names: list[str]) -> list[_Remote]:
        return [_asked(item, partial(_describe, item.repo, name)) for name in names]

    brought = [_bring(item, remote, None, report) for remote in described(texts(listed))]
    folder = brought[0].path.parent
    read_folder_texts(folder)
    remotes = described(weight_files(folder, [name for name in listed if "/" not in name]))
    report.log(f"fetching {title} ({megabytes(sum(remote.size or 0 for remote in remotes))})")
    brought += [_bring(item, remote, None, report) for remote in remotes]
    if any(file.path.parent != folder for file in brought):
        raise SourceError(f"{item.repo} has changed while it was fetched: try again")
    return brought


def _unnamed(item: HubFile) -> bool:
    """Whether the hub must be asked which files there are: none is named, or only a quantization."""
    return item.file is None or not item.file.lower().endswith(".gguf")


def _asked(item: HubFile, question: Callable[[], T]) -> T:
    """The answer of the hub to `question`, its refusals in plain words."""
    from huggingface_hub import errors

    try:
        return question()
    except errors.GatedRepoError as error:
        raise SourceError(f"{item.repo} needs you to accept its terms there and to set HF_TOKEN") from error
    except errors.RepositoryNotFoundError as error:
        raise SourceError(f"it has no {item.repo}, or HF_TOKEN must be set to see it") from error
    except errors.LocalEntryNotFoundError as error:
        raise SourceError("it stopped answering") from error
    except errors.EntryNotFoundError as error:
        raise SourceError(f"{item.repo} has no {item.file}") from error
    except errors.HfHubHTTPError as error:
        raise SourceError(f"it answers {error.response.status_code} for {item.repo}") from error
    except (OSError, ValueError) as error:
        raise SourceError(str(error).splitlines()[0]) from error
    except TypebarError:
        raise
    except Exception as error:
        # The HTTP library below huggingface_hub differs between its versions, and so do the exceptions it lets through.
        raise SourceError(f"{type(error).__name__}: {error}") from error


def _list(repo: str) -> list[str]:
    from huggingface_hub import HfApi

    siblings = HfApi(endpoint=endpoint()).model_info(repo, timeout=METADATA_S).siblings or []
    return [sibling.rfilename for sibling in siblings]


def _describe(repo: str, file: str) -> _Remote:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    metadata = get_hf_file_metadata(hf_hub_url(repo, file, endpoint=endpoint()), timeout=METADATA_S)
    # The tag becomes a file name, and it comes from the server.
    if not re.fullmatch(r"[A-Za-z0-9_-]+", metadata.etag or ""):
        raise SourceError(f"it does not say which version of {file} it has")
    assert metadata.etag is not None
    return _Remote(file, metadata.etag, metadata.size, digest_of(metadata.etag))


def _bring(item: HubFile, remote: _Remote, sha256: str | None, report: Report) -> CachedFile:
    from huggingface_hub import constants, hf_hub_download, hf_hub_url
    from huggingface_hub.file_download import repo_folder_name
    from huggingface_hub.utils._headers import build_hf_headers

    blobs = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=item.repo, repo_type="model") / "blobs"
    blob = blobs / remote.tag
    expected = sha256 or remote.sha256
    url = hf_hub_url(item.repo, remote.file, endpoint=endpoint())
    git_sha1 = remote.tag if _GIT_SHA1.fullmatch(remote.tag) else None
    headers = build_hf_headers()
    fetch(Download(url, blob, remote.size, expected, git_sha1, headers, _kind(remote.file)), report)
    with writable(blobs):
        # The blob is there, so this only enters it into the snapshot.
        path = _asked(item, lambda: hf_hub_download(item.repo, remote.file, endpoint=endpoint()))
    return describe(Path(path))


def _kind(file: str) -> str:
    """Of what kind a file is, as in transfer.FIRST_BYTES."""
    return {".json": "JSON", ".safetensors": "safetensors", ".jinja": "text"}.get(Path(file).suffix, "GGUF")


def _cached(item: HubFile, sha256: str | None, report: Report) -> list[CachedFile] | None:
    """The files of `item` from the shared cache, without asking the hub; None unless all are there and undamaged.

    The blob of a large file is named by its sha256.
    """
    from huggingface_hub import constants, try_to_load_from_cache

    try:
        names = _cached_names(item) if _unnamed(item) else shards(str(item.file))
    except TypebarError:
        return None
    found = []
    for name in names:
        path = try_to_load_from_cache(item.repo, name, cache_dir=constants.HF_HUB_CACHE)
        if not isinstance(path, str) or not Path(path).is_file():
            return None
        cached = describe(Path(path))
        if cached.sha256 != (sha256 or digest_of(Path(path).resolve().name) or cached.sha256):
            report.log(f"{path} in the Hugging Face cache is damaged or another version: fetching it again")
            return None
        found.append(cached)
    return found


def _lacks_texts(item: HubFile, found: list[CachedFile], unreachable: Callable[[], str | None]) -> bool:
    """Whether the hub, where it can be asked, lists texts of a model in safetensors that the shared cache lacks.

    Another tool fetches only what it needs, which may be no chat template.
    """
    from huggingface_hub import constants

    if found[0].path.name != CONFIG or constants.HF_HUB_OFFLINE or unreachable():
        return False
    try:
        listed = _asked(item, lambda: _list(item.repo))
    except SourceError:
        return False
    return not set(texts(listed)) <= {file.path.name for file in found}


def _cached_names(item: HubFile) -> list[str]:
    """The files to take of those in the shared cache, of which some may be missing. TypebarError where none fits."""
    snapshot = _snapshot(item.repo)
    there = [str(path.relative_to(snapshot)) for path in snapshot.rglob("*") if path.is_file()]
    file = choose(there, item.file, item.repo)
    if file != CONFIG:
        return shards(file)
    from typebar.model.safetensors import weight_files

    return [
        CONFIG,
        "tokenizer.json",
        *sorted({*texts(there)} - {CONFIG, "tokenizer.json"}),
        *weight_files(snapshot, [name for name in there if "/" not in name]),
    ]


def _snapshot(repo: str) -> Path:
    """The main revision of `repo` in the shared cache. TypebarError where it has none."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo, repo_type="model")
    try:
        return folder / "snapshots" / (folder / "refs" / "main").read_text().strip()
    except OSError as error:
        raise TypebarError(f"the Hugging Face cache has no {repo}") from error
