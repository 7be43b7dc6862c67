"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence

from typebar.engine.params import SamplingParams
from typebar.engine.request import Output
from typebar.server.answers import OpenAIAnswer, finish, ignored_warnings, shown_logprobs, timings, token_text
from typebar.server.errors import APIError
from typebar.server.exchange import Exchange
from typebar.server.generate import generate
from typebar.server.jobs import Job
from typebar.server.sampling import (
    check_stream_options,
    sampling_params,
    sequence_requests,
    stream_interval,
)
from typebar.server.schema.completion import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
)
from typebar.server.schema.sampling import PromptProgress
from typebar.server.state import Serving
from typebar.server.structured import compiled, wanted_form

DEFAULT_MAX_TOKENS = 16  # OpenAI's default


async def completions(exchange: Exchange) -> None:
    """Continue one or several texts, in one piece or as a stream."""
    serving, fields = await exchange.fields(CompletionRequest)
    check_stream_options(fields.stream, fields.stream_options)
    gather = stream_interval(fields.stream_options)
    form = wanted_form(fields)
    if fields.echo and fields.logprobs is not None:
        raise APIError(400, "echo with logprobs is not supported: log-probabilities are given for the answer only",
                       param="logprobs", code="unsupported")  # fmt: skip
    params = sampling_params(
        fields, serving.sampling, max_tokens=_max_tokens(fields), logprobs=fields.logprobs, form=form
    )
    serving.jobs.check_room()
    _grammar = await compiled(serving.prompter, form)
    prompts = await serving.prompter.text(fields.prompt, fields.truncate_prompt_tokens, fields.add_special_tokens)
    id = f"cmpl-{exchange.request_id}"
    requests = sequence_requests(id, prompts, params)
    await generate(
        exchange,
        "completion",
        fields,
        id,
        requests,
        lambda job: CompletionAnswer(serving, job, fields, params),
        gather=gather,
    )


def _max_tokens(fields: CompletionRequest) -> int | None:
    if fields.max_tokens is not None:
        return fields.max_tokens
    if fields.n_predict is not None:
        return None if fields.n_predict == -1 else fields.n_predict
    return DEFAULT_MAX_TOKENS


class CompletionAnswer(OpenAIAnswer[Completion]):
    """The response to some prompts, as one object or as chunks of the same form."""

    chunk_type = Completion

    def __init__(self, serving: Serving, job: Job, fields: CompletionRequest, params: SamplingParams) -> None:
        super().__init__(serving, job, fields, params)
        self._echo = [self._prompt_text(request.prompt) if fields.echo else "" for request in job.requests]
        self._lengths = [len(text) for text in self._echo]  # characters of each answer's tokens so far

    async def whole(self, ignored: Sequence[str]) -> Completion:
        """Wait for all answers."""
        texts = [[echo] for echo in self._echo]
        logprobs = [CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[]) for _ in texts]
        async for index, output in self.tally.outputs():
            self._add_logprobs(logprobs[index], index, output)
            texts[index].append(output.text)
        choices = []
        for index, output in sorted(self.tally.last.items()):
            shown = None if self._params.logprobs is None else logprobs[index]
            choices.append(self._choice(index, "".join(texts[index]), shown, output))
        completion = self._chunk(*choices)
        completion.usage, completion.timings = self._usage(), self.tally.timings()
        completion.warnings = ignored_warnings(ignored)
        return completion

    def opening(self) -> list[Completion]:
        """The prompts, where they are to be repeated."""
        return [self._chunk(self._choice(index, text)) for index, text in enumerate(self._echo) if text]

    def chunk(self, index: int, output: Output) -> list[Completion]:
        """The text of an output, and the reason for the end with the last."""
        shown = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        self._add_logprobs(shown, index, output)
        is_last = output.finish_reason is not None
        if not (output.text or shown.tokens or is_last):
            return []
        choice = self._choice(index, output.text, shown if shown.tokens else None, output if is_last else None)
        chunk = self._chunk(choice)
        if is_last:
            chunk.timings = timings(output)
        return [chunk]

    def progress(self, progress: PromptProgress) -> Completion:
        """A chunk without text that tells how far the first prompt is."""
        chunk = self._chunk(self._choice(0, ""))
        chunk.prompt_progress = progress
        return chunk

    def _choice(
        self, index: int, text: str, logprobs: CompletionLogprobs | None = None, last: Output | None = None
    ) -> CompletionChoice:
        choice = CompletionChoice(index=index, text=text, finish_reason=None, logprobs=logprobs)
        if last is not None:
            choice.finish_reason, choice.stop_reason = finish(self._job, last)
        return choice

    def _prompt_text(self, prompt: list[int]) -> str:
        return self._tokenizer.decode(prompt, skip_special=self._params.skip_special_tokens)

    def _add_logprobs(self, logprobs: CompletionLogprobs, index: int, output: Output) -> None:
        for entry, data in shown_logprobs(output, self._params, self._tokenizer):
            logprobs.tokens.append(token_text(self._tokenizer, entry.token))
            logprobs.token_logprobs.append(entry.logprob)
            top = {token_text(self._tokenizer, token): logprob for token, logprob in reversed(entry.top)}
            logprobs.top_logprobs.append(top)
            logprobs.text_offset.append(self._lengths[index])
            self._lengths[index] += sum(byte & 0xC0 != 0x80 for byte in data)  # first bytes of UTF-8 characters
