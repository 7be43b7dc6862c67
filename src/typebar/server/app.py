"""The ASGI application: the table of routes, made to answer."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.routing import BaseRoute, Route, Router, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from typebar.server import pages
from typebar.server.chat_page import ChatPage
from typebar.server.errors import APIError
from typebar.server.exchange import Endpoint, Exchange, Handler
from typebar.server.routes import OPERATIONS
from typebar.server.state import ServerState
from typebar.server.websocket import Conversations


def create_app(state: ServerState, page: ChatPage | None = None) -> ASGIApp:
    """All routes over one state. Who may call them is the guard's affair."""
    page = page or ChatPage()
    handlers: dict[str, dict[str, Handler]] = {
        "/": {"GET": page.index},
        "/assets/{name}": {"GET": page.asset},
        "/docs": {"GET": pages.docs_page},
        "/openapi.json": {"GET": pages.openapi_json},
    }
    for operation in OPERATIONS:
        handlers.setdefault(operation.path, {})[operation.method] = operation.handler
    routes: list[BaseRoute] = [Route(_pattern(path), _Methods(state, methods)) for path, methods in handlers.items()]
    routes.append(WebSocketRoute("/v1/ws", Conversations(state)))
    return Router(routes, redirect_slashes=False, default=_NotFound(state))


def _pattern(path: str) -> str:
    """Names of models and ids of callers may hold slashes."""
    return path.replace("{id}", "{id:path}")


class _Methods:
    """One path: a handler for each method, HEAD as GET."""

    def __init__(self, state: ServerState, handlers: Mapping[str, Handler]) -> None:
        self._endpoints = {method: Endpoint(state, handler) for method, handler in handlers.items()}
        if "GET" in handlers:
            self._endpoints["HEAD"] = self._endpoints["GET"]
        self._other = Endpoint(state, self._refuse)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._endpoints.get(scope["method"], self._other)(scope, receive, send)

    async def _refuse(self, exchange: Exchange) -> None:
        allowed = ", ".join(self._endpoints)
        raise APIError(405, f"this route takes {allowed}", code="method_not_allowed", headers={"Allow": allowed})


class _NotFound:
    def __init__(self, state: ServerState) -> None:
        self._endpoint = Endpoint(state, self._refuse)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
        else:
            await self._endpoint(scope, receive, send)

    async def _refuse(self, exchange: Exchange) -> None:
        raise APIError(404, "there is no such route; GET /docs lists them", code="route_not_found")
