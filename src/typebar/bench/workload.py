"""What a soak asks: chats whose answers are known, and requests that must be refused."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import count
from typing import Any

from typebar.bench.client import Client, Json, Reply
from typebar.errors import TypebarError

TOPICS = ("tides", "a bicycle gear", "rainbows", "yeast in bread", "a suspension bridge", "inflation", "sleep", "sonar")
SUBJECTS = ("潮汐", "豆腐", "长城", "围棋", "台风", "茶叶", "高铁", "书法")
TASKS = (
    "reverses a linked list", "counts words in a file", "merges two sorted lists", "parses an ISO date",
    "checks balanced brackets", "computes n primes", "flattens nested lists", "retries a call with backoff",
)  # fmt: skip
FOLLOW_UPS = ("Say it shorter.", "Give one example.", "请用中文再说一遍。", "What could go wrong with it?", "Why?")
SYSTEMS = (
    "You are the help desk of a harbour office. Answer from these notes only.\n",
    "你是一位耐心的编辑，请按照下面的材料回答问题。\n",
)
BAD_FRAMES = (
    '{"type": "chat", "messages": 5}',
    '{"type": "dance"}',
    "no JSON",
    "[]",
    '{"type": "chat", "messages": []}',
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What must come again for the same request, whoever else is served."""

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int

    @staticmethod
    def of(reply: Reply) -> Answer:
        prompt_tokens = int(reply.usage.get("prompt_tokens", 0))
        return Answer(reply.text, reply.finish_reason, prompt_tokens, reply.completion_tokens)


@dataclass(frozen=True, slots=True)
class Chat:
    """One request and its answer when nothing else was running."""

    name: str
    body: Json
    answer: Answer


@dataclass(frozen=True, slots=True)
class Script:
    """A conversation to be held: what is said turn by turn, and how answers are drawn."""

    name: str
    system: str
    turns: tuple[str, ...]
    sampling: Json

    @property
    def opening(self) -> list[Json]:
        return [{"role": "system", "content": self.system}] if self.system else []


@dataclass(frozen=True, slots=True)
class Bad:
    """A request that must be refused with one of `statuses` and an error object; `cut`: half of it, and no more."""

    name: str
    method: str
    path: str
    content: bytes
    statuses: tuple[int, ...] = (400, 422)
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Workload:
    """Conversations, each a list of chats in order; `chats` has them all."""

    conversations: list[list[Chat]]
    bad: list[Bad]
    chats: list[Chat] = field(default_factory=list)


class Texts:
    """Prose, Chinese and code in pieces of a wanted number of tokens."""

    def __init__(self, chars_per_token: float) -> None:
        self._paragraphs = _mixed_text().split("\n\n")
        self._ratio = chars_per_token

    def piece(self, tokens: int, rng: random.Random) -> str:
        """About `tokens` tokens, another text with every call."""
        length = int(tokens * self._ratio)
        text = ""
        while len(text) < length:
            # Each paragraph once before any comes again, so that long texts have the proportions of the whole.
            for paragraph in rng.sample(self._paragraphs, len(self._paragraphs)):
                text += f"[{rng.randrange(10**6)}] {paragraph}\n\n"
        return text[:length]


