"""What an engine has done and is doing."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Totals since the start. Prompt tokens count at the end of a request, generated ones as they are drawn.

    `queried_tokens` are those of prompts that were looked up in the prefix cache, `cached_tokens` what it had of them;
    `proposed_tokens` are guesses that steps checked, `accepted_tokens` those that came true.
    """

    steps: int = 0
    step_ended: float = 0.0  # time.perf_counter() of the last one
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    queried_tokens: int = 0
    generated_tokens: int = 0
    proposed_tokens: int = 0
    accepted_tokens: int = 0
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("stop", "length", "abort", "error"), 0))


@dataclass(frozen=True, slots=True)
class Stats:
    """A moment of an engine.

    Blocks hold 16 tokens; `cached_blocks` are in the prefix cache, in use or not, `available_blocks` free or cached for
    nobody in particular. `decode_ms`: a step of one request that decodes; `prefill_ms_per_token`: at the beginning of a
    prompt.
    """

    running: int
    waiting: int
    preemptions: int
    kv_blocks: int
    free_blocks: int
    available_blocks: int
    cached_blocks: int
    decode_ms: float
    prefill_ms_per_token: float
    steps: int
    step_ended: float
    requests: int
    prompt_tokens: int
    cached_tokens: int
    queried_tokens: int
    generated_tokens: int
    proposed_tokens: int
    accepted_tokens: int
    finished: dict[str, int]
