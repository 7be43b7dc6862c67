"""One sequence on its way through the engine, and what it gives out."""

from array import array
from dataclasses import dataclass, field
from typing import Literal

from typebar.engine.blocks import BLOCK_TOKENS, int32s
from typebar.engine.draft import Draft
from typebar.engine.params import SamplingParams
from typebar.engine.prefix import Lease
from typebar.errors import TypebarError

FinishReason = Literal["stop", "length", "abort", "error"]


class ContextLengthError(TypebarError, ValueError):
    """A prompt does not fit the context. Has both numbers, in tokens; `at_least`: of the prompt a lower bound."""

    def __init__(self, prompt_tokens: int, max_model_len: int, at_least: bool = False) -> None:
        count = f"at least {prompt_tokens}" if at_least else prompt_tokens
        super().__init__(
            f"the prompt has {count} tokens, and the context of {max_model_len} tokens must hold it and at least one "
            "token of the answer: shorten the prompt or raise max_model_len (--max-model-len)"
        )
        self.prompt_tokens = prompt_tokens
        self.max_model_len = max_model_len


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural logarithms of probabilities in the model's own distribution, before temperature and filters.

    `top` holds (token, logprob) of the most likely tokens, descending.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(slots=True)
class Timing:
    """Moments of a request in seconds of `time.perf_counter()`; 0 where it was never reached."""

    arrival: float = 0.0
    scheduled: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0


@dataclass(frozen=True, slots=True)
class Output:
    """What one step added to a request. `finish_reason` is set in its last output, and then so is `summary`."""

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    summary: "Summary | None" = None


@dataclass(frozen=True, slots=True)
class Summary:
    """Numbers of a finished request. `cached_tokens` of the prompt were not computed anew; `error` says what failed."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    preemptions: int
    timing: Timing
    error: str | None = None


@dataclass(slots=True, eq=False)
class Request:
    """A sequence. `tokens[:length]` is the prompt and what was drawn; the KV cache holds the first `computed` of them.
    In a step that checks guesses, `proposed` of them follow at `tokens[length:]`.

    Raises ContextLengthError for a prompt that leaves no room in the context of `max_model_len` tokens.
    """

    id: str
    params: SamplingParams
    tokens: memoryview  # int32
    length: int
    prompt_length: int
    max_length: int  # tokens at which it ends with "length"
    computed: int = 0
    proposed: int = 0
    draft: Draft | None = None  # None: it guesses nothing
    cached_tokens: int = 0
    lease: Lease | None = None  # None while it waits
    order: int = 0  # of arrival
    passed_by: int = 0  # later requests admitted before it
    preemptions: int = 0
    timing: Timing = field(default_factory=Timing)

    @staticmethod
    def create(id: str, prompt: list[int], params: SamplingParams, max_model_len: int) -> "Request":
        """A request for the tokens that follow `prompt`. `params.n` is left to the caller."""
        if len(prompt) + 1 > max_model_len:
            raise ContextLengthError(len(prompt), max_model_len)
        room = max_model_len - len(prompt)
        max_length = len(prompt) + (room if params.max_tokens is None else min(room, params.max_tokens))
        tokens = int32s(max_length)
        tokens[: len(prompt)] = array("i", prompt)
        return Request(id, params, tokens, len(prompt), len(prompt), max_length)

    @property
    def remaining(self) -> int:
        """Tokens whose keys and values are still to be computed before the next can be drawn; at least 1."""
        return self.length - self.computed

    @property
    def num_output(self) -> int:
        return self.length - self.prompt_length

    @property
    def known(self) -> memoryview:
        """The prompt and the tokens drawn so far."""
        return self.tokens[: self.length]

    def append(self, token: int) -> None:
        self.tokens[self.length] = token
        self.length += 1

    def propose(self, limit: int) -> None:
        """Guess up to `limit` tokens, fewer than are left to draw."""
        assert self.draft is not None
        guess = self.draft.propose(self.known, min(limit, self.max_length - self.length - 1))
        self.proposed = len(guess)
        for place, token in enumerate(guess, self.length):
            self.tokens[place] = token

    def settle(self, drawn: int) -> None:
        """Take note of how many tokens a step drew that checked guesses."""
        if self.proposed and self.draft is not None:
            self.draft.learn(self.proposed, drawn - 1)
        self.proposed = 0

    def next_block(self) -> int | None:
        """Number of the block that is computed next, where its 16 tokens are all known."""
        index = self.computed // BLOCK_TOKENS
        return index if (index + 1) * BLOCK_TOKENS <= self.length else None
