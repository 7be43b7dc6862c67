"""The model, its tokenizer and its template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from typebar.server.schema.chat import Messages
from typebar.server.schema.fields import ModelFields


class ModelMeta(msgspec.Struct, kw_only=True):
    n_vocab: int
    n_ctx_train: int
    n_embd: int
    n_params: int
    size: int


class Model(msgspec.Struct, kw_only=True):
    id: str
    created: int
    owned_by: Literal["typebar"] = "typebar"
    object: Literal["model"] = "model"
    root: str
    parent: None = None
    max_model_len: int
    meta: ModelMeta


class ModelList(msgspec.Struct, kw_only=True):
    data: list[Model]
    object: Literal["list"] = "list"


class TemplateRequest(ModelFields, kw_only=True):
    """The messages of a chat, with what else its prompt depends on."""

    messages: Messages
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None


class TokenizeRequest(TemplateRequest, kw_only=True):
    """A text under `content` (llama-server) or `prompt` (vLLM), or the `messages` of a chat.

    `parse_special`: read control tokens written in the text.
    """

    messages: Messages | None = None
    content: str | None = None
    prompt: str | None = None
    add_special: bool = False
    add_special_tokens: bool | None = None
    parse_special: bool = True
    with_pieces: bool = False
    return_token_strs: bool = False


class Piece(msgspec.Struct, kw_only=True):
    """A token with its text, or its bytes where they are no text."""

    id: int
    piece: str | list[int]


class Tokens(msgspec.Struct, kw_only=True):
    tokens: Sequence[int | Piece]
    count: int
    max_model_len: int
    token_strs: list[str] | msgspec.UnsetType = msgspec.UNSET


class DetokenizeRequest(ModelFields, kw_only=True):
    tokens: list[int]


class Text(msgspec.Struct, kw_only=True):
    """The text under both names: llama-server's and vLLM's."""

    content: str
    prompt: str


class Prompt(msgspec.Struct, kw_only=True):
    prompt: str


class Health(msgspec.Struct, kw_only=True):
    status: Literal["ok"]


class Version(msgspec.Struct, kw_only=True):
    version: str


class Cancelled(msgspec.Struct, kw_only=True):
    """`cancelled`: how many requests of that id were ended."""

    id: str
    cancelled: int


class ErrorBody(msgspec.Struct, kw_only=True):
    """More keys may follow, such as n_prompt_tokens and n_ctx where a prompt is too long."""

    message: str
    type: str
    param: str | None
    code: str


class Error(msgspec.Struct, kw_only=True):
    error: ErrorBody
