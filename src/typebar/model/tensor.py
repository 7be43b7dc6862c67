"""A tensor in a file, whatever the format of the file."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from typebar.errors import ModelFileError
from typebar.model.block_types import Bytes


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
        """Its bytes, uint8 [nbytes]. ModelFileError where the file has become shorter since."""
        try:
            data = np.fromfile(self.path, np.uint8, self.nbytes, offset=self.offset)
        except OSError as error:
            raise ModelFileError(f"{self.path}: cannot be read: {error.strerror}") from error
        if data.size != self.nbytes:
            raise ModelFileError(
                f"{self.path}: {data.size} of the {self.nbytes} bytes of tensor {self.name!r} are left, "
                "the file was changed while it was read"
            )
        return data
