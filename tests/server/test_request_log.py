"""The log: one style, one line a request, nothing that a client wrote, and no line that a client forged."""

import asyncio
import gc
import json
import logging
import re
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from written import Written

from typebar.errors import ParameterError
from typebar.server.record import RequestRecord
from typebar.server.request_log import clean, configure, log_request

RECORD = RequestRecord(
    id="chatcmpl-1", route="chat", reason="stop", prompt_tokens=120, cached_tokens=80, completion_tokens=11,
    max_tokens=64, n=1, queue=0.002, ttft=0.102, prefill=0.1, decode=0.5, e2e=0.61,
)  # fmt: skip
CANARY = "ZQX-CANARY-1"
STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
FORMATS = pytest.mark.parametrize("format", ["text", "json"])


def lines(stream: Written) -> list[str]:
    text = stream.getvalue()
    assert not text or text.endswith("\n")
    return text.splitlines()


def objects(stream: Written) -> list[dict[str, Any]]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in lines(stream)]


def test_a_request_is_one_line_of_text(stderr: Written) -> None:
    configure("text", "info")
    log_request(RECORD)
    [line] = lines(stderr)
    assert re.fullmatch(
        f"{STAMP} INFO chatcmpl-1 chat: 80 cached \\+ 40 new tokens at 400.0/s, 11 out at 20.0/s, "
        "first 0.102 s, total 0.610 s, stop",
        line,
    )


def test_a_request_is_one_object_of_json(stderr: Written) -> None:
    configure("json", "info")
    log_request(RECORD)
    [line] = objects(stderr)
    assert line["level"] == "info" and line["logger"].startswith("typebar.") and line["msg"].startswith("chatcmpl-1")
    assert datetime.fromisoformat(line["ts"]).tzinfo is not None
    expected = {
        "id": "chatcmpl-1", "route": "chat", "reason": "stop", "cached_tokens": 80, "new_tokens": 40,
        "output_tokens": 11, "max_tokens": 64, "n": 1, "prefill_tps": 400.0, "decode_tps": 20.0, "first_token_s": 0.102,
        "total_s": 0.61,
    }  # fmt: skip
    assert expected.items() <= line.items()


@FORMATS
def test_the_id_of_the_caller_is_logged_beside_ours(stderr: Written, format: str) -> None:
    configure(format, "info")
    log_request(replace(RECORD, caller_id="trace/7"))
    if format == "json":
        [line] = objects(stderr)
        assert (line["id"], line["caller_id"]) == ("chatcmpl-1", "trace/7")
    else:
        [text] = lines(stderr)
        assert " INFO chatcmpl-1 (trace/7) chat: " in text


def test_numbers_that_json_does_not_know_are_null(stderr: Written) -> None:
    configure("json", "info")
    log_request(replace(RECORD, e2e=float("nan"), ttft=float("inf")))
    [line] = objects(stderr)
    assert line["total_s"] is None and line["first_token_s"] is None


def test_a_failed_request_is_an_error(stderr: Written) -> None:
    configure("json", "error")
    log_request(RECORD)
    log_request(replace(RECORD, reason="error", error="the logits hold NaN"))
    [line] = objects(stderr)
    assert line["level"] == "error" and line["reason"] == "error"


@FORMATS
@pytest.mark.parametrize(
    "id",
    [
        "a\n2026-11-30 12:00:00 INFO forged", "a\r\nb", "a\x1b[2J\x07", "a\x85b\u2028c\u2029d", "a\u202egnp.exe",
        "a\x00b", "a\udcffb", "x" * 100_000, "%s %d {id} %(msg)s", '","level":"forged',
    ],
)  # fmt: skip
def test_an_id_cannot_forge_a_line_or_steer_a_terminal(stderr: Written, format: str, id: str) -> None:
    configure(format, "info")
    log_request(replace(RECORD, id=id, caller_id=id))
    logging.getLogger("typebar.engine.worker").error("the receiver of request %s failed", id[:200])
    written = lines(stderr)
    assert len(written) == 2
    assert all(line.isprintable() and len(line) < 1500 for line in written)
    written[0].encode("utf-8")
    if format == "json":
        assert [line["level"] for line in objects(stderr)] == ["info", "error"]


def test_clean_keeps_what_is_harmless() -> None:
    assert clean("req-1_模型 é", 64) == "req-1_模型 é"
    assert clean("abcdef", 3) == "abc…"
    assert clean("a\tb\ud800", 64) == r"a\tb\ud800"


