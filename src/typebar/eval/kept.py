"""What a reference predicts, kept on disk while others are compared with it."""

from __future__ import annotations

import errno
import os
import tempfile
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from typebar.errors import TypebarError
from typebar.model.cache import cache_dir, require_space, writable

MOST_BYTES = 16 << 30
LEAST = float(np.finfo(np.float16).min)  # log p below it is kept as this


class KeptLogProbs:
    """log p of `rows` predictions over `vocab` ids, two bytes each, in a nameless file that ends with the process.

    Rounding log p to f16 moves p by at most 0.4 % for p above 1e-7; `row` gives values to be normalized again.
    Raises TypebarError where the disk has too little room, or they are more than 16 GiB.
    """

    def __init__(self, rows: int, vocab: int) -> None:
        folder, size = cache_dir() / "eval", 2 * rows * vocab
        if size > MOST_BYTES:
            raise TypebarError(
                f"predictions of {rows} tokens over {vocab} ids take {size >> 30} GiB, more than "
                f"{MOST_BYTES >> 30}: give shorter texts, or a smaller --tokens"
            )
        with writable(folder):
            require_space(folder, size)
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self._row_bytes = 2 * vocab
        self._tops: list[int] = []

    def append(self, log_p: NDArray[np.float64]) -> None:
        """One more prediction. TypebarError where the disk is full."""
        data = log_p.clip(LEAST).astype(np.float16).tobytes()
        with writable(cache_dir() / "eval"):
            if self._file.write(data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._tops.append(int(log_p.argmax()))

    def row(self, index: int) -> tuple[NDArray[np.float16], int]:
        """Prediction `index` and its likeliest id."""
        data = os.pread(self._file.fileno(), self._row_bytes, index * self._row_bytes)
        return np.frombuffer(data, np.float16), self._tops[index]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
