"""A strict reader of safetensors files, one or a folder of shards with an index.

Format: https://huggingface.co/docs/safetensors/index#format. A file is a little-endian u64, the length of a JSON header
that names each tensor's type, shape and range of bytes, and the data, which those ranges must cover without a gap or an
overlap. As in gguf.py nothing is mapped and nothing is believed before it is checked; tensor data is read later from
`(tensor.path, tensor.offset)`.
"""

import json
import re
import stat
from collections import Counter
from collections.abc import Collection, Mapping
from math import prod
from pathlib import Path
from typing import Any

from typebar.errors import ModelFileError
from typebar.model.tensor import FileTensor

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

# A model of 1024 layers takes 2 MB. What JSON of this length can be made to take in Python stays below 300 MB.
MAX_HEADER_BYTES = 8 << 20
MAX_DIMENSIONS = 8
MAX_ELEMENTS = 1 << 48

# Bits of an element.
TYPE_BITS: dict[str, int] = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E5M2FNUZ": 8,
    "F8_E4M3FNUZ": 8, "F8_E8M0": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
_NOT_SAFETENSORS = {
    b"version ": "it is a Git LFS pointer: run `git lfs pull`",
    b"<!DOCTYP": "it is a web page: the download gave an error page",
    b"<!doctyp": "it is a web page: the download gave an error page",
}
_SHARD_NAME = re.compile(r"[A-Za-z0-9][\w.-]*\.safetensors", re.ASCII)


def read_file(path: Path) -> dict[str, FileTensor]:
    """The tensors of one file, by name.

    Raises ModelFileError, naming the tensor at fault, for a file that is missing, damaged or truncated.
    """
    header, data_start, data_bytes = _read_header(path)
    listed = {name: _tensor(path, name, entry, data_start) for name, entry in header.items() if name != "__metadata__"}
    _check_cover(path, listed.values(), data_start, data_bytes)
    return listed


def read_folder(folder: Path) -> dict[str, FileTensor]:
    """The tensors of a model's folder, by name: of `model.safetensors`, or of the shards that the index lists.

    Raises ModelFileError as read_file, also where a shard is missing or lacks a tensor that the index puts there.
    """
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError as error:
        raise ModelFileError(f"{folder}: cannot be read: {error.strerror}") from error
    files = weight_files(folder, names)
    missing = [name for name in files if name not in names]
    if missing:
        raise ModelFileError(f"{folder}: files missing: {', '.join(missing[:5])}: download them")
    shards = {name: read_file(folder / name) for name in files}
    if SINGLE_FILE in names or INDEX_FILE not in names:
        return shards[files[0]]
    return {name: _listed(folder, shards, name, file) for name, file in read_index(folder / INDEX_FILE).items()}


def _listed(folder: Path, shards: Mapping[str, Mapping[str, FileTensor]], name: str, file: str) -> FileTensor:
    tensor = shards[file].get(name)
    if tensor is None:
        raise ModelFileError(
            f"{folder / file}: tensor {_shown(name)} is not there, where {INDEX_FILE} puts it: download both again"
        )
    return tensor


def weight_files(folder: Path, names: Collection[str]) -> list[str]:
    """Which of the files `names` hold the weights: `model.safetensors`, the shards of the index, or the only one.

    An index that is among `names` must lie in `folder`; shards that it lists may be missing. Raises ModelFileError.
    """
    if SINGLE_FILE in names:
        return [SINGLE_FILE]
    if INDEX_FILE in names:
        return sorted(set(read_index(folder / INDEX_FILE).values()))
    files = sorted(name for name in names if name.endswith(".safetensors"))
    if len(files) == 1:
        return files
    problem = f"has {len(files)} safetensors files but no {INDEX_FILE}" if files else "has no safetensors file"
    raise ModelFileError(f"{folder}: {problem}: download the whole folder again")


def read_index(path: Path) -> dict[str, str]:
    """Tensor → file of an index. ModelFileError where it is damaged or names a file outside its folder."""
    index = parse_object(path, read_prefix(path, MAX_HEADER_BYTES + 1))
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFileError(f"{path}: 'weight_map' is not an object that says where each tensor is: download it again")
    for name, file in weight_map.items():
        if not isinstance(file, str) or not _SHARD_NAME.fullmatch(file):
            raise ModelFileError(
                f"{path}: tensor {_shown(name)} is in {_shown(str(file))}, "
                "which is not the name of a safetensors file in this folder"
            )
    return weight_map


