import math
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize as reference_dequantize

import gguf_bytes as gb
import typebar.model.gguf as reader
from tiny_model import write_tiny_gguf
from typebar.errors import ModelFileError
from typebar.model.block_types import BY_NAME, tensor_nbytes
from typebar.model.dequantize import dequantize
from typebar.model.gguf import GGUFFile
from typebar.model.strings import StringArray

F32_ROW = gb.Tensor("t", (8,))


@pytest.fixture
def write(tmp_path: Path):
    def write(data: bytes, name: str = "model.gguf") -> Path:
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write


@pytest.mark.parametrize("version", [2, 3])
def test_reads_every_metadata_type(write, version):
    scalars = {
        gb.UINT8: 255, gb.INT8: -128, gb.UINT16: 65535, gb.INT16: -32768, gb.UINT32: 2**32 - 1, gb.INT32: -(2**31),
        gb.FLOAT32: 0.5, gb.UINT64: 2**64 - 1, gb.INT64: -(2**63), gb.FLOAT64: math.pi, gb.STRING: "größe\0日本🎉",
    }  # fmt: skip
    entries = [(f"scalar.{kind}", gb.scalar(kind, value)) for kind, value in scalars.items()]
    entries += [(f"array.{kind}", gb.array(kind, [value, value])) for kind, value in scalars.items()]
    entries += [("yes", gb.scalar(gb.BOOL, 1)), ("no", gb.scalar(gb.BOOL, 0)), ("bools", gb.array(gb.BOOL, [1, 0]))]
    entries += [("empty", gb.array(gb.STRING, [])), ("empty.numbers", gb.array(gb.FLOAT64, []))]
    metadata = GGUFFile.open(write(gb.build(entries, version=version))).metadata
    for kind, value in scalars.items():
        assert metadata[f"scalar.{kind}"] == value
        assert type(metadata[f"scalar.{kind}"]) is type(value)
        assert list(metadata[f"array.{kind}"]) == [value, value]
    assert metadata["yes"] is True
    assert metadata["no"] is False
    assert metadata["bools"].tolist() == [True, False]
    assert metadata["empty"] == []
    assert len(metadata["empty.numbers"]) == 0


def test_places_tensors_by_the_files_alignment(write):
    tensors = [gb.Tensor("a", (32, 3), 2, 128), gb.Tensor("b", (8,), 0, 0)]
    data = bytes(range(32)) + bytes(96) + bytes(range(54))
    path = write(gb.build([("general.alignment", gb.scalar(gb.UINT32, 64))], tensors, data, alignment=64))
    gguf = GGUFFile.open(path)
    a, b = gguf.tensors["a"], gguf.tensors["b"]
    assert (a.type, a.shape, a.nbytes) == ("Q4_0", (3, 32), 54)
    assert (b.type, b.shape, b.nbytes) == ("F32", (8,), 32)
    assert a.read().tolist() == list(range(54))
    assert b.read().tolist() == list(range(32))


def test_a_header_longer_than_the_first_read(write, monkeypatch):
    path = write_tiny_gguf(write(b"")).path
    whole = GGUFFile.open(path)
    monkeypatch.setattr(reader, "FIRST_READ_BYTES", 7)
    again = GGUFFile.open(path)
    assert again.tensors == whole.tensors
    assert again.metadata.keys() == whole.metadata.keys()
    assert again.metadata["tokenizer.ggml.tokens"] == whole.metadata["tokenizer.ggml.tokens"]


def test_keeps_no_file_open(write):
    path = write_tiny_gguf(write(b"")).path
    before = len(list(Path("/proc/self/fd").iterdir()))
    gguf = GGUFFile.open(path)
    assert gguf.tensors
    assert str(path) not in Path("/proc/self/maps").read_text()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("type_name", BY_NAME)