def fail_with_content() -> None:
    try:
        json.loads("{" + CANARY)
    except ValueError as error:
        both = ExceptionGroup(CANARY, [KeyError(CANARY), OSError(28, CANARY, CANARY)])
        both.add_note(CANARY)
        try:
            raise both from error
        except ExceptionGroup:
            raise RuntimeError(CANARY)  # noqa: B904


@FORMATS
def test_a_traceback_has_types_and_places_but_no_words(stderr: Written, format: str) -> None:
    configure(format, "debug")
    try:
        fail_with_content()
    except RuntimeError:
        logging.getLogger("uvicorn.error").exception("Exception in ASGI application\n")
    text = stderr.getvalue()
    assert CANARY not in text
    for shown in ("Exception in ASGI application", "RuntimeError", "ExceptionGroup", "JSONDecodeError", "KeyError"):
        assert shown in text
    assert "OSError (ENOSPC)" in text and "in fail_with_content" in text and __file__ in text
    if format == "json":
        assert len(objects(stderr)) == 1


@FORMATS
def test_words_are_shown_where_content_was_asked_for(stderr: Written, format: str) -> None:
    configure(format, "info", content=True)
    log_request(replace(RECORD, reason="error", error=f"refused {CANARY}\nforged"))
    try:
        raise ValueError(f"{CANARY}\nforged")
    except ValueError:
        logging.getLogger("typebar").exception("failed")
    text = stderr.getvalue()
    assert text.count(CANARY) == 2
    assert not any(line.startswith("forged") for line in lines(stderr))


@FORMATS
def test_a_failed_request_does_not_show_its_error(stderr: Written, format: str) -> None:
    configure(format, "debug")
    log_request(replace(RECORD, reason="error", error=CANARY))
    assert len(lines(stderr)) == 1 and CANARY not in stderr.getvalue()


@FORMATS
def test_a_forgotten_task_does_not_show_what_it_raised(stderr: Written, format: str) -> None:
    configure(format, "info")

    async def fail() -> None:
        raise ValueError(CANARY)

    async def main() -> None:
        task = asyncio.create_task(fail())
        await asyncio.wait([task])
        del task
        gc.collect()

    asyncio.run(main())
    text = stderr.getvalue()
    assert "Task exception was never retrieved" in text and "ValueError" in text
    assert CANARY not in text


@FORMATS
def test_libraries_log_neither_frames_nor_query_strings(stderr: Written, format: str) -> None:
    configure(format, "debug")
    server, access = logging.getLogger("uvicorn.error"), logging.getLogger("uvicorn.access")
    server.debug("< TEXT %s", CANARY)
    server.info('%s - "WebSocket %s" [accepted]', "127.0.0.1:1", f"/v1/ws?key={CANARY}")
    access.info('%s - "%s %s HTTP/%s" %d', "127.0.0.1:1", "GET", f"/?q={CANARY}", "1.1", 200)
    logging.getLogger("huggingface_hub").info(CANARY)
    assert not access.hasHandlers()  # by which Uvicorn decides whether to write access lines
    assert stderr.getvalue() == ""
    server.info("Started")
    logging.getLogger("typebar.x").debug("seen")
    assert len(lines(stderr)) == 2


def test_a_level_holds_for_the_server_and_a_second_call_replaces_the_first(stderr: Written) -> None:
    configure("text", "debug")
    configure("text", "WARNING")
    log = logging.getLogger("typebar.x")
    log.info("unseen")
    logging.getLogger("uvicorn.error").info("unseen")
    log.warning("seen")
    assert len(lines(stderr)) == 1


def test_uvicorns_own_handlers_go(stderr: Written) -> None:
    from uvicorn.config import LOGGING_CONFIG, Config

    Config("none:app", log_config=LOGGING_CONFIG)
    configure("json", "info")
    Config("none:app", log_config=None, log_level=None, access_log=False)
    logging.getLogger("uvicorn.error").info("Started server process [%d]", 7, extra={"color_message": "\x1b[31m%d"})
    [line] = objects(stderr)
    assert line["msg"] == "Started server process [7]"


def test_a_field_that_json_does_not_know_is_named_by_its_type(stderr: Written) -> None:
    configure("json", "info")
    logging.getLogger("typebar").info("odd", extra={"fields": {"odd": ValueError(CANARY)}})
    [line] = objects(stderr)
    assert line["odd"] == "ValueError"


@pytest.mark.parametrize(("format", "level", "field"), [("xml", "info", "log_format"), ("text", "loud", "log_level")])
def test_an_unknown_setting_is_refused(format: str, level: str, field: str) -> None:
    with pytest.raises(ParameterError) as refusal:
        configure(format, level)
    assert refusal.value.field == field
