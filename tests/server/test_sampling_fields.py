"""Fields that say how tokens are drawn: which values are taken, which refused by what name, and what they do."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from asking import CHAT, COMPLETION, GREEDY, NATIVE, PLAIN, ask, body, user, websocket_turn
from server_process import ServerProcess

from typebar.server.sampling import sampling_params
from typebar.server.schema.sampling import SamplingFields

HUGE = 10**400
ROUTES = (CHAT, COMPLETION, NATIVE)

ACCEPTED: dict[str, tuple[Any, ...]] = {
    "temperature": (0, 1e-9, 1e-45, 0.01, 2, 1e6),
    "top_k": (0, -1, 1, 287, 288, 10**9, 2**31, 2**63),
    "top_p": (1e-6, 0.5, 1),
    "min_p": (0, 0.5, 1),
    "repetition_penalty": (0.5, 1, 2),
    "repeat_penalty": (0.5, 1, 2),
    "frequency_penalty": (-2, 0, 2),
    "presence_penalty": (-2, 0, 2),
    "seed": (0, 1, -1, 2**63, 2**64 - 1),
    "max_tokens": (1, 3),
    "min_tokens": (0, 1),
    "stop": ("x", ["x"], [], [""], "", ["a"] * 5, ["a"] * 16, "龘", "\n\n", "x" * 1024, ["", "x"]),
    "stop_token_ids": ([], [0], [287]),
    "logit_bias": ({}, [], {"0": 100}, {"287": -100}, {str(id): 0.5 for id in range(288)}, [[16, 1.5]], [[16, False]]),
    "ignore_eos": (True, False),
    "include_stop_str_in_output": (True, False),
    "skip_special_tokens": (True, False),
    "cache_prompt": (True, False),
    "cache_salt": ("", "salt"),
    "max_time": (0, 60, 0.5e9),
    "truncate_prompt_tokens": (-1, 1, 10**9),
    "best_of": (1,),
}

REFUSED: dict[str, tuple[Any, ...]] = {
    "temperature": (-1, "0", True, HUGE, [], 1e39),
    "top_k": (-2, 1.5, "1", True),
    "top_p": (0, 1.1, -0.5, "1", 1e-50),
    "min_p": (-0.1, 1.1, "0"),
    "repetition_penalty": (0, -1, 101, "1"),
    "repeat_penalty": (0, -1, 101),
    "frequency_penalty": (-2.1, 2.1),
    "presence_penalty": (-2.1, 2.1, {}),
    "seed": (2**64, -(2**63) - 1, 1.5, "1", HUGE),
    "n": (0, -1, 65, 1_000_000, 1.5, "2"),
    "max_tokens": (0, -2, 1.5, "10", True, [], -HUGE),
    "min_tokens": (-1, 10**6, 1.5),
    "stop": (5, {"a": 1}, "x" * 10_000, ["a"] * 17, [["a"]], [1]),
    "stop_token_ids": ([-1], [288], [10**30], 5, ["a"], [1.5]),
    "logit_bias": ({"288": -100}, {"191222": -100}, {"-1": 5}, {"abc": 1}, {"": 1}, {"1_6": 1}, {" 16": 1}, {"1.0": 1},
                   {"\u0661": 1}, {"16": "x"}, {"16": 1e9}, {"16": 100.5}, {"16": None}, "16", 5, [[16]], [[1.5, 2]],
                   [["a", 1]], [[288, 1]], [[-1, 1]], [16, 1], {str(HUGE): 1}),
    "ignore_eos": (1, "true"),
    "include_stop_str_in_output": ("yes",),
    "cache_prompt": (1,),
    "cache_salt": (5,),
    "max_time": (-1, "1"),
    "truncate_prompt_tokens": (0, -2, 1.5),
    "stream": ("yes", 1),
    "best_of": (2, 0),
}  # fmt: skip


def cases(table: dict[str, tuple[Any, ...]]) -> list[Any]:
    return [
        pytest.param(field, value, id=f"{field}-{str(value)[:30]}")
        for field, values in table.items()
        for value in values
    ]


@pytest.mark.parametrize(("field", "value"), cases(ACCEPTED))
def test_value_is_taken(tiny_server: ServerProcess, field: str, value: Any) -> None:
    for route in ROUTES:
        response = tiny_server.post(route, body(tiny_server, route, "go", **{"max_tokens": 3, field: value}))
        assert response.status_code == 200, response.text


@pytest.mark.parametrize(("field", "value"), cases(REFUSED))
def test_value_is_refused_by_name(tiny_server: ServerProcess, field: str, value: Any) -> None:
    for route in ROUTES:
        response = tiny_server.post(route, body(tiny_server, route, "go", **{"max_tokens": 3, field: value}))
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["param"].partition("[")[0] == field
        assert error["type"] == "invalid_request_error"
        assert error["message"].startswith(field)
        assert len(error["message"]) < 300
    assert tiny_server.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("route", "fields", "param"),
    [
        (CHAT, {"max_completion_tokens": 0}, "max_completion_tokens"),
        (CHAT, {"max_completion_tokens": 0, "max_tokens": 5}, "max_completion_tokens"),
        (CHAT, {"max_tokens": -1}, "max_tokens"),  # no limit on llama-server's route only
        (COMPLETION, {"max_tokens": -1}, "max_tokens"),
        (CHAT, {"n_predict": -2}, "n_predict"),
        (NATIVE, {"n_predict": 0}, "n_predict"),
        (NATIVE, {"n_probs": 21}, "n_probs"),
        (NATIVE, {"n_probs": -1}, "n_probs"),
        (NATIVE, {"t_max_predict_ms": -1}, "t_max_predict_ms"),
        (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        (CHAT, {"top_logprobs": 3}, "top_logprobs"),
        (CHAT, {"logprobs": 3}, "logprobs"),
        (COMPLETION, {"logprobs": True}, "logprobs"),
        (COMPLETION, {"logprobs": 21}, "logprobs"),
        (COMPLETION, {"logprobs": -1}, "logprobs"),
        (CHAT, {"stream_options": {"include_usage": True}}, "stream_options"),
        (CHAT, {"stream": True, "stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        (CHAT, {"stream": True, "stream_options": True}, "stream_options"),
        (CHAT, {"response_format": {"type": "yaml"}}, "response_format.type"),
        (CHAT, {"response_format": {}}, "response_format.type"),
        (CHAT, {"response_format": "json"}, "response_format"),
        (COMPLETION, {"n": 64, "prompt": ["a", "b"]}, "n"),
    ],
)  # fmt: skip
def test_field_of_one_route_is_refused_by_the_name_it_has_there(
    tiny_server: ServerProcess, route: str, fields: dict[str, Any], param: str
) -> None:
    response = tiny_server.post(route, {**body(tiny_server, route, "go"), **fields})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


NULLS = (
    "max_tokens", "max_completion_tokens", "n_predict", "stop", "tools", "tool_choice", "stream", "stream_options",
    "response_format", "logit_bias", "seed", "n", "top_p", "top_k", "min_p", "temperature", "user", "logprobs",
    "top_logprobs", "metadata", "presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens", "echo",
    "ignore_eos", "stop_token_ids", "add_generation_prompt", "continue_final_message", "chat_template_kwargs",
    "truncate_prompt_tokens", "cache_prompt", "cache_salt", "max_time", "model", "n_probs", "best_of",
    "return_progress", "suffix", "grammar", "functions", "include_stop_str_in_output", "skip_special_tokens", "other",
)  # fmt: skip


@pytest.mark.parametrize("route", ROUTES)
def test_null_is_as_absent(tiny_server: ServerProcess, route: str) -> None:
    request = {**dict.fromkeys(NULLS), **body(tiny_server, route, "go", **GREEDY, logit_bias={"287": 100})}
    response = tiny_server.post(route, request)
    assert response.status_code == 200, response.text
    assert "x-typebar-ignored" not in response.headers


def test_null_in_a_websocket_is_as_absent(tiny_server: ServerProcess) -> None:
    *_, last = websocket_turn(tiny_server, {**dict.fromkeys(NULLS), "messages": user("go"), "max_tokens": 2})
    assert last["type"] == "done"


@pytest.mark.parametrize(
    ("route", "fields", "count"),
    [
        (CHAT, {"max_tokens": 3}, 3),
        (CHAT, {"max_completion_tokens": 2, "max_tokens": 3, "n_predict": 4}, 2),
        (CHAT, {"n_predict": 4}, 4),
        (CHAT, {"n_predict": -1, "max_tokens": 3}, 3),
        (COMPLETION, {"max_tokens": 3, "n_predict": 4}, 3),
        (COMPLETION, {"n_predict": 4}, 4),
    ],
)
def test_number_of_tokens(tiny_server: ServerProcess, route: str, fields: dict[str, Any], count: int) -> None:
    request = body(tiny_server, route, "go", ignore_eos=True, **fields)
    value = tiny_server.post(route, request).json()
    assert value["usage"]["completion_tokens"] == count
    assert value["choices"][0]["finish_reason"] == "length"


def texts(server: ServerProcess, count: int, **fields: Any) -> list[str]:
    """The answers to equal requests that are there at the same time."""
    with ThreadPoolExecutor(count) as pool:
        return [answer.text for answer in pool.map(lambda _: ask(server, "go", **fields), range(count))]


def test_temperature_zero_takes_the_most_likely_token(tiny_server: ServerProcess) -> None:
    request = body(tiny_server, CHAT, "go", max_tokens=8, top=1, ignore_eos=True)
    found = []
    for temperature in (0, 1e-9, 1e-45):
        value = tiny_server.post(CHAT, {**request, "temperature": temperature, "repetition_penalty": 1}).json()
        entries = value["choices"][0]["logprobs"]["content"]
        assert all(entry["logprob"] == entry["top_logprobs"][0]["logprob"] for entry in entries)
        found.append([entry["bytes"] for entry in entries])
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(("temperature", "penalty"), [(0, 1.0), (1e-5, 1.0), (1e-9, 1.0), (1e-4, 1.05)])
def test_greedy_answers_have_no_default_penalty(temperature: float, penalty: float) -> None:
    fields = SamplingFields(temperature=temperature)
    assert sampling_params(fields, {"repetition_penalty": 1.05}).repetition_penalty == penalty


def test_top_k_zero_is_off_and_one_is_greedy(tiny_server: ServerProcess) -> None:
    for off in (0, -1, 10**9):
        assert len(set(texts(tiny_server, 6, **{**PLAIN, "top_k": off}, max_tokens=8))) > 1
    for one in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1}):
        assert set(texts(tiny_server, 3, **{**PLAIN, **one}, max_tokens=8)) == set(
            texts(tiny_server, 1, **GREEDY, max_tokens=8)
        )


def test_very_high_temperature_is_nearly_uniform(tiny_server: ServerProcess) -> None:
    """With 288 tokens, 300 equally likely draws show about 65 % of them; greedy ones of this model a few."""
    fields = {**PLAIN, "temperature": 1000, "seed": 1, "max_tokens": 300, "ignore_eos": True, "top": 0}
    found = ask(tiny_server, "go", **fields)
    assert len(set(found.data)) > 120
    assert found.text.encode().decode() == found.text


def test_seed_gives_the_same_answer_whoever_else_is_there(tiny_server: ServerProcess) -> None:
    fields = {**PLAIN, "temperature": 0.8, "max_tokens": 40, "ignore_eos": True}
    alone = ask(tiny_server, "go", seed=42, **fields).text
    with ThreadPoolExecutor(8) as pool:
        seeds = [42, None, 7, 42, None, 8, 42, 42]
        found = list(pool.map(lambda seed: ask(tiny_server, "go", seed=seed, **fields).text, seeds))
    assert [text for text, seed in zip(found, seeds, strict=True) if seed == 42] == [alone] * 4
    assert len({alone, *found}) > 4


def test_no_seed_gives_fresh_answers(tiny_server: ServerProcess) -> None:
    fields = {**PLAIN, "temperature": 1.2, "max_tokens": 12}
    assert len(set(texts(tiny_server, 8, **fields))) > 1
    assert len({ask(tiny_server, "go", **fields).text for _ in range(4)}) > 1


@pytest.mark.parametrize("route", [CHAT, COMPLETION])
def test_n_answers_differ_and_repeat(tiny_server: ServerProcess, route: str) -> None:
    def answers(**fields: Any) -> list[str]:
        value = tiny_server.post(route, body(tiny_server, route, "go", **PLAIN, max_tokens=12, **fields)).json()
        return [choice["text"] if route == COMPLETION else choice["message"]["content"] for choice in value["choices"]]

    first = answers(n=4, seed=1)
    assert len(set(first)) == 4
    assert answers(n=4, seed=1) == first
    assert answers(n=1, seed=1) == first[:1]  # the first of many is the one
    assert len(set(answers(n=4))) > 1
    assert len(answers(n=64, seed=1)) == 64


def test_equal_prompts_of_one_request_are_drawn_apart(tiny_server: ServerProcess) -> None:
    request = {"prompt": ["go"] * 4, **PLAIN, "max_tokens": 12}
    found = [choice["text"] for choice in tiny_server.post(COMPLETION, request).json()["choices"]]
    assert len(set(found)) > 1


def test_penalty_is_the_same_cold_and_warm(tiny_server: ServerProcess) -> None:
    fields = {**GREEDY, "repetition_penalty": 1.3, "max_tokens": 30}
    content = "a prompt that nobody has sent before, of several blocks"
    cold, warm = (ask(tiny_server, content, **fields).text for _ in range(2))
    assert cold == warm == ask(tiny_server, content, cache_prompt=False, **fields).text
    assert cold != ask(tiny_server, content, **GREEDY, max_tokens=30).text


def test_penalties_reach_over_a_prompt_of_any_length(tiny_server: ServerProcess) -> None:
    """llama-server's window has no counterpart: the whole prompt and answer count, and the field is listed."""
    for last_n in (0, 1, 64, -1, 10**9):
        request = body(tiny_server, NATIVE, "go", **GREEDY, repeat_penalty=1.3, repeat_last_n=last_n, max_tokens=5)
        response = tiny_server.post(NATIVE, request)
        assert response.status_code == 200
        assert response.headers["x-typebar-ignored"] == "repeat_last_n"


