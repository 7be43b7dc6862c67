"""Folders in the layout of AWQ: read by our loader and, by a description of the format, by transformers."""

import json
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers")

from quantizers import AWQ_ORDER, awq_config, awq_parts, round_to_nearest, write_quantized_folder
from safetensors.numpy import load_file
from tiny_folder import write_tiny_folder

from tiny_model import write_tiny_gguf
from typebar.bench.quality import typebar_logits
from typebar.bench.reference import Reference, divergence
from typebar.errors import ModelFileError, ParameterError
from typebar.model.checkpoint import open_checkpoint
from typebar.model.rope import RopeSpec
from typebar.model.spec import ModelSpec
from typebar.quantize.quantize import Request, quantize

TEXT = "<|im_start|>The tide is out, isn't it?  数到 12345\n\tdef f(x): return x<|im_end|>"


@contextmanager
def silent(title, total):
    yield lambda done: None


def made(source, to, group=32, method="rtn", calibration="builtin"):
    quantize(Path(source), Request(to, group=group, method=method, calibration=str(calibration)), silent)
    return to


def words(values):
    """int32 [n, m] → codes [n, 8·m], a nibble at a time."""
    codes = np.empty((*values.shape, 8), np.int64)
    for place, output in enumerate(AWQ_ORDER):
        codes[..., output] = values.view(np.uint32) >> np.uint32(4 * place) & np.uint32(15)
    return codes.reshape(len(values), -1)


def weights_of(folder):
    """By the names of transformers, the numbers that its file stands for."""
    tensors = load_file(folder / "model.safetensors")
    found = {name: values.astype(np.float32) for name, values in tensors.items() if values.dtype == np.float16}
    for name in [name for name in tensors if name.endswith(".qweight")]:
        module = name.removesuffix(".qweight")
        codes, zeros = words(tensors[name]), words(tensors[f"{module}.qzeros"])
        scales = found.pop(f"{module}.scales")
        repeats = len(codes) // len(scales)
        found[f"{module}.weight"] = ((codes - zeros.repeat(repeats, 0)) * scales.repeat(repeats, 0)).T
    return found


