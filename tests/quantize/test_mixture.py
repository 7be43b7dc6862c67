"""Types chosen matrix by matrix: the measurement of each part, the choice, and the file that comes of it."""

import re
from contextlib import contextmanager

import numpy as np
import pytest

from tiny_model import write_tiny_gguf
from typebar.bench.quality import typebar_logits
from typebar.errors import ParameterError, TypebarError
from typebar.eval.divergence import kl_divergence, log_softmax
from typebar.eval.texts import BUILTIN, read_texts, windows
from typebar.model.block_types import bits_a_weight
from typebar.model.checkpoint import open_checkpoint
from typebar.quantize.block_codes import ROUNDINGS
from typebar.quantize.mixture import mixtures
from typebar.quantize.quantize import Request, quantize
from typebar.quantize.rounded_tensor import Source
from typebar.quantize.rounding import round_weights
from typebar.quantize.sensitivity import AS_READ, Part, measure_parts
from typebar.quantize.weights import Weights


@contextmanager
def silent(title, total):
    yield lambda done: None


def random_windows(count=3, length=40):
    return np.random.default_rng(3).integers(0, 288, (count, length)).tolist()


def mean_kl(expected, got):
    return float(np.mean([kl_divergence(log_softmax(p), log_softmax(q)) for p, q in zip(expected, got, strict=True)]))


def rounded_alone(path, names, to):
    """A copy of a float32 model in which these matrices stand for what Q4_0 makes of them."""
    to.write_bytes(path.read_bytes())
    for name in names:
        tensor = open_checkpoint(path).tensors[name]
        values = tensor.read().view(np.float32).reshape(tensor.shape)
        grid = ROUNDINGS["Q4_0"].grid
        with to.open("r+b") as file:
            file.seek(tensor.offset)
            file.write(round_weights(values, grid.bits, grid.group, grid.zero).values().tobytes())
    return to


@pytest.mark.parametrize(("architecture", "tied"), [("qwen2", True), ("llama", False)])
def test_each_part_is_measured_as_if_it_alone_were_rounded(architecture, tied, tmp_path):
    source = write_tiny_gguf(tmp_path / "m.gguf", architecture, tied_embeddings=tied).path
    checkpoint, texts = open_checkpoint(source), random_windows()
    parts = measure_parts(checkpoint, Source(Weights(checkpoint), {}), texts, silent)
    ends = [("embed",)] if tied else [("head",), ("embed",)]
    layers = [("q", "k", "v"), ("o",), ("gate", "up"), ("down",)]
    names = [tuple(f"layers.{index}.{name}" for name in group) for index in range(2) for group in layers]
    assert [tuple(part.types) for part in parts] == ends + names
    usable = checkpoint.usable_vocab
    expected = np.concatenate([typebar_logits(source, window, "f32")[:, :usable] for window in texts])
    for part in parts:
        alone = rounded_alone(source, part.types, tmp_path / "alone.gguf")
        got = np.concatenate([typebar_logits(alone, window, "f32")[:, :usable] for window in texts])
        assert part.divergence["Q4_0"] == pytest.approx(mean_kl(expected, got), rel=0.02), part.types
        assert part.divergence["Q8_0"] < 0.02 * part.divergence["Q4_0"]
        assert part.divergence["Q5_1"] < part.divergence["Q4_1"]


def parts_of(*divergences, weights=320):
    """Parts of a float model whose divergence falls as the square of the step does."""
    steps = {"Q4_0": 1, "Q4_1": 0.9, "Q5_0": 0.25, "Q5_1": 0.22, "Q8_0": 0.004}
    bits = {kind: weights * bits_a_weight(kind) for kind in steps}
    return [
        Part({f"layers.0.{index}": "F32"}, bits, {kind: kl * step for kind, step in steps.items()})
        for index, kl in enumerate(divergences)
    ]


def test_bits_go_where_they_take_away_most():
    parts = parts_of(0.001, 0.1, 0.01)
    first = mixtures(parts)[1]
    assert first.choices[1] != "Q4_0" and (first.choices[0], first.choices[2]) == ("Q4_0", "Q4_0")
    last = mixtures(parts)[-1]
    assert set(last.choices) == {"Q8_0"} and last.bits == 8.5 * 960
    for before, after in zip(mixtures(parts), mixtures(parts)[1:], strict=False):
        assert after.bits > before.bits and after.divergence < before.divergence
        assert after.divergence == pytest.approx(
            sum(p.divergence[t] for p, t in zip(parts, after.choices, strict=True))
        )
        assert after.bits == sum(part.bits[kind] for part, kind in zip(parts, after.choices, strict=True))


def test_what_is_left_of_the_budget_goes_to_smaller_parts():
    parts = [*parts_of(1.0, weights=3200), *parts_of(0.001)]
    found = mixtures(parts, 3200 * 4.5 + 320 * 8.5)[-1]
    assert found.choices == ("Q4_0", "Q8_0")


def test_what_the_source_has_is_a_choice_of_its_own():
    [plain] = parts_of(0.1)
    own = {"layers.0.q": "Q4_K", "layers.0.v": "Q6_K"}
    as_read = Part(own, {**plain.bits, AS_READ: 320 * 5.5}, {**plain.divergence, AS_READ: 0.0})
    assert [found.choices for found in mixtures([as_read])] == [("Q4_0",), (AS_READ,)]
    assert mixtures([as_read])[-1].by_name([as_read]) == own
    small = Part(own, {**plain.bits, AS_READ: 320 * 4.5}, {**plain.divergence, AS_READ: 0.0})
    assert [found.choices for found in mixtures([small])] == [(AS_READ,)]


def written(source, to, **options):
    return quantize(source, Request(to, **options), silent).mixed


def types_of(path):
    return {name: tensor.type for name, tensor in open_checkpoint(path).tensors.items() if len(tensor.shape) == 2}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_tiny_gguf(tmp_path_factory.mktemp("mixed") / "m.gguf").path


@pytest.mark.parametrize(("method", "target"), [("rtn", 5.0), ("awq", 6.0), ("gptq", 5.0)])
def test_file_has_the_bits_asked_for_and_the_divergence_told(method, target, source, tmp_path):
    mixed = written(source, tmp_path / "q.gguf", target_bits=target, method=method)
    found = types_of(tmp_path / "q.gguf")
    assert found == mixed.types and len(set(found.values())) > 1
    shapes = {name: tensor.shape for name, tensor in open_checkpoint(source).tensors.items() if name in found}
    weights = sum(map(np.prod, shapes.values()))
    bits = sum(bits_a_weight(found[name]) * np.prod(shape) for name, shape in shapes.items()) / weights
    assert bits == pytest.approx(mixed.bits) and target - 0.3 < bits <= target
    tokenizer = open_checkpoint(source).build_tokenizer()
    cut = [window for text in read_texts([BUILTIN]) for window in windows(text, tokenizer, 256, 256)]
    logits = [
        np.concatenate([typebar_logits(path, window, "f32") for window in cut])
        for path in (source, tmp_path / "q.gguf")
    ]
    usable = open_checkpoint(source).usable_vocab
    assert mixed.divergence == pytest.approx(mean_kl(*(some[:, :usable] for some in logits)), rel=0.02)
    assert mixed.predictions == len(logits[0])


def test_divergence_asked_for_is_kept(source, tmp_path):
    loose, tight = (written(source, tmp_path / f"{target}.gguf", target_kl=target) for target in (0.02, 0.002))
    assert 0.015 < loose.divergence <= 0.02 and 0.0015 < tight.divergence <= 0.002
    assert 4.5 <= loose.bits < tight.bits <= 8.5
    assert types_of(tmp_path / "0.002.gguf") == tight.types


def test_divergence_that_8_bits_do_not_reach(source, tmp_path):
    with pytest.raises(TypebarError, match=re.escape("--target-kl 1e-09 takes more than the 8 bits of Q8_0")):
        written(source, tmp_path / "q.gguf", target_kl=1e-9)
    assert list(tmp_path.iterdir()) == []


def test_matrices_without_whole_groups_count_as_16_bits(tmp_path):
    source = write_tiny_gguf(tmp_path / "m.gguf", intermediate_size=144).path
    with pytest.raises(ParameterError, match=r"--target-bpw must be \d\.\d+ or more here, got 4\.5"):
        written(source, tmp_path / "q.gguf", target_bits=4.5)
    mixed = written(source, tmp_path / "q.gguf", target_bits=8.0)
    assert types_of(tmp_path / "q.gguf")["layers.0.down"] == "F16" and mixed.bits <= 8.0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"target_bits": 4.4}, "--target-bpw must be bits a weight from 4.5"),
        ({"target_bits": 9.0}, "--target-bpw must be bits a weight from 4.5"),
        ({"target_bits": float("nan")}, "--target-bpw must be bits"),
        ({"target_kl": 0.0}, "--target-kl must be more than 0"),
        ({"target_kl": float("inf")}, "--target-kl must be more than 0"),
        ({"target_bits": 5.0, "target_kl": 0.1}, "--target-kl must be left away with --target-bpw"),
        ({"target_bits": 5.0, "bits": 5}, "--bits must be left away with --target-bpw"),
        ({"target_kl": 0.1, "symmetric": False}, "--asymmetric must be left away with --target-kl"),
    ],
)
def test_targets_out_of_range(options, told, tmp_path):
    with pytest.raises(ParameterError, match=re.escape(told)):
        Request(tmp_path / "q.gguf", **options).check()
    with pytest.raises(ParameterError, match="left away for a folder"):
        Request(tmp_path / "folder", target_bits=5.0).check()


def test_what_has_the_type_already_stays_as_it_is(tmp_path):
    source = write_tiny_gguf(tmp_path / "m.gguf", types={"down": "Q5_0", "gate": "Q4_0", "up": "Q4_0"}).path
    mixed = written(source, tmp_path / "q.gguf", target_bits=8.0)
    before, after = (open_checkpoint(path).tensors for path in (source, tmp_path / "q.gguf"))
    assert {mixed.types[f"layers.{index}.down"] for index in range(2)} == {"Q5_0"}
    assert {mixed.types[f"layers.{index}.{part}"] for index in range(2) for part in ("gate", "up")} == {"Q4_0"}
    for name in ("layers.0.down", "layers.1.gate"):
        assert np.array_equal(before[name].read(), after[name].read())


@pytest.fixture(scope="module")
def k_types(tmp_path_factory):
    types = {"default": "Q5_K", "v": "Q6_K", "down": "Q4_K", "embed": "Q6_K"}
    sizes = {"hidden_size": 256, "head_dim": 64, "intermediate_size": 512}
    return write_tiny_gguf(tmp_path_factory.mktemp("k") / "m.gguf", types=types, **sizes).path


@pytest.mark.parametrize("method", ["rtn", "gptq"])
def test_types_that_are_not_rounded_to_stay_where_they_fit(method, k_types, tmp_path):
    mixed = written(k_types, tmp_path / "q.gguf", target_bits=5.0, method=method)
    before, after = (open_checkpoint(path).tensors for path in (k_types, tmp_path / "q.gguf"))
    assert types_of(tmp_path / "q.gguf") == mixed.types and mixed.bits <= 5.0
    for index in range(2):
        name = f"layers.{index}.down"  # Q4_K takes no more than Q4_0
        assert mixed.types[name] == "Q4_K" and np.array_equal(before[name].read(), after[name].read())


def test_all_stays_where_there_is_room(k_types, tmp_path):
    mixed = written(k_types, tmp_path / "q.gguf", target_bits=7.0)
    before, after = (open_checkpoint(path).tensors for path in (k_types, tmp_path / "q.gguf"))
    assert mixed.divergence < 1e-6 and mixed.types == types_of(k_types)
    assert all(np.array_equal(tensor.read(), after[name].read()) for name, tensor in before.items())
    assert "0  q k v Q5_K/Q5_K/Q6_K  o Q5_K  gate up Q5_K  down Q4_K" in [line.strip() for line in mixed.lines]


@pytest.mark.parametrize("method", ["rtn", "awq", "gptq"])
def test_one_type_for_all_leaves_what_has_no_more_bits(method, k_types, tmp_path):
    quantize(k_types, Request(tmp_path / "q.gguf", method=method), silent)
    before, after = (open_checkpoint(path).tensors for path in (k_types, tmp_path / "q.gguf"))
    assert types_of(tmp_path / "q.gguf") == {
        name: {"embed": "Q6_K", "down": "Q4_K"}.get(name.rpartition(".")[2], "Q4_0") for name in types_of(k_types)
    }
    for name in ("embed", "layers.0.down", "layers.1.down"):
        assert np.array_equal(before[name].read(), after[name].read())
