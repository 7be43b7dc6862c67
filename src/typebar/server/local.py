"""typebar's own engine in a thread of this process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from math import prod
from queue import SimpleQueue
from typing import TYPE_CHECKING

from typebar.engine.engine import Engine
from typebar.engine.generation import Generation
from typebar.engine.grammar import Grammar
from typebar.engine.params import SamplingParams
from typebar.engine.request import Output
from typebar.engine.stats import Stats
from typebar.engine.structured import StructuredOutputsParams
from typebar.engine.worker import Receiver, Worker
from typebar.errors import TypebarError
from typebar.model.load import LoadedModel
from typebar.server.engine import ModelInfo, Progress, SequenceRequest
from typebar.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from typebar.text.chat import ChatTemplate

log = logging.getLogger(__name__)


class LocalEngine:
    """The engine that `typebar.server.engine.Engine` describes, on a loaded model."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self._worker = Worker(Engine(model))
        self._mailbox: _Mailbox | None = None
        self._info = ModelInfo(
            name=model.name.removesuffix(".gguf"),
            path=str(model.path),
            architecture=model.spec.architecture,
            created=int(time.time()),
            max_model_len=model.max_model_len,
            trained_context=model.spec.context_length,
            max_num_seqs=model.config.max_num_seqs,
            vocab_size=model.spec.vocab_size,
            hidden_size=model.spec.hidden_size,
            parameters=sum(prod(shape) for _, _, *shape, _ in model.native.describe()),
            size=model.native.memory()["weights"],
            threads=model.native.threads,
            kv_dtype=model.config.kv_dtype,
        )

    def _open_mailbox(self) -> _Mailbox:
        loop = asyncio.get_running_loop()
        if self._mailbox is None or self._mailbox.loop is not loop:
            self._mailbox = _Mailbox(loop)
        return self._mailbox

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def tokenizer(self) -> Tokenizer:
        return self._model.tokenizer

    def chat_template(self) -> ChatTemplate:
        return self._model.chat_template()

    def known(self, form: StructuredOutputsParams) -> Grammar | None:
        return self._model.grammars.known(form)

    def compile(self, form: StructuredOutputsParams) -> Grammar:
        return self._model.grammars.compile(form)

    def warm_up(self) -> None:
        """Draw one token, so that the first caller does not wait for memory to be touched. Blocks meanwhile."""
        outbox: SimpleQueue[Output] = SimpleQueue()
        params = SamplingParams(max_tokens=1, ignore_eos=True, cache_prompt=False)
        [token] = self.tokenizer.encode("a")[:1] or [0]
        self._worker.submit(self._worker.new("warm-up", [token] * 16, params), outbox.put)
        output = outbox.get()
        if output.finish_reason == "error":
            raise TypebarError(f"the model does not answer: {output.summary and output.summary.error}")

    def submit(self, requests: Sequence[SequenceRequest], receive: Receiver) -> list[_Handle]:
        mailbox = self._open_mailbox()
        generations = [self._worker.new(request.id, request.prompt, request.params) for request in requests]
        for generation in generations:
            self._worker.submit(generation, partial(mailbox.put, receive))
        return [_Handle(generation) for generation in generations]

    def abort(self, id: str) -> None:
        self._worker.abort(id)

    def stats(self) -> Stats:
        return self._worker.stats()

    def failure(self) -> str | None:
        return None if self._worker.is_alive else "the engine has stopped; its log says why"

    def close(self) -> None:
        self._worker.close()


class _Mailbox:
    """Brings outputs from the engine's thread into the event loop, those of one step with one wake-up."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._outputs: deque[tuple[Receiver, Output]] = deque()
        self._is_woken = False

    def put(self, receive: Receiver, output: Output) -> None:
        """Called in the engine's thread."""
        self._outputs.append((receive, output))
        if not self._is_woken:
            self._is_woken = True
            self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_woken = False  # before the first is taken: what comes later wakes again
        while self._outputs:
            receive, output = self._outputs.popleft()
            try:
                receive(output)
            except Exception:  # must not take the outputs of others with it
                log.exception("an output of %s was lost", output.request_id)


class _Handle:
    def __init__(self, generation: Generation) -> None:
        self._request = generation.request

    def progress(self) -> Progress:
        request = self._request  # the engine thread writes it; each number is read whole
        computed = request.computed  # 0 again when the request is over: read before what tells of that
        processed = request.prompt_length if request.num_output else min(computed, request.prompt_length)
        return Progress(request.prompt_length, request.cached_tokens, processed)
