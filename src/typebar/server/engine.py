"""What the routes need of an engine: prompts in, outputs out, abort, numbers. Any engine that gives this can serve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from typebar.engine.params import SamplingParams
from typebar.engine.request import Output
from typebar.engine.stats import Stats
from typebar.engine.structured import StructuredOutputsParams
from typebar.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from typebar.text.chat import ChatTemplate


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What clients may know of the model. `created`: Unix seconds; `size`: bytes of weights in memory."""

    name: str
    path: str
    architecture: str
    created: int
    max_model_len: int
    trained_context: int
    max_num_seqs: int
    vocab_size: int
    hidden_size: int
    parameters: int
    size: int
    threads: int
    kv_dtype: str = "f16"


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """Tokens to continue, once (`params.n` is 1)."""

    id: str
    prompt: list[int]
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the prompt of a sequence is computed, in tokens."""

    total: int
    cached: int
    processed: int


class SequenceHandle(Protocol):
    """A sequence that was submitted."""

    def progress(self) -> Progress: ...


class Engine(Protocol):
    """One model behind the routes. Every method but `compile` may be called from the event loop and returns at once."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    def chat_template(self) -> ChatTemplate:
        """TypebarError where the model has none."""
        ...

    def known(self, form: StructuredOutputsParams) -> object | None:
        """The grammar of a form where it is made already, to be held as that of `compile`."""
        ...

    def compile(self, form: StructuredOutputsParams) -> object:
        """Make the grammar of a form, which may take half a second: in any thread but the event loop's.

        While the result is held, `submit` finds it made. GrammarError where the form cannot be kept to.
        """
        ...

    def submit(
        self, requests: Sequence[SequenceRequest], receive: Callable[[Output], None]
    ) -> Sequence[SequenceHandle]:
        """Check all requests, then queue them. `receive` is called in the event loop with every output.

        The last output of each has a finish_reason. Raises ParameterError or ContextLengthError, with nothing queued.
        """
        ...

    def abort(self, id: str) -> None:
        """End a sequence within a step; its last output follows."""
        ...

    def stats(self) -> Stats: ...

    def failure(self) -> str | None:
        """Why no more requests can be served, None while they can."""
        ...

    def close(self) -> None:
        """End everything that runs, within a step."""
        ...
