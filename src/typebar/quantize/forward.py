"""The forward pass over calibration text in float32, layer by layer: what comes into each linear layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from typebar.model.dequantize import Floats
from typebar.model.rope import half_split_rows, inverse_frequencies
from typebar.model.spec import ModelSpec
from typebar.quantize.weights import Readable


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """Activations [tokens, inputs] that the linear layers of a layer multiply."""

    qkv: Floats
    o: Floats
    gate_up: Floats
    down: Floats


class ForwardPass:
    """Windows of token ids, each read from position 0. `layer` must be called for 0, 1, … in turn.

    `hidden` [tokens, hidden size]: what the layers run so far have come to.
    """

    def __init__(self, spec: ModelSpec, weights: Readable, windows: Sequence[Sequence[int]]) -> None:
        self._spec, self._weights = spec, weights
        self.hidden = weights.read("embed")[np.concatenate([np.asarray(window) for window in windows])]
        ends = np.cumsum([len(window) for window in windows]).tolist()
        self._windows = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        frequencies, self._attention_factor = inverse_frequencies(spec.rope, spec.head_dim, spec.context_length)
        self._angles = np.arange(max(map(len, windows)))[:, None] * frequencies

    def layer(self, index: int) -> LayerInputs:
        """Run the layer `index`; returns its inputs."""
        qkv = self.normed(self.hidden, f"layers.{index}.attn_norm")
        o = self._attention(index, qkv)
        self.hidden = self.hidden + self._linear(index, "o", o)
        gate_up = self.normed(self.hidden, f"layers.{index}.mlp_norm")
        gate = self._linear(index, "gate", gate_up)
        with np.errstate(over="ignore"):
            gate /= 1 + np.exp(-gate)
        down = gate * self._linear(index, "up", gate_up)
        self.hidden += self._linear(index, "down", down)
        return LayerInputs(qkv, o, gate_up, down)

    def normed(self, x: Floats, name: str) -> Floats:
        """`x` through the norm `name`."""
        mean = np.square(x).mean(axis=-1, keepdims=True)
        normalized: Floats = x / np.sqrt(mean + np.float32(self._spec.rms_norm_eps))
        return normalized * self._weights.read(name)

    def _linear(self, index: int, part: str, x: Floats) -> Floats:
        name = f"layers.{index}.{part}"
        y = x @ self._weights.read(name).T
        return y + self._weights.read(f"{name}_bias") if f"{name}_bias" in self._weights else y

    def _attention(self, index: int, x: Floats) -> Floats:
        spec = self._spec
        q, k = (self._heads(index, part, x, n) for part, n in (("q", spec.num_heads), ("k", spec.num_kv_heads)))
        v = self._linear(index, "v", x).reshape(len(x), spec.num_kv_heads, spec.head_dim)
        mixed = np.empty((len(x), spec.num_heads, spec.head_dim), np.float32)
        for window in self._windows:
            for head in range(spec.num_heads):
                kv = head * spec.num_kv_heads // spec.num_heads
                mixed[window, head] = _causal(q[window, head], k[window, kv], v[window, kv])
        return mixed.reshape(len(x), -1)

    def _heads(self, index: int, part: str, x: Floats, count: int) -> Floats:
        """q or k as [tokens, heads, head_dim], normalized where the model does that, and rotated."""
        spec, y = self._spec, self._linear(index, part, x)
        if spec.rope_interleaved:
            y = y[:, half_split_rows(count, spec.head_dim)]
        y = y.reshape(len(x), count, spec.head_dim)
        if spec.qk_norm:
            y = self.normed(y, f"layers.{index}.{part}_norm")
        for window in self._windows:
            y[window] = self._rotated(y[window])
        return y

    def _rotated(self, x: Floats) -> Floats:
        angles = self._angles[: len(x), None]
        cos, sin = (f(angles) * np.float32(self._attention_factor) for f in (np.cos, np.sin))
        first, second = np.split(x, 2, axis=-1)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _causal(q: Floats, k: Floats, v: Floats) -> Floats:
    """Attention of one head over a window [tokens, head_dim]."""
    scores = q @ k.T / np.float32(np.sqrt(q.shape[1]))
    scores[np.triu_indices(len(q), 1)] = -np.inf
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    mixed: Floats = scores / scores.sum(axis=1, keepdims=True) @ v
    return mixed
