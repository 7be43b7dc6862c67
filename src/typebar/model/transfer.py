"""Fetching one file over HTTP: bounded probing, resume, retry, verification, atomic rename.

Range, If-Range and Content-Range are used as RFC 9110 (sections 13.1.5 and 14) defines them.
"""

from __future__ import annotations

import http.client
import json
import queue
import re
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from typebar.errors import TypebarError
from typebar.model.cache import git_sha1_file, megabytes, require_space, sha256_file, writable, write_json
from typebar.model.report import Advance, Report

REACH_S = 3.0
CHUNK = 1 << 20
TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
DIGEST = re.compile(r"[0-9a-f]{64}")
# How a file begins, by its kind; shorter pieces are not looked at.
FIRST_BYTES = {"GGUF": rb"GGUF", "JSON": rb"\s*\{", "safetensors": rb".{8}\{", "text": rb""}
LEAST_LOOKED_AT = 9


class SourceError(TypebarError):
    """One source cannot deliver; another may. Its text is the reason alone."""


class _Interrupted(Exception):
    """A transfer broke off and may go on after `wait_s` seconds (None: the usual back-off)."""

    def __init__(self, reason: str, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


class _Unanswered(_Interrupted):
    """A connection could not be made, or nothing answered on it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long (seconds) a silent server is borne, and how often a transfer that makes no progress is tried.

    `first_tries` holds for connections as long as nothing has arrived: the next source may be quicker.
    """

    read_s: float = 15.0
    tries: int = 5
    first_tries: int = 2
    backoff_s: float = 1.0
    longest_wait_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Download:
    """One file to fetch. `size` (bytes) and `sha256` are None where not known; then what the server sends is used.

    `git_sha1` is what git names its bytes, which hubs tell of small files in place of a sha256.
    `kind` (a key of FIRST_BYTES) tells a file from the page that a server or a proxy sends in its place.
    """

    url: str
    destination: Path
    size: int | None = None
    sha256: str | None = None
    git_sha1: str | None = None
    headers: Mapping[str, str] | None = None
    kind: str = "GGUF"


def public_url(url: str) -> str:
    """`url` without user, password, query and fragment, so that it can be shown."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def digest_of(tag: str | None) -> str | None:
    """The sha256 in an ETag, or None. Hubs use the digest of a large file as its (linked) ETag."""
    tag = (tag or "").removeprefix("W/").strip('"').lower()
    return tag if DIGEST.fullmatch(tag) else None


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects without handing the token to another host and without falling back to plain http."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        new = super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]
        old, target = urlsplit(req.full_url), urlsplit(newurl)
        if old.scheme == "https" and target.scheme != "https":
            raise SourceError(f"{old.hostname} redirects to plain http")
        if new is not None and old[:2] != target[:2]:
            new.remove_header("Authorization")
        return new


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any) -> None:
        return None


def unreachable(url: str, seconds: float = REACH_S, proxy: str | None = None) -> str | None:
    """None if the server of `url` answers anything within `seconds`, else the reason in a few words.

    Runs in a thread, because neither name resolution nor a TLS handshake that trickles obeys a timeout.
    """
    handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
    if proxy:
        handlers.append(urllib.request.ProxyHandler({"http": proxy, "https": proxy}))
    opener = urllib.request.build_opener(*handlers)
    answer: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def ask() -> None:
        try:
            opener.open(urllib.request.Request(url, method="HEAD"), timeout=seconds).close()
            answer.put(None)
        except urllib.error.HTTPError:
            answer.put(None)
        except (OSError, http.client.HTTPException, ValueError) as error:
            answer.put(reason_of(error, seconds))

    threading.Thread(target=ask, daemon=True).start()
    try:
        return answer.get(timeout=seconds)
    except queue.Empty:
        return f"no answer in {seconds:g} s"


def reason_of(error: BaseException, seconds: float) -> str:
    """A failed connection in a few words."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    match cause:
        case ssl.SSLCertVerificationError():
            return f"its certificate is not trusted ({cause.verify_message}); SSL_CERT_FILE can name your own authority"
        case socket.gaierror():
            return "its name does not resolve"
        case TimeoutError():
            return f"no answer in {seconds:g} s"
        case ConnectionRefusedError():
            return "connection refused"
        case OSError() if cause.strerror:
            return cause.strerror
    return str(cause) or type(cause).__name__


def get_json(url: str, headers: Mapping[str, str] | None = None, seconds: float = 10.0) -> Any:
    """The JSON document at `url` (4 MB at most). Raises SourceError."""
    try:
        with _open(url, headers or {}, seconds) as response:
            return json.loads(response.read(4 << 20))
    except _Interrupted as error:
        raise SourceError(str(error)) from error
    except ValueError as error:
        raise SourceError(f"{public_url(url)} did not answer with JSON") from error


def _open(url: str, headers: Mapping[str, str], timeout: float) -> http.client.HTTPResponse:
    """Opens `url`. A permanent refusal is a SourceError, one that may pass an _Interrupted."""
    request = urllib.request.Request(url, headers={"User-Agent": "typebar", **headers})
    try:
        opened = urllib.request.build_opener(_Redirects()).open(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:
            raise
        answer = f"{public_url(url)} answers {error.code} {error.reason}".rstrip()
        if error.code in TRANSIENT:
            raise _Interrupted(answer, _retry_after(error.headers)) from error
        raise SourceError(answer) from error
    except (OSError, http.client.HTTPException) as error:
        raise _Unanswered(f"{urlsplit(url).hostname}: {reason_of(error, timeout)}") from error
    assert isinstance(opened, http.client.HTTPResponse)
    return opened


def _retry_after(headers: Message) -> float | None:
    value = headers.get("Retry-After", "")
    return float(value) if value.isdigit() else None


def fetch(item: Download, report: Report, limits: Limits = Limits()) -> Path:
    """Brings `item` to its destination and returns that path; a part that is already there is not fetched again.

    A file that lies at the destination is kept if its digest is the expected one, else replaced. After an
    interruption (also Ctrl-C) the part that arrived stays as `<destination>.partial`, and the next call resumes.
    Raises SourceError if the server cannot deliver, TypebarError if the disk cannot take it.
    """
    if item.sha256 and item.destination.is_file() and sha256_file(item.destination) == item.sha256:
        return item.destination
    if item.git_sha1 and item.destination.is_file() and git_sha1_file(item.destination) == item.git_sha1:
        return item.destination
    with writable(item.destination.parent):
        transfer = _Transfer(item, report, limits)
        with report.bar(item.size) as advance:
            transfer.run(advance)
        transfer.finish()
    return item.destination


class _Transfer:
    """The state of one download between its attempts."""

    def __init__(self, item: Download, report: Report, limits: Limits) -> None:
        self.item, self.report, self.limits = item, report, limits
        self.partial = item.destination.with_name(item.destination.name + ".partial")
        self.notes = self.partial.with_name(self.partial.name + ".json")
        self.size, self.sha256 = item.size, item.sha256
        self.validator: str | None = None
        self._recall()

    def have(self) -> int:
        return self.partial.stat().st_size if self.partial.is_file() else 0

    def _recall(self) -> None:
        """Takes up the notes of an earlier run; drops a partial file that cannot be continued safely."""
        try:
            notes = json.loads(self.notes.read_text())
            same = notes["url"] == public_url(self.item.url)
            self.validator = notes["validator"] if same else None
            usable = (self.validator or (self.sha256 and notes["sha256"] == self.sha256)) and same
        except (OSError, ValueError, KeyError, TypeError):
            usable = False
        if not usable:
            self.validator = None
            self._discard()

    def _discard(self) -> None:
        self.partial.unlink(missing_ok=True)
        self.notes.unlink(missing_ok=True)

    def run(self, advance: Advance) -> None:
        """Attempts until the file is complete. An attempt that got further than any before starts the count anew."""
        failures, start = 0, self.have()
        best = start
        while True:
            try:
                self._attempt(advance)
                return
            except _Interrupted as error:
                if self.have() > best:
                    failures, best = 0, self.have()
                failures += 1
                wait = error.wait_s if error.wait_s is not None else self.limits.backoff_s * 2 ** (failures - 1)
                hopeless = isinstance(error, _Unanswered) and best == start
                if (
                    failures >= (self.limits.first_tries if hopeless else self.limits.tries)
                    or wait > self.limits.longest_wait_s
                ):
                    kept = f"; {megabytes(self.have())} are kept for resume" if self.have() and self.validator else ""
                    raise SourceError(f"{error}{kept}") from error
                self.report.log(f"{error}: trying again in {wait:g} s")
                time.sleep(wait)

    def _attempt(self, advance: Advance) -> None:
        have = self.have()
        if have and have == self.size:
            return
        headers = dict(self.item.headers or {})
        if have:
            headers["Range"] = f"bytes={have}-"
            if self.validator:
                headers["If-Range"] = self.validator
        try:
            response = _open(self.item.url, headers, self.limits.read_s)
        except urllib.error.HTTPError as error:  # 416: the file is shorter than what is here
            self._discard()
            raise _Interrupted("the file on the server has changed") from error
        with response:
            self._receive(response, advance)

    def _receive(self, response: http.client.HTTPResponse, advance: Advance) -> None:
        start, total = self._span(response)
        if None not in (self.item.size, total) and total != self.item.size:
            raise SourceError(f"the file has {total} bytes there, {self.item.size} are expected")
        self.size = total if total is not None else self.item.size
        self._remember(response)
        if self.size is not None:
            require_space(self.partial.parent, self.size - start)
        with self.partial.open("r+b" if start else "wb") as file:
            file.truncate(start)
            file.seek(start)
            self._copy(response, file, advance)
        if self.size is not None and self.have() < self.size:
            raise _Interrupted(f"the connection ended after {self.have()} of {self.size} bytes")
        if self.size is not None and self.have() > self.size:
            self._discard()
            raise SourceError(f"the server sends more than the {self.size} bytes it announced")

    def _copy(self, response: http.client.HTTPResponse, file: IO[bytes], advance: Advance) -> None:
        while True:
            try:
                chunk = response.read1(CHUNK)
            except TimeoutError as error:
                raise _Interrupted(f"no data for {self.limits.read_s:g} s") from error
            except (OSError, http.client.HTTPException) as error:
                raise _Interrupted(f"the connection broke ({reason_of(error, self.limits.read_s)})") from error
            if not chunk:
                return
            if file.tell() == 0 and not self._begins_well(chunk):
                self._discard()
                what = f"is not a {self.item.kind} file: it starts with {chunk[:16]!r}"
                raise SourceError(f"{public_url(self.item.url)} {what}")
            file.write(chunk)
            if self.size is not None and file.tell() > self.size:
                return
            advance(file.tell())

    def _begins_well(self, chunk: bytes) -> bool:
        is_short = len(chunk) < LEAST_LOOKED_AT
        return is_short or re.match(FIRST_BYTES[self.item.kind], chunk, re.DOTALL) is not None

    def _span(self, response: http.client.HTTPResponse) -> tuple[int, int | None]:
        """Where the body starts in the file, and how long the file is (None: not told). Checks a 206 answer."""
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise SourceError("the server sends the file compressed, although that was not asked for")
        if response.status == 206:
            match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
            if match is None or int(match[1]) != self.have():
                self._discard()
                raise _Interrupted("the server answered with another range than the one asked for")
            return int(match[1]), None if match[2] == "*" else int(match[2])
        length = response.headers.get("Content-Length", "")
        return 0, int(length) if length.isdigit() else None

    def _remember(self, response: http.client.HTTPResponse) -> None:
        """Notes what a later resume must find unchanged. A weak ETag promises no equal bytes, so it does not count."""
        tag = response.headers.get("ETag")
        self.validator = tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified")
        self.sha256 = self.item.sha256 or digest_of(response.headers.get("X-Linked-Etag")) or digest_of(tag)
        notes = {"url": public_url(self.item.url), "validator": self.validator, "sha256": self.sha256}
        write_json(self.notes, notes)

    def finish(self) -> None:
        """Verifies the complete partial file and renames it."""
        self._verify("sha256", self.sha256, sha256_file)
        self._verify("git SHA-1", self.item.git_sha1, git_sha1_file)
        if self.sha256 is None and self.item.git_sha1 is None:
            checked = "only the size was checked" if self.size is not None else "nor a size: nothing could be checked"
            self.report.log(f"{self.item.destination.name}: the server sent no sha256, {checked}")
        self.partial.replace(self.item.destination)
        self.notes.unlink(missing_ok=True)

    def _verify(self, kind: str, expected: str | None, digest: Callable[[Path], str]) -> None:
        if expected is not None and (found := digest(self.partial)) != expected:
            self._discard()
            raise SourceError(f"the file that arrived has {kind} {found}, expected is {expected}")
