"""Load on an OpenAI-compatible server: conversations as people hold them, by so many users or as they come."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import httpx

from typebar.bench.client import Client, Json, Reply
from typebar.bench.prompts import Script, scripts
from typebar.bench.verdict import percentiles
from typebar.bench.workload import Texts, chars_per_token, context_length
from typebar.errors import ParameterError, TypebarError

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much and how. Raises ParameterError for what cannot be run.

    concurrency: users who each ask again as soon as they are answered. rate: requests a second instead; conversations
    then begin at random moments (Poisson), however many are open. tokens: longest answer. timeout: seconds for one.
    """

    requests: int = 64
    concurrency: int = 4
    rate: float | None = None
    tokens: int = 96
    timeout: float = 300.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("requests", "concurrency", "tokens", "timeout"):
            if getattr(self, name) <= 0:
                raise ParameterError(name, "above 0", getattr(self, name))
        if self.rate is not None and self.rate <= 0:
            raise ParameterError("rate", "above 0", self.rate)


@dataclass(slots=True)
class Seen:
    """What came back. Each reply beside the kind of its conversation; errors by what they say."""

    replies: list[tuple[str, Reply]] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    started: float = 0.0
    ended: float = 0.0

    @property
    def requests(self) -> int:
        return len(self.replies) + self.errors.total()


async def run(plan: Plan, url: str, api_key: str, progress: Progress) -> Json:
    """Put the load on the server; the report that --json writes. TypebarError where it cannot be reached."""
    async with Client(url, api_key) as client:
        try:
            model = client.model = str(json.loads(await client.text("/v1/models"))["data"][0]["id"])
            rng = random.Random(plan.seed)
            texts = Texts(await chars_per_token(client))
            held = scripts(rng, texts, plan.requests, await context_length(client))
        except (httpx.HTTPError, ValueError, LookupError) as error:
            raise TypebarError(f"{url} is no server that can be measured: {error}") from error
    seen = Seen(started=perf_counter())
    # Its keep-alive ends without a word on some servers, which would count as errors here.
    async with Client(url, api_key, model=model, keep_alive=False) as client:
        user = _User(plan, client, seen, progress)
        await (_as_they_come(plan, held, user, rng) if plan.rate else _closed_loop(plan, held, user))
    seen.ended = perf_counter()
    return report(plan, url, model, seen)


@dataclass(slots=True)
class _User:
    plan: Plan
    client: Client
    seen: Seen
    progress: Progress

    async def hold(self, script: Script) -> None:
        """Ask turn after turn; a conversation ends with its first error, and its later turns count as failed."""
        messages: list[Json] = []
        for number, text in enumerate(script.turns):
            messages = [*messages, {"role": "user", "content": text}]
            reply, error = await self._ask(messages)
            if error:
                self.seen.errors[error] += 1
                if left := len(script.turns) - number - 1:
                    self.seen.errors["not asked after an error"] += left
                self._tell()
                break
            self.seen.replies.append((script.kind, reply))
            messages = [*messages, {"role": "assistant", "content": reply.text}]
            self._tell()

    def _tell(self) -> None:
        answered, done = len(self.seen.replies), self.seen.requests
        failed = f", {done - answered} failed" if done > answered else ""
        self.progress(f"{answered} of {self.plan.requests} answered{failed}", done / self.plan.requests)

    async def _ask(self, messages: list[Json]) -> tuple[Reply, str]:
        reply = Reply()
        body = {"messages": messages, "max_tokens": self.plan.tokens, "temperature": 0}
        try:
            async with asyncio.timeout(self.plan.timeout):
                await self.client.chat(body, reply=reply)
        except TimeoutError:
            return reply, f"no end after {self.plan.timeout:g} s"
        except httpx.HTTPError as error:
            return reply, f"the connection broke: {type(error).__name__}"
        except ValueError:
            return reply, "an answer that is no JSON"
        if reply.status != 200 or reply.error:
            return reply, f"status {reply.status}: {str(reply.error.get('message', ''))[:100]}"
        return reply, "" if reply.ended and (
            reply.arrivals or reply.finish_reason
        ) else "an empty answer without a reason"


async def _closed_loop(plan: Plan, held: list[Script], user: _User) -> None:
    waiting = iter(held)

    async def ask_again() -> None:
        for script in waiting:
            await user.hold(script)

    await asyncio.gather(*(ask_again() for _ in range(plan.concurrency)))


async def _as_they_come(plan: Plan, held: list[Script], user: _User, rng: random.Random) -> None:
    assert plan.rate
    conversations_a_second = plan.rate * len(held) / plan.requests
    async with asyncio.TaskGroup() as group:
        for number, script in enumerate(held):
            if number:
                await asyncio.sleep(rng.expovariate(conversations_a_second))
            group.create_task(user.hold(script))


def report(plan: Plan, url: str, model: str, seen: Seen) -> Json:
    """Plain data; latencies in ms, of the gaps those between pieces of text, which are mostly tokens."""
    replies = [reply for _, reply in seen.replies]
    seconds = seen.ended - seen.started
    tokens = sum(reply.completion_tokens or len(reply.arrivals) for reply in replies)
    kinds = sorted({kind for kind, _ in seen.replies})
    return {
        "url": url,
        "model": model,
        "load": {"closed": plan.concurrency} if plan.rate is None else {"poisson_requests_s": plan.rate},
        "requests": seen.requests,
        "completed": len(replies),
        "errors": dict(seen.errors),
        "seconds": seconds,
        "requests_s": len(replies) / seconds,
        "prompt_tokens": sum(int(reply.usage.get("prompt_tokens", 0)) for reply in replies),
        "cached_tokens": sum(reply.cached_tokens for reply in replies),
        "completion_tokens": tokens,
        "output_tps": tokens / seconds,
        "latencies_ms": {
            "ttft": _milliseconds([reply.ttft for reply in replies]),
            "itl": _milliseconds([gap for reply in replies for gap in reply.gaps]),
            "whole": _milliseconds([reply.ended - reply.started for reply in replies]),
        },
        "kinds": {
            kind: {
                "requests": sum(name == kind for name, _ in seen.replies),
                "ttft": _milliseconds([reply.ttft for name, reply in seen.replies if name == kind]),
            }
            for kind in kinds
        },
    }


def _milliseconds(seconds: list[float]) -> dict[str, Any] | None:
    return percentiles([1e3 * value for value in seconds])
