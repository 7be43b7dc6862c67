"""From a model on disk to a model that can run: weights packed, tokenizer built, room for keys and values reserved."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typebar import _native
from typebar.config import EngineConfig
from typebar.engine.blocks import BLOCK_TOKENS, blocks_for
from typebar.engine.grammar import Grammars
from typebar.errors import ModelFileError, ParameterError, TypebarError
from typebar.memory import MIB, available_memory
from typebar.model.checkpoint import open_checkpoint
from typebar.model.plan import OTHER_MEMORY, choose_quantization, kv_token_bytes, plan_tensors
from typebar.model.rope import inverse_frequencies
from typebar.model.spec import ModelSpec
from typebar.model.tensor import FileTensor, MadeTensor, Tensor
from typebar.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from typebar.text.chat import ChatTemplate

log = logging.getLogger(__name__)

DEFAULT_CONTEXTS = 4  # full contexts that the KV cache holds by default
LEAST_CONTEXT = 256  # tokens; a default context is not made smaller than this to fit the memory
MAX_KV_BLOCKS = 1 << 24  # the native core's limit


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run. One thread at a time may use `native`; everything else may be shared.

    `max_model_len` and `kv_blocks` are those in force; `usable_vocab`: ids from there on are padding. `template` is
    None where the model has no chat template, and `template_error` says why.
    """

    name: str
    path: Path
    config: EngineConfig
    spec: ModelSpec
    native: _native.Model
    tokenizer: Tokenizer
    grammars: Grammars
    template: "ChatTemplate | None"
    template_error: str
    usable_vocab: int
    max_model_len: int
    kv_blocks: int
    threads_reason: str

    def chat_template(self) -> "ChatTemplate":
        """The model's chat template. TypebarError where it has none."""
        if self.template is None:
            from typebar.text.chat import ChatTemplateError

            raise ChatTemplateError(self.template_error)
        return self.template


def load_model(
    path: Path | str, config: EngineConfig | None = None, *, name: str | None = None, **settings: Any
) -> LoadedModel:
    """Load the GGUF file `path`, the split model that it is a shard of, or the Hugging Face folder `path`.

    `settings` are fields of EngineConfig that take the place of `config`'s. The tokenizer is built while the weights
    are packed. Raises ModelFileError for a file that cannot be run, TypebarError where the memory is too small or the
    processor lacks the instruction set asked for, ParameterError for settings out of range.
    """
    config = replace(config or EngineConfig(), **settings)
    checkpoint = open_checkpoint(path)
    path, spec, tensors = checkpoint.path, checkpoint.spec, checkpoint.tensors
    config = replace(config, quantization=choose_quantization(spec, tensors, config))
    weight_bytes = sum(tensor.bytes for tensor in plan_tensors(tensors, config.quantization))
    max_model_len, kv_blocks = _kv_size(spec, config, weight_bytes)
    with _native_errors(path):
        threads, threads_reason = _threads(config.threads)
    attention, layer_attention = attention_kinds(spec, max_model_len)
    shape = _native.ModelConfig(
        vocab_size=spec.vocab_size,
        usable_vocab=checkpoint.usable_vocab,
        hidden_size=spec.hidden_size,
        num_layers=spec.num_layers,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        intermediate_size=spec.intermediate_size,
        rms_norm_eps=spec.rms_norm_eps,
        attention=attention,
        layer_attention=layer_attention,
        attention_scale=spec.attention_scale or spec.head_dim**-0.5,
        embedding_scale=spec.embedding_scale,
        activation=spec.activation,
        max_positions=max_model_len,
        kv_blocks=kv_blocks,
        max_step_tokens=config.max_step_tokens,
        max_step_sequences=config.max_num_seqs,
        screened_head=config.screened_head,
        kv_dtype=config.kv_dtype,
    )
    usable_vocab, build_tokenizer = checkpoint.usable_vocab, [checkpoint.build_tokenizer]
    del checkpoint  # the thread drops what the files say of the tokenizer, so it is free before all weights are packed
    with ThreadPoolExecutor(1) as background:
        building_tokenizer = background.submit(_tokenizer, build_tokenizer)
        compiling_template = background.submit(lambda: _template(building_tokenizer.result()))
        with _native_errors(path):
            native = _native.Model(shape, threads, config.isa)
            _load_weights(native, tensors, config.quantization, spec.rope_interleaved)
        tokenizer = building_tokenizer.result()
        template, template_error = compiling_template.result()
    return LoadedModel(
        name=name or spec.name,
        path=path,
        config=config,
        spec=spec,
        native=native,
        tokenizer=tokenizer,
        grammars=Grammars(tokenizer),
        template=template,
        template_error=template_error,
        usable_vocab=usable_vocab,
        max_model_len=max_model_len,
        kv_blocks=kv_blocks,
        threads_reason=threads_reason,
    )