def parse_object(path: Path, text: bytes) -> dict[str, Any]:
    """A JSON object in which no name is there twice. ModelFileError that names `path`."""
    if len(text) > MAX_HEADER_BYTES:
        raise ModelFileError(f"{path}: the JSON text is longer than {MAX_HEADER_BYTES >> 20} MiB: damaged file")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
            raise ModelFileError(f"{path}: {_shown(twice)} is there twice: damaged file")
        return found

    try:
        parsed = json.loads(text.decode(), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: not valid JSON ({_shown(str(error))}): damaged file") from error
    if not isinstance(parsed, dict):
        raise ModelFileError(f"{path}: the JSON text is not an object: damaged file")
    return parsed


def read_prefix(path: Path, nbytes: int, start: int = 0) -> bytes:
    """Up to `nbytes` bytes from `start` on."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ModelFileError(f"{path}: not a regular file")
        with path.open("rb", buffering=0) as file:
            file.seek(start)
            return file.read(nbytes)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # a path with a NUL character
        raise ModelFileError(f"{str(path)!r}: cannot be read: {error}") from error


def _read_header(path: Path) -> tuple[dict[str, Any], int, int]:
    """The header, where the data starts and how long it is."""
    first = read_prefix(path, 9)
    if first[:8] in _NOT_SAFETENSORS:
        raise ModelFileError(f"{path}: not a safetensors file, {_NOT_SAFETENSORS[first[:8]]}")
    size = path.stat().st_size
    length = int.from_bytes(first[:8], "little")
    if len(first) < 9 or length > size - 8:
        raise ModelFileError(
            f"{path}: the header takes {length} bytes but the file has {max(0, size - 8)} after its length: "
            "truncated download or not a safetensors file, download it again"
        )
    if length > MAX_HEADER_BYTES:
        raise ModelFileError(
            f"{path}: the header takes {length} bytes, more than {MAX_HEADER_BYTES >> 20} MiB: damaged file"
        )
    if first[8:] != b"{":
        raise ModelFileError(f"{path}: not a safetensors file, its header starts with {first[8:]!r}")
    text = read_prefix(path, length, 8)
    if len(text) < length:
        raise ModelFileError(f"{path}: became shorter while it was read")
    return parse_object(path, text), 8 + length, size - 8 - length


def _tensor(path: Path, name: str, entry: Any, data_start: int) -> FileTensor:
    def error(problem: str) -> ModelFileError:
        return ModelFileError(f"{path}: tensor {_shown(name)} {problem}: damaged file")

    if not isinstance(entry, dict):
        raise error("has no type and shape")
    type_name, shape, range_ = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(type_name, str) or type_name not in TYPE_BITS:
        raise error(f"has the type {_shown(str(type_name))}, which does not exist")
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS or not all(map(_is_count, shape)):
        raise error(f"has the shape {_shown(str(shape))}")
    if not isinstance(range_, list) or len(range_) != 2 or not all(map(_is_count, range_)):
        raise error(f"has the offsets {_shown(str(range_))}")
    elements, (start, end) = prod(shape), range_
    if elements > MAX_ELEMENTS or elements * TYPE_BITS[type_name] != (end - start) * 8:
        raise error(f"of {type_name} {_shown(str(shape))} does not fit the offsets {_shown(str(range_))}")
    return FileTensor(name, type_name, tuple(shape), path, data_start + start, end - start)


def _check_cover(path: Path, tensors: Collection[FileTensor], data_start: int, data_bytes: int) -> None:
    """Every byte of data belongs to one tensor."""
    end, before = data_start, "the header"
    for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.nbytes)):
        if tensor.offset != end:
            how = "overlaps" if tensor.offset < end else f"leaves {tensor.offset - end} bytes after"
            raise ModelFileError(f"{path}: tensor {_shown(tensor.name)} {how} {before}: damaged file")
        end, before = end + tensor.nbytes, f"tensor {_shown(tensor.name)}"
    stated, there = end, data_start + data_bytes
    if stated != there:
        remedy = "truncated download? Download it again" if stated > there else "damaged file, download it again"
        raise ModelFileError(f"{path}: its tensors end at byte {stated} but the file has {there} bytes: {remedy}")


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
