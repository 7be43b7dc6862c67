"""From the fields of a request to the form that its answer must have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from typebar.engine.guidance import GrammarError
from typebar.engine.structured import StructuredOutputsParams
from typebar.errors import ParameterError
from typebar.server.errors import APIError
from typebar.server.prompts import Prompter
from typebar.server.schema.sampling import FORMATS, ResponseFormat


@dataclass(frozen=True, slots=True)
class Form:
    """What an answer must be like, and the field of the request that says so."""

    params: StructuredOutputsParams
    field: str


def wanted_form(format: ResponseFormat | None) -> Form | None:
    """What OpenAI's response_format asks for; None for any text. APIError, which names the field, for what is none.

    llama-server's `schema` beside the type is taken too.
    """
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
