"""Logits against the truth: transformers in float32 on the real model, a float64 forward pass on tiny ones."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tiny_model import WINDOW, TinyModel, tiny_forward, write_tiny_gguf
from typebar.bench.quality import sequence_logits, typebar_logits
from typebar.bench.reference import Reference, divergence, mixed_tokens, reference, transformers_model
from typebar.engine.blocks import blocks_for
from typebar.eval.divergence import log_softmax
from typebar.model.load import load_model
from typebar.model.rope import RopeSpec

QUANTIZED = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]


def truth(model: TinyModel, tokens: list[int]) -> np.ndarray:
    """In double precision but for keys and values, which typebar keeps in f16."""
    return tiny_forward(model, tokens, np.float16).astype(np.float32)


def random_tokens(model: TinyModel, count: int, seed: int = 1) -> list[int]:
    return np.random.default_rng(seed).integers(0, model.spec.vocab_size, count).tolist()


def relative_error(logits: np.ndarray, expected: np.ndarray) -> float:
    """The largest error relative to the largest logit."""
    return float(np.abs(logits - expected).max() / np.abs(expected).max())


def as_reference(logits: np.ndarray) -> Reference:
    return Reference(logits, logits.argmax(axis=-1).astype(np.int32))


def test_real_model_equals_transformers(coder_path: Path) -> None:
    tokens = mixed_tokens(coder_path)
    result = divergence(reference(coder_path, tokens), typebar_logits(coder_path, tokens))
    assert result.mean_kl <= 0.01, result
    assert result.same_top_percent >= 97, result


def test_llama_model_equals_transformers(smollm_path: Path) -> None:
    tokens = mixed_tokens(smollm_path, 256)
    result = divergence(reference(smollm_path, tokens), typebar_logits(smollm_path, tokens))
    assert result.mean_kl <= 0.01, result
    assert result.same_top_percent >= 95, result


def test_gemma_model_equals_transformers_beyond_its_window(gemma_path: Path) -> None:
    """The last 48 tokens of a text longer than the window of 512, which all layers but three have."""
    import torch

    tokens = mixed_tokens(gemma_path, 600)
    with torch.inference_mode():
        logits = transformers_model(gemma_path)(torch.tensor([tokens]), logits_to_keep=48).logits[0]
    loaded = load_model(gemma_path, max_model_len=640, max_num_seqs=1)
    table = np.arange(blocks_for(640), dtype=np.int32)[None]

    def arrays(begin: int, end: int) -> tuple[np.ndarray, ...]:
        part = np.array(tokens[begin:end], np.int32)
        return part, np.array([len(part)], np.int32), np.array([begin], np.int32), table

    for begin in (0, 276):
        loaded.native.step(*arrays(begin, begin + 276), [None])
    result = divergence(as_reference(logits.log_softmax(-1).numpy()), loaded.native.logits(*arrays(552, 600)))
    assert result.mean_kl <= 0.01, result
    assert result.same_top_percent >= 95, result


@pytest.mark.parametrize("type_name", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama", "gemma3"])
def test_float_weights_equal_double_precision(tmp_path: Path, architecture: str, type_name: str) -> None:
    model = write_tiny_gguf(tmp_path / "m.gguf", architecture, type_name, tied_embeddings=architecture == "qwen3")
    tokens = random_tokens(model, 100 if architecture != "gemma3" else 3 * WINDOW)
    # Float32 alone costs 3e-7; a value that float32 puts on the other side of a step of f16 costs up to 1e-4.
    assert relative_error(typebar_logits(model.path, tokens), truth(model, tokens)) <= 1e-4


def test_f16_keys_and_values_cost_little(tmp_path: Path) -> None:
    model = write_tiny_gguf(tmp_path / "m.gguf")
    tokens = random_tokens(model, 100)
    assert relative_error(truth(model, tokens), tiny_forward(model, tokens)) <= 1e-3


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama"])
def test_keys_and_values_in_8_bits_cost_little(tmp_path: Path, architecture: str) -> None:
    """0.01 for qwen2 where biases of 30 are part of the codes."""
    model = write_tiny_gguf(tmp_path / "m.gguf", architecture, head_dim=64, key_bias=30.0)
    tokens = random_tokens(model, 200)
    expected = as_reference(truth(model, tokens))
    result = divergence(expected, typebar_logits(model.path, tokens, kv_dtype="q8"))
    assert 1e-6 < result.mean_kl <= 5e-4, result


def test_real_model_with_keys_and_values_in_8_bits(coder_path: Path) -> None:
    """Weights in float32, so that no activation is rounded otherwise: what is left is what the codes cost."""
    tokens = mixed_tokens(coder_path, 256)
    whole = typebar_logits(coder_path, tokens, "f32").astype(np.float64)
    expected = Reference(np.array([log_softmax(row) for row in whole]), whole.argmax(axis=-1).astype(np.int32))
    result = divergence(expected, typebar_logits(coder_path, tokens, "f32", "q8"))
    assert 0 < result.mean_kl <= 1e-3, result  # 0.03 and more where biases are no longer kept apart
    assert result.same_top_percent >= 98, result


@pytest.mark.parametrize("scaling", ["linear", "yarn"])
def test_scaled_rotation_equals_double_precision(tmp_path: Path, scaling: str) -> None:
    rope = RopeSpec(theta=1e6, scaling=scaling, factor=4.0)
    if scaling == "yarn":
        rope = replace(rope, original_context_length=128)
    model = write_tiny_gguf(tmp_path / "m.gguf", rope=rope)
    tokens = random_tokens(model, 400)
    assert relative_error(typebar_logits(model.path, tokens), truth(model, tokens)) <= 1e-4


def test_quantized_weights_in_float32_equal_double_precision(tmp_path: Path) -> None:
    """`--quant f32` decodes every block type exactly."""
    types = {f"layers.0.{part}": name for part, name in zip(["q", "k", "v", "o", "gate", "up", "down"], QUANTIZED)}  # noqa: B905
    model = write_tiny_gguf(
        tmp_path / "m.gguf", types=types | {"embed": "Q6_K", "default": "Q8_0"}, hidden_size=256, head_dim=64,
        intermediate_size=512,
    )  # fmt: skip
    tokens = random_tokens(model, 60)
    assert relative_error(typebar_logits(model.path, tokens, "f32"), truth(model, tokens)) <= 1e-4


@pytest.mark.parametrize("type_name", QUANTIZED)
def test_each_block_type_is_close_to_its_own_weights(tmp_path: Path, type_name: str) -> None:
    """What is left is the rounding of activations to 8 bits, about 1 % of a product of random vectors."""
    model = write_tiny_gguf(
        tmp_path / "m.gguf", types=type_name, hidden_size=512, num_heads=8, head_dim=64, intermediate_size=1024,
        tied_embeddings=False,
    )  # fmt: skip
    tokens = random_tokens(model, 64)
    result = divergence(as_reference(truth(model, tokens)), typebar_logits(model.path, tokens))
    assert result.mean_kl <= 5e-4, result


@pytest.mark.parametrize(("quantization", "bound"), [("q8", 1e-3), ("q4", 0.2)])
def test_requantizing_costs_what_its_bits_allow(tmp_path: Path, quantization: str, bound: float) -> None:
    model = write_tiny_gguf(tmp_path / "m.gguf", hidden_size=256, head_dim=64, intermediate_size=512)
    tokens = random_tokens(model, 64)
    expected = as_reference(truth(model, tokens))
    kept = divergence(expected, typebar_logits(model.path, tokens)).mean_kl
    result = divergence(expected, typebar_logits(model.path, tokens, quantization))
    assert kept < result.mean_kl <= bound, (kept, result)


def test_divergence_of_known_distributions() -> None:
    log_p = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]))
    logits = np.log(np.array([[0.25, 0.5, 0.25], [0.1, 0.8, 0.1]], np.float32)) + 3
    result = divergence(Reference(log_p, log_p.argmax(-1)), logits)
    assert result.mean_kl == pytest.approx(0.25 * np.log(2) / 2, abs=1e-6)
    assert result.max_kl == pytest.approx(0.25 * np.log(2), abs=1e-6)
    assert result.same_top_percent == 50


def test_a_damaged_weight_is_seen(tmp_path: Path) -> None:
    """The measure itself can fail: one matrix of another seed moves the logits far beyond every bound above."""
    model, other = (write_tiny_gguf(tmp_path / f"{seed}.gguf", types="Q8_0", seed=seed) for seed in (0, 1))
    tokens = random_tokens(model, 32)
    wrong = replace(model, weights=model.weights | {"layers.1.v": other.weights["layers.1.v"]})
    logits = sequence_logits(load_model(model.path, max_model_len=32, max_num_seqs=1), tokens, [])
    assert divergence(as_reference(truth(wrong, tokens)), logits).mean_kl > 0.01
