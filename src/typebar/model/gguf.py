"""A strict reader of GGUF files, version 2 and 3, little-endian, whole or split into shards.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Nothing in a file is believed before it is checked:
every count and length is compared with the bytes that are left before memory is taken for it.

The header is read with ordinary reads, not through a mapping: a file that another process truncates meanwhile then
gives an error, where a mapping would kill the process with SIGBUS. Nothing stays open afterwards; tensor data is read
later from `(tensor.path, tensor.offset)`.
"""

from __future__ import annotations

import re
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from typebar import _native
from typebar.errors import ModelFileError
from typebar.model.block_types import BLOCK_TYPES, OTHER_TYPE_NAMES, BlockType
from typebar.model.strings import StringArray
from typebar.model.tensor import FileTensor

__all__ = ["GGUFFile", "MetadataValue"]

MetadataValue = int | float | bool | str | StringArray | memoryview
T = TypeVar("T", int, float, bool, str, StringArray, memoryview)

# Headers of real models are up to about 20 MB (vocabulary and merges); the limits bound memory for hostile files.
MAX_HEADER_BYTES = 64 << 20
MAX_ENTRIES = 1 << 16
MAX_ARRAY_LENGTH = 1 << 24
MAX_KEY_BYTES = 65_535
MAX_TENSOR_NAME_BYTES = 64
FIRST_READ_BYTES = 16 << 20
DEFAULT_ALIGNMENT = 32

_UINT32 = struct.Struct("<I")
_UINT64 = struct.Struct("<Q")
_BOOL, _STRING, _ARRAY = 7, 8, 9
# As struct and memoryview call them.
_NUMBERS: dict[int, Any] = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    _BOOL: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_NBYTES = {kind: struct.calcsize(f"<{letter}") for kind, letter in _NUMBERS.items()}
_SHARD_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_NOT_GGUF = {
    b"vers": "it is a Git LFS pointer: run `git lfs pull`",
    b"<!DO": "it is a web page: the download gave an error page",
    b"<htm": "it is a web page: the download gave an error page",
    b"PK\x03\x04": "it is a zip archive: unpack it first",
    b"ggjt": "it is an old GGML file: convert it to GGUF",
    b"lmgg": "it is an old GGML file: convert it to GGUF",
}


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """A parsed GGUF model: `metadata` of the (first) file and the tensors of all shards, by name.

    Metadata values are int, float, bool, str, StringArray, and memoryviews for arrays of numbers.
    """

    path: Path
    metadata: Mapping[str, MetadataValue]
    tensors: Mapping[str, FileTensor]

    @staticmethod
    def open(path: Path | str) -> GGUFFile:
        """Read the header of `path`, or of all shards where it is one of `NAME-0000i-of-0000n.gguf`.

        Raises ModelFileError, naming the entry at fault, for a file that is missing, damaged, truncated or of a kind
        that typebar does not read.
        """
        path = Path(path)
        opened = _read_header(path)
        count = opened.get("split.count", int) or 1
        name = _SHARD_NAME.fullmatch(path.name)
        if count == 1 and (name is None or int(name["count"]) == 1):
            return opened
        return _join_shards(opened, count, name)

    def get(self, key: str, kind: type[T]) -> T | None:
        """The metadata value `key`, None where absent. ModelFileError where it is there with another type."""
        value = self.metadata.get(key)
        if value is None:
            return None
        if type(value) is not kind:
            raise ModelFileError(f"{self.path}: metadata {key!r} is {type(value).__name__}, expected {kind.__name__}")
        return value

    def require(self, key: str, kind: type[T]) -> T:
        """The metadata value `key`. ModelFileError where it is absent or has another type."""
        value = self.get(key, kind)
        if value is None:
            raise ModelFileError(f"{self.path}: metadata {key!r} is missing, the file is not a complete model")
        return value


class _PrefixTooShort(Exception):
    """The header goes on beyond the bytes read so far."""


