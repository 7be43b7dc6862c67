"""The engine: requests go in, and each step computes some tokens of many of them."""

import logging
from dataclasses import fields
from time import perf_counter

from typebar import _native
from typebar.engine.blocks import BlockPool, blocks_for, int32s
from typebar.engine.draft import Draft
from typebar.engine.generation import Generation
from typebar.engine.params import SamplingParams
from typebar.engine.prefix import PrefixCache
from typebar.engine.request import Output
from typebar.engine.scheduler import Plan, Scheduler
from typebar.engine.stats import Counters, Stats
from typebar.model.load import LoadedModel

log = logging.getLogger(__name__)


class Engine:
    """Runs requests on one model. Belongs to one thread; only `new` and `stats` may be called from others."""

    def __init__(self, model: LoadedModel) -> None:
        self.model = model
        config = model.config
        cache = PrefixCache(BlockPool(model.kv_blocks), blocks_for(model.max_model_len))
        self.scheduler = Scheduler(cache, config.max_num_seqs, config.max_step_tokens, config.step_ms)
        self._generations: dict[str, Generation] = {}
        self._tokens = int32s(config.max_step_tokens)
        self._lengths = int32s(config.max_num_seqs)
        self._starts = int32s(config.max_num_seqs)
        self._proposed = int32s(config.max_num_seqs)
        self._counters = Counters()

    @property
    def has_work(self) -> bool:
        return bool(self._generations)

    def new(self, id: str, prompt: list[int], params: SamplingParams) -> Generation:
        """Check a request and build what it needs. ValueError that names what is wrong."""
        return Generation(self.model, id, prompt, params)

    def add(self, generation: Generation) -> None:
        """Queue a request. ValueError where one with its id is there."""
        id = generation.request.id
        if id in self._generations:
            raise ValueError(f"a request with the id {id!r} is already running")
        generation.request.timing.arrival = generation.request.timing.arrival or perf_counter()
        guesses = self.model.config.num_speculative_tokens
        if guesses and not generation.is_constrained:
            generation.request.draft = Draft(guesses)
        self.scheduler.add(generation.request)
        self._generations[id] = generation
        self._counters.requests += 1

    def abort(self, id: str) -> Output | None:
        """End a request now; returns its last output, None where there is no such request (any more)."""
        generation = self._generations.get(id)
        return self._close(generation, generation.end("abort")) if generation else None

    def abort_all(self) -> list[Output]:
        return [output for id in list(self._generations) if (output := self.abort(id))]

    def step(self) -> list[Output]:
        """Compute the next step; returns what it gave, for each request that has a new token or failed."""
        plan = self.scheduler.schedule()
        if not plan.requests:
            return []
        generations = [self._generations[request.id] for request in plan.requests]
        start = perf_counter()
        for request in plan.requests:
            request.timing.scheduled = request.timing.scheduled or start
        try:
            sampled = self._run(plan, generations)
        except (RuntimeError, ValueError) as error:
            log.error("a step of %d requests failed: %s", len(generations), error)
            return [self._close(generation, generation.end("error", str(error))) for generation in generations]
        now = perf_counter()
        self._counters.steps += 1
        self._counters.step_ended = now
        tokens = [[] if isinstance(drawn, str) else [one.token for one in drawn] for drawn in sampled]
        self._counters.proposed_tokens += sum(request.proposed for request in plan.requests)
        self._counters.accepted_tokens += sum(len(drawn) - 1 for drawn in tokens if drawn)
        self.scheduler.update(plan, tokens, (now - start) * 1e3)
        outputs = []
        for generation, drawn in zip(generations, sampled, strict=True):
            if isinstance(drawn, str):
                outputs.append(self._close(generation, generation.end("error", drawn)))
            elif drawn:
                output = generation.advance(drawn, now)
                self._counters.generated_tokens += len(output.token_ids)
                outputs.append(self._close(generation, output) if output.finish_reason else output)
        return outputs

    def stats(self) -> Stats:
        """Numbers of this moment. From another thread they may be of two moments that lie one step apart."""
        scheduler, pool = self.scheduler, self.scheduler.cache.pool
        counters = {field.name: getattr(self._counters, field.name) for field in fields(Counters)}
        return Stats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            preemptions=scheduler.num_preemptions,
            kv_blocks=pool.total,
            free_blocks=pool.num_free,
            available_blocks=scheduler.cache.num_available,
            cached_blocks=scheduler.cache.num_cached,
            decode_ms=scheduler.pace.decode_ms(1),
            prefill_ms_per_token=scheduler.pace.token_ms,
            **{**counters, "finished": dict(self._counters.finished)},
        )

    def _run(self, plan: Plan, generations: list[Generation]) -> list[list[_native.SampledToken] | str]:
        """The native step for a plan: tokens end to end, and each request's blocks as a row of the table."""
        for source, destination in plan.copies:
            self.model.native.copy_block(source, destination)
        samplers: list[_native.Sampler | None] = []
        count = len(plan.requests)
        width = max(blocks_for(request.length + request.proposed) for request in plan.requests)
        tables = int32s(count * width)
        at = 0
        for row, (request, tokens) in enumerate(zip(plan.requests, plan.counts, strict=True)):
            end = request.computed + tokens
            assert request.lease is not None
            self._tokens[at : at + tokens] = request.tokens[request.computed : end]
            self._lengths[row] = tokens
            self._starts[row] = request.computed
            self._proposed[row] = request.proposed
            tables[row * width : (row + 1) * width] = request.lease.table[:width]
            samplers.append(generations[row].sampler if end >= request.length else None)
            at += tokens
        return self.model.native.step(
            self._tokens[:at], self._lengths[:count], self._starts[:count],
            tables.cast("B").cast("i", (count, width)), samplers, self._proposed[:count],
        )  # fmt: skip

    def _close(self, generation: Generation, output: Output) -> Output:
        """Forget a request whose last output is `output`."""
        self.scheduler.remove(generation.request)
        del self._generations[generation.request.id]
        assert output.finish_reason is not None and output.summary is not None
        self._counters.finished[output.finish_reason] += 1
        self._counters.prompt_tokens += output.summary.prompt_tokens
        self._counters.cached_tokens += output.summary.cached_tokens
        if generation.params.cache_prompt and generation.request.timing.scheduled:
            self._counters.queried_tokens += output.summary.prompt_tokens
        return output
