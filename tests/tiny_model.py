"""Small random models as GGUF files, and a float64 forward pass over them that serves as the oracle of the engine."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from gguf.constants import RopeScalingType
from gguf.quants import quantize
from numpy.typing import NDArray

from typebar.model.block_types import BY_NAME
from typebar.model.dequantize import dequantize
from typebar.model.names import expected_tensors, gguf_names
from typebar.model.rope import RopeSpec, half_split_rows, inverse_frequencies
from typebar.model.spec import ModelSpec, local_windows, with_gemma3

CONTROL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = [
    "Ġ t", "h e", "i n", "Ġ a", "r e", "o n", "Ġt he", "e r", "Ġ s", "a t", "Ġ w", "Ġ o", "e n", "i s", "i t", "o r",
    "e s", "a n", "e d", "Ġ c", "o u", "Ġ b", "in g", "Ġ f", "Ġ p", "a l", "a r", "Ġ d", "Ġa n",
]  # fmt: skip
WINDOW = 100  # tokens that every other layer of a gemma3 sees
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass(frozen=True)
class TinyModel:
    """A written model. `weights`: what its blocks stand for, by canonical name, q and k rows in half-split order."""

    path: Path
    spec: ModelSpec
    weights: dict[str, NDArray[np.float32]]


def byte_tokens() -> list[str]:
    """The 256 characters that stand for bytes in a GPT-2 byte-level vocabulary, in its order of ids."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    return [chr(byte) for byte in printable] + [chr(256 + n) for n in range(256 - len(printable))]


def vocabulary(size: int) -> tuple[list[str], list[int]]:
    """Tokens and their types: bytes, merges, control tokens, then unused padding up to `size`."""
    tokens = byte_tokens() + [merge.replace(" ", "") for merge in MERGES]
    types = [TokenType.NORMAL] * len(tokens) + [TokenType.CONTROL] * len(CONTROL_TOKENS)
    tokens += CONTROL_TOKENS
    assert size >= len(tokens), f"the tiny vocabulary needs {len(tokens)} tokens"
    padding = size - len(tokens)
    return tokens + [f"[PAD{n}]" for n in range(padding)], [*map(int, types), *[int(TokenType.UNUSED)] * padding]


