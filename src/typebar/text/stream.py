"""Token ids to text that is safe to send now: whole characters only, and never a part of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from typebar.text.tokenizer import Tokenizer


class TextStream:
    """Incremental text of one generated sequence. Not shared between threads.

    The text is that of `Tokenizer.decode` on the same ids, cut before the first stop string that completes (of
    several that complete on one character: the longest). `include_stop` keeps the stop string itself. Empty stop
    strings are ignored. Control tokens are left out unless `skip_special` is False.

    Attributes:
        stop_reason: the stop string that was met, or None.
        last_bytes: the bytes that the last fed token stands for; empty for a hidden control token.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str] = (), include_stop: bool = False, skip_special: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._hidden = tokenizer.special_ids if skip_special else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._matchers = [_Matcher(text) for text in dict.fromkeys(stop) if text]
        self._include_stop = include_stop
        self._held = ""
        self.stop_reason: str | None = None
        self.last_bytes = b""

    @property
    def stopped(self) -> bool:
        """Whether a stop string was met; whatever is fed afterwards gives no text."""
        return self.stop_reason is not None

    def feed(self, token_id: int) -> str:
        """Text that token `token_id` makes safe to send; may be empty. Raises ValueError for an unknown id."""
        self.last_bytes = b"" if token_id in self._hidden else self._tokenizer.token_bytes(token_id)
        return self._release(self._decoder.decode(self.last_bytes))

    def finish(self, *, cut: bool = False) -> str:
        """The text still held, to be sent at the end of the sequence; an incomplete character becomes U+FFFD.

        `cut`: the sequence was ended from outside, so that its last character is only unfinished: it is left out.
        """
        rest = "" if cut else self._decoder.decode(b"", final=True)
        text = self._release(rest) + self._held
        self._held = ""
        return text

    def _release(self, text: str) -> str:
        """Add `text` and return all but the longest suffix that may still grow into a stop string."""
        if self.stopped:
            return ""
        pending = self._held + text
        for end in range(len(self._held), len(pending)):
            met = [matcher.text for matcher in self._matchers if matcher.feed(pending[end])]
            if met:
                self.stop_reason = max(met, key=len)
                self._held = ""
                return pending[: end + 1 - (0 if self._include_stop else len(self.stop_reason))]
        held = max((matcher.matched for matcher in self._matchers), default=0)
        safe = len(pending) - held
        self._held = pending[safe:]
        return pending[:safe]


class _Matcher:
    """Knuth-Morris-Pratt search of one string over a stream: `matched` is the length of the longest prefix of
    `text` that the stream ends with, so work stays linear for stop strings of any length."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._border = [0] * len(text)  # of text[: i + 1]: longest proper prefix that is a suffix too
        for i in range(1, len(text)):
            self._border[i] = self._extend(self._border[i - 1], text[i])

    def feed(self, char: str) -> bool:
        """Take the next character; True where `text` is complete."""
        self.matched = self._extend(self.matched, char)
        return self.matched == len(self.text)

    def _extend(self, length: int, char: str) -> int:
        while length and self.text[length] != char:
            length = self._border[length - 1]
        return length + (self.text[length] == char)
