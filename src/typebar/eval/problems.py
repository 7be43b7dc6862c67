"""What tasks are made of, and how a model is asked for a program."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
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
)  # fmt: skip


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
        parts = (f"{self.prompt}\n    pass\n", definitions(code), self.test, f"check({self.entry_point})\n")
        return runs_to_its_end("\n\n".join(parts))


def definitions(code: str) -> str:
    """Imports, functions, classes and constants of the longest beginning of `code` that is Python.

    Demonstrations and tests that a model adds below its function are left out, and a line that is cut short.
    """
    lines = code.split("\n")
    for end in range(len(lines), 0, -1):
        try:
            parsed = ast.parse("\n".join(lines[:end]))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        return ast.unparse(ast.Module([node for node in parsed.body if isinstance(node, _DEFINING)], []))
    return ""


CODE_PARAMS = SamplingParams(temperature=0, max_tokens=768, stop=["\n```"])
