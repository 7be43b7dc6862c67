"""`typebar inspect`: what a model is, and what the engine makes of each of its tensors."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from typebar.cli import options
from typebar.config import DEFAULT_MAX_MODEL_LEN, EngineConfig
from typebar.errors import ParameterError
from typebar.model.cache import megabytes
from typebar.model.plan import Plan, open_plan


def inspect(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="As for `typebar run --model`.", show_default=False)],
    quant: options.Quant = "keep",
    kv_dtype: options.KvDtype = "f16",
    context: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens for the expected memory. Default: 4096 or the model's, if smaller."),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Where to write all of it as JSON.")] = None,
) -> None:
    """Show the tensors of a model, the format and the bytes that each is held in, and the memory that it needs.

    Only the header of the file is read.
    """
    from typebar.bench.tables import check_writable, save
    from typebar.model.download import resolve_model

    check_writable(json_file)
    EngineConfig(quantization=quant, kv_dtype=kv_dtype)
    found = resolve_model(model)
    plan = open_plan(found.path, quant, kv_dtype)
    longest = plan.spec.context_length
    context = context or min(DEFAULT_MAX_MODEL_LEN, longest)
    if context > longest:
        raise ParameterError("--context", f"at most {longest}, the context of the model", context)
    if json_file:
        save(json_file, report(found.name, found.path, plan, context))
    _print(found.name, plan, context)


def report(name: str, path: Path, plan: Plan, context: int) -> dict[str, Any]:
    """What --json writes: sizes in bytes."""
    return {
        "model": name,
        "file": path.name,
        "quantization": plan.quantization,
        "architecture": asdict(plan.spec),
        "tensors": [asdict(tensor) for tensor in plan.tensors],
        "bits_per_weight": round(plan.bits_per_weight, 3),
        "file_bytes": plan.file_bytes,
        "held_bytes": plan.held_bytes,
        "token_bytes": plan.token_bytes(),
        "token_bytes_full_head": plan.token_bytes(screened_head=False),
        "kv_dtype": plan.kv_dtype,
        "kv_token_bytes": plan.kv_token_bytes,
        "context": context,
        "memory_bytes": plan.memory(context),
    }


def _print(name: str, plan: Plan, context: int) -> None:
    from rich.table import Table

    from typebar.cli.console import Console

    console = Console()
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("TENSOR", "IN FILE", "HELD AS"):
        table.add_column(column, no_wrap=True)
    for column in ("ROWS × COLS", "BITS/WEIGHT", "BYTES"):
        table.add_column(column, justify="right", no_wrap=True)
    for tensor in plan.tensors:
        shape = f"{tensor.rows} × {tensor.cols}" if tensor.is_matrix else f"{tensor.cols}"
        bits = f"{tensor.bits_per_weight:g}" if tensor.bytes else ""
        table.add_row(tensor.name, tensor.type, tensor.format, shape, bits, f"{tensor.bytes}")
    console.print(table)
    console.print()
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column()
    for title, text in _facts(name, plan, context):
        facts.add_row(title, text)
    console.print(facts, highlight=False)


def _facts(name: str, plan: Plan, context: int) -> list[tuple[str, str]]:
    spec = plan.spec
    formats = Counter(tensor.format for tensor in plan.matrices)
    scaling = "" if spec.rope.scaling == "none" else f", {spec.rope.scaling} scaling by {spec.rope.factor:g}"
    windowed = [window for window in spec.windows if window]
    window = f", {len(windowed)} layers see the last {windowed[0]} tokens" if windowed else ""
    held = f"{megabytes(plan.held_bytes)}, {plan.bits_per_weight:.2f} bits a weight in matrices, {plan.quantization}"
    full, screened = plan.token_bytes(screened_head=False), plan.token_bytes()
    read = megabytes(full) + (f", {megabytes(screened)} with the screened output layer" if screened < full else "")
    return [
        ("model", f"{name}, {spec.architecture}"),
        ("layers", f"{spec.num_layers} of {spec.hidden_size} values, feed-forward {spec.intermediate_size}"),
        ("attention", f"{spec.num_heads} heads of {spec.head_dim}, {spec.num_kv_heads} for keys and values{window}"),
        ("rope", f"base {spec.rope.theta:g}{scaling}, context {spec.context_length}"),
        ("vocabulary", f"{spec.vocab_size}, output layer {'tied to the embedding' if spec.tied_embeddings else 'own'}"),
        ("matrices", ", ".join(f"{count} {format}" for format, count in formats.most_common())),
        ("on disk", megabytes(plan.file_bytes)),
        ("held", held),
        ("read a token", read),
        ("keys, values", f"{megabytes(plan.kv_token_bytes)} a token, {plan.kv_dtype}"),
        ("memory", f"about {megabytes(plan.memory(context))} with {context} tokens"),
    ]
