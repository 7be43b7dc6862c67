"""What was computed once is reused, by turns and by users, and never changes an answer."""

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server_process import ServerProcess, running

BLOCK = 16
_salts = itertools.count()


@pytest.fixture(scope="module")
def server(long_path: Path) -> Iterator[ServerProcess]:
    with running(long_path, "--max-model-len", "32768", "--drain", "0") as server:
        yield server


def fresh_salt() -> str:
    """One that nobody used: the request finds nothing, so its answer is the cold one."""
    return f"salt {next(_salts)}"


def ids(length: int, seed: int = 0) -> list[int]:
    return [(31 * n + 17 * seed + n * n % 7) % 256 for n in range(length)]


def native(server: ServerProcess, prompt: list[int], tokens: int = 12, **fields: Any) -> tuple[list[int], int]:
    """Token ids of a greedy answer, and how many tokens of the prompt were reused."""
    body = {"prompt": prompt, "n_predict": tokens, "temperature": 0, "ignore_eos": True, "return_tokens": True}
    response = server.post("/completion", {**body, **fields})
    assert response.status_code == 200, response.text
    answer = response.json()
    assert answer["timings"]["cache_n"] + answer["timings"]["prompt_n"] == len(prompt)
    return answer["tokens"], answer["timings"]["cache_n"]


