"""llama-server's own routes, in its field names."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from typebar.server.schema.sampling import PromptProgress, Prompts, SamplingFields, Timings


class NativeRequest(SamplingFields, kw_only=True):
    """POST /completion. `prompt`: a string, token ids, ids and strings mixed, or a list of one of these."""

    prompt: Prompts
    n_probs: int | None = None
    return_tokens: bool = False
    id_slot: int | None = None


class NativeCompletion(msgspec.Struct, kw_only=True):
    """`stop_type`: eos (the model ended it), word (a stop string), limit (max tokens, context or time) or none."""

    content: str
    tokens: list[int]
    stop: Literal[True] = True
    stop_type: Literal["none", "eos", "limit", "word"]
    stopping_word: str
    model: str
    prompt: str
    id_slot: int
    index: int
    tokens_predicted: int
    tokens_evaluated: int
    tokens_cached: int
    truncated: bool
    has_new_line: bool
    generation_settings: dict[str, Any]
    timings: Timings
    completion_probabilities: list[NativeProbability] | msgspec.UnsetType = msgspec.UNSET


class NativeChunk(msgspec.Struct, kw_only=True):
    content: str
    tokens: list[int]
    stop: Literal[False] = False
    index: int
    id_slot: int
    tokens_predicted: int
    tokens_evaluated: int
    prompt_progress: PromptProgress | msgspec.UnsetType = msgspec.UNSET
    completion_probabilities: list[NativeProbability] | msgspec.UnsetType = msgspec.UNSET


class NativeTopProbability(msgspec.Struct, kw_only=True):
    id: int
    token: str
    bytes: list[int]
    logprob: float


class NativeProbability(NativeTopProbability, kw_only=True):
    top_logprobs: list[NativeTopProbability]


class DefaultGenerationSettings(msgspec.Struct, kw_only=True):
    n_ctx: int
    params: dict[str, Any]


class Props(msgspec.Struct, kw_only=True):
    default_generation_settings: DefaultGenerationSettings
    total_slots: int
    model_path: str
    model_alias: str
    chat_template: str
    chat_template_caps: dict[str, bool]
    modalities: dict[str, bool]
    build_info: str
    is_sleeping: bool = False


class NextToken(msgspec.Struct, kw_only=True):
    has_next_token: bool
    has_new_line: bool
    n_remain: int
    n_decoded: int


class Slot(msgspec.Struct, kw_only=True):
    """A seat for one sequence. No text of any request is told."""

    id: int
    id_task: int
    n_ctx: int
    speculative: bool
    is_processing: bool
    params: dict[str, Any]
    next_token: NextToken
