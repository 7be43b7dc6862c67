"""What form an answer must have."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import lcm
from typing import Any, Literal

from typebar.errors import ParameterError

FORMS = ("json", "json_object", "choice", "regex")
MAX_GRAMMAR_CHARACTERS = 128 * 1024
MAX_SCHEMA_DEPTH = 64  # of arrays and objects in each other, in the schema as it is written
MAX_CHOICE_TEXTS = 1000
MAX_MULTIPLE = 10_000  # states of the automaton that a multipleOf takes: 62 million took gigabytes

# Between the parts of JSON: a space, or a new line and up to 7. With more a model could go on for ever, and with none a
# small one says less: of nine questions to the 0.5B model three were answered worse on one line.
_WHITE_SPACE = {"whitespace_flexible": True, "whitespace_pattern": r"\n {0,7}| "}


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """The form of an answer, exactly one of these, in vLLM's names. ParameterError for what is none of them.

    json: a JSON schema, as a mapping or as text; docs/api.md has what it may hold. json_object: True for any JSON
    object. choice: the answer is one of these texts, up to 1000. regex: all of the answer, in the syntax of Rust's
    regex crate, without look-around.

    Whether a schema or a regex can be kept to shows when a request is made from it: GrammarError, a ValueError, there.
    """

    json: Mapping[str, Any] | str | None = None
    json_object: bool = False
    choice: Iterable[str] | None = None
    regex: str | None = None
    form: Literal["json", "json_object", "choice", "regex"] = field(init=False, repr=False)
    grammar: tuple[str, str] = field(init=False, repr=False)  # of which kind, and its text, as llguidance takes it

    def __post_init__(self) -> None:
        if type(self.json_object) is not bool:
            raise ParameterError("structured_outputs.json_object", "true or false", self.json_object)
        forms = [name for name in FORMS if getattr(self, name) not in (None, False)]
        if len(forms) != 1:
            raise ParameterError("structured_outputs", f"one of {', '.join(FORMS)}", forms)
        [form] = forms
        value = getattr(self, form)
        grammar = {"json": _schema, "json_object": _any_object, "choice": _choice, "regex": _regex}[form](value)
        if len(grammar[1]) > MAX_GRAMMAR_CHARACTERS:
            raise _error(form, f"at most {MAX_GRAMMAR_CHARACTERS} characters", value)
        object.__setattr__(self, "form", form)
        object.__setattr__(self, "grammar", grammar)


def _schema(schema: Any) -> tuple[str, str]:
    expected = f"a JSON schema: an object, nested at most {MAX_SCHEMA_DEPTH} deep"
    try:
        value = json.loads(schema) if isinstance(schema, str) else schema
        if not isinstance(value, Mapping) or not _fits(value, MAX_SCHEMA_DEPTH):
            raise _error("json", expected, type(schema))
        text = json.dumps({**value, "x-guidance": _WHITE_SPACE}, allow_nan=False)
        multiple = _common_multiple(list(_multiples(value)))
    except (RecursionError, TypeError, UnicodeError, ValueError) as error:
        raise error if isinstance(error, ParameterError) else _error("json", expected, type(schema)) from error
    if multiple > MAX_MULTIPLE:
        raise _error("json", f"a schema with multipleOf of at most {MAX_MULTIPLE} last places in all", type(schema))
    return "json_schema", text


def _any_object(_: Any) -> tuple[str, str]:
    return _schema({"type": "object"})


def _choice(texts: Any) -> tuple[str, str]:
    expected = f"a list of up to {MAX_CHOICE_TEXTS} texts, none of them empty"
    if isinstance(texts, str | bytes | Mapping) or not isinstance(texts, Iterable):
        raise _error("choice", expected, texts)
    options = list(texts)
    if not 0 < len(options) <= MAX_CHOICE_TEXTS or not all(isinstance(text, str) and text for text in options):
        raise _error("choice", expected, texts)
    return "lark", "start: " + " | ".join(json.dumps(text) for text in options)


def _regex(pattern: Any) -> tuple[str, str]:
    if not isinstance(pattern, str) or not pattern:
        raise _error("regex", "a regular expression, not empty", pattern)
    return "regex", pattern


def _fits(value: Any, depth: int) -> bool:
    if isinstance(value, Mapping):
        return depth > 0 and all(_fits(item, depth - 1) for item in value.values())
    return not isinstance(value, list | tuple) or (depth > 0 and all(_fits(item, depth - 1) for item in value))


def _common_multiple(numbers: list[float]) -> int:
    """Of numbers as they are written without a point: 0.25 and 0.1 are 25 and 10."""
    from decimal import Decimal  # here, as it takes a millisecond to import

    exact = [Decimal(str(number)) for number in numbers]
    places = max((-int(number.as_tuple().exponent) for number in exact), default=0)
    return lcm(*(int(number.scaleb(places)) for number in exact))


def _multiples(value: Any) -> Iterator[float]:
    """Every multipleOf in a schema; allOf may join them."""
    if isinstance(value, Mapping):
        number = value.get("multipleOf")
        if isinstance(number, int | float):
            yield number
    if isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _multiples(item)


def _error(form: str, expected: str, value: object) -> ParameterError:
    return ParameterError(f"structured_outputs.{form}", expected, value)
