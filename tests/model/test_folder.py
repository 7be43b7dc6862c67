"""Hugging Face folders: those that transformers saves run and give its logits, damaged ones are refused by name."""

import json
import logging
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_folder import edit_json, tiny_network, write_tiny_folder

from tiny_model import TinyModel, tiny_forward
from typebar.bench.quality import typebar_logits
from typebar.engine.params import SamplingParams
from typebar.errors import ModelFileError, TypebarError
from typebar.llm import LLM
from typebar.model.checkpoint import open_checkpoint
from typebar.model.folder import _same
from typebar.model.load import load_model
from typebar.model.names import folder_names
from typebar.model.tensor import FileTensor

TOKENS = np.random.default_rng(5).integers(0, 288, 60).tolist()


def transformers_logits(folder: Path, tokens: list[int]) -> np.ndarray:
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
    with torch.no_grad():
        logits: np.ndarray = network(torch.tensor([tokens])).logits[0].numpy()
    return logits


def relative_error(logits: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(logits - expected).max() / np.abs(expected).max())


def oracle_logits(folder: Path, network: Any, tokens: list[int], kv_type: type[np.floating]) -> np.ndarray:
    """In double precision but for keys and values, by the folder's configuration on the network's own weights."""
    spec = open_checkpoint(folder).spec
    state = {name: value.double().numpy() for name, value in network.state_dict().items()}
    weights = {canonical: state[name] for name, canonical in folder_names(spec).items()}
    if spec.architecture == "gemma3":  # its norms multiply with 1 more than what they hold
        weights |= {name: weight + 1 for name, weight in weights.items() if name.endswith("norm")}
    return tiny_forward(TinyModel(folder, spec, weights), tokens, kv_type)


# What is saved

SAVED: dict[str, dict[str, Any]] = {
    "qwen2": {"architecture": "qwen2", "tie_word_embeddings": True},
    "qwen2 untied, in shards": {"architecture": "qwen2", "shard_size": "100KB"},
    "qwen2 tied, in shards": {"architecture": "qwen2", "tie_word_embeddings": True, "shard_size": "60KB"},
    "qwen3": {"architecture": "qwen3", "head_dim": 32},
    "qwen3 tied, bf16": {"architecture": "qwen3", "tie_word_embeddings": True, "dtype": "bfloat16"},
    "llama": {"architecture": "llama"},
    "llama f16": {"architecture": "llama", "dtype": "float16"},
    "llama tied, bf16, in shards": {
        "architecture": "llama", "tie_word_embeddings": True, "dtype": "bfloat16", "shard_size": "60KB"
    },
    "llama with biases": {"architecture": "llama", "attention_bias": True},
    "qwen3 with biases": {"architecture": "qwen3", "attention_bias": True},
    "gemma3": {"architecture": "gemma3_text", "sliding_window": 20, "query_pre_attn_scalar": 24},
    "gemma3 bf16, whole and windowed": {
        "architecture": "gemma3_text", "sliding_window": 20, "layer_types": ["full_attention", "sliding_attention"],
        "dtype": "bfloat16", "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32
        }
    },
    "llama3": {
        "architecture": "llama",
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
}  # fmt: skip


@pytest.mark.parametrize("case", SAVED)
def test_logits_are_those_of_transformers(tmp_path: Path, case: str) -> None:
    network = write_tiny_folder(tmp_path / "m", **SAVED[case])
    expected = transformers_logits(tmp_path / "m", TOKENS)
    assert expected.std() > 0.3
    # transformers computes cos and sin in float32.
    np.testing.assert_allclose(
        oracle_logits(tmp_path / "m", network, TOKENS, np.float64), expected, atol=2e-4 * expected.std()
    )
    # A value that float32 puts on the other side of a step of f16 costs up to 2e-4.
    truth = oracle_logits(tmp_path / "m", network, TOKENS, np.float16)
    assert relative_error(typebar_logits(tmp_path / "m", TOKENS), truth) <= 3e-4


