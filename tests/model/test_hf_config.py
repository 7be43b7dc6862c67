"""ModelSpec from config.json: the forms of transformers 4 and 5, and what is refused by name."""

import json
import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from typebar.errors import ModelFileError
from typebar.model.hf_config import spec_from_config
from typebar.model.rope import RopeSpec, inverse_frequencies
from typebar.model.spec import ModelSpec

# As in the repositories of the models, without what does not matter.
QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645,
    "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02, "intermediate_size": 4864,
    "max_position_embeddings": 32768, "max_window_layers": 21, "model_type": "qwen2", "num_attention_heads": 14,
    "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "sliding_window": 32768, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_sliding_window": False,
    "vocab_size": 151936,
}  # fmt: skip
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28,
    "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None,
    "tie_word_embeddings": True, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "head_dim": 64, "hidden_act": "silu",
    "hidden_size": 2048, "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": False,
    "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0, "tie_word_embeddings": True, "vocab_size": 128256,
}  # fmt: skip
GEMMA3 = {
    "_sliding_window_pattern": 6, "architectures": ["Gemma3ForCausalLM"], "attention_bias": False,
    "attn_logit_softcapping": None, "bos_token_id": 2, "eos_token_id": 1, "final_logit_softcapping": None,
    "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 640, "intermediate_size": 2048,
    "layer_types": [*["sliding_attention"] * 5, "full_attention"] * 3, "max_position_embeddings": 32768,
    "model_type": "gemma3_text", "num_attention_heads": 4, "num_hidden_layers": 18, "num_key_value_heads": 1,
    "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000.0,
    "rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": 512, "torch_dtype": "bfloat16",
    "use_bidirectional_attention": False, "vocab_size": 262144,
}  # fmt: skip
BY_NAME: dict[str, dict[str, Any]] = {"qwen2": QWEN2, "qwen3": QWEN3, "llama": LLAMA, "gemma3": GEMMA3}
ABSENT = object()
PATH = Path("some-model/config.json")


def read(base: str = "qwen2", **changes: Any) -> ModelSpec:
    config = {key: value for key, value in (BY_NAME[base] | changes).items() if value is not ABSENT}
    return spec_from_config(json.loads(json.dumps(config)), PATH)


def without_type(config: dict[str, Any]) -> dict[str, Any]:
    """A copy, since transformers writes into what it gets."""
    given = {key: value for key, value in config.items() if value is not ABSENT and key != "model_type"}
    copy: dict[str, Any] = json.loads(json.dumps(given))
    return copy


def test_qwen2() -> None:
    assert read() == ModelSpec(
        architecture="qwen2", name="some-model", vocab_size=151936, hidden_size=896, num_layers=24, num_heads=14,
        num_kv_heads=2, head_dim=64, intermediate_size=4864, rms_norm_eps=1e-6, rope=RopeSpec(1e6),
        context_length=32768, tied_embeddings=True, qkv_bias=True, qk_norm=False, rope_interleaved=False,
    )  # fmt: skip


def test_qwen3() -> None:
    spec = read("qwen3")
    assert (spec.head_dim, spec.qkv_bias, spec.qk_norm, spec.rope) == (128, False, True, RopeSpec(1e6))
    assert read("qwen3", head_dim=ABSENT).head_dim == 128  # the default of its class, not 1024 / 16
    assert read("qwen3", attention_bias=True).qkv_bias


def test_llama() -> None:
    spec = read("llama")
    assert (spec.head_dim, spec.qkv_bias, spec.qk_norm, spec.rope_interleaved) == (64, False, False, False)
    assert spec.rope == RopeSpec(5e5, "llama3", 32.0, 8192, low_freq_factor=1.0, high_freq_factor=4.0)
    assert spec.context_length == 131072
    old = read("llama", num_key_value_heads=ABSENT, head_dim=None, tie_word_embeddings=ABSENT, attention_bias=ABSENT)
    assert (old.num_kv_heads, old.head_dim, old.tied_embeddings) == (32, 64, False)


def test_gemma3() -> None:
    spec = read("gemma3")
    assert (spec.architecture, spec.head_dim, spec.qk_norm, spec.post_norms) == ("gemma3", 256, True, True)
    assert (spec.activation, spec.tied_embeddings, spec.embedding_scale) == ("gelu", True, 640**0.5)
    assert spec.windows == (512, 512, 512, 512, 512, 0) * 3
    assert (spec.rope, spec.local_rope, spec.attention_scale) == (RopeSpec(1e6), RopeSpec(1e4), 1 / 16)
    assert read("gemma3", layer_types=ABSENT, rope_local_base_freq=ABSENT) == spec
    assert read("gemma3", layer_types=ABSENT, sliding_window_pattern=2).windows == (512, 0) * 9
    large = read("gemma3", rope_scaling={"rope_type": "linear", "factor": 8.0}, query_pre_attn_scalar=168)
    assert (large.rope, large.local_rope) == (RopeSpec(1e6, "linear", 8.0), RopeSpec(1e4))
    assert large.attention_scale == 168**-0.5


