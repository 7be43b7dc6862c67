"""Tasks by name, and what a model makes of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from typebar.engine.params import SamplingParams
from typebar.errors import ParameterError
from typebar.eval import fizzbuzz, humaneval, zh_qa
from typebar.eval.problems import CODE_PARAMS, Problem, Task
from typebar.eval.sandbox import end_running
from typebar.llm import LLM

AT_ONCE = 16  # problems answered in one batch

TASKS = {
    task.name: task
    for task in (
        Task("humaneval", CODE_PARAMS, humaneval.read),
        Task("fizzbuzz", CODE_PARAMS, fizzbuzz.read),
        Task("zh-qa", SamplingParams(temperature=0, max_tokens=64), zh_qa.read),
    )
}


@dataclass(frozen=True, slots=True)
class Answered:
    """What the model said to a problem, and whether that passes."""

    id: str
    passed: bool
    answer: str


def choose_tasks(names: Sequence[str]) -> list[Task]:
    """ParameterError for a name that is none."""
    for name in names:
        if name not in TASKS:
            raise ParameterError("--tasks", f"names out of {', '.join(TASKS)}", name)
    return [TASKS[name] for name in dict.fromkeys(names)]


def run_task(llm: LLM, task: Task, problems: Sequence[Problem], advance: Callable[[int], Any]) -> list[Answered]:
    """Ask and judge each problem; `advance` counts them. Greedy answers, so they are the same in any company."""

    def solve(problem: Problem) -> Answered:
        continues = problem.messages[-1]["role"] == "assistant"
        [result] = llm.chat(
            problem.messages, task.params, add_generation_prompt=not continues, continue_final_message=continues
        )
        text = result.outputs[0].text
        answered = Answered(problem.id, problem.passes(text), text)
        advance(1)
        return answered

    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        return list(pool.map(solve, problems))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        end_running()  # after Ctrl-C; closing the LLM ends those that wait for it
