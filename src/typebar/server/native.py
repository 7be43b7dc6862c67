"""llama-server's own routes: POST /completion, GET /props, GET /slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from typebar import __version__
from typebar.engine.params import SamplingParams
from typebar.engine.request import Output
from typebar.errors import TypebarError
from typebar.server.answers import Tally, shown_logprobs, timings, token_text
from typebar.server.errors import APIError
from typebar.server.exchange import Exchange
from typebar.server.generate import generate
from typebar.server.jobs import Job
from typebar.server.sampling import sampling_params, sequence_requests
from typebar.server.schema.native import (
    DefaultGenerationSettings,
    NativeChunk,
    NativeCompletion,
    NativeProbability,
    NativeRequest,
    NativeTopProbability,
    NextToken,
    Props,
    Slot,
)
from typebar.server.schema.sampling import PromptProgress
from typebar.server.state import Serving
from typebar.server.structured import compiled, wanted_form

# What llama-server's documentation gives as its defaults.
DEFAULTS: dict[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}


async def completion(exchange: Exchange) -> None:
    """Continue one text, in one piece or as a stream."""
    serving, fields = await exchange.fields(NativeRequest)
    if fields.seed == -1:  # llama-server's word for none
        fields.seed = None
    max_tokens = fields.n_predict if fields.n_predict is not None else fields.max_tokens
    form = wanted_form(fields)
    params = sampling_params(
        fields,
        DEFAULTS,
        max_tokens=None if max_tokens == -1 else max_tokens,
        logprobs=fields.n_probs or None,
        form=form,
    )
    serving.jobs.check_room()
    _grammar = await compiled(serving.prompter, form)
    prompts = await serving.prompter.text(fields.prompt, fields.truncate_prompt_tokens)
    if len(prompts) * params.n != 1:
        raise APIError(400, "one prompt and n = 1; /v1/completions takes several", param="prompt", code="unsupported")
    id = f"cmpl-{exchange.request_id}"
    requests = sequence_requests(id, prompts, params)
    await generate(
        exchange, "native", fields, id, requests, lambda job: NativeAnswer(serving, job, fields, params), done=b""
    )


async def props(exchange: Exchange) -> None:
    """What clients ask to learn the context length."""
    serving = exchange.ready()
    info = serving.engine.info
    template = serving.engine.tokenizer.chat_template or ""
    await exchange.json(
        Props(
            default_generation_settings=DefaultGenerationSettings(n_ctx=info.max_model_len, params=DEFAULTS),
            total_slots=info.max_num_seqs,
            model_path=info.path,
            model_alias=serving.name,
            chat_template=template,
            chat_template_caps={"supports_tools": False, "supports_system_role": _takes_system(serving)},
            modalities={"vision": False, "audio": False},
            build_info=f"typebar {__version__}",
        )
    )


async def slots(exchange: Exchange) -> None:
    """The seats of the engine, with what runs on them. With ?fail_on_no_slot=1 a full engine is 503."""
    serving = exchange.ready()
    info = serving.engine.info
    busy = [sequence for job in serving.jobs for sequence in job.unfinished()][: info.max_num_seqs]
    if len(busy) == info.max_num_seqs and exchange.query.get("fail_on_no_slot") == "1":
        raise APIError(503, "no slot is free", code="no_slot", headers={"Retry-After": "1"})
    seats = []
    for number in range(info.max_num_seqs):
        max_tokens, decoded = busy[number] if number < len(busy) else (0, 0)
        remain = -1 if max_tokens is None else max_tokens - decoded
        is_busy = number < len(busy)
        seats.append(
            Slot(
                id=number,
                id_task=number if is_busy else -1,
                n_ctx=info.max_model_len,
                speculative=False,
                is_processing=is_busy,
                params={},
                next_token=NextToken(
                    has_next_token=is_busy, has_new_line=False, n_remain=remain if is_busy else -1, n_decoded=decoded
                ),
            )
        )
    await exchange.json(seats)


class NativeAnswer:
    """The response to one prompt, as one object or as chunks."""

    def __init__(self, serving: Serving, job: Job, fields: NativeRequest, params: SamplingParams) -> None:
        self.tally = Tally(job, 1)
        self._job = job
        self._params = params
        self._tokenizer = serving.engine.tokenizer
        self._model = serving.name
        self._return_tokens = fields.return_tokens
        self._prompt = job.requests[0].prompt
        self._has_new_line = False
        self._probabilities: list[NativeProbability] = []

    async def whole(self, ignored: Sequence[str]) -> NativeCompletion:
        """Wait for the answer. llama-server has no place for warnings; the response's header names the fields."""
        texts: list[str] = []
        tokens: list[int] = []
        async for _, output in self.tally.outputs():
            self._note(output)
            texts.append(output.text)
            tokens += output.token_ids
        return self._last("".join(texts), tokens, self._probabilities)

    def opening(self) -> Sequence[NativeChunk]:
        return ()

    def chunk(self, index: int, output: Output) -> list[NativeChunk]:
        """The text of an output."""
        probabilities = self._note(output)
        if not (output.text or probabilities or (self._return_tokens and output.token_ids)):
            return []
        chunk = self._chunk(output.text, list(output.token_ids) if self._return_tokens else [])
        chunk.completion_probabilities = probabilities or UNSET
        return [chunk]

    def progress(self, progress: PromptProgress) -> NativeChunk:
        chunk = self._chunk("", [])
        chunk.prompt_progress = progress
        return chunk

    def closing(self) -> list[NativeCompletion]:
        """Everything but the text, which was sent."""
        return [self._last("", [], [])]

    def _chunk(self, text: str, tokens: list[int]) -> NativeChunk:
        return NativeChunk(
            content=text,
            tokens=tokens,
            index=0,
            id_slot=0,
            tokens_predicted=self.tally.completion_tokens,
            tokens_evaluated=len(self._prompt),
        )

    def _last(self, text: str, tokens: list[int], probabilities: list[NativeProbability]) -> NativeCompletion:
        output = self.tally.last[0]
        stop_type, word = self._stop_type(output)
        times = timings(output)
        shown: list[NativeProbability] | UnsetType = probabilities or UNSET
        return NativeCompletion(
            content=text,
            tokens=tokens if self._return_tokens else [],
            stop_type=stop_type,
            stopping_word=word,
            model=self._model,
            prompt=self._tokenizer.decode(self._prompt, skip_special=False),
            id_slot=0,
            index=0,
            tokens_predicted=self.tally.completion_tokens,
            tokens_evaluated=len(self._prompt),
            tokens_cached=times.cache_n,
            truncated=False,
            has_new_line=self._has_new_line,
            generation_settings=_settings(self._job.requests[0].params),  # with the seed that was taken
            timings=times,
            completion_probabilities=shown,
        )

    def _stop_type(self, output: Output) -> tuple[Any, str]:
        if output.finish_reason == "length" or self._job.ended_by == "timeout":
            return "limit", ""
        if output.finish_reason != "stop":
            return "none", ""
        return ("word", output.stop_reason) if isinstance(output.stop_reason, str) else ("eos", "")

    def _note(self, output: Output) -> list[NativeProbability]:
        self._has_new_line = self._has_new_line or "\n" in output.text
        probabilities = [
            NativeProbability(
                id=entry.token,
                token=token_text(self._tokenizer, entry.token),
                bytes=list(data),
                logprob=entry.logprob,
                top_logprobs=[self._top(token, logprob) for token, logprob in entry.top],
            )
            for entry, data in shown_logprobs(output, self._params, self._tokenizer)
        ]
        self._probabilities += probabilities
        return probabilities

    def _top(self, token: int, logprob: float) -> NativeTopProbability:
        data = self._tokenizer.token_bytes(token)
        return NativeTopProbability(
            id=token, token=token_text(self._tokenizer, token), bytes=list(data), logprob=logprob
        )


def _takes_system(serving: Serving) -> bool:
    """Whether the chat template takes a system message: a few refuse it."""
    try:
        serving.engine.chat_template().render([{"role": "system", "content": ""}, {"role": "user", "content": ""}])
    except TypebarError:
        return False
    return True


def _settings(params: SamplingParams) -> dict[str, Any]:
    return {
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "repeat_penalty": params.repetition_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "seed": params.seed,
        "stop": list(params.stop_strings),
        "n_predict": -1 if params.max_tokens is None else params.max_tokens,
        "ignore_eos": params.ignore_eos,
        "n_probs": params.logprobs or 0,
    }
