"""From a JSON object to a request struct: types, unknown fields, fields that are refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from typebar.server.errors import APIError

T = TypeVar("T", bound="ModelFields")

MAX_WARNED = 20

# Fields that would change the answer in a way that typebar cannot: sent with a value that is not neutral, they are
# refused, since an answer without what they ask for would be wrong.
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "best_of": ((1,), "n answers are drawn and all are returned; use n"),
    "use_beam_search": ((False,), "there is no beam search"),
    "prompt_logprobs": ((), "log-probabilities are given for the answer only"),
    "functions": (([],), "function calling is not supported"),
    "function_call": (("none",), "function calling is not supported"),
    "modalities": ((["text"], []), "the model writes text only"),
    "audio": ((), "the model writes text only"),
    "prediction": ((), "predicted outputs are not supported"),
    "suffix": (("",), "text is continued, not filled in"),
    "guided_grammar": ((), "use response_format, guided_regex or guided_choice"),
    "grammar": (("",), "use json_schema, guided_regex or guided_choice"),
    "allowed_token_ids": (([],), "use logit_bias"),
    "bad_words": (([],), "use logit_bias"),
    "lora": (([],), "there are no adapters"),
    "chat_template": ((), "the model's own template is used"),
    "documents": (([],), "put them into a message"),
}


class ModelFields(msgspec.Struct, kw_only=True):
    """What every request has."""

    model: str | None = None


_VALIDATION = re.compile(r"(?P<problem>.*?)(?: - at `(?P<path>.*)`)?", re.DOTALL)
_NAMES = {"int": "an integer", "float": "a number", "str": "a string", "bool": "true or false", "array": "a list",
          "object": "an object", "null": "null"}  # fmt: skip
_EXPECTED = re.compile(r"Expected `(?P<types>[^`]*)`, got `(?P<got>[^`]*)`")


def read_fields(data: Mapping[str, Any], kind: type[T]) -> tuple[T, list[str]]:
    """The request in `data` and the names of fields that were ignored. APIError 400 names the field that is wrong.

    A field that is null counts as absent.
    """
    given = {name: value for name, value in data.items() if value is not None}
    known = kind.__struct_fields__
    ignored: list[str] = []
    for name, value in given.items():
        if name in known:
            continue
        if name in REFUSED and not _is_neutral(value, REFUSED[name][0]):
            raise APIError(400, f"{_shown(name)} is not supported: {REFUSED[name][1]}", param=name, code="unsupported")
        if name not in REFUSED and len(ignored) < MAX_WARNED:
            ignored.append(_shown(name))
    try:
        fields = msgspec.convert({name: given[name] for name in given if name in known}, kind)
    except msgspec.ValidationError as error:
        raise _type_error(str(error)) from None
    return fields, ignored


def _is_neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    return any(type(value) is type(other) and value == other for other in neutral)


def _shown(name: str) -> str:
    """A field's name as it may stand in a header or a message."""
    return re.sub(r"[^A-Za-z0-9_.\-]", "?", name[:40])


def _type_error(text: str) -> APIError:
    """msgspec's "Expected `int`, got `str` - at `$.n`" in words for people."""
    match = _VALIDATION.fullmatch(text)
    assert match is not None
    problem, path = match["problem"], (match["path"] or "$").removeprefix("$").lstrip(".").removesuffix("[...]")
    if missing := re.fullmatch(r"Object missing required field `(\w+)`", problem):
        path = f"{path}.{missing[1]}".lstrip(".")
        return APIError(400, f"{path} is missing", param=path, code="missing_required_parameter")
    if types := _EXPECTED.match(problem):
        names = [_NAMES.get(name.strip(), name.strip()) for name in types["types"].split("|") if name.strip() != "null"]
        problem = f"must be {' or '.join(names)}, got {_NAMES.get(types['got'], types['got'])}"
    elif problem == "Number out of range":
        problem = "is out of range"
    return APIError(400, f"{path or 'the request'} {problem}", param=path or None, code="invalid_type")
