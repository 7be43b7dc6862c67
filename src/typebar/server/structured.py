"""From the fields of a request to the form that its answer must have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from typebar.engine.guidance import GrammarError
from typebar.engine.structured import FORMS, StructuredOutputsParams
from typebar.errors import ParameterError
from typebar.server.errors import APIError
from typebar.server.prompts import Prompter
from typebar.server.schema.sampling import FORMATS, SamplingFields

# The field for each form that vLLM had until 2025, and llama-server's.
_FIELDS = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "json_schema": "json"}


@dataclass(frozen=True, slots=True)
class Form:
    """What an answer must be like, and the field of the request that says so."""

    params: StructuredOutputsParams
    field: str


def wanted_form(fields: SamplingFields) -> Form | None:
    """What a request says of the form of its answer, None for any text. APIError, which names the field, for what is
    none, and where two fields ask for one."""
    wanted = [form for form in (_openai(fields), _vllm(fields), *_older(fields)) if form is not None]
    if len(wanted) > 1:
        raise APIError(400, f"{wanted[1].field} cannot stand beside {wanted[0].field}", param=wanted[1].field,
                       code="invalid_value")  # fmt: skip
    return wanted[0] if wanted else None


def _openai(fields: SamplingFields) -> Form | None:
    """response_format; llama-server's `schema` beside its type is taken too."""
    format = fields.response_format
    if format is None or format.type == "text":
        return None
    if format.type not in FORMATS:
        raise APIError(400, f"response_format.type must be one of {', '.join(FORMATS)}",
                       param="response_format.type", code="invalid_value")  # fmt: skip
    if format.type == "json_schema" and format.json_schema is not None:
        return _form("response_format.json_schema.schema", json=format.json_schema.schema)
    if format.schema is not None:
        return _form("response_format.schema", json=format.schema)
    if format.type == "json_object":
        return _form("response_format", json_object=True)
    raise APIError(400, 'response_format.json_schema is missing: {"name": "…", "schema": {…}}',
                   param="response_format.json_schema", code="missing_required_parameter")  # fmt: skip


def _vllm(fields: SamplingFields) -> Form | None:
    given = {name: value for name, value in (fields.structured_outputs or {}).items() if value not in (None, False)}
    if not given:
        return None
    for name in given:
        if name not in FORMS:
            param = f"structured_outputs.{name}" if name in ("grammar", "structural_tag") else "structured_outputs"
            raise APIError(400, f"{param} is not supported: give one of {', '.join(FORMS)}", param=param,
                           code="unsupported")  # fmt: skip
    return _form(f"structured_outputs.{next(iter(given))}" if len(given) == 1 else "structured_outputs", **given)


def _older(fields: SamplingFields) -> Iterator[Form]:
    for field, form in _FIELDS.items():
        if (value := getattr(fields, field)) is not None:
            yield _form(field, **{form: value})


async def compiled(prompter: Prompter, form: Form | None) -> object:
    """The grammar of a form, made beside the event loop; to be held until the request is submitted, which needs it.

    APIError where the form cannot be kept to.
    """
    if form is None:
        return None
    try:
        return await prompter.compile(form.params)
    except GrammarError as error:
        raise APIError(400, f"{form.field} cannot be kept to: {error.reason}", param=form.field,
                       code="invalid_value") from None  # fmt: skip


def _form(field: str, **form: Any) -> Form:
    try:
        return Form(StructuredOutputsParams(**form), field)
    except ParameterError as error:
        raise APIError(400, f"{field} must be {error.expected}", param=field, code="invalid_value") from None
