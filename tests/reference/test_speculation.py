"""Speculation changes no token and no distribution, on the real model and on the tiny one."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from typebar import LLM, SamplingParams
from typebar.bench.prompts import EDIT
from typebar.model.load import LoadedModel, load_model

ASKED = [
    EDIT,
    "Write a haiku.",
    "用中文写一首关于春天的诗。",
    "Count from 1 to 60, separated by commas.",
    "List ten animals.",
]
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "repetition_penalty": 1.1, "logprobs": 2},
    {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "seed": 11},
    {"temperature": 1.0, "frequency_penalty": 0.4, "seed": 12, "stop": ["7", "the"]},
]


def answers(llm: LLM) -> list[Any]:
    found = []
    for settings in SETTINGS:
        for asked in ASKED:
            [answer] = llm.chat([{"role": "user", "content": asked}], SamplingParams(max_tokens=96, **settings))
            [choice] = answer.outputs
            found.append((choice.text, list(choice.token_ids), choice.finish_reason, choice.logprobs))
    return found


def test_the_same_answers_as_without_it(coder_path: Path) -> None:
    with LLM(str(coder_path), max_model_len=1024, num_speculative_tokens=0) as plain:
        expected = answers(plain)
        assert plain.stats().proposed_tokens == 0
    for guesses in (1, 3):
        with LLM(str(coder_path), max_model_len=1024, num_speculative_tokens=guesses) as llm:
            assert answers(llm) == expected
            assert llm.stats().accepted_tokens > 50


def test_the_same_distribution(tiny_path: Path) -> None:
    """Tokens at a guessed place and after a right guess, over 4 000 seeds, against the model's own probabilities."""
    prompt, bias = [5, 6, 7, 8, 9, 5, 6], {7: 6.0, 8: 6.0}  # after 7 the guess is 8, 9, 5
    at_guess, after_guess = [], []
    with LLM(str(tiny_path), max_model_len=64) as llm:
        for seed in range(4_000):
            params = SamplingParams(max_tokens=4, ignore_eos=True, seed=seed, logit_bias=bias)
            [answer] = llm.generate({"prompt_token_ids": prompt}, params)
            first, second, third, _ = answer.outputs[0].token_ids
            if first == 7:
                at_guess.append(second)
                if second == 8:
                    after_guess.append(third)
        assert llm.stats().accepted_tokens >= len(after_guess) > 200
    model = load_model(tiny_path, max_model_len=64)
    for known, drawn in (([*prompt, 7], at_guess), ([*prompt, 7, 8], after_guess)):
        assert_drawn_from(probabilities(model, known, bias), drawn)


def probabilities(model: LoadedModel, known: list[int], bias: dict[int, float]) -> NDArray[np.float64]:
    """Of the token after `known`, [usable_vocab]."""
    tokens = np.array(known, np.int32)
    where = (np.array([len(known)], np.int32), np.array([0], np.int32), np.arange(4, dtype=np.int32)[None])
    logits = model.native.logits(tokens, *where)[-1, : model.usable_vocab].astype(np.float64)
    for token, value in bias.items():
        logits[token] += value
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def assert_drawn_from(expected: NDArray[np.float64], drawn: list[int]) -> None:
    """Pearson's chi-square within five standard deviations of its mean; rare tokens are taken together."""
    wanted = expected * len(drawn)
    seen = np.bincount(drawn, minlength=len(expected))
    rare = wanted < 5
    wanted, seen = np.append(wanted[~rare], wanted[rare].sum()), np.append(seen[~rare], seen[rare].sum())
    degrees = len(wanted) - 1
    assert degrees >= 2
    assert ((seen - wanted) ** 2 / wanted).sum() < degrees + 5 * np.sqrt(2 * degrees)
