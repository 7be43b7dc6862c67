"""Typed and bounded access to the JSON of a model's configuration."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typebar.errors import ModelFileError


@dataclass(frozen=True, slots=True)
class Keys:
    """Typed and bounded access to a JSON object. null means absent, as it does to transformers."""

    path: Path
    values: Mapping[str, Any]
    of: str = ""  # the key of the object itself, and a dot

    def error(self, problem: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: {problem}")

    def _value(self, key: str, default: Any, kinds: tuple[type, ...], expected: str) -> Any:
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.error(f"{self.of + key!r} is missing, the file is not the config.json of a complete model")
        if type(value) not in kinds:
            raise self.error(f"{self.of + key!r} is {shown(value)}, expected {expected}")
        return value

    def count(self, key: str, limit: int, default: int | None = None) -> int:
        """A positive integer up to `limit`."""
        value: int = self._value(key, default, (int,), f"an integer from 1 to {limit}")
        if not 1 <= value <= limit:
            raise self.error(f"{self.of + key!r} is {shown(value)}, expected 1 to {limit}")
        return value

    def number(self, key: str, default: float | None = None, low: float = 0.0, high: float = 1e30) -> float:
        """A number, low < value < high; the default may lie outside."""
        value = self._value(key, default, (int, float), "a number")
        if not (low < value < high or value == default):
            raise self.error(f"{self.of + key!r} is {shown(value)}, expected a number between {low:g} and {high:g}")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """true or false."""
        value: bool = self._value(key, default, (bool,), "true or false")
        return value

    def numbers(self, key: str, length: int) -> tuple[float, ...]:
        """A list of `length` numbers between 1e-6 and 1e6."""
        values = self._value(key, None, (list,), f"a list of {length} numbers")
        ok = len(values) == length and all(type(value) in (int, float) and 1e-6 < value < 1e6 for value in values)
        if not ok:
            raise self.error(f"{self.of + key!r} is not a list of {length} numbers between 1e-6 and 1e6")
        return tuple(map(float, values))

    def object(self, key: str) -> "Keys | None":
        """The object `key`, None where it is absent or empty."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.error(f"{self.of + key!r} is {shown(value)}, expected an object")
        return Keys(self.path, value, f"{self.of}{key}.") if value else None


def shown(value: object) -> str:
    """JSON's values as they are, but not long ones; an integer may have thousands of digits."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 1 << 64 else "a huge number"
    return text if len(text) <= 80 else text[:77] + "..."
