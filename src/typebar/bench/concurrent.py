"""Several users at once: typebar's server and llama.cpp's in one run, same file, same threads, processes in turn.

    python -m typebar.bench.concurrent -m MODEL [--threads 2] [--rounds 3] [--only chats,turns,stall] [--json FILE]

chats: first byte, first token and decode speed of 1 and of 4 chats that start together, nothing cached.
turns: first token of the turns of a conversation, and of a second user with the same system message.
stall: the gaps between tokens of 4 chats while a prompt of 8 000 tokens is computed beside them (typebar only).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from typebar.bench.client import Client, Json, Reply
from typebar.bench.metrics import Metric, ratio
from typebar.bench.process import ServerProcess, free_port, serve_command
from typebar.bench.prompts import QUESTIONS
from typebar.bench.workload import Texts, chars_per_token
from typebar.model.download import resolve_model

SLOTS = 4
CONTEXT = 2048
LONG_CONTEXT = 9216
LONG_PROMPT = 8000
DECODE_TOKENS = 128
TURN_TOKENS = 48
TURNS = 6
SYSTEM_TOKENS = 500
SETTLED_PIECES = 24  # of each chat, whose gaps count as normal, before the long prompt comes
PEER = Path(__file__).with_name("peers") / "llamacpp_server.py"

# English alone: every token of an answer is a piece of text, so that gaps are between tokens.
PLAIN_QUESTIONS = (QUESTIONS[0], QUESTIONS[2], QUESTIONS[3], "Describe each planet of the solar system.")

Figures = dict[str, float]
Scenario = Callable[[Client], Awaitable[Figures]]


async def chats(client: Client) -> Figures:
    """1 chat, then 4 together. Speeds are over the time from the first token of any chat to the last of all."""
    figures: Figures = {}
    for users in (1, SLOTS):
        replies = await asyncio.gather(*(client.chat(_chat(text, DECODE_TOKENS)) for text in QUESTIONS[:users]))
        _check(replies)
        seconds = max(reply.arrivals[-1] for reply in replies) - min(reply.arrivals[0] for reply in replies)
        figures[f"decode_tps_{users}"] = sum(reply.completion_tokens - 1 for reply in replies) / seconds
        figures[f"first_byte_ms_{users}"] = 1e3 * max(reply.ttfb for reply in replies)
        figures[f"first_token_ms_{users}"] = 1e3 * max(reply.ttft for reply in replies)
    return figures


async def turns(client: Client) -> Figures:
    """A conversation under a long system message, then somebody else's first turn under the same one."""
    figures: Figures = {}
    texts = Texts(await chars_per_token(client))
    system: list[Json] = [{"role": "system", "content": texts.piece(SYSTEM_TOKENS, random.Random(1))}]
    messages = system
    for turn in range(1, TURNS + 1):
        messages = [*messages, {"role": "user", "content": f"{turn}. {QUESTIONS[turn % SLOTS]}"}]
        reply = await client.chat(_greedy(messages, TURN_TOKENS))
        _note_turn(figures, f"turn_{turn}", reply)
        messages = [*messages, {"role": "assistant", "content": reply.text}]
    other = [*system, {"role": "user", "content": "Which ship is mentioned?"}]
    _note_turn(figures, "second_user", await client.chat(_greedy(other, TURN_TOKENS)))
    return figures