def attention_kinds(spec: ModelSpec, max_model_len: int) -> tuple[list[_native.AttentionKind], list[int]]:
    """The kinds of attention that a model has, and which of them each of its layers has."""
    windows = spec.windows or (0,) * spec.num_layers
    kinds = sorted(set(windows))
    attention = []
    for window in kinds:
        rope = spec.rope_of(window)
        frequencies, factor = inverse_frequencies(rope, spec.head_dim, max_model_len)
        attention.append(
            _native.AttentionKind(inverse_frequencies=frequencies, rope_attention_factor=factor, window=window or None)
        )
    return attention, [kinds.index(window) for window in windows]


@contextmanager
def _native_errors(path: Path) -> Iterator[None]:
    """What the native core refuses, as errors that name the file."""
    try:
        yield
    except RuntimeError as error:  # a tensor that is cut short or holds what is not a number
        raise ModelFileError(f"{path}: {error}") from error
    except (OSError, ValueError) as error:  # a shape that it does not run, an instruction set, a file that is gone
        raise TypebarError(f"{path}: {error}") from error
    except MemoryError as error:
        raise TypebarError(f"{path}: too little memory: use a smaller model, or free some") from error


def _tokenizer(holder: list[Callable[[], Tokenizer]]) -> Tokenizer:
    """What the only item of `holder` builds, which is taken out so that it can be freed."""
    tokenizer = holder.pop()()
    _native.release_free_memory()
    return tokenizer


def _template(tokenizer: Tokenizer) -> "tuple[ChatTemplate | None, str]":
    from typebar.text.chat import ChatTemplate, ChatTemplateError  # jinja2: imported while the weights are packed

    try:
        return ChatTemplate(tokenizer.chat_template, tokenizer), ""
    except ChatTemplateError as error:
        return None, str(error)


def _load_weights(
    native: _native.Model,
    tensors: Mapping[str, Tensor],
    quantization: str,
    interleaved_rope: bool,
) -> None:
    with ExitStack() as files:
        descriptors: dict[Path, int] = {}
        for tensor in tensors.values():
            if isinstance(tensor, FileTensor) and tensor.path not in descriptors:
                descriptors[tensor.path] = os.open(tensor.path, os.O_RDONLY | os.O_CLOEXEC)
                files.callback(os.close, descriptors[tensor.path])
        sources = {name: _source(name, tensor, descriptors) for name, tensor in tensors.items()}
        native.load(sources, quantization, interleaved_rope)


def _source(name: str, tensor: Tensor, descriptors: Mapping[Path, int]) -> _native.TensorSource:
    rows, cols = tensor.shape if len(tensor.shape) == 2 else (1, *tensor.shape)
    if isinstance(tensor, MadeTensor):
        return _native.TensorSource(name=name, type=tensor.type, rows=rows, cols=cols, data=tensor.read())
    descriptor = descriptors[tensor.path]
    return _native.TensorSource(name=name, type=tensor.type, rows=rows, cols=cols, fd=descriptor, offset=tensor.offset)


def _threads(wanted: int | None) -> tuple[int, str]:
    if wanted is None:
        return _native.choose_threads()
    allowed = int(_native.cpu_info()["logical_cpus"])
    if wanted > allowed:
        log.warning("%d threads were asked for, but this process may use %d CPUs: using %d", wanted, allowed, allowed)
    return min(wanted, allowed), "as asked for"


def _kv_size(spec: ModelSpec, config: EngineConfig, weight_bytes: int) -> tuple[int, int]:
    """The context length and the number of KV blocks, within memory. TypebarError, with the numbers, where none fit."""
    if config.max_model_len is not None and config.max_model_len > spec.context_length:
        limit = f"at most {spec.context_length}, the context of the model"
        raise ParameterError("max_model_len", limit, config.max_model_len)
    max_model_len = config.max_model_len or min(config.default_max_model_len, spec.context_length)
    block_bytes = kv_token_bytes(spec, config.kv_dtype) * BLOCK_TOKENS
    if config.kv_memory is not None:
        budget, source = config.kv_memory, "kv_memory"
        wanted = budget // block_bytes
    else:
        available, source = available_memory()
        budget = available - weight_bytes - OTHER_MEMORY
        wanted = blocks_for(max_model_len) * min(DEFAULT_CONTEXTS, config.max_num_seqs)
    blocks = min(wanted, max(0, budget) // block_bytes, MAX_KV_BLOCKS)
    if blocks >= blocks_for(max_model_len):
        return max_model_len, blocks
    least = max_model_len if config.max_model_len is not None else min(LEAST_CONTEXT, max_model_len)
    if blocks < blocks_for(least):
        raise TypebarError(
            f"a context of {least} tokens needs {blocks_for(least) * block_bytes / MIB:.0f} MiB for keys and values "
            f"beside about {(weight_bytes + OTHER_MEMORY) / MIB:.0f} MiB for the model, and {source} leaves "
            f"{max(0, budget) / MIB:.0f} MiB: use a smaller max_model_len or model, or give it more memory"
        )
    log.warning("the context is %d tokens instead of %d, since %s allows no more", blocks * BLOCK_TOKENS, max_model_len,
                source)  # fmt: skip
    return blocks * BLOCK_TOKENS, blocks
