"""The OpenAPI 3.1 document, made from the table of routes and the structs that the routes check with."""

from __future__ import annotations

import inspect
import re
from http import HTTPStatus
from typing import Any

import msgspec

from typebar import __version__
from typebar.engine.params import MAX_CHOICES, MAX_LOGPROBS, MAX_STOP_CHARACTERS, MAX_STOP_STRINGS
from typebar.server.routes import OPERATIONS, Operation
from typebar.server.schema.models import Error

_COUNT = {"integer": {"minimum": 1}}
_PENALTY = {"number": {"minimum": -2, "maximum": 2}}
_REPETITION = {"number": {"minimum": 0.01, "maximum": 100}}
_SHARE = {"number": {"exclusiveMinimum": 0, "maximum": 1}}
_ALTERNATIVES = {"integer": {"minimum": 0, "maximum": MAX_LOGPROBS}}
_SECONDS = {"number": {"minimum": 0}}
# What SamplingParams and the routes check beyond types: by field and type.
RANGES: dict[str, dict[str, dict[str, Any]]] = {
    "temperature": {"number": {"minimum": 0}},
    "top_p": _SHARE,
    "top_k": {"integer": {"minimum": -1}},
    "min_p": {"number": {"minimum": 0, "maximum": 1}},
    "repetition_penalty": _REPETITION,
    "repeat_penalty": _REPETITION,
    "frequency_penalty": _PENALTY,
    "presence_penalty": _PENALTY,
    "logit_bias": {
        "object": {
            "propertyNames": {"pattern": "^[0-9]+$"},
            "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
        },
    },
    "seed": {"integer": {"minimum": -(1 << 63), "maximum": (1 << 64) - 1}},
    "n": {"integer": {"minimum": 1, "maximum": MAX_CHOICES}},
    "max_tokens": _COUNT,
    "max_completion_tokens": _COUNT,
    "n_predict": {"integer": {"minimum": -1, "not": {"const": 0}}},
    "min_tokens": {"integer": {"minimum": 0}},
    "stop": {"string": {"maxLength": MAX_STOP_CHARACTERS}, "array": {"maxItems": MAX_STOP_STRINGS}},
    "stop_token_ids": {"array": {"items": {"type": "integer", "minimum": 0}}},
    "truncate_prompt_tokens": {"integer": {"minimum": -1, "not": {"const": 0}}},
    "top_logprobs": _ALTERNATIVES,
    "logprobs": _ALTERNATIVES,
    "n_probs": _ALTERNATIVES,
    "max_time": _SECONDS,
    "t_max_predict_ms": _SECONDS,
}

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
            "schemas": {name: _request(name, schema) for name, schema in components.items()},
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
        content["text/event-stream"] = {"schema": _event([schema_of[kind] for kind in (*operation.chunks, Error)])}
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


def _event(kinds: list[dict[str, Any]]) -> dict[str, Any]:
    """One event of a stream."""
    data = {"contentMediaType": "application/json", "contentSchema": {"anyOf": kinds}}
    return {
        "description": "With `stream`: each event. The last is [DONE], but for /completion.",
        "type": "object",
        "properties": {"data": {"type": "string", "if": {"const": "[DONE]"}, "else": data}},
        "required": ["data"],
    }


def _request(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a request with the ranges of its fields. Optional ones may be null, which counts as absent, also
    where the struct has a plain default."""
    if not name.endswith("Request"):
        return schema
    required = schema.get("required", ())
    properties = {
        field: value if field in required else _field(field, value)
        for field, value in schema.get("properties", {}).items()
    }
    return {**schema, "properties": properties}


def _field(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    default = schema.pop("default", None)
    options = schema.get("anyOf", [schema] if schema else [])
    ranged = [{**option, **RANGES.get(name, {}).get(option.get("type"), {})} for option in options]
    if ranged and {"type": "null"} not in ranged:
        ranged.append({"type": "null"})
    return {**({"anyOf": ranged} if ranged else {}), "default": default}
