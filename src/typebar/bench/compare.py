"""typebar and other engines in one run: processes in turn, one at a time, same prompts, same threads, medians."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import Any

from typebar.bench import machine, serving
from typebar.bench.engines import TYPEBAR, Engine, Launch
from typebar.bench.machine import Watch
from typebar.bench.metrics import BESIDE_BUSY, BUSY, BY_KEY, METRICS, SLOWDOWN, Metric, ratio, summary
from typebar.bench.process import RUN_TIMEOUT, ServerProcess, busy_process, free_port
from typebar.bench.prompts import EDIT, QUESTIONS, chat
from typebar.errors import TypebarError
from typebar.model.gguf import GGUFFile
from typebar.model.names import match_tensors
from typebar.model.spec import ModelSpec
from typebar.text.chat import ChatTemplate
from typebar.text.tokenizer import Tokenizer

CONTEXT = 4096
DOCUMENT_TOKENS = 1900
DECODE = "decode_tps_0"

Json = dict[str, Any]
Progress = Callable[[str, float], None]  # what is being done, and the share of all that is behind


@dataclass(frozen=True, slots=True)
class Task:
    """What every engine is given. `tokens` are ids of a mixed text, `chats` of short questions, `edit` of EDIT."""

    gguf: Path
    threads: int
    metrics: tuple[Metric, ...]
    context: int
    tokens: list[int]
    chats: list[list[int]]
    edit: list[int]
    document: str
    token_weights: int  # read for a token
    weight_bytes: int  # of these by an engine that takes the file as it is
    macs: int  # multiply-adds of a token without the output layer
    quantization: str = "keep"  # of typebar's weights; the other engines' are what they are
    kv_dtype: str = "f16"  # likewise

    @staticmethod
    def of(
        gguf: Path, threads: int, metrics: Sequence[Metric], quantization: str = "keep", kv_dtype: str = "f16"
    ) -> Task:
        """The task for a model; metrics that its context does not hold are left out."""
        file = GGUFFile.open(gguf)
        spec = ModelSpec.from_gguf(file)
        tokenizer = Tokenizer.from_gguf(file.metadata)
        text = files("typebar.bench").joinpath("mixed.txt").read_text(encoding="utf-8")
        tokens = tokenizer.encode(text)
        tokens = (tokens * (CONTEXT // len(tokens) + 1))[:CONTEXT]
        template = ChatTemplate(tokenizer.chat_template or "", tokenizer)
        matrices = {name: tensor for name, tensor in match_tensors(spec, file).items() if len(tensor.shape) == 2}
        read = [tensor for name, tensor in matrices.items() if name != "embed" or spec.tied_embeddings]
        body = [tensor for name, tensor in matrices.items() if name not in ("embed", "head")]
        return Task(
            gguf=gguf,
            threads=threads,
            metrics=tuple(metric for metric in metrics if metric.context <= spec.context_length),
            context=min(CONTEXT, spec.context_length),
            tokens=tokens,
            chats=[template.encode(chat(question)) for question in QUESTIONS],
            edit=template.encode(chat(EDIT)),
            document=tokenizer.decode(tokens[: min(DOCUMENT_TOKENS, spec.context_length - 148)]),
            token_weights=sum(tensor.shape[0] * tensor.shape[1] for tensor in read),
            weight_bytes=sum(tensor.nbytes for tensor in read),
            macs=sum(tensor.shape[0] * tensor.shape[1] for tensor in body),
            quantization=quantization,
            kv_dtype=kv_dtype,
        )


@dataclass(slots=True)
class Rounds:
    """What one engine gave in every round. A watch has the bandwidth that was measured before the round, too."""

    about: Json = field(default_factory=dict)
    figures: list[dict[str, float]] = field(default_factory=list)
    watches: list[Json] = field(default_factory=list)


def compare(
    task: Task,
    peers: Sequence[Engine],
    missing: dict[str, str],
    rounds: int,
    progress: Progress,
    keep: Callable[[Json], None] = lambda report: None,
) -> Json:
    """The whole comparison as the report that --json writes. A peer that fails is told as missing, with its error.

    keep: called with the report so far after every round, of an hour that may be interrupted.
    """
    missing = dict(missing)
    found = {engine.name: Rounds() for engine in (TYPEBAR, *peers)}
    engines = []
    for engine in (TYPEBAR, *peers):
        progress(f"weights for {engine.name}", 0.0)
        if (prepared := _or_missing(engine, missing, partial(_prepare, engine, task))) is not None:
            engines.append(prepared)
    facts = machine.describe(task.threads)
    for number in range(rounds):
        for position, (engine, python, model) in enumerate(engines):
            if engine.name in missing:
                continue
            progress(f"round {number + 1}, {engine.name}", (number * len(engines) + position) / rounds / len(engines))
            run = partial(_round, engine, python, model, task)
            if (result := _or_missing(engine, missing, run)) is not None:
                about, figures, watch = result
                entry = found[engine.name]
                entry.about = about
                entry.figures.append(figures)
                entry.watches.append(watch)
        measured = {name: entry for name, entry in found.items() if entry.figures}
        report = _report(task, facts, measured, missing, number + 1)
        keep(report)
    return report


def _prepare(engine: Engine, task: Task) -> tuple[Engine, str, Path]:
    python = engine.python() or sys.executable
    return engine, python, engine.model(task.gguf, python)


def _or_missing(engine: Engine, missing: dict[str, str], work: Callable[[], Any]) -> Any:
    """What `work` gives; None where a peer fails, which is then written down. Our own failure is an error."""
    try:
        return work()
    except TypebarError as error:
        if engine is TYPEBAR:
            raise
        missing[engine.name] = f"failed: {error}"
        return None


def _round(engine: Engine, python: str, model: Path, task: Task) -> tuple[Json, dict[str, float], Json]:
    """One engine once: what it says of itself, its figures, who else used the machine and how fast its memory was."""
    served = [metric for metric in task.metrics if metric.users and engine.server]
    beside = [metric for metric in task.metrics if metric in BESIDE_BUSY]
    alone = [metric.key for metric in task.metrics if metric not in served and metric not in beside]
    bandwidth = machine.read_bandwidth(task.threads)
    with Watch() as watch:
        about, figures = solo(engine, python, model, task, [*alone, DECODE] if beside else alone)
        if beside:
            figures |= _beside_busy(engine, python, model, task, figures[DECODE])
        for users in sorted({metric.users for metric in served}):
            wanted = [metric.key for metric in served if metric.users == users]
            figures |= _served(engine, python, model, task, users, wanted)
    return about, figures, watch.as_json() | {"bandwidth_gb_s": bandwidth}


def _beside_busy(engine: Engine, python: str, model: Path, task: Task, quiet_tps: float) -> dict[str, float]:
    """Decoding in a process of its own, while another computes on one of the processors."""
    with busy_process():
        _, figures = solo(engine, python, model, task, [DECODE])
    return {BUSY: figures[DECODE], SLOWDOWN: quiet_tps / figures[DECODE]}


def solo(
    engine: Engine, python: str, model: Path, task: Task, wanted: list[str], **settings: Any
) -> tuple[Json, dict[str, float]]:
    """An adapter in a fresh process, `settings` being added to its job: about, and figures with `load_s`."""
    job = {
        "model": str(model), "threads": task.threads, "context": task.context, "tokens": task.tokens,
        "chats": task.chats, "edit": task.edit, "metrics": wanted, "weights": engine.weights,
        "token_weights": task.token_weights, "quantization": task.quantization, "kv_dtype": task.kv_dtype,
        **settings,
    }  # fmt: skip
    command = [python, str(engine.path), json.dumps(job)]
    start = time.monotonic()
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=RUN_TIMEOUT
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise TypebarError(f"{engine.name} did not end within {RUN_TIMEOUT:.0f} s") from None
    if done.returncode:
        raise TypebarError(f"{engine.name} ended with exit code {done.returncode}:\n{done.stderr[-1500:]}")
    try:
        about: Json = json.loads(done.stdout.strip().splitlines()[-1])
        figures: dict[str, float] = about.pop("figures")
        first_token_at: float = about.pop("first_token_at")
    except (AttributeError, LookupError, TypeError, ValueError):
        raise TypebarError(f"{engine.name} gave no result: {(done.stdout + done.stderr)[-1500:]}") from None
    if "load_s" in wanted:
        figures["load_s"] = first_token_at - start
    return about, figures


def _served(engine: Engine, python: str, model: Path, task: Task, users: int, wanted: list[str]) -> dict[str, float]:
    assert engine.server
    port = free_port()
    launch = Launch(python, model, port, users, task.threads, task.quantization, task.kv_dtype)
    with ServerProcess(engine.server(launch), port) as server:
        return serving.figures(server, users, wanted, task.document)


def _report(task: Task, facts: Json, found: dict[str, Rounds], missing: dict[str, str], rounds: int) -> Json:
    engines = {name: _engine_report(task, entry) for name, entry in found.items()}
    ours = engines[TYPEBAR.name]["metrics"]
    ratios = {
        name: {
            key: ratio(BY_KEY[key], ours[key]["median"], theirs["median"])
            for key, theirs in engine["metrics"].items()
            if key in ours
        }
        for name, engine in engines.items()
        if name != TYPEBAR.name
    }
    left_out = [metric.key for metric in METRICS if metric not in task.metrics]
    return {
        "machine": facts,
        "model": {"file": task.gguf.name, "weight_bytes": task.weight_bytes, "macs_a_token": task.macs},
        "quantization": engines[TYPEBAR.name]["quantization"],
        "rounds": rounds,
        "engines": engines,
        "ratios": ratios,
        "missing": missing,
        "left_out": left_out,
    }


def _engine_report(task: Task, entry: Rounds) -> Json:
    keys = [metric.key for metric in task.metrics if all(metric.key in figures for figures in entry.figures)]
    metrics = {key: summary([figures[key] for figures in entry.figures]) for key in keys}
    about = dict(entry.about)
    token_bytes = about.pop("token_bytes") or task.weight_bytes
    hardware: Json = {}
    if DECODE in metrics:
        speeds = [figures[DECODE] * token_bytes / 1e9 for figures in entry.figures]
        could = [watch["bandwidth_gb_s"] for watch in entry.watches]
        hardware["decode_gb_s"] = median(speeds)
        hardware["decode_bandwidth_percent"] = median(
            100 * speed / most for speed, most in zip(speeds, could, strict=True)
        )
    if "prefill_tps_512" in metrics:
        hardware["prefill_gmac_s"] = metrics["prefill_tps_512"]["median"] * task.macs / 1e9
    return {**about, "metrics": metrics, "hardware": hardware, "rounds": entry.figures, "watch": entry.watches}
