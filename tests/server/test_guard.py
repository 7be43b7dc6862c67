"""Hosts, origins and keys, over real connections."""

import base64
import logging
from collections.abc import Iterator

import pytest
from toy_server import WAIT, ToyServer, toy_server
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from written import Written

from typebar.server.request_log import configure

KEY, SECOND = "sk-first-0123456789", """k~/+='":,!second"""


@pytest.fixture(scope="module")
def loopback() -> Iterator[ToyServer]:
    with toy_server(allowed_hosts=("Typebar.Example", "box.example:8443")) as toy:
        yield toy


@pytest.fixture(scope="module")
def keyed() -> Iterator[ToyServer]:
    with toy_server(api_keys=(KEY, SECOND)) as toy:
        yield toy


@pytest.fixture(scope="module")
def shared() -> Iterator[ToyServer]:
    """Open to two sites, with a key."""
    with toy_server(api_keys=(KEY,), cors_origins=("https://app.example", "http://app.example:3000")) as toy:
        yield toy


def socket_status(toy: ToyServer, path: str = "/v1/ws", **options: object) -> int:
    """101, or the status of the refusal."""
    try:
        with connect(f"ws://127.0.0.1:{toy.port}{path}", open_timeout=WAIT, **options):
            return 101
    except InvalidStatus as refusal:
        return refusal.response.status_code


# Hosts.


OWN_HOSTS = ["localhost", "LOCALHOST:{port}", "127.0.0.1", "127.0.0.1:{port}", "[::1]", "[::1]:{port}"]
OWN_HOSTS += ["typebar.example", "TYPEBAR.example:{port}", "typebar.example:9", "box.example:8443", "box.example"]


@pytest.mark.parametrize("host", OWN_HOSTS)
def test_own_and_allowed_hosts_are_answered(loopback: ToyServer, host: str) -> None:
    assert loopback.request("GET", "/v1/models", {"Host": host.format(port=loopback.port)}).status == 200


FOREIGN_HOSTS = [
    "evil.example",
    "evil.example:{port}",
    "localhost.evil.example",
    "localhost:1",
    "127.0.0.1:",
    "localhost.",
    "",
]
FOREIGN_HOSTS += [
    "127.0.0.2",
    "2130706433",
    "[::]",
    "::1",
    "user@localhost",
    "localhost:{port}:{port}",
    "localhost/",
    "localhost x",
]
FOREIGN_HOSTS += [
    "box.example:{port}",
    "a.typebar.example",
    "localhost:{port}0000",
    "localh\xf6st",
    "[::1",
    "localhost,evil.example",
]


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_foreign_hosts_are_refused(loopback: ToyServer, host: str) -> None:
    for path in ("/v1/models", "/health", "/"):
        answer = loopback.request("GET", path, {"Host": host.format(port=loopback.port)})
        assert answer.status == 421
        assert answer.error["type"] == "permission_error"
        assert "evil" not in answer.error["message"]


def test_a_host_is_needed_and_only_one(loopback: ToyServer) -> None:
    assert loopback.raw(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    twice = b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
    assert loopback.raw(twice).startswith(b"HTTP/1.1 400 ")
    assert loopback.raw(b"GET / HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 ")


def test_other_binds_check_hosts_only_when_told() -> None:
    with toy_server(host="0.0.0.0") as toy:
        assert toy.request("GET", "/v1/models", {"Host": "any.example"}).status == 200
    with toy_server(host="0.0.0.0", allowed_hosts=("typebar.example",)) as toy:
        assert toy.request("GET", "/v1/models", {"Host": "any.example"}).status == 421
        assert toy.request("GET", "/v1/models", {"Host": "typebar.example"}).status == 200
        assert toy.request("GET", "/v1/models", {"Host": "localhost"}).status == 200


@pytest.mark.parametrize("host", ["::1", "localhost", "127.0.0.5"])
def test_every_loopback_bind_checks_hosts(host: str) -> None:
    with toy_server(host=host) as toy:
        assert toy.request("GET", "/", {"Host": "evil.example"}).status == 421
        own = f"[{host}]" if ":" in host else host
        assert toy.request("GET", "/", {"Host": f"{own}:{toy.port}"}).status == 200


# Origins.


FOREIGN_ORIGINS = [
    "http://localhost.evil.example",
    "http://localhost.evil.example:{port}",
    "http://evil.example",
    "null",
    "",
]
FOREIGN_ORIGINS += [
    "http://localhost",
    "https://localhost:{port}",
    "http://localhost:{port}0",
    "http://127.0.0.1:{port}",
    "localhost",
]
FOREIGN_ORIGINS += [
    "http://localhost:{port}/",
    "http://user@localhost:{port}",
    "file://",
    "http://localhost:{port} http://evil.example",
]


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "DELETE"])
@pytest.mark.parametrize("origin", FOREIGN_ORIGINS)
def test_foreign_origins_are_refused(loopback: ToyServer, method: str, origin: str) -> None:
    headers = {"Host": f"localhost:{loopback.port}", "Origin": origin.format(port=loopback.port)}
    answer = loopback.request(method, "/v1/echo", {**headers, "Content-Type": "text/plain"}, b"{}")
    assert answer.status == 403
    assert "access-control-allow-origin" not in answer.headers
    assert "evil" not in answer.error["message"]


