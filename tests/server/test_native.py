"""llama-server's routes, field by field as its documentation names them, and the tokenizer's."""

import time
from typing import Any

import pytest
from asking import CHAT, GREEDY, NATIVE, user
from server_process import ServerProcess

REPLY = {
    "content": str, "tokens": list, "stop": bool, "stop_type": str, "stopping_word": str, "model": str, "prompt": str,
    "generation_settings": dict, "tokens_cached": int, "tokens_evaluated": int, "truncated": bool, "timings": dict,
}  # fmt: skip
TIMINGS = (
    "cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second", "predicted_n", "predicted_ms",
    "predicted_per_token_ms", "predicted_per_second",
)  # fmt: skip
END, LETTER_E = "287", "68"  # ids of the tiny vocabulary: <|im_end|> and "e"


def complete(server: ServerProcess, prompt: Any = "go", **fields: Any) -> dict[str, Any]:
    response = server.post(NATIVE, {"prompt": prompt, **GREEDY, **fields})
    assert response.status_code == 200, response.text
    value: dict[str, Any] = response.json()
    return value


def test_reply_has_every_field(tiny_server: ServerProcess) -> None:
    value = complete(tiny_server, "go on", n_predict=4, ignore_eos=True)
    assert {name: type(value[name]) for name in REPLY} == REPLY
    assert (value["prompt"], value["model"], value["stop"], value["truncated"]) == ("go on", "tiny", True, False)
    assert (value["tokens_predicted"], value["tokens_evaluated"]) == (4, value["timings"]["prompt_n"])
    assert set(TIMINGS) <= value["timings"].keys()
    assert all(isinstance(value["timings"][name], int | float) for name in TIMINGS)


