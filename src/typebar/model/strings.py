"""Many strings as two arrays: a vocabulary of 150 000 Python strings would take ten times the memory."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from operator import index
from typing import overload

__all__ = ["StringArray"]


class StringArray(Sequence[str]):
    """Strings, made when they are asked for. `text`: their UTF-8 end to end, `ends`: where each ends, uint32."""

    __slots__ = ("ends", "text")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, text: bytes, ends: memoryview) -> None:
        self.text, self.ends = text, ends

    @classmethod
    def of(cls, strings: Iterable[str]) -> "StringArray":
        """Raises UnicodeEncodeError where a string holds a lone surrogate."""
        encoded = [string.encode() for string in strings]
        return cls(b"".join(encoded), memoryview(array("I", accumulate(map(len, encoded)))))

    def __len__(self) -> int:
        return len(self.ends)

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
        for end in self.ends:
            yield self.text[start:end].decode()
            start = end

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StringArray | list):
            return NotImplemented
        return list(self) == list(other)

    def __repr__(self) -> str:
        return f"<{len(self)} strings>"