def test_the_own_origin_is_allowed(loopback: ToyServer) -> None:
    for host in (f"localhost:{loopback.port}", f"127.0.0.1:{loopback.port}", "typebar.example"):
        headers = {"Host": host, "Origin": f"http://{host}", "Content-Type": "application/json"}
        answer = loopback.request("POST", "/v1/echo", headers, b'{"a": 1}')
        assert (answer.status, answer.body) == (200, b'{"a":1}')
        assert "access-control-allow-origin" not in answer.headers
    rebound = {"Host": "evil.example", "Origin": "http://evil.example"}
    assert loopback.request("GET", "/", rebound).status == 421


def test_one_foreign_origin_of_several_is_enough(loopback: ToyServer) -> None:
    host = f"localhost:{loopback.port}"
    headers = [("Host", host), ("Origin", f"http://{host}"), ("Origin", "http://evil.example")]
    assert loopback.request("GET", "/", headers).status == 403


def test_pages_must_say_json(loopback: ToyServer) -> None:
    host = f"localhost:{loopback.port}"
    page = {"Host": host, "Origin": f"http://{host}"}
    for kind in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "text/plain; a=application/json",
        "application/jsonp",
    ):
        answer = loopback.request("POST", "/v1/echo", {**page, "Content-Type": kind}, b'{"a": 1}')
        assert answer.status == 415
    assert loopback.request("POST", "/v1/echo", page, b'{"a": 1}').status == 415
    for kind in ("application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json"):
        assert loopback.request("POST", "/v1/echo", {**page, "Content-Type": kind}, b"{}").status == 200
    assert loopback.request("POST", "/v1/echo", {"Content-Type": "text/plain"}, b"{}").status == 200


def test_sockets_check_host_and_origin(loopback: ToyServer) -> None:
    assert socket_status(loopback) == 101
    assert socket_status(loopback, origin=f"http://127.0.0.1:{loopback.port}") == 101
    for origin in ("http://evil.example", "null", f"ws://127.0.0.1:{loopback.port}", "http://127.0.0.1"):
        assert socket_status(loopback, origin=origin) == 403
    handshake = (
        b"GET /v1/ws HTTP/1.1\r\nHost: evil.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    assert loopback.raw(handshake).startswith(b"HTTP/1.1 403 ")


# CORS.


def test_a_preflight_needs_no_key_but_the_request_does(shared: ToyServer) -> None:
    ask = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
    }
    preflight = shared.request("OPTIONS", "/v1/echo", {"Origin": "https://app.example", **ask})
    assert preflight.status == 200
    assert preflight.headers["access-control-allow-origin"] == "https://app.example"
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert "x-stainless-os" in preflight.headers["access-control-allow-headers"]
    page = {"Origin": "https://app.example", "Content-Type": "application/json"}
    refused = shared.request("POST", "/v1/echo", page, b"{}")
    assert refused.status == 401
    assert refused.headers["access-control-allow-origin"] == "https://app.example"  # or the page could not read why
    answer = shared.request("GET", "/v1/models", {**page, "Authorization": f"Bearer {KEY}"})
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert answer.headers["access-control-expose-headers"] == "X-Request-Id, X-Typebar-Ignored, Retry-After"
    assert "Origin" in answer.headers["vary"]


