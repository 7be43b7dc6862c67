"""llguidance through its C interface (llguidance.h), which the extension of its wheel exports.

Calls made so leave the GIL to others. The classes of its Python package hold it while they build the tries of a
vocabulary: 0.3 to 0.7 s for 152 000 tokens, in which neither the server nor the engine would get on.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from ctypes import POINTER, c_bool, c_char_p, c_int32, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import Any

from typebar.errors import TypebarError

SPECIAL = b"\xff"  # in front of a token's bytes: it is no text, whatever they are
NO_TOKEN = 0xFFFF_FFFF
WANTED = "llguidance>=1.9,<1.10"  # the versions with this interface
DEFAULTS = (2000, 500_000)  # of max_items_in_row and max_grammar_size, read elsewhere where fields have moved
MAX_REASON = 300  # characters of what llguidance says of a grammar

# Tokens that the inside of a JSON string allows, as long as it has no bound or is far from it: they need not be tried
# one by one, 0.05 ms a mask instead of 5. llguidance's own four sets take 61 MB instead of 43 and are hardly faster.
SLICES = (rb'[^"\\\x00-\x1F\x7F]{1,30}', rb'[^"\\\x00-\x1F\x7F]+')


class GrammarError(TypebarError, ValueError):
    """A grammar that cannot be kept to, or that became too large while it was followed. `reason` is llguidance's."""

    def __init__(self, reason: str, of: str = "the grammar") -> None:
        super().__init__(f"{of} cannot be kept to: {reason}")
        self.reason = reason


class _TokenizerInit(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("vocab_size", c_uint32),
        ("tok_eos", c_uint32),
        ("token_lens", c_void_p),
        ("token_bytes", c_void_p),
        ("tokenizer_json", c_char_p),
        ("tokenize_assumes_string", c_bool),
        ("tokenize_fn", c_void_p),
        ("use_approximate_greedy_tokenize_fn", c_bool),
        ("tokenize_user_data", c_void_p),
        ("slices", POINTER(c_char_p)),
        ("tok_eos_extra", c_void_p),
        ("tok_eos_extra_count", c_uint32),
    ]


class _MatcherInit(ctypes.Structure):
    _fields_ = [
        ("tokenizer", c_void_p),
        ("log_buffer_level", c_uint32),
        ("log_stderr_level", c_uint32),
        ("ff_tokens_ok", c_bool),
        ("backtrack_ok", c_bool),
        ("max_items_in_row", c_size_t),
        ("initial_lexer_fuel", c_uint64),
        ("step_lexer_fuel", c_uint64),
        ("step_max_items", c_size_t),
        ("max_lexer_states", c_size_t),
        ("max_grammar_size", c_size_t),
        ("precompute_large_lexemes", c_bool),
        ("verbose_errors", c_bool),
        ("later_fields", c_uint8 * 256),
    ]


def _library_path() -> str | None:
    package = find_spec("llguidance")  # found, not imported: its own modules take 10 MB
    spec = package and PathFinder.find_spec("llguidance._lib", package.submodule_search_locations)
    return spec.origin if spec else None


