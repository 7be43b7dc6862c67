"""Every knob of the engine once: its name, its default, what it does."""

from dataclasses import dataclass
from typing import Any

from typebar.errors import ParameterError

QUANTIZATIONS = ("keep", "q8", "q6", "q5", "q4", "f32", "auto")
KV_DTYPES = ("f16", "q8")
DEFAULT_MAX_MODEL_LEN = 4096
MOST_GUESSES = 3  # and the token before them are 4, which the kernels compute together

# How Qwen's authors sample for conversation (generation_config.json of Qwen2.5-Instruct). `typebar run` and `chat` use
# it where no flag says otherwise; the Python API has vLLM's neutral defaults instead.
CHAT_SAMPLING: dict[str, Any] = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How a model is loaded and its requests are scheduled. Raises ParameterError (a ValueError) that names the field.

    max_model_len: tokens of prompt and answer together; more than the model's own limit is refused. None: as many as
    default_max_model_len, fewer where the model or the memory allow no more.
    threads: None: by affinity, cgroup quota and physical cores.
    quantization: keep (no weight changes), q8, q6, q5, q4 or f32; auto: keep what is quantized already, and of float
    weights q8, or as many bits as the memory holds.
    max_num_seqs: requests that run at the same time. max_step_tokens: tokens of one step, over all requests.
    step_ms: how long a step may take while somebody waits for a token.
    kv_memory: bytes for keys and values; None: four full contexts, or what is free. Taken as it is used.
    kv_dtype: f16, or q8: keys and values in 8-bit codes, about half the bytes; see docs/numerics.md.
    isa: instruction set of the kernels; "": the best that the processor has.
    screened_head: read four bits of an output layer of 6 or 8 where a draw needs no more of it; see docs/numerics.md.
    num_speculative_tokens: guesses that a step checks beside a token, 0 to 3, while few requests run; changes no token.
    """

    max_model_len: int | None = None
    default_max_model_len: int = DEFAULT_MAX_MODEL_LEN
    threads: int | None = None
    quantization: str = "keep"
    max_num_seqs: int = 16
    max_step_tokens: int = 512
    step_ms: float = 60.0
    kv_memory: int | None = None
    kv_dtype: str = "f16"
    isa: str = ""
    screened_head: bool = True
    num_speculative_tokens: int = MOST_GUESSES

    def __post_init__(self) -> None:
        for field in ("max_model_len", "threads", "kv_memory"):
            self._check(field, getattr(self, field) is None or _is_count(getattr(self, field)), "a positive integer")
        for field in ("default_max_model_len", "max_num_seqs", "max_step_tokens"):
            self._check(field, _is_count(getattr(self, field)), "a positive integer")
        self._check("max_num_seqs", self.max_num_seqs <= 256, "at most 256")
        least = self.max_num_seqs + 16
        self._check("max_step_tokens", least <= self.max_step_tokens <= 8192, f"{least} (max_num_seqs + 16) to 8192")
        self._check("step_ms", not isinstance(self.step_ms, bool) and 1 <= self.step_ms <= 10_000, "1 to 10000")
        guesses = self.num_speculative_tokens
        is_number = isinstance(guesses, int) and not isinstance(guesses, bool)
        self._check("num_speculative_tokens", is_number and 0 <= guesses <= MOST_GUESSES, f"0 to {MOST_GUESSES}")
        self._check("kv_dtype", self.kv_dtype in KV_DTYPES, f"one of {', '.join(KV_DTYPES)}")
        self._check("quantization", self.quantization in QUANTIZATIONS, f"one of {', '.join(QUANTIZATIONS)}")
        for field in ("max_model_len", "default_max_model_len"):
            self._check(field, getattr(self, field) != 1, "at least 2, for one token of prompt and one of answer")

    def _check(self, field: str, ok: bool, expected: str) -> None:
        if not ok:
            raise ParameterError(field, expected, getattr(self, field))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
