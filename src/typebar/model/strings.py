"""Many strings as two arrays: a vocabulary of 150 000 Python strings would take ten times the memory."""

from collections.abc import Iterable, Iterator, Sequence
from operator import index
from typing import overload

import numpy as np
from numpy.typing import NDArray

__all__ = ["StringArray"]


class StringArray(Sequence[str]):
    """Strings, made when they are asked for. `text` is their UTF-8 end to end, `ends` where each of them ends."""

    __slots__ = ("ends", "text")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, text: bytes, ends: NDArray[np.uint32]) -> None:
        self.text, self.ends = text, ends

    @classmethod
    def of(cls, strings: Iterable[str]) -> "StringArray":
        """Raises UnicodeEncodeError where a string holds a lone surrogate."""
        encoded = [string.encode() for string in strings]
        ends = np.fromiter(map(len, encoded), np.uint64, len(encoded)).cumsum()
        return cls(b"".join(encoded), ends.astype(np.uint32))

    def __len__(self) -> int:
        return self.ends.size

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        i = range(len(self))[index(at)]
        return self.text[self.ends[i - 1] if i else 0 : self.ends[i]].decode()

    def __iter__(self) -> Iterator[str]:
        start = 0
        for end in self.ends.tolist():
            yield self.text[start:end].decode()
            start = end

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StringArray | list):
            return NotImplemented
        return list(self) == list(other)

    def __repr__(self) -> str:
        return f"<{len(self)} strings>"
