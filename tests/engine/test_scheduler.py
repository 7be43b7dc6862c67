import random
from itertools import count

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from paper_cache import PaperCache, solo_answer, step

from typebar.engine.blocks import BLOCK_TOKENS, BlockPool, blocks_for
from typebar.engine.draft import ROWS, Draft
from typebar.engine.pace import STRIDE
from typebar.engine.params import SamplingParams
from typebar.engine.prefix import PrefixCache
from typebar.engine.request import ContextLengthError, Request
from typebar.engine.scheduler import MAX_PASSED_BY, Scheduler

VOCABULARY = 3  # few tokens, so that random prompts share prefixes


def make(blocks=64, max_num_seqs=4, max_step_tokens=64, max_model_len=None, step_ms=60.0):
    max_model_len = max_model_len or blocks * BLOCK_TOKENS
    cache = PrefixCache(BlockPool(blocks), blocks_for(max_model_len))
    return Scheduler(cache, max_num_seqs, max_step_tokens, step_ms), PaperCache(blocks, VOCABULARY)


ids = count()


def request(prompt, max_tokens=8, max_model_len=1024, **params):
    params = SamplingParams(max_tokens=max_tokens, **params)
    return Request.create(f"r{next(ids)}", list(prompt), params, max_model_len)


def run_all(scheduler, cache, steps=10_000):
    """Steps until nothing is left; returns the requests in the order in which they ended."""
    done = []
    for _ in range(steps):
        done += step(scheduler, cache)
        scheduler.check()
        if not (scheduler.running or scheduler.waiting):
            return done
    raise AssertionError(f"not done after {steps} steps")


def answer(request):
    return request.tokens[request.prompt_length : request.length].tolist()


class Traffic(RuleBasedStateMachine):
    """Random requests against a small KV cache: every answer is the solo answer, every block is accounted for."""

    @initialize(blocks=st.integers(8, 24), seqs=st.integers(1, 6), budget=st.integers(24, 80), ms=st.floats(0.1, 200))
    def start(self, blocks, seqs, budget, ms):
        self.max_model_len = min(blocks * BLOCK_TOKENS, 160)
        self.ms = ms
        self.scheduler, self.cache = make(blocks, seqs, budget, self.max_model_len)
        self.alive = []

    @rule(
        start=st.sampled_from([[], [0] * 16, [0, 1] * 20, [1] * 47, [2, 1, 0] * 22]),
        tail=st.lists(st.integers(0, VOCABULARY - 1), max_size=40),
        max_tokens=st.integers(1, 60),
        share=st.integers(0, 9).map(bool),
        salt=st.sampled_from([None, None, None, "a"]),
        guess=st.booleans(),
    )
    def submit(self, start, tail, max_tokens, share, salt, guess):
        prompt = (start + tail)[: self.max_model_len - 1] or [0]
        new = request(prompt, max_tokens, self.max_model_len, cache_prompt=share, cache_salt=salt)
        new.draft = Draft() if guess else None
        self.scheduler.add(new)
        self.alive.append(new)

    @rule()
    def step(self):
        self._step()

    @rule()
    def steps(self):
        for _ in range(15):
            self._step()

    def _step(self):
        for done in step(self.scheduler, self.cache, self.ms):
            self.alive.remove(done)
            prompt = done.tokens[: done.prompt_length].tolist()
            assert answer(done) == solo_answer(prompt, len(answer(done)), VOCABULARY)
            assert done.length == done.max_length
            assert 0 <= done.cached_tokens < done.prompt_length
        self.scheduler.check()

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def abort(self, data):
        gone = data.draw(st.sampled_from(self.alive))
        self.scheduler.remove(gone)
        self.alive.remove(gone)

    @rule()
    def evict(self):
        self.scheduler.cache.clear()
        self.cache.slots[sorted(self.scheduler.cache.pool.free_blocks())] = -1  # whoever still reads them notices

    @invariant()
    def accounted_for(self):
        if hasattr(self, "scheduler"):
            self.scheduler.check()

    def teardown(self):
        if hasattr(self, "scheduler"):
            run_all(self.scheduler, self.cache)
            assert self.scheduler.cache.num_available == self.scheduler.cache.pool.total


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("seed", range(3))
def test_answers_and_blocks_stay_right_while_requests_throw_each_other_out(seed):
    """Short prompts with long answers, salted, unshared and ordinary, for whom 12 blocks are always too few."""
    chance = random.Random(seed)
    scheduler, cache = make(blocks=12, max_num_seqs=6, max_step_tokens=40, max_model_len=160)
    alive, thrown_out, reused = [], set(), 0
    for _ in range(1500):
        while len(alive) < 8:
            prompt = [chance.randrange(VOCABULARY)] * chance.choice([1, 16, 20]) + [seed % VOCABULARY, 0]
            salt, share = chance.choice([None, None, "a"]), chance.random() < 0.8
            new = request(prompt, chance.randrange(40, 140), 160, cache_prompt=share, cache_salt=salt)
            scheduler.add(new)
            alive.append(new)
        if chance.random() < 0.05:
            gone = alive.pop(chance.randrange(len(alive)))
            scheduler.remove(gone)
            scheduler.check()
        for done in step(scheduler, cache):
            alive.remove(done)
            assert answer(done) == solo_answer(done.tokens[: done.prompt_length].tolist(), done.num_output, VOCABULARY)
            reused += done.cached_tokens
        scheduler.check()
        thrown_out |= {(one.params.cache_prompt, one.params.cache_salt) for one in scheduler.waiting if one.preemptions}
    assert scheduler.num_preemptions > 20 and reused
    assert {share for share, _ in thrown_out} == {True, False} and {salt for _, salt in thrown_out} == {None, "a"}
    run_all(scheduler, cache)
    assert scheduler.cache.num_available == 12


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33, 48])
def test_repeated_prompt_recomputes_only_its_last_token(length):
    scheduler, cache = make()
    prompt = [n % VOCABULARY for n in range(length)]
    first, again = request(prompt), request(prompt)
    scheduler.add(first)
    run_all(scheduler, cache)
    scheduler.add(again)
    run_all(scheduler, cache)
    assert answer(again) == answer(first) == solo_answer(prompt, 8, VOCABULARY)
    cached_blocks = (length + 8 - 1) // BLOCK_TOKENS  # the last token drawn was never computed
    assert again.cached_tokens == min(length - 1, cached_blocks * BLOCK_TOKENS)


