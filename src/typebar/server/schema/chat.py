"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from typebar.server.schema.sampling import PromptProgress, SamplingFields, StreamOptions, Timings, Usage
from typebar.text.messages import ROLES

FinishReason = Literal["stop", "length"]

_CONTENT = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                "required": ["type", "text"],
            },
        },
    ],
    "description": "Only beside tool_calls it may be missing.",
}
_MESSAGE = {
    "type": "object",
    "properties": {"role": {"enum": list(ROLES)}, "content": _CONTENT, "name": {"type": ["string", "null"]}},
    "required": ["role", "content"],
}
# Described here, checked by text.messages, which says more of what is wrong than a type can.
Messages = Annotated[Any, msgspec.Meta(extra_json_schema={"type": "array", "items": _MESSAGE, "minItems": 1})]


class ChatRequest(SamplingFields, kw_only=True):
    """A conversation to answer."""

    messages: Messages
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    echo: bool = False
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_cache_miss: bool = False
    stream_options: StreamOptions | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None


class TopLogprob(msgspec.Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, kw_only=True):
    """`logprob`: natural logarithm, in the model's own distribution; never below -9999."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(msgspec.Struct, kw_only=True):
    content: list[TokenLogprob]
    refusal: None = None


class ChatMessage(msgspec.Struct, kw_only=True):
    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct, kw_only=True):
    index: int
    message: ChatMessage
    finish_reason: FinishReason
    logprobs: ChoiceLogprobs | None = None
    stop_reason: str | int | None = None


class ChatCompletion(msgspec.Struct, kw_only=True):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    timings: Timings
    object: Literal["chat.completion"] = "chat.completion"
    system_fingerprint: str
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET


class ChatDelta(msgspec.Struct, kw_only=True):
    role: Literal["assistant"] | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType = msgspec.UNSET


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    index: int
    delta: ChatDelta
    finish_reason: FinishReason | None = None
    logprobs: ChoiceLogprobs | None = None
    stop_reason: str | int | msgspec.UnsetType | None = msgspec.UNSET


class ChatChunk(msgspec.Struct, kw_only=True):
    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    system_fingerprint: str
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    timings: Timings | msgspec.UnsetType = msgspec.UNSET
    prompt_progress: PromptProgress | msgspec.UnsetType = msgspec.UNSET
