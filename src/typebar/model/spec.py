"""ModelSpec: the shape of a decoder-only transformer, in one form for every architecture and file format."""

import logging
import math
import struct
from dataclasses import dataclass, replace
from typing import Literal

from typebar.errors import ModelFileError
from typebar.model.gguf import GGUFFile
from typebar.model.rope import RopeSpec
from typebar.model.strings import StringArray

log = logging.getLogger(__name__)

SUPPORTED = ("qwen2", "qwen3", "llama", "gemma3")
DEFAULT_THETA = {"qwen2": 1e6, "qwen3": 1e6, "llama": 1e4, "gemma3": 1e6}
GEMMA3_LOCAL_THETA = 1e4
GEMMA3_27B_LAYERS = 62
GEMMA3_PATTERN = 6  # every sixth layer sees the whole context
FEED_FORWARD_LIMIT = 1 << 20

# Keys below the architecture that change the computation in a way typebar lacks, with the value that means "off".
FEATURES_NOT_RUN: dict[str, tuple[float, str]] = {
    "expert_count": (0, "mixture of experts"),
    "pooling_type": (0, "embedding model"),
    "logit_scale": (1, "scaled logits"),
    "residual_scale": (1, "scaled residuals"),
    "embedding_scale": (1, "scaled embeddings"),
    "attn_logit_softcapping": (0, "capped attention scores"),
    "final_logit_softcapping": (0, "capped logits"),
    "attention.causal": (1, "attention that is not causal"),
    "rope.scaling.yarn_ext_factor": (1, "a YaRN extrapolation factor"),
}


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Everything that the forward pass must know besides the weights. Sizes count elements.

    `num_heads * head_dim` may differ from `hidden_size` (Qwen3). With `rope_interleaved` the rows of q and k in the
    file are in interleaved order and are reordered at load (see rope.half_split_rows). `vocab_size` counts rows of the
    embedding, padding rows included.

    `windows`: for each layer the last tokens that its attention sees, 0 for all of them; empty where no layer has a
    window. `local_rope` is the rotation in layers with one, if it is another. `post_norms`: what attention and MLP add
    is normalized too. `attention_scale` 0 stands for 1 / √head_dim.
    """

    architecture: str
    name: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope: RopeSpec
    context_length: int
    tied_embeddings: bool
    qkv_bias: bool
    qk_norm: bool
    rope_interleaved: bool
    windows: tuple[int, ...] = ()
    local_rope: RopeSpec | None = None
    post_norms: bool = False
    activation: Literal["silu", "gelu"] = "silu"
    embedding_scale: float = 1.0
    attention_scale: float = 0.0

    def rope_of(self, window: int) -> RopeSpec:
        """The rotation in layers with this window, 0 for none."""
        return self.local_rope if window and self.local_rope else self.rope

    @staticmethod
    def from_gguf(gguf: GGUFFile) -> "ModelSpec":
        """Read the spec from GGUF metadata. ModelFileError names what is missing, out of range or not run."""
        architecture = _architecture(gguf)
        keys = _Keys(gguf, architecture)
        _refuse_features_not_run(keys)
        num_heads = keys.count("attention.head_count", 1024)
        num_kv_heads = keys.count("attention.head_count_kv", 1024, default=num_heads)
        if num_heads % num_kv_heads:
            raise keys.error(f"{num_heads} attention heads are not a multiple of {num_kv_heads} key/value heads")
        hidden_size = keys.count("embedding_length", 1 << 17)
        head_dim = _head_dim(keys, hidden_size, num_heads)
        context_length = keys.count("context_length", 1 << 27)
        num_layers = keys.count("block_count", 1024)
        if architecture != "gemma3":
            _refuse_sliding_window(keys, context_length)
        spec = ModelSpec(
            architecture=architecture,
            name=gguf.get("general.name", str) or gguf.path.stem,
            vocab_size=_vocab_size(keys),
            hidden_size=hidden_size,
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            intermediate_size=keys.count("feed_forward_length", FEED_FORWARD_LIMIT),
            rms_norm_eps=keys.number("attention.layer_norm_rms_epsilon", low=0.0, high=1.0),
            rope=_rope(keys, head_dim, context_length),
            context_length=context_length,
            tied_embeddings="output.weight" not in gguf.tensors,
            qkv_bias=architecture == "qwen2" or "blk.0.attn_q.bias" in gguf.tensors,
            qk_norm=architecture in ("qwen3", "gemma3"),
            rope_interleaved=architecture == "llama",
        )
        return _gemma3(keys, spec) if architecture == "gemma3" else spec


@dataclass(frozen=True, slots=True)
class _Keys:
    """Typed and bounded access to the metadata under `{architecture}.`."""

    gguf: GGUFFile
    architecture: str

    def error(self, problem: str) -> ModelFileError:
        return ModelFileError(f"{self.gguf.path}: {problem}")

    def count(self, key: str, limit: int, default: int | None = None) -> int:
        """A positive integer up to `limit`."""
        full = f"{self.architecture}.{key}"
        value = self.gguf.require(full, int) if default is None else self.gguf.get(full, int)
        if value is None:
            assert default is not None
            return default
        if not 1 <= value <= limit:
            raise self.error(f"metadata {full!r} is {value}, expected 1 to {limit}")
        return value

    def number(self, key: str, default: float | None = None, low: float = -math.inf, high: float = math.inf) -> float:
        """A finite number, low < value < high, stored as an integer, a float or a boolean."""
        full = f"{self.architecture}.{key}"
        value = self.gguf.metadata.get(full, default)
        if value is None:
            raise self.error(f"metadata {full!r} is missing, the file is not a complete model")
        if not isinstance(value, int | float):
            raise self.error(f"metadata {full!r} is {type(value).__name__}, expected a number")
        if not math.isfinite(value) or not (low < value < high or value == default):
            raise self.error(f"metadata {full!r} is {value}, expected a finite number between {low:g} and {high:g}")
        return float(value)

    def has(self, key: str) -> bool:
        return f"{self.architecture}.{key}" in self.gguf.metadata


def _architecture(gguf: GGUFFile) -> str:
    kind = gguf.get("general.type", str) or "model"
    if kind != "model":
        raise ModelFileError(f"{gguf.path}: the file holds a {kind!r}, not a model")
    architecture = gguf.require("general.architecture", str)
    if architecture not in SUPPORTED:
        raise ModelFileError(
            f"{gguf.path}: the architecture {architecture[:80]!r} is not supported; typebar runs the dense decoders "
            f"{', '.join(SUPPORTED)}"
        )
    return architecture


def _refuse_features_not_run(keys: _Keys) -> None:
    for key, (off, feature) in FEATURES_NOT_RUN.items():
        value = keys.number(key, off)
        # A negative YaRN factor is ggml's "use the default".
        if value != off and not (key.startswith("rope.") and value < 0):
            raise keys.error(f"the model has {feature} ({keys.architecture}.{key} = {value:g}), which typebar lacks")


def _refuse_sliding_window(keys: _Keys, context_length: int) -> None:
    window = keys.number("attention.sliding_window", 0)
    if 0 < window < context_length:
        raise keys.error(f"attention is limited to a sliding window of {window:.0f} tokens, which typebar lacks")


def _gemma3(keys: _Keys, spec: ModelSpec) -> ModelSpec:
    """`spec` with what files of Gemma 3 leave to the architecture."""
    window = keys.count("attention.sliding_window", 1 << 27)
    pattern = keys.count("attention.sliding_window_pattern", 1024, default=GEMMA3_PATTERN)
    theta = keys.number("rope.freq_base_swa", GEMMA3_LOCAL_THETA, low=1.0, high=1e12)
    # The one size whose scores are not scaled by its 128 values a head, and no key says so.
    scale = (spec.hidden_size / spec.num_heads) ** -0.5 if spec.num_layers == GEMMA3_27B_LAYERS else 0.0
    return with_gemma3(spec, local_windows(spec.num_layers, window, pattern), RopeSpec(theta), scale)


def local_windows(num_layers: int, window: int, pattern: int) -> tuple[int, ...]:
    """`window` in all layers but each `pattern`-th, which sees the whole context."""
    return tuple(window if layer % pattern else 0 for layer in range(1, num_layers + 1))


def with_gemma3(
    spec: ModelSpec, windows: tuple[int, ...], local_rope: RopeSpec, attention_scale: float = 0.0
) -> ModelSpec:
    """`spec` with what all models of Gemma 3 have.

    The scale of embeddings is not rounded to bfloat16, as it was in training (by 0.2 % where the hidden size is 640):
    neither does llama.cpp, nor transformers in float32.
    """
    return replace(
        spec,
        windows=windows,
        local_rope=local_rope,
        post_norms=True,
        activation="gelu",
        embedding_scale=spec.hidden_size**0.5,
        attention_scale=attention_scale,
    )


def _head_dim(keys: _Keys, hidden_size: int, num_heads: int) -> int:
    if not keys.has("attention.key_length") and hidden_size % num_heads:
        raise keys.error(
            f"the hidden size {hidden_size} is not a multiple of {num_heads} heads and no key length is given"
        )
    default = hidden_size // num_heads
    head_dim = keys.count("attention.key_length", 1024, default)
    for key in ("attention.value_length", "rope.dimension_count"):
        # Without its own key the value length is the default, whatever the key length says.
        other = keys.count(key, 1024, default if key == "attention.value_length" else head_dim)
        if other != head_dim:
            raise keys.error(
                f"{keys.architecture}.{key} is {other} but heads have {head_dim} values, which typebar lacks"
            )
    if head_dim % 2 or head_dim < 4:
        raise keys.error(f"heads have {head_dim} values, expected an even number from 4")
    scale = keys.number("attention.scale", 0.0)
    if scale and not math.isclose(scale, head_dim**-0.5, rel_tol=1e-5):
        raise keys.error(f"the model has its own attention scale {scale:g}, which typebar lacks")
    return head_dim


def _vocab_size(keys: _Keys) -> int:
    """Length of the token list, which must agree with the embedding (names.match_tensors compares them)."""
    tokens = keys.gguf.get("tokenizer.ggml.tokens", StringArray)
    stated = keys.count("vocab_size", 1 << 22, default=len(tokens) if tokens else None)
    size = len(tokens) if tokens else stated
    if size > 1 << 22:
        raise keys.error(f"the vocabulary has {size} tokens, more than {1 << 22}")
    return size


def _rope(keys: _Keys, head_dim: int, context_length: int) -> RopeSpec:
    theta = _theta(keys)
    rope = replace(_scaling(keys, context_length), theta=theta)
    divisors = keys.gguf.tensors.get("rope_freqs.weight")
    if divisors is None:
        return rope
    if divisors.shape != (head_dim // 2,):
        raise keys.error(f"tensor 'rope_freqs.weight' has the shape {divisors.shape}, expected ({head_dim // 2},)")
    if divisors.type != "F32":
        raise keys.error(f"tensor 'rope_freqs.weight' has the type {divisors.type}, expected F32")
    values = struct.unpack(f"<{head_dim // 2}f", divisors.read_bytes())
    if not all(1e-6 < value < 1e6 for value in values):
        raise keys.error("tensor 'rope_freqs.weight' holds a value that is not between 1e-6 and 1e6: damaged file")
    return replace(rope, frequency_divisors=values)


def _theta(keys: _Keys) -> float:
    default = DEFAULT_THETA[keys.architecture]
    if not keys.has("rope.freq_base"):
        log.warning(
            "%s: metadata '%s.rope.freq_base' is missing, assuming %g; answers may degrade over long contexts",
            keys.gguf.path, keys.architecture, default,
        )  # fmt: skip
    return keys.number("rope.freq_base", default, low=1.0, high=1e12)


def _scaling(keys: _Keys, context_length: int) -> RopeSpec:
    """The scaling of GGUF's `rope.scaling.*` keys; theta is filled in by the caller.

    As in ggml a factor without a type is linear (so is the older key `rope.scale_linear`), and the attention factor
    of a file multiplies the one that YaRN derives.
    """
    factor = keys.number("rope.scaling.factor", 0.0, low=1e-3, high=1e4)
    factor = factor or keys.number("rope.scale_linear", 0.0, low=1e-3, high=1e4)
    kind = keys.gguf.get(f"{keys.architecture}.rope.scaling.type", str) or ("linear" if factor else "none")
    if kind == "none" or (factor in (0.0, 1.0) and kind in ("linear", "yarn")):
        return RopeSpec(theta=0.0)
    if kind == "linear":
        return RopeSpec(theta=0.0, scaling="linear", factor=factor)
    if kind != "yarn":
        raise keys.error(f"the RoPE scaling {kind[:80]!r} is not supported; typebar runs none, linear and yarn")
    extra = keys.number("rope.scaling.attn_factor", 1.0, low=1e-3, high=1e3)
    extra *= keys.number("rope.scaling.yarn_attn_factor", 1.0, low=1e-3, high=1e3)
    return RopeSpec(
        theta=0.0,
        scaling="yarn",
        factor=factor,
        original_context_length=keys.count("rope.scaling.original_context_length", 1 << 27, context_length),
        attention_factor=None if extra == 1.0 else extra * (1.0 + 0.1 * math.log(max(factor, 1.0))),
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0, low=1e-3, high=1e4),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0, low=1e-3, high=1e4),
    )
