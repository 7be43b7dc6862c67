"""What is asked of an engine, and in which order."""

from collections.abc import Sequence
from typing import Any

from typebar.bench.peers.measure import FIRST_PROMPT, Arrived, Session

JOB = {
    "metrics": ["ttft_ms_32", "warm_ttft_ms", "shared_ttft_ms", "p95_ttft_ms_4"],
    "tokens": [7] * 4096,
    "chats": [[1] * 20 for _ in range(8)],
    "edit": [1] * 40,
}


class Rebuilt:
    """An engine that is made anew where keys and values are to be kept, and where they are not any more."""

    def __init__(self) -> None:
        self.keeps = False
        self.built_for: list[int] = []  # tokens of the prompt that waited for it

    def about(self) -> dict[str, Any]:
        return {}

    def complete(self, prompts: Sequence[list[int]], count: int, arrived: Arrived, keep: bool) -> int:
        if keep != self.keeps:
            self.keeps = keep
            self.built_for.append(len(prompts[0]))
        for _ in range(count):
            for number in range(len(prompts)):
                arrived(number)
        return count


def test_no_measured_prompt_waits_for_an_engine_that_is_made_anew() -> None:
    engine = Rebuilt()
    figures = Session(engine, JOB).figures()
    assert list(figures) == JOB["metrics"]
    assert engine.built_for == [FIRST_PROMPT, FIRST_PROMPT], "once to keep, once not to keep any more"
