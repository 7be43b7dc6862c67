"""`typebar eval`: what a quantization costs in quality, and what it gives in bytes and speed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from typebar.cli import options
from typebar.cli.stages import stage
from typebar.config import QUANTIZATIONS
from typebar.errors import ParameterError, TypebarError

if TYPE_CHECKING:
    from typebar.eval.evaluate import Evaluation


def eval(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL", help="As for `typebar run --model`, or MODEL@q4.", show_default=False),
    ],
    quant: Annotated[str, typer.Option(help=f"By commas: {', '.join(QUANTIZATIONS)}.")] = "keep",
    against: Annotated[
        str | None,
        typer.Option(help="Another model to compare with, in float32. Default: each model's own file, in float32."),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(
            help="A text file; builtin: typebar's own, Chinese, English and code; none. May be given several times.",
            show_default="builtin",
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(min=2, help="The first tokens of each text that are measured.")] = 4096,
    tasks: Annotated[str, typer.Option(help="By commas: humaneval, fizzbuzz, zh-qa.", show_default=False)] = "",
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first problems of each task.")] = None,
    threads: options.Threads = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Where to write everything measured.")] = None,
    plot: Annotated[Path | None, typer.Option(help="A PNG file for a chart; needs matplotlib.")] = None,
) -> None:
    """Measure perplexity, divergence from float32, bytes, speed and solved problems of models and quantizations.

    humaneval and fizzbuzz run programs that the model wrote, with limits on time, memory and files but not on the
    network: do it where that is acceptable. docs/quality.md tells how the figures are made.
    """
    from typebar.bench.tables import save
    from typebar.eval.evaluate import evaluate
    from typebar.eval.plot import draw

    _check_targets(json_file, plot)
    report = evaluate(_planned(models, options.words(quant), against, text, tokens, tasks, limit, threads), stage)
    _print(report)
    if json_file:
        save(json_file, report)
    if plot:
        draw(report, plot)


def _check_targets(json_file: Path | None, plot: Path | None) -> None:
    """Before hours are spent on figures that then cannot be kept."""
    from typebar.bench import plots
    from typebar.bench.tables import check_writable

    for path in (json_file, plot):
        check_writable(path)
    if plot:
        plots.require()


def _planned(
    models: list[str], quantizations: list[str], against: str | None, text: list[str] | None, tokens: int, tasks: str,
    limit: int | None, threads: int | None,
) -> Evaluation:  # fmt: skip
    """What is asked for. TypebarError or ParameterError where it cannot be measured."""
    from typebar.eval.evaluate import Evaluation
    from typebar.eval.tasks import choose_tasks
    from typebar.eval.texts import BUILTIN, read_texts
    from typebar.eval.variant import find_reference, find_variants, require_chat, require_same_vocabulary

    problems = [(task, task.read()[:limit]) for task in choose_tasks(options.words(tasks))]
    texts = read_texts(text or [BUILTIN])
    if not texts and not problems:
        raise TypebarError("nothing to measure: give --tasks, or leave --text none away")
    if not quantizations:
        raise ParameterError("--quant", "names by commas", ",")
    variants = [variant for model in models for variant in find_variants(model, quantizations)]
    reference = find_reference(against) if against else None
    for variant in {variant.path: variant for variant in variants}.values():
        if reference and texts:
            require_same_vocabulary(variant, reference)
        if problems:
            require_chat(variant)
    return Evaluation(variants, reference, texts, tokens, problems, threads)


def _print(report: dict[str, Any]) -> None:
    from typebar.cli.console import Console
    from typebar.eval.table import print_report

    console = Console()
    print_report(console if console.is_terminal else Console(width=160), report)
