"""How much the predictions change when a few matrices have fewer bits, each set of them alone.

Every set is rounded to SMALLEST and the model run on from there; the divergence with other types is taken to be less as
the squared error of the outputs of those matrices is. The weights of a layer are read once: all runs go through it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from typebar.errors import ModelFileError
from typebar.model.block_types import bits_a_weight, is_quantized, tensor_nbytes
from typebar.model.checkpoint import Checkpoint
from typebar.model.dequantize import Floats
from typebar.quantize.block_codes import GROUP, ROUNDINGS
from typebar.quantize.divergence import divergences, head_name
from typebar.quantize.forward import ForwardPass
from typebar.quantize.rounded_tensor import Source
from typebar.quantize.rounding import round_weights
from typebar.quantize.scaling import Site, sites
from typebar.quantize.stage import Stage
from typebar.quantize.weights import HeldLayer

SMALLEST = "Q4_0"
AS_READ = "as read"  # the choice of the types that the source has
SAMPLED_ROWS = 4096  # of the output layer, that its error is measured on
TOGETHER = 8  # runs whose predictions are compared at a time
TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, slots=True)
class Part:
    """Matrices that are chosen for together.

    `types`: those that the source has, by name. For each choice, a type or AS_READ where that is one: the bits that all
    the weights come to, and the divergence in nats that it brings alone.
    """

    types: Mapping[str, str]
    bits: Mapping[str, float]
    divergence: Mapping[str, float]

    @property
    def smallest(self) -> str:
        """The choice with the fewest bits; of several the most exact."""
        return min(self.bits, key=lambda choice: (self.bits[choice], self.divergence[choice]))


def measure_parts(checkpoint: Checkpoint, source: Source, windows: Sequence[Sequence[int]], stage: Stage) -> list[Part]:
    """The parts of a model, the first ones its embedding and output layer. ModelFileError where one is not rounded."""
    return _Measurement(checkpoint, source, windows).run(stage)


class _Measurement:
    """`states`: the hidden states of each run, that of the weights as they are first."""

    def __init__(self, checkpoint: Checkpoint, source: Source, windows: Sequence[Sequence[int]]) -> None:
        self.checkpoint, self.source = checkpoint, source
        self.held = HeldLayer(source.weights)
        self.forward = ForwardPass(checkpoint.spec, self.held, windows)
        self.states = [self.forward.hidden]
        self.parts: list[tuple[tuple[str, ...], dict[str, float]]] = []  # of each run after the first: names, errors

    def run(self, stage: Stage) -> list[Part]:
        if self.checkpoint.tensors["embed"].shape[1] % GROUP == 0:
            self._embed()
        layers = self.checkpoint.spec.num_layers
        with stage("measuring each layer", sum(self._runs(index) for index in range(layers))) as done:
            for index in range(layers):
                self._layer(index, done)
        return self._found(stage)

    def _runs(self, index: int) -> int:
        return 6 + 4 * index

    def _embed(self) -> None:
        values, errors = self._rounded("embed", self.states[0], None)
        self.states.append(values)
        self.parts.append((("embed",), errors))

    def _layer(self, index: int, done: Callable[[int], None]) -> None:
        before = self.states[0]
        self.held.forget()
        self.forward.hidden = before
        inputs = self.forward.layer(index)
        self.states = [self.forward.hidden, *(self._through(index, state) for state in self.states[1:])]
        for site in sites(self.checkpoint.spec, index, inputs):
            if site.x.shape[1] % GROUP == 0:
                self.held.replaced, errors = self._site(site)
                self.states.append(self._through(index, before))
                self.held.replaced = {}
                self.parts.append((tuple(site.matrices), errors))
        done(self._runs(index))

    def _through(self, index: int, state: Floats) -> Floats:
        self.forward.hidden = state
        self.forward.layer(index)
        after: Floats = self.forward.hidden
        return after

    def _site(self, site: Site) -> tuple[dict[str, Floats], dict[str, float]]:
        """The matrices in SMALLEST, and for each type the relative squared error of their outputs."""
        replaced, errors = {}, dict.fromkeys(ROUNDINGS, 0.0)
        for name in site.matrices:
            weights = self.held.read(name)
            size = float(np.square(site.x @ weights.T).sum()) + TINY
            replaced[name], found = self._rounded(name, weights, site.x)
            for type_name, error in found.items():
                errors[type_name] += error / size
        return replaced, errors

    def _rounded(self, name: str, weights: Floats, x: Floats | None) -> tuple[Floats, dict[str, float]]:
        """`weights` in SMALLEST, and for each type the squared error of the outputs for `x`, or of all weights."""
        values, errors = weights, {}
        for type_name, rounding in ROUNDINGS.items():
            if self.source.weights.is_as_read(name, type_name):
                errors[type_name] = 0.0
                continue
            try:
                importance = self.source.importance.get(name)
                rounded = round_weights(weights, rounding.bits, GROUP, rounding.zero, importance).values()
            except ValueError as problem:
                raise ModelFileError(f"tensor {name!r} cannot be rounded to {type_name}: {problem}") from problem
            error = rounded - weights
            errors[type_name] = float(np.square(error if x is None else x @ error.T).sum())
            if type_name == SMALLEST:
                values = rounded
        return values, errors

    def _found(self, stage: Stage) -> list[Part]:
        self.held.forget()
        expected, *states = (self.forward.normed(state, "final_norm") for state in self.states)
        name = head_name(self.checkpoint)
        head = self.source.weights.read(name)[: self.checkpoint.usable_vocab]
        found: list[float] = []
        with stage("comparing predictions", len(states)) as done:
            for start in range(0, len(states), TOGETHER):
                some = states[start : start + TOGETHER]
                found += divergences(expected, head, some, head)
                done(len(some))
        parts = [self._part(names, kl, errors) for (names, errors), kl in zip(self.parts, found, strict=True)]
        if head.shape[1] % GROUP:
            return parts
        if name == "embed":  # both ends of the model are rounded
            return [self._head(name, expected, states[0], head), *parts[1:]]
        return [self._head(name, expected, expected, head), *parts]

    def _head(self, name: str, expected: Floats, state: Floats, head: Floats) -> Part:
        """The output layer, of final states `state` where it is rounded and of `expected` where it is not."""
        sample = np.ascontiguousarray(head[:: -(-len(head) // SAMPLED_ROWS)])
        _, errors = self._rounded(name, sample, expected)
        rounded = self.source.rounded(name, None, ROUNDINGS[SMALLEST].grid).values()[: len(head)]
        [kl] = divergences(expected, head, [state], rounded)
        return self._part((name,), kl, errors)

    def _part(self, names: tuple[str, ...], kl: float, errors: Mapping[str, float]) -> Part:
        tensors = {name: self.checkpoint.tensors[name] for name in names}
        types = {name: tensor.type for name, tensor in tensors.items()}
        weights = sum(prod(tensor.shape) for tensor in tensors.values())
        bits = {type_name: weights * bits_a_weight(type_name) for type_name in ROUNDINGS}
        least = errors[SMALLEST] + TINY
        divergence = {type_name: kl * error / least for type_name, error in errors.items()}
        if all(self.source.weights.is_as_read(name, kind) and is_quantized(kind) for name, kind in types.items()):
            bits[AS_READ] = sum(8 * tensor_nbytes(tensor.type, tensor.shape) for tensor in tensors.values())
            divergence[AS_READ] = 0.0
        return Part(types, bits, divergence)
