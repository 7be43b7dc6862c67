"""Every route once: the server is built from this table, and /openapi.json describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from typebar.server import chat, completion, models, native, operations
from typebar.server.exchange import Handler
from typebar.server.schema import chat as chat_schema
from typebar.server.schema import completion as completion_schema
from typebar.server.schema import models as models_schema
from typebar.server.schema import native as native_schema
from typebar.server.status import Status, status


@dataclass(frozen=True, slots=True)
class Operation:
    """A method on a path. `request`, `response` and `chunks` (of its stream) are structs; `text` instead of JSON.

    query: names of query parameters, with what they do.
    """

    method: str
    path: str
    handler: Handler
    response: Any
    request: type | None = None
    chunks: tuple[type, ...] = ()
    query: Mapping[str, str] = field(default_factory=dict)
    text: bool = False
    errors: tuple[int, ...] = (503,)


_GENERATE = (400, 404, 408, 413, 415, 429, 500, 503, 504)
_READ = (400, 404, 408, 413, 415, 503)

OPERATIONS = (
    Operation("POST", "/v1/chat/completions", chat.chat_completions, chat_schema.ChatCompletion,
              chat_schema.ChatRequest, (chat_schema.ChatChunk,), errors=_GENERATE),
    Operation("POST", "/v1/completions", completion.completions, completion_schema.Completion,
              completion_schema.CompletionRequest, (completion_schema.Completion,), errors=_GENERATE),
    Operation("POST", "/v1/requests/{id}/cancel", operations.cancel, models_schema.Cancelled, errors=(404, 503)),
    Operation("GET", "/v1/models", models.list_models, models_schema.ModelList),
    Operation("GET", "/v1/models/{id}", models.get_model, models_schema.Model, errors=(404, 503)),
    Operation("POST", "/tokenize", models.tokenize, models_schema.Tokens, models_schema.TokenizeRequest,
              errors=_READ),
    Operation("POST", "/detokenize", models.detokenize, models_schema.Text, models_schema.DetokenizeRequest,
              errors=_READ),
    Operation("POST", "/apply-template", models.apply_template, models_schema.Prompt, models_schema.TemplateRequest,
              errors=_READ),
    Operation("POST", "/completion", native.completion, native_schema.NativeCompletion, native_schema.NativeRequest,
              (native_schema.NativeChunk, native_schema.NativeCompletion), errors=_GENERATE),
    Operation("GET", "/props", native.props, native_schema.Props),
    Operation("GET", "/slots", native.slots, list[native_schema.Slot],
              query={"fail_on_no_slot": "1: status 503 where no slot is free"}),
    Operation("GET", "/health", operations.health, models_schema.Health),
    Operation("GET", "/v1/health", operations.health, models_schema.Health),
    Operation("GET", "/v1/status", status, Status),
    Operation("GET", "/metrics", operations.metrics, str, text=True),
    Operation("GET", "/version", operations.version, models_schema.Version, errors=()),
)  # fmt: skip
