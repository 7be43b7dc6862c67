"""How a request wants its tokens chosen: vLLM's names, every value checked before any work is done."""

import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

from typebar.engine.structured import StructuredOutputsParams
from typebar.errors import ParameterError

MAX_CHOICES = 64
GREEDY_TEMPERATURE = 1e-5  # up to here, as in native/sampler.h
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1024
MAX_LOGIT_BIAS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are drawn and when to stop. Raises ParameterError (a ValueError) that names the field and its range.

    n: answers per prompt, 1 to 64; each has its own random stream derived from the seed.
    temperature: ≥ 0; 0 (up to 1e-5) takes the most likely token, ties go to the lowest id.
    top_k: 0 or -1 is off; top_p in (0, 1]; min_p in [0, 1].
    repetition_penalty: 0.01 to 100, over prompt and output. frequency_penalty, presence_penalty: -2 to 2, over output.
    seed: any 64-bit integer; None takes fresh entropy for each request.
    stop: a string or up to 16; the answer ends before the first that appears. stop_token_ids end it as well.
    max_tokens: ≥ 1, or None: until the context is full.
    include_stop_str_in_output: keep the stop string in the text. skip_special_tokens: leave control tokens out of it.
    min_tokens: end tokens and stop_token_ids cannot be drawn before that many tokens; ignore_eos: only stop_token_ids,
    stop strings and max_tokens end the answer.
    logprobs: None, or 0 to 20 alternatives for each token, from the model's own distribution.
    logit_bias: token id → value in [-100, 100], added to the logit.
    structured_outputs: the form that the answer must have. End tokens are drawn only where it is complete; where
    nothing can follow the answer ends, whatever min_tokens and ignore_eos say.
    cache_prompt: False neither reads nor feeds the prefix cache. cache_salt: reuse only between equal salts.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int | None = None
    stop: str | Iterable[str] | None = ()
    stop_token_ids: Iterable[int] | None = ()
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    logprobs: int | None = None
    logit_bias: Mapping[int, float] | None = None
    structured_outputs: StructuredOutputsParams | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    cache_prompt: bool = True
    cache_salt: str | None = None

    def __post_init__(self) -> None:
        self._integer("n", 1, MAX_CHOICES)
        self._number("temperature", 0.0, math.inf)
        self._number("top_p", 0.0, 1.0, open_low=True)
        self._integer("top_k", -1)
        self._number("min_p", 0.0, 1.0)
        self._number("repetition_penalty", 0.01, 100.0)
        self._number("frequency_penalty", -2.0, 2.0)
        self._number("presence_penalty", -2.0, 2.0)
        self._integer("seed", -(1 << 63), (1 << 64) - 1, optional=True)
        self._integer("max_tokens", 1, optional=True)
        self._integer("min_tokens", 0)
        self._integer("logprobs", 0, MAX_LOGPROBS, optional=True)
        for field in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "cache_prompt"):
            if type(getattr(self, field)) is not bool:
                raise ParameterError(field, "true or false", getattr(self, field))
        if not isinstance(self.structured_outputs, StructuredOutputsParams | None):
            raise ParameterError("structured_outputs", "StructuredOutputsParams or None", self.structured_outputs)
        if self.cache_salt is not None and not isinstance(self.cache_salt, str):
            raise ParameterError("cache_salt", "a string or None", self.cache_salt)
        self._set("stop", _stop_strings(self.stop))
        self._set("stop_token_ids", _token_ids("stop_token_ids", self.stop_token_ids))
        self._set("logit_bias", _logit_bias(self.logit_bias))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ParameterError("min_tokens", f"at most max_tokens ({self.max_tokens})", self.min_tokens)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as it is kept after the checks."""
        return self.stop  # type: ignore[return-value]

    def for_choice(self, index: int, entropy: int) -> "SamplingParams":
        """The parameters of one of `n` answers: n = 1 and a seed of its own. `entropy` stands in for a missing seed.

        Answer 0 has the seed itself, so it is the answer that n = 1 gives.
        """
        seed = (entropy if self.seed is None else self.seed) & _MASK
        return replace(self, n=1, seed=seed if index == 0 else _mix(seed + index * 0x9E3779B97F4A7C15))

    def _set(self, field: str, value: object) -> None:
        object.__setattr__(self, field, value)

    def _integer(self, field: str, low: int, high: int | None = None, optional: bool = False) -> None:
        value = getattr(self, field)
        if value is None and optional:
            return
        expected = f"an integer from {low} to {high}" if high is not None else f"an integer of at least {low}"
        if optional:
            expected += " or None"
        if not _is_integer(value) or value < low or (high is not None and value > high):
            raise ParameterError(field, expected, value)
        self._set(field, int(value))

    def _number(self, field: str, low: float, high: float, open_low: bool = False) -> None:
        value = getattr(self, field)
        sign = ">" if open_low else "≥"
        expected = f"a finite number {sign} {low:g}" if high == math.inf else f"a number {sign} {low:g} and ≤ {high:g}"
        if not _is_number(value):
            raise ParameterError(field, expected, value)
        try:
            (single,) = struct.unpack("f", struct.pack("f", float(value)))  # as the sampler will hold it
        except OverflowError:
            single = math.inf
        if not math.isfinite(single) or not low <= value <= high or (open_low and single <= low):
            raise ParameterError(field, expected, value)
        self._set(field, float(value))


_MASK = (1 << 64) - 1


def _mix(value: int) -> int:
    """The finalizer of splitmix64 (Steele, Lea, Flood 2014): 64 bits to 64 well-mixed bits."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _stop_strings(value: Any) -> tuple[str, ...]:
    expected = f"a non-empty string of at most {MAX_STOP_CHARACTERS} characters or up to {MAX_STOP_STRINGS} of them"
    if value is None:
        return ()
    strings = (value,) if isinstance(value, str) else _as_tuple("stop", expected, value)
    if len(strings) > MAX_STOP_STRINGS:
        raise ParameterError("stop", expected, value)
    for string in strings:
        if not isinstance(string, str) or not 0 < len(string) <= MAX_STOP_CHARACTERS:
            raise ParameterError("stop", expected, value)
    return strings


def _token_ids(field: str, value: Any) -> tuple[int, ...]:
    expected = "a list of token ids"
    if value is None:
        return ()
    ids = _as_tuple(field, expected, value)
    for token in ids:
        if not _is_integer(token) or token < 0:
            raise ParameterError(field, expected, value)
    return tuple(int(token) for token in ids)


def _logit_bias(value: Any) -> dict[int, float] | None:
    expected = "a map from token id to a number from -100 to 100"
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise ParameterError("logit_bias", expected, value)
    if len(value) > MAX_LOGIT_BIAS:
        raise ParameterError("logit_bias", f"{expected}, with at most {MAX_LOGIT_BIAS} entries", value)
    for token, bias in value.items():
        if not _is_integer(token) or token < 0 or not _is_number(bias) or not -100 <= bias <= 100:
            raise ParameterError("logit_bias", expected, value)
    return {int(token): float(bias) for token, bias in value.items()}


def _as_tuple(field: str, expected: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise ParameterError(field, expected, value)
    return tuple(value)
