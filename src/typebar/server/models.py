"""The model, its tokenizer and its template: /v1/models, /tokenize, /detokenize, /apply-template."""

from __future__ import annotations

from msgspec import UNSET

from typebar.server.answers import token_text
from typebar.server.errors import APIError
from typebar.server.exchange import Exchange
from typebar.server.prompts import chat_arguments, count_chars
from typebar.server.schema.chat import ChatRequest
from typebar.server.schema.models import (
    DetokenizeRequest,
    Model,
    ModelList,
    ModelMeta,
    Piece,
    Prompt,
    TemplateRequest,
    Text,
    TokenizeRequest,
    Tokens,
)
from typebar.server.state import Serving
from typebar.text.tokenizer import Tokenizer

MAX_TEXT = 1_000_000  # characters: tokenized in 50 ms beside the others, who notice nothing
MAX_TOKENS = 200_000  # of which each is told by itself; a million hold up the event loop for half a second


async def list_models(exchange: Exchange) -> None:
    """The model under each of its names."""
    serving = exchange.ready()
    await exchange.json(ModelList(data=[_model(serving, name) for name in serving.names]))


async def get_model(exchange: Exchange) -> None:
    """One model by name."""
    serving = exchange.ready()
    name = exchange.path["id"]
    serving.check_model(name, strict=True)
    await exchange.json(_model(serving, name))


async def tokenize(exchange: Exchange) -> None:
    """Token ids of a text or a conversation."""
    serving, fields = await exchange.fields(TokenizeRequest)
    tokenizer = serving.engine.tokenizer
    if fields.messages is not None:
        _check_size("messages", count_chars(fields.messages))
        tokens = await serving.prompter.chat(_chat(fields))
    else:
        text = fields.content if fields.content is not None else fields.prompt
        if text is None:
            raise APIError(400, "content is missing", param="content", code="missing_required_parameter")
        _check_size("content" if fields.content is not None else "prompt", len(text))
        add_special = fields.add_special if fields.add_special_tokens is None else fields.add_special_tokens
        tokens = await serving.prompter.run(
            len(text),
            lambda: tokenizer.encode(text, parse_special=fields.parse_special, add_special=add_special),
        )
    if (fields.with_pieces or fields.return_token_strs) and len(tokens) > MAX_TOKENS:
        name = "with_pieces" if fields.with_pieces else "return_token_strs"
        raise APIError(400, f"{name} is for {MAX_TOKENS} tokens at most; send the text in parts",
                       param=name, code="invalid_value")  # fmt: skip

    def answer() -> Tokens:
        return Tokens(
            tokens=[_piece(tokenizer, id) for id in tokens] if fields.with_pieces else tokens,
            count=len(tokens),
            max_model_len=serving.engine.info.max_model_len,
            token_strs=[token_text(tokenizer, id) for id in tokens] if fields.return_token_strs else UNSET,
        )

    await exchange.json(await serving.prompter.run(len(tokens), answer))


async def detokenize(exchange: Exchange) -> None:
    """The text of token ids, control tokens among it."""
    serving, fields = await exchange.fields(DetokenizeRequest)
    if len(fields.tokens) > MAX_TOKENS:
        raise APIError(400, f"tokens must be at most {MAX_TOKENS}; send them in parts",
                       param="tokens", code="invalid_value")  # fmt: skip
    size = serving.engine.info.vocab_size
    if any(not 0 <= id < size for id in fields.tokens):
        raise APIError(400, f"tokens must be ids from 0 to {size - 1}", param="tokens", code="invalid_value")
    text = await serving.prompter.run(
        len(fields.tokens), lambda: serving.engine.tokenizer.decode(fields.tokens, skip_special=False)
    )
    await exchange.json(Text(content=text, prompt=text))


async def apply_template(exchange: Exchange) -> None:
    """The prompt of a conversation as text."""
    serving, fields = await exchange.fields(TemplateRequest)
    arguments = chat_arguments(_chat(fields))
    size = count_chars(fields.messages)
    _check_size("messages", size)
    template = serving.engine.chat_template()
    text = await serving.prompter.run(size, lambda: template.render(**arguments))
    await exchange.json(Prompt(prompt=text))


def _check_size(name: str, chars: int) -> None:
    if chars > MAX_TEXT:
        raise APIError(400, f"{name} must have at most {MAX_TEXT} characters; send it in parts",
                       param=name, code="invalid_value")  # fmt: skip


def _model(serving: Serving, name: str) -> Model:
    info = serving.engine.info
    return Model(
        id=name,
        created=info.created,
        root=info.name,
        max_model_len=info.max_model_len,
        meta=ModelMeta(
            n_vocab=info.vocab_size,
            n_ctx_train=info.trained_context,
            n_embd=info.hidden_size,
            n_params=info.parameters,
            size=info.size,
        ),
    )


def _chat(fields: TemplateRequest) -> ChatRequest:
    return ChatRequest(
        messages=fields.messages,
        add_generation_prompt=fields.add_generation_prompt,
        continue_final_message=fields.continue_final_message,
        chat_template_kwargs=fields.chat_template_kwargs,
        tools=fields.tools,
        tool_choice=fields.tool_choice,
    )


def _piece(tokenizer: Tokenizer, id: int) -> Piece:
    data = tokenizer.token_bytes(id)
    try:
        return Piece(id=id, piece=data.decode())
    except UnicodeDecodeError:
        return Piece(id=id, piece=list(data))
