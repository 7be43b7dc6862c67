"""The OpenAPI 3.1 document, made from the table of routes and the structs that the routes check with."""

from __future__ import annotations

import inspect
import re
from http import HTTPStatus
from typing import Any

import msgspec

from typebar import __version__
from typebar.server.routes import OPERATIONS, Operation
from typebar.server.schema.models import Error

_GUARD = (400, 401, 403, 421)  # what any route may answer before it is reached: server.guard
REF = "#/components/schemas/{name}"


def document() -> dict[str, Any]:
    """The document as plain data."""
    types = [kind for operation in OPERATIONS for kind in (operation.request, operation.response, *operation.chunks)]
    wanted = [*dict.fromkeys(kind for kind in types if kind is not None), Error]
    schemas, components = msgspec.json.schema_components(wanted, ref_template=REF)
    schema_of = dict(zip(wanted, schemas, strict=True))
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "typebar",
            "version": __version__,
            "description": "OpenAI's routes, llama-server's and typebar's own, over one small language model. "
            "Not described here: /v1/ws, a WebSocket.",
        },
        "paths": paths,
        "components": {
            "schemas": {name: _nullable(name, schema) for name, schema in components.items()},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{}, {"bearer": []}, {"key": []}],
    }


def _operation(operation: Operation, schema_of: dict[Any, Any]) -> dict[str, Any]:
    schema = schema_of[operation.response]
    kinds = ("text/plain", "application/openmetrics-text") if operation.text else ("application/json",)
    content = {kind: {"schema": schema} for kind in kinds}
    if operation.chunks:
        content["text/event-stream"] = {"schema": {"type": "string", "description": _events(operation)}}
    described: dict[str, Any] = {
        "operationId": f"{operation.method.lower()}{re.sub(r'[^A-Za-z0-9]+', '_', operation.path)}".rstrip("_"),
        "summary": (inspect.getdoc(operation.handler) or "").split("\n")[0],
        "responses": {
            "200": {"description": "OK", "content": content},
            **{str(status): _error(status, schema_of[Error]) for status in sorted({*_GUARD, *operation.errors})},
        },
    }
    described["parameters"] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"{(\w+)}", operation.path)
    ] + [
        {"name": name, "in": "query", "description": text, "schema": {"type": "string"}}
        for name, text in operation.query.items()
    ]
    if operation.request is not None:
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema_of[operation.request]}},
        }
    return described


def _error(status: int, schema: dict[str, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "description": HTTPStatus(status).phrase,
        "content": {"application/json": {"schema": schema}},
    }
    if status in (429, 503):
        described["headers"] = {
            "Retry-After": {"description": "Seconds; where it helps to wait.", "schema": {"type": "integer"}}
        }
    return described


def _events(operation: Operation) -> str:
    kinds = " or, at the end, ".join(kind.__name__ for kind in operation.chunks)
    return f"With `stream`: events whose data is a {kinds} as JSON, or an Error."


def _nullable(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """A request's optional fields may be null, which counts as absent, also where the struct has a plain default."""
    if not name.endswith("Request"):
        return schema
    required = set(schema.get("required", ()))
    properties = {
        field: value if field in required or "anyOf" in value or "type" not in value else _or_null(value)
        for field, value in schema.get("properties", {}).items()
    }
    return {**schema, "properties": properties}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    default = {"default": schema["default"]} if "default" in schema else {}
    return {"anyOf": [{key: value for key, value in schema.items() if key != "default"}, {"type": "null"}], **default}
