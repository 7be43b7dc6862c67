import math
import random

import numpy as np
import pytest
from drive import Driven

from tiny_model import write_tiny_gguf
from typebar.engine.request import ContextLengthError
from typebar.errors import ParameterError
from typebar.model.gguf import GGUFFile

LENGTHS = [1, 15, 16, 17, 31, 32, 33]


@pytest.fixture(scope="module")
def tiny(tiny_path):
    return Driven(tiny_path, threads=2, max_model_len=512, max_step_tokens=96)


def prompt_of(length, seed=0):
    return [random.Random(f"{seed} {n}").randrange(256) for n in range(length)]


def test_batch_gives_what_each_prompt_gives_alone(tiny):
    prompts = [prompt_of(length, seed) for seed, length in enumerate([1, 5, 16, 17, 40, 100, 200, 3])]
    alone = []
    for prompt in prompts:
        tiny.forget()
        alone.append(tiny.ask(prompt))
    tiny.forget()
    ids = [tiny.add(prompt) for prompt in prompts]
    tiny.finish()
    assert [tiny.tokens[id] for id in ids] == alone
    assert len(set(map(tuple, alone))) == len(alone)


def test_staggered_requests_give_what_each_gives_alone(tiny):
    prompts = [prompt_of(length, seed) for seed, length in enumerate([30, 7, 150, 64, 2, 33])]
    alone = [tiny.ask(prompt, max_tokens=40) for prompt in prompts]
    tiny.forget()
    ids = []
    for number, prompt in enumerate(prompts):
        ids.append(tiny.add(prompt, max_tokens=40))
        for _ in range(number * 3):
            tiny.step()
    tiny.finish()
    assert [tiny.tokens[id] for id in ids] == alone


@pytest.mark.parametrize("length", LENGTHS)
def test_warm_cache_changes_nothing(tiny, length):
    prompt, other = prompt_of(length, 1), prompt_of(length, 2)
    tiny.forget()
    cold, cold_other = tiny.ask(prompt), tiny.ask(other)
    for again, expected in ((prompt, cold), (prompt, cold), (other, cold_other), (prompt, cold), (other, cold_other)):
        id = tiny.add(again)
        tiny.finish()
        assert tiny.tokens[id] == expected
        assert tiny.last[id].summary.cached_tokens == length - 1


@pytest.mark.parametrize("length", LENGTHS)
def test_warm_prefix_with_another_tail_changes_nothing(tiny, length):
    prompt = prompt_of(length, 3)
    for tail in ([7], [9, 9], prompt_of(20, 4)):
        tiny.forget()
        cold = tiny.ask(prompt + tail)
        tiny.forget()
        tiny.ask(prompt)
        assert tiny.ask(prompt + tail) == cold


def test_first_token_logprobs_are_the_same_warm_and_cold(tiny):
    prompt = prompt_of(45, 5)
    tiny.forget()
    ids = []
    for _ in range(2):
        ids.append(tiny.add(prompt, max_tokens=1, logprobs=20))
        tiny.finish()
    assert tiny.logprobs[ids[0]] == tiny.logprobs[ids[1]]


def test_penalty_does_not_depend_on_the_cache(tiny):
    """The prompt counts for the repetition penalty whether it was computed or found."""
    prompt = prompt_of(50, 6)
    tiny.forget()
    cold = tiny.ask(prompt, repetition_penalty=1.5)
    assert tiny.ask(prompt, repetition_penalty=1.5) == cold
    assert tiny.ask(prompt) != cold


def test_seed_does_not_depend_on_the_neighbours(tiny):
    prompt, params = prompt_of(20, 7), {"temperature": 0.8, "seed": 42}
    alone = tiny.ask(prompt, **params)
    for neighbours in ([{"temperature": 1.0, "seed": 1}], [{"seed": 7, "temperature": 0.8}], [{}] * 7):
        tiny.forget()
        id = tiny.add(prompt, **params)
        for number, neighbour in enumerate(neighbours):
            tiny.add(prompt_of(30, number), **neighbour)
        tiny.finish()
        assert tiny.tokens[id] == alone
    assert tiny.ask(prompt, temperature=0.8, seed=43) != alone


def test_abort_at_any_moment_frees_everything(tiny):
    tiny.forget()
    total = tiny.engine.scheduler.cache.pool.total
    for steps in (0, 1, 2, 3, 8):
        kept, gone = tiny.add(prompt_of(40, 8)), tiny.add(prompt_of(250, steps))
        for _ in range(steps):
            tiny.step()
        output = tiny.engine.abort(gone)
        assert output.finish_reason == "abort" and output.summary.prompt_tokens == 250
        assert tiny.engine.abort(gone) is None
        tiny.engine.scheduler.check()
        tiny.finish()
        assert len(tiny.tokens[kept]) == 24
        assert tiny.free == total
    assert tiny.engine.abort("never heard of") is None


