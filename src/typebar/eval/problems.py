"""What tasks are made of, and how a model is asked for a program."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from typebar.engine.params import SamplingParams
from typebar.eval.sandbox import runs_to_its_end

Message = Mapping[str, Any]

REQUEST = "Please provide a self-contained Python script that solves the following problem in a markdown code block:"
BEGINNING = (
    "Below is a Python script with a self-contained function that solves the problem and passes corresponding tests:"
)


_DEFINING = (
    ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign,
    ast.AugAssign,
)  # fmt: skip
_COMPOUND = (ast.If, ast.For, ast.While, ast.With, ast.Try)


@dataclass(frozen=True, slots=True)
class Problem:
    """A conversation that the model continues, and the judgement of what it says."""

    id: str
    messages: list[Message]
    passes: Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Task:
    """Problems that are asked alike. `read` raises TypebarError where they cannot be had."""

    name: str
    params: SamplingParams
    read: Callable[[], list[Problem]]


@dataclass(frozen=True, slots=True)
class CodeProblem:
    """A function to be written: `prompt` is its signature with a docstring; `test` defines check(candidate)."""

    id: str
    prompt: str
    test: str
    entry_point: str

    def problem(self) -> Problem:
        """Asked as EvalPlus asks instruct models: for a script in a code block, the answer begun up to its opening."""
        messages: list[Message] = [
            {"role": "user", "content": f"{REQUEST}\n```\n{self.prompt.strip()}\n```\n"},
            {"role": "assistant", "content": f"{BEGINNING}\n```python\n"},
        ]
        return Problem(self.id, messages, self.accepts)

    def accepts(self, code: str) -> bool:
        """Whether the tests pass: the prompt runs first, for its imports; the model's definition replaces its stub."""
        future, own = definitions(code)
        parts = (future, f"{self.prompt}\n    pass\n", own, self.test, f"check({self.entry_point})\n")
        return runs_to_its_end("\n\n".join(parts))


def definitions(code: str) -> tuple[str, str]:
    """What the longest beginning of `code` that is Python imports from __future__, and what else it defines.

    That is imports, functions, classes, constants, and the loops and conditions that fill or choose them.
    Demonstrations and tests that a model adds below its function are left out, and a line that is cut short.
    """
    lines = code.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for end in range(len(lines), 0, -1):
        source = "\n".join(lines[:end])
        try:
            parsed = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        future = [node for node in parsed.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
        own = [node for node in parsed.body if node not in future and _defines(node)]
        return _source(future, source), _source(own, source)
    return "", ""


def _defines(node: ast.stmt) -> bool:
    if isinstance(node, _COMPOUND):
        return not any(_demonstrates(part) for part in ast.walk(node))
    return isinstance(node, _DEFINING)


def _demonstrates(node: ast.AST) -> bool:
    match node:
        case ast.Assert() | ast.Call(func=ast.Name(id="print" | "input")) | ast.Name(id="__name__"):
            return True
    return False


def _source(nodes: Sequence[ast.stmt], source: str) -> str:
    """As it is written: ast.unparse fails on deep expressions and on numbers of thousands of digits."""
    parts = []
    for node in nodes:
        parts += [f"@{ast.get_source_segment(source, decorator)}" for decorator in getattr(node, "decorator_list", [])]
        parts.append(ast.get_source_segment(source, node) or "")
    return "\n".join(parts)


CODE_PARAMS = SamplingParams(temperature=0, max_tokens=768, stop=["\n```"])
