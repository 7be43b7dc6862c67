"""A request with what turns its logits into tokens and its tokens into text."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace

from typebar import _native
from typebar.engine.grammar import Constraint
from typebar.engine.guidance import GrammarError
from typebar.engine.params import SamplingParams
from typebar.engine.request import FinishReason, Output, Request, Summary, TokenLogprob
from typebar.errors import ParameterError
from typebar.model.load import LoadedModel
from typebar.text.stream import TextStream

LEAST_LOGPROB = -9999.0  # stands for minus infinity, which JSON cannot say


class Generation:
    """One sequence: the request that is scheduled, its sampler and its text. May be built in any thread.

    Raises ValueError (ParameterError, ContextLengthError) for a prompt or parameters that the model cannot serve.
    """

    def __init__(self, model: LoadedModel, id: str, prompt: list[int], params: SamplingParams) -> None:
        vocab_size = model.spec.vocab_size
        _check_ids(prompt, params, vocab_size)
        self.request = Request.create(id, prompt, params, model.max_model_len)
        self.params = params
        self.text = TextStream(
            model.tokenizer, params.stop_strings, params.include_stop_str_in_output, params.skip_special_tokens
        )
        self.stop_ids = frozenset(params.stop_token_ids or ())
        self.end_ids = self.stop_ids if params.ignore_eos else self.stop_ids | model.tokenizer.end_ids
        self._sampler = _native.Sampler(
            vocab_size=vocab_size,
            usable_vocab=model.usable_vocab,
            temperature=params.temperature,
            top_k=min(max(params.top_k, 0), vocab_size),
            top_p=params.top_p,
            min_p=params.min_p,
            repetition_penalty=params.repetition_penalty,
            frequency_penalty=params.frequency_penalty,
            presence_penalty=params.presence_penalty,
            seed=(params.seed or 0) & (1 << 64) - 1,
            logprobs=-1 if params.logprobs is None else params.logprobs,
            logit_bias=list((params.logit_bias or {}).items()),
        )
        self._sampler.see_prompt(self.request.known)
        self._is_held = params.min_tokens > 0 and bool(self.end_ids)
        form = params.structured_outputs
        self._grammar = None if form is None else model.grammars.compile(form)
        self._constraint: Constraint | None = None  # of its own, up to some megabytes, from the first draw on
        if self._grammar is None and self._is_held:
            self._sampler.allow(_mask_without(self.end_ids, vocab_size))

    @property
    def is_constrained(self) -> bool:
        """Whether the sampler's mask changes from token to token, so that it has to be set before each draw."""
        return self._is_held or self._grammar is not None

    @property
    def sampler(self) -> _native.Sampler:
        """What draws the next token; asked for in the engine's thread, before each draw and not before the first."""
        if self._grammar is not None and self._constraint is None:
            self._constraint = self._grammar.constraint(self.end_ids)
            mask = self._constraint.mask(may_end=not self._is_held)
            assert mask is not None  # which the sampler would take for: any token
            self._sampler.allow(mask)
        return self._sampler

    def advance(self, sampled: Sequence[_native.SampledToken], now: float) -> Output:
        """Take in the tokens that were drawn and appended last; those after an end are taken back.

        The output is final where it has a finish_reason.
        """
        request = self.request
        timing = request.timing
        timing.last_token = now
        timing.first_token = timing.first_token or now
        text, finish, stop = "", None, None
        for number, one in enumerate(sampled, 1):
            piece, finish, stop = self._read(one.token)
            text += piece
            if finish is not None:
                request.length -= len(sampled) - number
                sampled = sampled[:number]
                break
        error = None
        if finish is None and self.is_constrained:
            finish, error = self._constrain(sampled[-1].token)
        if finish is None and request.length == request.max_length:
            finish = "length"
        if finish is not None:
            text += self.text.finish()
        logprobs = () if self.params.logprobs is None else tuple(map(_logprob, sampled))
        summary = self.summary(error) if finish is not None else None
        return Output(request.id, text, tuple(one.token for one in sampled), logprobs, finish, stop, summary)

    def end(self, reason: FinishReason, error: str | None = None) -> Output:
        """The last output of a request that is ended from outside."""
        return Output(self.request.id, self.text.finish(cut=True), (), (), reason, None, self.summary(error))

    def summary(self, error: str | None = None) -> Summary:
        request = self.request
        return Summary(
            prompt_tokens=request.prompt_length,
            cached_tokens=request.cached_tokens,
            completion_tokens=request.num_output,
            preemptions=request.preemptions,
            timing=replace(request.timing),
            error=error,
        )

    def _constrain(self, token: int) -> tuple[FinishReason | None, str | None]:
        """Say what may follow `token`. An answer whose form is complete ends here where nothing may."""
        self._is_held = self._is_held and self.request.num_output < self.params.min_tokens
        if self._constraint is None:
            if not self._is_held:
                self._sampler.allow(None)
            return None, None
        try:
            self._constraint.advance(token)
            if self._constraint.is_stopped:
                return "stop", None
            if self.request.length == self.request.max_length:  # what might follow is never drawn
                return "length", None
            mask = self._constraint.mask(may_end=not self._is_held)
        except GrammarError as error:
            return "error", f"structured_outputs cannot be followed further: {error.reason}"
        if mask is None:
            return "stop", None
        self._sampler.allow(mask)
        return None, None

    def _read(self, token: int) -> tuple[str, FinishReason | None, int | str | None]:
        if token in self.end_ids:
            is_stop_id = token in self.stop_ids
            shown = is_stop_id and self.params.include_stop_str_in_output
            return self.text.feed(token) if shown else "", "stop", token if is_stop_id else None
        text = self.text.feed(token)
        return (text, "stop", self.text.stop_reason) if self.text.stopped else (text, None, None)


def _check_ids(prompt: list[int], params: SamplingParams, vocab_size: int) -> None:
    if not prompt:
        raise ParameterError("prompt", "at least one token", prompt)
    for field, ids in (
        ("prompt_token_ids", prompt),
        ("stop_token_ids", params.stop_token_ids or ()),
        ("logit_bias", params.logit_bias or ()),
    ):
        for id in ids:
            if not 0 <= id < vocab_size:
                raise ParameterError(field, f"token ids below {vocab_size}, the size of the vocabulary", id)


def _mask_without(ids: frozenset[int], vocab_size: int) -> array[int]:
    mask = array("I", [0xFFFF_FFFF]) * ((vocab_size + 31) // 32)
    for id in ids:
        mask[id >> 5] &= ~(1 << (id & 31))
    return mask


def _logprob(sampled: _native.SampledToken) -> TokenLogprob:
    top = tuple((token, max(logprob, LEAST_LOGPROB)) for token, logprob in sampled.top)
    return TokenLogprob(sampled.token, max(sampled.logprob, LEAST_LOGPROB), top)