def repeated(prompt: int, answer: int) -> int:
    """Tokens that an exact repeat of a prompt reuses: full blocks were kept, and its last token is always computed."""
    return min(prompt - 1, (prompt + answer - 1) // BLOCK * BLOCK)


def cached(answer: dict[str, Any]) -> int:
    count: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


def text(answer: dict[str, Any]) -> str:
    content: str = answer["choices"][0]["message"]["content"]
    return content


def test_each_turn_computes_only_what_is_new(server: ServerProcess) -> None:
    """All full blocks of the turn before are found, those of its answer too."""
    salt, history, known = fresh_salt(), ids(100), 0
    for turn in range(6):
        answer, reused = native(server, history, 40, cache_salt=salt)
        assert reused == known // BLOCK * BLOCK
        assert answer == native(server, history, 40, cache_salt=fresh_salt())[0]
        known = len(history) + len(answer) - 1  # the last token drawn was not computed
        history = [*history, *answer, *ids(20, 100 + turn)]


def test_real_conversation_grows_its_cached_part(coder_server: ServerProcess) -> None:
    salt, known = fresh_salt(), 0
    messages = [{"role": "system", "content": "You answer in a few words."}]
    for question in ("Name a color.", "And another?", "Which of the two is warmer?"):
        messages.append({"role": "user", "content": question})
        body = {"messages": messages, "temperature": 0, "max_tokens": 10}
        answer = coder_server.post("/v1/chat/completions", {**body, "cache_salt": salt}).json()
        cold = coder_server.post("/v1/chat/completions", {**body, "cache_prompt": False}).json()
        assert text(answer) == text(cold) and cached(cold) == 0
        assert answer["usage"]["prompt_tokens"] == cold["usage"]["prompt_tokens"]
        assert cached(answer) >= (known - 1) // BLOCK * BLOCK
        known = answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"] - 1
        messages.append({"role": "assistant", "content": text(answer)})
    assert known > 3 * BLOCK


def test_history_whose_text_changed_is_reused_up_to_the_change(server: ServerProcess) -> None:
    """Clients trim answers and change line ends: the loss is what follows the change, never the answer."""
    salt = fresh_salt()
    prompt = ids(64)
    answer, _ = native(server, prompt, 64, cache_salt=salt)
    changed = [*prompt, *answer[:30], (answer[30] + 1) % 256, *answer[31:], 5]
    again, reused = native(server, changed, cache_salt=salt)
    assert reused == 94  # 5 blocks and, copied, 14 tokens of the next
    assert again == native(server, changed, cache_salt=fresh_salt())[0]


@pytest.mark.parametrize("ending", ["", " ", "\n\n\n", "\r\n", "\t", "e\u0301", "🫠"])
def test_next_turn_after_any_ending_of_an_answer(server: ServerProcess, ending: str) -> None:
    history = [{"role": "user", "content": "first"}, {"role": "assistant", "content": "answer" + ending}]
    body = {"messages": [*history, {"role": "user", "content": "second"}], "temperature": 0, "max_tokens": 10,
            "ignore_eos": True}  # fmt: skip
    warm = [server.post("/v1/chat/completions", body).json() for _ in range(2)][1]
    cold = server.post("/v1/chat/completions", {**body, "cache_salt": fresh_salt()}).json()
    assert text(warm) == text(cold)
    assert cached(warm) == repeated(warm["usage"]["prompt_tokens"], 10) and cached(cold) == 0


def test_second_user_pays_only_for_the_difference(server: ServerProcess) -> None:
    system = {"role": "system", "content": "You are patient, exact and brief. " * 20}
    first, second = ([system, {"role": "user", "content": name}] for name in ("Alice asks", "Bob wonders"))
    body: dict[str, Any] = {"temperature": 0, "max_tokens": 8}
    length = server.post("/v1/chat/completions", {**body, "messages": [system]}).json()["usage"]["prompt_tokens"]
    cold = server.post("/v1/chat/completions", {**body, "messages": second, "cache_salt": fresh_salt()}).json()
    server.post("/v1/chat/completions", {**body, "messages": first})
    warm = server.post("/v1/chat/completions", {**body, "messages": second}).json()
    assert text(warm) == text(cold)
    assert length - BLOCK <= cached(warm) < warm["usage"]["prompt_tokens"]
    assert length > 20 * BLOCK


def test_requests_at_the_same_time_compute_a_common_prefix_once(server: ServerProcess) -> None:
    salt, prefix = fresh_salt(), ids(6000, 3)
    before = server.metric("llamacpp:prompt_tokens_total")
    results: dict[int, tuple[list[int], int]] = {}

    def ask(n: int) -> None:
        results[n] = native(server, [*prefix, *ids(20, n)], cache_salt=salt)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert server.metric("llamacpp:prompt_tokens_total") - before < 6000 + 3 * 40
    assert sorted(reused >= 5900 for _, reused in results.values()) == [False, True, True]
    for n, (answer, _) in results.items():
        assert answer == native(server, [*prefix, *ids(20, n)], cache_salt=fresh_salt())[0]


def test_running_request_shares_its_prompt_and_its_answer(server: ServerProcess) -> None:
    salt, prompt = fresh_salt(), ids(320, 4)
    answer, _ = native(server, prompt, 100)
    body = {"prompt": prompt, "max_tokens": 30_000, "temperature": 0, "ignore_eos": True, "cache_salt": salt}
    url = f"{server.url}/v1/completions"
    with server.client.stream("POST", url, json={**body, "stream": True}) as stream:
        events = (line for line in stream.iter_lines() if line.startswith("data: {"))
        for _ in zip(range(150), events, strict=False):
            pass
        _, reused = native(server, [*prompt, *answer, 1], 2, cache_salt=salt)
        assert server.metric("vllm:num_requests_running") == 1
        assert reused >= (len(prompt) + len(answer) - 1) // BLOCK * BLOCK
    server.wait_until_idle()


def test_cache_prompt_false_neither_reads_nor_feeds(server: ServerProcess) -> None:
    prompt = ids(200, 5)
    assert native(server, prompt, cache_prompt=False)[1] == 0
    expected, reused = native(server, prompt)
    assert reused == 0
    assert native(server, prompt) == (expected, 199)
    assert native(server, prompt, cache_prompt=False) == (expected, 0)


def test_salts_keep_users_apart(server: ServerProcess) -> None:
    prompt = ids(200, 6)
    ours, theirs = fresh_salt(), fresh_salt()
    expected, _ = native(server, prompt, cache_salt=ours)
    assert native(server, prompt, cache_salt=theirs) == (expected, 0)
    assert native(server, prompt) == (expected, 0)
    assert native(server, prompt, cache_salt="") == (expected, 0)
    for salt in (ours, theirs, ""):
        assert native(server, prompt, cache_salt=salt) == (expected, 199)


def test_where_the_reuse_ended_is_told_on_request(server: ServerProcess) -> None:
    salt = fresh_salt()
    body: dict[str, Any] = {"temperature": 0, "max_tokens": 2, "cache_salt": salt}
    prompt = "Once there was a fox who lived in a wood and ate the berries. "
    server.post("/v1/completions", {**body, "prompt": prompt * 3})
    changed = {**body, "prompt": prompt * 2 + "But one day it rained and rained.", "return_cache_miss": True}
    usage = server.post("/v1/completions", changed).json()["usage"]
    miss = usage["prompt_tokens_details"]["cache_miss"]
    tokens = server.post("/tokenize", {"content": changed["prompt"]}).json()["tokens"]
    assert miss["position"] == usage["prompt_tokens_details"]["cached_tokens"] > 2 * BLOCK
    shown = server.post("/detokenize", {"tokens": tokens[miss["position"] : miss["position"] + 8]}).json()["content"]
    assert miss["text"] == shown and "But" in miss["text"]
    plain = server.post("/v1/completions", {**changed, "return_cache_miss": False}).json()["usage"]
    assert "cache_miss" not in plain["prompt_tokens_details"]


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49])
def test_warm_equals_cold_around_the_borders_of_blocks(server: ServerProcess, length: int) -> None:
    prompt, other = ids(length, 7), [*ids(length - 1, 7), 200]
    salt = fresh_salt()
    cold = native(server, prompt, cache_salt=fresh_salt())[0]
    assert native(server, prompt, cache_salt=salt) == (cold, 0)
    assert native(server, prompt, cache_salt=salt) == (cold, repeated(length, 12))
    tail = native(server, other + ids(20, 8), cache_salt=salt)
    assert tail[0] == native(server, other + ids(20, 8), cache_salt=fresh_salt())[0]


