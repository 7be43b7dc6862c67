"""From the form that an answer must have to the tokens that may be drawn next."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from typebar import _native
from typebar.engine.guidance import NO_TOKEN, SPECIAL, GrammarError, Matcher, Vocabulary
from typebar.engine.structured import StructuredOutputsParams
from typebar.text.tokenizer import Tokenizer

KEPT_GRAMMARS = 16  # compiled ones of the last requests: the next with one of these forms need not compile it

# What a grammar may cost, in milliseconds of one core about: 500 to compile, 15 before each token; and 50 MB.
LIMITS: dict[str, Any] = {
    "max_grammar_size": 200_000,
    "max_lexer_states": 50_000,
    "step_max_items": 10_000,
    "step_lexer_fuel": 100_000,
}

NOTHING_FITS = "no text fits it"

Mask = NDArray[np.uint32]


class Grammar:
    """A compiled form, at its start. Any thread may use it."""

    def __init__(self, matcher: Matcher) -> None:
        if matcher.is_stopped:
            raise GrammarError(NOTHING_FITS)
        self._matcher = matcher
        self._mask = matcher.mask()  # here and not for every answer: where a schema is large it takes milliseconds
        self._lock = threading.Lock()

    def constraint(self, end_ids: frozenset[int]) -> Constraint:
        """The form for one answer, which `end_ids` may end."""
        with self._lock:
            return Constraint(self._matcher.clone(), self._mask.copy(), end_ids)


class Grammars:
    """The grammars of a model. Nothing is built before the first is asked for. Any thread may use it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._compiling = threading.Lock()
        self._vocabulary: Vocabulary | None = None
        self._known: WeakValueDictionary[tuple[str, str], Grammar] = WeakValueDictionary()
        self._recent: deque[Grammar] = deque(maxlen=KEPT_GRAMMARS)

    def compile(self, form: StructuredOutputsParams) -> Grammar:
        """The grammar of a form. As long as somebody holds it, it is not compiled again.

        The first one of a model takes up to half a second, others a few milliseconds, very large ones half a second.
        Raises GrammarError, a ValueError, where it is too large or cannot be kept to.
        """
        grammar = self._known.get(form.grammar) or self._compile(form)
        self._recent.append(grammar)
        return grammar

    def constraint(self, form: StructuredOutputsParams, end_ids: frozenset[int]) -> Constraint:
        """The form of one answer, which `end_ids` may end, as far as they are no text. Raises as `compile`."""
        tokenizer = self._tokenizer
        return self.compile(form).constraint(end_ids & (tokenizer.end_ids | tokenizer.special_ids))

    def _compile(self, form: StructuredOutputsParams) -> Grammar:
        with self._compiling:
            if (grammar := self._known.get(form.grammar)) is not None:
                return grammar
            if self._vocabulary is None:
                self._vocabulary = _vocabulary(self._tokenizer)
            try:
                grammar = Grammar(Matcher.compile(self._vocabulary, *form.grammar, **LIMITS))
            except GrammarError as error:
                reason = NOTHING_FITS if error.reason == "NoExtensionBias" else error.reason
                raise GrammarError(reason, f"structured_outputs.{form.form}") from error
            self._known[form.grammar] = grammar
            return grammar


class Constraint:
    """A grammar beside one answer."""

    def __init__(self, matcher: Matcher, first: Mask, end_ids: frozenset[int]) -> None:
        self._matcher, self._end_ids = matcher, end_ids
        self._next: Mask | None = first

    def advance(self, token: int) -> None:
        """Take in a token of the answer. GrammarError where it became too large to follow."""
        self._matcher.consume(token)
        self._next = None if self._matcher.is_stopped else self._matcher.mask()

    def mask(self, may_end: bool) -> Mask | None:
        """Bit t: token t may be drawn next; end tokens only where the text is complete and `may_end`.

        None where the text is complete and nothing can follow.
        """
        mask = self._next
        if mask is not None and self._matcher.is_accepting:
            _set(mask, self._matcher.end, False)
            if not mask.any():
                return None
            for id in self._end_ids if may_end else ():
                _set(mask, id, True)
        return mask


def _vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """Tokens that are matched as a whole are never text here, also those that are not hidden."""
    added = frozenset(tokenizer.control_tokens.values())
    tokens = [SPECIAL * (id in added) + tokenizer.token_bytes(id) for id in range(tokenizer.vocab_size)]
    vocabulary = Vocabulary(tokens, min(tokenizer.end_ids, default=NO_TOKEN))
    del tokens
    _native.release_free_memory()  # 15 MB that it took on the way
    return vocabulary


def _set(mask: Mask, token: int, value: bool) -> None:
    bit = np.uint32(1 << (token & 31))
    if token >> 5 < mask.size:
        mask[token >> 5] = mask[token >> 5] | bit if value else mask[token >> 5] & ~bit
