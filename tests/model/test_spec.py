import logging
from collections import Counter
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest

from tiny_model import TinyModel, write_tiny_gguf
from typebar.errors import ModelFileError
from typebar.model.dequantize import dequantize
from typebar.model.gguf import GGUFFile
from typebar.model.names import expected_tensors, match_tensors
from typebar.model.rope import RopeSpec, half_split_rows
from typebar.model.spec import ModelSpec
from typebar.model.strings import StringArray
from typebar.model.tensor import FileTensor

ARCHITECTURES = ("qwen2", "qwen3", "llama", "gemma3")


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, TinyModel]:
    folder = tmp_path_factory.mktemp("tiny")
    return {name: write_tiny_gguf(folder / f"{name}.gguf", name) for name in ARCHITECTURES}


def with_metadata(model: TinyModel, **changes: object) -> GGUFFile:
    """The model's file with metadata changed; `_` stands for the architecture prefix, None removes a key."""
    gguf = GGUFFile.open(model.path)
    metadata = dict(gguf.metadata)
    for key, value in changes.items():
        full = key.replace("__", ".")
        full = full if full.startswith(("general.", "tokenizer.")) else f"{model.spec.architecture}.{full}"
        metadata[full] = value
        if value is None:
            del metadata[full]
    return replace(gguf, metadata=MappingProxyType(metadata))


