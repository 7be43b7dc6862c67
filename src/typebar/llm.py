"""The Python API: a model in this process, with the call shapes of vLLM's offline API."""

import contextlib
import itertools
import secrets
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Literal, overload

from typebar.config import MOST_GUESSES, EngineConfig
from typebar.engine.engine import Engine
from typebar.engine.generation import Generation
from typebar.engine.params import SamplingParams
from typebar.engine.request import Output
from typebar.engine.stats import Stats
from typebar.engine.worker import Worker
from typebar.errors import ParameterError, TypebarError
from typebar.model.load import LoadedModel, load_model
from typebar.outputs import Answer, RequestOutput, metrics
from typebar.text.tokenizer import Tokenizer

Prompt = str | Mapping[str, Any]
Message = Mapping[str, Any]

# Settings of vLLM's LLM for other hardware: they are accepted, so that a program runs by changing its import.
WITHOUT_MEANING = {
    "tokenizer", "tokenizer_mode", "skip_tokenizer_init", "trust_remote_code", "tensor_parallel_size",
    "pipeline_parallel_size", "dtype", "gpu_memory_utilization", "swap_space", "cpu_offload_gb", "enforce_eager",
    "max_num_batched_tokens", "enable_prefix_caching", "enable_chunked_prefill", "disable_log_stats",
    "disable_custom_all_reduce", "kv_cache_dtype", "block_size",
}  # fmt: skip


