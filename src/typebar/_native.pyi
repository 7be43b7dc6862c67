"""The C++ core: weights, KV cache, the transformer step and sampling. Heavy calls release the GIL.

Arrays of numbers are anything with the buffer protocol, contiguous: array.array, memoryview, bytes, numpy's.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

Bytes: TypeAlias = Buffer | npt.NDArray[np.uint8]
Int32s: TypeAlias = Buffer | npt.NDArray[np.int32]
UInt32s: TypeAlias = Buffer | npt.NDArray[np.uint32]
Floats: TypeAlias = Buffer | npt.NDArray[np.float32]

@final
class AttentionKind:
    """What the attention of a layer sees, the last `window` tokens or all, and its RoPE: see rope.py."""

    def __init__(
        self, *, inverse_frequencies: Floats, rope_attention_factor: float, window: int | None = None
    ) -> None: ...

@final
class ModelConfig:
    """Shape of the transformer; all fields are keyword arguments.

    attention: the kinds that there are; layer_attention: which of them each layer has; activation: silu or gelu.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        usable_vocab: int,
        hidden_size: int,
        num_layers: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        intermediate_size: int,
        rms_norm_eps: float,
        attention: Sequence[AttentionKind],
        layer_attention: Sequence[int],
        attention_scale: float,
        embedding_scale: float,
        activation: str,
        max_positions: int,
        kv_blocks: int,
        max_step_tokens: int,
        max_step_sequences: int,
        screened_head: bool = True,
        kv_dtype: str = "f16",
    ) -> None:
        """kv_dtype: f16, or q8 for keys and values in 8-bit codes."""

@final
class TensorSource:
    """A tensor in a file (`fd` and `offset`; read with pread) or in memory (`data`, raw bytes)."""

    def __init__(
        self,
        *,
        name: str,
        type: str,
        rows: int,
        cols: int,
        fd: int = -1,
        offset: int = 0,
        data: Bytes | None = None,
    ) -> None: ...

@final
class Sampler:
    """How one sequence draws its tokens, and the tokens it has seen. Raises ValueError that names the field."""

    def __init__(
        self,
        *,
        vocab_size: int,
        usable_vocab: int,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        seed: int = 0,
        logprobs: int = -1,
        logit_bias: Sequence[tuple[int, float]] = (),
    ) -> None: ...
    def see_prompt(self, tokens: Int32s) -> None: ...
    def accept(self, token: int) -> None: ...
    def allow(self, mask: UInt32s | None) -> None: ...
    def draw(self, logits: Floats, position: int) -> SampledToken: ...

@final
class SampledToken:
    @property
    def token(self) -> int: ...
    @property
    def logprob(self) -> float: ...
    @property
    def top(self) -> list[tuple[int, float]]: ...

@final
class Model:
    """Weights and KV cache of one model. One thread may call it at a time."""

    def __init__(self, config: ModelConfig, threads: int, isa: str = "") -> None: ...
    def load(
        self,
        tensors: dict[str, TensorSource],
        quantization: str,
        interleaved_rope: bool,
    ) -> None:
        """Packs the tensors, by canonical name. `quantization`: keep, q8, q6, q5, q4 or f32."""

    def step(
        self,
        tokens: Int32s,
        lengths: Int32s,
        starts: Int32s,
        block_tables: Int32s,
        samplers: Sequence[Sampler | None],
        proposed: Int32s | None = None,
    ) -> list[list[SampledToken] | str]:
        """Runs a ragged batch of `len(lengths)` sequences.

        tokens [sum(lengths)] is the sequences' new tokens end to end; sequence s has lengths[s] of them from position
        starts[s] on, and its KV blocks in block_tables [s, at least ceil((starts[s] + lengths[s]) / 16)]. A sequence
        with a sampler, one of its own, draws the token that follows its last one, and the sampler accepts it; with None
        it only fills its cache. The last proposed[s] of its tokens are guesses: it draws what follows the token before
        them, and goes on as long as what it drew is what was guessed, at most one token beyond them.
        Returns what each sequence drew, or a str that says why it could not: logits that are not finite, or no token
        allowed. Raises ValueError for a bad argument.
        """

    def logits(
        self,
        tokens: Int32s,
        lengths: Int32s,
        starts: Int32s,
        block_tables: Int32s,
    ) -> npt.NDArray[np.float32]:
        """As step(), but returns the logits of every token, [sum(lengths), vocab_size]."""

    def logits_again(self, best_needed: int = 0) -> npt.NDArray[np.float32]:
        """The logits of the tokens of the last step() or logits() once more, by the output layer alone.

        best_needed > 0: only that many of the largest, as the screened output layer finds them; others may be -inf.
        Raises ValueError where no step has run.
        """

    @property
    def screens(self) -> bool:
        """Whether draws that need few logits use the screened output layer: it is on, and symmetric, of 8 or 6 bits."""

    def copy_block(self, source: int, destination: int) -> None: ...
    def release_kv(self) -> None:
        """Gives the KV memory back to the system; every block becomes empty."""

    def memory(self) -> dict[str, int]:
        """Bytes: `weights`, `kv_block`, `kv_reserved`, `scratch`, `token_read` (weights read per decoded token)."""

    def describe(self) -> list[tuple[str, str, int, int, int]]:
        """(canonical name, format, rows, cols, bytes) of every matrix."""

    @property
    def isa(self) -> str: ...
    @property
    def threads(self) -> int: ...

