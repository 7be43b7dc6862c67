"""Which type each part of a model gets: from the smallest on, whatever takes away most divergence for its bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from typebar.model.block_types import BY_NAME
from typebar.quantize.block_codes import GROUP
from typebar.quantize.sensitivity import SMALLEST, Part

BITS = {name: 8 * BY_NAME[name].nbytes / GROUP for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")}


@dataclass(frozen=True, slots=True)
class Mixture:
    """A type for each part, in their order, the bits that they come to, and the sum of what they bring alone."""

    types: tuple[str, ...]
    bits: float
    divergence: float

    def by_name(self, parts: Sequence[Part]) -> dict[str, str]:
        """The types of the matrices."""
        return {name: kind for part, kind in zip(parts, self.types, strict=True) for name in part.names}


def mixtures(parts: Sequence[Part], most_bits: float = float("inf")) -> list[Mixture]:
    """From all in the smallest type on, one step a part, as far as they stay within `most_bits`."""
    types = [SMALLEST] * len(parts)
    bits = sum(part.weights * BITS[SMALLEST] for part in parts)
    divergence = sum(part.divergence[SMALLEST] for part in parts)
    found = [Mixture(tuple(types), bits, divergence)]
    while step := _best_step(parts, types, most_bits - bits):
        index, kind = step
        bits += parts[index].weights * (BITS[kind] - BITS[types[index]])
        divergence -= parts[index].divergence[types[index]] - parts[index].divergence[kind]
        types[index] = kind
        found.append(Mixture(tuple(types), bits, divergence))
    return found


def _best_step(parts: Sequence[Part], types: Sequence[str], left: float) -> tuple[int, str] | None:
    best, best_gain = None, 0.0
    for index, (part, now) in enumerate(zip(parts, types, strict=True)):
        for kind, bits in BITS.items():
            more = part.weights * (bits - BITS[now])
            gain = (part.divergence[now] - part.divergence[kind]) / more if 0 < more <= left else 0.0
            if gain > best_gain:
                best, best_gain = (index, kind), gain
    return best


def table(parts: Sequence[Part], types: Mapping[str, str]) -> list[str]:
    """Lines that tell the type of each part, a line a layer."""
    rows: dict[str, list[str]] = {}
    for part in parts:
        layer = part.names[0].rpartition(".")[0].removeprefix("layers.")
        names = " ".join(name.rpartition(".")[2] for name in part.names)
        rows.setdefault(layer, []).append(f"{names} {types[part.names[0]]}")
    return [f"{layer or 'model':>5}  " + "  ".join(cells) for layer, cells in rows.items()]
