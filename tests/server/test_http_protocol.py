"""Connections that send slowly, too much, too early, or do not read."""

import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from toy_server import WAIT, ToyServer, read_all, toy_server, trusting, wait_until
from websockets.sync.client import connect

GET = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
SHORT = 1.0  # seconds: the timeouts of the server


@pytest.fixture(scope="module")
def hasty() -> Iterator[ToyServer]:
    with toy_server(read_timeout=SHORT, write_timeout=SHORT, max_head=8192) as toy:
        yield toy


@pytest.fixture(scope="module")
def patient() -> Iterator[ToyServer]:
    with toy_server(read_timeout=WAIT, write_timeout=WAIT, max_head=8192) as toy:
        yield toy


def answered(toy: ToyServer, request: bytes) -> socket.socket:
    """A connection on which `request` is being answered. If this side was too slow to send it, it does so again."""
    end = time.monotonic() + WAIT
    while time.monotonic() < end:
        connection = toy.connect()
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(request)
            if connection.recv(1, socket.MSG_PEEK):
                return connection
        connection.close()
    raise AssertionError("no answer")


def drip(connection: socket.socket, data: bytes) -> None:
    """Send a byte at a time until the other side has had enough."""
    end = time.monotonic() + WAIT
    try:
        for byte in data:
            assert time.monotonic() < end
            connection.sendall(bytes([byte]))
            time.sleep(0.02)
    except (BrokenPipeError, ConnectionResetError):
        return
    assert read_all(connection) == b""


# Slow heads.


def test_a_connection_that_sends_nothing_is_closed(hasty: ToyServer) -> None:
    with hasty.connect() as connection:
        assert read_all(connection) == b""
    hasty.wait_for_connections(0)


@pytest.mark.parametrize("start", [b"", GET[:-2], b"\r\n", b"POST /"])
def test_a_head_that_drips_is_cut(hasty: ToyServer, start: bytes) -> None:
    with hasty.connect() as connection:
        connection.sendall(start)
        drip(connection, b"\r\n" * 10_000 if start == b"\r\n" else b"x-header: a\r\n" * 1000)
    hasty.wait_for_connections(0)


@pytest.mark.parametrize("rest", [b"GET / HT", b"\r\n"])
def test_a_later_head_has_the_same_time(hasty: ToyServer, rest: bytes) -> None:
    with answered(hasty, GET) as connection:
        assert b'{"path":"/v1/models"}' in receive_until(connection, b"}")
        connection.sendall(GET)
        assert b'{"path":"/v1/models"}' in receive_until(connection, b"}")
        connection.sendall(rest)
        assert read_all(connection) == b""


def test_a_head_in_pieces_is_in_time(patient: ToyServer) -> None:
    with patient.connect() as connection:
        for byte in GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"):
            connection.sendall(bytes([byte]))
        assert b'{"path":"/v1/models"}' in read_all(connection)


def test_an_answer_may_take_longer_than_a_head(hasty: ToyServer) -> None:
    hasty.forget_events()
    with hasty.connect() as connection:
        connection.sendall(b"GET /v1/wait HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert hasty.event() == "waits"
        connection.settimeout(2 * SHORT)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        assert hasty.events.empty()
    assert hasty.event() == "gone /v1/wait"


def test_a_body_nobody_reads_is_cut(hasty: ToyServer) -> None:
    with answered(
        hasty, b"POST /v1/models HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
    ) as connection:
        assert b'{"path":"/v1/models"}' in receive_until(connection, b"}")
        drip(connection, b"x" * 100_000)


def receive_until(connection: socket.socket, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        piece = connection.recv(65536)
        assert piece, data
        data += piece
    return data


# Large heads.


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nx-large: " + b"a" * 9000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"a: b\r\n" * 2000 + b"\r\n",
        b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_a_large_head_is_refused(patient: ToyServer, head: bytes) -> None:
    answer = patient.raw(head)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b'"type":"invalid_request_error"' in answer
    assert patient.raw(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")).startswith(b"HTTP/1.1 200 ")


CHUNKED = b"POST /v1/models HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"a: b\r\n"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nx: ", b"aaaa"),
        (b"GET /", b"aaaa"),
        (b"", b"\r\n"),
        (CHUNKED + b"1\r\nx\r\n0\r\n", b"a: b\r\n"),  # trailers
        (CHUNKED + b"1\r\nx\r\n0\r\nx: ", b"aaaa"),
        (CHUNKED + b"1;", b"aaaa"),  # an extension of a chunk
    ],
)
def test_what_never_becomes_a_request_does_not_grow(patient: ToyServer, start: bytes, more: bytes) -> None:
    with patient.connect() as connection:
        connection.sendall(start)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            for _ in range(10_000):
                connection.sendall(more * 500)
    patient.wait_for_connections(0)


