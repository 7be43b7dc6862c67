"""Who computes how many tokens in the next step.

One rule: a request has `length` known tokens and `computed` of them in the KV cache, and a step grants it at most
`length − computed`. A new prompt, a chunk of it, a prefix hit, a resumed request and a decoding one are the same case.
"""

from collections import deque
from dataclasses import dataclass, field
from itertools import count

from typebar.engine.blocks import BLOCK_TOKENS, blocks_for
from typebar.engine.draft import ROWS
from typebar.engine.pace import STRIDE, Pace
from typebar.engine.prefix import OutOfBlocks, PrefixCache, block_key
from typebar.engine.request import Request

LOOKAHEAD = 8  # waiting requests that are tried when the first does not fit
MAX_PASSED_BY = 16  # later requests that may be admitted before one that does not fit


@dataclass(slots=True)
class Plan:
    """A step: `counts[i]` tokens of `requests[i]`, after the block copies (source, destination) were made in order."""

    requests: list[Request] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def num_tokens(self) -> int:
        return sum(self.counts)

    def add(self, request: Request, tokens: int) -> None:
        self.requests.append(request)
        self.counts.append(tokens)

    def remove(self, request: Request) -> None:
        if request in self.requests:
            index = self.requests.index(request)
            del self.requests[index], self.counts[index]