@pytest.mark.parametrize(
    "origin",
    ["https://app.example.evil", "https://app.example:3000", "http://app.example", "https://app.exampl", "null"],
)
def test_sites_that_are_not_listed_get_no_preflight(shared: ToyServer, origin: str) -> None:
    answer = shared.request("OPTIONS", "/v1/echo", {"Origin": origin, "Access-Control-Request-Method": "POST"})
    assert answer.status == 403
    assert "access-control-allow-origin" not in answer.headers


def test_options_without_a_preflight_needs_the_key(shared: ToyServer) -> None:
    assert shared.request("OPTIONS", "/v1/echo").status == 401
    assert shared.request("OPTIONS", "/v1/echo", {"Origin": "https://app.example"}).status == 401


@pytest.mark.parametrize("value", ["", ",", "x\x7f", "\x80\xff", "a" * 9000])
def test_an_odd_preflight_does_no_harm(shared: ToyServer, value: str) -> None:
    ask = {"Origin": "https://app.example", "Access-Control-Request-Method": value or "POST"}
    for headers in ({"Access-Control-Request-Headers": value, **ask, "Access-Control-Request-Method": "POST"}, ask):
        assert shared.request("OPTIONS", "/v1/echo", headers).status in (200, 400)


def test_any_origin_when_so_told() -> None:
    with toy_server(cors_origins=("*",)) as toy:
        for origin in ("https://any.example", "null"):
            answer = toy.request("GET", "/v1/models", {"Origin": origin})
            assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "*")
        assert socket_status(toy, origin="https://any.example") == 101


# Keys.

GUARDED = ["/v1/models", "/v1/chat/completions", "/metrics", "/tokenize", "/slots", "/props", "/docs", "/nowhere"]
TRICKS = [
    "//v1/models",
    "/v1/models/",
    "/v1/../metrics",
    "/health/",
    "//health",
    "/health/../metrics",
    "/HEALTH",
    "/health%20",
]
TRICKS += [
    "/assets/../metrics",
    "/assets/%2e%2e/metrics",
    "/assets/..%2fmetrics",
    "/assets//metrics",
    "/assets/",
    "/assets",
]
TRICKS += [
    "/assets/a/./b",
    "/assets/a\\..\\b",
    "/assets/.env",
    "/assets/a/%2e%2e",
    "/assets/x%00",
    "/assets/x%0a",
    "//",
    "/%2f",
]
TRICKS += [
    "/health%00",
    "/health;a=1",
    "/v1/health/..",
    "/%68ealth/x",
    "/v1/models?api_key=" + KEY,
    "/v1/models?key=" + KEY,
]


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS", "DELETE", "PUT"])
@pytest.mark.parametrize("path", GUARDED + TRICKS)
def test_no_path_opens_without_a_key(keyed: ToyServer, method: str, path: str) -> None:
    answer = keyed.request(method, path)
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    if method != "HEAD":
        assert answer.error["type"] == "authentication_error"


@pytest.mark.parametrize(
    "path", ["/", "/health", "/v1/health", "/assets/index-4f2a.js", "/assets/fonts/a_b.woff2", "/%68ealth"]
)
def test_open_paths_are_open_to_reading(keyed: ToyServer, path: str) -> None:
    assert keyed.request("GET", path).status == 200
    assert keyed.request("GET", path + "?a=b").status == 200
    assert keyed.request("HEAD", path).status == 200
    assert keyed.request("POST", path).status == 401
    assert keyed.request("OPTIONS", path).status == 401