@pytest.mark.parametrize("base", BY_NAME)
def test_configuration_of_a_class_of_transformers_means_the_same(base: str) -> None:
    """transformers reads the older form and writes its own: both give one spec."""
    from transformers import AutoConfig

    ours = read(base)
    theirs = AutoConfig.for_model(BY_NAME[base]["model_type"], **without_type(BY_NAME[base]))
    saved = theirs.to_dict()
    assert "rope_parameters" in saved and "rope_theta" not in saved
    assert spec_from_config(json.loads(json.dumps(saved)), PATH) == ours


ROPES: dict[str, tuple[dict[str, Any], RopeSpec, int]] = {
    "null": ({"rope_scaling": None}, RopeSpec(1e6), 32768),
    "empty": ({"rope_parameters": {}}, RopeSpec(1e6), 32768),
    "default": ({"rope_scaling": {"type": "default"}}, RopeSpec(1e6), 32768),
    "new form": (
        {"rope_theta": ABSENT, "rope_parameters": {"rope_type": "default", "rope_theta": 7e5}},
        RopeSpec(7e5),
        32768,
    ),
    "base in both": ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 7e5}}, RopeSpec(7e5), 32768),
    "for each kind of attention": (
        {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 7e5}}},
        RopeSpec(7e5),
        32768,
    ),
    "linear": ({"rope_scaling": {"type": "linear", "factor": 2}}, RopeSpec(1e6, "linear", 2.0), 32768),
    "dynamic": (
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        RopeSpec(1e6, "dynamic", 2.0, 32768),
        65536,
    ),
    "yarn": (
        {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
        RopeSpec(1e6, "yarn", 4.0, 32768),
        131072,
    ),
    "yarn without length": (
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        RopeSpec(1e6, "yarn", 4.0, 32768),
        131072,
    ),
    "yarn without factor": (
        {"rope_scaling": {"rope_type": "yarn", "factor": None}, "original_max_position_embeddings": 8192},
        RopeSpec(1e6, "yarn", 4.0, 8192),
        32768,
    ),
    "yarn with all options": (
        {
            "rope_parameters": {
                "rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16384, "beta_fast": 20,
                "beta_slow": 2, "attention_factor": 1.3, "truncate": True,
            }
        },
        RopeSpec(1e6, "yarn", 2.0, 16384, attention_factor=1.3, beta_fast=20.0, beta_slow=2.0),
        32768,
    ),
    "longrope": (
        {
            "rope_parameters": {"rope_type": "longrope", "short_factor": [1] * 32, "long_factor": [2.5] * 32},
            "original_max_position_embeddings": 4096,
        },
        RopeSpec(1e6, "longrope", 8.0, 4096, short_divisors=(1.0,) * 32, long_divisors=(2.5,) * 32),
        32768,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ROPES)
def test_rotations(case: str) -> None:
    changes, rope, context_length = ROPES[case]
    spec = read(**changes)
    assert (spec.rope, spec.context_length) == (rope, context_length)


@pytest.mark.parametrize("case", [case for case in ROPES if "empty" not in case])
def test_frequencies_are_those_of_transformers(case: str) -> None:
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding

    changes, rope, _ = ROPES[case]
    config = AutoConfig.for_model("qwen2", **without_type(QWEN2 | changes))
    if rope.scaling == "none":
        config.rope_parameters = config.rope_parameters.get("full_attention", config.rope_parameters)
        expected, factor = Qwen2RotaryEmbedding.compute_default_rope_parameters(config)
    else:
        expected, factor = ROPE_INIT_FUNCTIONS[rope.scaling](config, None, seq_len=40_000)
    ours, our_factor = inverse_frequencies(read(**changes).rope, 64, 40_000)
    np.testing.assert_allclose(ours, expected.numpy(), rtol=3e-6)
    assert our_factor == pytest.approx(factor, rel=1e-9)


def test_yarn_of_two_scales() -> None:
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {"rope_type": "yarn", "factor": 8.0, "mscale": 1.2, "mscale_all_dim": 0.7}
    config = AutoConfig.for_model(
        "qwen2", **{k: v for k, v in QWEN2.items() if k != "model_type"}, rope_scaling=scaling
    )
    _, factor = ROPE_INIT_FUNCTIONS["yarn"](config, None)
    assert inverse_frequencies(read(rope_scaling=scaling).rope, 64, 100)[1] == pytest.approx(factor)


@pytest.mark.parametrize(("base", "theta"), [("qwen2", 1e6), ("qwen3", 1e6), ("llama", 1e4), ("gemma3", 1e6)])
def test_missing_rope_base_is_said_loudly(base: str, theta: float, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert read(base, rope_theta=ABSENT).rope.theta == theta
    assert "'rope_theta' is missing, assuming" in caplog.text
    caplog.clear()
    read(base)
    assert caplog.text == ""


@pytest.mark.parametrize(
    "changes",
    [
        {"use_sliding_window": False, "sliding_window": 128},
        {"use_sliding_window": True, "sliding_window": 32768},
        {"use_sliding_window": True, "sliding_window": 128, "max_window_layers": 24},
        {"use_sliding_window": True, "sliding_window": 128, "layer_types": ["full_attention"] * 24},
        {"sliding_window": None, "use_sliding_window": ABSENT},
    ],
)
def test_sliding_window_that_is_off(changes: dict[str, Any]) -> None:
    assert read(**changes) == read()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "empty": (dict.fromkeys(QWEN2, ABSENT), "'model_type' is missing"),
    "another architecture": (
        {"model_type": "gpt2"},
        "the architecture 'gpt2' is not supported; typebar runs the dense decoders qwen2, qwen3, llama",
    ),
    "a new Qwen": ({"model_type": "qwen3_next"}, "architecture 'qwen3_next' is not supported"),
    "mixture": ({"model_type": "qwen2_moe", "num_experts": 60}, "'qwen2_moe', a mixture of experts, is not supported"),
    "mixture of Mixtral": ({"model_type": "mixtral", "num_local_experts": 8}, "'mixtral', a mixture of experts"),
    "vision": ({"model_type": "qwen2_vl", "vision_config": {"depth": 32}}, "'qwen2_vl', a model that reads images"),
    "images beside Gemma": (
        {"model_type": "gemma3", "vision_config": {"depth": 32}},
        "'gemma3', a model that reads images, is not supported; .*gemma3",
    ),
    "Gemma of images without their part": ({"model_type": "gemma3"}, "the architecture 'gemma3' is not supported"),
    "encoder of Gemma": (GEMMA3 | {"use_bidirectional_attention": True}, "attention that is not causal"),
    "activation of Gemma": (GEMMA3 | {"hidden_activation": "silu"}, r"than GELU \(hidden_activation = silu\)"),
    "capped logits": (GEMMA3 | {"final_logit_softcapping": 30.0}, "capped logits"),
    "layer types of Gemma": (GEMMA3 | {"layer_types": ["linear_attention"] * 18}, "'layer_types' is .*expected full"),
    "too few layer types": (GEMMA3 | {"layer_types": ["full_attention"]}, "'layer_types' is .*for each layer"),
    "layer types that are no text": (GEMMA3 | {"layer_types": [[]] * 18}, "'layer_types' is "),
    "local scaling": (
        GEMMA3 | {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}},
        "layers with a window have the RoPE scaling 'linear'",
    ),
    "vision with a known type": ({"model_type": "llama", "vision_config": {"depth": 32}}, "reads images"),
    "sound": ({"model_type": "qwen2_audio", "audio_config": {"d_model": 1}}, "a model that reads sound"),
    "encoder": ({"model_type": "bert", "architectures": ["BertModel"]}, "'bert', an encoder, is not supported"),
    "encoder and decoder": ({"model_type": "t5", "is_encoder_decoder": True}, "'t5', an encoder, is not"),
    "classifier": (
        {"architectures": ["Qwen2ForSequenceClassification"]},
        "the folder holds a Qwen2ForSequenceClassification, not a model that writes text",
    ),
    "embedding model": ({"architectures": ["Qwen2Model"]}, "holds a Qwen2Model, not a model that writes text"),
    "not causal": ({"is_causal": False}, r"attention that is not causal \(is_causal = False\)"),
    "activation": ({"hidden_act": "gelu"}, r"another activation than SiLU \(hidden_act = gelu\)"),
    "biases": ({"mlp_bias": True}, "biases in the feed-forward layers"),
    "window": ({"use_sliding_window": True, "sliding_window": 4096}, "a sliding window of 4096 tokens"),
    "window by layer": (
        {"sliding_window": 512, "layer_types": ["full_attention"] * 12 + ["sliding_attention"] * 12},
        "a sliding window of 512 tokens",
    ),
    "linear attention": (
        {"sliding_window": None, "layer_types": ["linear_attention"] * 24},
        "typebar runs full attention in every layer",
    ),
    "partial rotation": ({"partial_rotary_factor": 0.5}, "only part of each head is rotated"),
    "partial rotation, new": ({"rope_parameters": {"partial_rotary_factor": 0.25}}, "only part of each head"),
    "rotation of images": ({"rope_scaling": {"type": "mrope"}}, "'mrope' is not supported; .*yarn"),
    "rotation of no kind": ({"rope_scaling": {"type": ["yarn"]}}, "is not supported"),
    "rotation a number": ({"rope_scaling": 4.0}, "'rope_scaling' is 4.0, expected an object"),
    "rotation without factor": ({"rope_scaling": {"type": "linear"}}, r"'rope_scaling\.factor' is missing"),
    "factor 0": ({"rope_scaling": {"type": "yarn", "factor": 0}}, r"'rope_scaling\.factor' is 0, expected a number"),
    "factor a text": ({"rope_scaling": {"type": "linear", "factor": "2"}}, r"'rope_scaling\.factor' is '2'"),
    "yarn not rounded": ({"rope_scaling": {"type": "yarn", "factor": 4, "truncate": False}}, "YaRN without rounding"),
    "llama3 bounds": (
        {"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}},
        "high_freq_factor' is 4, expected more than",
    ),
    "longrope length": (
        {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0] * 31, "long_factor": [1.0] * 32}},
        "short_factor' is not a list of 32 numbers",
    ),
    "base 0": ({"rope_theta": 0}, "'rope_scaling.rope_theta' is 0|rope_theta' is 0, expected a number between 1"),
    "heads": ({"num_key_value_heads": 3}, "14 attention heads are not a multiple of 3"),
    "odd hidden size": ({"hidden_size": 897}, "hidden size 897 is not a multiple of 14 heads"),
    "odd head": ({"head_dim": 63}, "heads have 63 values"),
    "no layers": ({"num_hidden_layers": 0}, "'num_hidden_layers' is 0, expected 1 to 1024"),
    "layers absent": ({"num_hidden_layers": ABSENT}, "'num_hidden_layers' is missing"),
    "layers a text": ({"num_hidden_layers": "24"}, "'num_hidden_layers' is '24', expected an integer"),
    "layers a fraction": ({"num_hidden_layers": 24.0}, "is 24.0, expected an integer"),
    "layers a boolean": ({"num_hidden_layers": True}, "is True, expected an integer"),
    "layers absurd": ({"num_hidden_layers": 10**1000}, "is a huge number, expected 1 to 1024"),
    "tied a number": ({"tie_word_embeddings": 1}, "'tie_word_embeddings' is 1, expected true or false"),
    "eps not a number": ({"rms_norm_eps": float("nan")}, "'rms_norm_eps' is nan"),
    "eps 0": ({"rms_norm_eps": 0}, "'rms_norm_eps' is 0, expected a number between 0 and 1"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_the_file_and_the_cause(case: str) -> None:
    changes, problem = REFUSED[case]
    with pytest.raises(ModelFileError, match=rf"some-model/config\.json: .*({problem})"):
        read(**changes)


def test_any_value_anywhere_gives_a_finite_spec_or_a_model_file_error() -> None:
    """Each key of each configuration set to what JSON can hold."""
    rng = random.Random(3)
    values: list[Any] = [
        None, True, False, 0, -1, 1, 3, 2**31, 2**64, 10**400, 0.5, 1e-300, 1e300, float("inf"), float("nan"), "",
        "x", [], [1], [[]], {}, {"type": "yarn"}, {"rope_type": "dynamic", "factor": 1e4}, "linear",
        {"rope_type": "longrope", "short_factor": [1.0] * 32, "long_factor": [1.0] * 32, "attention_factor": 2},
        {"full_attention": {"rope_theta": 10}}, {"rope_type": "llama3", "factor": 2},
    ]  # fmt: skip
    keys = sorted({*QWEN2, *QWEN3, *LLAMA, *GEMMA3, "rope_parameters", "original_max_position_embeddings"})
    accepted = 0
    for _ in range(6000):
        config = dict(rng.choice(list(BY_NAME.values())))
        for key in rng.choices(keys, k=rng.choice((1, 1, 2, 3))):
            config[key] = rng.choice(values)
        try:
            spec = spec_from_config(config, PATH)
        except ModelFileError:
            continue
        accepted += 1
        frequencies, factor = inverse_frequencies(spec.rope, spec.head_dim, spec.context_length)
        assert np.isfinite(frequencies).all() and np.isfinite(factor)
    assert 600 < accepted < 5400