def with_tensors(model: TinyModel, removed: str = "", **added: FileTensor) -> GGUFFile:
    gguf = GGUFFile.open(model.path)
    tensors = {name: tensor for name, tensor in gguf.tensors.items() if name != removed}
    tensors |= {name.replace("__", "."): tensor for name, tensor in added.items()}
    return replace(gguf, tensors=MappingProxyType(tensors))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_spec_and_tensors_of_each_architecture(models, architecture):
    model = models[architecture]
    gguf = GGUFFile.open(model.path)
    assert ModelSpec.from_gguf(gguf) == model.spec
    matched = match_tensors(model.spec, gguf)
    assert matched.keys() == model.weights.keys() == expected_tensors(model.spec).keys()
    for canonical, tensor in matched.items():
        weights = dequantize(tensor.read(), tensor.type, tensor.shape)
        if model.spec.rope_interleaved and canonical.endswith((".q", ".k")):
            weights = weights[half_split_rows(len(weights) // model.spec.head_dim, model.spec.head_dim)]
        assert (weights == model.weights[canonical]).all(), canonical


def test_sizes_that_do_not_follow_from_each_other(tmp_path):
    dims = {"hidden_size": 96, "num_heads": 6, "num_kv_heads": 3, "head_dim": 32, "intermediate_size": 160}
    model = write_tiny_gguf(tmp_path / "m.gguf", "qwen3", num_layers=1, vocab_size=320, **dims)
    spec = ModelSpec.from_gguf(GGUFFile.open(model.path))
    assert spec == model.spec
    assert {name: getattr(spec, name) for name in dims} == dims
    assert match_tensors(spec, GGUFFile.open(model.path))["layers.0.o"].shape == (96, 192)


def test_output_layer_of_its_own_is_used(tmp_path, models):
    model = write_tiny_gguf(tmp_path / "m.gguf", tied_embeddings=False)
    gguf = GGUFFile.open(model.path)
    spec = ModelSpec.from_gguf(gguf)
    assert not spec.tied_embeddings
    assert match_tensors(spec, gguf)["head"].name == "output.weight"
    assert "head" not in match_tensors(models["qwen2"].spec, GGUFFile.open(models["qwen2"].path))


def test_what_files_of_gemma3_leave_to_the_architecture(models):
    spec = ModelSpec.from_gguf(
        with_metadata(models["gemma3"], attention__sliding_window=512, attention__sliding_window_pattern=None)
    )
    assert spec.windows == (512, 512)  # every sixth layer sees all
    assert (spec.local_rope, spec.embedding_scale) == (RopeSpec(1e4), 8.0)
    assert (spec.attention_scale, spec.activation) == (0.0, "gelu")
    large = with_metadata(
        models["gemma3"], block_count=62, attention__sliding_window_pattern=None, rope__freq_base_swa=5e4
    )
    assert ModelSpec.from_gguf(large).attention_scale == 0.25  # of 64 values to 4 heads
    assert ModelSpec.from_gguf(large).windows == ((100,) * 5 + (0,)) * 10 + (100, 100)
    assert ModelSpec.from_gguf(large).local_rope == RopeSpec(5e4)
    with pytest.raises(ModelFileError, match=r"'gemma3\.attention\.sliding_window' is missing"):
        ModelSpec.from_gguf(with_metadata(models["gemma3"], attention__sliding_window=None))


@pytest.mark.parametrize("kept", ["output.weight", ""])
def test_without_the_embedding_the_error_names_it(tmp_path, kept):
    model = write_tiny_gguf(tmp_path / "m.gguf", tied_embeddings=not kept)
    gguf = with_tensors(model, removed="token_embd.weight")
    with pytest.raises(ModelFileError, match=r"'token_embd\.weight' is missing"):
        match_tensors(ModelSpec.from_gguf(gguf), gguf)


@pytest.mark.parametrize(("architecture", "theta"), [("qwen2", 1e6), ("qwen3", 1e6), ("llama", 1e4), ("gemma3", 1e6)])
def test_missing_rope_base_is_said_loudly(models, architecture, theta, caplog):
    with caplog.at_level(logging.WARNING):
        assert ModelSpec.from_gguf(with_metadata(models[architecture], rope__freq_base=None)).rope.theta == theta
    assert f"{architecture}.rope.freq_base' is missing" in caplog.text


REFUSED = {
    "encoder": ({"general__architecture": "bert"}, "architecture 'bert' is not supported; .*qwen2, qwen3, llama"),
    "mixture": ({"general__architecture": "qwen3moe"}, "architecture 'qwen3moe' is not supported"),
    "no architecture": ({"general__architecture": None}, r"'general\.architecture' is missing"),
    "adapter": ({"general__type": "adapter"}, "holds a 'adapter', not a model"),
    "experts": ({"expert_count": 8}, r"mixture of experts \(llama\.expert_count = 8\)"),
    "embedding model": ({"pooling_type": 3}, "embedding model"),
    "not causal": ({"attention__causal": False}, "attention that is not causal"),
    "soft cap": ({"final_logit_softcapping": 30.0}, "capped logits"),
    "sliding window": ({"attention__sliding_window": 128}, "sliding window of 128 tokens"),
    "attention scale": ({"attention__scale": 0.5}, "attention scale 0.5"),
    "value length": (
        {"attention__key_length": 16, "attention__value_length": 32},
        "value_length is 32 but heads have 16",
    ),
    "key length alone": ({"attention__key_length": 32}, "value_length is 16 but heads have 32"),
    "partial rotation": ({"rope__dimension_count": 8}, "dimension_count is 8 but heads have 16"),
    "heads": ({"attention__head_count_kv": 3}, "4 attention heads are not a multiple of 3"),
    "odd hidden size": ({"embedding_length": 65}, "hidden size 65 is not a multiple of 4 heads"),
    "odd head": ({"embedding_length": 60, "rope__dimension_count": 15}, "heads have 15 values"),
    "layers absent": ({"block_count": None}, r"'llama\.block_count' is missing"),
    "layers 0": ({"block_count": 0}, r"'llama\.block_count' is 0, expected 1 to 1024"),
    "layers negative": ({"block_count": -1}, "is -1, expected 1 to 1024"),
    "layers absurd": ({"block_count": 1025}, "is 1025, expected 1 to 1024"),
    "layers a float": ({"block_count": 2.0}, "'llama.block_count' is float, expected int"),
    "layers a boolean": ({"block_count": True}, "is bool, expected int"),
    "heads per layer": ({"attention__head_count": np.array([4, 4])}, "head_count' is ndarray, expected int"),
    "hidden size absurd": ({"embedding_length": 2**17 + 4}, "expected 1 to 131072"),
    "context 0": ({"context_length": 0}, "context_length' is 0"),
    "eps absent": ({"attention__layer_norm_rms_epsilon": None}, "layer_norm_rms_epsilon' is missing"),
    "eps NaN": ({"attention__layer_norm_rms_epsilon": float("nan")}, "is nan, expected a finite number"),
    "eps 0": ({"attention__layer_norm_rms_epsilon": 0.0}, "is 0.0, expected a finite number"),
    "eps a string": ({"attention__layer_norm_rms_epsilon": "1e-6"}, "is str, expected a number"),
    "base infinite": ({"rope__freq_base": float("inf")}, "freq_base' is inf"),
    "base absurd": ({"rope__freq_base": 1e30}, "freq_base' is 1e"),
    "YaRN ramp absurd": (
        {"rope__scaling__type": "yarn", "rope__scaling__factor": 2.0, "rope__scaling__yarn_beta_fast": 1e-320},
        "yarn_beta_fast' is 1e-320",
    ),
    "base 1": ({"rope__freq_base": 1.0}, "freq_base' is 1.0"),
    "scaling unknown": ({"rope__scaling__type": "spiral"}, "RoPE scaling 'spiral' is not supported"),
    "scaling factor negative": ({"rope__scaling__type": "yarn", "rope__scaling__factor": -2.0}, "factor' is -2.0"),
    "tokens a string": ({"tokenizer__ggml__tokens": "abc"}, r"tokenizer\.ggml\.tokens' is str, expected StringArray"),
    "no vocabulary": ({"tokenizer__ggml__tokens": None, "vocab_size": None}, "vocab_size' is missing"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_run_is_refused_by_name(models, case):
    changes, problem = REFUSED[case]
    with pytest.raises(ModelFileError, match=problem):
        ModelSpec.from_gguf(with_metadata(models["llama"], **changes))


def test_a_window_as_long_as_the_context_is_no_limit(models):
    model = models["qwen2"]
    assert ModelSpec.from_gguf(with_metadata(model, attention__sliding_window=512)) == model.spec


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rope__scaling__type": "none", "rope__scaling__factor": 4.0}, {}),
        ({"rope__scaling__type": "linear", "rope__scaling__factor": 4.0}, {"scaling": "linear", "factor": 4.0}),
        ({"rope__scaling__factor": 4.0}, {"scaling": "linear", "factor": 4.0}),
        ({"rope__scale_linear": 2.0}, {"scaling": "linear", "factor": 2.0}),
        (
            {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0},
            {"scaling": "yarn", "factor": 4.0, "original_context_length": 512},
        ),
        (
            {
                "rope__scaling__type": "yarn",
                "rope__scaling__factor": 4.0,
                "rope__scaling__original_context_length": 128,
                "rope__scaling__yarn_beta_fast": 16.0,
                "rope__scaling__yarn_ext_factor": -1.0,
            },
            {"scaling": "yarn", "factor": 4.0, "original_context_length": 128, "beta_fast": 16.0},
        ),
    ],
)
def test_rope_scaling_keys(models, changes, expected):
    spec = ModelSpec.from_gguf(with_metadata(models["qwen2"], **changes))
    assert spec.rope == RopeSpec(theta=1e6, **expected)


def test_llama3_divisors_come_from_their_tensor(tmp_path):
    rope = RopeSpec(theta=500_000.0, frequency_divisors=(1.0, 1.0, 2.0, 4.0, 8.0, 8.0, 32.0, 32.0))
    model = write_tiny_gguf(tmp_path / "m.gguf", "llama", rope=rope)
    gguf = GGUFFile.open(model.path)
    assert ModelSpec.from_gguf(gguf).rope == rope
    assert "rope_freqs.weight" in gguf.tensors
    match_tensors(model.spec, gguf)
    bad = replace(gguf.tensors["rope_freqs.weight"], shape=(4,))
    with pytest.raises(ModelFileError, match=r"'rope_freqs.weight' has the shape \(4,\), expected \(8,\)"):
        ModelSpec.from_gguf(with_tensors(model, rope_freqs__weight=bad))
    zeroed = (*rope.frequency_divisors[:7], 0.0)
    other = write_tiny_gguf(tmp_path / "z.gguf", "llama", rope=replace(rope, frequency_divisors=zeroed))
    with pytest.raises(ModelFileError, match="not between"):
        ModelSpec.from_gguf(GGUFFile.open(other.path))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_missing_tensor_is_named(models, architecture):
    model = models[architecture]
    for name in GGUFFile.open(model.path).tensors:
        gguf = with_tensors(model, removed=name)
        with pytest.raises(ModelFileError, match=f"'{name}' is missing"):
            match_tensors(ModelSpec.from_gguf(gguf), gguf)


def test_unknown_and_misshapen_tensors_are_named(models):
    model = models["qwen2"]
    some = next(iter(GGUFFile.open(model.path).tensors.values()))
    for name in ("blk__0__attn_output__bias", "blk__2__attn_q__weight", "blk__0__ffn_gate_exps__weight"):
        with pytest.raises(ModelFileError, match=f"'{name.replace('__', '.')}' is unknown for the architecture qwen2"):
            match_tensors(model.spec, with_tensors(model, **{name: some}))
    match_tensors(model.spec, with_tensors(model, blk__0__attn_rot_embd__weight=some))
    bad = replace(some, name="blk.1.attn_k.weight", shape=(64, 32))
    with pytest.raises(ModelFileError, match=r"'blk\.1\.attn_k\.weight' has the shape \(64, 32\), expected \(32, 64\)"):
        match_tensors(model.spec, with_tensors(model, blk__1__attn_k__weight=bad))
    tokens = GGUFFile.open(model.path).require("tokenizer.ggml.tokens", StringArray)
    gguf = with_metadata(model, tokenizer__ggml__tokens=StringArray.of(tokens[:-1]))
    with pytest.raises(ModelFileError, match=r"'token_embd\.weight' has the shape \(288, 64\), expected \(287, 64\)"):
        match_tensors(ModelSpec.from_gguf(gguf), gguf)


def test_real_models(coder_path, smollm_path):
    gguf = GGUFFile.open(coder_path)
    spec = ModelSpec.from_gguf(gguf)
    assert (spec.hidden_size, spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (896, 24, 14, 2, 64)
    assert (spec.intermediate_size, spec.vocab_size, spec.context_length) == (4864, 151_936, 32_768)
    assert (spec.qkv_bias, spec.qk_norm, spec.tied_embeddings, spec.rope) == (True, False, False, RopeSpec(1e6))
    types = Counter(tensor.type for tensor in match_tensors(spec, gguf).values())
    assert types == {"Q5_0": 133, "F32": 121, "Q8_0": 13, "Q4_K": 12, "Q6_K": 12}

    gguf = GGUFFile.open(smollm_path)
    spec = ModelSpec.from_gguf(gguf)
    assert (spec.hidden_size, spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (576, 30, 9, 3, 64)
    assert (spec.rope_interleaved, spec.qkv_bias, spec.tied_embeddings, spec.vocab_size) == (True, False, True, 49_152)
    assert len(match_tensors(spec, gguf)) == 2 + 30 * 9
