"""The fields that all generating routes share."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from typebar.server.schema.fields import ModelFields

MAX_INTERVAL = 1000  # ms between events of a stream

_TEXT = {"type": "string", "minLength": 1}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
# Described here, checked by server.prompts: msgspec has no union of lists.
Prompts = Annotated[
    Any,
    msgspec.Meta(
        extra_json_schema={
            "anyOf": [
                _TEXT,
                _IDS,
                {"type": "array", "items": {"anyOf": [_TEXT, _IDS]}, "minItems": 1},
            ]
        }
    ),
]


class SamplingFields(ModelFields, kw_only=True):
    """How tokens are drawn, in OpenAI's names with vLLM's and llama-server's extras. Absent fields take the server's
    defaults."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    repeat_penalty: float | None = None  # llama-server's name of repetition_penalty
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | list[list[float | bool]] | None = None
    seed: int | None = None
    n: int | None = None

    max_tokens: int | None = None
    n_predict: int | None = None  # llama-server's name of max_tokens; -1: no limit
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None

    cache_prompt: bool | None = None
    cache_salt: str | None = None
    max_time: float | None = None  # seconds from arrival to the end of the answer
    t_max_predict_ms: float | None = None  # llama-server's name of max_time, in milliseconds

    response_format: ResponseFormat | None = None
    structured_outputs: dict[str, Any] | None = None  # vLLM's: one of json, json_object, regex and choice
    guided_json: dict[str, Any] | str | None = None  # vLLM's names before that
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    json_schema: dict[str, Any] | None = None  # llama-server's

    stream: bool = False
    return_progress: bool = False
    sse_ping_interval: float | None = None


class StreamOptions(msgspec.Struct, kw_only=True):
    """`interval_ms`: least time between two events with text of one answer, which gather what comes meanwhile."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    interval_ms: Annotated[float | None, msgspec.Meta(extra_json_schema={"minimum": 0, "maximum": MAX_INTERVAL})] = None


FORMATS = ("text", "json_object", "json_schema")


class JSONSchema(msgspec.Struct, kw_only=True):
    """`strict` or not, the answer keeps to the schema."""

    schema: dict[str, Any]
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    """The form of the answer. `schema`: llama-server's place of a schema."""

    type: Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(FORMATS)})]
    schema: dict[str, Any] | None = None
    json_schema: JSONSchema | None = None


class PromptTokensDetails(msgspec.Struct, kw_only=True, omit_defaults=True):
    cached_tokens: int
    cache_miss: CacheMiss | None = None


class CacheMiss(msgspec.Struct, kw_only=True):
    """Where the reuse of an earlier prompt ended: `text` is what stands there in this one."""

    position: int
    text: str


class CompletionTokensDetails(msgspec.Struct, kw_only=True):
    reasoning_tokens: int = 0


class Usage(msgspec.Struct, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class Timings(msgspec.Struct, kw_only=True):
    """llama-server's names; milliseconds. `queue_ms`: until the first step; `ttft_ms`: until the first token."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    queue_ms: float
    ttft_ms: float


class PromptProgress(msgspec.Struct, kw_only=True):
    """Tokens of the prompt: all, reused, computed or reused so far."""

    total: int
    cache: int
    processed: int
    time_ms: float
