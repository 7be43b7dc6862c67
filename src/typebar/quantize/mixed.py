"""The types of a mixed file by measured divergence, and its matrices rounded to them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from typebar.errors import TypebarError
from typebar.eval.texts import BUILTIN, read_texts, windows
from typebar.model.block_types import bits_a_weight
from typebar.model.checkpoint import Checkpoint
from typebar.model.dequantize import Floats
from typebar.quantize.block_codes import GROUP, ROUNDINGS
from typebar.quantize.compensation import compensate
from typebar.quantize.divergence import divergences, final_states, head_name
from typebar.quantize.mixture import Mixture, mixtures, table
from typebar.quantize.rounded_tensor import Source
from typebar.quantize.sensitivity import SMALLEST, Part
from typebar.quantize.stage import Stage
from typebar.quantize.weights import Weights

HELD_OUT_TOKENS = 256  # of each text that the whole is measured on
NEAR = 0.9  # of the divergence asked for: what comes below that is tried with fewer bits
MOST_TRIES = 4  # by the expected divergence, then by halves
TINY = 1e-9


@dataclass(frozen=True, slots=True)
class Mixed:
    """What was chosen. `bits` a weight over all matrices; `divergence`: mean KL in nats over the held-out text."""

    types: dict[str, str]
    lines: list[str]
    bits: float
    divergence: float
    predictions: int


class Mixer:
    """Rounds the matrices of `source`, for which `compensated` windows are given where errors are made up for."""

    def __init__(
        self, checkpoint: Checkpoint, source: Source, compensated: Sequence[Sequence[int]] | None, stage: Stage
    ) -> None:
        self.checkpoint, self.source, self.compensated, self.stage = checkpoint, source, compensated, stage
        tokenizer = checkpoint.build_tokenizer()
        self.held_out = [
            window
            for text in read_texts([BUILTIN])
            for window in windows(text, tokenizer, HELD_OUT_TOKENS, HELD_OUT_TOKENS)
        ]
        self.types: dict[str, str] = {}
        self.expected: Floats | None = None

    def within(self, parts: Sequence[Part], bits_a_weight: float) -> Mixed:
        """The least divergence that so many bits a weight of all matrices allow."""
        most = bits_a_weight * _count(self.checkpoint) - _fixed_bits(self.checkpoint)
        found = mixtures(parts, most)[-1]
        return self._mixed(parts, found, self._measure(found.by_name(parts)))

    def below(self, parts: Sequence[Part], divergence: float) -> Mixed:
        """About the fewest bits that leave a divergence of at most so much. TypebarError where 8 bits leave more."""
        path = mixtures(parts)
        ratio, low, high = 1.0, -1, len(path)  # of measured to expected; the last that leaves too much; the first good
        good: dict[int, float] = {}
        tries = 0
        while high - low > 1 and not (good and (tries >= MOST_TRIES or good[high] >= NEAR * divergence)):
            expected = bisect_left(path, -divergence / ratio, key=lambda mixture: -mixture.divergence)
            at = min(max(expected, low + 1), high - 1) if tries < MOST_TRIES else (low + high) // 2
            measured = self._measure(path[at].by_name(parts))
            ratio, tries = measured / max(path[at].divergence, TINY), tries + 1
            if measured <= divergence:
                good[at], high = measured, at
            else:
                low = at
        if not good:
            raise TypebarError(f"--target-kl {divergence:g} takes more than the 8 bits of Q8_0: {measured:.2g} is left")
        self._round(path[high].by_name(parts))
        return self._mixed(parts, path[high], good[high])

    def _mixed(self, parts: Sequence[Part], mixture: Mixture, measured: float) -> Mixed:
        types = mixture.by_name(parts)
        bits = (mixture.bits + _fixed_bits(self.checkpoint)) / _count(self.checkpoint)
        others = {name: "F16" for name, shape in _matrices(self.checkpoint) if shape[1] % GROUP}
        predictions = sum(map(len, self.held_out))
        return Mixed(types | others, table(parts, types), bits, measured, predictions)

    def _measure(self, types: Mapping[str, str]) -> float:
        """Mean KL over the held-out text, in nats, of the matrices rounded to `types`."""
        if self.expected is None:
            plain = Weights(self.checkpoint)
            self.expected = final_states(self.checkpoint, plain, self.held_out, "reading with all bits", self.stage)
        self._round(types)
        weights, usable = self.source.weights, self.checkpoint.usable_vocab
        states = final_states(self.checkpoint, weights, self.held_out, "reading with these types", self.stage)
        expected_head, head = (
            some.read(head_name(self.checkpoint))[:usable] for some in (Weights(self.checkpoint), weights)
        )
        [found] = divergences(self.expected, expected_head, [states], head)
        return found

    def _round(self, types: Mapping[str, str]) -> None:
        rounded = self.source.weights.rounded
        changed = {name for name, kind in types.items() if self.types.get(name) != kind}
        if self.compensated and any(name == "embed" or name.startswith("layers.") for name in changed):
            for name in types:
                rounded.pop(name, None)
            grids = {
                name: ROUNDINGS[kind].grid
                for name, kind in types.items()
                if name.startswith("layers.") and not self.source.weights.is_as_read(name, kind)
            }
            compensate(self.checkpoint.spec, self.source.weights, self.compensated, grids, self.stage)
            changed -= grids.keys()
        with self.stage("rounding", len(changed)) as done:
            for name in changed:
                rounded.pop(name, None)
                if not self.source.weights.is_as_read(name, types[name]):
                    rounded[name] = self.source.rounded(name, None, ROUNDINGS[types[name]].grid)
                done(1)
        self.types = dict(types)


def _matrices(checkpoint: Checkpoint) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, tensor.shape) for name, tensor in checkpoint.tensors.items() if len(tensor.shape) == 2]


def _count(checkpoint: Checkpoint) -> int:
    """Weights of all matrices."""
    return sum(prod(shape) for _, shape in _matrices(checkpoint))


def _fixed_bits(checkpoint: Checkpoint) -> int:
    """Of matrices whose rows are not whole groups."""
    return sum(16 * prod(shape) for _, shape in _matrices(checkpoint) if shape[1] % GROUP)


def least_bits(checkpoint: Checkpoint) -> float:
    """A weight, over all matrices, with the smallest types."""
    whole = sum(prod(shape) for _, shape in _matrices(checkpoint) if shape[1] % GROUP == 0)
    return (whole * bits_a_weight(SMALLEST) + _fixed_bits(checkpoint)) / _count(checkpoint)
