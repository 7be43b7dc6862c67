"""What each step from transformers to typebar as it is run buys on this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from typebar import _native
from typebar.bench import machine
from typebar.bench.compare import Task, solo
from typebar.bench.engines import RIVALS, TYPEBAR
from typebar.bench.machine import Watch
from typebar.bench.metrics import METRICS
from typebar.config import MOST_GUESSES

Json = dict[str, Any]
Progress = Callable[[str, float], None]

FIRST, SPEED, MEMORY = "ttft_ms_512", "decode_tps_0", "peak_rss_mb"


@dataclass(frozen=True, slots=True)
class Step:
    """One row. `first_token` and `speed` are the metrics in its columns; `quantization` None: transformers."""

    title: str
    quantization: str | None
    threads: int
    first_token: str = FIRST
    speed: str = SPEED
    memory: str = MEMORY
    screened_head: bool = False
    num_speculative_tokens: int = 0

    @property
    def metrics(self) -> list[str]:
        return [name for name in (self.first_token, self.speed, self.memory) if name]


def steps(threads: int, with_transformers: bool) -> list[Step]:
    """Every step that the engine has today; those about weights run on one thread, the best of all counts follows."""
    made = [Step("transformers, float32", None, 1)] if with_transformers else []
    made += [
        Step("typebar, float32 weights", "f32", 1),
        Step("8 bits at most (q8)", "q8", 1),
        Step("4 bits (q4)", "q4", 1),
        Step("the file's own weights, unchanged", "keep", 1),
    ]
    counts = {threads, *(1 << bit for bit in range(threads.bit_length()))} - {1}  # 2, 4, 8 … and all
    made += [Step(f"{count} threads", "keep", count) for count in sorted(counts)]
    return made


def further_steps(threads: int) -> list[Step]:
    """What the rest buys with the best number of threads: less to read, and nothing computed twice."""
    return [
        Step("+ screened output layer", "keep", threads, screened_head=True),
        Step("+ KV kept between turns", "keep", threads, "warm_ttft_ms", "", "", True),
        Step("+ prefixes shared between users", "keep", threads, "shared_ttft_ms", "", "", True),
        Step("a file edited", "keep", threads, "", "edit_tps", "", True),
        Step("+ speculation", "keep", threads, "", "edit_tps", "", True, MOST_GUESSES),
        Step("+ 4 users in one batch", "keep", threads, "p95_ttft_ms_4", "aggregate_tps_4", "", True),
    ]


def climb(gguf: Path, threads: int, transformers: bool, quality: bool, progress: Progress) -> Json:
    """Run every step once; the report that --json writes."""
    rows: list[Json] = []
    facts = machine.describe(threads)
    task = Task.of(gguf, threads, METRICS)
    plan = steps(threads, transformers)
    total = len(plan) + len(further_steps(1))
    for number, step in enumerate(plan):
        progress(step.title, number / total)
        rows.append(_run(task, step))
    best = _best_threads(rows)
    for number, step in enumerate(further_steps(best), len(plan)):
        progress(step.title, number / total)
        rows.append(_run(task, step))
    if quality:
        progress("divergence from float32", 0.99)
        _add_quality(gguf, rows)
    return {
        "machine": facts,
        "model": gguf.name,
        "threads": {"best": best, "usual": _native.choose_threads()[0]},
        "steps": rows,
    }


def _run(task: Task, step: Step) -> Json:
    engine = TYPEBAR if step.quantization else RIVALS["transformers"]
    python = engine.python() or sys.executable
    names = ("quantization", "screened_head", "num_speculative_tokens")
    settings = {name: getattr(step, name) for name in names} if step.quantization else {}
    model = engine.model(task.gguf, python)
    with Watch() as watch:
        about, figures = solo(engine, python, model, task, step.metrics, threads=step.threads, **settings)
    return {
        **asdict(step),
        "version": about["version"],
        "first_token_ms": figures.get(step.first_token),
        "tokens_s": figures.get(step.speed),
        "peak_rss_mb": figures.get(step.memory),
        "mean_kl": None,
        "watch": watch.as_json(),
    }


def _best_threads(rows: Sequence[Json]) -> int:
    """The number with which the file's own weights were decoded fastest."""
    own = [row for row in rows if row["quantization"] == "keep"]
    return int(max(own, key=lambda row: float(row["tokens_s"]))["threads"])


def _add_quality(gguf: Path, rows: list[Json]) -> None:
    """Mean KL divergence from transformers in float32, of each form of the weights once."""
    from typebar.bench.quality import typebar_logits
    from typebar.bench.reference import divergence, mixed_tokens, reference

    tokens = mixed_tokens(gguf)
    expected = reference(gguf, tokens)
    known: dict[str, float] = {}
    for row in rows:
        kind = row["quantization"]
        if kind and kind not in known:
            known[kind] = divergence(expected, typebar_logits(gguf, tokens, kind)).mean_kl
        row["mean_kl"] = known[kind] if kind else 0.0
