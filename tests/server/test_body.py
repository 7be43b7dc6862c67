"""Bytes to JSON: what is accepted, what is refused and how, over real connections and as a plain function."""

import gzip
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_server import Answer, ToyServer, read_all, toy_server

from typebar.server.body import MAX_CONTAINERS, MAX_DEPTH, decode_json
from typebar.server.errors import APIError

CANARY = "ZQX-CANARY-1"


@pytest.fixture(scope="module")
def toy() -> Iterator[ToyServer]:
    with toy_server(max_body=256 * 1024) as server:
        yield server


def echo(toy: ToyServer, body: bytes, **headers: str) -> Answer:
    return toy.request("POST", "/v1/echo", {name.replace("_", "-"): value for name, value in headers.items()}, body)


def nested(depth: int) -> bytes:
    """An object that holds depth - 1 arrays in each other."""
    return b'{"x":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


GOOD = {
    b"{}": {},
    b'\xef\xbb\xbf{"a": 1}': {"a": 1},  # with a byte order mark
    b' \r\n\t{"a" : 1 }\n': {"a": 1},
    b'{"a": 1, "a": 2}': {"a": 2},
    b'{"a": "\\u0000"}': {"a": "\0"},
    '{"ключ": "龘🦙"}'.encode(): {"ключ": "龘🦙"},
    b'{"a": "\\ud83e\\udd99"}': {"a": "🦙"},
    b'{"a": "[[[[{{{{\\\\\\"]"}': {"a": '[[[[{{{{\\"]'},
    b'{"a": [1, -2.5e3, true, false, null]}': {"a": [1, -2500.0, True, False, None]},
    b'{"a": 18446744073709551616}': {"a": 2**64},
}

MALFORMED = [
    b"{",
    b"}",
    b'{"a": 1,}',
    b'{"a": 1} x',
    b"{'a': 1}",
    b'{"a": }',
    b'{"a" 1}',
    b'{"a": 01}',
    b'{"a": "x}',
    b"hello",
]
MALFORMED += [b'{"a": NaN}', b'{"a": Infinity}', b'{"a": -Infinity}', b'{"a": 1e999}', b'{"a": -1e999}', b'{"a": nan}']
MALFORMED += [
    b'{"a": "\\ud800"}',
    b'{"a": "\\udc00x"}',
    b'{"a": "\\ud800\\ud800"}',
    b'{"\\ud800": 1}',
    b'{"a": "\\x41"}',
]
MALFORMED += [b'{"a": "x\x00y"}', b'{"a": "x\ny"}', b'{"a": 1}\x00', b'{"a": 1 // b\n}', b'{"a": ' + b"9" * 5000 + b"}"]
NOT_UTF8 = [
    b'{"a": "\xc4\xe3\xba\xc3"}',
    b'{"\xc4\xe3": 1}',
    b'{"a": "\xc0\x80"}',
    b'{"a": "\xed\xa0\x80"}',
    b"\xff",
    b'{"a": \x80}',
]
NOT_UTF8 += [b'{"a": "\xf4\x90\x80\x80"}', b'{"a": "\xe2\x82', b'{"a": "\xe9"}']
WIDE = ['{"a": 1}'.encode(name) for name in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")]
EMPTY = [b"", b" \r\n\t", b"\xef\xbb\xbf"]
NO_OBJECT = [b"[]", b"1", b'"x"', b"null", b"true", b'[{"a": 1}]']


@pytest.mark.parametrize("body", GOOD)
def test_good_bodies_are_read(toy: ToyServer, body: bytes) -> None:
    answer = echo(toy, body)
    assert answer.status == 200
    assert json.loads(answer.body) == GOOD[body] == decode_json(body)


@pytest.mark.parametrize(
    ("bodies", "says"),
    [
        (MALFORMED, "not valid JSON"),
        (NOT_UTF8, "not UTF-8 (byte "),
        (WIDE, "send UTF-8"),
        (EMPTY, "is empty"),
        (NO_OBJECT, "must be a JSON object"),
    ],
)
def test_bad_bodies_are_refused_and_the_server_goes_on(toy: ToyServer, bodies: list[bytes], says: str) -> None:
    for body in bodies:
        answer = echo(toy, body)
        assert (answer.status, answer.error["type"]) == (400, "invalid_request_error"), body
        assert says in answer.error["message"], body
        assert answer.error["code"] == "invalid_json"
        with pytest.raises(APIError) as refusal:
            decode_json(body)
        assert refusal.value.message == answer.error["message"]
    assert echo(toy, b'{"a": 1}').body == b'{"a":1}'


def test_depth_has_a_limit_anywhere(toy: ToyServer) -> None:
    assert echo(toy, nested(MAX_DEPTH)).status == 200
    for body in (
        nested(MAX_DEPTH + 1),
        nested(3000),
        nested(100_000),
        b'{"x":' + b'{"a":' * 64 + b"1" + b"}" * 65,
        b'{"tools": [{"function": ' + nested(63) + b"}]}",
        b'{"messages": [{"role": "user", "content": ' + nested(62) + b"}]}",
        b'{"a": "]]]]", "response_format": ' + nested(64) + b"}",
        b"[" * 100_000,
        b'{"a":' * 10_000,
    ):
        answer = echo(toy, body)
        assert answer.status == 400
        assert "nested deeper than 64" in answer.error["message"]
    assert echo(toy, b'{"a": "' + b"[" * 100_000 + b'"}').status == 200


def depth(value: Any) -> int:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, dict | list) + max(map(depth, children), default=0)


