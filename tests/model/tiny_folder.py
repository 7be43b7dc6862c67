"""Small random models as transformers saves them: configuration, safetensors, tokenizer and chat template."""

import json
from pathlib import Path
from typing import Any

from text_reference import QWEN2_WORDS
from tiny_model import CHAT_TEMPLATE, CONTROL_TOKENS, MERGES, vocabulary

SIZES: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "intermediate_size": 128, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
}  # fmt: skip


def tiny_network(architecture: str = "qwen2", dtype: str = "float32", seed: int = 0, **config: Any) -> Any:
    """A network of transformers with weights of a size that makes logits spread, none of them zero."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    ends = {"bos_token_id": 285, "eos_token_id": 287, "pad_token_id": 285}
    network = AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, **{**SIZES, **ends, **config}))
    generator = torch.Generator().manual_seed(seed)
    for name, weight in network.named_parameters():
        values = torch.randn(weight.shape, generator=generator)
        if weight.ndim == 2:
            values *= 0.1 if "embed" in name else weight.shape[1] ** -0.5
        elif name.endswith("bias"):
            values *= 0.0 if "o_proj" in name else 0.5
        else:
            values = 1 + 0.1 * values
        weight.data = values
    return network.to(getattr(torch, dtype)).eval()


def write_tiny_folder(folder: Path, architecture: str = "qwen2", *, shard_size: str = "1GB", **more: Any) -> Any:
    """Saves a network made of `more`, as for tiny_network, and returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    network = tiny_network(architecture, **more)
    network.save_pretrained(folder, max_shard_size=shard_size)
    write_tiny_tokenizer(folder)
    return network


def write_tiny_tokenizer(folder: Path) -> None:
    """The Qwen2 way of cutting text, on the vocabulary of the tiny GGUF models."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    tokens = vocabulary(288)[0][: -len(CONTROL_TOKENS)]
    merges = [tuple(merge.split(" ")) for merge in MERGES]
    core = Tokenizer(models.BPE({token: id for id, token in enumerate(tokens)}, merges))
    core.normalizer = normalizers.NFC()
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(QWEN2_WORDS), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(token, normalized=False) for token in CONTROL_TOKENS])
    core.save(str(folder / "tokenizer.json"))
    special = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))


def edit_json(path: Path, **changes: Any) -> None:
    """Sets entries of a JSON object; None removes one."""
    data = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in data.items() if value is not None}))
