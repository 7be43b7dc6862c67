"""Figures of a server, asked over HTTP by several users."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from statistics import median

import httpx

from typebar.bench.client import Client, Json, Reply
from typebar.bench.peers.measure import CHAT_TOKENS, WAVES, peak_rss, percentile
from typebar.bench.process import RUN_TIMEOUT, ServerProcess
from typebar.bench.prompts import QUESTIONS, chat
from typebar.errors import TypebarError

FULL_ANSWER = 32


def figures(server: ServerProcess, users: int, wanted: Collection[str], document: str) -> dict[str, float]:
    """What is wanted of a server made for so many users. TypebarError where a request or the server fails.

    document: about as long as a context of 2048 tokens allows; it fills it before memory is read.
    """

    async def within_time() -> dict[str, float]:
        async with asyncio.timeout(RUN_TIMEOUT):
            return await _figures(server, users, wanted, document)

    try:
        return asyncio.run(within_time())
    except (httpx.HTTPError, OSError, LookupError, ValueError) as error:  # a TimeoutError is an OSError
        raise TypebarError(f"its server gave no answer that can be measured: {error!r}\n{server.log_tail()}") from error


async def _figures(server: ServerProcess, users: int, wanted: Collection[str], document: str) -> dict[str, float]:
    found: dict[str, float] = {}
    speed, p95 = f"aggregate_tps_{users}", f"p95_ttft_ms_{users}"
    async with Client(server.url, keep_alive=False) as client:
        await _ask(client, "Say hello.", 8)  # whatever is made at the first request is made now
        if {speed, p95} & set(wanted):
            waves = [
                await asyncio.gather(*(_ask(client, text, CHAT_TOKENS) for text in QUESTIONS[:users]))
                for _ in range(WAVES if p95 in wanted else 1)
            ]
            found[speed] = median(_aggregate(replies) for replies in waves)
            found[p95] = 1e3 * percentile([reply.ttft for replies in waves for reply in replies], 95)
        if "peak_rss_mb" in wanted:
            await _ask(client, document, FULL_ANSWER)
            found["peak_rss_mb"] = peak_rss(server.pid) / 1e6
    return {name: value for name, value in found.items() if name in wanted}


async def _ask(client: Client, text: str, tokens: int) -> Reply:
    """Exactly `tokens` tokens, and nothing from a cache."""
    body: Json = {"messages": chat(text), "max_tokens": tokens, "temperature": 0}
    reply = await client.chat({**body, "ignore_eos": True, "cache_prompt": False})
    if reply.status != 200 or reply.error or not reply.arrivals:
        raise TypebarError(f"a request failed: status {reply.status}, {reply.error}")
    return reply


def _aggregate(replies: list[Reply]) -> float:
    """Tokens a second of all, from the first token of any to the last of all."""
    seconds = max(reply.arrivals[-1] for reply in replies) - min(reply.arrivals[0] for reply in replies)
    return sum(reply.completion_tokens - 1 for reply in replies) / seconds