class _Cursor:
    """A position in the first `len(prefix)` bytes of a file of `file_size` bytes."""

    def __init__(self, path: Path, prefix: bytes, file_size: int) -> None:
        self.path, self.prefix, self.file_size = path, prefix, file_size
        self.position = 0

    def error(self, problem: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: {problem}")

    def take(self, nbytes: int, what: str) -> int:
        """Step over `nbytes`; returns where they start."""
        start, end = self.position, self.position + nbytes
        if end > self.file_size:
            raise self.error(
                f"{what} takes {nbytes} bytes but the file has {self.file_size - start} left at byte {start}: "
                "truncated download or damaged file, download it again"
            )
        if end > MAX_HEADER_BYTES:
            raise self.error(f"{what} would make the header larger than {MAX_HEADER_BYTES >> 20} MiB: damaged file")
        if end > len(self.prefix):
            raise _PrefixTooShort
        self.position = end
        return start

    def uint32(self, what: str) -> int:
        value: int = _UINT32.unpack_from(self.prefix, self.take(4, what))[0]
        return value

    def uint64(self, what: str) -> int:
        value: int = _UINT64.unpack_from(self.prefix, self.take(8, what))[0]
        return value

    def count(self, what: str, item_nbytes: int, limit: int) -> int:
        """A uint64 count of items that take at least `item_nbytes` each."""
        count = self.uint64(what)
        if count > limit:
            raise self.error(f"{what} is {count}, more than {limit}: damaged file")
        if count * item_nbytes > self.file_size - self.position:
            raise self.error(
                f"{what} is {count}, more than fits the file's {self.file_size} bytes: truncated or damaged"
            )
        return count

    def string(self, what: str, limit: int = MAX_HEADER_BYTES) -> str:
        length = self.uint64(f"the length of {what}")
        if length > limit:
            raise self.error(f"{what} is {length} bytes long, more than {limit}: damaged file")
        start = self.take(length, what)
        return self.decode(start, self.position, what)

    def decode(self, start: int, end: int, what: str) -> str:
        try:
            return self.prefix[start:end].decode()
        except UnicodeDecodeError as error:
            raise self.error(f"{what} is not valid UTF-8 ({error.reason}): damaged file") from None

    def strings(self, count: int, what: str) -> StringArray:
        """`count` length-prefixed strings."""
        text, packed, self.position = _native.read_strings(self.prefix, self.position, count)
        ends = memoryview(packed).cast("I")
        if len(ends) < count:  # Read the string at fault once more, for its error.
            self.string(f"{what}[{len(ends)}]")
            raise AssertionError("a string that failed to decode decodes")
        return StringArray(text, ends)

    def numbers(self, kind: int, count: int, what: str) -> memoryview[Any]:
        start = self.take(count * _NBYTES[kind], what)
        data = self.prefix[start : self.position]
        if kind == _BOOL and data.translate(None, b"\0\1"):
            raise self.error(f"{what} is a boolean other than 0 and 1: damaged file")
        values: memoryview[Any] = memoryview(data).cast(_NUMBERS[kind])
        return values

    def value(self, what: str) -> MetadataValue:
        kind = self.uint32(f"the type of {what}")
        if kind == _STRING:
            return self.string(what)
        if kind in _NUMBERS:
            number: int | float | bool = self.numbers(kind, 1, what)[0]
            return number
        if kind != _ARRAY:
            raise self.error(f"{what} has the value type {kind}, which does not exist: damaged file")
        return self.array(what)

    def array(self, what: str) -> MetadataValue:
        kind = self.uint32(f"the item type of {what}")
        if kind != _STRING and kind not in _NUMBERS:
            problem = "is an array of arrays, which no model uses" if kind == _ARRAY else f"has the item type {kind}"
            raise self.error(f"{what} {problem}: damaged file")
        item_nbytes = 8 if kind == _STRING else _NBYTES[kind]
        count = self.count(f"the length of {what}", item_nbytes, MAX_ARRAY_LENGTH)
        return self.strings(count, what) if kind == _STRING else self.numbers(kind, count, what)


def _read_header(path: Path) -> GGUFFile:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ModelFileError(f"{path}: not a regular file")
        with path.open("rb", buffering=0) as file:
            nbytes = FIRST_READ_BYTES
            while True:
                file.seek(0)
                prefix = file.read(min(nbytes, status.st_size))
                if len(prefix) < min(nbytes, status.st_size):
                    raise ModelFileError(f"{path}: became shorter while it was read")
                try:
                    return _parse(_Cursor(path, prefix, status.st_size))
                except _PrefixTooShort:
                    nbytes *= 2
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # a path with a NUL character
        raise ModelFileError(f"{str(path)!r}: cannot be read: {error}") from error


def _parse(cursor: _Cursor) -> GGUFFile:
    _check_version(cursor)
    tensor_count = cursor.count("the tensor count", 32, MAX_ENTRIES)
    entry_count = cursor.count("the metadata count", 13, MAX_ENTRIES)
    metadata: dict[str, MetadataValue] = {}
    for index in range(entry_count):
        key = cursor.string(f"metadata key {index}", MAX_KEY_BYTES)
        if key in metadata:
            raise cursor.error(f"metadata {_shown(key)} is there twice: damaged file")
        metadata[key] = cursor.value(f"metadata {_shown(key)}")
    alignment = _alignment(cursor, metadata)
    listed = [_read_tensor(cursor, index) for index in range(tensor_count)]
    tensors = _place(cursor, listed, alignment)
    return GGUFFile(cursor.path, MappingProxyType(metadata), MappingProxyType(tensors))


def _shown(name: str) -> str:
    return repr(name if len(name) <= 80 else name[:77] + "...")


def _check_version(cursor: _Cursor) -> None:
    start = cursor.take(4, "the GGUF magic")
    magic = cursor.prefix[start : start + 4]
    other_order = "the file has big-endian byte order, typebar reads little-endian files: download the ordinary file"
    if magic == b"FUGG":
        raise cursor.error(other_order)
    if magic != b"GGUF":
        raise cursor.error(f"not a GGUF file, {_NOT_GGUF.get(magic, f'it starts with {magic!r}')}")
    version = cursor.uint32("the GGUF version")
    if version and version & 0xFFFF == 0:
        raise cursor.error(other_order)
    if version not in (2, 3):
        raise cursor.error(f"GGUF version {version}, typebar reads versions 2 and 3: convert the model again")


def _alignment(cursor: _Cursor, metadata: Mapping[str, MetadataValue]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 8 <= alignment <= 1 << 20 or alignment & (alignment - 1):
        raise cursor.error(f"general.alignment is {str(alignment)[:80]}, expected a power of two from 8 to 1048576")
    return alignment


def _read_tensor(cursor: _Cursor, index: int) -> tuple[str, BlockType, tuple[int, ...], int]:
    """Name, type, row-major shape and offset in the data section of the next entry of the tensor list."""
    name = cursor.string(f"the name of tensor {index}", MAX_TENSOR_NAME_BYTES)
    what = f"tensor {_shown(name)}"
    num_dims = cursor.uint32(f"the dimension count of {what}")
    if not 1 <= num_dims <= 4:
        raise cursor.error(f"{what} has {num_dims} dimensions, expected 1 to 4: damaged file")
    dims = [cursor.uint64(f"a dimension of {what}") for _ in range(num_dims)]
    if 0 in dims:
        raise cursor.error(f"{what} has the size {dims}, which is empty: damaged file")
    type_number = cursor.uint32(f"the type of {what}")
    block = BLOCK_TYPES.get(type_number)
    if block is None:
        raise cursor.error(
            f"{what} has the type {OTHER_TYPE_NAMES.get(type_number, type_number)}, typebar reads "
            f"{', '.join(known.name for known in BLOCK_TYPES.values())}: use a Q4_K_M, Q8_0 or F16 file of this model"
        )
    if dims[0] % block.length:
        raise cursor.error(
            f"{what} has {dims[0]} columns, not a multiple of the {block.length} of a {block.name} block"
        )
    return name, block, tuple(reversed(dims)), cursor.uint64(f"the offset of {what}")


def _place(
    cursor: _Cursor, listed: list[tuple[str, BlockType, tuple[int, ...], int]], alignment: int
) -> dict[str, FileTensor]:
    """Turn offsets into file positions; every tensor must be aligned, inside the file and apart from the others."""
    data_start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, FileTensor] = {}
    for name, block, shape, offset in listed:
        if name in tensors:
            raise cursor.error(f"tensor {_shown(name)} is there twice: damaged file")
        if offset % alignment:
            raise cursor.error(f"tensor {_shown(name)} has the offset {offset}, not a multiple of {alignment}")
        nbytes = prod(shape) // block.length * block.nbytes
        tensors[name] = FileTensor(name, block.name, shape, cursor.path, data_start + offset, nbytes)
    by_offset = sorted(tensors.values(), key=lambda tensor: tensor.offset)
    for before, after in pairwise(by_offset):
        if before.offset + before.nbytes > after.offset:
            raise cursor.error(f"tensors {_shown(before.name)} and {_shown(after.name)} overlap: damaged file")
    if by_offset and by_offset[-1].offset + by_offset[-1].nbytes > cursor.file_size:
        last = by_offset[-1]
        raise cursor.error(
            f"tensor {_shown(last.name)} ends at byte {last.offset + last.nbytes} but the file has "
            f"{cursor.file_size} bytes: truncated download? Download it again"
        )
    return tensors


def _join_shards(opened: GGUFFile, count: int, name: re.Match[str] | None) -> GGUFFile:
    """All shards of the split model of which `opened` is one."""
    if name is None:
        raise ModelFileError(f"{opened.path}: is one of {count} shards, name it NAME-0000i-of-{count:05}.gguf again")
    if int(name["count"]) != count:
        raise ModelFileError(f"{opened.path}: the name says {int(name['count'])} shards, its metadata {count}")
    paths = [opened.path.with_name(f"{name['stem']}-{n:05}-of-{count:05}.gguf") for n in range(1, count + 1)]
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        raise ModelFileError(f"{opened.path}: shards missing beside it: {', '.join(missing[:5])}: download them")
    tensors: dict[str, FileTensor] = {}
    shards = [opened if path == opened.path else _read_header(path) for path in paths]
    for number, shard in enumerate(shards):
        stated = shard.require("split.no", int), shard.require("split.count", int)
        if stated != (number, count):
            raise ModelFileError(
                f"{shard.path}: its metadata says shard {stated[0] + 1} of {stated[1]}, "
                f"its name {number + 1} of {count}"
            )
        twice = sorted(tensors.keys() & shard.tensors.keys())
        if twice:
            raise ModelFileError(f"{shard.path}: tensor {_shown(twice[0])} is in an earlier shard too")
        tensors.update(shard.tensors)
    total = shards[0].get("split.tensors.count", int)
    if total is not None and total != len(tensors):
        raise ModelFileError(f"{opened.path}: the shards hold {len(tensors)} tensors, the first one says {total}")
    return GGUFFile(opened.path, shards[0].metadata, MappingProxyType(tensors))
