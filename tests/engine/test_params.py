import math
from dataclasses import fields

import numpy as np
import pytest

from typebar.engine.params import SamplingParams
from typebar.errors import ParameterError, TypebarError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0), ("n", -1), ("n", 1_000_000), ("n", True), ("n", 1.5), ("n", None), ("n", "2"),
        ("temperature", -1), ("temperature", math.nan), ("temperature", math.inf), ("temperature", "0"),
        ("temperature", None), ("temperature", True), ("temperature", 10**400), ("temperature", -1e-9),
        ("top_p", 0), ("top_p", 1.0001), ("top_p", math.nan), ("top_p", -0.1),
        ("top_k", -2), ("top_k", 1.0), ("top_k", False), ("min_p", -0.1), ("min_p", 1.1),
        ("repetition_penalty", 0), ("repetition_penalty", -1), ("repetition_penalty", math.inf),
        ("repetition_penalty", 1e-39), ("temperature", 1e39), ("top_p", 1e-300),
        ("frequency_penalty", 2.1), ("presence_penalty", -2.1),
        ("seed", 1.0), ("seed", True), ("seed", 1 << 64), ("seed", "7"),
        ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", 1.5), ("max_tokens", "10"), ("max_tokens", True),
        ("min_tokens", -1), ("min_tokens", None), ("logprobs", -1), ("logprobs", 21), ("logprobs", True),
        ("stop", ""), ("stop", [""]), ("stop", [1]), ("stop", ["x"] * 17), ("stop", "x" * 10_000), ("stop", 5),
        ("stop", b"x"), ("stop", {"x": 1}), ("stop_token_ids", [-1]), ("stop_token_ids", ["1"]),
        ("stop_token_ids", [True]), ("stop_token_ids", 3), ("stop_token_ids", "3"),
        ("logit_bias", []), ("logit_bias", {-1: 5}), ("logit_bias", {"abc": 1}), ("logit_bias", {16: "x"}),
        ("logit_bias", {16: 1e9}), ("logit_bias", {16: math.nan}), ("logit_bias", {True: 1}),
        ("logit_bias", dict.fromkeys(range(1025), 1)), ("ignore_eos", 1), ("ignore_eos", None),
        ("cache_prompt", "no"), ("cache_salt", 3),
    ],
)  # fmt: skip
def test_wrong_value_is_refused_by_name(field, value):
    with pytest.raises(ParameterError, match=f"^{field} must be") as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, TypebarError)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("field", "value", "kept"),
    [
        ("temperature", 0, 0.0), ("temperature", 1e-45, 1e-45), ("temperature", 1_000_000, 1e6), ("top_k", -1, -1),
        ("top_k", 10**9, 10**9), ("temperature", np.float32(0.5), 0.5), ("top_k", np.int64(5), 5), ("seed", -1, -1),
        ("seed", (1 << 64) - 1, (1 << 64) - 1), ("max_tokens", 1 << 63, 1 << 63), ("max_tokens", None, None),
        ("stop", None, ()), ("stop", [], ()), ("stop", "龘", ("龘",)), ("stop", ["a", "b"], ("a", "b")),
        ("stop_token_ids", None, ()), ("stop_token_ids", {7}, (7,)), ("logit_bias", None, None),
        ("logit_bias", {3: -100}, {3: -100.0}), ("logprobs", 0, 0),
    ],
)  # fmt: skip
def test_right_value_is_kept(field, value, kept):
    assert getattr(SamplingParams(**{field: value}), field) == kept


def test_min_tokens_above_max_tokens_is_refused():
    with pytest.raises(ParameterError, match="min_tokens must be at most max_tokens"):
        SamplingParams(max_tokens=3, min_tokens=4)


def test_answers_have_streams_of_their_own():
    params = SamplingParams(n=4, seed=-1, temperature=0.5)
    seeds = [params.for_choice(index, entropy=99).seed for index in range(64)]
    assert len(set(seeds)) == 64 and seeds == [params.for_choice(index, entropy=1).seed for index in range(64)]
    assert seeds[0] == (1 << 64) - 1
    assert SamplingParams().for_choice(0, entropy=99).seed == 99
    assert params.for_choice(3, 0).temperature == 0.5 and params.for_choice(3, 0).n == 1


def test_every_field_is_documented():
    for field in fields(SamplingParams):
        assert field.name in SamplingParams.__doc__, field.name
