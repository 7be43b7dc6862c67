"""How long work tells of itself."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

# A named stage of so many units; the context is a function that is told of those done.
Stage = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
