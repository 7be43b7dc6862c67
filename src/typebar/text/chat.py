"""Chat messages to a prompt by the model's own template, where only the template can write control tokens.

The template is Jinja2 in a sandbox, with the environment that Hugging Face gives to chat templates (trim_blocks,
lstrip_blocks, loop controls, `raise_exception`, `strftime_now`, `tojson` without HTML escapes, `generation` blocks),
so the rendered text is the same byte for byte.

How a control token is told from text that looks like one: before the template is compiled, each control token in its
literals is replaced by a mark with a random number in it. In the rendered text a mark is a control token, and
everything else, the caller's `<|im_end|>` too, is plain text. Literals that are compared or searched with
(`'</think>' in content`, `.split('</think>')`) are left alone, so the template decides as it always does.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

from typebar.errors import TypebarError
from typebar.text.messages import MessageError, checked_messages, checked_tools, plain_data
from typebar.text.tokenizer import Tokenizer

MAX_TEMPLATE_CHARS = 256 * 1024
MAX_RENDERED_CHARS = 16 * 1024 * 1024  # also of any one string that `*` makes
MAX_RENDER_SECONDS = 5.0

# What a model gets that carries no template but has the ChatML tokens: no default system message.
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# The same for the tokens of Gemma: the system message is the beginning of what the user says first.
GEMMA = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{% if not loop.first %}"
    "{{ raise_exception('a system message can only be the first') }}{% endif %}"
    "{% else %}"
    "{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\n' }}"
    "{% if loop.index0 == 1 and loop.previtem['role'] == 'system' %}{{ loop.previtem['content'] + '\n\n' }}{% endif %}"
    "{{ message['content'] | trim + '<end_of_turn>\n' }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
_TEMPLATES = ({"<|im_start|>", "<|im_end|>"}, CHATML), ({"<start_of_turn>", "<end_of_turn>"}, GEMMA)

# Filters whose arguments reach the output; those of the others are searched or compared with.
_FILTERS_THAT_PRINT_ARGUMENTS = ("default", "d", "join")


class ChatTemplateError(TypebarError):
    """The model's chat template is damaged, refuses these messages, or does not end."""


