import gc
import math
import os
import threading
import time
import weakref

import pytest

import typebar
from typebar import LLM, SamplingParams, TypebarError
from typebar.engine.request import ContextLengthError
from typebar.errors import ModelFileError, ParameterError

GREEDY = SamplingParams(temperature=0, max_tokens=16)


@pytest.fixture(scope="module")
def coder(coder_path):
    with LLM(str(coder_path), max_model_len=2048) as llm:
        yield llm


@pytest.fixture(scope="module")
def tiny(tiny_path):
    with LLM(str(tiny_path), threads=1) as llm:
        yield llm


def user(text):
    return [{"role": "user", "content": text}]


def test_right_answers_from_real_weights(coder):
    outputs = coder.chat([user("What is 2 + 2? Answer with the number."), user("中国的首都是哪里?")], GREEDY)
    assert "4" in outputs[0].outputs[0].text and "北京" in outputs[1].outputs[0].text
    for output in outputs:
        assert output.finished and output.outputs[0].finish_reason == "stop"
        assert "<|im_end|>" not in output.outputs[0].text
        assert output.outputs[0].token_ids[-1] in coder.get_tokenizer().end_ids


def test_smollm_answers_too(smollm_path):
    with LLM(str(smollm_path), max_model_len=512) as llm:
        [fact], [greeting] = llm.generate("The capital of France is", GREEDY), llm.chat(user("Say hello."), GREEDY)
    assert fact.outputs[0].text.startswith(" Paris") and "Hello" in greeting.outputs[0].text


def test_batch_equals_each_prompt_alone_on_real_weights(coder):
    prompts = ["def fibonacci(n):", "# 快速排序\n", "SELECT name FROM", "x" * 150, "🦙", "The quick brown fox"]
    params = SamplingParams(temperature=0, max_tokens=24, cache_prompt=False)
    together = coder.generate(prompts, params)
    alone = [coder.generate(prompt, params)[0] for prompt in prompts]
    assert [o.outputs[0].token_ids for o in together] == [o.outputs[0].token_ids for o in alone]
    assert [o.prompt for o in together] == prompts
    assert [o.outputs[0].text for o in together] == [o.outputs[0].text for o in alone]


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33])
def test_warm_equals_cold_on_real_weights(coder, length):
    ids = coder.get_tokenizer().encode("def quicksort(items):\n    if len(items) <= 1:\n        return items\n" * 3)[
        :length
    ]
    prompt = {"prompt_token_ids": ids}
    cold = coder.generate(prompt, SamplingParams(temperature=0, max_tokens=12, cache_prompt=False))[0]
    first, warm = (coder.generate(prompt, SamplingParams(temperature=0, max_tokens=12))[0] for _ in range(2))
    assert cold.outputs[0].token_ids == first.outputs[0].token_ids == warm.outputs[0].token_ids
    assert cold.num_cached_tokens == 0 and warm.num_cached_tokens >= length - 1 - (length - 1) % 16


def test_next_turn_is_found_in_the_cache(coder):
    messages = user("Name three fruits, only the names.")
    known = 0
    for _ in range(4):
        [output] = coder.chat(messages, SamplingParams(temperature=0, max_tokens=40))
        assert output.num_cached_tokens >= known - 16
        known = len(output.prompt_token_ids) + len(output.outputs[0].token_ids)
        messages += [{"role": "assistant", "content": output.outputs[0].text}, *user("Three more.")]


def test_stream_gives_the_same_text(coder):
    messages = user("用一句话介绍 Python 🐍")
    params = SamplingParams(temperature=0, max_tokens=40)
    [whole] = coder.chat(messages, params)
    pieces = list(stream := coder.chat(messages, params, stream=True))
    assert "".join(pieces) == whole.outputs[0].text and len(pieces) > 5
    assert "\ufffd" not in "".join(pieces)
    assert stream.output.outputs == whole.outputs
    assert stream.output.metrics.ttft_ms > 0 and stream.output.metrics.decode_tps > 0


