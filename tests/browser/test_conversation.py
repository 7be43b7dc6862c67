"""A conversation with the real model: tokens as they come, stop, interrupt, reuse, reload."""

import json
import re
import time
from collections.abc import Callable
from itertools import pairwise

from chat_page import ChatTab
from playwright.sync_api import Locator, expect
from server_process import ServerProcess

LONG = "Write a long story about a lighthouse keeper."
BEGINNING = "Once upon a time"
LATE = 200  # tokens that the server may make between a key press and its end: seconds, for a browser that is starved
WATCH = """() => {
    window.seen = []
    window.times = []
    new MutationObserver(() => {
        const text = document.querySelector('article.answer .markdown')?.textContent ?? ''
        if (!text || text === window.seen.at(-1)) return
        window.seen.push(text)
        window.times.push(performance.now())
    }).observe(document.body, { subtree: true, childList: true, characterData: true })
}"""

STORED = """async () => {
    const database = await new Promise((resolve) => {
        const request = indexedDB.open('typebar')
        request.onsuccess = () => resolve(request.result)
    })
    const all = await new Promise((resolve) => {
        const request = database.transaction('messages').objectStore('messages').getAll()
        request.onsuccess = () => resolve(request.result)
    })
    database.close()
    return all.some((message) => message.role === 'assistant' && message.text.length > 20)
}"""


def is_writing(server: ServerProcess) -> bool:
    return server.metric("vllm:num_requests_running") == 1


def tokens_made(server: ServerProcess) -> float:
    return server.metric("vllm:generation_tokens_total")


def shown_tokens(answer: Locator) -> int:
    """The count in the line under an answer."""
    found = re.search(r"([\d ]+) tokens?\b", re.sub(r"\s", " ", answer.locator(".figures").inner_text()))
    assert found
    return int(found[1].replace(" ", ""))


def test_the_answer_is_drawn_as_it_comes(tab: Callable[..., ChatTab], coder_chat: ServerProcess) -> None:
    page = tab(coder_chat)
    page.write_without_end()
    page.page.evaluate(WATCH)
    page.send(LONG)
    expect(page.page.get_by_role("button", name="Stop (Esc)")).to_be_visible()
    page.page.wait_for_function("() => window.seen.length > 20")
    assert is_writing(coder_chat)
    page.page.keyboard.press("Escape")
    answer = page.wait_for_answer()
    seen = page.page.evaluate("window.seen")
    assert seen[-1] == page.texts.last.text_content()
    for before, after in pairwise(seen):
        assert after.startswith(before) or len(after) > len(before)
    assert len(seen) <= shown_tokens(answer)
    times = page.page.evaluate("window.times")
    assert len(times) - 1 <= (times[-1] - times[0]) / 100 * 1.2 + 2, "more than ten paints a second"


def test_stop_frees_the_engine_and_keeps_the_text(tab: Callable[..., ChatTab], coder_chat: ServerProcess) -> None:
    page = tab(coder_chat)
    page.write_without_end()
    page.send(LONG)
    page.wait_for_text()
    before = tokens_made(coder_chat)
    page.page.keyboard.press("Escape")
    answer = page.wait_for_answer()
    coder_chat.wait_until_idle()
    assert tokens_made(coder_chat) - before < LATE
    text = page.texts.last.text_content() or ""
    assert text
    expect(answer).to_contain_text("Stopped.")
    page.button("Continue").click()
    page.wait_for_text(len(text) + 5)
    page.button("Stop (Esc)").click()
    page.wait_for_answer()
    coder_chat.wait_until_idle()
    longer = page.texts.last.text_content() or ""
    assert longer.startswith(text)
    assert page.bodies[-1]["continue_final_message"] is True
    assert page.bodies[-1]["messages"][-1]["role"] == "assistant"
    assert page.answers.count() == 1