def test_older_form_of_the_configuration_is_the_same_model(tmp_path: Path) -> None:
    write_tiny_folder(tmp_path / "m", rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0})
    scaling = {"type": "linear", "factor": 4.0}
    edit_json(
        tmp_path / "m" / "config.json", rope_parameters=None, layer_types=None, rope_scaling=scaling, rope_theta=1e4
    )
    expected = transformers_logits(tmp_path / "m", TOKENS)
    assert relative_error(typebar_logits(tmp_path / "m", TOKENS), expected) <= 2e-3
    edit_json(tmp_path / "m" / "config.json", rope_scaling=None)
    assert relative_error(typebar_logits(tmp_path / "m", TOKENS), expected) > 2e-2


@pytest.mark.parametrize(("quantization", "bound"), [("f32", 1e-4), ("q8", 0.05), ("q4", 0.5)])
def test_quantized_at_load(tmp_path: Path, quantization: str, bound: float) -> None:
    network = write_tiny_folder(tmp_path / "m", dtype="bfloat16")
    truth = oracle_logits(tmp_path / "m", network, TOKENS, np.float16)
    assert relative_error(typebar_logits(tmp_path / "m", TOKENS, quantization), truth) <= bound


# Programs


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "tiny-chat"
    write_tiny_folder(folder, "qwen2", shard_size="100KB")
    return folder


def test_llm_takes_a_folder(tiny: Path) -> None:
    import torch

    network = tiny_network("qwen2")
    with LLM(str(tiny), threads=1) as llm:
        assert llm.model.name == "tiny-chat"
        assert llm.model.path == tiny
        assert llm.model.usable_vocab == 288
        [answer] = llm.generate({"prompt_token_ids": TOKENS}, SamplingParams(temperature=0, max_tokens=20))
        assert llm.chat([{"role": "user", "content": "a"}], SamplingParams(max_tokens=3))
    sequence = torch.tensor([TOKENS])
    expected = []
    for _ in range(len(answer.outputs[0].token_ids)):
        logits = network(sequence).logits[0, -1, :288]
        expected.append(int(logits.argmax()))
        sequence = torch.cat([sequence, torch.tensor([[expected[-1]]])], dim=1)
    assert answer.outputs[0].token_ids == expected


def test_padding_of_the_vocabulary_is_never_drawn(tiny: Path) -> None:
    """Rows 288 to 319 stand for no token."""
    with LLM(str(tiny), threads=1) as llm:
        params = SamplingParams(temperature=50.0, max_tokens=200, seed=1, ignore_eos=True)
        [answer] = llm.generate("abc", params)
        assert max(answer.outputs[0].token_ids) < 288
        assert llm.generate({"prompt_token_ids": [319]}, SamplingParams(max_tokens=1))
        assert llm.model.tokenizer.decode([319]) == ""


def test_run_and_serve_take_a_folder(tiny: Path) -> None:
    command = [sys.executable, "-m", "typebar"]
    run = [*command, "run", "-m", f"./{tiny.name}", "a", "--json", "--max-tokens", "3", "--temperature", "0"]
    out = subprocess.run(run, cwd=tiny.parent, stdout=subprocess.PIPE, check=True).stdout
    expected = json.loads(out)
    assert expected["model"] == "tiny-chat"
    serve = [*command, "serve", "--model", f"./{tiny.name}", "--port", "0"]
    with subprocess.Popen(serve, cwd=tiny.parent, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr
        ready = next(
            match for line in server.stderr if (match := re.search(r"is ready after .*(http://\S+?:\d+) ", line))
        )
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3, "temperature": 0}
        request = urllib.request.Request(
            f"{ready[1]}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as response:
            answer = json.load(response)
        server.terminate()
        server.communicate()
    assert answer["model"] == "tiny-chat"
    assert answer["choices"][0]["message"]["content"] == expected["text"]


def test_any_file_of_the_folder_means_the_folder(tiny: Path) -> None:
    shard = next(tiny.glob("*.safetensors"))
    from typebar.model.download import resolve_model

    assert resolve_model(str(shard)).path == tiny
    assert resolve_model(str(tiny)).path == tiny


# Damage


@pytest.fixture
def folder(tiny: Path, tmp_path: Path) -> Path:
    shutil.copytree(tiny, tmp_path / "copy")
    return tmp_path / "copy"


def rewrite(folder: Path, change: Any) -> None:
    """All tensors of a folder in one file, after `change` of the dictionary of them."""
    tensors = {}
    for path in folder.glob("*.safetensors"):
        tensors |= load_file(path)
        path.unlink()
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("config.json", r"config\.json: cannot be read"),
        ("tokenizer.json", r"has no tokenizer\.json"),
        ("model.safetensors.index.json", r"safetensors files but no model\.safetensors\.index\.json"),
        ("model-00002-of-00005.safetensors", r"files missing: model-00002-of-00005\.safetensors"),
    ],
)
def test_missing_file_is_named(folder: Path, name: str, problem: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ModelFileError, match=problem):
        load_model(folder, threads=1)


