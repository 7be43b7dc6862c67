"""Steps are sized by what earlier ones took."""

import random
import sys
import threading
from collections.abc import Iterator

import pytest

from typebar.engine.pace import ALONE_FACTOR, STRIDE, Pace


def machine(pace: Pace, token_ms: float, attention_ms: float, decode_ms: float = 0.0, steps: int = 300) -> None:
    """Lets `pace` see steps of a machine with these costs: chunks of all sizes at all positions."""
    rng = random.Random(1)
    if decode_ms:
        pace.measured(4, [], decode_ms)
    for _ in range(steps):
        start, tokens = rng.randrange(8000), rng.randrange(2, 200)
        ms = tokens * (token_ms + attention_ms * (start + tokens / 2) / 1000)
        pace.measured(4 if decode_ms else 0, [(start, tokens)], ms + decode_ms)


@pytest.mark.parametrize(("token_ms", "attention_ms"), [(3.6, 1.3), (0.2, 0.01), (60.0, 9.0)])
def test_costs_are_learned(token_ms: float, attention_ms: float) -> None:
    pace = Pace(step_ms=60, max_step_tokens=512)
    machine(pace, token_ms, attention_ms, decode_ms=30)
    for start in (0, 1000, 7000):
        assert pace.cost(start, 64) == pytest.approx(64 * (token_ms + attention_ms * (start + 32) / 1000), rel=0.1)


@pytest.mark.parametrize("start", [0, 500, 7000])
@pytest.mark.parametrize("ms", [5, 30, 480])
def test_tokens_fit_the_time(start: int, ms: float) -> None:
    pace = Pace(step_ms=60, max_step_tokens=512)
    machine(pace, 0.5, 0.3)
    tokens = pace.tokens_within(ms, start, 10_000)
    assert tokens % STRIDE == 0
    assert pace.cost(start, tokens) <= ms * 1.001 < pace.cost(start, tokens + STRIDE) * 1.01
    assert pace.tokens_within(ms, start, 3) == min(3, tokens)


def test_time_for_prompts_beside_decoding() -> None:
    pace = Pace(step_ms=60, max_step_tokens=512)
    assert pace.prefill_ms(0, 1) == ALONE_FACTOR * 60
    assert pace.prefill_ms(1, 1) == 60  # nothing is known yet
    for _ in range(50):
        pace.measured(1, [], 20)
        pace.measured(16, [], 130)
    assert pace.prefill_ms(1, 1) == pytest.approx(40)  # the rest of the step
    assert pace.prefill_ms(16, 1) == pytest.approx(130)  # decoding takes the whole step: as long as it does
    assert pace.prefill_ms(16, 2) == pace.prefill_ms(16, 9) == pytest.approx(260)  # several prompts wait
    assert pace.prefill_ms(14, 1) == pytest.approx(130)  # as the nearest number that was measured
    assert pace.prefill_ms(0, 3) == ALONE_FACTOR * 60


def test_a_step_that_took_less_than_its_decoding_makes_no_prompt_free() -> None:
    pace = Pace(step_ms=60, max_step_tokens=512)
    pace.measured(4, [], 100)
    for _ in range(200):
        pace.measured(4, [(0, 16)], 50)
    assert pace.cost(0, 16) == pytest.approx(5, rel=0.2)
    assert pace.tokens_within(60, 0, 10_000) > 0


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_speed_may_be_asked_for_while_steps_are_measured(frequent_switches: None) -> None:
    for _ in range(30):
        pace = Pace(step_ms=60, max_step_tokens=512)
        engine = threading.Thread(target=lambda pace=pace: [pace.measured(number, [], 1.0) for number in range(1, 257)])
        engine.start()
        while engine.is_alive():
            assert pace.decode_ms(300) in (0.0, 1.0)
        engine.join()
