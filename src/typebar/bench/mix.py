"""How long a soak is and what it asks."""

from __future__ import annotations

from dataclasses import dataclass

from typebar.errors import ParameterError


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """How long and what. Shares are of 1.

    minutes, requests: whichever comes first; None: no limit. concurrency: users over HTTP, beside `websockets` users
    whose connections stay open. cancel: share of chats whose client leaves at a random moment. bad: share of requests
    that must be refused. long: share of prompts of up to half a context. pool: distinct chats. salted: share of chats
    that may not reuse what is cached, so that the cache fills and evicts. warmup: requests before memory is judged.
    timeout: seconds after which a request counts as stuck. sample_every: seconds between looks at the server.
    """

    minutes: float | None = 20.0
    requests: int | None = None
    concurrency: int = 16
    websockets: int = 5
    cancel: float = 0.3
    bad: float = 0.05
    long: float = 0.15
    salted: float = 0.25
    pool: int = 40
    warmup: int = 200
    timeout: float = 180.0
    sample_every: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises ParameterError for what cannot be run."""
        for name in ("cancel", "bad", "long", "salted"):
            if not 0 <= getattr(self, name) <= 1:
                raise ParameterError(name, "from 0 to 1", getattr(self, name))
        if self.concurrency + self.websockets < 1:
            raise ParameterError("concurrency", "at least 1 where there are no WebSockets", self.concurrency)
        if self.pool < 1:
            raise ParameterError("pool", "at least 1", self.pool)