def test_full_kv_cache_lets_everyone_finish(tiny_path):
    """2048 tokens of KV cache, four requests of 400 + 1500 tokens (one alone fills it), then one more."""
    block = 4 * 2 * 2 * 16 * 16
    driven = Driven(tiny_path, threads=2, max_model_len=2000, kv_memory=128 * block, step_ms=1000)
    assert driven.engine.scheduler.cache.pool.total == 128
    prompts = [prompt_of(400, seed) for seed in range(4)]
    alone = [driven.ask(prompt, max_tokens=300) for prompt in prompts]
    ids = [driven.add(prompt, max_tokens=1500) for prompt in prompts]
    driven.finish()
    assert all(len(driven.tokens[id]) == 1500 and driven.last[id].finish_reason == "length" for id in ids)
    assert [driven.tokens[id][:300] for id in ids] == alone
    assert driven.engine.stats().preemptions > 0
    assert driven.ask(prompts[0], max_tokens=300) == alone[0]


def test_sampled_tokens_survive_preemption(tiny_path):
    block = 4 * 2 * 2 * 16 * 16
    driven = Driven(tiny_path, threads=1, max_model_len=256, kv_memory=20 * block)
    params = {"temperature": 1.0, "max_tokens": 150, "frequency_penalty": 0.5, "seed": 3}
    alone = [driven.ask(prompt_of(60, seed), **params) for seed in range(3)]
    driven.forget()
    ids = [driven.add(prompt_of(60, seed), **params) for seed in range(3)]
    driven.finish()
    assert driven.engine.stats().preemptions > 0
    assert [driven.tokens[id] for id in ids] == alone


def test_end_tokens_stop_and_stay_out_of_the_text(tiny):
    prompt = prompt_of(12, 9)
    free = tiny.ask(prompt)
    end = free[10]
    first = free.index(end)
    id = tiny.add(prompt, stop_token_ids=[end])
    shown = tiny.add(prompt, stop_token_ids=[end], include_stop_str_in_output=True)
    tiny.finish()
    assert tiny.tokens[id] == free[: first + 1]
    output = tiny.last[id]
    assert (output.finish_reason, output.stop_reason) == ("stop", end)
    tokenizer = tiny.engine.model.tokenizer
    assert tiny.texts[id] == tokenizer.decode(free[:first])
    assert tiny.texts[shown] == tokenizer.decode(free[: first + 1])


def test_every_end_token_of_the_model_stops(tiny):
    prompt = prompt_of(10, 10)
    ends = tiny.engine.model.tokenizer.end_ids
    assert len(ends) >= 2
    for end in ends:
        id = tiny.add(prompt, ignore_eos=False, logit_bias={end: 100})
        tiny.finish()
        assert tiny.tokens[id] == [end] and tiny.texts[id] == ""
        assert (tiny.last[id].finish_reason, tiny.last[id].stop_reason) == ("stop", None)
        assert tiny.ask(prompt, ignore_eos=True, logit_bias={end: 100}, max_tokens=5) == [end] * 5
        shown = tiny.add(prompt, logit_bias={end: 100}, max_tokens=2, skip_special_tokens=False)
        tiny.finish()
        assert tiny.texts[shown] == 2 * tiny.engine.model.tokenizer.token_bytes(end).decode()


def test_min_tokens_holds_end_tokens_back(tiny):
    prompt, end = prompt_of(10, 11), next(iter(tiny.engine.model.tokenizer.end_ids))
    for least in (1, 2, 7):
        tokens = tiny.ask(prompt, ignore_eos=False, logit_bias={end: 100}, min_tokens=least)
        assert len(tokens) == least + 1 and tokens.index(end) == least


def test_stop_string_ends_before_it(tiny):
    prompt = prompt_of(14, 12)
    text_id = tiny.add(prompt)
    tiny.finish()
    text = tiny.texts[text_id]
    stop = text[6:9]
    id = tiny.add(prompt, stop=["never there", stop])
    tiny.finish()
    assert tiny.texts[id] == text[: text.index(stop)]
    assert (tiny.last[id].finish_reason, tiny.last[id].stop_reason) == ("stop", stop)
    assert len(tiny.tokens[id]) < 24


def test_held_text_is_given_out_at_the_end(tiny):
    prompt = prompt_of(14, 12)
    whole = tiny.add(prompt, max_tokens=10)
    tiny.finish()
    text = tiny.texts[whole]
    id = tiny.add(prompt, max_tokens=10, stop=[text[-2:] + "and more"])
    tiny.finish()
    assert tiny.texts[id] == text and tiny.last[id].finish_reason == "length"