async def stall(client: Client) -> Figures:
    """Gaps of 4 chats before and while a long prompt is computed."""
    texts = Texts(await chars_per_token(client))
    replies = [Reply() for _ in range(SLOTS)]
    bodies = [_chat(text, LONG_CONTEXT // 2) | {"skip_special_tokens": False} for text in PLAIN_QUESTIONS]
    tasks = [asyncio.create_task(client.chat(body, reply=reply)) for body, reply in zip(bodies, replies, strict=True)]
    try:
        while any(len(reply.arrivals) <= SETTLED_PIECES for reply in replies):
            await asyncio.sleep(0.02)
            _expect_running(tasks)
        before = [len(reply.arrivals) for reply in replies]
        long = await client.chat(_chat(texts.piece(LONG_PROMPT, random.Random(1)), 1))
        _check([long])
        _expect_running(tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    # The first tokens come while other prompts are computed: they are not normal.
    normal = [gap for reply, start in zip(replies, before, strict=True) for gap in reply.gaps[start // 2 : start - 1]]
    beside = [gap for reply, start in zip(replies, before, strict=True) for gap in reply.gaps[start - 1 :]]
    return {
        "normal_gap_ms": 1e3 * median(normal),
        "median_gap_beside_ms": 1e3 * median(beside),
        "largest_gap_beside_ms": 1e3 * max(beside),
        "largest_to_normal": max(beside) / median(normal),
        "long_prompt_tokens": float(long.usage["prompt_tokens"]),
        "long_first_byte_ms": 1e3 * long.ttfb,
        "long_first_token_s": long.ttft,
    }


SCENARIOS: dict[str, Scenario] = {"chats": chats, "turns": turns, "stall": stall}


def main() -> None:
    parser = argparse.ArgumentParser(prog="typebar.bench.concurrent", description=__doc__.split("\n")[0])
    parser.add_argument("-m", "--model", help="as for `typebar run`")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(SCENARIOS), help=f"of {', '.join(SCENARIOS)}, by commas")
    parser.add_argument("--json", type=Path, help="where to write everything that was measured")
    arguments = parser.parse_args()
    wanted = arguments.only.split(",")
    if unknown := set(wanted) - set(SCENARIOS):
        parser.error(f"no scenario {', '.join(unknown)}: there are {', '.join(SCENARIOS)}")
    model = str(resolve_model(arguments.model).path)
    results: dict[str, dict[str, list[Figures]]] = {}
    for name in wanted:
        engines = ["typebar"] if name == "stall" else ["typebar", "llama.cpp"]
        rounds: dict[str, list[Figures]] = {engine: [] for engine in engines}
        for number in range(arguments.rounds):
            for engine in engines:
                rounds[engine].append(measure(engine, name, model, arguments.threads))
                print(f"{name}, round {number + 1} of {engine} is measured", file=sys.stderr, flush=True)
        print_table(name, rounds)
        results[name] = rounds
    if arguments.json:
        job = {"model": model, "threads": arguments.threads, "slots": SLOTS, "context": CONTEXT}
        arguments.json.write_text(json.dumps({"job": job, "rounds": results}, indent=1))


def measure(engine: str, scenario: str, model: str, threads: int) -> Figures:
    """One round in a fresh server process, after a first request that is not measured."""
    port = free_port()
    context = LONG_CONTEXT if scenario == "stall" else CONTEXT
    if engine == "typebar":
        settings = ("--threads", str(threads), "--max-model-len", str(context))
        command = serve_command(model, port, *settings)
    else:
        job = {"model": model, "threads": threads, "slots": SLOTS, "context": context, "port": port}
        command = [sys.executable, str(PEER), json.dumps(job)]

    async def run() -> Figures:
        async with Client(server.url, keep_alive=False) as client:
            _check([await client.chat(_chat("Say hello.", 8))])
            return await SCENARIOS[scenario](client)

    with ServerProcess(command, port) as server:
        return asyncio.run(run())


def print_table(scenario: str, rounds: dict[str, list[Figures]]) -> None:
    """Medians with ranges; the ratio says how many times better typebar is, below 1 where it is worse."""
    print(f"\n{scenario:26}" + "".join(f"{engine:>34}" for engine in rounds) + ("   ratio" if len(rounds) > 1 else ""))
    for key in next(iter(rounds.values()))[0]:
        series = [[figures[key] for figures in results] for results in rounds.values()]
        cells = [f"{median(values):.1f} ({min(values):.1f} to {max(values):.1f})" for values in series]
        better = ""
        if len(series) > 1 and all(map(median, series)):
            metric = Metric(key, key, higher_is_better="_tps_" in key, context=CONTEXT)
            better = f"{ratio(metric, median(series[0]), median(series[1])):8.2f}"
        print(f"{key:26}" + "".join(f"{cell:>34}" for cell in cells) + better)


def _chat(text: str, tokens: int) -> Json:
    """Exactly `tokens` tokens, and nothing from a cache."""
    body = _greedy([{"role": "user", "content": text}], tokens)
    return {**body, "ignore_eos": True, "cache_prompt": False}


def _greedy(messages: list[Json], tokens: int) -> Json:
    return {"messages": messages, "max_tokens": tokens, "temperature": 0}


def _note_turn(figures: Figures, name: str, reply: Reply) -> None:
    _check([reply])
    figures[f"{name}_first_token_ms"] = 1e3 * reply.ttft
    figures[f"{name}_new_tokens"] = float(reply.usage["prompt_tokens"] - reply.cached_tokens)


def _check(replies: Sequence[Reply]) -> None:
    for reply in replies:
        if reply.status != 200 or reply.error or not reply.arrivals:
            raise SystemExit(f"a request failed: status {reply.status}, {reply.error}")


def _expect_running(tasks: Sequence[asyncio.Task[Any]]) -> None:
    if any(task.done() for task in tasks):
        raise SystemExit("a chat ended before the long prompt was computed")


if __name__ == "__main__":
    main()
