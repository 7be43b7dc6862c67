"""Strict reading of answers as the openai package's own types, whose client alone takes anything."""

import json
from collections.abc import Iterator
from typing import TypeVar

from openai import BaseModel
from openai.types import Completion

Answer = TypeVar("Answer", bound=BaseModel)

# What typebar sends beyond OpenAI's fields, by the type that holds it.
EXTRAS = {
    "ChatCompletion": {"timings", "warnings"},
    "ChatCompletionChunk": {"timings", "prompt_progress"},
    "Completion": {"timings", "warnings", "prompt_progress"},
    "Choice": {"stop_reason"},
    "CompletionChoice": {"stop_reason"},
    "PromptTokensDetails": {"cache_miss"},
    "Model": {"root", "parent", "max_model_len", "meta"},
}


def checked(answer: Answer) -> Answer:
    """The same answer, after every type, enumeration and key in it was found to be one that OpenAI documents."""
    sent = answer.to_dict(warnings=False)
    if isinstance(answer, Completion):
        _close_choices(sent)
    parsed = type(answer).model_validate_json(json.dumps(sent), strict=True)
    unknown = set(_extras(parsed))
    assert not unknown, f"undocumented keys: {unknown}"
    return answer


def _close_choices(sent: dict[str, object]) -> None:
    """OpenAI sends finish_reason null in all chunks of a text completion but the last; its type leaves that out."""
    choices = sent["choices"]
    assert isinstance(choices, list)
    for choice in choices:
        if choice["finish_reason"] is None:
            choice["finish_reason"] = "stop"


def _extras(value: object) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _extras(item)
    elif isinstance(value, BaseModel):
        kind = type(value).__name__
        yield from (f"{kind}.{name}" for name in value.model_extra or () if name not in EXTRAS.get(kind, ()))
        for name in type(value).model_fields:
            yield from _extras(getattr(value, name))