def test_next_turn_finds_prompt_and_answer():
    scheduler, cache = make()
    history, tails = [1] * 20, []
    for turn in range(6):
        new = request(history, max_tokens=30)
        scheduler.add(new)
        run_all(scheduler, cache)
        tails.append(new.prompt_length - new.cached_tokens)
        history = [*new.tokens[: new.length].tolist(), 2, turn % 3, 1]
    assert all(tail <= BLOCK_TOKENS + 4 for tail in tails[1:]), tails


def test_running_request_shares_what_it_has_computed():
    scheduler, cache = make()
    first = request([1] * 64, max_tokens=100)
    scheduler.add(first)
    for _ in range(5):
        step(scheduler, cache)
    second = request([1] * 64 + [2], max_tokens=1)
    scheduler.add(second)
    step(scheduler, cache)
    assert second.cached_tokens >= 64
    assert first in scheduler.running


def test_equal_prompts_in_one_batch_are_computed_once():
    scheduler, cache = make(max_num_seqs=4, max_step_tokens=32)
    requests = [request([0, 1, 2] * 40) for _ in range(4)]
    computed = 0
    for new in requests:
        scheduler.add(new)
    while scheduler.running or scheduler.waiting:
        plan = scheduler.schedule()
        computed += sum(tokens for tokens in plan.counts if tokens > 1)
        scheduler.update(plan, cache.run(plan), 1.0)
        for new in [new for new in plan.requests if new.length == new.max_length]:
            scheduler.remove(new)
        scheduler.check()
    assert computed <= 120 + 3 * BLOCK_TOKENS


def test_salt_and_cache_prompt_separate_requests():
    scheduler, cache = make()
    prompt = [1] * 50
    for params in ({}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"cache_prompt": False}, {"cache_prompt": False}):
        new = request(prompt, **params)
        scheduler.add(new)
        run_all(scheduler, cache)
        assert new.cached_tokens == 0
    again = request(prompt, cache_salt="a")
    scheduler.add(again)
    run_all(scheduler, cache)
    assert again.cached_tokens == 48


