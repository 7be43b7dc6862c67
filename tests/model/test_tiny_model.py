"""The oracle itself is checked against transformers, so that both can be trusted elsewhere."""

import numpy as np
import pytest

from tiny_model import CONTROL_TOKENS, MERGES, WINDOW, TinyModel, tiny_forward, vocabulary, write_tiny_gguf
from typebar.model.rope import RopeSpec
from typebar.model.spec import ModelSpec

HF_NAMES = {
    "embed": "model.embed_tokens.weight", "head": "lm_head.weight", "final_norm": "model.norm.weight",
    "attn_norm": "input_layernorm.weight", "mlp_norm": "post_attention_layernorm.weight",
    "q": "self_attn.q_proj.weight", "k": "self_attn.k_proj.weight", "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight", "q_bias": "self_attn.q_proj.bias", "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias", "q_norm": "self_attn.q_norm.weight", "k_norm": "self_attn.k_norm.weight",
    "gate": "mlp.gate_proj.weight", "up": "mlp.up_proj.weight", "down": "mlp.down_proj.weight",
}  # fmt: skip


GEMMA_NAMES = {
    "attn_post_norm": "post_attention_layernorm.weight", "mlp_norm": "pre_feedforward_layernorm.weight",
    "mlp_post_norm": "post_feedforward_layernorm.weight",
}  # fmt: skip


def family(spec: ModelSpec, rope: dict[str, object]) -> dict[str, object]:
    """What the configurations of the families do not share."""
    if spec.architecture != "gemma3":
        return {"model_type": spec.architecture, "rope_parameters": rope}
    return {
        "model_type": "gemma3_text",
        "rope_parameters": {
            "full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0}
        },
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": WINDOW,
        "query_pre_attn_scalar": spec.head_dim,
    }  # fmt: skip


def transformers_logits(model: TinyModel, token_ids: list[int]) -> np.ndarray:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    spec = model.spec
    rope: dict[str, object] = {"rope_type": "default", "rope_theta": spec.rope.theta}
    if spec.rope.scaling == "yarn":
        original = spec.rope.original_context_length
        rope |= {"rope_type": "yarn", "factor": spec.rope.factor, "original_max_position_embeddings": original}
    config = AutoConfig.for_model(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        intermediate_size=spec.intermediate_size,
        rms_norm_eps=spec.rms_norm_eps,
        max_position_embeddings=spec.context_length,
        tie_word_embeddings=spec.tied_embeddings,
        **family(spec, rope),
    )
    network = AutoModelForCausalLM.from_config(config, attn_implementation="eager").double().eval()
    state = {}
    for canonical, weight in model.weights.items():
        *layer, part = canonical.split(".")
        names = HF_NAMES | GEMMA_NAMES if spec.architecture == "gemma3" else HF_NAMES
        if spec.architecture == "gemma3" and part.endswith("norm"):
            weight = weight - 1
        state[f"model.layers.{layer[1]}.{names[part]}" if layer else names[part]] = torch.from_numpy(weight)
    missing, unexpected = network.load_state_dict(state, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    with torch.no_grad():
        return network(torch.tensor([token_ids])).logits[0].numpy()


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama", "gemma3"])
def test_oracle_equals_transformers(tmp_path, architecture):
    rope = RopeSpec(theta=1e4, scaling="yarn", factor=4.0, original_context_length=128)
    model = write_tiny_gguf(
        tmp_path / "m.gguf",
        architecture,
        {"default": "Q4_0", "q": "Q6_K", "down": "Q5_K", "up": "F16"},
        hidden_size=256,
        num_heads=8,
        head_dim=32,
        intermediate_size=256,
        tied_embeddings=architecture != "llama",
        rope=rope if architecture == "qwen2" else None,
    )
    count = 40 if architecture != "gemma3" else 3 * WINDOW
    token_ids = np.random.default_rng(5).integers(0, model.spec.vocab_size, count).tolist()
    ours, theirs = tiny_forward(model, token_ids), transformers_logits(model, token_ids)
    assert ours.shape == (count, 288)
    assert ours.std() > 0.5
    np.testing.assert_allclose(ours, theirs, atol=2e-4 * ours.std())  # transformers computes cos and sin in float32


def test_oracle_is_causal_and_sees_positions(tmp_path):
    model = write_tiny_gguf(tmp_path / "m.gguf")
    logits = tiny_forward(model, [1, 2, 3, 4])
    np.testing.assert_allclose(tiny_forward(model, [1, 2]), logits[:2], rtol=1e-9)
    assert np.abs(tiny_forward(model, [2, 1, 3, 4])[3] - logits[3]).max() > 1e-3


def test_seed_decides_the_weights(tmp_path):
    first, again = (write_tiny_gguf(tmp_path / f"{n}.gguf", types="Q4_1", seed=3) for n in range(2))
    other = write_tiny_gguf(tmp_path / "other.gguf", types="Q4_1", seed=4)
    assert first.path.read_bytes() == again.path.read_bytes() != other.path.read_bytes()
    assert first.spec == other.spec


def test_vocabulary_is_a_byte_level_bpe():
    tokens, types = vocabulary(300)
    assert len(tokens) == len(set(tokens)) == len(types) == 300
    assert len(set(tokens[:256])) == 256
    assert all(len(token) == 1 for token in tokens[:256])
    known = set(tokens[:256])
    for merge in MERGES:
        assert set(merge.split(" ")) <= known
        known.add(merge.replace(" ", ""))
    assert tokens[285:288] == CONTROL_TOKENS
    assert types[284:289] == [1, 3, 3, 3, 5]
