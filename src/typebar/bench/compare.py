"""Speed and memory of typebar and llama.cpp in one run: same file, same threads, processes in turn, medians.

    python -m typebar.bench.compare -m MODEL [--threads 2] [--rounds 3] [--llamacpp-python PYTHON] [--json FILE]

Ratios are what counts: absolute figures change with the machine and the hour. llama.cpp comes from the xllamacpp or
llama-cpp-python package of the given Python, by default the one that runs this.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typebar.bench.reference import mixed_tokens
from typebar.model.download import resolve_model

PEERS = Path(__file__).with_name("peers")


@dataclass(frozen=True, slots=True)
class Metric:
    key: str
    title: str
    higher_is_better: bool


METRICS = (
    Metric("decode_tps", "decode, tokens/s", True),
    Metric("prefill_tps", "prefill of 512, tokens/s", True),
    Metric("first_token_s", "process start to first token, s", False),
    Metric("peak_rss_mb", "peak memory at full context, MB", False),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="typebar.bench.compare", description=__doc__.split("\n")[0])
    parser.add_argument("-m", "--model", help="as for `typebar run`")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3, help="of every measurement within a process")
    parser.add_argument("--llamacpp-python", default=sys.executable, help="interpreter that has llama.cpp's binding")
    parser.add_argument("--json", type=Path, help="where to write everything that was measured")
    arguments = parser.parse_args()
    model = resolve_model(arguments.model).path
    text = mixed_tokens(model)
    job = {
        "model": str(model),
        "threads": arguments.threads,
        "context": arguments.context,
        "tokens": (text * (arguments.context // len(text) + 1))[: arguments.context],
        "repeats": arguments.repeats,
    }
    commands = {
        "typebar": [sys.executable, str(PEERS / "ours.py")],
        "llama.cpp": [arguments.llamacpp_python, str(PEERS / "llamacpp.py")],
    }
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    for number in range(arguments.rounds):
        for name, command in commands.items():
            rounds[name].append(measure([*command, json.dumps(job)]))
            figures = ", ".join(f"{metric.key} {rounds[name][-1][metric.key]:.2f}" for metric in METRICS)
            print(f"round {number + 1}  {name:10} {figures}", file=sys.stderr, flush=True)
    medians = {
        name: {metric.key: statistics.median(result[metric.key] for result in results) for metric in METRICS}
        for name, results in rounds.items()
    }
    print_table(medians)
    if arguments.json:
        temporary = arguments.json.with_name(f".{arguments.json.name}.part")
        temporary.write_text(json.dumps({"job": {**job, "tokens": len(text)}, "rounds": rounds, "medians": medians}))
        temporary.replace(arguments.json)


def measure(command: list[str]) -> dict[str, Any]:
    """Runs one engine in a fresh process. Its result, `first_token_s` counted from the start of the process."""
    start = time.monotonic()
    process = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if process.returncode:
        sys.exit(f"{command[1]} failed:\n{process.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(process.stdout.strip().splitlines()[-1])
    return {**result, "first_token_s": result["first_token_at"] - start}


def print_table(medians: dict[str, dict[str, float]]) -> None:
    ours, theirs = medians.values()
    print(f"{'':34}" + "".join(f"{name:>12}" for name in medians) + f"{'ratio':>8}")
    for metric in METRICS:
        a, b = ours[metric.key], theirs[metric.key]
        better = (a > b) == metric.higher_is_better
        print(f"{metric.title:34}{a:12.2f}{b:12.2f}{a / b:8.2f}  {'better' if better else 'worse'}")


if __name__ == "__main__":
    main()