def test_dequantizes_as_ggml_does_bit_for_bit(type_name):
    block, rows = BY_NAME[type_name], 64
    columns = 512 if block.length > 1 else 256
    raw = np.random.default_rng(1).integers(0, 256, (rows, columns // block.length * block.nbytes), np.uint8)
    with np.errstate(all="ignore"):
        ours = dequantize(raw.ravel(), type_name, (rows, columns))
        theirs = reference_dequantize(raw, GGMLQuantizationType[type_name])
    assert ours.shape == (rows, columns)
    assert ours.dtype == np.float32
    both_nan = np.isnan(ours) & np.isnan(theirs)
    assert ((ours.view(np.uint32) == theirs.astype(np.float32).view(np.uint32)) | both_nan).all()


def test_dequantize_refuses_wrong_sizes_and_types():
    with pytest.raises(ValueError, match="18 bytes, not 17"):
        dequantize(np.zeros(17, np.uint8), "Q4_0", (1, 32))
    with pytest.raises(ValueError, match="33 columns"):
        dequantize(np.zeros(18, np.uint8), "Q4_0", (1, 33))
    with pytest.raises(ValueError, match="IQ2_S"):
        dequantize(np.zeros(18, np.uint8), "IQ2_S", (1, 256))
    assert tensor_nbytes("Q6_K", (3, 512)) == 3 * 2 * 210


ONE = gb.scalar(gb.UINT32, 1)
BROKEN = {
    "empty file": (b"", "the GGUF magic"),
    "other magic": (gb.build(magic=b"GGUG"), "not a GGUF file"),
    "LFS pointer": (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    "web page": (b"<!DOCTYPE html>", "web page"),
    "big-endian magic": (gb.build(magic=b"FUGG"), "big-endian"),
    "big-endian version": (b"GGUF\0\0\0\3" + bytes(16), "big-endian"),
    "big-endian version 2": (b"GGUF\0\0\0\2" + bytes(16), "big-endian"),
    **{f"version {n}": (gb.build(version=n), f"GGUF version {n}") for n in (0, 1, 4, 99)},
    "2^40 tensors": (gb.build(tensor_count=2**40), "tensor count is 1099511627776"),
    "60000 tensors in a short file": (gb.build(tensor_count=60_000), "tensor count is 60000, more than fits"),
    "2^63 entries": (gb.build(metadata_count=2**63), "metadata count is 9223372036854775808"),
    "entry missing": (gb.build([("a", ONE)], metadata_count=2), "truncated|more than fits"),
    "key of 2^64-1 bytes": (gb.build([], metadata_count=1) + b"\xff" * 8 + bytes(40), "metadata key 0 is 18446744"),
    "key beyond the file": (gb.build([], metadata_count=1) + gb.string("x" * 99)[:60], "metadata key 0 takes 99 bytes"),
    "key twice": (gb.build([("a", ONE), ("a", ONE)]), "metadata 'a' is there twice"),
    "key not UTF-8": (gb.build([(b"\xff\xfe", ONE)]), "metadata key 0 is not valid UTF-8"),
    "value not UTF-8": (gb.build([("a", gb.scalar(gb.STRING, b"\xc3("))]), "metadata 'a' is not valid UTF-8"),
    "item not UTF-8": (gb.build([("a", gb.array(gb.STRING, ["ü", b"\xc3("]))]), r"'a'\[1\] is not valid UTF-8"),
    "item beyond the file": (
        gb.build([("a", gb.array(gb.STRING, ["ü", "b"]))])[:-9] + b"\xff" * 8 + b"b",
        r"metadata 'a'\[1\] is 18446744",
    ),
    "value type 13": (gb.build([("a", b"\x0d\0\0\0" + bytes(8))]), "value type 13"),
    "item type 13": (gb.build([("a", gb.array(gb.UINT8, [])[:4] + b"\x0d\0\0\0" + bytes(8))]), "item type 13"),
    "array of arrays": (gb.build([("a", (b"\x09\0\0\0" * 1000) + bytes(8))]), "array of arrays"),
    "2^61 items": (gb.build([("a", gb.array(gb.UINT64, [1], 2**61))]), "length of metadata 'a' is 2305843009213693952"),
    "more items than bytes": (gb.build([("a", gb.array(gb.UINT32, [1], 1000))]), "1000, more than fits"),
    "more strings than bytes": (gb.build([("a", gb.array(gb.STRING, ["b"], 10**6))]), "1000000, more than fits"),
    "boolean 2": (gb.build([("a", gb.scalar(gb.BOOL, 2))]), "metadata 'a' is a boolean other than"),
    **{
        f"alignment {value}": (
            gb.build([("general.alignment", gb.scalar(gb.UINT32, value))], [F32_ROW], bytes(64)),
            f"general.alignment is {value}",
        )
        for value in (0, 1, 3, 4, 48, 2**31)
    },
    "alignment of another type": (
        gb.build([("general.alignment", gb.scalar(gb.FLOAT32, 32.0))], [F32_ROW], bytes(64)),
        "general.alignment",
    ),
    "alignment true": (gb.build([("general.alignment", gb.scalar(gb.BOOL, 1))], [F32_ROW], bytes(64)), "alignment"),
    "no dimensions": (gb.build((), [gb.Tensor("t", ())], bytes(64)), "'t' has 0 dimensions"),
    "9 dimensions": (gb.build((), [gb.Tensor("t", (1,) * 9)], bytes(64)), "'t' has 9 dimensions"),
    "empty dimension": (gb.build((), [gb.Tensor("t", (8, 0))], bytes(64)), r"'t' has the size \[8, 0\]"),
    "dimension of 2^42+1": (gb.build((), [gb.Tensor("t", (2**42 + 1,))], bytes(64)), "truncated download"),
    "product beyond 2^64": (gb.build((), [gb.Tensor("t", (2**33, 2**33))], bytes(64)), "truncated download"),
    "product of exactly 2^64": (gb.build((), [gb.Tensor("t", (2**32, 2**32))], bytes(64)), "truncated download"),
    "Q2_K": (gb.build((), [gb.Tensor("blk.3.q", (256,), 10)], bytes(256)), "'blk.3.q' has the type Q2_K, .*Q4_K_M"),
    "unknown type": (gb.build((), [gb.Tensor("t", (256,), 4)], bytes(256)), "'t' has the type 4,"),
    "896 columns as Q4_K": (gb.build((), [gb.Tensor("t", (896, 2), 12)], bytes(9999)), "896 columns"),
    "tensor twice": (gb.build((), [F32_ROW, F32_ROW], bytes(64)), "tensor 't' is there twice"),
    "tensor name not UTF-8": (gb.build((), [gb.Tensor(b"\xff", (8,))], bytes(64)), "name of tensor 0 is not valid"),
    "tensor name too long": (gb.build((), [gb.Tensor("n" * 65, (8,))], bytes(64)), "65 bytes long, more than 64"),
    "offset not aligned": (gb.build((), [gb.Tensor("t", (8,), 0, 8)], bytes(64)), "offset 8, not a multiple of 32"),
    "offset 2^64-32": (gb.build((), [gb.Tensor("t", (8,), 0, 2**64 - 32)], bytes(64)), "'t' ends at byte 184467440737"),
    "one byte short": (gb.build((), [F32_ROW], bytes(31)), "'t' ends at byte 96 but the file has 95 bytes: truncated"),
    "no data": (gb.build((), [F32_ROW]), "truncated"),
    "overlap": (gb.build((), [F32_ROW, gb.Tensor("u", (16,))], bytes(64)), "overlap"),
    "overlap by a part": (
        gb.build((), [gb.Tensor("t", (16,)), gb.Tensor("u", (8,), 0, 32)], bytes(64)),
        "'t' and 'u' overlap",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_broken_file_gives_an_error_that_names_the_fault(write, case):
    data, problem = BROKEN[case]
    path = write(data)
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError, match=problem) as raised:
            GGUFFile.open(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert str(path) in str(raised.value)
    assert len(str(raised.value)) < 600
    assert peak < 1 << 20, "memory was taken on the word of a damaged file"


def test_every_truncation_is_found(write):
    tensors = [gb.Tensor("a", (32, 3), 2, 0), gb.Tensor("b", (8,), 0, 64)]
    entries = [("name", gb.scalar(gb.STRING, "Ġü")), ("list", gb.array(gb.STRING, ["a", "日本"])), ("n", ONE)]
    data = gb.build(entries, tensors, bytes(96))
    assert len(GGUFFile.open(write(data)).tensors) == 2
    for length in range(len(data)):
        with pytest.raises(ModelFileError):
            GGUFFile.open(write(data[:length]))


def test_truncated_model_says_expected_and_actual_size(write):
    path = write_tiny_gguf(write(b"")).path
    size = path.stat().st_size
    os.truncate(path, size - 1000)
    with pytest.raises(ModelFileError, match=f"ends at byte {size} but the file has {size - 1000} bytes: truncated"):
        GGUFFile.open(path)


def test_a_file_cut_after_it_was_opened_gives_an_error_and_no_signal(write):
    path = write_tiny_gguf(write(b"")).path
    gguf = GGUFFile.open(path)
    last = max(gguf.tensors.values(), key=lambda tensor: tensor.offset)
    os.truncate(path, last.offset + 10)
    with pytest.raises(ModelFileError, match="10 of the"):
        last.read()
    path.unlink()
    with pytest.raises(ModelFileError, match="cannot be read"):
        last.read()


def test_header_beyond_the_limit_is_refused(write, monkeypatch):
    path = write(gb.build([("a", gb.scalar(gb.STRING, "x" * 5000))]))
    monkeypatch.setattr(reader, "MAX_HEADER_BYTES", 4096)
    with pytest.raises(ModelFileError, match="metadata 'a' would make the header larger than"):
        GGUFFile.open(path)


def test_things_that_are_not_files(tmp_path):
    os.mkfifo(tmp_path / "fifo.gguf")
    for path in (tmp_path, tmp_path / "fifo.gguf"):
        with pytest.raises(ModelFileError, match="not a regular file"):
            GGUFFile.open(path)
    with pytest.raises(ModelFileError, match=r"absent\.gguf: cannot be read: No such file"):
        GGUFFile.open(tmp_path / "absent.gguf")
    with pytest.raises(ModelFileError, match="cannot be read"):
        GGUFFile.open("a\0b")


def test_typed_access(write):
    gguf = GGUFFile.open(
        write(gb.build([("n", ONE), ("yes", gb.scalar(gb.BOOL, 1)), ("s", gb.array(gb.STRING, ["a"]))]))
    )
    assert gguf.require("n", int) == 1
    assert gguf.require("s", StringArray) == ["a"]
    assert gguf.get("absent", int) is None
    for key, kind in (("n", bool), ("n", float), ("n", str), ("yes", int), ("s", str)):
        with pytest.raises(ModelFileError, match=f"metadata '{key}' is .*expected {kind.__name__}"):
            gguf.get(key, kind)
    with pytest.raises(ModelFileError, match="'absent' is missing"):
        gguf.require("absent", int)


def test_strings_are_made_when_asked_for():
    texts = ["größe", "", "a\0b", "日本🎉"]
    strings = StringArray.of(texts)
    assert list(strings) == texts and strings == texts and strings == StringArray.of(texts)
    assert [strings[i] for i in range(4)] == texts and strings[-1] == "日本🎉" and strings[1:] == texts[1:]
    assert strings != texts[:3] and "日本🎉" in strings and strings.index("a\0b") == 2
    assert len(StringArray.of([])) == 0 and StringArray.of([]) == []
    for outside in (4, -5):
        with pytest.raises(IndexError):
            strings[outside]


def test_split_model_opens_from_any_shard(tmp_path):
    whole = write_tiny_gguf(tmp_path / "whole.gguf", types="Q8_0")
    split = write_tiny_gguf(tmp_path / "split.gguf", types="Q8_0", tensors_per_shard=7)
    shards = sorted(tmp_path.glob("split-*"))
    assert len(shards) == 4
    expected = GGUFFile.open(whole.path)
    for shard in shards:
        gguf = GGUFFile.open(shard)
        assert gguf.metadata["tokenizer.ggml.tokens"] == expected.metadata["tokenizer.ggml.tokens"]
        assert {t.path for t in gguf.tensors.values()} == set(shards)
        for name, tensor in expected.tensors.items():
            assert (gguf.tensors[name].read() == tensor.read()).all()
    assert split.path == shards[0]


def _shards(folder: Path, stated: list[tuple[int, int]], names: list[tuple[int, int]], total: int = 2) -> Path:
    for (number, count), (file_number, file_count) in zip(stated, names, strict=True):
        entries = [("split.no", gb.scalar(gb.UINT16, number)), ("split.count", gb.scalar(gb.UINT16, count))]
        entries.append(("split.tensors.count", gb.scalar(gb.INT32, total)))
        data = gb.build(entries, [gb.Tensor(f"t{number}", (8,))], bytes(32))
        (folder / f"m-{file_number:05}-of-{file_count:05}.gguf").write_bytes(data)
    return folder / f"m-{names[0][0]:05}-of-{names[0][1]:05}.gguf"


@pytest.mark.parametrize(
    ("stated", "names", "total", "problem"),
    [
        ([(0, 2)], [(1, 2)], 2, "shards missing beside it: m-00002-of-00002.gguf"),
        ([(1, 2)], [(2, 2)], 2, "shards missing beside it: m-00001-of-00002.gguf"),
        ([(0, 3), (1, 3)], [(1, 2), (2, 2)], 2, "name says 2 shards, its metadata 3"),
        ([(0, 2), (1, 3)], [(1, 2), (2, 2)], 2, "says shard 2 of 3, its name 2 of 2"),
        ([(0, 2), (0, 2)], [(1, 2), (2, 2)], 2, "says shard 1 of 2, its name 2 of 2"),
        ([(1, 2), (0, 2)], [(1, 2), (2, 2)], 2, "says shard 2 of 2, its name 1 of 2"),
        ([(0, 2), (1, 2)], [(1, 2), (2, 2)], 3, "hold 2 tensors, the first one says 3"),
        ([(0, 1), (1, 1)], [(1, 2), (2, 2)], 2, "name says 2 shards, its metadata 1"),
    ],
)
def test_shards_that_disagree(tmp_path, stated, names, total, problem):
    with pytest.raises(ModelFileError, match=problem):
        GGUFFile.open(_shards(tmp_path, stated, names, total))


def test_shards_that_share_a_tensor_or_lost_their_name(tmp_path):
    path = _shards(tmp_path, [(0, 2), (1, 2)], [(1, 2), (2, 2)])
    assert set(GGUFFile.open(path).tensors) == {"t0", "t1"}
    second = tmp_path / "m-00002-of-00002.gguf"
    second.write_bytes(second.read_bytes().replace(b"t1", b"t0"))
    with pytest.raises(ModelFileError, match="tensor 't0' is in an earlier shard too"):
        GGUFFile.open(path)
    with pytest.raises(ModelFileError, match="is one of 2 shards"):
        GGUFFile.open(path.rename(tmp_path / "renamed.gguf"))
