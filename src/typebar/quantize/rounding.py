"""Weights rounded to codes that share a scale and an offset by groups: w ≈ scale·code + offset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from typebar.model.dequantize import Bytes, Floats

Halves = NDArray[np.float16]

CHUNK = 1 << 17  # weights rounded at a time: they and what is made of them stay in the second-level cache

# The weight of largest magnitude stands for the lowest code, or lies so far beyond it.
BEYOND = (0.0, 0.5, -0.8, 0.2, -0.2, 0.8)
# Of the range of a group. A narrower one clips the outermost weights and rounds the others more finely.
RANGES = (1.0, 0.97, 0.94, 0.9, 0.85, 0.8)


class Zero(Enum):
    """Where zero lies on the scale of a group."""

    CENTRE = "the code in the middle"
    ANYWHERE = "the offset is an f16 of its own"
    CODE = "a code of its own"


@dataclass(frozen=True, slots=True)
class Grid:
    """What weights are rounded to."""

    bits: int
    group: int
    zero: Zero


@dataclass(frozen=True, slots=True)
class Rounded:
    """Codes [rows, cols] from 0 to 2^bits − 1; scales and offsets [rows, groups]."""

    codes: Bytes
    scales: Halves
    offsets: Floats

    def taken(self, rows: NDArray[np.intp]) -> Rounded:
        """These rows in this order."""
        return Rounded(self.codes[rows], self.scales[rows], self.offsets[rows])

    def values(self) -> Floats:
        """The weights that the codes stand for, float32 [rows, cols]."""
        rows, groups = self.scales.shape
        codes = self.codes.reshape(rows, groups, -1).astype(np.float32)
        codes *= self.scales[:, :, None].astype(np.float32)
        codes += self.offsets[:, :, None]
        return codes.reshape(rows, -1)


def round_weights(weights: Floats, bits: int, group: int, zero: Zero, importance: Floats | None = None) -> Rounded:
    """The codes of the scales with the smallest squared error, of those tried.

    `weights` [rows, cols] of which cols is a multiple of `group`. `importance` [cols]: what the squared error at each
    input counts. Raises ValueError where a weight, or a scale that it needs, is not a finite number of f16.
    """
    rows, cols = weights.shape
    shape = (rows, cols // group)
    rounded = Rounded(np.empty(weights.shape, np.uint8), np.empty(shape, np.float16), np.empty(shape, np.float32))
    counts = np.float32(1) if importance is None else importance.reshape(-1, group)
    step = max(1, CHUNK // cols)
    for start in range(0, rows, step):
        part = slice(start, start + step)
        groups = weights[part].reshape(-1, shape[1], group)
        codes, rounded.scales[part], rounded.offsets[part] = _best(groups, bits, zero, counts)
        rounded.codes[part] = codes.reshape(-1, cols)
    if not (np.isfinite(rounded.scales).all() and np.isfinite(rounded.offsets).all()):
        raise ValueError("a weight is not a finite number, or too large for a scale in f16")
    return rounded


@np.errstate(invalid="ignore", over="ignore")
def _best(groups: Floats, bits: int, zero: Zero, counts: Floats | np.float32) -> tuple[Bytes, Halves, Floats]:
    """Codes, scales and offsets of groups [rows, groups, group]."""
    best_error = np.full(groups.shape[:2], np.inf, np.float32)
    best_scale, best_offset = (np.full(groups.shape[:2], np.nan, np.float32) for _ in range(2))
    scratch = np.empty_like(groups)
    for scale, offset in _candidates(groups, bits, zero):
        error = _levels(groups, scale, offset, bits, scratch)
        error *= scale[:, :, None]
        error += offset[:, :, None]
        error -= groups
        error *= error
        error *= counts
        total = error.sum(axis=2)
        better = total < best_error
        for best, found in ((best_error, total), (best_scale, scale), (best_offset, offset)):
            np.copyto(best, found, where=better)
    codes = _levels(groups, best_scale, best_offset, bits, scratch).astype(np.uint8)
    return codes, best_scale.astype(np.float16), best_offset


def _levels(groups: Floats, scale: Floats, offset: Floats, bits: int, out: Floats) -> Floats:
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
    np.subtract(groups, offset[:, :, None], out=out)
    out *= inverse[:, :, None]
    np.rint(out, out=out)
    return np.clip(out, 0, (1 << bits) - 1, out=out)


def _candidates(groups: Floats, bits: int, zero: Zero) -> Iterator[tuple[Floats, Floats]]:
    """Pairs of scale and offset, both what their stored form stands for."""
    low, high = np.minimum(groups.min(axis=2), 0), np.maximum(groups.max(axis=2), 0)
    half, top = 1 << (bits - 1), (1 << bits) - 1
    if zero is Zero.CENTRE and bits == 8:
        scale = _stored(np.maximum(-low, high) / (half - 1))
        yield scale, -half * scale
    elif zero is Zero.CENTRE:
        extreme = np.where(-low > high, low, high)
        for beyond in BEYOND:
            scale = _stored(extreme / -(half + beyond))
            yield scale, -half * scale
    elif zero is Zero.CODE:
        for share in RANGES:
            scale = _stored((high - low) * share / top)
            code = np.rint(np.divide(-low * share, scale, out=np.zeros_like(scale), where=scale != 0))
            yield scale, -scale * np.clip(code, 0, top)  # a subnormal scale may be a third too small
    else:
        low, high = groups.min(axis=2), groups.max(axis=2)
        middle = (low + high) / 2
        for share in RANGES:
            yield _stored((high - low) * share / top), _stored(middle + (low - middle) * share)


def _stored(values: Floats) -> Floats:
    return values.astype(np.float16).astype(np.float32)