def test_full_cache_preempts_and_everyone_finishes():
    """512 tokens of KV cache, 4 requests of 100 + 375."""
    scheduler, cache = make(blocks=32, max_model_len=512)
    requests = [request([n % VOCABULARY] * 100, max_tokens=375, max_model_len=512) for n in range(4)]
    for new in requests:
        scheduler.add(new)
    run_all(scheduler, cache)
    assert scheduler.num_preemptions
    for new in requests:
        assert answer(new) == solo_answer(new.tokens[:100].tolist(), 375, VOCABULARY)
    assert requests[0].preemptions == 0, "the oldest gives way to younger ones"
    assert sum(new.preemptions for new in requests) <= 12, "requests are thrown out again and again"


def test_old_prompt_takes_blocks_of_those_who_are_already_in_the_step():
    """A slow prompt of 32 blocks beside 15 younger answers, which grow into the blocks that it still needs."""
    scheduler, cache = make(blocks=80, max_num_seqs=16, max_step_tokens=32)
    old = request([0, 1, 2] * 166, max_tokens=2)
    young = [request([n % 3, n // 3 % 3, n // 9] + [1] * 17, max_tokens=60, cache_prompt=False) for n in range(15)]
    for new in [old, *young]:
        scheduler.add(new)
    while old.length < old.max_length:
        step(scheduler, cache)
        scheduler.check()
    assert scheduler.num_preemptions and not old.preemptions
    run_all(scheduler, cache)
    for new in young:
        assert answer(new) == solo_answer(new.tokens[:20].tolist(), 60, VOCABULARY)


def test_eviction_takes_the_least_recently_used_leaf():
    scheduler, cache = make(blocks=8)
    old, kept = [0] * 33, [1] * 33
    for prompt in (old, kept, old, kept):
        scheduler.add(request(prompt, max_tokens=1))
        run_all(scheduler, cache)
    scheduler.add(request([2] * 80, max_tokens=1))  # 5 blocks: 4 are free
    run_all(scheduler, cache)
    for prompt, cached in ((kept, 32), (old, 16)):
        lease = scheduler.cache.open()
        assert scheduler.cache.extend(lease, np.array(prompt, np.int32)) == cached
        scheduler.cache.release(lease)


def test_short_prompt_passes_a_long_one_that_does_not_fall_behind():
    scheduler, cache = make(blocks=600, max_step_tokens=64)
    long = request([0, 1, 2] * 1000, max_model_len=9600)
    scheduler.add(long)
    step(scheduler, cache)
    steps = 0
    while long.num_output == 0:
        short = request([steps % 3, 2, 1, 0] * 8 + [steps // 3 % 3] * 8, max_tokens=1)
        scheduler.add(short)
        step(scheduler, cache)
        steps += 1
        assert steps <= 3000 / STRIDE + 10
    assert steps > 10


def test_many_small_requests_do_not_starve_one_that_needs_the_whole_cache():
    scheduler, cache = make(blocks=32, max_num_seqs=4, max_model_len=512)
    for _ in range(3):
        scheduler.add(request([0] * 20, max_tokens=60))
    step(scheduler, cache)
    big = request([1] * 450, max_tokens=20, max_model_len=512)
    scheduler.add(big)
    for passed in range(10_000):
        if big.num_output:
            break
        if len(scheduler.waiting) < 4:
            scheduler.add(request([passed % 3, 2] * 10, max_tokens=60))
        step(scheduler, cache)
    assert big.num_output
    assert big.passed_by <= MAX_PASSED_BY + 4


def test_seats_are_refilled_at_once():
    scheduler, cache = make(blocks=256, max_num_seqs=4)
    for n in range(6):
        scheduler.add(request([n % 3] * 3 + [n] * 40, max_tokens=2 if n == 0 else 200))
    while len(scheduler.running) != 4 or any(new.remaining > 1 for new in scheduler.running):
        step(scheduler, cache)
    assert len(scheduler.running) == 4 and len(scheduler.waiting) == 1


def test_decoding_goes_on_beside_a_long_prompt():
    scheduler, cache = make(blocks=700, max_step_tokens=512)
    talker = request([0] * 5, max_tokens=50)
    scheduler.add(talker)
    step(scheduler, cache)
    scheduler.add(request([1, 2] * 4000, max_model_len=11200))
    while talker.length < talker.max_length:
        before = talker.length
        plan = scheduler.schedule()
        assert talker in plan.requests and plan.num_tokens <= 1 + 32
        scheduler.update(plan, cache.run(plan), 25.0 * plan.num_tokens / 10)
        assert talker.length == before + 1
    scheduler.remove(talker)


def test_prompt_must_leave_room_for_one_token():
    with pytest.raises(ContextLengthError, match=r"100 tokens.*100 tokens") as caught:
        request([0] * 100, max_model_len=100)
    assert (caught.value.prompt_tokens, caught.value.max_model_len) == (100, 100)
    assert request([0] * 99, max_tokens=None, max_model_len=100).max_length == 100
    assert request([0] * 10, max_tokens=10**9, max_model_len=100).max_length == 100


def test_request_that_can_never_fit_is_refused():
    scheduler, _ = make(blocks=4)
    with pytest.raises(ValueError, match="do not fit the KV cache of 4 blocks"):
        scheduler.add(request([0] * 50, max_tokens=50))


def guessing(prompt, **settings):
    new = request(prompt, **settings)
    new.draft = Draft()
    return new


def test_guesses_that_come_true_save_steps_and_change_nothing():
    scheduler, cache = make()
    cache.vocabulary = 2  # the hash repeats itself soon
    new = guessing([0, 1] * 10, max_tokens=400, max_model_len=1024)
    scheduler.add(new)
    steps = 0
    while scheduler.running or scheduler.waiting:
        step(scheduler, cache)
        scheduler.check()
        steps += 1
        assert new.length <= new.max_length
    assert steps < 350
    assert answer(new) == solo_answer([0, 1] * 10, 400, 2)


def test_two_requests_guess_less_and_three_nothing():
    scheduler, cache = make(max_step_tokens=512)
    for number in range(1, 4):
        scheduler.add(guessing([number % 3] * 40, max_tokens=60))
        while any(new.remaining > 1 for new in scheduler.running) or scheduler.waiting:
            step(scheduler, cache)
        for new in scheduler.running:
            new.draft = Draft()
        plan = scheduler.schedule()
        assert max(plan.counts) <= ROWS // number
        assert sum(plan.counts) <= ROWS
        scheduler.update(plan, cache.run(plan), 1.0)


def test_nobody_guesses_beside_a_prompt():
    scheduler, cache = make(blocks=600, max_step_tokens=64)
    talker = guessing([0] * 40, max_tokens=60)
    scheduler.add(talker)
    step(scheduler, cache)
    scheduler.add(guessing([1] * 3000, max_model_len=9600))
    for _ in range(10):
        plan = scheduler.schedule()
        assert plan.counts[plan.requests.index(talker)] == 1
        scheduler.update(plan, cache.run(plan), 1.0)


def test_guess_never_goes_beyond_the_last_token():
    guessed = set()
    for tokens in range(1, 40):
        scheduler, cache = make()
        cache.vocabulary = 2
        new = guessing([0, 1] * 10, max_tokens=tokens)
        scheduler.add(new)
        while scheduler.running or scheduler.waiting:
            plan = scheduler.schedule()
            guessed.add(new.proposed)
            assert new.length + new.proposed < new.max_length
            scheduler.update(plan, cache.run(plan), 1.0)
            if new.length == new.max_length:
                scheduler.remove(new)
        assert answer(new) == solo_answer([0, 1] * 10, tokens, 2)
    assert guessed == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("blocks", "prompts", "tokens"), [(4, (13, 10), (20, 30)), (4, (17, 10), (16, 38)), (5, (20, 11), (22, 52))]
)
def test_nobody_is_thrown_out_for_a_guess(blocks, prompts, tokens):
    """The blocks suffice, as the first answer ends in time, but not for one more a little earlier."""
    scheduler, cache = make(blocks=blocks, max_num_seqs=2)
    cache.vocabulary = 2
    for number in range(2):
        prompt = ([number, 0, 1] * 20)[: prompts[number]]
        scheduler.add(guessing(prompt, max_tokens=tokens[number], max_model_len=200, cache_prompt=False))
    run_all(scheduler, cache)
    assert not scheduler.num_preemptions
