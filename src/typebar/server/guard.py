"""Who may talk to the server: the host and the page that ask, and the key they bring."""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Iterable

import msgspec
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from typebar.server.errors import APIError
from typebar.server.settings import ServerSettings

SUBPROTOCOL = "typebar"  # of /v1/ws; browsers, which cannot set headers, offer "bearer.<key in base64url>" beside it

OPEN_PATHS = frozenset({"/", "/health", "/v1/health"})
_ASSET = re.compile(r"/assets(/[a-zA-Z0-9_-][a-zA-Z0-9_.-]*)+")  # the page's files; a segment never begins with a dot

_HOST = re.compile(r"(\[[^\s/@\[\]]+\]|[^\s:/@\[\]]+)(?::([0-9]{1,5}))?")


def guarded(app: ASGIApp, settings: ServerSettings, port: int) -> ASGIApp:
    """`app` behind the checks of Host, Origin and key, in this order; preflights, which have no key, end before it.

    port: the one that is bound, which a Host has to name if it names one.
    """
    app = Subprotocols(app)
    if settings.api_keys:
        app = KeyCheck(app, settings.api_keys)
    if settings.cors_origins:
        app = CORSMiddleware(
            app,
            allow_origins=settings.cors_origins,
            allow_methods=("GET", "POST", "DELETE", "OPTIONS"),
            allow_headers=("*",),
            allow_private_network=True,
            expose_headers=("X-Request-Id", "X-Typebar-Ignored", "Retry-After"),
        )
    return HostCheck(OriginCheck(app, settings.cors_origins), settings, port)


class HostCheck:
    """Answers only to the server's own names, so that a foreign name made to point here (DNS rebinding) is of no use.

    On an address that is not loopback the names are not known, and checked only if `allowed_hosts` tells them.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings, port: int) -> None:
        self.app = app
        self.port = port
        self.hosts: set[tuple[str, int | None]] = set()  # None: any port
        if settings.allowed_hosts or settings.is_loopback:
            own = ("localhost", "127.0.0.1", "[::1]", settings.host)
            self.hosts = {(_known_host(host)[0], port) for host in own}
            self.hosts |= {_known_host(host) for host in settings.allowed_hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._error(scope) if scope["type"] != "lifespan" else None
        await (_refuse(scope, receive, send, error) if error else self.app(scope, receive, send))

    def _error(self, scope: Scope) -> APIError | None:
        hosts = Headers(scope=scope).getlist("host")
        if len(hosts) > 1 or (not hosts and scope["http_version"] != "1.0"):
            return APIError(400, "A request must have one Host header.")
        if not self.hosts or not hosts or self._is_known(hosts[0]):
            return None
        message = (
            "The Host header names a host that this server does not answer for: "
            f"use http://localhost:{self.port}, or add the name to the allowed hosts."
        )
        return APIError(421, message)

    def _is_known(self, text: str) -> bool:
        host = _split_host(text)
        if host is None:
            return False
        name, port = host
        return any(name == known and (port is None or bound in (None, port)) for known, bound in self.hosts)


class OriginCheck:
    """Refuses what a page of another site sends, unless its origin is allowed. "null" is such a site."""

    def __init__(self, app: ASGIApp, origins: Iterable[str]) -> None:
        self.app = app
        self.origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._is_allowed(scope):
            await self.app(scope, receive, send)
        else:
            message = "Pages of this origin may not use the server: add the origin to the CORS origins."
            await _refuse(scope, receive, send, APIError(403, message))

    def _is_allowed(self, scope: Scope) -> bool:
        headers = Headers(scope=scope)
        scheme = {"ws": "http", "wss": "https"}.get(scope["scheme"], scope["scheme"])
        own = f"{scheme}://{headers.get('host', '')}".lower()
        origins = headers.getlist("origin")
        return "*" in self.origins or all(origin in self.origins or origin.lower() == own for origin in origins)


class KeyCheck:
    """Lets only requests with an API key through, to every path but the open ones, which are for GET and HEAD."""

    def __init__(self, app: ASGIApp, keys: Iterable[str]) -> None:
        self.app = app
        self.keys = [key.encode() for key in keys]
        self.tokens = [base64.urlsafe_b64encode(key).rstrip(b"=") for key in self.keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or _is_open(scope) or self._has_key(scope):
            await self.app(scope, receive, send)
        else:
            message = "This server needs an API key: send it as Authorization: Bearer KEY or as x-api-key: KEY."
            error = APIError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
            await _refuse(scope, receive, send, error)

    def _has_key(self, scope: Scope) -> bool:
        if any(_is_among(key, self.keys) for key in _header_keys(scope)):
            return True
        offered = scope.get("subprotocols", ())  # of a WebSocket
        tokens = (name.removeprefix("bearer.").encode() for name in offered if name.startswith("bearer."))
        return SUBPROTOCOL in offered and any(_is_among(token, self.tokens) for token in tokens)


class Subprotocols:
    """Tells a WebSocket route in scope["state"]["subprotocol"] what to accept with: "typebar" if offered, or None.

    Keys are taken out of scope["subprotocols"], so that none is accepted, and so sent back, by mistake.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            offered = [name for name in scope.get("subprotocols", ()) if not name.startswith("bearer.")]
            chosen = SUBPROTOCOL if SUBPROTOCOL in offered else None
            scope = {**scope, "subprotocols": offered, "state": {**scope.get("state", {}), "subprotocol": chosen}}
        await self.app(scope, receive, send)


def _header_keys(scope: Scope) -> Iterable[bytes]:
    for name, value in scope["headers"]:
        if name == b"x-api-key":
            yield value
        elif name == b"authorization":
            scheme, _, key = value.partition(b" ")
            if scheme.lower() == b"bearer":
                yield key.strip()


def _is_among(key: bytes, keys: list[bytes]) -> bool:
    """Takes the same time whichever key it is, and however much of one it has right."""
    return sum(hmac.compare_digest(key, known) for known in keys) > 0


def _is_open(scope: Scope) -> bool:
    if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
        return False
    return scope["path"] in OPEN_PATHS or _ASSET.fullmatch(scope["path"]) is not None


def _split_host(text: str) -> tuple[str, int | None] | None:
    """The host of "host:port" in lower case, and the port if there is one; None if it is neither."""
    match = _HOST.fullmatch(text.lower())
    return (match[1], int(match[2]) if match[2] else None) if match else None


def _known_host(text: str) -> tuple[str, int | None]:
    """Like `_split_host`, of what the settings hold; there an IPv6 address may stand without brackets."""
    return _split_host(text) or (f"[{text.lower()}]", None)


async def _refuse(scope: Scope, receive: Receive, send: Send, error: APIError) -> None:
    if scope["type"] == "websocket":
        await receive()  # the connect event
        await send({"type": "websocket.close", "code": 1008})  # before it is accepted: the server answers 403
    else:
        await send_error(send, error)


async def send_error(send: Send, error: APIError) -> None:
    """Send the error as the whole answer of an HTTP request."""
    body = msgspec.json.encode(error.body())
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **error.headers}
    raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