@pytest.mark.parametrize("fields", [{}, {"temperature": 1.0, "seed": 1}])
def test_logit_bias_bans_and_forces(coder_server: ServerProcess, fields: dict[str, Any]) -> None:
    fields = {**GREEDY, **fields, "max_tokens": 3}
    assert ask(coder_server, "Say hi", logit_bias={"198": 100}, **fields).text == "\n\n\n"
    assert ask(coder_server, "Say hi", logit_bias=[[198, 100]], **fields).text == "\n\n\n"
    [first, *_] = coder_server.chat("Say hi", max_tokens=1, logprobs=True)["choices"][0]["logprobs"]["content"]
    [id] = coder_server.post("/tokenize", {"content": first["token"]}).json()["tokens"]
    for ban in ({str(id): -100}, [[id, False]]):
        assert not ask(coder_server, "Say hi", logit_bias=ban, **fields).text.startswith(first["token"])


def test_ends_without_stop_strings_as_before(coder_server: ServerProcess) -> None:
    """An empty list or string neither removes the model's own end nor ends the answer at once."""
    plain = ask(coder_server, "Say only: hello", **GREEDY, max_tokens=12)
    assert plain.reason == "stop"
    for stop in ([], "", [""], None, ["\U0001f999"]):
        found = ask(coder_server, "Say only: hello", **GREEDY, max_tokens=12, stop=stop)
        assert (found.text, found.reason) == (plain.text, "stop")


def test_min_tokens_and_ignore_eos_go_past_the_end(coder_server: ServerProcess) -> None:
    end = len(ask(coder_server, "Say only: hello", **GREEDY, max_tokens=12, top=0).data)
    for fields in ({"min_tokens": 12}, {"ignore_eos": True}):
        found = ask(coder_server, "Say only: hello", **GREEDY, max_tokens=12, top=0, **fields)
        assert found.reason == "length"
        assert len(found.data) > end


def test_not_a_number_is_no_json(tiny_server: ServerProcess) -> None:
    for literal in ("NaN", "Infinity", "-Infinity", "1e999", "01", "+1", ".5"):
        text = f'{{"messages": [{{"role": "user", "content": "x"}}], "max_tokens": 1, "temperature": {literal}}}'
        response = tiny_server.client.post(f"{tiny_server.url}{CHAT}", content=text)
        assert response.status_code == 400, literal
    [frame] = websocket_turn(tiny_server, {"messages": user("x"), "temperature": float("nan")})
    assert frame["type"] == "error"