def test_trailers_do_not_change_the_request(patient: ToyServer) -> None:
    head = b"POST /v1/names HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = patient.raw(head + b"1\r\nx\r\n0\r\nx-api-key: k\r\n\r\n")
    assert answer.endswith(b'{"names":["host","connection","transfer-encoding"]}')


# Requests one after another.


def test_pipelined_requests_are_answered_in_order(patient: ToyServer) -> None:
    paths = [b"/a%d" % i for i in range(16)]
    requests = [b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path for path in paths]
    requests[7] = b'POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 7\r\n\r\n{"n":1}'
    requests[15] = requests[15].replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    answer = patient.raw(b"".join(requests))
    assert answer.count(b"HTTP/1.1 200 ") == 16
    found = [answer.index(b'{"n":1}' if i == 7 else b'"' + path + b'"') for i, path in enumerate(paths)]
    assert found == sorted(found)


@pytest.mark.parametrize(
    "more", [GET, b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999\r\n\r\n" + b" " * 9000]
)
def test_pipelined_requests_have_a_limit(patient: ToyServer, more: bytes) -> None:
    patient.forget_events()
    with patient.connect() as connection:
        connection.sendall(b"GET /v1/wait HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert patient.event() == "waits"
        try:
            for _ in range(100):
                connection.sendall(more)
            answer = read_all(connection)
        except (BrokenPipeError, ConnectionResetError):
            answer = b""
        assert answer == b""  # an error here would read as the answer to the first
    assert patient.event() == "gone /v1/wait"


def test_a_pipelined_request_does_not_hide_that_the_client_left(patient: ToyServer) -> None:
    patient.forget_events()
    with patient.connect() as connection:
        connection.sendall(b"GET /v1/wait HTTP/1.1\r\nHost: localhost\r\n\r\n" + GET + GET)
        assert patient.event() == "waits"
    assert patient.event() == "gone /v1/wait"


def test_rubbish_behind_a_request_is_not_mixed_into_its_answer(patient: ToyServer) -> None:
    patient.forget_events()
    with patient.connect() as connection:
        connection.sendall(b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        connection.recv(1)
        connection.sendall(b"\x00\x01 rubbish\r\n\r\n")
        assert b"HTTP/1.1 400" not in read_all(connection)


def test_rubbish_is_answered_as_json(patient: ToyServer) -> None:
    for data in (
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"hello\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/9\r\n\r\n",
    ):
        answer = patient.raw(data)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b'"type":"invalid_request_error"' in answer


@pytest.mark.parametrize("pause", [False, True])
def test_an_offer_of_http2_is_ignored_and_the_body_read(patient: ToyServer, pause: bool) -> None:
    head = (
        b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\nContent-Length: 7\r\n\r\n"
    )
    with patient.connect() as connection:
        for body in (b'{"a":1}', b'{"b":2}'):
            connection.sendall(head)
            if pause:
                time.sleep(0.1)
            connection.sendall(body)
            answer = receive_until(connection, b"}")
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert answer.endswith(body)


# Readers that stall.


def stall(toy: ToyServer, path: bytes) -> socket.socket:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(WAIT)
    connection.connect(("127.0.0.1", toy.port))
    connection.sendall(b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path)
    return connection


def test_a_reader_that_stalls_is_cut(hasty: ToyServer) -> None:
    hasty.forget_events()
    with stall(hasty, b"/v1/stream"):
        assert hasty.event() == "gone /v1/stream"
        hasty.wait_for_connections(0)


def test_a_reader_that_is_slow_is_not() -> None:
    timeout = 1.5
    with toy_server(write_timeout=timeout) as toy:
        with toy.connect() as connection:
            connection.sendall(b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
            end = time.monotonic() + 2 * timeout
            while time.monotonic() < end:
                assert connection.recv(1 << 20)
                time.sleep(0.01)
            assert toy.events.empty()
        assert toy.event() == "gone /v1/stream"


def test_an_answer_that_died_does_not_keep_its_connection(hasty: ToyServer) -> None:
    hasty.forget_events()
    with stall(hasty, b"/v1/fail"):
        assert hasty.event() == "fails"
        hasty.wait_for_connections(0)


HANDSHAKE = (
    b"GET /v1/ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)


def test_a_socket_that_stalls_is_cut(hasty: ToyServer) -> None:
    hasty.forget_events()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", hasty.port))
        connection.sendall(HANDSHAKE + b"\r\n")
        receive_until(connection, b"\r\n\r\n")
        assert hasty.event().startswith("accepted")
        connection.sendall(b'\x81\x8b\0\0\0\0{"flood":1}')  # a text frame, masked with zeros
        assert hasty.event() == "gone /v1/ws"
        hasty.wait_for_connections(0)


def test_a_socket_outlives_the_time_for_a_head(hasty: ToyServer) -> None:
    frames = [b'{"a": 1}', b'{"a": 2}']
    with answered(hasty, HANDSHAKE + b"\r\n") as connection:
        receive_until(connection, b"\r\n\r\n")
        time.sleep(2 * SHORT)
        for frame in frames:
            connection.sendall(b"\x81\x88\0\0\0\0" + frame)  # text, 8 bytes, masked with zeros
            assert receive_until(connection, b"}") == b"\x81\x08" + frame


def test_bad_frames_leave_a_socket_open(patient: ToyServer) -> None:
    with connect(f"ws://127.0.0.1:{patient.port}/v1/ws") as client:
        for frame in ("[" * 100_000, "{", "", "[]", '{"a": NaN}'):
            client.send(frame)
            assert '"invalid_json"' in str(client.recv(timeout=WAIT))
        client.send('{"a": 1}')
        assert client.recv(timeout=WAIT) == '{"a": 1}'


def test_a_handshake_that_the_library_cannot_read_is_answered(patient: ToyServer) -> None:
    answer = patient.raw(HANDSHAKE + b"a: b\r\n" * 200 + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    patient.wait_for_connections(0)


def test_a_socket_cannot_begin_inside_an_answer(patient: ToyServer) -> None:
    patient.forget_events()
    with patient.connect() as connection:
        connection.sendall(b"GET /v1/wait HTTP/1.1\r\nHost: localhost\r\n\r\n" + HANDSHAKE + b"\r\n")
        assert read_all(connection).startswith(b"HTTP/1.1 400 ")
        assert patient.event() == "waits"
        assert patient.event() == "gone /v1/wait"


# TLS.


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl program for a certificate")
    folder: Path = tmp_path_factory.mktemp("tls")
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    options = [
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    subprocess.run(["openssl", "req", "-x509", *options, "-out", cert, "-keyout", key], check=True, capture_output=True)
    return cert, key


def test_all_of_it_holds_over_tls(certificate: tuple[str, str]) -> None:
    with toy_server(certificate, read_timeout=SHORT, write_timeout=SHORT) as toy:
        context = trusting(certificate[0])

        def secure() -> ssl.SSLSocket:
            return context.wrap_socket(toy.connect(), server_hostname="localhost")

        with secure() as silent:
            assert read_all(silent) == b""
        with secure() as slow:
            slow.sendall(b"GET / HT")
            assert read_all(slow) == b""
        with secure() as page:
            host = f"Host: localhost:{toy.port}\r\nOrigin: https://localhost:{toy.port}\r\nConnection: close\r\n\r\n"
            page.sendall(b"GET / HTTP/1.1\r\n" + host.encode())
            assert read_all(page).startswith(b"HTTP/1.1 200 ")
        with secure() as page:
            page.sendall(b"GET / HTTP/1.1\r\n" + host.replace("https", "http").encode())
            assert read_all(page).startswith(b"HTTP/1.1 403 ")
        with secure() as stalled:
            stalled.sendall(b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert toy.event() == "gone /v1/stream"
            wait_until(lambda: not toy.server.server_state.connections)
        with connect(f"wss://localhost:{toy.port}/v1/ws", ssl=context) as client:
            client.send('{"a": 1}')
            assert client.recv(timeout=WAIT) == '{"a": 1}'
