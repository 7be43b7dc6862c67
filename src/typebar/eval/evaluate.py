"""Models measured one after another: texts against a reference, speed, tasks; the report that --json writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from statistics import median
from typing import Any

from typebar import __version__
from typebar.engine.params import SamplingParams
from typebar.eval.divergence import Measured, joined, measure, measure_reference
from typebar.eval.kept import KeptLogProbs
from typebar.eval.problems import Problem, Task
from typebar.eval.tasks import AT_ONCE, run_task
from typebar.eval.texts import WINDOW, Text, windows
from typebar.eval.variant import Variant
from typebar.llm import LLM
from typebar.model.load import LoadedModel, load_model

Json = dict[str, Any]
Cut = dict[str, list[list[int]]]  # windows by text
# A named stage of so many units; the context is a function that is told of each that is done.
Stage = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]

REFERENCE = "f32"
SPEED_TOKENS, SPEED_RUNS = 64, 3
TASK_CONTEXT = 2048  # tokens of a problem and its answer


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What is measured. `against`: one reference for all, None: each model's own file, in float32 in either case."""

    variants: Sequence[Variant]
    against: Variant | None
    texts: Sequence[Text]
    tokens: int  # at most, of each text
    tasks: Sequence[tuple[Task, Sequence[Problem]]]
    threads: int | None = None

    def reference_of(self, variant: Variant) -> Variant:
        other = self.against or variant
        return replace(other, quantization=REFERENCE)

    @property
    def window(self) -> int:
        """Tokens of a window: as many as all models can take."""
        models = [*self.variants, *([self.against] if self.against else [])]
        return min(model.context(WINDOW) for model in models)


def evaluate(plan: Evaluation, stage: Stage) -> Json:
    """The report. One model is in memory at a time; the reference's predictions lie on disk meanwhile."""
    rows: list[Json] = []
    for reference, variants in groupby(plan.variants, plan.reference_of):
        if plan.texts:
            rows += _against(plan, reference, list(variants), stage)
        else:
            rows += [_row(plan, variant, {}, stage) for variant in variants]
    return {
        "typebar": __version__,
        "window": plan.window,
        "texts": {text.name: len(text.content) for text in plan.texts},
        "tasks": {task.name: len(problems) for task, problems in plan.tasks},
        "rows": rows,
    }


def _against(plan: Evaluation, reference: Variant, variants: list[Variant], stage: Stage) -> list[Json]:
    """A row for the reference, with its perplexity only, and one for each model that is compared with it."""
    checkpoint = reference.open()
    vocab, tokenizer = checkpoint.usable_vocab, checkpoint.build_tokenizer()
    del checkpoint
    cut = {text.name: windows(text, tokenizer, plan.tokens, plan.window) for text in plan.texts}
    count = sum(len(window) - 1 for part in cut.values() for window in part)
    with KeptLogProbs(count, vocab) as kept:
        with stage(f"{reference.label}, the reference: texts", count) as advance:
            rows = [_reference_row(plan, reference, cut, kept, advance)]
        for variant in variants:
            with stage(f"{variant.label}: texts", count) as advance:
                scores = _compared(plan, variant, cut, kept, advance)
            rows.append(_row(plan, variant, scores, stage))
    return rows


def _reference_row(
    plan: Evaluation, reference: Variant, cut: Cut, kept: KeptLogProbs, advance: Callable[[int], None]
) -> Json:
    loaded = _load(plan, reference)
    scores = _over(cut, lambda window, first: measure_reference(loaded, window, kept), advance)
    return {**_facts(reference, loaded), "is_reference": True, **scores, "decode_tps": None, "tasks": {}}


def _compared(plan: Evaluation, variant: Variant, cut: Cut, kept: KeptLogProbs, advance: Callable[[int], None]) -> Json:
    loaded = _load(plan, variant)
    return _over(cut, lambda window, first: measure(loaded, window, kept, first), advance)


def _over(cut: Cut, of_window: Callable[[list[int], int], Measured], advance: Callable[[int], None]) -> Json:
    """Scores by text, and of all together. `of_window` is told how many predictions came before."""
    first, parts = 0, {}
    for name, part in cut.items():
        found = []
        for window in part:
            found.append(of_window(window, first))
            first += len(window) - 1
            advance(len(window) - 1)
        parts[name] = joined(found)
    return {
        "text": asdict(joined(list(parts.values())).scores()),
        "texts": {name: asdict(part.scores()) for name, part in parts.items()},
    }


def _row(plan: Evaluation, variant: Variant, scores: Json, stage: Stage) -> Json:
    """Speed and tasks of a model, beside its scores over texts."""
    with LLM(
        str(variant.path), quantization=variant.quantization, threads=plan.threads,
        max_model_len=variant.context(TASK_CONTEXT), max_num_seqs=AT_ONCE, num_speculative_tokens=0,
    ) as llm:  # fmt: skip
        with stage(f"{variant.label}: speed", SPEED_RUNS) as advance:
            decode_tps = _decode_tps(llm, advance)
        tasks = {}
        for task, problems in plan.tasks:
            with stage(f"{variant.label}: {task.name}", len(problems)) as advance:
                answers = run_task(llm, task, problems, advance)
            passed = sum(answer.passed for answer in answers)
            tasks[task.name] = {
                "passed": passed,
                "problems": len(answers),
                "pass_percent": 100 * passed / len(answers),
                "answers": [asdict(answer) for answer in answers],
            }
        facts = _facts(variant, llm.model)
    return {**facts, "is_reference": False, **scores, "decode_tps": decode_tps, "tasks": tasks}


def _facts(variant: Variant, loaded: LoadedModel) -> Json:
    memory, held = loaded.native.memory(), loaded.native.describe()
    weights = sum(rows * cols for _, _, rows, cols, _ in held)
    return {
        "model": variant.name,
        "file": variant.path.name,
        "quantization": loaded.config.quantization,  # what "auto" came to
        "bits_per_weight": round(8 * memory["weights"] / weights, 3),
        "weight_bytes": memory["weights"],
        "token_bytes": memory["token_read"],
    }


def _decode_tps(llm: LLM, advance: Callable[[int], None]) -> float:
    """Tokens a second of a greedy answer, one at a time; the median of a few."""
    params = SamplingParams(temperature=0, max_tokens=SPEED_TOKENS, ignore_eos=True)
    speeds = []
    for _ in range(SPEED_RUNS):
        speeds.append(llm.generate("Once upon a time", params)[0].metrics.decode_tps)
        advance(1)
    return round(median(speeds), 1)


def _load(plan: Evaluation, variant: Variant) -> LoadedModel:
    """For windows: one sequence, no more room than it needs."""
    return load_model(
        variant.path, quantization=variant.quantization, threads=plan.threads, max_model_len=variant.context(WINDOW),
        max_num_seqs=1, max_step_tokens=128,
    )  # fmt: skip
