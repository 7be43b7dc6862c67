"""The server's log: one style for every logger, one line a request, and of what a client wrote only its X-Request-Id.

A traceback is shown as types and places without messages, because those of parsers and grammars quote what they read.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Iterator
from datetime import datetime
from errno import errorcode
from math import isfinite
from typing import Any

from typebar.errors import ParameterError
from typebar.server.record import RequestRecord

log = logging.getLogger(__name__)

_LEVELS = ("debug", "info", "warning", "error", "critical")
_MAX_ID = 128  # characters
_MAX_MESSAGE = 2000
_MAX_FRAMES = 30  # the innermost, per exception
_MAX_EXCEPTIONS = 8  # of a chain or group


def configure(format: str, level: str, *, content: bool = False) -> None:
    """Send the log of the whole process to stderr, in place of handlers that the root logger or Uvicorn's have.

    format: "text" or "json" (one object a line). level: where "typebar" and Uvicorn start; others start at "warning".
    content: show the messages of exceptions and failed requests, which may quote prompts. Give Uvicorn
    `log_config=None, log_level=None, access_log=False`. Raises ParameterError for an unknown format or level.
    """
    if format not in _FORMATTERS:
        raise ParameterError("log_format", "text or json", format)
    if level.lower() not in _LEVELS:
        raise ParameterError("log_level", f"one of {', '.join(_LEVELS)}", level)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_FORMATTERS[format](content))
    handler.addFilter(_is_wanted)
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    for name in ("typebar", "uvicorn"):
        _reset(name, level.upper())
    _reset("uvicorn.error", logging.NOTSET)
    _reset("uvicorn.access", logging.NOTSET).propagate = False  # without handlers: Uvicorn does not even format lines


def log_request(record: RequestRecord) -> None:
    """Log a sequence that has ended: an error as such, everything else as information."""
    level = logging.ERROR if record.reason == "error" else logging.INFO
    log.log(level, "%s", _summary(record), extra={"fields": _fields(record), "detail": record.error})


def clean(text: str, limit: int) -> str:
    """The first `limit` characters, with everything escaped that could forge a line or steer a terminal."""
    text = text if len(text) <= limit else text[:limit] + "…"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _summary(record: RequestRecord) -> str:
    caller = f" ({clean(record.caller_id, _MAX_ID)})" if record.caller_id else ""
    return (
        f"{clean(record.id, _MAX_ID)}{caller} {record.route}: {record.cached_tokens} cached + "
        f"{record.prompt_tokens - record.cached_tokens} new tokens at {record.prefill_tps:.1f}/s, "
        f"{record.completion_tokens} out at {record.decode_tps:.1f}/s, "
        f"first {record.ttft:.3f} s, total {record.e2e:.3f} s, {record.reason}"
    )


def _fields(record: RequestRecord) -> dict[str, Any]:
    return {
        "id": clean(record.id, _MAX_ID),
        "caller_id": record.caller_id and clean(record.caller_id, _MAX_ID),
        "route": record.route,
        "reason": record.reason,
        "cached_tokens": record.cached_tokens,
        "new_tokens": record.prompt_tokens - record.cached_tokens,
        "output_tokens": record.completion_tokens,
        "max_tokens": record.max_tokens,
        "n": record.n,
        "preemptions": record.preemptions,
        "prefill_tps": _number(record.prefill_tps),
        "decode_tps": _number(record.decode_tps),
        "queue_s": _number(record.queue),
        "first_token_s": _number(record.ttft),
        "prefill_s": _number(record.prefill),
        "decode_s": _number(record.decode),
        "total_s": _number(record.e2e),
    }


def _number(value: float) -> float | None:
    return round(value, 6) if isfinite(value) else None


class _Formatter(logging.Formatter):
    """content: whether messages of exceptions and failed requests may be shown."""

    def __init__(self, content: bool) -> None:
        super().__init__()
        self.content = content

    def detail(self, record: logging.LogRecord) -> str:
        return clean(getattr(record, "detail", ""), _MAX_MESSAGE) if self.content else ""


class _TextFormatter(_Formatter):
    """`2026-11-30 12:00:00 INFO message`, in local time; the frames of an exception follow on indented lines."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).strftime("%Y-%m-%d %H:%M:%S")
        line = f"{time} {record.levelname} {_message(record)}"
        if detail := self.detail(record):
            line += f": {detail}"
        return "\n  ".join([line, *_trace(record, self.content)])


class _JSONFormatter(_Formatter):
    """One object a line: ts (ISO 8601 with offset), level, logger, msg, the fields given, trace of an exception."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": _message(record),
            **getattr(record, "fields", {}),
        }
        if detail := self.detail(record):
            line["detail"] = detail
        if trace := list(_trace(record, self.content)):
            line["trace"] = trace
        return json.dumps(line, default=lambda value: type(value).__name__)


_FORMATTERS: dict[str, type[_Formatter]] = {"text": _TextFormatter, "json": _JSONFormatter}


def _message(record: logging.LogRecord) -> str:
    limit = getattr(record, "limit", _MAX_MESSAGE)  # what an operator asked for may be longer
    message = record.getMessage().strip()
    if record.name == "asyncio":
        message = message.partition("\n")[0]  # what follows shows exceptions and tasks with their values
    return clean(message, limit)


def _trace(record: logging.LogRecord, content: bool) -> Iterator[str]:
    """The lines for a record's exception, without source lines: those of a template are the model's, not ours."""
    for error in _chain(record.exc_info[1] if record.exc_info else None)[:_MAX_EXCEPTIONS]:
        name = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
        if isinstance(error, OSError) and error.errno:
            name += f" ({errorcode.get(error.errno, error.errno)})"
        yield f"{name}: {clean(str(error), _MAX_MESSAGE)}" if content else name
        for frame, line in list(traceback.walk_tb(error.__traceback__))[-_MAX_FRAMES:]:
            yield f'  File "{frame.f_code.co_filename}", line {line}, in {frame.f_code.co_name}'


def _chain(error: BaseException | None) -> list[BaseException]:
    """An exception, then what it came from and what it groups; each once."""
    found: list[BaseException] = []
    queue = [error]
    while queue:
        error = queue.pop(0)
        if error is None or any(error is other for other in found):
            continue
        found.append(error)
        queue += error.exceptions if isinstance(error, BaseExceptionGroup) else ()
        queue.append(error.__cause__ or (None if error.__suppress_context__ else error.__context__))
    return found


def _is_wanted(record: logging.LogRecord) -> bool:
    """Neither what libraries log for debugging, whole WebSocket frames, nor Uvicorn's lines with query strings."""
    if record.name.partition(".")[0] == "typebar":
        return True
    # The whole line, because other libraries may have a record factory that fills in the arguments early.
    return record.levelno >= logging.INFO and '"WebSocket ' not in record.getMessage()


def _reset(name: str, level: str | int) -> logging.Logger:
    """A logger without handlers of its own, which gives what it logs to the root."""
    logger = logging.getLogger(name)
    logger.handlers.clear()
    logger.setLevel(level)
    logger.propagate = True
    return logger