GOOD = [("Authorization", f"Bearer {KEY}"), ("Authorization", f"bearer {KEY}"), ("Authorization", f"BEARER  {KEY}")]
GOOD += [
    ("x-api-key", KEY),
    ("X-API-Key", KEY),
    ("x-api-key", SECOND.encode()),
    ("Authorization", f"Bearer {SECOND}".encode()),
]
BAD = [
    ("Authorization", value)
    for value in ("", "Bearer", "Bearer ", KEY, f"Basic {KEY}", f"Bearer{KEY}", f"Bearer {KEY}x")
]
BAD += [
    ("Authorization", f"Bearer {KEY[:-1]}"),
    ("Authorization", f"Bearer {KEY.upper()}"),
    ("Authorization", f"Bearer {KEY},{KEY}"),
]
BAD += [
    ("x-api-key", ""),
    ("x-api-key", f"Bearer {KEY}"),
    ("x-api-key", b"\xff\xfe"),
    ("Cookie", f"api_key={KEY}"),
    ("api-key", KEY),
]


@pytest.mark.parametrize("header", GOOD)
def test_a_key_opens(keyed: ToyServer, header: tuple[str, str | bytes]) -> None:
    assert keyed.request("GET", "/v1/models", [header]).status == 200
    assert socket_status(keyed, additional_headers=[_text(header)]) == 101


@pytest.mark.parametrize("header", BAD)
def test_anything_else_does_not(keyed: ToyServer, header: tuple[str, str | bytes]) -> None:
    assert keyed.request("GET", "/v1/models", [header]).status == 401
    assert socket_status(keyed, additional_headers=[_text(header)]) == 403


def _text(header: tuple[str, str | bytes]) -> tuple[str, str]:
    name, value = header
    return name, value.decode("latin-1") if isinstance(value, bytes) else value


def test_either_header_is_enough(keyed: ToyServer) -> None:
    both = [("Authorization", "Basic eDp5"), ("x-api-key", KEY)]
    assert keyed.request("GET", "/v1/models", both).status == 200


def test_sockets_of_browsers_bring_the_key_as_a_subprotocol(keyed: ToyServer) -> None:
    keyed.forget_events()
    for key in (KEY, SECOND):
        token = "bearer." + base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")
        with connect(f"ws://127.0.0.1:{keyed.port}/v1/ws", subprotocols=["typebar", token]) as socket:
            assert socket.subprotocol == "typebar"
            assert keyed.event() == "accepted, offered ['typebar']"
        assert keyed.event() == "closed"
        assert socket_status(keyed, subprotocols=[token]) == 403
        assert socket_status(keyed, subprotocols=["typebar", token[:-1]]) == 403
        assert socket_status(keyed, subprotocols=["typebar", token[7:]]) == 403
    assert socket_status(keyed, subprotocols=["typebar", "bearer."]) == 403
    assert socket_status(keyed, subprotocols=["typebar"]) == 403
    for path in ("/", "/health", "/assets/a.js"):
        assert socket_status(keyed, path) == 403


def test_without_keys_a_socket_still_agrees_on_the_subprotocol(loopback: ToyServer) -> None:
    with connect(f"ws://127.0.0.1:{loopback.port}/v1/ws", subprotocols=["other", "typebar", "bearer.YQ"]) as socket:
        assert socket.subprotocol == "typebar"
    with connect(f"ws://127.0.0.1:{loopback.port}/v1/ws", subprotocols=["other"]) as socket:
        assert socket.subprotocol is None


def test_a_refusal_leaves_the_connection_usable(keyed: ToyServer) -> None:
    refused = b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello"
    allowed = f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nx-api-key: {KEY}\r\nConnection: close\r\n\r\n".encode()
    answer = keyed.raw(refused + allowed)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"HTTP/1.1 200 " in answer


def test_nothing_of_keys_and_queries_is_logged(keyed: ToyServer, stderr: Written) -> None:
    configure("text", "debug")
    keyed.request("GET", f"/v1/models?key={KEY}", {"x-api-key": "sk-canary"})
    keyed.request("GET", f"/v1/models?key={KEY}", {"x-api-key": KEY})
    socket_status(keyed, f"/v1/ws?key={KEY}")
    with connect(f"ws://127.0.0.1:{keyed.port}/v1/ws?key={KEY}", additional_headers={"x-api-key": KEY}) as socket:
        socket.send('{"text": "sk-canary"}')
        assert socket.recv(timeout=WAIT) == '{"text": "sk-canary"}'
    logging.getLogger("uvicorn.error").info("the log works")
    text = stderr.getvalue()
    assert "the log works" in text
    assert KEY not in text
    assert "canary" not in text