@final
class Bpe:
    """A byte-level BPE, immutable. Strings are UTF-8 end to end, and where each of them ends."""

    def __init__(
        self,
        *,
        pieces: bytes,
        piece_ends: UInt32s,
        left_out: Bytes,
        merges: bytes,
        merge_ends: UInt32s,
        words: str,
        whole_words: bool,
    ) -> None:
        """pieces [tokens] in GPT-2's alphabet; left_out [tokens] is nonzero for those that no text becomes; merges
        "left right", best first; words: gpt2, smollm, qwen2 or llama3, the rule that cuts text into words;
        whole_words: a word that is a token is taken whole.

        Raises ValueError, which starts with "tokens[i]" or "merges[i]", where an entry is there twice or does not fit.
        """

    def encode(self, text: bytes) -> list[int]:
        """Tokens of a UTF-8 text. From 4096 bytes on other Python threads run meanwhile."""

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token, none for one that was left out. Raises IndexError outside the vocabulary."""

@final
class SentencePiece:
    """A BPE of characters, immutable. Strings are UTF-8 end to end, and where each of them ends."""

    def __init__(self, *, pieces: bytes, piece_ends: UInt32s, kinds: Bytes, scores: Floats) -> None:
        """pieces [tokens], a space written as U+2581; kinds [tokens]: 0 for those that no text becomes, 1 for the
        others, 2 for those of a byte, "<0xHH>";
        scores [tokens]: what two neighbours become is made in this order.

        Raises ValueError, which names the entry, where one is there twice or does not fit.
        """

    def encode(self, text: bytes) -> list[int]:
        """Tokens of a UTF-8 text. From 4096 bytes on other Python threads run meanwhile."""

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token, none for one that was left out. Raises IndexError outside the vocabulary."""

def cpu_info() -> dict[str, Any]:
    """model_name, features, logical_cpus, physical_cores, quota_cpus, quota_source, usable_isas, best_isa."""

def choose_threads() -> tuple[int, str]:
    """Threads to use here and the reason, in one line."""

def read_strings(data: bytes, position: int, count: int) -> tuple[bytes, bytes, int]:
    """Up to `count` strings from `position` on, each a little-endian u64 length and UTF-8 bytes.

    Returns the strings end to end, where each of them ends therein (uint32), and the position after the last. Fewer
    where the data ends or is not UTF-8; the position is then that of the string at fault.
    """

def find_last(tokens: Int32s, length: int) -> int:
    """The last place where the last `length` of the tokens came before, overlapping perhaps; -1 where there is none."""

def share_one_heap() -> None:
    """Lets threads that begin from now on share the first one's heap, where malloc would give each its own (glibc).

    What one has freed then serves the others: 2 MB of a server. They wait for each other at malloc, which few steps
    need.
    """

def release_free_memory() -> None:
    """Gives what malloc keeps for later back to the system, where it can (glibc)."""

def measure_read_bandwidth(threads: int, seconds: float) -> float:
    """Sustained read bandwidth in GB/s."""
