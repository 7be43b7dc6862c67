from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from typebar.engine.draft import LEAST_RATE, NGRAM, PAUSE, Draft


def propose(known, limit=3, draft=None):
    return (draft or Draft()).propose(memoryview(array("i", known)), limit)


def by_hand(known, limit):
    """The last earlier place of the last NGRAM tokens, and what follows there, again and again."""
    for start in range(len(known) - NGRAM - 1, -1, -1):
        if known[start : start + NGRAM] == known[-NGRAM:]:
            return (known[start + NGRAM :] * limit)[:limit]
    return []


@settings(deadline=None)  # the first call may wait on a busy machine
@given(st.lists(st.integers(0, 2), max_size=40), st.integers(0, 3))
def test_guesses_what_followed_last_time(known, limit):
    assert propose(known, limit) == by_hand(known, limit)


@pytest.mark.parametrize(
    ("known", "guess"),
    [
        ([1, 2, 3, 4, 5, 6, 1, 2, 3], [4, 5, 6]),
        ([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], [5, 1, 2]),  # the later place
        ([7, 7, 7, 7], [7, 7, 7]),
        ([1, 2, 3, 9, 2, 3], []),
        ([1, 2, 3], []),
        ([], []),
    ],
)
def test_examples(known, guess):
    assert propose(known) == guess


def test_stops_guessing_where_guesses_fail_and_tries_again():
    draft, known = Draft(), [1, 2, 3, 4, 1, 2, 3]
    while propose(known, draft=draft):
        draft.learn(3, 0)
    assert draft.pause == PAUSE - 1
    for _ in range(PAUSE - 1):
        assert not propose(known, draft=draft)
    assert propose(known, draft=draft)
    draft.learn(3, 0)
    assert not propose(known, draft=draft), "one more failure is enough after a pause"


def test_goes_on_while_enough_comes_true():
    draft = Draft()
    for _ in range(200):
        draft.learn(3, 1)
        assert not draft.pause
    assert draft.rate == pytest.approx(1 / 3) and draft.rate > LEAST_RATE
