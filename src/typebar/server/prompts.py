"""From the messages or texts of a request to token ids. Long texts are worked on beside the event loop."""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from typebar.engine.params import MAX_CHOICES
from typebar.engine.request import ContextLengthError
from typebar.engine.structured import StructuredOutputsParams
from typebar.server.engine import Engine
from typebar.server.errors import APIError
from typebar.server.schema.chat import ChatRequest

T = TypeVar("T")

INLINE_CHARS = 8_000  # tokenized in 0.6 ms, in 10 where all are combining marks: no more on the event loop
MAX_WAITING_FORMS = 16  # different ones that wait to be compiled: 8 seconds where each is as large as any may be
MAX_TOKEN_BYTES = 256  # no vocabulary in use has longer tokens: text above this many bytes a token cannot fit
_RESERVED = ("messages", "tools", "add_generation_prompt", "continue_final_message")


class Prompter:
    """Turns requests into prompts for one engine. `on_reject`: called for each that is refused with 429."""

    def __init__(self, engine: Engine, on_reject: Callable[[], None] = lambda: None) -> None:
        self._engine = engine
        self._on_reject = on_reject
        self._compiling: dict[tuple[str, str], Future[object]] = {}
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="typebar-text")
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix="typebar-grammar")

    def close(self) -> None:
        for threads in (self._threads, self._compiler):
            threads.shutdown(wait=False, cancel_futures=True)

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """`work()`, in a thread where `size` characters take long."""
        if size <= INLINE_CHARS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def compile(self, form: StructuredOutputsParams) -> object:
        """The grammar of a form, at once where it is known. Others are made one after the other, each once.

        GrammarError where it cannot be kept to, APIError where too many wait.
        """
        if (grammar := self._engine.known(form)) is not None:
            return grammar
        future = self._compiling.get(form.grammar)
        if future is None:
            if len(self._compiling) >= MAX_WAITING_FORMS:
                self._on_reject()
                raise APIError(429, "too many forms wait to be compiled; try again later", code="queue_full",
                               headers={"Retry-After": "1"})  # fmt: skip
            future = asyncio.get_running_loop().run_in_executor(self._compiler, self._engine.compile, form)
            self._compiling[form.grammar] = future
            future.add_done_callback(partial(self._compiled, form.grammar))
        return await asyncio.shield(future)

    def _compiled(self, grammar: tuple[str, str], future: Future[object]) -> None:
        del self._compiling[grammar]
        if not future.cancelled():
            future.exception()  # is heard of so, also where all who asked have gone

    async def chat(self, fields: ChatRequest) -> list[int]:
        """The prompt of a conversation. APIError or MessageError where it is none."""
        arguments = chat_arguments(fields)
        size = count_chars(fields.messages)
        self._check_size(size, fields.truncate_prompt_tokens)
        template = self._engine.chat_template()
        ids = await self.run(size, lambda: template.encode(**arguments))
        return truncated(ids, fields.truncate_prompt_tokens, self._engine.info.max_model_len)

    async def text(self, prompt: Any, truncate: int | None, add_special: bool = True) -> list[list[int]]:
        """The prompts of a completion: a text, token ids, or a list of either. Control tokens in texts are read."""
        prompts = _separate(prompt)
        size = sum(len(one) for one in prompts)
        self._check_size(max(len(one) if isinstance(one, str) else 0 for one in prompts), truncate)
        ids = await self.run(size, lambda: [self._encode(one, add_special) for one in prompts])
        return [truncated(one, truncate, self._engine.info.max_model_len) for one in ids]

    def _encode(self, prompt: str | list[Any], add_special: bool) -> list[int]:
        if isinstance(prompt, str):
            return self._engine.tokenizer.encode(prompt, parse_special=True, add_special=add_special)
        ids: list[int] = []
        for part in prompt:  # llama-server lets ids and texts alternate
            if isinstance(part, str):
                ids += self._engine.tokenizer.encode(part, parse_special=True, add_special=add_special and not ids)
            else:
                ids.append(part)
        return ids

    def _check_size(self, chars: int, truncate: int | None) -> None:
        """Refuse what cannot fit before it is tokenized."""
        limit = self._engine.info.max_model_len
        if truncate is None and chars > limit * MAX_TOKEN_BYTES:
            raise ContextLengthError(chars // MAX_TOKEN_BYTES, limit, at_least=True)


def chat_arguments(fields: ChatRequest) -> dict[str, Any]:
    """The arguments of ChatTemplate.encode and .render. A last message of the assistant is continued, as llama-server
    does, unless the request says otherwise."""
    _refuse_tools(fields)
    kwargs = fields.chat_template_kwargs or {}
    if taken := next((name for name in _RESERVED if name in kwargs), None):
        param = f"chat_template_kwargs.{taken}"
        raise APIError(400, f"{param} is a field of its own", param=param, code="invalid_value")
    continues = is_continued(fields)
    if continues and fields.add_generation_prompt:
        raise APIError(400, "continue_final_message and add_generation_prompt exclude each other",
                       param="continue_final_message", code="invalid_value")  # fmt: skip
    return {
        "messages": fields.messages,
        "add_generation_prompt": fields.add_generation_prompt is not False and not continues,
        "continue_final_message": continues,
        **kwargs,
    }


def is_continued(fields: ChatRequest) -> bool:
    """Whether the answer continues the last message instead of following it."""
    if fields.continue_final_message is not None:
        return fields.continue_final_message
    return fields.add_generation_prompt is None and final_text(fields.messages) != ""


def echoed(fields: ChatRequest) -> str:
    """The text that the answer begins with: with `echo` that of the message it continues."""
    return final_text(fields.messages) if fields.echo and is_continued(fields) else ""


def final_text(messages: Any) -> str:
    """The text of a last message that is the assistant's; empty where it is not, or calls a tool."""
    last = messages[-1] if isinstance(messages, list) and messages else None
    if not isinstance(last, dict) or last.get("role") != "assistant" or last.get("tool_calls"):
        return ""
    content = last.get("content") or ""
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def truncated(ids: list[int], keep: int | None, max_model_len: int) -> list[int]:
    """The last `keep` tokens, where that was asked for; -1: as many as leave room for an answer."""
    if keep is None:
        return ids
    if keep < -1 or keep == 0:
        raise APIError(400, "truncate_prompt_tokens must be at least 1, or -1 for what the context holds",
                       param="truncate_prompt_tokens", code="invalid_value")  # fmt: skip
    return ids[-(keep if keep > 0 else max_model_len - 1) :]


def count_chars(value: Any) -> int:
    """Characters of all strings in JSON data."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(count_chars(item) for item in value.values())
    return sum(count_chars(item) for item in value) if isinstance(value, list) else 0


def _separate(prompt: Any) -> Sequence[str | list[Any]]:
    """The prompts that a `prompt` field holds."""
    if isinstance(prompt, str) or _is_mixed(prompt):
        return [prompt]
    if isinstance(prompt, list) and prompt and all(isinstance(one, str) or _is_mixed(one) for one in prompt):
        if len(prompt) > MAX_CHOICES:
            raise APIError(400, f"prompt must hold at most {MAX_CHOICES} prompts", param="prompt", code="invalid_value")
        return prompt
    raise APIError(400, "prompt must be a string, a list of token ids, or a list of these; not empty",
                   param="prompt", code="invalid_type")  # fmt: skip


def _is_mixed(value: Any) -> bool:
    """One prompt of ids, perhaps with texts between. (A list of texts alone is several prompts.)"""
    if not isinstance(value, list) or not any(type(part) is int for part in value):
        return False
    return all(type(part) is int or isinstance(part, str) for part in value)


def _refuse_tools(fields: ChatRequest) -> None:
    choice = fields.tool_choice
    if choice is not None and choice not in ("none", "auto", "required") and not isinstance(choice, dict):
        raise APIError(400, "tool_choice must be none, auto, required or an object",
                       param="tool_choice", code="invalid_value")  # fmt: skip
    if (fields.tools and choice != "none") or choice == "required" or isinstance(choice, dict):
        raise APIError(
            400,
            "tool calls are not supported yet: leave tools out, or send tool_choice none",
            param="tools" if fields.tools else "tool_choice",
            code="unsupported",
        )
