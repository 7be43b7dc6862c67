"""`typebar compare`: the answers of two models, or of one with two quantizations, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from typebar.cli import options
from typebar.cli.stages import stage
from typebar.errors import TypebarError

if TYPE_CHECKING:
    from rich.text import Text


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A model, as for `typebar run --model`, or MODEL@q4.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another model, or the same with another quantization.")],
    prompts: Annotated[str, typer.Argument(metavar="PROMPTS", help="A text file with a prompt in each line, or -.")],
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 256,
    threads: options.Threads = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Where to write the answers as JSON.")] = None,
) -> None:
    """Show greedy answers next to each other: where they first differ, and how fast they came."""
    from typebar.bench.tables import check_writable, save
    from typebar.eval.answers import answer_all, report, require_room
    from typebar.eval.variant import find_variants, require_chat

    check_writable(json_file)
    questions = _read_prompts(prompts)
    first, second = (find_variants(model)[0] for model in (a, b))
    for variant in (first, second):
        require_chat(variant)
        require_room(variant, questions)
    answers = []
    for variant in (first, second):
        with stage(variant.label, len(questions)) as advance:
            answers.append(answer_all(variant, questions, max_tokens, threads, advance))
    found = report(first, second, questions, (answers[0], answers[1]))
    _print(first.label, second.label, found["prompts"])
    if json_file:
        save(json_file, found)


def _read_prompts(source: str) -> list[str]:
    from typebar.eval.texts import read_utf8

    content = (options.read_stdin() or "") if source == "-" else read_utf8(Path(source))
    # Not splitlines(), which also cuts at form feeds and at U+2028.
    lines = [line.strip() for line in content.split("\n") if line.strip()]
    if not lines:
        raise TypebarError(f"{'stdin' if source == '-' else source} holds no prompt: write one in each line")
    return lines


def _print(a: str, b: str, rows: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from typebar.cli.console import Console

    console = Console()
    for row in rows:
        table = Table(
            box=box.HORIZONTALS, show_lines=True, expand=True, title=Text(row["prompt"]), title_justify="left"
        )
        for label in (a, b):
            table.add_column(Text(label), ratio=1, overflow="fold")
        at = row["first_difference"]
        table.add_row(*(_marked(row[side]["text"], at) for side in "ab"))
        table.add_row(*(Text(_speed(row[side]), style="dim") for side in "ab"))
        console.print(table)
        console.print("the same answer" if at is None else f"they differ from character {at + 1} on", style="dim")
        console.print()
    same = sum(row["first_difference"] is None for row in rows)
    console.print(f"{same} of {len(rows)} answers are the same", highlight=False)


def _marked(text: str, at: int | None) -> Text:
    """What both say dim, what is different as it is."""
    from rich.text import Text

    return Text(text) if at is None else Text.assemble((text[:at], "dim"), text[at:])


def _speed(answer: dict[str, Any]) -> str:
    return f"{answer['tokens']} tokens, {answer['decode_tps']} tokens/s, {answer['finish_reason']}"
