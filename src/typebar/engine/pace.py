"""How long steps take, learned from those before: it turns the time that a step may take into prompt tokens."""

from collections.abc import Iterable
from math import sqrt

STRIDE = 4  # prompt tokens that the kernels compute together, 2 take as long: chunks are multiples of it
ALONE_FACTOR = 8  # steps may last this much longer while nobody is decoding
SMOOTHING = 0.3  # weight of the newest measurement
CONTEXT_UNIT = 1000  # tokens; the cost of attention is per prompt token and that many tokens before it

Chunk = tuple[int, int]  # (start, tokens) of a prompt


class Pace:
    """The cost of a step in milliseconds: of decoding, by the number of requests that do, and of prompt tokens.

    A prompt token costs `token_ms` for the weights and `attention_ms` for each 1000 tokens before it: at position 7000
    of Qwen2.5-0.5B that is 3.6 + 7 · 1.2 ms on two cores. Both begin as guesses.
    """

    def __init__(self, step_ms: float, max_step_tokens: int) -> None:
        self.step_ms = step_ms
        self.max_step_tokens = max_step_tokens
        self.token_ms = 2.5
        self.attention_ms = 1.0
        self._decode_ms: dict[int, float] = {}

    def decode_ms(self, num_decoding: int) -> float:
        """Of a step in which that many requests decode and nothing else; 0 before the first was measured."""
        numbers = tuple(self._decode_ms)  # at once: Engine.stats asks from other threads
        if not numbers or not num_decoding:
            return 0.0
        return self._decode_ms[min(numbers, key=lambda number: abs(number - num_decoding))]

    def prefill_ms(self, num_decoding: int, num_prompts: int) -> float:
        """What that many prompts may take of a step beside that many decoding requests.

        The rest of step_ms; where decoding takes most of that, as long as it does, and twice as long for several: a
        step takes at most 3 times as long as without prompts, and they do not starve. With nobody to wait for them
        steps may be longer: bigger chunks use the processor better.
        """
        if not num_decoding:
            return ALONE_FACTOR * self.step_ms
        decode_ms = self.decode_ms(num_decoding)
        return max(self.step_ms - decode_ms, decode_ms * min(num_prompts, 2))

    def cost(self, start: int, tokens: int) -> float:
        """Milliseconds for `tokens` of a prompt from `start` on."""
        return tokens * (self.token_ms + self.attention_ms * (start + tokens / 2) / CONTEXT_UNIT)

    def tokens_within(self, ms: float, start: int, limit: int) -> int:
        """How many tokens from `start` on can be computed in `ms`: a multiple of STRIDE, or `limit` if that is less."""
        first = self.token_ms + self.attention_ms * start / CONTEXT_UNIT
        growth = self.attention_ms / CONTEXT_UNIT
        tokens = 2 * ms / (first + sqrt(first * first + 2 * growth * ms))  # solves cost(start, tokens) = ms
        return limit if tokens >= limit else int(tokens) // STRIDE * STRIDE

    def measured(self, num_decoding: int, chunks: Iterable[Chunk], ms: float) -> None:
        """Learn from a step that took `ms`."""
        chunks = list(chunks)
        if not chunks:
            old = self._decode_ms.get(num_decoding)
            self._decode_ms[num_decoding] = ms if old is None else old + SMOOTHING * (ms - old)
            return
        share = max(ms - self.decode_ms(num_decoding), 0.1 * ms)
        self._learn(share, sum(tokens for _, tokens in chunks), sum(map(_attended, chunks)))

    def _learn(self, ms: float, tokens: int, attended: float) -> None:
        """One step of normalized least mean squares (Widrow, Hoff 1960) on tokens and attended thousands."""
        error = ms - tokens * self.token_ms - attended * self.attention_ms
        gain = SMOOTHING * error / (tokens * tokens + attended * attended)
        self.token_ms = max(self.token_ms + gain * tokens, 1e-3)
        self.attention_ms = max(self.attention_ms + gain * attended, 0.0)


def _attended(chunk: Chunk) -> float:
    """Pairs of a prompt token and a token before it, in thousands."""
    start, tokens = chunk
    return tokens * (start + tokens / 2) / CONTEXT_UNIT
