"""Answers in a given form through the Python API."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from typebar import LLM, SamplingParams, StructuredOutputsParams

PAIR = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm(tiny_path: Path) -> Iterator[LLM]:
    with LLM(str(tiny_path), max_model_len=1024) as llm:
        yield llm


def pair(**params: object) -> SamplingParams:
    form = StructuredOutputsParams(json=PAIR)
    return SamplingParams(structured_outputs=form, max_tokens=200, **params)  # type: ignore[arg-type]


def test_every_answer_has_the_form(llm: LLM) -> None:
    params = pair(n=8, seed=1)
    for result in llm.generate(["one", "two"], [params, params]):
        values = [json.loads(answer.text) for answer in result.outputs]
        assert all(set(value) == {"a", "b"} for value in values)
        assert len({answer.text for answer in result.outputs}) > 1
        assert {answer.finish_reason for answer in result.outputs} == {"stop"}


def test_schema_may_be_text_and_seeds_repeat(llm: LLM) -> None:
    form = StructuredOutputsParams(json=json.dumps(PAIR))
    first = llm.generate("go", SamplingParams(structured_outputs=form, seed=3, max_tokens=200))
    again = llm.generate("go", pair(seed=3))
    assert first[0].outputs[0].token_ids == again[0].outputs[0].token_ids


def test_stream_has_the_form(llm: LLM) -> None:
    pieces = list(llm.chat([{"role": "user", "content": "go"}], pair(seed=2), stream=True))
    assert set(json.loads("".join(pieces))) == {"a", "b"}
    assert len(pieces) > 3


def test_nothing_runs_where_a_schema_cannot_be_kept_to(llm: LLM) -> None:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(json={"not": {}}))
    requests = llm.stats().requests
    with pytest.raises(ValueError, match=r"structured_outputs\.json cannot be kept to"):
        llm.generate(["a", "b"], [SamplingParams(max_tokens=1), params])
    assert llm.stats().requests == requests
