"""The OpenAPI 3.1 document, made from the table of routes and the structs that the routes check with."""

from __future__ import annotations

import inspect
import re
from typing import Any

import msgspec

from typebar import __version__
from typebar.server.routes import OPERATIONS, Operation
from typebar.server.schema.models import Error

REF = "#/components/schemas/{name}"


def document() -> dict[str, Any]:
    """The document as plain data."""
    types = [kind for operation in OPERATIONS for kind in (operation.request, operation.response, operation.chunk)]
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
            "description": "OpenAI's routes, llama-server's and typebar's own, over one small language model.",
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
    content = {"text/plain" if operation.text else "application/json": {"schema": schema}}
    if operation.chunk is not None:
        content["text/event-stream"] = {"schema": {"type": "string", "description": "Events, each a chunk as JSON."}}
    error = {"application/json": {"schema": schema_of[Error]}}
    described: dict[str, Any] = {
        "operationId": f"{operation.method.lower()}{re.sub(r'[^A-Za-z0-9]+', '_', operation.path)}".rstrip("_"),
        "summary": (inspect.getdoc(operation.handler) or "").split("\n")[0],
        "responses": {
            "200": {"description": "OK", "content": content},
            **{str(status): {"description": "Error", "content": error} for status in (401, 403, *operation.errors)},
        },
    }
    if names := re.findall(r"{(\w+)}", operation.path):
        described["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in names
        ]
    if operation.request is not None:
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema_of[operation.request]}},
        }
    return described


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
