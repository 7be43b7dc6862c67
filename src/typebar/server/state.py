"""What the routes share: the settings, the model once it is loaded, the numbers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from typebar.server.engine import Engine, SequenceRequest
from typebar.server.errors import APIError
from typebar.server.jobs import Jobs
from typebar.server.metrics import Metrics
from typebar.server.prompts import Prompter
from typebar.server.record import RequestRecord
from typebar.server.request_log import log_request
from typebar.server.settings import ServerSettings

log = logging.getLogger("typebar.server")

MAX_LOGGED_TEXT = 100_000  # characters of a prompt with its answer, where they are logged


@dataclass(slots=True)
class Serving:
    """A loaded model with what runs on it."""

    engine: Engine
    jobs: Jobs
    prompter: Prompter
    metrics: Metrics
    names: tuple[str, ...]  # under which clients may ask for it, the first is the one it has in answers
    sampling: Mapping[str, Any]  # of requests that do not say otherwise

    @property
    def name(self) -> str:
        return self.names[0]

    def check_model(self, name: str | None, strict: bool) -> None:
        """APIError 404 for an unknown name, where names count."""
        if strict and name is not None and name not in self.names:
            raise APIError(404, f"this server has no such model; it has {self.name}", param="model",
                           code="model_not_found")  # fmt: skip


@dataclass(slots=True)
class ServerState:
    """The server from its first moment on; `serving` is None until the model is loaded."""

    settings: ServerSettings
    serving: Serving | None = None
    stalled: bool = False

    def loaded(self) -> Serving:
        """APIError 503 where there is no model yet."""
        if self.serving is None:
            raise APIError(503, "Loading model", code="loading", headers={"Retry-After": "1"})
        return self.serving

    def ready(self) -> Serving:
        """APIError 503 where the model cannot answer."""
        serving = self.loaded()
        if (failure := serving.engine.failure()) is not None:
            raise APIError(503, failure, code="engine_failed")
        if self.stalled:
            raise APIError(503, "the engine makes no progress", code="engine_stalled", headers={"Retry-After": "5"})
        return serving

    def serve(self, engine: Engine) -> Serving:
        """The model is there."""
        names = self.settings.served_model_name or (engine.info.name,)
        metrics = Metrics(names[0])

        def on_end(record: RequestRecord) -> None:
            metrics.record(record)
            log_request(record)

        def on_text(request: SequenceRequest, answer: str) -> None:
            prompt = engine.tokenizer.decode(request.prompt, skip_special=False)
            log.info("%s prompt %r answer %r", request.id, prompt, answer, extra={"limit": MAX_LOGGED_TEXT})

        jobs = Jobs(
            engine,
            self.settings.max_queue,
            on_end,
            metrics.observe_gap,
            metrics.rejected,
            on_text if self.settings.log_prompts else None,
        )
        prompter = Prompter(engine, metrics.rejected)
        self.serving = Serving(engine, jobs, prompter, metrics, names, self.settings.sampling)
        return self.serving