class ChatTemplate:
    """A compiled chat template. Immutable after construction; any number of threads may share one.

    `source` None means that the model has no template: then that of ChatML or of Gemma, where the tokenizer has its
    tokens. Raises ChatTemplateError where there is no template to use or it does not compile.
    """

    def __init__(self, source: str | None, tokenizer: Tokenizer) -> None:
        if source is None:
            has = tokenizer.control_tokens.keys()
            source = next((template for tokens, template in _TEMPLATES if tokens <= has), None)
        if source is None:
            raise ChatTemplateError("the model has no chat template; pass one, or use plain completion instead of chat")
        if len(source) > MAX_TEMPLATE_CHARS:
            raise ChatTemplateError(
                f"the chat template has {len(source)} characters; at most {MAX_TEMPLATE_CHARS} are accepted"
            )
        self.source = source
        self._tokenizer = tokenizer
        self._marks = _Marks(tokenizer.control_tokens)
        self._variables = {
            name: self._marks.put(_token_text(tokenizer, id))
            for name, id in (
                ("bos_token", tokenizer.bos_id),
                ("eos_token", tokenizer.eos_id),
                ("unk_token", tokenizer.unk_id),
                ("pad_token", tokenizer.pad_id),
            )
            if id is not None
        }
        self._template = _compile(source, self._marks)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """The prompt as text, as `apply_chat_template(..., tokenize=False)` of transformers gives it.

        Args:
            messages: at least one; roles system, developer (= system), user, assistant, tool. `content` is a string
                or a list of text parts, which are joined with nothing between.
            tools: JSON descriptions of functions; None and [] both mean no tools.
            add_generation_prompt: open the assistant's turn at the end; ignored with `continue_final_message`.
            continue_final_message: leave the last message open, so that the model writes on.
            kwargs: more variables for the template, such as `enable_thinking`.

        Raises MessageError for messages that are not a chat, ChatTemplateError where the template refuses them.
        """
        marked, _ = self._render_marked(messages, tools, add_generation_prompt, continue_final_message, kwargs)
        return self._marks.remove(marked)

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> list[int]:
        """The prompt as token ids; arguments and errors as for `render`. Control tokens come from the template
        alone: the ids are those of transformers for messages that spell no control token."""
        marked, given = self._render_marked(messages, tools, add_generation_prompt, continue_final_message, kwargs)
        self._check_scaffold(marked, given)
        ids: list[int] = []
        for text, control in self._marks.split(marked):
            ids += self._tokenizer.encode(text)
            if control is not None:
                ids.append(control)
        return ids

    def _render_marked(
        self, messages: object, tools: object, add_generation_prompt: bool, continue_final: bool, kwargs: dict[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        """The prompt with marks, and the caller's data as the template saw it."""
        try:
            given = {
                **plain_data(kwargs, "chat_template_kwargs"),
                "messages": checked_messages(messages),
                "tools": checked_tools(tools),
            }
        except RecursionError as error:
            raise MessageError("messages", "the data is nested too deeply") from error
        options = {"documents": None, "add_generation_prompt": add_generation_prompt and not continue_final}
        tag = f"{self._marks.nonce}continue "  # ends in a space to see whether the template trims
        if continue_final:
            final = given["messages"][-1]
            if not final.get("content"):
                raise MessageError(f"messages[{len(given['messages']) - 1}].content", "there is no text to continue")
            final["content"] += tag
        text = _run(self._template, {**options, **self._variables, **given})
        if not continue_final:
            return text, given
        cut = text.rfind(tag.strip())
        if cut < 0:
            raise ChatTemplateError("the chat template drops the final message, so it cannot be continued")
        return text[:cut] if text.startswith(tag, cut) else text[:cut].rstrip(), given

    def _check_scaffold(self, marked: str, given: dict[str, Any]) -> None:
        """Refuse a template that puts control tokens together from parts, such as `'<|' + role + '|>'`: the parts
        carry no mark, so they would silently be encoded as plain text."""
        unmarked = self._marks.find_unmarked(marked)
        if unmarked and not any(self._marks.find_unmarked(text) for text in _strings(given)):
            raise ChatTemplateError(
                f"the chat template puts the control token {unmarked!r} together from parts, which typebar cannot "
                "tell from user text; pass a template that writes it as one literal"
            )


class _Marks:
    """Stand-ins for control tokens that no caller can write, since they hold 128 random bits."""

    def __init__(self, control_tokens: Mapping[str, int]) -> None:
        self.nonce = f"\U000f0000{secrets.token_hex(16)}"
        self._ids = control_tokens
        self._texts = {id: text for text, id in control_tokens.items()}
        longest_first = sorted(control_tokens, key=len, reverse=True)
        self._token = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._mark = re.compile(rf"{self.nonce}(\d+);")

    def put(self, text: str) -> str:
        """Replace each control token in `text` by its mark."""
        return self._token.sub(lambda match: f"{self.nonce}{self._ids[match[0]]};", text)

    def remove(self, text: str) -> str:
        """Undo `put`."""
        return self._mark.sub(lambda match: self._texts[int(match[1])], text)

    def split(self, text: str) -> Iterator[tuple[str, int | None]]:
        """Pieces of plain text, each with the id of the control token after it (None at the end)."""
        end = 0
        for match in self._mark.finditer(text):
            yield text[end : match.start()], int(match[1])
            end = match.end()
        yield text[end:], None

    def find_unmarked(self, text: str) -> str | None:
        """The first control token that `text` spells out."""
        match = self._token.search(text)
        return match[0] if match else None


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox of transformers' chat templates, with a bound on what `*` and `**` make."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            raise ChatTemplateError("the chat template uses **, which is not allowed there")
        for sequence, count in ((left, right), (right, left)):
            if isinstance(sequence, str | list | tuple) and isinstance(count, int):
                _check_size(len(sequence) * count)
        return super().call_binop(context, operator, left, right)


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's text for training; here its body is simply rendered."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Any) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


class _Deadline:
    """Called in every turn of every loop and macro of a template: a range() of 100 000 inside another would run for
    hours. Not covered: one single call of a filter or method on a long string."""

    def __init__(self) -> None:
        self._end = time.monotonic() + MAX_RENDER_SECONDS

    def __call__(self) -> None:
        if time.monotonic() > self._end:
            raise ChatTemplateError(f"the chat template was not done after {MAX_RENDER_SECONDS:g} s")


def _compile(source: str, marks: _Marks) -> jinja2.Template:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    del environment.globals["lipsum"]  # text of any length
    environment.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
    try:
        tree = environment.parse(source)
        _mark_literals(tree, marks)
        _add_deadline(tree)
        return jinja2.Template.from_code(environment, environment.compile(tree), environment.make_globals(None))
    except (jinja2.TemplateError, RecursionError, SyntaxError, ValueError) as error:
        raise ChatTemplateError(f"the chat template does not compile: {error}") from error


def _mark_literals(node: jinja2.nodes.Node, marks: _Marks) -> None:
    """Mark the control tokens in every literal that can reach the output."""
    if isinstance(node, jinja2.nodes.TemplateData):
        node.data = marks.put(node.data)
    elif isinstance(node, jinja2.nodes.Const) and isinstance(node.value, str):
        node.value = marks.put(node.value)
    for child in _printed_children(node):
        _mark_literals(child, marks)


def _printed_children(node: jinja2.nodes.Node) -> Iterator[jinja2.nodes.Node]:
    n = jinja2.nodes
    if isinstance(node, n.Compare | n.Test):
        return iter(())
    if isinstance(node, n.Getitem | n.Getattr):
        return iter([node.node])
    if isinstance(node, n.Pair):
        return iter([node.value])
    if isinstance(node, n.Filter) and node.name not in _FILTERS_THAT_PRINT_ARGUMENTS:
        return iter([node.node] if node.node else [])
    if isinstance(node, n.Call) and isinstance(node.node, n.Getattr):  # text.split(...), text.startswith(...)
        return iter([node.node])
    return node.iter_child_nodes()


def _add_deadline(tree: jinja2.nodes.Template) -> None:
    n = jinja2.nodes
    for node in tree.find_all((n.For, n.Macro, n.CallBlock)):
        assert isinstance(node, n.For | n.Macro | n.CallBlock)
        call = n.Call(n.Name("typebar_deadline", "load"), [], [], None, None)
        node.body.insert(0, n.ExprStmt(call).set_lineno(node.lineno))


def _run(template: jinja2.Template, variables: dict[str, Any]) -> str:
    pieces, size = [], 0
    try:
        context = template.new_context({**variables, "typebar_deadline": _Deadline()})
        for piece in template.root_render_func(context):
            pieces.append(piece)
            size += len(piece)
            _check_size(size)
    except TypebarError:
        raise
    except RecursionError as error:
        raise ChatTemplateError("the chat template or the messages are nested too deeply") from error
    except Exception as error:  # a template can raise anything that Python's operators and methods raise
        raise ChatTemplateError(f"the chat template refuses these messages: {error}") from error
    return "".join(pieces)


def _check_size(chars: int) -> None:
    if chars > MAX_RENDERED_CHARS:
        raise ChatTemplateError(f"the chat template makes more than {MAX_RENDERED_CHARS} characters")


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _token_text(tokenizer: Tokenizer, id: int) -> str:
    return tokenizer.token_bytes(id).decode("utf-8", "replace")


def _strings(value: object) -> Iterator[str]:
    """Every string in plain data, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)