@pytest.mark.parametrize(
    ("fields", "stop_type", "word"),
    [
        ({"n_predict": 3, "ignore_eos": True}, "limit", ""),
        ({"n_predict": 3, "logit_bias": {END: 100}}, "eos", ""),
        ({"n_predict": 9, "logit_bias": {LETTER_E: 100}, "stop": ["eee"]}, "word", "eee"),
        ({"n_predict": -1, "logit_bias": [[68, 100]], "stop": ["ee"]}, "word", "ee"),
        ({"logit_bias": [[287, 100]]}, "eos", ""),
        ({"prompt": [65] * 2000, "n_predict": -1, "ignore_eos": True}, "limit", ""),  # the context ends it
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_stop_type(tiny_server: ServerProcess, fields: dict[str, Any], stop_type: str, word: str, stream: bool) -> None:
    if stream:
        value = tiny_server.events(NATIVE, {"prompt": "go", **GREEDY, **fields})[-1]
    else:
        value = complete(tiny_server, **fields)
    assert (value["stop_type"], value["stopping_word"]) == (stop_type, word)


def test_tokens_come_on_request(tiny_server: ServerProcess) -> None:
    assert complete(tiny_server, n_predict=4)["tokens"] == []
    value = complete(tiny_server, n_predict=4, return_tokens=True, ignore_eos=True)
    assert len(value["tokens"]) == 4
    assert tiny_server.post("/detokenize", {"tokens": value["tokens"]}).json()["content"] == value["content"]
    fields = {"prompt": "go", **GREEDY, "n_predict": 4, "return_tokens": True, "ignore_eos": True}
    *chunks, last = tiny_server.events(NATIVE, fields)
    assert [id for chunk in chunks for id in chunk["tokens"]] == value["tokens"]
    assert "".join(chunk["content"] for chunk in chunks) == value["content"]
    assert (last["content"], last["tokens"]) == ("", [])
    assert set(REPLY) <= last.keys()


def test_probabilities_come_on_request(tiny_server: ServerProcess) -> None:
    assert "completion_probabilities" not in complete(tiny_server, n_predict=2)
    entries = complete(tiny_server, n_predict=2, n_probs=3, ignore_eos=True)["completion_probabilities"]
    assert len(entries) == 2
    for entry in entries:
        assert entry.keys() == {"id", "token", "bytes", "logprob", "top_logprobs"}
        assert len(entry["top_logprobs"]) == 3
        assert entry["id"] == entry["top_logprobs"][0]["id"]
        assert bytes(entry["bytes"]).decode("utf-8", "replace") == entry["token"]


def test_settings_are_those_of_the_request(tiny_server: ServerProcess) -> None:
    fields = {"top_k": 7, "top_p": 0.5, "min_p": 0.25, "repeat_penalty": 1.5, "presence_penalty": 0.5, "seed": 3,
              "frequency_penalty": -0.5, "stop": ["x"], "n_predict": 2, "ignore_eos": True, "n_probs": 1}  # fmt: skip
    settings = complete(tiny_server, **fields)["generation_settings"]
    assert {name: settings[name] for name in fields} == fields
    defaults = tiny_server.post(NATIVE, {"prompt": "go", "n_predict": 1}).json()["generation_settings"]
    told = tiny_server.get("/props").json()["default_generation_settings"]["params"]
    assert {name: defaults[name] for name in told} == told
    assert told == {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}


def test_settings_show_the_seed_that_draws_the_answer_again(tiny_server: ServerProcess) -> None:
    for unseeded in ({}, {"seed": None}, {"seed": -1}):
        fields = {"n_predict": 12, "temperature": 1.5, "ignore_eos": True}
        first, other = (complete(tiny_server, **fields, **unseeded) for _ in range(2))
        assert first["content"] != other["content"]
        seed = first["generation_settings"]["seed"]
        again = complete(tiny_server, **fields, seed=seed)
        assert (again["content"], again["generation_settings"]["seed"]) == (first["content"], seed)


@pytest.mark.parametrize(
    ("prompt", "text", "count"),
    [("go", "go", 2), ([70, 78], "go", 2), ([70, "o"], "go", 2), (["go"], "go", 2), ([[70, 78]], "go", 2),
     ("<|im_end|>go", "<|im_end|>go", 3)],
)  # fmt: skip
def test_prompt_of_every_form(tiny_server: ServerProcess, prompt: Any, text: str, count: int) -> None:
    value = complete(tiny_server, prompt, n_predict=1)
    assert (value["prompt"], value["tokens_evaluated"]) == (text, count)


def test_several_prompts_or_answers_are_refused(tiny_server: ServerProcess) -> None:
    for fields in ({"prompt": ["a", "b"]}, {"prompt": "a", "n": 2}):
        response = tiny_server.post(NATIVE, fields)
        assert (response.status_code, response.json()["error"]["code"]) == (400, "unsupported")


def test_cache_is_told_and_can_be_bypassed(tiny_server: ServerProcess) -> None:
    prompt = [40 + number % 17 for number in range(100)]
    complete(tiny_server, prompt, n_predict=1)
    warm = complete(tiny_server, prompt, n_predict=1)
    assert (warm["tokens_cached"], warm["timings"]["cache_n"]) == (96, 96)
    assert (warm["timings"]["prompt_n"], warm["tokens_evaluated"]) == (4, 100)
    cold = complete(tiny_server, prompt, n_predict=1, cache_prompt=False)
    assert (cold["tokens_cached"], cold["timings"]["prompt_n"]) == (0, 100)


def test_new_lines_are_noticed(tiny_server: ServerProcess) -> None:
    [newline] = tiny_server.post("/tokenize", {"content": "\n"}).json()["tokens"]
    assert complete(tiny_server, n_predict=2, logit_bias={newline: 100})["has_new_line"] is True
    assert complete(tiny_server, n_predict=2, logit_bias={LETTER_E: 100})["has_new_line"] is False


def test_fields_of_llama_server_are_taken_by_chats_too(tiny_server: ServerProcess) -> None:
    fields = {"n_predict": 2, "repeat_penalty": 1.1, "cache_prompt": False, "id_slot": -1, "n_keep": 0, "samplers": [],
              "mirostat": 0, "typical_p": 1.0, "dry_multiplier": 0.0, "xtc_probability": 0.0, "return_tokens": False,
              "timings_per_token": False, "t_max_predict_ms": 60_000, "n_cache_reuse": 0, "lora": []}  # fmt: skip
    value = tiny_server.post(CHAT, {"messages": user("go"), "ignore_eos": True, **fields})
    assert value.status_code == 200, value.text
    assert value.json()["usage"]["completion_tokens"] == 2
    assert set(TIMINGS) <= value.json()["timings"].keys()
    assert complete(tiny_server, ignore_eos=True, **fields)["tokens_predicted"] == 2


def test_time_limit_ends_an_answer(coder_server: ServerProcess) -> None:
    fields = {"n_predict": -1, "ignore_eos": True, "t_max_predict_ms": 500}  # for 4 000 tokens of the real model
    value = complete(coder_server, **fields)
    assert value["stop_type"] == "limit"
    assert 0 < value["tokens_predicted"] < 4000
    last = coder_server.events(NATIVE, {"prompt": "go", **fields})[-1]
    assert last["stop_type"] == "limit"
    assert 0 < last["tokens_predicted"] < 4000


def test_progress_of_a_native_stream(tiny_server: ServerProcess) -> None:
    prompt = [33 + number * number % 90 for number in range(1500)]
    chunks = tiny_server.events(NATIVE, {"prompt": prompt, "n_predict": 1, "return_progress": True})
    for chunk in chunks:
        if "prompt_progress" in chunk:
            assert chunk["prompt_progress"].keys() == {"total", "cache", "processed", "time_ms"}
            assert chunk["prompt_progress"]["total"] == 1500
            assert (chunk["content"], chunk["stop"]) == ("", False)


def test_props(coder_server: ServerProcess) -> None:
    props = coder_server.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 4096
    assert props["total_slots"] == 8
    assert props["model_path"].endswith(".gguf")
    assert "<|im_start|>" in props["chat_template"]
    assert props["modalities"] == {"vision": False, "audio": False}
    assert props["chat_template_caps"]["supports_tools"] is False  # calls would not be parsed yet
    assert (props["is_sleeping"], props["build_info"][:8]) == (False, "typebar ")


def test_models_tell_the_context(coder_server: ServerProcess) -> None:
    [model] = coder_server.get("/v1/models").json()["data"]
    assert (model["object"], model["max_model_len"]) == ("model", 4096)
    assert model["meta"]["n_ctx_train"] == 32768
    assert (model["meta"]["n_vocab"], model["meta"]["n_embd"]) == (151936, 896)
    assert coder_server.get(f"/v1/models/{model['id']}").json() == model
    assert coder_server.get("/v1/models/none").status_code == 404


def test_slots_show_what_runs_and_no_text(coder_server: ServerProcess) -> None:
    coder_server.wait_until_idle()
    secret = "ZQX"
    fields = {"prompt": f"{secret} tell a long story", "n_predict": 300, "ignore_eos": True}
    with coder_server.lines(NATIVE, fields) as lines:
        next(line for line in lines if line.startswith("data: "))
        text = coder_server.get("/slots").text
        slots = coder_server.get("/slots").json()
    assert secret not in text
    assert [slot["id"] for slot in slots] == list(range(8))
    busy = [slot for slot in slots if slot["is_processing"]]
    assert len(busy) == 1
    assert busy[0]["n_ctx"] == 4096
    assert busy[0]["next_token"]["n_decoded"] + busy[0]["next_token"]["n_remain"] == 300
    assert busy[0]["next_token"]["has_next_token"] is True
    for slot in slots:
        assert slot.keys() >= {"id", "id_task", "n_ctx", "speculative", "is_processing", "params", "next_token"}
        assert slot["next_token"].keys() >= {"has_next_token", "has_new_line", "n_remain", "n_decoded"}
    coder_server.wait_until_idle()
    deadline = time.monotonic() + 20
    while any(slot["is_processing"] for slot in coder_server.get("/slots").json()):
        assert time.monotonic() < deadline
    assert coder_server.get("/slots?fail_on_no_slot=1").status_code == 200


def test_no_free_slot_can_be_asked_for(coder_server: ServerProcess) -> None:
    fields = {"messages": user("go"), "n": 8, "ignore_eos": True, "max_tokens": 500}
    with coder_server.lines(CHAT, fields) as lines:
        next(line for line in lines if line.startswith("data: "))
        full = coder_server.get("/slots?fail_on_no_slot=1")
        assert coder_server.get("/slots").status_code == 200
    assert full.status_code == 503
    assert full.json()["error"]["type"] == "unavailable_error"
    coder_server.wait_until_idle()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"content": "2024"}, {"tokens": [17, 15, 17, 19], "count": 4, "max_model_len": 4096}),
        ({"prompt": "2024"}, {"tokens": [17, 15, 17, 19], "count": 4, "max_model_len": 4096}),
        ({"content": ""}, {"tokens": [], "count": 0, "max_model_len": 4096}),
        ({"content": "龘x", "with_pieces": True},
         {"tokens": [{"id": 82912, "piece": [0xE9, 0xBE]}, {"id": 246, "piece": [0x98]}, {"id": 87, "piece": "x"}],
          "count": 3, "max_model_len": 4096}),
        ({"prompt": "a<|im_end|>", "return_token_strs": True},
         {"tokens": [64, 151645], "token_strs": ["a", "<|im_end|>"], "count": 2, "max_model_len": 4096}),
    ],
)  # fmt: skip
def test_tokenize(coder_server: ServerProcess, fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert coder_server.post("/tokenize", fields).json() == expected


@pytest.mark.parametrize("text", ["", "a\0b", "\r\n\t ", "👩\u200d👧 नी ไทย ٣४", "<|im_end|>\ufffd", "don’t I'LL"])
def test_detokenize_undoes_tokenize(coder_server: ServerProcess, text: str) -> None:
    tokens = coder_server.post("/tokenize", {"content": text}).json()["tokens"]
    assert coder_server.post("/detokenize", {"tokens": tokens}).json() == {"content": text, "prompt": text}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": 5}, "content"),
        ("/tokenize", {"content": ["a"]}, "content"),
        ("/tokenize", {"content": "a", "with_pieces": 1}, "with_pieces"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "1"}, "tokens"),
        ("/detokenize", {"tokens": [151936]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [2**70]}, "tokens"),
        ("/detokenize", {"tokens": [1, 1.5]}, "tokens[1]"),
        ("/detokenize", {"tokens": [True]}, "tokens[0]"),
        ("/apply-template", {}, "messages"),
        ("/apply-template", {"messages": "hi"}, "messages"),
        (NATIVE, {}, "prompt"),
        (NATIVE, {"prompt": "a", "id_slot": "x"}, "id_slot"),
        (NATIVE, {"prompt": "a", "return_tokens": 1}, "return_tokens"),
        (NATIVE, {"prompt": "a", "grammar": "root ::= [a-z]"}, "grammar"),
        (NATIVE, {"prompt": "a", "json_schema": {"type": "thing"}}, "json_schema"),
    ],
)  # fmt: skip
def test_bad_fields_are_named(coder_server: ServerProcess, path: str, fields: dict[str, Any], param: str) -> None:
    response = coder_server.post(path, fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_template_renders_as_the_chat_does(coder_server: ServerProcess) -> None:
    messages = [{"role": "system", "content": "S"}, *user("hi")]
    prompt = coder_server.post("/apply-template", {"messages": messages}).json()
    assert prompt == {
        "prompt": "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    }
    ids = coder_server.post("/tokenize", {"content": prompt["prompt"]}).json()["tokens"]
    assert coder_server.post("/tokenize", {"messages": messages}).json()["tokens"] == ids


def test_templates_name_what_they_ignore_and_refuse_what_chats_refuse(tiny_server: ServerProcess) -> None:
    fields = {"messages": user("hi"), "temperature": 0.5, "stream": True, "user": "me"}
    for path in ("/apply-template", "/tokenize"):
        response = tiny_server.post(path, fields)
        assert (response.status_code, response.headers["x-typebar-ignored"]) == (200, "temperature, stream, user")
        response = tiny_server.post(path, {**fields, "tools": [{"type": "function", "function": {"name": "f"}}]})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "tools")


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {"content": "a" * 1_000_001}, "content"),
        ("/tokenize", {"prompt": "a" * 1_000_001}, "prompt"),
        ("/tokenize", {"messages": user("a" * 1_000_001)}, "messages"),
        ("/tokenize", {"content": "1" * 200_001, "with_pieces": True}, "with_pieces"),
        ("/tokenize", {"content": "1" * 200_001, "return_token_strs": True}, "return_token_strs"),
        ("/detokenize", {"tokens": [17] * 200_001}, "tokens"),
        ("/apply-template", {"messages": user("a" * 1_000_001)}, "messages"),
    ],
)
def test_texts_have_a_limit_beyond_the_context(
    coder_server: ServerProcess, path: str, fields: dict[str, Any], param: str
) -> None:
    response = coder_server.post(path, fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_texts_longer_than_the_context_are_counted(coder_server: ServerProcess) -> None:
    assert coder_server.post("/tokenize", {"content": "1" * 200_001}).json()["count"] == 200_001
    assert coder_server.post("/tokenize", {"messages": user("1" * 5000)}).json()["count"] > 5000
    assert coder_server.post("/detokenize", {"tokens": [17] * 5000}).json()["content"] == "2" * 5000
    assert len(coder_server.post("/apply-template", {"messages": user("1" * 100_000)}).json()["prompt"]) > 100_000