def wait_until_idle(llm, seconds=5.0):
    end = time.monotonic() + seconds
    while llm.stats().running or llm.stats().waiting:
        assert time.monotonic() < end, "a request goes on"
        time.sleep(0.01)


@pytest.mark.parametrize("leave", ["close", "with", "drop"])
def test_stream_left_early_ends_its_request(coder, leave):
    stream = coder.chat(user("Write 5000 words about the sea."), SamplingParams(temperature=0), stream=True)
    next(stream)
    if leave == "close":
        stream.close()
        assert stream.output.outputs[0].finish_reason == "abort"
        assert list(stream) == []
    elif leave == "with":
        with stream:
            next(stream)
    else:
        del stream
    wait_until_idle(coder)


def test_stream_never_read_ends_its_request(tiny):
    stream = tiny.chat(user("x"), SamplingParams(ignore_eos=True), stream=True)
    del stream
    wait_until_idle(tiny)


def test_stream_takes_one_conversation(tiny):
    with pytest.raises(ValueError, match="one conversation and n = 1"):
        tiny.chat([user("a"), user("b")], GREEDY, stream=True)
    with pytest.raises(ValueError, match="one conversation and n = 1"):
        tiny.chat(user("a"), SamplingParams(n=2), stream=True)


def test_control_tokens_in_messages_stay_text(tiny):
    [output] = tiny.chat(user("<|im_end|>"), GREEDY)
    control = tiny.get_tokenizer().control_tokens["<|im_end|>"]
    assert output.prompt_token_ids.count(control) == 1
    [output] = tiny.generate("<|im_end|>", GREEDY)
    assert output.prompt_token_ids == [control]


def test_forms_of_prompts(tiny):
    ids = tiny.get_tokenizer().encode("on the")
    outputs = tiny.generate(["on the", {"prompt": "on the"}, {"prompt_token_ids": ids}], GREEDY)
    assert {tuple(output.prompt_token_ids) for output in outputs} == {tuple(ids)}
    assert [output.prompt for output in outputs] == ["on the", "on the", None]
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 1
    assert tiny.generate([], GREEDY) == []
    assert len(tiny.generate("on", None)) == 1


@pytest.mark.parametrize(
    "prompt", [5, None, {"text": "x"}, {"prompt_token_ids": "12"}, {"prompt_token_ids": [1.5]}, [b"x"]]
)
def test_other_prompts_are_refused(tiny, prompt):
    with pytest.raises((ParameterError, TypeError)):
        tiny.generate(prompt, GREEDY)


def test_parameters_for_each_prompt(tiny):
    outputs = tiny.generate(
        ["a", "b"], [SamplingParams(max_tokens=3, ignore_eos=True), SamplingParams(max_tokens=5, ignore_eos=True)]
    )
    assert [len(output.outputs[0].token_ids) for output in outputs] == [3, 5]
    with pytest.raises(ValueError, match="2 prompts and 1 sampling_params"):
        tiny.generate(["a", "b"], [GREEDY])
    with pytest.raises(ParameterError, match="sampling_params must be SamplingParams"):
        tiny.generate("a", [{"temperature": 0}])


def test_choices_have_streams_of_their_own(tiny):
    params = SamplingParams(n=4, seed=1, temperature=1.0, max_tokens=12)
    [first], [again] = tiny.generate("on the", params), tiny.generate("on the", params)
    assert [c.index for c in first.outputs] == [0, 1, 2, 3]
    assert [c.token_ids for c in first.outputs] == [c.token_ids for c in again.outputs]
    assert len({tuple(c.token_ids) for c in first.outputs}) == 4
    [single] = tiny.generate("on the", SamplingParams(seed=1, temperature=1.0, max_tokens=12))
    assert single.outputs[0].token_ids == first.outputs[0].token_ids


def test_without_a_seed_answers_differ(tiny):
    params = SamplingParams(temperature=1.2, max_tokens=12)
    outputs = tiny.generate(["on the"] * 8, params) + tiny.generate("on the", params)
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) > 4


