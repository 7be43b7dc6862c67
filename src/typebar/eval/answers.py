"""Greedy answers of two models to the same prompts: `typebar compare`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from typebar.engine.params import SamplingParams
from typebar.errors import TypebarError
from typebar.eval.variant import Variant
from typebar.llm import LLM
from typebar.text.chat import ChatTemplate

Json = dict[str, Any]

CONTEXT = 4096


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model said, in so many tokens, and how fast: tokens a second after the first one."""

    text: str
    tokens: int
    decode_tps: float
    finish_reason: str | None


def require_room(variant: Variant, prompts: Sequence[str]) -> None:
    """TypebarError where a prompt leaves no room for an answer in the context, before any is answered."""
    tokenizer = variant.open().build_tokenizer()
    template = ChatTemplate(tokenizer.chat_template, tokenizer)
    room = variant.context(CONTEXT)
    for number, prompt in enumerate(prompts, 1):
        count = len(template.encode([{"role": "user", "content": prompt}]))
        if count >= room:
            raise TypebarError(
                f"prompt {number} takes {count} tokens, {variant.name} is compared with a context of {room}: shorten it"
            )


def answer_all(
    variant: Variant, prompts: Sequence[str], max_tokens: int, threads: int | None, advance: Callable[[int], None]
) -> list[Answer]:
    """One after another, each as the only message of a chat; `advance` counts them."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    answers = []
    with LLM(
        str(variant.path), quantization=variant.quantization, threads=threads,
        max_model_len=variant.context(CONTEXT), num_speculative_tokens=0,
    ) as llm:  # fmt: skip
        for prompt in prompts:
            [result] = llm.chat([{"role": "user", "content": prompt}], params)
            [said] = result.outputs
            speed = round(result.metrics.decode_tps, 1)
            answers.append(Answer(said.text, len(said.token_ids), speed, said.finish_reason))
            advance(1)
    return answers


def first_difference(a: str, b: str) -> int | None:
    """The index of the first character that is not the same, None where the texts are equal."""
    if a == b:
        return None
    return next((at for at, (one, two) in enumerate(zip(a, b, strict=False)) if one != two), min(len(a), len(b)))


def report(a: Variant, b: Variant, prompts: Sequence[str], answers: tuple[list[Answer], list[Answer]]) -> Json:
    """What --json writes."""
    return {
        "a": _named(a),
        "b": _named(b),
        "prompts": [
            {"prompt": prompt, "first_difference": first_difference(one.text, two.text), "a": asdict(one),
             "b": asdict(two)}
            for prompt, one, two in zip(prompts, *answers, strict=True)
        ],
    }  # fmt: skip


def _named(variant: Variant) -> Json:
    return {"model": variant.name, "file": variant.path.name, "quantization": variant.quantization}