def test_length_ends_at_max_tokens_and_at_the_context(tiny):
    for max_tokens in (1, 2, 9):
        id = tiny.add(prompt_of(5), max_tokens=max_tokens)
        tiny.finish()
        assert len(tiny.tokens[id]) == max_tokens and tiny.last[id].finish_reason == "length"
    for length in (511, 500):
        id = tiny.add(prompt_of(length), max_tokens=None)
        tiny.finish()
        assert len(tiny.tokens[id]) == 512 - length and tiny.last[id].finish_reason == "length"
    with pytest.raises(ContextLengthError, match=r"512 tokens.*512 tokens"):
        tiny.add(prompt_of(512))


def test_logit_bias_bans_and_forces(tiny):
    prompt = prompt_of(8, 13)
    greedy = tiny.ask(prompt)
    assert tiny.ask(prompt, logit_bias={greedy[0]: -100})[0] != greedy[0]
    assert tiny.ask(prompt, logit_bias={77: 100}, max_tokens=4) == [77] * 4


def test_logprobs_are_finite_and_ordered(tiny):
    id = tiny.add(prompt_of(8, 14), logprobs=20, top_k=1, temperature=1.0, logit_bias={5: -100})
    none, zero = tiny.add(prompt_of(8, 14)), tiny.add(prompt_of(8, 14), logprobs=0)
    tiny.finish()
    assert len(tiny.logprobs[id]) == 24 and not tiny.logprobs[none]
    assert all(not entry.top and math.isfinite(entry.logprob) for entry in tiny.logprobs[zero])
    for entry in tiny.logprobs[id]:
        values = [value for _, value in entry.top]
        assert len(values) == 20 and values == sorted(values, reverse=True)
        assert all(math.isfinite(value) and value <= 0 for value in [*values, entry.logprob])
        assert sum(map(math.exp, values)) <= 1 + 1e-4


def test_padding_of_the_vocabulary_is_never_drawn(tmp_path):
    path = write_tiny_gguf(tmp_path / "padded.gguf", vocab_size=320).path
    padded = Driven(path, threads=1, max_model_len=512)
    assert padded.engine.model.spec.vocab_size == 320 and padded.engine.model.usable_vocab < 320
    tokens = padded.ask(prompt_of(4), temperature=1000.0, max_tokens=400, seed=1)
    assert max(tokens) < padded.engine.model.usable_vocab and len(set(tokens)) > 150


def test_a_draw_that_fails_ends_only_its_own_request(tiny):
    good = prompt_of(20, 1)
    alone = tiny.ask(good)
    bad = tiny.add(prompt_of(20, 2))
    words = (tiny.engine.model.spec.vocab_size + 31) // 32
    tiny.engine._generations[bad].sampler.allow(np.zeros(words, np.uint32))
    id = tiny.add(good)
    tiny.finish()
    assert tiny.last[bad].finish_reason == "error" and tiny.last[bad].summary.error
    assert tiny.tokens[id] == alone and tiny.last[id].finish_reason == "length"


@pytest.mark.parametrize(
    ("field", "prompt", "params"),
    [
        ("prompt", [], {}), ("prompt_token_ids", [288], {}), ("prompt_token_ids", [-1], {}),
        ("stop_token_ids", [1], {"stop_token_ids": [288]}), ("logit_bias", [1], {"logit_bias": {191222: 1}}),
    ],
)  # fmt: skip
def test_ids_outside_the_vocabulary_are_refused(tiny, field, prompt, params):
    with pytest.raises(ParameterError, match=f"^{field} must be"):
        tiny.add(prompt, **params)
    assert not tiny.engine.has_work


def test_logits_that_are_not_finite_end_the_request_with_an_error(tmp_path):
    path = write_tiny_gguf(tmp_path / "broken.gguf").path
    norm = GGUFFile.open(path).tensors["output_norm.weight"]
    np.memmap(path, np.float32, "r+", norm.offset, (64,))[:] = 3e38
    driven = Driven(path, threads=1)
    for _ in range(2):
        id = driven.add([1, 2, 3])
        driven.finish()
        assert driven.last[id].finish_reason == "error" and "logits" in driven.last[id].summary.error
        assert not driven.tokens[id] and not driven.engine.has_work
        driven.engine.scheduler.check()


def test_stats_count_what_was_done(tiny_path):
    driven = Driven(tiny_path, threads=1)
    prompt = prompt_of(40)
    for _ in range(2):
        driven.ask(prompt, max_tokens=10)
    gone = driven.add(prompt)
    assert driven.engine.stats().waiting == 1
    driven.engine.abort(gone)
    stats = driven.engine.stats()
    assert (stats.requests, stats.prompt_tokens, stats.cached_tokens, stats.generated_tokens) == (3, 120, 39, 20)
    assert stats.finished == {"stop": 0, "length": 2, "abort": 1, "error": 0}
    assert stats.running == stats.waiting == 0 and stats.free_blocks + stats.cached_blocks == stats.kv_blocks
