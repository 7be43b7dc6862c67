"""POST /v1/completions."""

from __future__ import annotations

from typing import Literal

import msgspec

from typebar.server.schema.sampling import (
    PromptProgress,
    Prompts,
    SamplingFields,
    StreamOptions,
    Timings,
    Usage,
)

FinishReason = Literal["stop", "length"]


class CompletionRequest(SamplingFields, kw_only=True):
    """Text to continue. `prompt`: a string, token ids, or a list of either."""

    prompt: Prompts
    logprobs: int | None = None
    echo: bool = False
    add_special_tokens: bool = True
    return_cache_miss: bool = False
    stream_options: StreamOptions | None = None


class CompletionLogprobs(msgspec.Struct, kw_only=True):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, kw_only=True):
    """`finish_reason` is null in all chunks of a stream but the last."""

    index: int
    text: str
    finish_reason: FinishReason | None
    logprobs: CompletionLogprobs | None = None
    stop_reason: str | int | msgspec.UnsetType | None = msgspec.UNSET


class Completion(msgspec.Struct, kw_only=True):
    """The answer, and in a stream each chunk of it."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    object: Literal["text_completion"] = "text_completion"
    system_fingerprint: str
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    timings: Timings | msgspec.UnsetType = msgspec.UNSET
    prompt_progress: PromptProgress | msgspec.UnsetType = msgspec.UNSET
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET
