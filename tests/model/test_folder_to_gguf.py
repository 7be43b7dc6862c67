"""Hugging Face folders written as GGUF files."""

from contextlib import contextmanager

import numpy as np
import pytest

pytest.importorskip("transformers")

from quantizers import awq_config, awq_parts, round_to_nearest, write_quantized_folder
from tiny_folder import write_tiny_folder

from tiny_model import write_tiny_gguf
from typebar.bench.quality import typebar_logits
from typebar.errors import ModelFileError
from typebar.model.checkpoint import open_checkpoint
from typebar.model.dequantize import dequantize
from typebar.model.rope import half_split_rows
from typebar.quantize.quantize import Request, quantize


@contextmanager
def silent(title, total):
    yield lambda done: None


def weights_of(path):
    tensors = open_checkpoint(path).tensors
    return {name: dequantize(tensor.read(), tensor.type, tensor.shape) for name, tensor in tensors.items()}


def in_8_bits(source, to):
    quantize(source, Request(to, bits=8), silent)
    return to


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama"])
def test_folder_becomes_a_file(architecture, tmp_path):
    folder = tmp_path / "folder"
    write_tiny_folder(folder, architecture, tie_word_embeddings=architecture == "qwen3")
    made = in_8_bits(folder, tmp_path / "q.gguf")
    source, new = open_checkpoint(folder), open_checkpoint(made)
    assert new.spec.num_heads == source.spec.num_heads and new.spec.rope == source.spec.rope
    assert new.spec.context_length == source.spec.context_length and new.spec.rms_norm_eps == pytest.approx(1e-6)
    before, after = weights_of(folder), weights_of(made)
    for name, weights in before.items():
        part = name.rsplit(".", 1)[-1]
        got = after[name]
        if new.spec.rope_interleaved and part in ("q", "k"):
            got = got[half_split_rows(new.spec.num_heads if part == "q" else new.spec.num_kv_heads, new.spec.head_dim)]
        assert np.abs(got - weights).max() < 0.01 * np.abs(weights).max(), name
    ours, theirs = source.build_tokenizer(), new.build_tokenizer()
    text = "<|im_start|>The tide is out, isn't it?  数到 12345\n\tdef f(x): return x"
    assert ours.encode(text, parse_special=True) == theirs.encode(text, parse_special=True)
    assert (ours.eos_id, ours.bos_id, ours.add_bos, ours.end_ids) == (
        theirs.eos_id, theirs.bos_id, theirs.add_bos, theirs.end_ids,
    )  # fmt: skip
    assert ours.chat_template == theirs.chat_template and ours.special_ids == theirs.special_ids
    logits, expected = (typebar_logits(path, list(range(40, 80)), "f32") for path in (made, folder))
    assert np.abs(logits - expected).max() < 0.05 * np.abs(expected).max()


def test_scaling_of_llama_3_is_carried_as_divisors(tmp_path):
    folder = tmp_path / "folder"
    scaling = {
        "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }  # fmt: skip
    write_tiny_folder(folder, "llama", rope_parameters=scaling)
    made = in_8_bits(folder, tmp_path / "q.gguf")
    tokens = np.random.default_rng(1).integers(0, 280, 200).tolist()
    logits, expected = (typebar_logits(path, tokens, "f32") for path in (made, folder))
    assert np.abs(logits - expected).max() < 0.05 * np.abs(expected).max()


def test_quantized_folders_are_not_rounded_again(tmp_path):
    def parts(module, weights):
        rounded = round_to_nearest(weights, 4, 32, symmetric=False)
        return awq_parts(rounded), rounded.weights

    write_quantized_folder(tmp_path / "folder", awq_config(32), parts)
    with pytest.raises(ModelFileError, match="quantized already: give the folder with its float weights"):
        in_8_bits(tmp_path / "folder", tmp_path / "q.gguf")
    assert not (tmp_path / "q.gguf").exists()


def test_gemma_is_rounded_from_a_file_without_calibration_only(tmp_path):
    folder, file = tmp_path / "folder", tmp_path / "m.gguf"
    write_tiny_folder(folder, "gemma3_text")
    write_tiny_gguf(file, "gemma3", "Q8_0")
    for source, request in (
        (folder, Request(tmp_path / "a.gguf")),
        (file, Request(tmp_path / "a.gguf", method="awq")),
    ):
        with pytest.raises(
            ModelFileError, match="quantizes Gemma 3 from a GGUF file to a GGUF file only, by --method rtn"
        ):
            quantize(source, request, silent)
    written = open_checkpoint(in_8_bits(file, tmp_path / "a.gguf"))
    assert written.spec == open_checkpoint(file).spec
    np.testing.assert_array_equal(typebar_logits(written.path, [1, 2, 3]), typebar_logits(file, [1, 2, 3]))
