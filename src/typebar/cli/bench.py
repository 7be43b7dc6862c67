"""`typebar bench`: measurements that anyone can repeat."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from typebar.cli import options
from typebar.errors import TypebarError

if TYPE_CHECKING:
    from typebar.bench.mix import Mix
    from typebar.bench.verdict import Findings
    from typebar.cli.console import Console

INTERRUPTED = 130

bench = typer.Typer(help="Measure this machine, typebar and other engines.", no_args_is_help=True)

Json = Annotated[Path | None, typer.Option("--json", help="Where to write everything that was measured.")]
Plot = Annotated[Path | None, typer.Option(help="A folder for charts as PNG files; needs matplotlib.")]


@bench.command()
def compare(
    peers: Annotated[
        str,
        typer.Option(
            help="Engines to compare with, by commas, instead of all; those not installed are told.", show_default=False
        ),
    ] = "",
    model: options.Model = None,
    rounds: Annotated[int, typer.Option(min=1, help="Times that each engine is run, in turn.")] = 3,
    threads: options.Threads = None,
    only: Annotated[str, typer.Option(help="Metrics to measure, by commas, instead of all.", show_default=False)] = "",
    busy: Annotated[bool, typer.Option("--busy", help="Also decode beside a process that only computes.")] = False,
    quant: Annotated[
        str, typer.Option(help="Of typebar's weights alone: keep (as in the file), q8, q6, q5, q4, f32 or auto.")
    ] = "keep",
    kv_dtype: Annotated[str, typer.Option(help="Of typebar's keys and values alone: f16 or q8.")] = "f16",
    install: Annotated[
        bool, typer.Option("--install", help="First install missing engines into typebar's cache.")
    ] = False,
    json_file: Json = None,
    plot: Plot = None,
) -> None:
    """Compare typebar with other engines: the same model, prompts and threads, one process at a time, in turn.

    A ratio above 1 means that typebar is better, whatever the metric.
    """
    _require_extra()
    from typebar.bench import engines, metrics, tables
    from typebar.bench.compare import Task
    from typebar.bench.compare import compare as measure
    from typebar.cli.console import Console
    from typebar.config import EngineConfig

    _check_targets(json_file, plot)
    EngineConfig(quantization=quant, kv_dtype=kv_dtype)  # refuses what is unknown before anything is made
    wanted = metrics.choose(options.words(only), busy)
    console = Console()
    names = options.words(peers)
    engines.choose(names)  # refuses unknown ones
    file = _gguf(model)
    with tables.progress_bar(console, "compare") as progress:
        failed = engines.install_missing(names, lambda doing: progress(doing, 0.0)) if install else {}
        found, missing = engines.choose(names)
        task = Task.of(file, threads or _usual_threads(), wanted, quant, kv_dtype)
        keep = partial(tables.save, json_file) if json_file else lambda report: None
        report = measure(task, found, missing | failed, rounds, progress, keep)
    tables.print_comparison(console, report)
    _keep(report, json_file, plot)


@bench.command()
def load(
    url: Annotated[str, typer.Option(help="Any OpenAI-compatible server, without /v1.")] = "http://127.0.0.1:8000",
    requests: Annotated[int, typer.Option(min=1, help="How many requests.")] = 64,
    concurrency: Annotated[int, typer.Option(min=1, help="Users who each wait for their answer, then ask again.")] = 4,
    rate: Annotated[
        float | None, typer.Option(help="Requests a second at random moments (Poisson), in place of --concurrency.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 96,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds after which a request has failed.")] = 300.0,
    api_key: Annotated[str, typer.Option(envvar="TYPEBAR_API_KEY", help="Of the server.", show_envvar=False)] = "",
    seed: Annotated[int, typer.Option(help="Makes the requests repeatable.")] = 0,
    json_file: Json = None,
) -> None:
    """Ask a server what people ask: Chinese chat, code, long documents and conversations, streamed.

    The exit code is 1 where a request failed.
    """
    _require_extra()
    from typebar.bench import tables
    from typebar.bench.load import Plan, run
    from typebar.cli.console import Console

    tables.check_writable(json_file)
    plan = Plan(
        requests=requests, concurrency=concurrency, rate=rate, tokens=max_tokens, timeout=timeout, seed=seed
    )  # fmt: skip
    console = Console()
    with tables.progress_bar(console, "load") as progress:
        report = asyncio.run(run(plan, url, api_key, progress))
    tables.print_load(console, report)
    if json_file:
        tables.save(json_file, report)
    if report["errors"]:
        raise typer.Exit(1)


@bench.command()
def ladder(
    model: options.Model = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Most threads to try. Default: as `typebar run`.")] = None,
    quality: Annotated[bool, typer.Option(help="Also measure the divergence from float32, with transformers.")] = True,
    json_file: Json = None,
    plot: Plot = None,
) -> None:
    """Show what each step buys here: weights, threads, kept and shared prefixes, batching.

    Starts from transformers in float32 where that is installed. Every step is run once, in a process of its own.
    """
    _require_extra()
    from typebar.bench import engines, tables
    from typebar.bench.ladder import climb
    from typebar.cli.console import Console

    _check_targets(json_file, plot)
    path = _gguf(model)
    console = Console()
    _, missing = engines.choose(["transformers"])
    if missing:
        console.print("transformers is not installed: its step, and quality, are left out", highlight=False)
    with tables.progress_bar(console, "ladder") as progress:
        report = climb(path, threads or _usual_threads(), not missing, quality and not missing, progress)
    tables.print_ladder(console, report)
    _keep(report, json_file, plot)


@bench.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Files that --json of the other commands wrote.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
) -> None:
    """Join saved runs into one HTML page that needs no network."""
    from typebar.bench import page, tables

    tables.check_writable(output)
    page.write(runs, output)
    print(output)


def _gguf(model: str | None) -> Path:
    """The file of a model. TypebarError for one in safetensors, which other engines are not given."""
    from typebar.model.download import resolve_model

    path = resolve_model(model).path
    if path.is_dir():
        raise TypebarError(f"this needs a GGUF file: {path} is a folder of safetensors, write it as one first")
    return path


def _check_targets(json_file: Path | None, plot: Path | None) -> None:
    """Before hours are spent on figures that then cannot be kept."""
    from typebar.bench import plots, tables

    tables.check_writable(json_file)
    if plot:
        tables.check_folder(plot)
        plots.require()


def _keep(report: dict[str, Any], json_file: Path | None, plot: Path | None) -> None:
    from typebar.bench import plots, tables

    if json_file:
        tables.save(json_file, report)
    if plot:
        for path in plots.draw(report, plot):
            print(path)


def _usual_threads() -> int:
    from typebar import _native

    return _native.choose_threads()[0]


@bench.command()
def soak(
    url: Annotated[str | None, typer.Option(help="A running server. Without it one is started.")] = None,
    pid: Annotated[int | None, typer.Option(help="Its process on this machine, to be watched.")] = None,
    model: options.Model = None,
    minutes: Annotated[float | None, typer.Option(min=0, help="How long; default 20, without --requests.")] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="How many requests.")] = None,
    concurrency: Annotated[int, typer.Option(min=0, help="Users over HTTP.")] = 16,
    websockets: Annotated[int, typer.Option(min=0, help="More users whose WebSockets stay open.")] = 5,
    cancel: Annotated[float, typer.Option(min=0, max=1, help="Share of chats left at a random moment.")] = 0.3,
    bad: Annotated[float, typer.Option(min=0, max=1, help="Share of requests that must be refused.")] = 0.05,
    long: Annotated[float, typer.Option(min=0, max=1, help="Share of prompts of up to half a context.")] = 0.15,
    pool: Annotated[int, typer.Option(min=1, help="Distinct chats, first asked alone.")] = 40,
    warmup: Annotated[int, typer.Option(min=0, help="Requests before memory is judged.")] = 200,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds after which a request is stuck.")] = 180.0,
    kv_memory: Annotated[str, typer.Option(help="Of the started server; small, so that it fills.")] = "128M",
    threads: options.Threads = None,
    api_key: Annotated[str, typer.Option(envvar="TYPEBAR_API_KEY", help="For --url.", show_envvar=False)] = "",
    seed: Annotated[int, typer.Option(help="Makes the mix repeatable.")] = 0,
    json_file: Json = None,
) -> None:
    """Serve many users for a long time, some of whom leave or ask nonsense, and check every answer.

    Each chat is asked alone first; its answer must then come again whoever else is served.

    The exit code is 1 where a text was wrong, a request got stuck, or memory, threads or file descriptors grew.
    """
    _require_extra()
    from typebar.bench.mix import Mix
    from typebar.bench.process import ServerProcess, free_port, serve_command
    from typebar.bench.report import as_json, print_report
    from typebar.bench.verdict import problems
    from typebar.cli.console import Console

    mix = Mix(
        minutes=20.0 if minutes is None and requests is None else minutes,
        requests=requests, concurrency=concurrency, websockets=websockets, cancel=cancel, bad=bad, long=long, pool=pool,
        warmup=warmup, timeout=timeout, seed=seed,
    )  # fmt: skip
    console = Console()
    if url is None:
        port = free_port()
        settings = ["--kv-memory", kv_memory, *(["--threads", str(threads)] if threads else [])]
        with ServerProcess(serve_command(model, port, *settings), port) as server:
            findings = _soak(console, mix, server.url, server.pid, "")
        if server.exit_code:
            findings.failure(f"the server ended with exit code {server.exit_code}: {server.tail}")
    else:
        findings = _soak(console, mix, url, pid, api_key)
    found = problems(findings)
    print_report(console, findings, found)
    if json_file:
        json_file.write_text(as_json(findings, found), encoding="utf-8")
    if found or findings.interrupted:
        raise typer.Exit(1 if found else INTERRUPTED)


def _soak(console: Console, mix: Mix, url: str, pid: int | None, api_key: str) -> Findings:
    from typebar.bench.soak import Soak

    async def run() -> Findings:
        with _progress(console, mix) as progress:
            return await Soak(mix, url, pid=pid, api_key=api_key, progress=progress).run()

    return asyncio.run(run())


@contextmanager
def _progress(console: Console, mix: Mix) -> Iterator[Callable[[Findings], None]]:
    """A bar on a terminal, nothing elsewhere."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[counts]}"))
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("soak", total=1.0, counts=f"asking {mix.pool} chats alone")

        def show(findings: Findings) -> None:
            seconds = findings.samples[-1].seconds if findings.samples else 0.0
            by_time = seconds / (60 * mix.minutes) if mix.minutes else 0.0
            by_count = findings.requests / mix.requests if mix.requests else 0.0
            counts = ", ".join(f"{number} {name}" for name, number in findings.counts.items())
            bar.update(task, completed=max(by_time, by_count), counts=counts)

        yield show


def _require_extra() -> None:
    try:
        import httpx  # noqa: F401
        import websockets  # noqa: F401
    except ImportError as error:
        raise TypebarError(f"{error.name} is missing: pip install 'typebar[bench]'") from error
