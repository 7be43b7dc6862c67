"""What form an answer must have."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from math import lcm
from typing import Any, Literal

from typebar.errors import ParameterError

FORMS = ("json", "json_object", "choice", "regex")
MAX_GRAMMAR_BYTES = 128 * 1024
MAX_SCHEMA_DEPTH = 64  # of arrays and objects in each other, in the schema as it is written
MAX_CHOICE_TEXTS = 1000
MAX_REGEX_CHARACTERS = 4096  # of a regex, and of all patterns of a schema: 40 000 took 8 s and 0.8 GB to compile
# Patterns and formats of a schema that may have to hold at the same time: whether any text fits all of them is searched
# for, twice as long for each: 10 take some milliseconds, 16 took 4 s.
MAX_JOINED_PATTERNS = 10
MAX_PATTERNS = 64  # otherwise; keys of patternProperties are compared in pairs: 300 took 15 s
MAX_MULTIPLE = 10_000  # states of the automaton that a multipleOf takes: 62 million took gigabytes

# Between the parts of JSON: a space, or a new line and up to 7. With more a model could go on for ever, and with none a
# small one says less: of nine questions to the 0.5B model three were answered worse on one line.
_WHITE_SPACE = {"whitespace_flexible": True, "whitespace_pattern": r"\n {0,7}| "}

_SCALARS = frozenset((str, int, float, bool, type(None)))  # asked for first: to ask for a Mapping takes 0.3 us
_CONTAINERS = (Mapping, list, tuple)


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
            raise ParameterError("structured_outputs.json_object", "true or false", type(self.json_object))
        forms = [name for name in FORMS if getattr(self, name) not in (None, False)]
        if len(forms) != 1:
            raise ParameterError("structured_outputs", f"one of {', '.join(FORMS)}", forms)
        [form] = forms
        value = getattr(self, form)
        grammar = {"json": _schema, "json_object": _any_object, "choice": _choice, "regex": _regex}[form](value)
        _check_text(form, grammar[1])
        object.__setattr__(self, "form", form)
        object.__setattr__(self, "grammar", grammar)


def _check_text(form: str, text: str) -> None:
    """Before it goes where a NUL would end it."""
    try:
        if len(text) > MAX_GRAMMAR_BYTES or len(text.encode()) > MAX_GRAMMAR_BYTES:
            raise _too_large(form)
    except UnicodeEncodeError:
        raise _error(form, "Unicode text, without halves of surrogate pairs", text) from None
    if "\0" in text:
        raise _error(form, r"without NUL, which is written \x00", text)


def _schema(schema: Any) -> tuple[str, str]:
    expected = f"a JSON schema: an object, nested at most {MAX_SCHEMA_DEPTH} deep"
    try:
        if isinstance(schema, str):
            _check_text("json", schema)
        value = json.loads(schema) if isinstance(schema, str) else schema
        if not isinstance(value, Mapping):
            raise _error("json", expected, type(schema))
        contents = _contents(value)
        text = json.dumps({**value, "x-guidance": _WHITE_SPACE}, allow_nan=False, ensure_ascii=False)
        _check_multiples(contents.multiples)
        _check_patterns(contents)
    except (ArithmeticError, RecursionError, TypeError, UnicodeError, ValueError) as error:
        raise error if isinstance(error, ParameterError) else _error("json", expected, type(schema)) from error
    return "json_schema", text


def _any_object(_: Any) -> tuple[str, str]:
    return _schema({"type": "object"})


def _choice(texts: Any) -> tuple[str, str]:
    expected = f"a list of up to {MAX_CHOICE_TEXTS} texts, none of them empty"
    if isinstance(texts, str | bytes | Mapping) or not isinstance(texts, Iterable):
        raise _error("choice", expected, type(texts))
    options = list(islice(texts, MAX_CHOICE_TEXTS + 1))
    if not 0 < len(options) <= MAX_CHOICE_TEXTS or not all(isinstance(text, str) and text for text in options):
        raise _error("choice", expected, type(texts))
    if sum(map(len, options)) > MAX_GRAMMAR_BYTES:
        raise _too_large("choice")
    quoted = " | ".join(json.dumps(text, ensure_ascii=False) for text in options)
    return "lark", "start: " + quoted.replace("\x7f", r"\u007f")  # the only character that its texts must not hold


def _regex(pattern: Any) -> tuple[str, str]:
    if not isinstance(pattern, str) or not pattern:
        raise _error("regex", "a regular expression, not empty", type(pattern))
    if len(pattern) > MAX_REGEX_CHARACTERS:
        raise _error("regex", f"at most {MAX_REGEX_CHARACTERS} characters", len(pattern))
    return "regex", pattern


@dataclass(slots=True)
class _Contents:
    """What of a schema is dear to compile, wherever it stands. `joins`: it has allOf or $ref, which join patterns."""

    multiples: list[float] = field(default_factory=list)
    patterns: list[str] = field(default_factory=list)  # and names of formats
    joins: bool = False

    def add(self, schema: Mapping[Any, Any]) -> None:
        number = schema.get("multipleOf")
        if isinstance(number, int | float) and not isinstance(number, bool):
            self.multiples.append(number)
        self.patterns += [text for name in ("pattern", "format") if isinstance(text := schema.get(name), str)]
        keys = schema.get("patternProperties")
        self.patterns += map(str, keys) if isinstance(keys, Mapping) else ()
        self.joins = self.joins or "allOf" in schema or "$ref" in schema


def _contents(schema: Any) -> _Contents:
    """Read level by level.

    ParameterError where it is too deep or too large, which shows before much is read: entries and characters count.
    """
    contents = _Contents()
    level, size = [schema], 0
    for _ in range(MAX_SCHEMA_DEPTH):
        containers = [value for value in level if type(value) not in _SCALARS and isinstance(value, _CONTAINERS)]
        size += sum(map(len, containers)) + sum(len(value) for value in level if type(value) is str)
        size += sum(value.bit_length() // 4 for value in level if type(value) is int)  # fewer than it has digits
        if size > MAX_GRAMMAR_BYTES:
            raise _too_large("json")
        if not containers:
            return contents
        mappings = [value for value in containers if isinstance(value, Mapping)]
        for mapping in mappings:
            contents.add(mapping)
        level = [item for value in containers for item in (value.values() if isinstance(value, Mapping) else value)]
        size += sum(len(str(key)) for mapping in mappings for key in mapping)
    if any(isinstance(value, _CONTAINERS) for value in level):
        raise _error("json", f"a JSON schema nested at most {MAX_SCHEMA_DEPTH} deep", type(schema))
    return contents


def _check_patterns(contents: _Contents) -> None:
    most = MAX_JOINED_PATTERNS if contents.joins else MAX_PATTERNS
    if len(contents.patterns) > most:
        where = " beside allOf or $ref" if contents.joins else ""
        raise _error("json", f"a schema of at most {most} patterns and formats{where}", len(contents.patterns))
    characters = sum(map(len, contents.patterns))
    if characters > MAX_REGEX_CHARACTERS:
        raise _error("json", f"a schema whose patterns have at most {MAX_REGEX_CHARACTERS} characters", characters)


def _check_multiples(numbers: list[float]) -> None:
    """Their common multiple must be small, as they are written without a point: 0.25 and 0.1 are 25 and 10."""
    from decimal import Decimal  # here, as it takes a millisecond to import

    if any(number <= 0 for number in numbers):
        raise _error("json", "a schema with every multipleOf above 0", dict)
    exact = [Decimal(str(number)) for number in numbers]
    places = max((-int(number.as_tuple().exponent) for number in exact), default=0)
    multiple = 1
    for number in exact:
        multiple = lcm(multiple, int(number.scaleb(places)))
        if multiple > MAX_MULTIPLE:
            raise _error("json", f"a schema whose multipleOf have a common multiple of at most {MAX_MULTIPLE}", dict)


def _too_large(form: str) -> ParameterError:
    return ParameterError(f"structured_outputs.{form}", f"at most {MAX_GRAMMAR_BYTES // 1024} KiB", "more")


def _error(form: str, expected: str, value: object) -> ParameterError:
    return ParameterError(f"structured_outputs.{form}", expected, value)