def test_seed_of_the_llm_makes_runs_repeatable(tiny_path):
    answers = []
    for _ in range(2):
        with LLM(str(tiny_path), threads=1, seed=5) as llm:
            outputs = llm.generate(["on the"] * 3, SamplingParams(temperature=1.0, max_tokens=12))
            answers.append([output.outputs[0].token_ids for output in outputs])
    assert answers[0] == answers[1] and len(set(map(tuple, answers[0]))) == 3


def test_logprobs_of_the_tokens(tiny):
    [output] = tiny.generate("on the", SamplingParams(temperature=0, max_tokens=5, logprobs=3, ignore_eos=True))
    [completion] = output.outputs
    assert len(completion.logprobs) == len(completion.token_ids) == 5
    for token, entry in zip(completion.token_ids, completion.logprobs, strict=True):
        assert len(entry) == 3 and entry[token].rank == 1
        assert entry[token].decoded_token == tiny.get_tokenizer().decode([token], skip_special=False)
    assert math.isclose(
        completion.cumulative_logprob,
        sum(entry[token].logprob for token, entry in zip(completion.token_ids, completion.logprobs, strict=True)),
    )
    [plain] = tiny.generate("on the", GREEDY)
    assert plain.outputs[0].logprobs is None and plain.outputs[0].cumulative_logprob is None


def test_prompt_over_the_context_is_refused_before_any_work(tiny):
    before = tiny.stats()
    with pytest.raises(ContextLengthError, match=r"2500 tokens.*2048 tokens") as caught:
        tiny.generate(["a", {"prompt_token_ids": [1] * 2500}], GREEDY)
    assert caught.value.prompt_tokens == 2500
    assert tiny.stats().requests == before.requests and tiny.stats().steps == before.steps


def test_threads_share_one_llm(tiny):
    prompts = [f"on the {n}" for n in range(6)]
    expected = [tiny.generate(prompt, GREEDY)[0].outputs[0].token_ids for prompt in prompts]
    found = {}

    def ask(n):
        found[n] = [tiny.generate(prompts, GREEDY)[n].outputs[0].token_ids for _ in range(3)]

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {n: [expected[n]] * 3 for n in range(6)}


def test_interrupted_call_leaves_the_engine_usable(tiny, monkeypatch):
    expected = tiny.generate("on the", GREEDY)[0].outputs[0].token_ids
    import _thread

    timer = threading.Timer(0.1, _thread.interrupt_main)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        tiny.generate(["the on"] * 30, SamplingParams(temperature=0, ignore_eos=True))
    wait_until_idle(tiny)
    assert tiny.generate("on the", GREEDY)[0].outputs[0].token_ids == expected


def test_closed_llm_says_so(tiny_path):
    llm = LLM(str(tiny_path), threads=1)
    llm.close()
    with pytest.raises(TypebarError, match="closed"):
        llm.generate("a", GREEDY)
    llm.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_model_len": 4096}, "max_model_len must be at most 2048"), ({"max_model_len": 1}, "max_model_len must"),
        ({"threads": 0}, "threads must be"), ({"quantization": "q3"}, "quantization must be one of"),
        ({"max_num_seqs": 0}, "max_num_seqs must be"), ({"seed": "x"}, "seed must be"),
        ({"kv_memory": 1000}, "a context of 256 tokens needs"), ({"kv_dtype": "q4"}, "kv_dtype must be one of f16, q8"),
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused_by_name(tiny_path, settings, message):
    with pytest.raises((ValueError, TypebarError), match=message):
        LLM(str(tiny_path), **settings)


def test_file_that_is_not_there_is_named():
    with pytest.raises(ModelFileError, match=r"/no/such/model\.gguf"):
        LLM("/no/such/model.gguf")


def test_settings_of_vllm_for_other_hardware_are_accepted(tiny_path):
    with pytest.warns(UserWarning, match="dtype, tensor_parallel_size"):
        LLM(str(tiny_path), threads=1, tensor_parallel_size=1, dtype="auto").close()
    with pytest.raises(TypeError, match="no argument 'temprature'"):
        LLM(str(tiny_path), temprature=0)


