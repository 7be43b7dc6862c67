"""A tensor in a file, whatever the format of the file, and one made of others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from typebar.errors import ModelFileError

if TYPE_CHECKING:
    from typebar.model.dequantize import Bytes


@dataclass(frozen=True, slots=True)
class FileTensor:
    """Where a tensor lies. `shape` is row-major, (rows, columns); `offset` counts from the start of the file `path`."""

    name: str
    type: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    nbytes: int

    def read(self) -> Bytes:
        """Its bytes, uint8 [nbytes]. ModelFileError as read_bytes."""
        import numpy as np  # not above: what runs a GGUF file reads its weights in the native core

        return np.frombuffer(self.read_bytes(), np.uint8)

    def read_bytes(self) -> bytearray:
        """Its bytes. ModelFileError where the file has become shorter since."""
        data = bytearray(self.nbytes)
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                count = file.readinto(data)
        except OSError as error:
            raise ModelFileError(f"{self.path}: cannot be read: {error.strerror}") from error
        if count != self.nbytes:
            raise ModelFileError(
                f"{self.path}: {count} of the {self.nbytes} bytes of tensor {self.name!r} are left, "
                "the file was changed while it was read"
            )
        return data


@dataclass(frozen=True, slots=True)
class MadeTensor:
    """A tensor that no file holds as it is needed: `make` computes its bytes. `nbytes` and `path`: of what it is of."""

    name: str
    type: str
    shape: tuple[int, ...]
    path: Path
    nbytes: int
    make: Callable[[], Bytes]

    def read(self) -> Bytes:
        """Its bytes, uint8. Raises ModelFileError as FileTensor.read, and for values that its type cannot hold."""
        return self.make()


Tensor = FileTensor | MadeTensor
TensorT = TypeVar("TensorT", FileTensor, Tensor)