@given(
    st.recursive(
        st.text(st.sampled_from('[]{}"\\,: \nué🦙')) | st.integers() | st.none(),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(st.sampled_from('[]{}"\\')), inner, max_size=3)
        ),
    ),
    st.integers(0, 70),
    st.booleans(),
)
def test_depth_counts_structure_and_never_text(value: Any, wraps: int, ascii: bool) -> None:
    for _ in range(wraps):
        value = [value]
    value = {"x": value}
    data = json.dumps(value, ensure_ascii=ascii).encode()
    if depth(value) <= MAX_DEPTH:
        assert decode_json(data) == value
    else:
        with pytest.raises(APIError, match="nested deeper"):
            decode_json(data)


@given(st.binary(max_size=60) | st.text(st.sampled_from('[]{}",:\\eu0d8-1tn \ufeff')).map(str.encode))
def test_any_bytes_give_an_object_or_an_api_error(data: bytes) -> None:
    try:
        assert isinstance(decode_json(data), dict)
    except APIError as error:
        assert error.status == 400
        assert isinstance(error.body()["error"]["message"], str)


def test_a_caller_deep_in_calls_gets_the_same_answer() -> None:
    def call(frames: int) -> dict[str, Any]:
        return call(frames - 1) if frames else decode_json(nested(MAX_DEPTH))

    with pytest.raises((APIError, RecursionError)):
        call(sys.getrecursionlimit() - 100)
    assert "x" in call(100)


def test_containers_have_a_limit() -> None:
    assert len(decode_json(b'{"x":[' + b"[]," * (MAX_CONTAINERS - 3) + b"[]]}")["x"]) == MAX_CONTAINERS - 2
    with pytest.raises(APIError, match="arrays and objects") as refusal:
        decode_json(b'{"x":[' + b"[]," * MAX_CONTAINERS + b"[]]}")
    assert refusal.value.status == 413


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "gzip, identity", "GZIP", "x-unknown"])
def test_compressed_bodies_are_refused(toy: ToyServer, encoding: str) -> None:
    answer = echo(toy, gzip.compress(b'{"a": 1}'), Content_Encoding=encoding)
    assert (answer.status, answer.headers["accept-encoding"]) == (415, "identity")
    assert "without Content-Encoding" in answer.error["message"]


def test_bodies_that_are_not_compressed_may_say_so(toy: ToyServer) -> None:
    assert echo(toy, b"{}", Content_Encoding="identity").status == 200
    assert echo(toy, gzip.compress(b'{"a": 1}')).status == 400  # and without a word about it they are no JSON


