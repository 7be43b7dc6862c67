"""How well next tokens are predicted, and how far the predictions are from those of a reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from typebar.engine.blocks import blocks_for
from typebar.errors import TypebarError
from typebar.eval.kept import KeptLogProbs
from typebar.model.load import LoadedModel

MOST_SURPRISE = 700.0  # nats: a perplexity above 1e304 would be no number
STEP = 64  # tokens computed at a time: logits of 152 000 ids take 39 MB


@dataclass(frozen=True, slots=True)
class Scores:
    """Over `tokens` predictions: perplexity, and against a reference, where there is one, KL(reference ‖ model).

    In nats: the mean, the 99th percentile and the largest; and how often the likeliest token is the same, in percent.
    """

    tokens: int
    perplexity: float
    mean_kl: float | None = None
    p99_kl: float | None = None
    max_kl: float | None = None
    same_top_percent: float | None = None


@dataclass(slots=True)
class Measured:
    """One entry a prediction: −log p of the token that follows and, against a reference, KL and agreement."""

    surprise: list[float] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)
    same_top: list[bool] = field(default_factory=list)

    def scores(self) -> Scores:
        perplexity = float(np.exp(min(float(np.mean(self.surprise)), MOST_SURPRISE)))
        if not self.kl:
            return Scores(len(self.surprise), perplexity)
        return Scores(
            len(self.surprise),
            perplexity,
            mean_kl=float(np.mean(self.kl)),
            p99_kl=float(np.percentile(self.kl, 99)),
            max_kl=float(np.max(self.kl)),
            same_top_percent=100 * float(np.mean(self.same_top)),
        )


def joined(parts: Sequence[Measured]) -> Measured:
    """All predictions together."""
    everything = Measured()
    for part in parts:
        everything.surprise += part.surprise
        everything.kl += part.kl
        everything.same_top += part.same_top
    return everything


def log_softmax(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """log p of a row, in double precision."""
    shifted = logits.astype(np.float64) - logits.max()
    normalized: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return normalized


def kl_divergence(log_p: NDArray[np.float64], log_q: NDArray[np.float64]) -> float:
    """KL(p ‖ q) in nats."""
    return float((np.exp(log_p) * (log_p - log_q)).sum())


def next_logits(loaded: LoadedModel, window: Sequence[int]) -> Iterator[NDArray[np.float32]]:
    """Logits [usable_vocab] of what follows each token of a window but the last. TypebarError for a NaN."""
    table = np.arange(blocks_for(len(window)), dtype=np.int32)[None]
    for start in range(0, len(window) - 1, STEP):
        new = np.array(window[start : min(start + STEP, len(window) - 1)], np.int32)
        lengths, starts = np.array([len(new)], np.int32), np.array([start], np.int32)
        logits = loaded.native.logits(new, lengths, starts, table)[:, : loaded.usable_vocab]
        if not np.isfinite(logits).all():
            raise TypebarError(f"{loaded.name} gives logits that are not finite numbers: its weights are damaged")
        yield from logits


def measure_reference(loaded: LoadedModel, window: Sequence[int], kept: KeptLogProbs) -> Measured:
    """The perplexity of the reference over a window; what it predicts is appended to `kept`."""
    found = Measured()
    for logits, target in zip(next_logits(loaded, window), window[1:], strict=True):
        log_p = log_softmax(logits)
        kept.append(log_p)
        found.surprise.append(-float(log_p[target]))
    return found


def measure(loaded: LoadedModel, window: Sequence[int], kept: KeptLogProbs, first: int) -> Measured:
    """A window against the rows of `kept` from `first` on, which the reference gave for the same window."""
    found = Measured()
    for row, (logits, target) in enumerate(zip(next_logits(loaded, window), window[1:], strict=True), first):
        rounded, top = kept.row(row)
        log_p, log_q = log_softmax(rounded), log_softmax(logits)
        found.surprise.append(-float(log_q[target]))
        found.kl.append(kl_divergence(log_p, log_q))
        found.same_top.append(int(logits.argmax()) == top)
    return found
