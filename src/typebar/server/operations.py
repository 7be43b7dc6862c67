"""For those who run the server: health, metrics, version, cancel."""

from __future__ import annotations

from typebar import __version__
from typebar.server.errors import APIError
from typebar.server.exchange import Exchange
from typebar.server.schema.models import Cancelled, Health, Version


async def health(exchange: Exchange) -> None:
    """200 while the model answers; 503 while it loads, after it failed, and when it makes no progress."""
    exchange.ready()
    await exchange.json(Health(status="ok"))


async def version(exchange: Exchange) -> None:
    """The version of typebar."""
    await exchange.json(Version(version=__version__))


async def metrics(exchange: Exchange) -> None:
    """Prometheus' text format; also where the engine has failed."""
    serving = exchange.state.loaded()
    body, content_type = serving.metrics.render(serving.engine.stats(), exchange.headers.get("accept", ""))
    await exchange.respond(body, content_type)


async def cancel(exchange: Exchange) -> None:
    """End requests by their response id or the X-Request-Id that they came with; effective within one step."""
    id = exchange.path["id"]
    count = exchange.ready().jobs.cancel(id)
    if not count:
        raise APIError(404, "no request with this id is running", param="id", code="request_not_found")
    await exchange.json(Cancelled(id=id, cancelled=count))
