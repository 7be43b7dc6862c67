"""The weights of a linear layer whose inputs share scales by groups, and the blocks that the native core takes."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from typebar.errors import ModelFileError
from typebar.model.dequantize import Bytes, Floats
from typebar.model.tensor import MadeTensor

# By bits of a code and weights of a block: the type whose blocks are an f16 d, an f16 m and the codes, w = d·code + m.
BLOCK_TYPES = {
    4: {32: "Q4_1", 64: "U4_64", 128: "U4_128"},
    8: {32: "U8_32", 64: "U8_64", 128: "U8_128"},
}
RUN = 32  # codes of 4 bits lie in runs: the first 16 in the low halves of 16 bytes, the others in the high ones

Order = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class GroupedMatrix:
    """Weights [rows, cols], w = scale·(code − zero). Inputs, the columns, share scale and zero by groups of `group`.

    `read` gives codes [rows, cols], scales and zeros [rows, groups]. `group_of` [cols] is the group of each input, None
    where groups are neighbours. A group is a multiple of 32 inputs. `nbytes` is what the layer takes in its file.
    """

    name: str
    path: Path
    bits: int
    rows: int
    cols: int
    group: int
    nbytes: int
    read: Callable[[], tuple[Bytes, Floats, Bytes]]
    group_of: Order | None = None

    def error(self, problem: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: layer {self.name!r} {problem}")

    @property
    def block(self) -> int:
        """Weights of a block: a larger group becomes several with the same scale."""
        return next(size for size in (128, 64, 32) if self.group % size == 0)

    def order(self) -> Order | None:
        """The inputs sorted by group: the one that stands first, the second, … None where they are already."""
        if self.group_of is None or (np.diff(self.group_of) >= 0).all():
            return None
        return np.argsort(self.group_of, kind="stable")

    def groups(self, order: Order | None) -> Order | None:
        """The group of each run of `group` inputs that stand in `order`; None where a run is not of one group."""
        group_of = np.arange(self.cols) // self.group if self.group_of is None else self.group_of
        runs = (group_of if order is None else group_of[order]).reshape(-1, self.group)
        return runs[:, 0] if (runs == runs[:, :1]).all() else None

    def tensor(self, order: Order | None) -> MadeTensor:
        """As a tensor of blocks, its inputs in `order`, for which groups() must not be None."""
        type_name = BLOCK_TYPES[self.bits][self.block]
        shape = (self.rows, self.cols)
        return MadeTensor(self.name, type_name, shape, self.path, self.nbytes, partial(self._blocks, order))

    def _blocks(self, order: Order | None) -> Bytes:
        codes, scales, zeros = self.read()
        if order is not None:
            codes = codes[:, order]
        groups, repeats = self.groups(order), self.group // self.block
        step = self._half(scales)[:, groups]
        minimum = self._half(-step.astype(np.float32) * zeros[:, groups])
        blocks = np.empty(
            (self.rows, self.cols // self.block),
            [("d", "<f2"), ("m", "<f2"), ("codes", np.uint8, self.block * self.bits // 8)],
        )
        blocks["d"], blocks["m"] = (np.repeat(values, repeats, axis=1) for values in (step, minimum))
        if self.bits == 4:
            runs = codes.reshape(self.rows, -1, 2, RUN // 2)
            codes = runs[:, :, 0] | runs[:, :, 1] << np.uint8(4)
        blocks["codes"] = codes.reshape(blocks["codes"].shape)
        return blocks.reshape(-1).view(np.uint8)

    def _half(self, values: Floats) -> NDArray[np.float16]:
        with np.errstate(over="ignore"):
            half = values.astype(np.float16)
        if not np.isfinite(half).all():
            raise self.error(
                "has a scale, or a scale times its zero point, that is not a finite number or beyond the 65504 of f16: "
                "damaged file, or use the bfloat16 weights of this model"
            )
        return half
