"""How far the predictions of changed weights are from those of the source's, by the forward pass in float32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from typebar.model.checkpoint import Checkpoint
from typebar.model.dequantize import Floats
from typebar.quantize.forward import ForwardPass
from typebar.quantize.stage import Stage
from typebar.quantize.weights import Readable

ROWS = 48  # predictions at a time: their logits of 152 000 ids take 29 MB


def head_name(checkpoint: Checkpoint) -> str:
    """The matrix that makes the logits."""
    return "embed" if checkpoint.spec.tied_embeddings else "head"


def final_states(
    checkpoint: Checkpoint, weights: Readable, windows: Sequence[Sequence[int]], title: str, stage: Stage
) -> Floats:
    """What the output layer multiplies, [tokens, hidden size]."""
    forward = ForwardPass(checkpoint.spec, weights, windows)
    with stage(title, checkpoint.spec.num_layers) as done:
        for index in range(checkpoint.spec.num_layers):
            forward.layer(index)
            done(1)
    return forward.normed(forward.hidden, "final_norm")


def divergences(expected: Floats, expected_head: Floats, others: Sequence[Floats], head: Floats) -> list[float]:
    """Mean KL(expected ‖ other) in nats of each of `others`, final states [tokens, hidden size] before `head`."""
    totals = np.zeros(len(others))
    for start in range(0, len(expected), ROWS):
        rows = slice(start, start + ROWS)
        logits = expected[rows] @ expected_head.T
        normalizer = _log_sum_exp(logits)
        p = np.exp(logits - normalizer)
        for index, other in enumerate(others):
            other_logits = other[rows] @ head.T
            other_normalizer = _log_sum_exp(other_logits)
            np.subtract(logits, other_logits, out=other_logits)
            differences = np.einsum("tv,tv->t", p, other_logits)
            totals[index] += float((differences + (other_normalizer - normalizer)[:, 0]).sum(dtype=np.float64))
    return [max(float(total), 0.0) / len(expected) for total in totals]


def _log_sum_exp(logits: Floats) -> Floats:
    largest = logits.max(axis=1, keepdims=True)
    total: Floats = largest + np.log(np.exp(logits - largest).sum(axis=1, keepdims=True))
    return total