class LLM:
    """A model that answers in this process. Any number of threads may use one; their requests run together.

    model: a name of the catalog, a .gguf file, a folder, a Hugging Face repository or a URL; None: the default model.
    seed: makes runs repeatable that give no seed of their own; None: fresh entropy for each request.
    The other arguments are those of EngineConfig. Raises TypebarError or ValueError, naming what is wrong.

    `with LLM(...) as llm:` or `close()` gives the memory back.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        max_model_len: int | None = None,
        threads: int | None = None,
        quantization: str | None = "keep",
        seed: int | None = None,
        max_num_seqs: int = 16,
        kv_memory: int | None = None,
        kv_dtype: str = "f16",
        isa: str = "",
        screened_head: bool = True,
        num_speculative_tokens: int = MOST_GUESSES,
        **other: Any,
    ) -> None:
        if unknown := sorted(other.keys() - WITHOUT_MEANING):
            raise TypeError(f"LLM() has no argument {unknown[0]!r}")
        if other:
            warnings.warn(f"without meaning on a CPU, ignored: {', '.join(sorted(other))}", stacklevel=2)
        config = EngineConfig(
            max_model_len=max_model_len,
            threads=threads,
            quantization=quantization or "keep",
            max_num_seqs=max_num_seqs,
            kv_memory=kv_memory,
            kv_dtype=kv_dtype,
            isa=isa,
            screened_head=screened_head,
            num_speculative_tokens=num_speculative_tokens,
        )
        SamplingParams(seed=seed)
        from typebar.model.download import resolve_model

        resolved = resolve_model(model)
        self._seed = seed
        self._numbers = itertools.count()
        self._running: tuple[LoadedModel, Worker] | None = None
        model_loaded = load_model(resolved.path, config, name=resolved.name)
        self._running = model_loaded, Worker(Engine(model_loaded))

    @property
    def model(self) -> LoadedModel:
        """The loaded model. TypebarError after `close`."""
        return self._open()[0]

    @property
    def _worker(self) -> Worker:
        return self._open()[1]

    def _open(self) -> tuple[LoadedModel, Worker]:
        if self._running is None:
            raise TypebarError("this LLM is closed: make a new one")
        return self._running

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = False,
    ) -> list[RequestOutput]:
        """Continue each prompt; all of them run as one batch. Results are in the order of the prompts.

        A prompt is a text, in which control tokens such as <|im_end|> are recognised, {"prompt": text} or
        {"prompt_token_ids": ids}. `sampling_params`: one for all, or one for each. Without max_tokens an answer goes on
        until the model ends it or the context is full. `use_tqdm` shows the progress on stderr.

        Raises ValueError before any work is done: ParameterError, ContextLengthError for a prompt that is too long.
        """
        single = isinstance(prompts, str | Mapping)
        texts = [self._read_prompt(prompt) for prompt in ([prompts] if single else prompts)]
        return self._run(self._requests(texts, sampling_params), use_tqdm)

    @overload
    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = False,
        *,
        stream: Literal[False] = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]: ...

    @overload
    def chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        use_tqdm: bool = False,
        *,
        stream: Literal[True],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> "TextStreamer": ...

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = False,
        *,
        stream: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> "list[RequestOutput] | TextStreamer":
        """Answer a conversation, or each of a list of conversations, which run as one batch.

        Messages are {"role": …, "content": …}. `chat_template` (Jinja2) takes the place of the model's own, and
        `chat_template_kwargs` are variables of it; the other arguments are those of ChatTemplate.encode. With `stream`
        the result is an iterator over pieces of text (str) of the one answer; closing it early ends the request.

        Raises as `generate`, and TypebarError for messages that the model's template refuses.
        """
        several = not isinstance(messages, Mapping) and messages and isinstance(messages[0], list | tuple)
        chats = messages if several else [messages]
        if chat_template is None:
            template = self.model.chat_template()
        else:
            from typebar.text.chat import ChatTemplate

            template = ChatTemplate(chat_template, self.model.tokenizer)
        settings: dict[str, Any] = {
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            **(chat_template_kwargs or {}),
        }
        prompts = [(None, template.encode(chat, **settings)) for chat in chats]  # type: ignore[arg-type]
        requests = self._requests(prompts, sampling_params)
        if not stream:
            return self._run(requests, use_tqdm)
        if len(requests) != 1 or requests[0].params.n != 1:
            raise ValueError("stream=True takes one conversation and n = 1")
        return TextStreamer(self._worker, requests[0], self.model.tokenizer)

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.model.tokenizer

    def stats(self) -> Stats:
        """What the engine has done and is doing."""
        return self._worker.stats()

    def close(self) -> None:
        """End what runs, within one step, stop the engine and free the model. Later calls raise TypebarError."""
        if self._running is not None:
            running, self._running = self._running, None
            running[1].close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read_prompt(self, prompt: object) -> tuple[str | None, list[int]]:
        if isinstance(prompt, Mapping):
            ids, text = prompt.get("prompt_token_ids"), prompt.get("prompt")
            if ids is not None:
                if isinstance(ids, str) or not isinstance(ids, Iterable):
                    raise ParameterError("prompt_token_ids", "a list of token ids", ids)
                ids = list(ids)
                if any(isinstance(id, bool) or not isinstance(id, Integral) for id in ids):
                    raise ParameterError("prompt_token_ids", "a list of token ids", ids)
                return (text if isinstance(text, str) else None), [int(id) for id in ids]
            prompt = text
        if not isinstance(prompt, str):
            raise ParameterError("prompts", 'a text, {"prompt": text}, {"prompt_token_ids": ids} or a list', prompt)
        return prompt, self.model.tokenizer.encode(prompt, parse_special=True, add_special=True)

    def _requests(
        self,
        prompts: Sequence[tuple[str | None, list[int]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
    ) -> "list[_Request]":
        """Check all prompts and parameters before anything runs."""
        if sampling_params is None or isinstance(sampling_params, SamplingParams):
            sampling_params = [sampling_params or SamplingParams()] * len(prompts)
        if len(sampling_params) != len(prompts):
            raise ValueError(f"there are {len(prompts)} prompts and {len(sampling_params)} sampling_params")
        requests = []
        for (prompt, ids), params in zip(prompts, sampling_params, strict=True):
            if not isinstance(params, SamplingParams):
                raise ParameterError("sampling_params", "SamplingParams", params)
            number = next(self._numbers)
            entropy = secrets.randbits(64) if self._seed is None else self._seed + number
            generations = [
                self._worker.new(f"{number}-{index}", ids, params.for_choice(index, entropy))
                for index in range(params.n)
            ]
            requests.append(_Request(str(number), prompt, ids, params, generations))
        return requests

    def _run(self, requests: "list[_Request]", show_progress: bool) -> list[RequestOutput]:
        model, worker = self._open()  # close() may take them from the LLM meanwhile
        outbox: SimpleQueue[Output] = SimpleQueue()
        answers = {id: answer for request in requests for id, answer in request.answers.items()}
        try:
            for request in requests:
                for generation in request.generations:
                    worker.submit(generation, outbox.put)
            with _progress(len(answers), show_progress) as advance:
                left = len(answers)
                while left:
                    output = outbox.get()
                    answers[output.request_id].add(output, model.tokenizer)
                    if output.finish_reason is not None:
                        _raise_if_failed(output)
                        left -= 1
                        advance()
        except BaseException:
            for id in answers:
                worker.abort(id)
            raise
        return [request.output() for request in requests]


class TextStreamer(Iterator[str]):
    """The pieces of text of one answer as they come; `output` is there after the last. Belongs to one thread.

    Leaving the loop early, `close()` or losing the last reference ends the request within a step.
    """

    def __init__(self, worker: Worker, request: "_Request", tokenizer: Tokenizer) -> None:
        self._worker, self._request, self._tokenizer = worker, request, tokenizer
        self._outbox: SimpleQueue[Output | None] = SimpleQueue()  # None: somebody else has closed it
        self._id, self._answer = next(iter(request.answers.items()))
        worker.submit(request.generations[0], self._outbox.put)

    @property
    def output(self) -> RequestOutput:
        """What has come so far, and everything at the end."""
        return self._request.output()

    def __next__(self) -> str:
        while self._answer.last is None:
            output = self._outbox.get()
            if output is None:
                break
            self._answer.add(output, self._tokenizer)
            _raise_if_failed(output)
            if output.text:
                return output.text
        raise StopIteration

    def close(self) -> None:
        """End the request and take what it gave until then into `output`."""
        if self._answer.last is not None:
            return
        self._worker.abort(self._id)
        while self._answer.last is None and self._worker.is_alive:
            with contextlib.suppress(Empty):  # another thread that reads may take the last output
                if (output := self._outbox.get(timeout=0.1)) is not None:
                    self._answer.add(output, self._tokenizer)
        self._outbox.put(None)  # wakes a thread that waits for an output which was taken here

    def __enter__(self) -> "TextStreamer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if (answer := getattr(self, "_answer", None)) is not None and answer.last is None:
            self._worker.abort(self._id)


@dataclass(slots=True)
class _Request:
    id: str
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    generations: list[Generation]
    answers: dict[str, Answer] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.answers = {generation.request.id: Answer(index) for index, generation in enumerate(self.generations)}

    def output(self) -> RequestOutput:
        answers = list(self.answers.values())
        with_logprobs = self.params.logprobs is not None
        return RequestOutput(
            request_id=self.id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            outputs=[answer.completion(with_logprobs) for answer in answers],
            metrics=metrics(answers),
            num_cached_tokens=next((answer.summary.cached_tokens for answer in answers if answer.summary), 0),
            finished=all(answer.last is not None for answer in answers),
        )


def _raise_if_failed(output: Output) -> None:
    if output.finish_reason == "error":
        raise TypebarError((output.summary and output.summary.error) or "the engine failed; its log says why")


class _progress:
    """A progress bar on stderr, or nothing. The context is a function that counts one answer."""

    def __init__(self, total: int, show: bool) -> None:
        self._bar: Any = None
        self._total = total
        if show:
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True))

    def __enter__(self) -> Any:
        if self._bar is None:
            return lambda: None
        self._bar.start()
        task = self._bar.add_task("answers", total=self._total)
        return lambda: self._bar.advance(task)

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()
