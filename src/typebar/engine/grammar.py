"""From the form that an answer must have to the tokens that may be drawn next."""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

from typebar import _native
from typebar.engine.guidance import NO_TOKEN, SPECIAL, GrammarError, Matcher, Vocabulary
from typebar.engine.structured import StructuredOutputsParams
from typebar.text.tokenizer import Tokenizer

KEPT_GRAMMARS = 16  # compiled ones, those used last: the next request with one of these forms need not compile it

# What a grammar may cost, in milliseconds of one core about: 500 to compile, 5 before each token; and 50 MB. A state is
# kept until the answer ends, up to 0.8 KB of it: those of a text of bounded length, 10 a token, are 20 MB after 2500.
LIMITS: dict[str, Any] = {
    "max_grammar_size": 200_000,
    "max_lexer_states": 25_000,
    "step_max_items": 10_000,
    "step_lexer_fuel": 33_000,
}

NOTHING_FITS = "no text fits it"
EMPTY_FITS = "only the empty text fits it"

Mask: TypeAlias = "array[int]"  # uint32


class Grammar:
    """A compiled form, at its start. Any thread may use it. `endings`: the tokens of no text, which may end one."""

    def __init__(self, matcher: Matcher, endings: frozenset[int]) -> None:
        if matcher.is_stopped:
            raise GrammarError(NOTHING_FITS)
        self._matcher = matcher
        self._mask = matcher.mask()  # here and not for every answer: where a schema is large it takes milliseconds
        if Constraint(matcher, self._mask[:], frozenset()).mask(may_end=False) is None:
            raise GrammarError(EMPTY_FITS)
        self._endings = endings
        self._lock = threading.Lock()

    def constraint(self, end_ids: frozenset[int]) -> Constraint:
        """The form for one answer, which `end_ids` may end, as far as they are no text."""
        with self._lock:
            return Constraint(self._matcher.clone(), self._mask[:], end_ids & self._endings)


class Grammars:
    """The grammars of a model. Nothing is built before the first is asked for. Any thread may use it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._compiling = threading.Lock()
        self._vocabulary: Vocabulary | None = None
        self._known: WeakValueDictionary[tuple[str, str], Grammar] = WeakValueDictionary()
        self._recent: OrderedDict[tuple[str, str], Grammar] = OrderedDict()  # the one used last at the end
        self._keeping = threading.Lock()  # of the two before, held for microseconds

    def known(self, form: StructuredOutputsParams) -> Grammar | None:
        """The grammar of a form, at once, where it need not be compiled."""
        with self._keeping:
            grammar = self._known.get(form.grammar)
            if grammar is not None:
                self._keep(form, grammar)
            return grammar

    def compile(self, form: StructuredOutputsParams) -> Grammar:
        """The grammar of a form. As long as somebody holds it, it is not compiled again.

        The first one of a model takes up to half a second, others a few milliseconds, very large ones half a second.
        Raises GrammarError, a ValueError, where it is too large or cannot be kept to.
        """
        return self.known(form) or self._compile(form)

    def _compile(self, form: StructuredOutputsParams) -> Grammar:
        with self._compiling:
            if (known := self.known(form)) is not None:
                return known
            if self._vocabulary is None:
                self._vocabulary = _vocabulary(self._tokenizer)
            try:
                matcher = Matcher.compile(self._vocabulary, *form.grammar, **LIMITS)
                grammar = Grammar(matcher, self._tokenizer.end_ids | self._tokenizer.special_ids)
            except GrammarError as error:
                reason = NOTHING_FITS if error.reason == "NoExtensionBias" else error.reason
                raise GrammarError(reason, f"structured_outputs.{form.form}") from error
            with self._keeping:
                self._keep(form, grammar)
            return grammar

    def _keep(self, form: StructuredOutputsParams, grammar: Grammar) -> None:
        self._known[form.grammar] = self._recent[form.grammar] = grammar
        self._recent.move_to_end(form.grammar)
        if len(self._recent) > KEPT_GRAMMARS:
            self._recent.popitem(last=False)


class Constraint:
    """A grammar beside one answer."""

    def __init__(self, matcher: Matcher, first: Mask, end_ids: frozenset[int]) -> None:
        self._matcher, self._end_ids = matcher, end_ids
        self._mask: Mask | None = first  # None: not worked out yet

    def advance(self, token: int) -> None:
        """Take in a token of the answer. GrammarError where it cannot be followed any further."""
        self._matcher.consume(token)
        self._mask = None

    @property
    def is_stopped(self) -> bool:
        """Whether the text is complete and nothing can follow."""
        return self._matcher.is_stopped

    def mask(self, may_end: bool) -> Mask | None:
        """Bit t: token t may be drawn next; end tokens only where the text is complete and `may_end`.

        None where the text is complete and nothing can follow. GrammarError where it takes too much work.
        """
        if self.is_stopped:
            return None
        if self._mask is None:
            self._mask = self._matcher.mask()
        if self._matcher.is_accepting:
            _set(self._mask, self._matcher.end, False)
            if not any(self._mask):
                return None
            for id in self._end_ids if may_end else ():
                _set(self._mask, id, True)
        return self._mask


def _vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """Tokens that are matched as a whole are never text here, also those that are not hidden."""
    added = frozenset(tokenizer.control_tokens.values())
    tokens = [SPECIAL * (id in added) + tokenizer.token_bytes(id) for id in range(tokenizer.vocab_size)]
    vocabulary = Vocabulary(tokens, min(tokenizer.end_ids, default=NO_TOKEN))
    del tokens
    _native.release_free_memory()  # 15 MB that it took on the way
    return vocabulary


def _set(mask: Mask, token: int, value: bool) -> None:
    bit = 1 << (token & 31)
    if token >> 5 < len(mask):
        mask[token >> 5] = mask[token >> 5] | bit if value else mask[token >> 5] & ~bit