def test_sending_ends_the_answer_before(tab: Callable[..., ChatTab], coder_chat: ServerProcess) -> None:
    page = tab(coder_chat)
    page.write_without_end()
    page.send(LONG)
    text = page.wait_for_text(30)
    before = tokens_made(coder_chat)
    page.page.unroute("**/v1/chat/completions")
    page.limit(8)
    page.send("Say only: done")
    expect(page.answers).to_have_count(2)
    expect(page.answers.first).to_have_attribute("aria-busy", "false")
    page.wait_for_answer()
    coder_chat.wait_until_idle()
    assert tokens_made(coder_chat) - before < LATE
    expect(page.answers.first).to_contain_text("Stopped.")
    assert (page.texts.first.text_content() or "").startswith(text)
    sent = page.bodies[-1]["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "user"]
    assert sent[1]["content"].startswith(BEGINNING)


def test_later_turns_reuse_what_was_computed(tab: Callable[..., ChatTab], coder_chat: ServerProcess) -> None:
    page = tab(coder_chat)
    page.limit(60)
    page.ask("Name three rivers in Europe, one a line.")
    answer = page.ask("And three in Asia.")
    line = re.sub(r"\s", " ", answer.locator(".figures").inner_text())
    number = r"[\d.]+"
    match = re.fullmatch(
        rf"⏱ first token {number} m?s · total {number} m?s · {number} tok/s · \d+ tokens · (\d+) cached", line
    )
    assert match and int(match[1]) >= 32, line
    first, second = page.bodies
    assert second["messages"][: len(first["messages"])] == first["messages"]


def test_a_reload_brings_everything_back(tab: Callable[..., ChatTab], coder_chat: ServerProcess) -> None:
    page = tab(coder_chat)
    question = "Write a haiku about rain.\n\n\n  <b>&lt;</b>\tno comment "
    page.ask(question)
    before = [page.questions.inner_text(), page.answers.inner_text()]
    page.reload()
    expect(page.answers).to_have_count(1)
    assert [page.questions.inner_text(), page.answers.inner_text()] == before
    page.send("Thanks.")
    page.wait_for_answer()
    first, second = page.bodies
    assert second["messages"][0]["content"] == question == first["messages"][0]["content"]


def test_an_answer_cut_by_a_reload_can_be_continued(tab: Callable[..., ChatTab], coder_chat: ServerProcess) -> None:
    page = tab(coder_chat)
    page.write_without_end()
    page.send(LONG)
    page.wait_for_text(20)
    for _ in range(300):
        if page.page.evaluate(STORED):
            break
        page.page.wait_for_timeout(100)
    else:
        raise AssertionError("30 s of writing and nothing is stored")
    assert is_writing(coder_chat)
    page.reload()
    coder_chat.wait_until_idle()
    text = page.wait_for_text()
    assert text.startswith(BEGINNING)
    page.page.clock.set_fixed_time(time.time() * 1000 + 11_000)  # by then nobody can be writing it any more
    page.reload()
    expect(page.answers.last).to_contain_text("The connection broke off")
    page.button("Continue").click()
    page.wait_for_text(len(text) + 3)
    page.page.keyboard.press("Escape")
    page.wait_for_answer()


def test_the_reading_of_a_long_message_is_shown(tab: Callable[..., ChatTab], coder_chat: ServerProcess) -> None:
    page = tab(coder_chat)
    page.write_without_end()
    page.send("Count these words: " + " ".join(f"word{number}" for number in range(700)))
    progress = page.page.get_by_role("progressbar")
    expect(progress).to_be_visible()
    expect(page.answers).to_contain_text(re.compile(r"Reading: [\d\s]+ of [\d\s]+ tokens"))
    assert is_writing(coder_chat)
    page.page.keyboard.press("Escape")
    page.wait_for_answer()
    coder_chat.wait_until_idle()


def test_json_mode_holds_answers_to_json(tab: Callable[..., ChatTab], coder_chat: ServerProcess) -> None:
    page = tab(coder_chat)
    page.limit(200)
    page.switch("JSON mode", True)
    page.ask("Give the name, the age and three hobbies of a made-up person.")
    assert page.bodies[-1]["response_format"] == {"type": "json_object"}
    text = page.texts.last.locator("code").text_content() or ""
    assert isinstance(json.loads(text), dict)
    expect(page.texts.last.locator(".hljs-attr").first).to_be_visible()
    page.switch("JSON mode", False)
    page.ask("Say only: hello")
    assert "response_format" not in page.bodies[-1]
    assert page.bodies[-1]["messages"][1]["content"] == text
    assert "{" not in (page.texts.last.text_content() or "")
    page.reload()
    expect(page.texts.first.locator("code")).to_have_text(text)
    assert page.texts.last.locator("code").count() == 0


def test_json_cut_by_the_limit_is_said_and_continued(tab: Callable[..., ChatTab], coder_chat: ServerProcess) -> None:
    page = tab(coder_chat)
    page.switch("JSON mode", True)
    page.limit(8)
    answer = page.ask("Give the name, the age and three hobbies of a made-up person.")
    expect(answer).to_contain_text("The answer reached the limit of tokens.")
    text = page.texts.last.locator("code").text_content() or ""
    page.limit(100)
    page.button("Continue").click()
    page.wait_for_answer()
    whole = page.texts.last.locator("code").text_content() or ""
    assert whole.startswith(text)
    assert len(whole) > len(text)
    assert not whole[len(text) :].lstrip().startswith("{"), "another object began"
