"""The reader of safetensors files, against the safetensors package and against damage."""

import json
import random
import resource
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from typebar.errors import ModelFileError
from typebar.model.safetensors import INDEX_FILE, TYPE_BITS, read_file, read_folder, read_index

ENTRY = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


def build(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    """A file with this header: an object, JSON text, or bytes."""
    text = header if isinstance(header, bytes) else (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def library_accepts(path: Path) -> dict[str, tuple[str, tuple[int, ...]]] | None:
    """Type and shape of each tensor as the package reads them; None where it refuses the file."""
    try:
        with safetensors.safe_open(path, "numpy") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - it is no dictionary
            return {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}
    except Exception:
        return None


def test_reads_what_the_package_writes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors = {
        "f32": rng.standard_normal((3, 5), np.float32),
        "f16": rng.standard_normal((7, 2)).astype(np.float16),
        "a vector of größe": np.arange(6, dtype=np.int64),
        "empty": np.zeros((0, 4), np.float32),
        "scalar": np.array(2.5),
        "flags": np.array([True, False]),
    }
    save_file(tensors, tmp_path / "m.safetensors", {"format": "np"})
    read = read_file(tmp_path / "m.safetensors")
    assert read.keys() == tensors.keys()
    for name, values in tensors.items():
        assert read[name].shape == values.shape
        assert read[name].read().tobytes() == values.tobytes(), name
    assert (read["f32"].type, read["flags"].type, read["scalar"].type) == ("F32", "BOOL", "F64")


def test_knows_every_type_of_the_package(tmp_path: Path) -> None:
    """What the package refuses as unknown is unknown here too, and the sizes agree."""
    for type_name in [*TYPE_BITS, "F128", "f32", ""]:
        entry = {"dtype": type_name, "shape": [8], "data_offsets": [0, TYPE_BITS.get(type_name, 8)]}
        path = tmp_path / "m.safetensors"
        path.write_bytes(build({"a": entry}, bytes(TYPE_BITS.get(type_name, 8))))
        theirs = library_accepts(path)
        if type_name in TYPE_BITS:
            assert theirs == {"a": (type_name, (8,))}
            assert read_file(path)["a"].nbytes == TYPE_BITS[type_name]
        else:
            assert theirs is None
            with pytest.raises(ModelFileError, match="does not exist"):
                read_file(path)


DAMAGED: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "truncated download or not a safetensors file"),
    "length alone": (struct.pack("<Q", 0), "truncated download or not"),
    "length cut": (b"\x10\0\0", "truncated download or not"),
    "header length 2^63": (build({}, length=2**63), "the header takes 9223372036854775808 bytes but the file has 2"),
    "header length 2^64-1": (build({}, length=2**64 - 1), "truncated download or not"),
    "header longer than the file": (build({"a": ENTRY}, length=500), "the header takes 500 bytes but the file has"),
    "header of 9 MiB": (build(b"{" + b" " * (9 << 20) + b"}"), "more than 8 MiB"),
    "git pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n", "git lfs pull"),
    "web page": (b"<!DOCTYPE html><html></html>", "web page"),
    "gguf": (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "not a safetensors file"),
    "pickle": (b"PK\x03\x04" + bytes(40), "not a safetensors file"),
    "not an object": (build(b"[1, 2, 3]"), r"its header starts with b'\['"),
    "white space before": (build(b'  {"a": 1}'), r"its header starts with b' '"),
    "not JSON": (build(b"{'a': 1}"), "not valid JSON"),
    "JSON and more": (build(b'{} {"a": 1}'), "not valid JSON"),
    "not UTF-8": (build(b'{"\xff": 1}'), "not valid JSON"),
    "nested": (build(b'{"a":' * 200_000), "not valid JSON"),
    "endless number": (build(b'{"a": {"dtype": "F32", "shape": [' + b"9" * 10_000 + b"]}}"), "not valid JSON"),
    "twice": (build('{"a": %s, "a": %s}' % ((json.dumps(ENTRY),) * 2), bytes(24)), "'a' is there twice"),
    "type twice": (build('{"a": {"dtype": "F32", "dtype": "F16"}}'), "'dtype' is there twice"),
    "entry a number": (build({"a": 1}), "tensor 'a' has no type and shape"),
    "no type": (build({"a": {"shape": [2], "data_offsets": [0, 8]}}, bytes(8)), "'a' has the type 'None'"),
    "type a list": (build({"a": ENTRY | {"dtype": ["F32"]}}, bytes(24)), r"has the type"),
    "type F8": (build({"a": ENTRY | {"dtype": "F8"}}, bytes(24)), "'a' has the type 'F8', which does not exist"),
    "shape a number": (build({"a": ENTRY | {"shape": 6}}, bytes(24)), "'a' has the shape '6'"),
    "shape negative": (build({"a": ENTRY | {"shape": [-2, -3]}}, bytes(24)), r"'a' has the shape '\[-2, -3\]'"),
    "shape of fractions": (build({"a": ENTRY | {"shape": [2.0, 3]}}, bytes(24)), "'a' has the shape"),
    "shape of booleans": (build({"a": ENTRY | {"shape": [True, 6]}}, bytes(24)), "'a' has the shape"),
    "nine dimensions": (build({"a": ENTRY | {"shape": [1] * 7 + [2, 3]}}, bytes(24)), "'a' has the shape"),
    "shape that overflows": (
        build({"a": ENTRY | {"shape": [2**32, 2**32 + 6]}}, bytes(24)),
        r"does not fit the offsets '\[0, 24\]'",
    ),
    "shape and bytes": (build({"a": ENTRY | {"shape": [2, 4]}}, bytes(24)), r"F32 '\[2, 4\]' does not fit"),
    "digits without end": (
        build({"a": {"dtype": "F32", "shape": [10**4000] * 8, "data_offsets": [0, 10**4000]}}),
        "does not fit",
    ),
    "half a byte": (build({"a": {"dtype": "F4", "shape": [3], "data_offsets": [0, 1]}}, bytes(1)), "does not fit"),
    "offsets reversed": (
        build({"a": ENTRY | {"data_offsets": [24, 0]}}, bytes(24)),
        r"does not fit the offsets '\[24, 0\]'",
    ),
    "offsets three": (build({"a": ENTRY | {"data_offsets": [0, 24, 48]}}, bytes(24)), "'a' has the offsets"),
    "offset negative": (build({"a": ENTRY | {"data_offsets": [-24, 0]}}, bytes(24)), "'a' has the offsets"),
    "gap": (
        build({"a": ENTRY, "b": ENTRY | {"data_offsets": [28, 52]}}, bytes(52)),
        "tensor 'b' leaves 4 bytes after tensor 'a'",
    ),
    "gap at the start": (build({"a": ENTRY | {"data_offsets": [8, 32]}}, bytes(32)), "leaves 8 bytes after the header"),
    "overlap": (build({"a": ENTRY, "b": ENTRY | {"data_offsets": [20, 44]}}, bytes(44)), "'b' overlaps tensor 'a'"),
    "same place": (build({"a": ENTRY, "b": ENTRY}, bytes(24)), "'b' overlaps tensor 'a'"),
    "truncated": (build({"a": ENTRY}, bytes(20)), "truncated download"),
    "trailing byte": (build({"a": ENTRY}, bytes(25)), "its tensors end at byte .* damaged file"),
    "data without tensors": (build({}, bytes(8)), "damaged file"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_named(tmp_path: Path, case: str) -> None:
    data, problem = DAMAGED[case]
    path = tmp_path / "m.safetensors"
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match=rf"m\.safetensors: .*{problem}") as caught:
        read_file(path)
    assert len(str(caught.value)) < 500 + len(str(path))
    # What the package lets through: longer headers, tensors of nine dimensions, and names that are there twice, of
    # which it takes the last.
    if case not in ("header of 9 MiB", "twice", "type twice", "nine dimensions"):
        assert library_accepts(path) is None


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot be read: No such file"):
        read_file(tmp_path / "m.safetensors")
    with pytest.raises(ModelFileError, match="not a regular file"):
        read_file(tmp_path)
    with pytest.raises(ModelFileError, match="cannot be read"):
        read_folder(tmp_path / "nothing")
    with pytest.raises(ModelFileError, match="has no safetensors file"):
        read_folder(tmp_path)
    with pytest.raises(ModelFileError, match="cannot be read"):
        read_file(Path("no\0body"))