def test_default_context_shrinks_to_the_memory(tiny_path, caplog):
    block = 4 * 2 * 2 * 16 * 16
    with LLM(str(tiny_path), threads=1, kv_memory=50 * block) as llm:
        assert llm.model.max_model_len == 800 and llm.model.kv_blocks == 50
    assert "the context is 800 tokens instead of 2048" in caplog.text


def test_keys_and_values_in_8_bits_answer_and_are_used_again(coder_path):
    with LLM(str(coder_path), threads=2, max_model_len=512, kv_dtype="q8") as llm:
        prompt = "# Arithmetic, a function each.\n\n\ndef add(a, b):\n    return a + b\n\n\ndef multiply(a, b):\n"
        params = SamplingParams(temperature=0, max_tokens=12)
        first, again = llm.generate(prompt, params)[0], llm.generate(prompt, params)[0]
        assert "return a * b" in first.outputs[0].text
        assert again.outputs[0].token_ids == first.outputs[0].token_ids
        assert again.num_cached_tokens >= 16 > first.num_cached_tokens == 0


def test_package_is_light():
    assert typebar.__version__
    with pytest.raises(AttributeError, match="nothing_here"):
        typebar.nothing_here  # noqa: B018


def test_close_frees_the_model_and_refuses_later_calls(tiny_path):
    llm = LLM(str(tiny_path), threads=1)
    [answer] = llm.generate("ab", GREEDY)
    assert answer.finished
    tokenizer = weakref.ref(llm.model.tokenizer)
    llm.close()
    llm.close()
    gc.collect()
    assert tokenizer() is None
    for call in (lambda: llm.generate("ab"), lambda: llm.chat(user("ab")), llm.stats, llm.get_tokenizer):
        with pytest.raises(TypebarError, match="closed"):
            call()


def test_chat_takes_a_template_and_its_variables(tiny):
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{{ ending }}"
    settings = {"chat_template": template, "chat_template_kwargs": {"ending": "!"}}
    [output] = tiny.chat(user("ab"), GREEDY, **settings)
    assert output.prompt_token_ids == tiny.get_tokenizer().encode("ab!")
    with pytest.raises(TypeError):
        tiny.chat(user("ab"), GREEDY, lora_request=1)


def test_close_from_another_thread_than_the_reader(tiny):
    stream = tiny.chat(user("ab"), SamplingParams(temperature=0, max_tokens=1500, ignore_eos=True), stream=True)
    next(stream)
    reader = threading.Thread(target=lambda: list(stream))
    closer = threading.Thread(target=stream.close)
    for thread in (reader, closer):
        thread.start()
    for thread in (reader, closer):
        thread.join(60)
        assert not thread.is_alive()
    assert stream.output.finished


def test_close_during_generate_gives_what_came(tiny_path):
    llm = LLM(str(tiny_path), threads=1)
    results = []
    params = SamplingParams(temperature=0, max_tokens=1900, ignore_eos=True)
    caller = threading.Thread(target=lambda: results.extend(llm.generate("ab", params)))
    caller.start()
    while not llm.stats().generated_tokens:
        time.sleep(0.01)
    llm.close()
    caller.join(60)
    assert results[0].outputs[0].finish_reason == "abort" and results[0].outputs[0].token_ids


def test_a_forked_child_is_told_to_load_its_own(tiny):
    child = os.fork()
    if child == 0:
        try:
            tiny.generate("ab", GREEDY)
            os._exit(1)
        except TypebarError as error:
            os._exit(0 if "fork" in str(error) else 2)
        os._exit(3)
    assert os.waitpid(child, 0)[1] == 0


def test_one_message_for_a_list_of_messages(tiny):
    with pytest.raises(TypebarError):
        tiny.chat({"role": "user", "content": "ab"}, GREEDY)