def padded(size: int) -> bytes:
    return b'{"a": "' + b"x" * (size - 9) + b'"}'


def test_a_length_above_the_limit_is_refused_before_the_body_is_sent(toy: ToyServer) -> None:
    limit = toy.settings.max_body
    assert echo(toy, padded(limit)).status == 200
    assert echo(toy, padded(limit + 1)).status == 413
    for length in (limit + 1, 10**12, 2**64 - 1):
        head = (
            b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % length
        )
        with toy.connect() as connection:
            connection.sendall(head)
            answer = connection.recv(65536)
            assert answer.startswith(b"HTTP/1.1 413 ")  # not 100 Continue
            assert str(limit).encode() in answer


def test_a_chunked_body_above_the_limit_is_refused_while_it_is_read(toy: ToyServer) -> None:
    with toy.connect() as connection:
        connection.sendall(b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"8000\r\n" + b" " * 0x8000 + b"\r\n"
        for _ in range(toy.settings.max_body // 0x8000 + 1):
            connection.sendall(chunk)
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_chunked_bodies_are_read_whole(toy: ToyServer) -> None:
    answer = toy.raw(
        b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        b'3\r\n{"a\r\n6;note=1\r\n": "\xe9\xbe\r\n3\r\n\x98"}\r\n0\r\nHost: evil.example\r\n\r\n'
    )
    assert answer.endswith('{"a":"龘"}'.encode())


@pytest.mark.parametrize(
    "body",
    [
        b'Content-Length: 100\r\n\r\n{"a": 1',
        b"Transfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n",
        b"Content-Length: 2\r\n\r\n",
    ],
)
def test_a_body_that_never_ends_times_out(body: bytes) -> None:
    with toy_server(read_timeout=0.6) as toy, toy.connect() as connection:
        connection.sendall(b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\n" + body)
        answer = read_all(connection)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"timeout_error" in answer
        toy.wait_for_connections(0)


@pytest.mark.parametrize("length", [b"1", b"5"])
def test_a_length_that_is_too_short_ends_in_an_error(toy: ToyServer, length: bytes) -> None:
    answer = toy.raw(b'POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: %s\r\n\r\n{"a": 1}' % length)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"invalid_request_error" in answer
    assert echo(toy, b"{}").status == 200


@pytest.mark.parametrize("length", [b"-1", b"0x10", b"1e3", b"5, 6", b"99999999999999999999999", b"+5", b""])
def test_a_length_that_is_no_number_ends_in_an_error(toy: ToyServer, length: bytes) -> None:
    answer = toy.raw(
        b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: %s\r\nConnection: close\r\n\r\n{}" % length
    )
    assert answer.startswith(b"HTTP/1.1 400 ")


def test_a_client_that_leaves_while_it_sends_is_noticed(toy: ToyServer) -> None:
    toy.forget_events()
    with toy.connect() as connection:
        connection.sendall(b'POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"a":')
    assert toy.event() == "gone /v1/echo"


def test_errors_and_logs_never_repeat_the_content(toy: ToyServer, caplog: pytest.LogCaptureFixture) -> None:
    canary = CANARY.encode()
    bodies = [
        b'{"%s": NaN}',
        b'{"a": "%s',
        b"%s",
        b'{"%s": 1, }',
        b'["%s"]',
        b'"%s"',
        b'{"a": "%s\xff"}',
        b'{"\xff%s": 1}',
    ]
    with caplog.at_level(logging.DEBUG):
        for body in bodies:
            answer = echo(toy, body % canary, Authorization=f"Bearer {CANARY}")
            assert answer.status == 400
            assert canary not in answer.body
        answer = echo(toy, nested(100).replace(b"x", canary))
        assert canary not in answer.body
        toy.raw(b"%s %s\r\nHost: %s\r\n\r\n" % (canary, canary, canary))
        toy.request("POST", f"/v1/echo?q={CANARY}", {"Content-Encoding": CANARY}, b"{}")
    assert CANARY not in caplog.text
