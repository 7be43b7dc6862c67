"""Prompts as people send them: short questions, Chinese chat, code, a long document, a conversation."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from typebar.bench.workload import Texts

Json = dict[str, Any]

QUESTIONS = (
    "Tell the story of a lighthouse keeper who finds a letter.",
    "写一篇关于秋天的短文。",
    "Write a Python class for a matrix with addition and multiplication.",
    "Explain how a refrigerator moves heat, step by step.",
    "Plan three days in a small town by the sea, with a budget.",
    "介绍一下围棋的基本规则，并说明如何判断死活。",
    "Write a SQL query that lists customers without an order this year, and explain it.",
    "What should a first aid kit in a workshop hold, and why?",
)
CHINESE = (
    "我想学做红烧肉，请告诉我需要哪些材料，每一步要注意什么。",
    "下周要去成都出差三天，晚上有空，请推荐几个地方，并说明怎么走。",
    "请把这句话改得礼貌一些：你们的货又迟到了，我很不高兴。",
    "孩子问我月亮为什么会跟着人走，我该怎么用简单的话回答？",
)
CODE = (
    "This function is slow for long lists. Make it faster and say why:\n\n"
    "def unique(items):\n    seen = []\n    for item in items:\n        if item not in seen:\n"
    "            seen.append(item)\n    return seen\n",
    "Find the bug:\n\ndef average(values):\n    total = 0\n    for value in values:\n        total += value\n"
    "        return total / len(values)\n",
    "Write a TypeScript function that groups an array of objects by a key, with types, and a test for it.",
    "Rewrite this shell line so that file names with spaces work:\n\nfor f in $(ls *.txt); do mv $f old/$f; done\n",
)
EDIT = """Here is a Python file:

```python
class Queue:
    def __init__(self, limit):
        self.limit = limit
        self.items = []

    def put(self, item):
        if len(self.items) >= self.limit:
            raise OverflowError("the queue is full")
        self.items.append(item)

    def get(self):
        if not self.items:
            raise LookupError("the queue is empty")
        return self.items.pop(0)
```

Rename `limit` to `capacity` everywhere and print the whole file."""
FOLLOW_UPS = ("Say it shorter.", "Give one example.", "请用中文再说一遍。", "What could go wrong with it?")
DOCUMENT_TOKENS = 1200


@dataclass(frozen=True, slots=True)
class Script:
    """A conversation to be held; its later turns hold the answers to the earlier ones."""

    kind: str
    turns: tuple[str, ...]


def scripts(rng: random.Random, texts: Texts, requests: int, context: int) -> list[Script]:
    """Conversations of together `requests` turns: 3 in 10 Chinese, 3 code, 1 a document, 3 of several turns."""
    made: list[Script] = []
    left = requests
    while left > 0:
        [kind] = rng.choices(["chinese", "code", "document", "conversation"], [3, 3, 1, 3])
        script = Script(kind, _turns(kind, rng, texts, context)[:left])
        made.append(script)
        left -= len(script.turns)
    return made


def _turns(kind: str, rng: random.Random, texts: Texts, context: int) -> tuple[str, ...]:
    if kind == "chinese":
        return (rng.choice(CHINESE),)
    if kind == "code":
        return (rng.choice(CODE),)
    if kind == "document":
        document = texts.piece(min(DOCUMENT_TOKENS, context // 2), rng)
        return (f"{document}\n\nSum up the text above in three sentences.",)
    return (rng.choice(QUESTIONS), *rng.sample(FOLLOW_UPS, rng.randint(1, 3)))


def chat(text: str) -> list[Json]:
    return [{"role": "user", "content": text}]