class Scheduler:
    """Requests that wait, requests that run, and the two verbs `schedule` and `update`."""

    def __init__(self, cache: PrefixCache, max_num_seqs: int, max_step_tokens: int, step_ms: float) -> None:
        if max_step_tokens < max_num_seqs + STRIDE:
            raise ValueError(f"max_step_tokens must be at least max_num_seqs + {STRIDE}, got {max_step_tokens}")
        self.cache = cache
        self.max_num_seqs = max_num_seqs
        self.pace = Pace(step_ms, max_step_tokens)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # in order of arrival
        self.num_preemptions = 0
        self._order = count(1)

    def add(self, request: Request) -> None:
        """Queue a request. ValueError where it can never fit the KV cache."""
        if blocks_for(request.max_length) > self.cache.pool.total:
            raise ValueError(f"{request.max_length} tokens do not fit the KV cache of {self.cache.pool.total} blocks")
        request.order = next(self._order)
        self.waiting.append(request)

    def remove(self, request: Request) -> None:
        """Take a request out, finished or not; what it computed stays in the prefix cache."""
        if request.lease is None:
            self.waiting.remove(request)
            return
        self.running.remove(request)
        self._release(request)

    def schedule(self) -> Plan:
        """The next step. Empty only if there are no requests."""
        self._admit()
        plan = Plan()
        decoding = [request for request in self.running if request.remaining == 1]
        self._propose(decoding)
        for request in decoding:
            if request.lease is not None:
                self._grant(plan, request, 1 + request.proposed)
        prefills = [request for request in self.running if request.remaining > 1]
        if prefills:
            self._grant_prefills(plan, prefills)
        return plan

    def update(self, plan: Plan, sampled: list[list[int]], ms: float) -> None:
        """Take in what a step computed: the tokens drawn by each request that reached its end, none for the others.

        Of its guesses a request keeps as many as it drew, less one: the last token drawn follows them.
        """
        num_decoding, chunks = 0, []
        for request, tokens, drawn in zip(plan.requests, plan.counts, sampled, strict=True):
            if request.remaining == 1:
                num_decoding += tokens  # a guess costs as much as another request
            else:
                chunks.append((request.computed, tokens))
            request.computed += tokens - request.proposed + max(len(drawn) - 1, 0)
            for token in drawn:
                request.append(token)
            request.settle(len(drawn))
            assert request.lease is not None
            self.cache.confirm(request.lease, request.known, request.computed)
        self.pace.measured(num_decoding, chunks, ms)

    def _propose(self, decoding: list[Request]) -> None:
        """Let requests guess while few run: as many tokens as a step computes at little more than the price of one."""
        limit = ROWS // len(decoding) - 1 if decoding else 0
        if limit < 1 or len(decoding) < len(self.running) or self.cache.num_available < len(decoding):
            return
        for request in decoding:
            if request.draft is not None:
                request.propose(limit)

    def _admit(self) -> None:
        """Let waiting requests in, in order, while there are seats and blocks for all that they know.

        Where the first does not fit the next few may pass it, but not for ever. Blocks that the running requests will
        need are spoken for, with one to spare for each, so that what is let in is not thrown out at once.
        """
        spoken_for = sum(self._missing_blocks(request) + 1 for request in self.running)
        blocked: list[Request] = []
        while self.waiting and len(self.running) < self.max_num_seqs and len(blocked) < LOOKAHEAD:
            request = self.waiting.popleft()
            missing = self._open(request)
            if missing + spoken_for <= self.cache.num_available:
                spoken_for += missing + 1
                self._start(request)
                for other in blocked:
                    other.passed_by += 1
                continue
            self._release(request)
            blocked.append(request)
            if request.passed_by >= MAX_PASSED_BY:
                break
        self.waiting.extendleft(reversed(blocked))

    def _open(self, request: Request) -> int:
        """Give a waiting request its lease, with what is cached; returns the blocks that it lacks."""
        request.lease = self.cache.open(request.params.cache_salt, request.params.cache_prompt)
        request.computed = self.cache.extend(request.lease, request.known)
        return self._missing_blocks(request)

    def _start(self, request: Request) -> None:
        if not request.preemptions:
            request.cached_tokens = request.computed
        self.running.append(request)
        if len(self.running) > 1 and self.running[-2].order > request.order:
            self.running.sort(key=lambda running: running.order)

    def _release(self, request: Request) -> None:
        assert request.lease is not None
        self.cache.release(request.lease)
        request.lease = None
        request.computed = request.proposed = 0

    def _missing_blocks(self, request: Request) -> int:
        """Blocks still to be allocated to hold what the request knows and its next token."""
        assert request.lease is not None
        return max(0, blocks_for(min(request.length + 1, request.max_length)) - request.lease.num_blocks)

    def _grant_prefills(self, plan: Plan, prefills: list[Request]) -> None:
        """Share the time that the step has for prompts: half for the oldest, the rest for the shortest first.

        So a long prompt is at most twice as slow as alone, and a short one hardly waits for it. The oldest gets on in
        every step, however little time there is.
        """
        leaders = self._leaders(prefills)
        pace, room = self.pace, self.pace.max_step_tokens - len(plan)
        oldest = leaders[0]
        left = pace.prefill_ms(len(plan), len(leaders))
        reserved = min(left / 2, pace.cost(oldest.computed, oldest.remaining))
        left -= reserved
        shares: list[tuple[Request, int]] = []
        for request in sorted(leaders[1:], key=lambda request: request.remaining):
            share = pace.tokens_within(left, request.computed, min(request.remaining, room - STRIDE))
            shares.append((request, share))
            left -= pace.cost(request.computed, share)
            room -= share
        share = pace.tokens_within(reserved + left, oldest.computed, min(oldest.remaining, room))
        shares.insert(0, (oldest, max(share, min(STRIDE, oldest.remaining))))
        for request, share in shares:
            if share and request.lease is not None:
                self._grant(plan, request, share)

    def _leaders(self, prefills: list[Request]) -> list[Request]:
        """Prompts that no older one is computing just now: the others wait for the block instead of computing it too.

        Takes what has become cached meanwhile.
        """
        leaders, ahead = [], set()
        for request in prefills:
            assert request.lease is not None
            self._gain(request, self.cache.extend(request.lease, request.known))
            index, tip = request.next_block(), request.lease.tip
            if index is not None and tip is not None:
                block = (id(tip), block_key(request.tokens, index))
                if block in ahead and not request.lease.num_private:
                    continue
                ahead.add(block)
            leaders.append(request)
        return leaders

    def _gain(self, request: Request, tokens: int) -> None:
        request.computed += tokens
        if not request.preemptions:
            request.cached_tokens += tokens

    def _grant(self, plan: Plan, request: Request, tokens: int) -> None:
        """Put up to `tokens` of a request into the plan, with the blocks they need.

        Where blocks have run out the youngest requests go back to the queue, possibly this one.
        """
        lease = request.lease
        assert lease is not None
        if request.computed == lease.num_blocks * BLOCK_TOKENS and request.remaining > 1:
            copy = self.cache.copy_partial(lease, request.known)
            if copy is not None:
                plan.copies.append(copy[:2])
                self._gain(request, copy[2])
                tokens = min(tokens, request.remaining)
        missing = blocks_for(request.computed + tokens) - lease.num_blocks
        while True:
            try:
                self.cache.allocate(lease, max(0, missing))
                break
            except OutOfBlocks:
                victim = self.running[-1]
                self._preempt(victim)
                plan.remove(victim)
                if victim is request:
                    return
        plan.add(request, tokens)

    def _preempt(self, victim: Request) -> None:
        assert len(self.running) > 1, "the only request does not fit the KV cache"
        self.running.remove(victim)
        self._release(victim)
        victim.preemptions += 1
        self.num_preemptions += 1
        self.waiting.appendleft(victim)

    def check(self) -> None:
        """AssertionError unless blocks and requests agree (see PrefixCache.check)."""
        leases = []
        for request in self.running:
            assert request.lease is not None
            assert request.computed <= request.lease.num_blocks * BLOCK_TOKENS
            assert request.computed < request.length <= request.max_length
            leases.append(request.lease)
        assert all(request.lease is None for request in self.waiting)
        assert [request.order for request in self.running] == sorted(request.order for request in self.running)
        self.cache.check(leases)
