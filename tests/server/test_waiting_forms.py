"""Forms that wait to be compiled, in front of an engine in this process."""

import asyncio
from pathlib import Path

import pytest

from typebar.engine.guidance import GrammarError
from typebar.engine.structured import StructuredOutputsParams
from typebar.model.load import load_model
from typebar.server.errors import APIError
from typebar.server.local import LocalEngine
from typebar.server.prompts import MAX_WAITING_FORMS, Prompter


def form(value: object) -> StructuredOutputsParams:
    return StructuredOutputsParams(json={"const": value})


async def meet_many_forms(path: Path) -> None:
    model = load_model(path, threads=1, max_model_len=256)
    engine = LocalEngine(model)
    rejected: list[int] = []
    prompter = Prompter(engine, lambda: rejected.append(1))
    forms = [StructuredOutputsParams(json={"not": {}}), *map(form, range(MAX_WAITING_FORMS - 1))]
    try:
        known = await prompter.compile(form("known"))
        with model.grammars._compiling:  # as while one is compiled that takes long
            tasks = [asyncio.create_task(prompter.compile(one)) for one in forms]
            await asyncio.sleep(0)
            for number in range(3):
                with pytest.raises(APIError) as caught:
                    await prompter.compile(form(f"more {number}"))
                assert (caught.value.status, caught.value.headers["Retry-After"]) == (429, "1")
            assert len(rejected) == 3
            assert await prompter.compile(form("known")) is known
            same = asyncio.create_task(prompter.compile(form(0)))
            tasks[2].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[0], GrammarError)
        assert isinstance(results[2], asyncio.CancelledError)
        assert await same is results[1]
        assert await prompter.compile(form("more 0"))
    finally:
        prompter.close()
        engine.close()


def test_known_forms_pass_those_that_wait_and_too_many_are_refused(tiny_path: Path) -> None:
    asyncio.run(meet_many_forms(tiny_path))