def test_truncated_shard_is_named(folder: Path) -> None:
    shard = folder / "model-00003-of-00005.safetensors"
    shard.write_bytes(shard.read_bytes()[:-4096])
    with pytest.raises(ModelFileError, match=r"model-00003-of-00005\.safetensors: its tensors end at .*truncated"):
        load_model(folder, threads=1)


def test_missing_tensor_is_named(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(ModelFileError, match=r"tensor 'model\.layers\.1\.mlp\.up_proj\.weight' is missing"):
        load_model(folder, threads=1)


def test_unknown_tensor_is_named(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({"model.layers.0.self_attn.sinks": np.zeros(4, np.float32)}))
    with pytest.raises(ModelFileError, match=r"'model\.layers\.0\.self_attn\.sinks' is unknown for .* qwen2"):
        load_model(folder, threads=1)


def test_long_name_is_cut(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({"x" * 100_000: np.zeros(4, np.float32)}))
    with pytest.raises(ModelFileError, match="xxx is unknown for") as caught:
        load_model(folder, threads=1)
    assert len(str(caught.value)) < 1000


def test_misshapen_tensor_is_named(folder: Path) -> None:
    edit_json(folder / "config.json", intermediate_size=96)
    with pytest.raises(ModelFileError, match=r"gate_proj\.weight' has the shape \(128, 64\), expected \(96, 64\)"):
        load_model(folder, threads=1)


def test_type_of_numbers_that_is_not_read_is_named(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({"model.norm.weight": np.ones(64, np.float64)}))
    with pytest.raises(ModelFileError, match=r"'model\.norm\.weight' has the type F64, typebar reads F32, F16, BF16"):
        load_model(folder, threads=1)


def test_weight_that_is_not_a_number_is_named(folder: Path) -> None:
    def damage(tensors: dict[str, np.ndarray]) -> None:
        tensors["model.layers.1.self_attn.k_proj.weight"][3, 7] = np.nan

    rewrite(folder, damage)
    with pytest.raises(ModelFileError, match=r"'layers\.1\.k' holds a weight in row 3 that is not a finite number"):
        load_model(folder, threads=1)


def test_large_and_tiny_numbers_of_bf16_come_through(tmp_path: Path) -> None:
    """As f16 7e4 and 1e38 would be infinite and the small ones zero."""
    import torch

    network = tiny_network("llama", "bfloat16", tie_word_embeddings=True)
    extreme = torch.tensor([7e4, 1e38, 1e-40, -0.0], dtype=torch.bfloat16)
    network.model.embed_tokens.weight.data[0, :4] = extreme
    network.save_pretrained(tmp_path)
    write_tiny_folder(tmp_path / "other")
    for path in (tmp_path / "other").glob("tokenizer*"):
        path.rename(tmp_path / path.name)
    checkpoint = open_checkpoint(tmp_path)
    from typebar.model.dequantize import dequantize

    embed = checkpoint.tensors["embed"]
    values = dequantize(embed.read(), embed.type, embed.shape)[0, :4]
    assert values.tobytes() == extreme.float().numpy().tobytes()
    logits = typebar_logits(tmp_path, [5, 6, 7])
    assert np.isfinite(logits).all()
    assert np.abs(logits[:, 0]).max() > 1e30


def test_tokens_without_rows_are_refused_before_the_weights_are_packed(folder: Path) -> None:
    data = json.loads((folder / "tokenizer.json").read_text())
    data["added_tokens"].append(data["added_tokens"][-1] | {"id": 320, "content": "<|one too many|>"})
    (folder / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(ModelFileError, match="ids up to 320 but the model only 320 rows"):
        open_checkpoint(folder)


# Tied or not


def test_tied_model_with_an_output_layer_uses_its_embedding(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Says so where the two differ."""
    edit_json(folder / "config.json", tie_word_embeddings=True)
    with caplog.at_level(logging.WARNING):
        assert "head" not in open_checkpoint(folder).tensors
    assert "'lm_head.weight' differs from the embedding" in caplog.text
    caplog.clear()
    rewrite(folder, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].copy()}))
    with caplog.at_level(logging.WARNING):
        assert "head" not in open_checkpoint(folder).tensors
    assert caplog.text == ""
    load_model(folder, threads=1)


def test_large_tables_are_compared_by_a_sample(tmp_path: Path) -> None:
    """Their first and last rows are in it."""
    size, rows = 64 << 20, 1 << 14
    tables = []
    for name in ("embed", "same", "first", "last"):
        path = tmp_path / name
        with path.open("wb") as file:
            file.truncate(size)
        tables.append(FileTensor(name, "BF16", (rows, size // rows // 2), path, 0, size))
    embed, same, first, last = tables
    for table, offset in ((first, 0), (last, size - 2)):
        with table.path.open("r+b") as file:
            file.seek(offset)
            file.write(b"x")
    before = bytes_read()
    assert _same(embed, same)
    assert bytes_read() - before < 2 << 20
    assert not _same(embed, first)
    assert not _same(embed, last)


def bytes_read() -> int:
    """By this process so far, from files or the page cache."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_untied_model_without_an_output_layer_is_refused(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(ModelFileError, match=r"'lm_head\.weight' is missing"):
        load_model(folder, threads=1)
    edit_json(folder / "config.json", tie_word_embeddings=True)
    load_model(folder, threads=1)


def test_tables_of_angles_are_left_alone(folder: Path) -> None:
    angles = {"model.rotary_emb.inv_freq": np.ones(8, np.float32)}
    angles |= {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32) for i in range(2)}
    rewrite(folder, lambda tensors: tensors.update(angles))
    load_model(folder, threads=1)


def test_bias_of_the_attentions_output_is_refused(tmp_path: Path) -> None:
    network = tiny_network("llama", attention_bias=True)
    network.model.layers[1].self_attn.o_proj.bias.data[3] = 0.25
    write_tiny_folder(tmp_path / "m", "llama", attention_bias=True)
    network.save_pretrained(tmp_path / "m")
    with pytest.raises(ModelFileError, match=r"'model\.layers\.1\.self_attn\.o_proj\.bias' is a bias of the attention"):
        load_model(tmp_path / "m", threads=1)


@pytest.mark.parametrize("method", ["bitsandbytes", "fp8"])
def test_quantized_weights_are_refused_by_method(folder: Path, method: str) -> None:
    edit_json(folder / "config.json", quantization_config={"quant_method": method, "bits": 4})
    with pytest.raises(ModelFileError, match=rf"quantized with '{method}', which typebar does not run .*: use the"):
        load_model(folder, threads=1)


def test_too_little_memory_is_said_before_loading(folder: Path) -> None:
    with pytest.raises(TypebarError, match="needs"):
        load_model(folder, threads=1, kv_memory=1)
