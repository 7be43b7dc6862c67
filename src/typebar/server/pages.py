"""Pages for people that need no script and nothing from elsewhere: the start page and /docs."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from typing import Any

from typebar.server.exchange import Exchange
from typebar.server.openapi import document

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "code,pre{font:14px/1.5 ui-monospace,monospace;background:#8882;border-radius:4px;padding:1px 4px}"
    "pre{padding:.75rem;overflow:auto}pre code{background:none;padding:0}"
    "h2{margin-top:2.5rem;border-top:1px solid #8886;padding-top:1rem}"
    "table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:2px 12px 2px 0;vertical-align:top}"
    "@media(prefers-color-scheme:dark){:root{color-scheme:dark;background:#111;color:#ddd}a{color:#8bf}}"
)
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
HEADERS = {
    "content-security-policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


async def start_page(exchange: Exchange) -> None:
    """What a browser shows at /."""
    serving = exchange.state.serving
    model = f"<p>Model: <code>{escape(serving.name)}</code></p>" if serving else "<p>The model is being loaded.</p>"
    body = (
        f"<h1>typebar</h1>{model}<p>This is a server for programs: point an OpenAI client at <code>/v1</code>. "
        '<a href="/docs">The routes</a>, <a href="/openapi.json">the same as OpenAPI</a>, '
        '<a href="/health">health</a>, <a href="/metrics">metrics</a>.</p>'
        "<p>A question from the shell:</p><pre><code>curl -N http://HOST:PORT/v1/chat/completions "
        '-d \'{"stream": true, "messages": [{"role": "user", "content": "Hello"}]}\'</code></pre>'
    ).replace("HOST:PORT", escape(exchange.headers.get("host", "127.0.0.1:8000")))
    await _page(exchange, "typebar", body)


async def docs_page(exchange: Exchange) -> None:
    """The routes with their fields."""
    described = document()
    schemas = described["components"]["schemas"]
    sections = []
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            sections.append(
                f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(operation['summary'])}</p>"
            )
            if body := operation.get("requestBody"):
                sections.append("<p>Request:</p>" + _fields(body["content"]["application/json"]["schema"], schemas))
            content = operation["responses"]["200"]["content"]
            if "application/json" in content:
                sections.append("<p>Response:</p>" + _fields(content["application/json"]["schema"], schemas))
    await _page(exchange, "typebar: routes", "<h1>Routes</h1>" + "".join(sections))


async def openapi_json(exchange: Exchange) -> None:
    """The OpenAPI document."""
    await exchange.json(document())


async def _page(exchange: Exchange, title: str, body: str) -> None:
    html = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{_STYLE}</style><body>{body}</body></html>"
    )
    await exchange.respond(html.encode(), "text/html; charset=utf-8", headers=HEADERS)


def _fields(schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    schema = _resolved(schema, schemas)
    required = set(schema.get("required", ()))
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(_type(field))}</td>"
        f"<td>{'required' if name in required else ''}</td></tr>"
        for name, field in schema.get("properties", {}).items()
    )
    return f"<table>{rows}</table>" if rows else f"<p>{escape(_type(schema))}</p>"


def _resolved(schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref")
    return schemas[reference.rsplit("/", 1)[1]] if reference else schema


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[1]
    if "anyOf" in schema:
        return " or ".join(_type(option) for option in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    kind = schema.get("type", "any")
    return f"list of {_type(schema['items'])}" if kind == "array" and schema.get("items") else str(kind)