def write_tiny_gguf(
    path: Path | str,
    architecture: str = "qwen2",
    types: Mapping[str, str] | str = "F32",
    seed: int = 0,
    *,
    hidden_size: int = 64,
    num_layers: int = 2,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 16,
    intermediate_size: int = 128,
    vocab_size: int = 288,
    context_length: int = 512,
    tied_embeddings: bool = True,
    rope: RopeSpec | None = None,
    key_bias: float = 0.5,
    tensors_per_shard: int = 0,
) -> TinyModel:
    """Write a valid random model of `architecture` (qwen2, qwen3, llama, gemma3) to `path`.

    `types` is the type of all matrices, or types by canonical name ("layers.1.q"), by part ("q") and "default" (F32);
    vectors are F32. Rows that are not whole 256-blocks take Q8_0 in place of a K-quant, as in real files.
    `key_bias` is the deviation of the biases of keys, where there are any.
    With `tensors_per_shard` the file is split and `path` must be NAME.gguf; the result's path is its first shard.
    """
    path = Path(path)
    spec = ModelSpec(
        architecture=architecture,
        name=f"tiny {architecture}",
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=intermediate_size,
        rms_norm_eps=float(np.float32(1e-6)),
        rope=rope or RopeSpec(theta=10_000.0 if architecture == "llama" else 1_000_000.0),
        context_length=context_length,
        tied_embeddings=tied_embeddings,
        qkv_bias=architecture == "qwen2",
        qk_norm=architecture in ("qwen3", "gemma3"),
        rope_interleaved=architecture == "llama",
    )
    if architecture == "gemma3":
        spec = with_gemma3(spec, local_windows(num_layers, WINDOW, 2), RopeSpec(theta=10_000.0))
    writer = GGUFWriter(path, architecture, split_max_tensors=tensors_per_shard)
    _add_metadata(writer, spec)
    rng = np.random.default_rng(seed)
    file_names = {canonical: name for name, canonical in gguf_names(spec).items()}
    weights = {}
    for canonical, shape in expected_tensors(spec).items():
        type_name = _type_of(canonical, shape, types)
        raw = random_tensor(rng, canonical, shape, type_name)
        if canonical.endswith("k_bias"):
            raw = (raw.view(np.float32) * np.float32(key_bias / 0.5)).view(np.uint8)
        weights[canonical] = dequantize(raw, type_name, shape)
        _add_tensor(writer, file_names[canonical], raw, type_name, shape, _file_rows(spec, canonical))
    if spec.rope.frequency_divisors is not None:
        writer.add_tensor("rope_freqs.weight", np.array(spec.rope.frequency_divisors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    shards = len(writer.tensors)
    writer.close()
    if shards > 1:
        path = path.with_name(f"{path.stem}-00001-of-{shards:05}.gguf")
    return TinyModel(path, spec, weights)


def _add_metadata(writer: GGUFWriter, spec: ModelSpec) -> None:
    writer.add_type("model")
    writer.add_name(spec.name)
    writer.add_context_length(spec.context_length)
    writer.add_embedding_length(spec.hidden_size)
    writer.add_block_count(spec.num_layers)
    writer.add_feed_forward_length(spec.intermediate_size)
    writer.add_head_count(spec.num_heads)
    writer.add_head_count_kv(spec.num_kv_heads)
    writer.add_layer_norm_rms_eps(spec.rms_norm_eps)
    if spec.windows:
        writer.add_sliding_window(WINDOW)
        writer.add_uint32(f"{spec.architecture}.attention.sliding_window_pattern", 2)
    if spec.architecture == "qwen3" or spec.head_dim * spec.num_heads != spec.hidden_size:
        writer.add_key_length(spec.head_dim)
        writer.add_value_length(spec.head_dim)
    if spec.architecture == "llama":
        writer.add_rope_dimension_count(spec.head_dim)
        writer.add_vocab_size(spec.vocab_size)
    writer.add_rope_freq_base(spec.rope.theta)
    if spec.rope.scaling != "none":
        writer.add_rope_scaling_type(RopeScalingType(spec.rope.scaling))
        writer.add_rope_scaling_factor(spec.rope.factor)
    if spec.rope.scaling == "yarn":
        writer.add_rope_scaling_orig_ctx_len(spec.rope.original_context_length)
    tokens, token_types = vocabulary(spec.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe" if spec.architecture == "llama" else "qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(token_types)
    writer.add_token_merges(MERGES)
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_bos_token_id(tokens.index("<|endoftext|>"))
    writer.add_pad_token_id(tokens.index("<|endoftext|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _type_of(canonical: str, shape: tuple[int, ...], types: Mapping[str, str] | str) -> str:
    if len(shape) == 1:
        return "F32"
    if not isinstance(types, str):
        part = canonical.rsplit(".", 1)[-1]
        types = types.get(canonical) or types.get(part) or types.get("default", "F32")
    return "Q8_0" if types.endswith("_K") and shape[1] % BY_NAME[types].length else types


def _file_rows(spec: ModelSpec, canonical: str) -> NDArray[np.intp] | None:
    """File row r is canonical row rows[r]; None where the orders agree."""
    heads = {"q": spec.num_heads, "k": spec.num_kv_heads}.get(canonical.rsplit(".", 1)[-1].removesuffix("_bias"))
    if heads is None or not spec.rope_interleaved:
        return None
    return np.argsort(half_split_rows(heads, spec.head_dim))


def _add_tensor(
    writer: GGUFWriter,
    name: str,
    raw: NDArray[np.uint8],
    type_name: str,
    shape: tuple[int, ...],
    rows: NDArray[np.intp] | None,
) -> None:
    by_row = raw.reshape(*shape[:-1], -1)
    writer.add_tensor(name, by_row if rows is None else by_row[rows], raw_dtype=GGMLQuantizationType[type_name])


def random_tensor(
    rng: np.random.Generator, canonical: str, shape: tuple[int, ...], type_name: str
) -> NDArray[np.uint8]:
    """The bytes of a random tensor whose scale suits its place, so that logits spread by about 1."""
    part = canonical.rsplit(".", 1)[-1]
    if part.endswith("norm"):
        return (1 + 0.1 * rng.standard_normal(shape, np.float32)).view(np.uint8).ravel()
    deviation = 0.5 if part.endswith("bias") else 0.1 if part == "embed" else shape[-1] ** -0.5
    if type_name.endswith("_K"):
        return _random_k_blocks(rng, shape, type_name, deviation)
    values = (deviation * rng.standard_normal(shape, np.float32)).astype(np.float32)
    return np.ascontiguousarray(quantize(values, GGMLQuantizationType[type_name])).view(np.uint8).ravel()


def _random_k_blocks(
    rng: np.random.Generator, shape: tuple[int, ...], type_name: str, deviation: float
) -> NDArray[np.uint8]:
    """Blocks of random bits with f16 scales that give weights of mean near 0 and the wanted standard deviation."""
    block = BY_NAME[type_name]
    count = int(np.prod(shape)) // block.length
    blocks = rng.integers(0, 256, (count, block.nbytes), np.uint8)
    spread = rng.uniform(0.5, 1.5, (count, 1))
    middle = {"Q4_K": 7.5, "Q5_K": 15.5}.get(type_name)

    def set_scales(unit: float) -> None:
        scale = (unit * spread).astype(np.float16)
        if middle is None:
            blocks[:, 208:210] = scale.view(np.uint8)
        else:
            blocks[:, 0:2] = scale.view(np.uint8)
            blocks[:, 2:4] = (middle * unit * spread).astype(np.float16).view(np.uint8)

    set_scales(1.0)
    set_scales(deviation / float(dequantize(blocks.ravel(), type_name, (count, block.length)).std()))
    return blocks.ravel()


def tiny_forward(
    model: TinyModel, token_ids: NDArray[np.integer] | list[int], kv_type: type[np.floating] = np.float64
) -> NDArray[np.float64]:
    """Logits [T, vocab] for every position of one sequence, in float64 save for keys and values kept in `kv_type`.

    RMSNorm, grouped-query causal attention with half-split RoPE, SwiGLU; the layer of Qwen2, Qwen3 and Llama. Gemma 3
    has windows, norms of what is added, and GELU.
    """
    spec, w = model.spec, {name: weight.astype(np.float64) for name, weight in model.weights.items()}
    x = w["embed"][np.asarray(token_ids)] * spec.embedding_scale
    for index in range(spec.num_layers):
        layer = {name.split(".")[2]: weight for name, weight in w.items() if name.startswith(f"layers.{index}.")}
        mixed = _attention(spec, layer, _rms_norm(x, layer["attn_norm"], spec.rms_norm_eps), kv_type, index)
        x = x + (_rms_norm(mixed, layer["attn_post_norm"], spec.rms_norm_eps) if spec.post_norms else mixed)
        h = _rms_norm(x, layer["mlp_norm"], spec.rms_norm_eps)
        gate = h @ layer["gate"].T
        if spec.activation == "gelu":
            gate = gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        else:
            gate = gate / (1 + np.exp(-gate))
        down = (gate * (h @ layer["up"].T)) @ layer["down"].T
        x = x + (_rms_norm(down, layer["mlp_post_norm"], spec.rms_norm_eps) if spec.post_norms else down)
    return _rms_norm(x, w["final_norm"], spec.rms_norm_eps) @ w.get("head", w["embed"]).T


def _rms_norm(x: NDArray[np.float64], weight: NDArray[np.float64], eps: float) -> NDArray[np.float64]:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


def _attention(
    spec: ModelSpec,
    layer: dict[str, NDArray[np.float64]],
    h: NDArray[np.float64],
    kv_type: type[np.floating],
    index: int,
) -> NDArray[np.float64]:
    def heads(part: str, count: int) -> NDArray[np.float64]:  # [T, hidden] → [count, T, head_dim]
        y = h @ layer[part].T + layer.get(f"{part}_bias", 0.0)
        y = y.reshape(len(h), count, spec.head_dim)
        if f"{part}_norm" in layer:
            y = _rms_norm(y, layer[f"{part}_norm"], spec.rms_norm_eps)
        return y.swapaxes(0, 1)

    window = spec.windows[index] if spec.windows else 0
    rope = spec.rope_of(window)
    q, k = (_rotate(spec, rope, heads(part, n)) for part, n in (("q", spec.num_heads), ("k", spec.num_kv_heads)))
    group = spec.num_heads // spec.num_kv_heads
    v = heads("v", spec.num_kv_heads)
    k, v = (np.repeat(kept.astype(kv_type).astype(np.float64), group, axis=0) for kept in (k, v))
    scores = q @ k.swapaxes(1, 2) * (spec.attention_scale or spec.head_dim**-0.5)
    scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
    if window:
        scores[:, np.tril(np.ones(scores.shape[1:], bool), -window)] = -np.inf
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = scores / scores.sum(axis=-1, keepdims=True) @ v
    return mixed.swapaxes(0, 1).reshape(len(h), -1) @ layer["o"].T


def _rotate(spec: ModelSpec, rope: RopeSpec, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rotate [heads, T, head_dim], position t of row t."""
    frequencies, factor = inverse_frequencies(rope, spec.head_dim, spec.context_length)
    angles = np.arange(x.shape[1])[:, None] * np.asarray(frequencies, np.float64)
    cos, sin = np.cos(angles) * factor, np.sin(angles) * factor
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