def test_hostile_headers_take_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for unit in (b"[],", b"{},"):
        text = b'{"a":[' + unit * ((8 << 20) // len(unit) - 10) + b"0]}"
        path.write_bytes(build(text))
        with pytest.raises(ModelFileError, match="no type and shape"):
            read_file(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 << 10


# Properties

_NAMES = st.text(st.characters(codec="utf-8"), max_size=12).filter(lambda name: name != "__metadata__")
_TYPES = st.sampled_from([type_name for type_name, bits in TYPE_BITS.items() if bits >= 8])
_SHAPES = st.lists(st.integers(0, 4), max_size=4)


@given(
    st.dictionaries(_NAMES, st.tuples(_TYPES, _SHAPES), max_size=6),
    st.permutations(range(6)),
    st.booleans(),
    st.integers(0, 9),
)
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_valid_headers_are_read_as_the_package_reads_them(
    tmp_path: Path, tensors: dict[str, tuple[str, list[int]]], order: list[int], metadata: bool, padding: int
) -> None:
    """Whatever the order of entries and of data, and with spaces after the header."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}} if metadata else {}
    names = sorted(tensors, key=lambda name: order[sorted(tensors).index(name)])
    offsets, end = {}, 0
    for name in names:
        type_name, shape = tensors[name]
        start, end = end, end + int(np.prod(shape, dtype=int)) * TYPE_BITS[type_name] // 8
        offsets[name] = [start, end]
    for name, (type_name, shape) in tensors.items():
        header[name] = {"dtype": type_name, "shape": shape, "data_offsets": offsets[name]}
    data = bytes(index % 251 for index in range(end))
    path = tmp_path / "m.safetensors"
    path.write_bytes(build(json.dumps(header, ensure_ascii=False) + " " * padding, data))
    read = read_file(path)
    assert library_accepts(path) == {name: (tensor.type, tensor.shape) for name, tensor in read.items()}
    for name, (start, stop) in offsets.items():
        assert read[name].read().tobytes() == data[start:stop]


def seeds(tmp_path: Path) -> list[bytes]:
    tensors = {f"layers.{i}.w": np.full((i + 1, 4), i, np.float32) for i in range(4)}
    save_file(tensors, tmp_path / "seed", {"format": "pt"})
    two = {"a": ENTRY, "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]}}
    return [
        (tmp_path / "seed").read_bytes(),
        build(two, bytes(32)),
        build({}),
        build(json.dumps(two) + "   ", bytes(32)),
    ]


def mutate(rng: random.Random, data: bytes) -> bytes:
    """A few random damages: bytes, digits and words of the format in other places, cuts, repeats, other lengths."""
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(damaged) or 1)
        match rng.randrange(7):
            case 0:
                damaged[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                damaged[:8] = struct.pack(
                    "<Q", rng.choice((0, 1, 2, len(data), len(data) - 8, 2**32, 2**63, 2**64 - 1))
                )
            case 2:
                damaged[at : at + 1] = rng.choice((b"0", b"9", b"-", b"1e3", b'"', b"{", b"}", b"[", b"]", b",", b":"))
            case 3:
                words = (b"F32", b"BF16", b"F4", b"shape", b"dtype", b"data_offsets", b"__metadata__", b"null", b"true")
                damaged[at : at + 4] = rng.choice(words)
            case 4:
                del damaged[at : at + rng.randrange(1, 40)]
            case 5:
                damaged[at:at] = damaged[at : at + rng.randrange(1, 100)]
            case 6:
                del damaged[at:]
    # Mostly the length that goes with what is there, so that the JSON is what is tried.
    end = damaged.rfind(b"}") + 1
    if end >= 8 and rng.random() < 0.7:
        damaged[:8] = struct.pack("<Q", end - 8)
    return bytes(damaged)


def test_damaged_files_give_only_model_file_errors_and_no_more_is_accepted_than_by_the_package(tmp_path: Path) -> None:
    rng, path, accepted = random.Random(7), tmp_path / "m.safetensors", 0
    files = seeds(tmp_path)
    for number in range(3000):
        path.write_bytes(mutate(rng, rng.choice(files)) if number >= len(files) else files[number])
        try:
            read = read_file(path)
        except ModelFileError:
            assert number >= len(files), "a seed must be a valid file"
            continue
        accepted += 1
        assert library_accepts(path) == {name: (tensor.type, tensor.shape) for name, tensor in read.items()}
        for tensor in read.values():
            assert tensor.read().size == tensor.nbytes
    assert 100 < accepted < 2000, "mutations should break most files, but not all"


# Folders

A, B = {"a": np.ones((2, 3), np.float32)}, {"b": np.zeros(4, np.float16)}


def write_index(folder: Path, weight_map: object) -> None:
    (folder / INDEX_FILE).write_text(json.dumps({"metadata": {"total_size": 32}, "weight_map": weight_map}))


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A folder of two shards, with tensors that the index does not list."""
    save_file(A, tmp_path / "one.safetensors")
    save_file(B | {"extra": np.ones(1)}, tmp_path / "two.safetensors")
    write_index(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    return tmp_path


def test_shards_hold_what_the_index_lists(shards: Path) -> None:
    read = read_folder(shards)
    assert {name: tensor.path.name for name, tensor in read.items()} == {"a": "one.safetensors", "b": "two.safetensors"}


def test_single_file_wins_over_an_index(shards: Path) -> None:
    """As for transformers."""
    save_file({"c": np.ones(3)}, shards / "model.safetensors")
    assert list(read_folder(shards)) == ["c"]


def test_only_file_needs_no_index(tmp_path: Path) -> None:
    save_file(A, tmp_path / "weights.safetensors")
    assert list(read_folder(tmp_path)) == ["a"]


@pytest.mark.parametrize(
    ("weight_map", "problem"),
    [
        ({"a": "two.safetensors", "b": "two.safetensors"}, "two.safetensors: tensor 'a' is not there, where .*index"),
        ({"a": "one.safetensors", "c": "two.safetensors"}, "two.safetensors: tensor 'c' is not there"),
        ({"a": "three.safetensors"}, "files missing: three.safetensors"),
        ({"a": "../one.safetensors"}, "tensor 'a' is in '../one.safetensors', which is not the name"),
        ({"a": "/etc/passwd"}, "'/etc/passwd', which is not the name"),
        ({"a": "sub/one.safetensors"}, "which is not the name"),
        ({"a": ".one.safetensors"}, "which is not the name"),
        ({"a": "one.bin"}, "which is not the name of a safetensors file"),
        ({"a": 1}, "tensor 'a' is in '1'"),
        ({}, "'weight_map' is not an object"),
        (["a"], "'weight_map' is not an object"),
        (None, "'weight_map' is not an object"),
    ],
)
def test_index_that_does_not_fit_is_named(shards: Path, weight_map: object, problem: str) -> None:
    write_index(shards, weight_map)
    with pytest.raises(ModelFileError, match=problem):
        read_folder(shards)


def test_damaged_index_is_named(shards: Path) -> None:
    for text in ("", "{", "[]", '{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', "[" * 100_000):
        (shards / INDEX_FILE).write_text(text)
        with pytest.raises(ModelFileError, match=rf"{INDEX_FILE}: "):
            read_index(shards / INDEX_FILE)