def scripts(rng: random.Random, texts: Texts, context: int, requests: int, long_share: float) -> Iterator[Script]:
    """Conversations of together `requests` turns. A long prompt takes up to half of a context of `context` tokens."""
    systems = [system + texts.piece(min(300, context // 8), rng) for system in SYSTEMS]
    rest = 1 - long_share
    weights = {"long": long_share, "shared system": 0.3 * rest, "multi-turn": 0.3 * rest, "short": 0.4 * rest}
    for number in count(1):
        [kind] = rng.choices([*weights], [*weights.values()])
        system = ""
        turns: tuple[str, ...] = (_question(rng),)
        if kind == "long":
            turns = (f"{texts.piece(rng.randrange(context // 4, context // 2), rng)}\nSum up the text above.",)
        elif kind == "shared system":
            system = rng.choice(systems)
        elif kind == "multi-turn":
            system = rng.choice(["", *systems])
            turns += tuple(rng.sample(FOLLOW_UPS, min(requests, rng.randint(2, 4)) - 1))
        yield Script(f"{kind} {number}", system, turns, _sampling(rng))
        requests -= len(turns)
        if requests <= 0:
            return


def bad_requests(texts: Texts, rng: random.Random, context: int) -> list[Bad]:
    """Requests that a server must refuse without harm."""
    hello: list[Json] = [{"role": "user", "content": "Hello"}]
    too_long = texts.piece(3 * context, rng)
    chat = "/v1/chat/completions"

    def wrong(name: str, **body: Any) -> Bad:
        return Bad(name, "POST", chat, json.dumps({"messages": hello, **body}).encode())

    return [
        Bad("broken JSON", "POST", chat, b'{"messages": [{"role": "user", "content": "Hel'),
        Bad("not UTF-8", "POST", chat, b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}'),
        Bad("a list", "POST", chat, b"[1, 2, 3]"),
        Bad("deep nesting", "POST", chat, b'{"messages": ' + b"[" * 20_000 + b"]" * 20_000 + b"}"),
        wrong("no messages", messages=[]),
        wrong("messages of the wrong type", messages="Hello"),
        wrong("unknown role", messages=[{"role": "nobody", "content": "Hello"}]),
        wrong("temperature out of range", temperature=-1),
        wrong("temperature of the wrong type", temperature="hot"),
        wrong("no room for an answer", max_tokens=-5),
        wrong("prompt over the context", messages=[{"role": "user", "content": too_long}], max_tokens=8),
        Bad("half a body", "POST", chat, json.dumps({"messages": hello}).encode(), cut=True),
        Bad("unknown route", "POST", "/v1/chat/completion5", b"{}", (404,)),
        Bad("wrong method", "GET", chat, b"", (405,)),
        Bad("cancel of nothing", "POST", "/v1/requests/never-was/cancel", b"", (404,)),
    ]


async def prepare(client: Client, requests: int, long_share: float, seed: int) -> Workload:
    """Hold every conversation once, one request at a time and with nothing cached, and keep the answers."""
    rng = random.Random(seed)
    context = await context_length(client)
    texts = Texts(await chars_per_token(client))
    conversations = [
        [chat async for chat in _hold(client, script)] for script in scripts(rng, texts, context, requests, long_share)
    ]
    chats = [chat for conversation in conversations for chat in conversation]
    return Workload(conversations, bad_requests(texts, rng, context), chats)


async def chars_per_token(client: Client) -> float:
    """Of the mixed text, by the server's own count."""
    sample = _mixed_text()[:800]
    reply = await client.chat({"messages": [{"role": "user", "content": sample}], "max_tokens": 1}, stream=False)
    if not reply.usage:
        raise TypebarError(f"the server answered a first request with status {reply.status}: {reply.error}")
    return len(sample) / int(reply.usage["prompt_tokens"])


async def _hold(client: Client, script: Script) -> AsyncIterator[Chat]:
    messages = script.opening
    for turn, text in enumerate(script.turns, 1):
        messages = [*messages, {"role": "user", "content": text}]
        body = {"messages": messages, **script.sampling}
        reply = await client.chat({**body, "cache_prompt": False})
        if reply.status != 200 or not reply.finish_reason:
            raise TypebarError(f"{script.name} was refused while nothing else ran ({reply.status}): {reply.error}")
        yield Chat(f"{script.name}, turn {turn}", body, Answer.of(reply))
        messages = [*messages, {"role": "assistant", "content": reply.text}]


def _question(rng: random.Random) -> str:
    number = rng.randint(2, 99)
    return rng.choice(
        [
            f"Explain in {number} words how {rng.choice(TOPICS)} works.",
            f"用{number}个字介绍{rng.choice(SUBJECTS)}。",
            f"Write Python function number {number}: it {rng.choice(TASKS)}.",
        ]
    )


def _sampling(rng: random.Random) -> Json:
    """Greedy for most; with a seed, drawn answers repeat as well."""
    drawn = {"temperature": 0.8, "top_p": 0.9, "seed": rng.randrange(10**6)}
    return {"max_tokens": rng.randint(4, 64), **({"temperature": 0} if rng.random() < 0.8 else drawn)}


def _mixed_text() -> str:
    return files("typebar.bench").joinpath("mixed.txt").read_text(encoding="utf-8")


async def context_length(client: Client) -> int:
    """Tokens of prompt and answer together that the server takes."""
    models = json.loads(await client.text("/v1/models"))["data"]
    [model, *_] = models
    return int(model.get("max_model_len") or model.get("meta", {}).get("n_ctx") or 2048)