@cache
def _library() -> ctypes.CDLL:
    path = _library_path()
    if path is None:
        raise TypebarError(f"llguidance is not installed, which output in a given form needs: pip install '{WANTED}'")
    try:
        return _declared(ctypes.CDLL(path))
    except (AttributeError, OSError) as error:
        raise _other_version(str(error)) from error


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    """With the types of its functions. AttributeError where one is missing."""
    for name, result, arguments in (
        ("llg_new_tokenizer_v2", c_void_p, (POINTER(_TokenizerInit), c_char_p, c_size_t)),
        ("llg_free_tokenizer", None, (c_void_p,)),
        ("llg_constraint_init_set_defaults", None, (POINTER(_MatcherInit), c_void_p)),
        ("llg_new_matcher", c_void_p, (POINTER(_MatcherInit), c_char_p, c_char_p)),
        ("llg_clone_matcher", c_void_p, (c_void_p,)),
        ("llg_free_matcher", None, (c_void_p,)),
        ("llg_matcher_get_error", c_char_p, (c_void_p,)),
        ("llg_matcher_is_accepting", c_bool, (c_void_p,)),
        ("llg_matcher_is_stopped", c_bool, (c_void_p,)),
        ("llg_matcher_consume_token", c_int32, (c_void_p, c_uint32)),
        ("llg_matcher_compute_mask_into", c_int32, (c_void_p, c_void_p, c_size_t)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _other_version(problem: str) -> TypebarError:
    return TypebarError(
        f"this llguidance cannot be used, which output in a given form needs: {problem}; pip install '{WANTED}'"
    )


class Vocabulary:
    """The tokens that grammars are matched with. Any number of threads may share one.

    `tokens`: the bytes of every token, those that are no text with SPECIAL in front. `end`: the one that masks allow
    where a grammar may end, or NO_TOKEN. Takes 0.3 to 0.6 s for 152 000 tokens, and 43 MB.
    """

    def __init__(self, tokens: Sequence[bytes], end: int) -> None:
        library = _library()
        lengths = array("I", map(len, tokens))
        data = b"".join(tokens)
        init = _TokenizerInit(
            struct_size=ctypes.sizeof(_TokenizerInit),
            vocab_size=len(tokens),
            tok_eos=end,
            token_lens=lengths.buffer_info()[0],
            token_bytes=ctypes.cast(c_char_p(data), c_void_p),
            use_approximate_greedy_tokenize_fn=True,  # of forced text; which tokens it has is the model's choice here
            slices=(c_char_p * (len(SLICES) + 1))(*SLICES, None),
        )
        problem = ctypes.create_string_buffer(512)
        self.size, self.end = len(tokens), end
        self.pointer: int | None = library.llg_new_tokenizer_v2(init, problem, len(problem))
        if not self.pointer:
            raise TypebarError(f"llguidance cannot use this vocabulary: {problem.value.decode(errors='replace')}")

    def __del__(self) -> None:
        if getattr(self, "pointer", None):
            _library().llg_free_tokenizer(self.pointer)


class Matcher:
    """How far a text has come in a grammar. One thread at a time may use it."""

    def __init__(self, vocabulary: Vocabulary, pointer: int) -> None:
        self._library = _library()
        self._vocabulary, self._pointer = vocabulary, pointer

    @classmethod
    def compile(cls, vocabulary: Vocabulary, kind: str, text: str, **limits: Any) -> Matcher:
        """At the start of a grammar. `kind`: "json_schema" or "regex". `limits`: fields of _MatcherInit.

        Raises GrammarError where it is none, or beyond the limits.
        """
        library = _library()
        init = _MatcherInit()
        library.llg_constraint_init_set_defaults(init, vocabulary.pointer)
        if (init.max_items_in_row, init.max_grammar_size) != DEFAULTS:
            raise _other_version("the fields of LlgConstraintInit have moved")
        init.log_stderr_level = 0
        init.verbose_errors = False
        for name, value in limits.items():
            setattr(init, name, value)
        matcher = cls(vocabulary, library.llg_new_matcher(init, kind.encode(), text.encode()))
        matcher._check()
        return matcher

    def clone(self) -> Matcher:
        """Another one at the same place."""
        return Matcher(self._vocabulary, self._library.llg_clone_matcher(self._pointer))

    def consume(self, token: int) -> None:
        """Go on by a token. GrammarError where the grammar does not take it, or a limit is reached."""
        self._library.llg_matcher_consume_token(self._pointer, token)
        self._check()

    def mask(self) -> array[int]:
        """Bit t: token t may follow. GrammarError where a limit is reached."""
        words = array("I", [0]) * ((self._vocabulary.size + 31) // 32)
        address, count = words.buffer_info()
        self._library.llg_matcher_compute_mask_into(self._pointer, address, count * words.itemsize)
        self._check()
        return words

    @property
    def end(self) -> int:
        """The token that `mask` allows where the text is complete."""
        return self._vocabulary.end

    @property
    def is_accepting(self) -> bool:
        """Whether the text is complete, though perhaps more may follow."""
        return bool(self._library.llg_matcher_is_accepting(self._pointer))

    @property
    def is_stopped(self) -> bool:
        """Whether nothing may follow."""
        return bool(self._library.llg_matcher_is_stopped(self._pointer))

    def _check(self) -> None:
        problem = self._library.llg_matcher_get_error(self._pointer)
        if problem is not None:
            reason = " ".join(problem.decode(errors="replace").replace("<non-verbose/>", "").split())
            raise GrammarError(reason if len(reason) <= MAX_REASON else reason[:MAX_REASON] + "…")

    def __del__(self) -> None:
        self._library.llg_free_matcher(self._pointer)
