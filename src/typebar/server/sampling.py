"""From the fields of a request to SamplingParams."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from typebar.engine.params import GREEDY_TEMPERATURE, MAX_CHOICES, SamplingParams
from typebar.errors import ParameterError
from typebar.server.engine import SequenceRequest
from typebar.server.errors import APIError
from typebar.server.schema.sampling import MAX_INTERVAL, SamplingFields, StreamOptions
from typebar.server.structured import Form

# Fields that SamplingParams has under the same name.
_SAME = (
    "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "seed", "n", "min_tokens",
    "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "cache_prompt", "cache_salt",
)  # fmt: skip

# Names under which clients send what SamplingParams calls otherwise; the first that was sent is the one meant.
_SENT_AS = {
    "max_tokens": ("max_completion_tokens", "max_tokens", "n_predict"),
    "repetition_penalty": ("repetition_penalty", "repeat_penalty"),
    "logprobs": ("top_logprobs", "n_probs", "logprobs"),
}


def sampling_params(
    fields: SamplingFields,
    defaults: Mapping[str, Any],
    *,
    max_tokens: int | None = None,
    logprobs: int | None = None,
    form: Form | None = None,
) -> SamplingParams:
    """`defaults` fill in for what the request leaves open; `max_tokens`, `logprobs` and `form` are those of the route.

    At temperature 0 the default repetition penalty is left out: greedy answers are the model's own. Raises APIError for
    a value out of range, by the name that the client used.
    """
    given = {name: value for name in _SAME if (value := getattr(fields, name)) is not None}
    penalty = fields.repetition_penalty if fields.repetition_penalty is not None else fields.repeat_penalty
    if penalty is not None:
        given["repetition_penalty"] = penalty
    merged = {**defaults, **given}
    if merged.get("temperature", 1.0) <= GREEDY_TEMPERATURE and penalty is None:
        merged.pop("repetition_penalty", None)
    merged["max_tokens"] = max_tokens if max_tokens is not None else defaults.get("max_tokens")
    merged["logprobs"] = logprobs
    merged["stop"] = _stop(fields.stop)
    merged["structured_outputs"] = None if form is None else form.params
    merged["logit_bias"] = _logit_bias(fields.logit_bias)
    try:
        return SamplingParams(**merged)
    except ParameterError as error:
        names = _SENT_AS.get(error.field, ())
        name = next((name for name in names if getattr(fields, name, None) is not None), error.field)
        expected = error.expected.removesuffix(" or None")
        raise APIError(400, f"{name} must be {expected}", param=name, code="invalid_value") from None


def sequence_requests(id: str, prompts: list[list[int]], params: SamplingParams) -> list[SequenceRequest]:
    """The sequences of a request: n for each prompt, in order, each with a seed of its own. APIError for too many."""
    if len(prompts) * params.n > MAX_CHOICES:
        raise APIError(400, f"at most {MAX_CHOICES} answers (prompts times n)", param="n", code="invalid_value")
    entropy = secrets.randbits(64)
    return [
        SequenceRequest(f"{id}-{number * params.n + index}", prompt, params.for_choice(index, entropy + number))
        for number, prompt in enumerate(prompts)
        for index in range(params.n)
    ]


def time_limit(fields: SamplingFields, request_timeout: float) -> float | None:
    """Seconds after which the answer ends, the smallest of those asked for and the server's; None without any."""
    for name in ("max_time", "t_max_predict_ms"):
        value = getattr(fields, name)
        if value is not None and not 0 <= value < 1e9:
            raise APIError(400, f"{name} must be at least 0", param=name, code="invalid_value")
    limits = [fields.max_time, fields.t_max_predict_ms and fields.t_max_predict_ms / 1e3, request_timeout]
    return min((limit for limit in limits if limit), default=None)


def check_stream_options(stream: bool, options: StreamOptions | None) -> None:
    if options is not None and not stream:
        raise APIError(400, "stream_options need stream: true", param="stream_options", code="invalid_value")


def stream_interval(options: StreamOptions | None) -> float:
    """Seconds for which a stream gathers the text of an answer, 0 where each piece is sent as it comes."""
    interval = (options.interval_ms if options is not None else None) or 0
    if not 0 <= interval <= MAX_INTERVAL:
        name = "stream_options.interval_ms"
        raise APIError(400, f"{name} must be from 0 to {MAX_INTERVAL}", param=name, code="invalid_value")
    return interval / 1e3


def _stop(stop: str | list[str] | None) -> list[str]:
    """Empty strings would end every answer at once; they are left out, as OpenAI does."""
    return [text for text in ([stop] if isinstance(stop, str) else stop or []) if text]


def _logit_bias(bias: dict[str, float] | list[list[float | bool]] | None) -> dict[int, float] | None:
    """OpenAI's map from ids as text, or llama-server's list of [id, value] where false bans the token."""
    if not bias:
        return None
    try:
        if isinstance(bias, dict):
            return {_key(token): value for token, value in bias.items()}
        return {_token(token): -100.0 if value is False else float(value) for token, value in bias}
    except ValueError:
        expected = "a map from token id to a number from -100 to 100"
        raise APIError(400, f"logit_bias must be {expected}", param="logit_bias", code="invalid_value") from None


def _key(text: str) -> int:
    """int() would take " 1_6 " and digits of other scripts too."""
    if not (text.isascii() and text.isdigit()):
        raise ValueError
    return int(text)


def _token(value: float | bool) -> int:
    if isinstance(value, bool) or value != int(value):
        raise ValueError
    return int(value)