def test_repeats_in_any_order_equal_their_cold_runs(coder_server: ServerProcess) -> None:
    """A, A, B, A, B, B on the real model: nothing of one conversation is left in another."""
    questions = {"A": "Name a fruit.", "B": "Name a tool."}
    body = {"max_tokens": 8, "logprobs": True, "top_logprobs": 2}
    cold = {name: coder_server.chat(question, **body, cache_prompt=False) for name, question in questions.items()}
    assert text(cold["A"]) != text(cold["B"])
    for name in "AABABB":
        answer = coder_server.chat(questions[name], **body)
        assert text(answer) == text(cold[name])
        assert answer["choices"][0]["logprobs"] == cold[name]["choices"][0]["logprobs"]
        assert answer["usage"]["prompt_tokens"] == cold[name]["usage"]["prompt_tokens"]
    assert cached(answer) == answer["usage"]["prompt_tokens"] - 1


def test_usage_counts_the_whole_prompt_whatever_was_cached(server: ServerProcess) -> None:
    first, second = (server.chat("count me", max_tokens=5, ignore_eos=True) for _ in range(2))
    assert first["usage"]["prompt_tokens"] == second["usage"]["prompt_tokens"]
    assert second["usage"]["total_tokens"] == second["usage"]["prompt_tokens"] + 5
    assert cached(second) == repeated(second["usage"]["prompt_tokens"], 5) > 0
    last = server.events(
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "count me"}], "max_tokens": 5, "ignore_eos": True,
         "stream_options": {"include_usage": True}},
    )[-2]  # fmt: skip
    assert last["choices"] == [] and cached(last) == cached(second)


def test_many_different_prompts_stay_within_the_budget(long_path: Path) -> None:
    """Old prefixes give way: 30 prompts of 1000 tokens through a cache for 2048."""
    arguments = ("--max-model-len", "2000", "--kv-memory", "512K", "--drain", "0")
    with running(long_path, *arguments) as server:
        first = native(server, ids(1000, 1))[0]
        for seed in range(2, 32):
            assert native(server, [seed, *ids(1000, seed)])[1] == 0
        assert native(server, ids(1000, 1)) == (first, 0)
        assert native(server, ids(1000, 1)) == (first, 999)
