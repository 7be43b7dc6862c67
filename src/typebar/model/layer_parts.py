"""The tensors that together are one quantized linear layer, each checked before it is believed."""

from collections.abc import Mapping

import numpy as np

from typebar.errors import ModelFileError
from typebar.model.dequantize import Floats, dequantize
from typebar.model.grouped_matrix import RUN, Order
from typebar.model.tensor import FileTensor

FLOAT_TYPES = ("F16", "BF16", "F32")


class LayerParts:
    """The tensors of a folder named `module`, a dot and the name of a part. One at least is there."""

    def __init__(self, module: str, tensors: Mapping[str, FileTensor]) -> None:
        self.module = module
        self._tensors = tensors
        self._path = next(tensor.path for name, tensor in tensors.items() if name.startswith(f"{module}."))

    def error(self, problem: str) -> ModelFileError:
        return ModelFileError(f"{self._path}: layer {self.module!r} {problem}")

    def find(self, part: str) -> FileTensor | None:
        return self._tensors.get(f"{self.module}.{part}")

    def take(self, part: str, types: tuple[str, ...], *shapes: tuple[int, ...]) -> FileTensor:
        """The part of one of these types and shapes."""
        tensor = self.find(part)
        if tensor is None:
            raise self.error(f"has no {part!r}: incomplete model, download it again")
        if tensor.type not in types or tensor.shape not in shapes:
            raise self.error(
                f"has a {part!r} of {tensor.type} {tensor.shape}, expected {' or '.join(types)} "
                f"{' or '.join(map(str, shapes))}: the file and its quantization_config do not belong together"
            )
        return tensor

    def count_groups(self, cols: int, group: int) -> int:
        if cols % group or group % RUN:
            raise self.error(
                f"has groups of {group} of its {cols} inputs, typebar runs whole groups of a multiple of {RUN}: take a "
                "checkpoint with groups of 32, 64 or 128, or the bfloat16 weights of this model"
            )
        return cols // group

    def group_of(self, part: str, cols: int, groups: int) -> Order | None:
        """The group of each input, as many inputs in each; None where the checkpoint does not say."""
        if self.find(part) is None:
            return None
        group_of = self.take(part, ("I32",), (cols,)).read().view("<i4").astype(np.int64)
        if group_of.min() < 0 or group_of.max() >= groups or (np.bincount(group_of) * groups != cols).any():
            raise self.error(
                f"has a {part!r} that does not put {cols // groups} inputs in each of {groups} groups: damaged file, "
                "download it again"
            )
        return group_of


def floats(tensor: FileTensor) -> Floats:
    """The values of a tensor of FLOAT_TYPES."""
    return dequantize(tensor.read(), tensor.type, tensor.shape)


def total_bytes(*tensors: FileTensor | None) -> int:
    return sum(tensor.nbytes for tensor in tensors if tensor)