def network_of(folder):
    """transformers' network of the folder's own configuration, with its weights dequantized."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    assert config.quantization_config["quant_method"] == "awq"
    del config.quantization_config
    network = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    state = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in weights_of(folder).items()}
    missing, unexpected = network.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    network.tie_weights()
    return network


def reference_of(folder, tokens):
    import torch

    with torch.inference_mode():
        log_probs = network_of(folder)(torch.tensor([tokens])).logits[0].log_softmax(-1)
    return Reference(log_probs.half().numpy(), log_probs.argmax(-1).int().numpy())


def assert_same_tokenizer(source, folder):
    from transformers import AutoTokenizer

    ours, read, theirs = (
        open_checkpoint(source).build_tokenizer(), open_checkpoint(folder).build_tokenizer(),
        AutoTokenizer.from_pretrained(folder),
    )  # fmt: skip
    expected = ours.encode(TEXT, parse_special=True, add_special=True)
    assert read.encode(TEXT, parse_special=True, add_special=True) == expected
    assert theirs(TEXT)["input_ids"] == expected and theirs.decode(expected[-9:]) == ours.decode(expected[-9:], False)
    for name in ("eos_id", "bos_id", "pad_id", "unk_id", "add_bos", "end_ids", "special_ids", "control_tokens"):
        assert getattr(read, name) == getattr(ours, name), name
    chat = [{"role": "user", "content": "Hello"}]
    assert read.chat_template == ours.chat_template
    assert "Hello" in theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("of_folder", [True, False], ids=["of a folder", "of a GGUF file"])
def test_transformers_computes_the_same(architecture, of_folder, tmp_path):
    source, tied = tmp_path / ("folder" if of_folder else "m.gguf"), architecture == "qwen3"
    if of_folder:
        write_tiny_folder(source, architecture, tie_word_embeddings=tied, dtype="bfloat16")
    else:
        write_tiny_gguf(source, architecture, tied_embeddings=tied)
    folder = made(source, tmp_path / "made")
    spec, new = open_checkpoint(source).spec, open_checkpoint(folder).spec
    for field in set(ModelSpec.__slots__) - {"name", "rope_interleaved", "rms_norm_eps"}:
        assert getattr(new, field) == getattr(spec, field), field
    tokens = np.random.default_rng(1).integers(0, 280, 100).tolist()
    result = divergence(reference_of(folder, tokens), typebar_logits(folder, tokens))
    assert result.mean_kl <= 0.002 and result.same_top_percent >= 90, result
    logits, expected = (typebar_logits(path, tokens, "f32") for path in (folder, source))
    assert 0 < np.abs(logits - expected).mean() < 0.4 * np.abs(expected).mean()
    assert_same_tokenizer(source, folder)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_scaling_of_llama_3_gets_its_name_back(factor, tmp_path):
    folder = tmp_path / "folder"
    scaling = {
        "rope_type": "llama3", "rope_theta": 5e5, "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    write_tiny_folder(folder, "llama", rope_parameters=scaling)
    quantize(folder, Request(tmp_path / "q.gguf", bits=8), silent)
    assert open_checkpoint(made(tmp_path / "q.gguf", tmp_path / "made")).spec.rope == open_checkpoint(folder).spec.rope


def test_divisors_without_a_name_are_refused(tmp_path):
    rope = RopeSpec(theta=10_000.0, frequency_divisors=tuple(np.linspace(1, 4, 8)))
    write_tiny_gguf(tmp_path / "m.gguf", "llama", rope=rope)
    with pytest.raises(ModelFileError, match="RoPE divisors have no form in config"):
        made(tmp_path / "m.gguf", tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_files_beside_the_weights_are_the_sources(tmp_path):
    write_tiny_folder(tmp_path / "folder")
    (tmp_path / "folder" / "LICENSE").write_text("mine")
    folder = made(tmp_path / "folder", tmp_path / "made", 64)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "LICENSE"):
        assert (folder / name).read_bytes() == (tmp_path / "folder" / name).read_bytes()
    before, after = (json.loads((path / "config.json").read_text()) for path in (tmp_path / "folder", folder))
    quantization = after.pop("quantization_config")
    assert quantization | awq_config(64) == quantization
    assert {key for key in after if after[key] != before.get(key)} <= {"dtype", "torch_dtype"}
    assert open_checkpoint(folder).tensors["layers.0.q"].type == "U4_64"


@pytest.mark.parametrize("group", [32, 64])
@pytest.mark.parametrize("method", ["rtn", "awq", "gptq"])
def test_error_of_weights_is_at_most_that_of_the_usual_rounding(group, method, tmp_path):
    write_tiny_folder(tmp_path / "folder")
    text = tmp_path / "text.txt"
    text.write_text("The ferry crossed the river at noon, and nobody on board could say who steered it. " * 3)
    folder = made(tmp_path / "folder", tmp_path / "made", group, method, "builtin" if method == "rtn" else text)
    tokens = np.random.default_rng(1).integers(0, 280, 100).tolist()
    result = divergence(reference_of(folder, tokens), typebar_logits(folder, tokens))
    assert result.mean_kl <= 0.002 and result.same_top_percent >= 90, result
    if method == "rtn":
        name = "model.layers.1.mlp.down_proj.weight"
        weights = load_file(tmp_path / "folder" / "model.safetensors")[name]
        usual = round_to_nearest(weights, 4, group, False).weights
        assert np.square(weights_of(folder)[name] - weights).mean() < 0.95 * np.square(usual - weights).mean()


def test_real_model(smollm_path, tmp_path):
    """In groups of 64, as 576 inputs are."""
    folder = made(smollm_path, tmp_path / "made", 64)
    tokens = open_checkpoint(smollm_path).build_tokenizer().encode(Path(__file__).read_text("utf-8"))[:256]
    result = divergence(reference_of(folder, tokens), typebar_logits(folder, tokens, "f32"))
    assert result.mean_kl <= 0.0002 and result.same_top_percent >= 98, result
    assert_same_tokenizer(smollm_path, folder)


@pytest.mark.parametrize(("group", "told"), [(128, "--group must be 64 or 32"), (None, "--group must be 64 or 32")])
def test_groups_that_do_not_fit_are_told_with_those_that_do(group, told, tiny_path, tmp_path):
    with pytest.raises(ParameterError, match=told):
        made(tiny_path, tmp_path / "made", group)
    assert list(tmp_path.iterdir()) == []


def test_quantized_folder_is_not_rounded_again(tmp_path):
    def parts(module, weights):
        rounded = round_to_nearest(weights, 4, 32, symmetric=False)
        return awq_parts(rounded), rounded.weights

    write_quantized_folder(tmp_path / "folder", awq_config(32), parts)
    with pytest.raises(ModelFileError, match="quantized already"):
        made(tmp_path / "folder", tmp_path / "made")
