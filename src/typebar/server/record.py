"""What is remembered of a request once it has ended: the source of the log line and the metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# "timeout" and "overflow" (a reader too slow) are aborts that the server decided, "cancelled" those of the client.
EndReason = Literal["stop", "length", "cancelled", "timeout", "overflow", "shutdown", "error"]


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One sequence: a request for n answers leaves n of these. Durations in seconds; 0 where it was not reached.

    `prompt_tokens` counts all of the prompt, `cached_tokens` the part that was not computed anew. `ttft` and `e2e`
    count from arrival; `queue` until first scheduled, `prefill` from there to the first token, `decode` to the last.
    """

    id: str
    route: str  # "chat", "completion", "native" or "websocket"
    reason: EndReason
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    max_tokens: int | None
    n: int
    queue: float
    ttft: float
    prefill: float
    decode: float
    e2e: float
    caller_id: str | None = None  # the X-Request-Id that it came with
    preemptions: int = 0
    error: str = ""

    @property
    def prefill_tps(self) -> float:
        """Prompt tokens computed per second; 0 where none were."""
        new = self.prompt_tokens - self.cached_tokens
        return new / self.prefill if self.prefill > 0 else 0.0

    @property
    def decode_tps(self) -> float:
        """Tokens per second after the first; 0 where there were none."""
        return (self.completion_tokens - 1) / self.decode if self.decode > 0 and self.completion_tokens > 1 else 0.0
