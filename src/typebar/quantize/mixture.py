"""Which type each part of a model gets: from the smallest on, whatever takes away most divergence for its bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from typebar.quantize.sensitivity import AS_READ, Part


@dataclass(frozen=True, slots=True)
class Mixture:
    """A choice for each part, in their order, the bits that they come to, and the sum of what they bring alone."""

    choices: tuple[str, ...]
    bits: float
    divergence: float

    def by_name(self, parts: Sequence[Part]) -> dict[str, str]:
        """The types of the matrices."""
        return {
            name: own if choice == AS_READ else choice
            for part, choice in zip(parts, self.choices, strict=True)
            for name, own in part.types.items()
        }


def mixtures(parts: Sequence[Part], most_bits: float = float("inf")) -> list[Mixture]:
    """From all with the fewest bits on, one step a part, as far as they stay within `most_bits`."""
    found = [_mixture(parts, [part.smallest for part in parts])]
    while step := _best_step(parts, found[-1].choices, most_bits - found[-1].bits):
        index, choice = step
        choices = list(found[-1].choices)
        choices[index] = choice
        found.append(_mixture(parts, choices))
    return found


def _mixture(parts: Sequence[Part], choices: Sequence[str]) -> Mixture:
    chosen = list(zip(parts, choices, strict=True))
    bits = sum(part.bits[choice] for part, choice in chosen)
    return Mixture(tuple(choices), bits, sum(part.divergence[choice] for part, choice in chosen))


def _best_step(parts: Sequence[Part], choices: Sequence[str], left: float) -> tuple[int, str] | None:
    best, best_gain = None, 0.0
    for index, (part, now) in enumerate(zip(parts, choices, strict=True)):
        for choice, bits in part.bits.items():
            more = bits - part.bits[now]
            gain = (part.divergence[now] - part.divergence[choice]) / more if 0 < more <= left else 0.0
            if gain > best_gain:
                best, best_gain = (index, choice), gain
    return best


def table(parts: Sequence[Part], types: Mapping[str, str]) -> list[str]:
    """Lines that tell the type of each part, or those of its matrices, a line a layer."""
    rows: dict[str, list[str]] = {}
    for part in parts:
        layer = next(iter(part.types)).rpartition(".")[0].removeprefix("layers.")
        names = " ".join(name.rpartition(".")[2] for name in part.types)
        kinds = [types[name] for name in part.types]
        rows.setdefault(layer, []).append(f"{names} {'/'.join(kinds if len(set(kinds)) > 1 else kinds[:1])}")
    return [f"{layer or 'model':>5}  " + "  ".join(cells) for layer, cells in rows.items()]
