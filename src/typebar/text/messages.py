"""Chat messages as callers send them, checked and brought to the form that chat templates expect."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from typebar.errors import TypebarError

ROLES = ("system", "developer", "user", "assistant", "tool")

# Names under which clients send a message's reasoning; templates read the first, a few the second.
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")


class MessageError(TypebarError):
    """The messages are not a chat. `param` names the place, such as "messages[2].content"."""

    def __init__(self, param: str, problem: str) -> None:
        super().__init__(f"{param}: {problem}")
        self.param = param


def plain_data(value: Any, param: str) -> Any:
    """A copy in plain JSON types: templates get no objects with methods, and callers keep their data."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)  # the text of an enum too, not its name
    for number in (int, float):
        if isinstance(value, number):
            return number(value)
    if isinstance(value, Mapping):
        return {str(key): plain_data(item, f"{param}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_data(item, f"{param}[{i}]") for i, item in enumerate(value)]
    raise MessageError(param, f"expected JSON data, not {value.__class__.__name__}")


def checked_messages(messages: object) -> list[dict[str, Any]]:
    """The messages in the form that templates expect: `content` one string, developer as system, keys that are None
    left out, arguments of tool calls as objects. Raises MessageError for what is not a chat."""
    if not isinstance(messages, list | tuple):
        raise MessageError("messages", f"expected a list of messages, not {type(messages).__name__}")
    if not messages:
        raise MessageError("messages", "the list is empty; at least one message is needed")
    return [_checked_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _checked_message(message: object, param: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise MessageError(param, f"expected an object with role and content, not {type(message).__name__}")
    role = message.get("role")
    if role is None:
        raise MessageError(f"{param}.role", f"is missing; it is one of {', '.join(ROLES)}")
    if role not in ROLES:
        raise MessageError(f"{param}.role", f"{_shown(role)} is not one of {', '.join(ROLES)}")
    plain = {str(key): plain_data(value, f"{param}.{key}") for key, value in message.items() if value is not None}
    plain["role"] = "system" if role == "developer" else str(role)
    if "tool_calls" in plain:
        plain["tool_calls"] = _checked_tool_calls(plain["tool_calls"], f"{param}.tool_calls")
    if "content" in plain:
        plain["content"] = _text_of_content(plain["content"], f"{param}.content")
    elif role != "assistant":
        raise MessageError(f"{param}.content", "is missing; it is a string (it may be empty)")
    elif not plain.get("tool_calls"):
        plain["content"] = ""
    reasoning = next((plain[field] for field in _REASONING_FIELDS if field in plain), None)
    if reasoning is not None:
        plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
    return plain


def _shown(value: object) -> str:
    """A value that may be of any size, in an error."""
    shown = repr(value)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."


def _text_of_content(content: object, param: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise MessageError(param, f"expected a string or a list of text parts, not {type(content).__name__}")
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind != "text":
            raise MessageError(
                f"{param}[{i}]", f"a part of type {_shown(kind)} is not supported; the model reads text only"
            )
        if not isinstance(part.get("text"), str):
            raise MessageError(f"{param}[{i}].text", "expected a string")
        texts.append(part["text"])
    return "".join(texts)


def _checked_tool_calls(calls: object, param: str) -> list[dict[str, Any]]:
    """Calls with `arguments` as an object: OpenAI clients send it as JSON text, templates expect the object."""
    if not isinstance(calls, list):
        raise MessageError(param, f"expected a list, not {type(calls).__name__}")
    for i, call in enumerate(calls):
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise MessageError(f"{param}[{i}].function.name", "is missing; expected a string")
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                function["arguments"] = json.loads(arguments) if arguments.strip() else {}
            except ValueError as error:
                raise MessageError(f"{param}[{i}].function.arguments", f"is not valid JSON: {error}") from error
    return calls


def checked_tools(tools: object) -> list[Any] | None:
    """The tools as plain data; no tools at all is None. Raises MessageError for what is not a list of objects."""
    if tools is None:
        return None
    if not isinstance(tools, list | tuple):
        raise MessageError("tools", f"expected a list of tools, not {type(tools).__name__}")
    for i, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise MessageError(f"tools[{i}]", f"expected an object, not {type(tool).__name__}")
    return plain_data(list(tools), "tools") or None
