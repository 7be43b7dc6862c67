"""Guesses of the next tokens without a model: what came the last time that the sequence ended as it does now.

A step checks guesses at little more than the cost of one token, since the weights are read once for all of them, and a
draw that equals the guess makes the next guess count. So the tokens are those of decoding one at a time, greedy or
drawn (prompt lookup decoding: Saxena 2023; exactness: Leviathan et al. 2023, with a draft that is certain of itself).
"""

from typebar import _native
from typebar.config import MOST_GUESSES

NGRAM = 3  # tokens that must have come before in the same order
ROWS = MOST_GUESSES + 1  # tokens computed for little more than the price of one, over all sequences
# Of guesses that must come true: 0.6 of 3, since a step of ROWS tokens takes 1.2 to 1.4 times as long as one of one.
LEAST_RATE = 0.2
PAUSE = 32  # steps without guesses after that
SMOOTHING = 0.25  # weight of the newest step


class Draft:
    """What one request guesses, up to `most` tokens a step, and how much of it came true."""

    __slots__ = ("most", "pause", "rate")

    def __init__(self, most: int = MOST_GUESSES) -> None:
        self.most = most
        self.rate = 0.5
        self.pause = 0

    def propose(self, known: memoryview, limit: int) -> list[int]:
        """Up to `limit` tokens that may follow `known`; none where it ends as never before, or guesses failed."""
        if self.pause:
            self.pause -= 1
            return []
        place = _native.find_last(known, NGRAM)
        if place < 0:
            return []
        start = place + NGRAM
        period = len(known) - start  # a run goes on as it is: less than all guesses may be known yet
        return [known[start + i % period] for i in range(min(limit, self.most))]

    def learn(self, proposed: int, accepted: int) -> None:
        self.rate += SMOOTHING * (accepted / proposed - self.rate)
        if self.rate < LEAST_RATE:
            self.rate = LEAST_RATE + 0.05  # one more failure is enough
            self.pause = PAUSE
