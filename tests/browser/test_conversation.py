"""A conversation with the real model: tokens as they come, stop, interrupt, reuse, reload."""

import re
from collections.abc import Callable
from itertools import pairwise

from chat_page import ChatTab
from playwright.sync_api import expect
from server_process import ServerProcess

LONG = "Write a long story about a lighthouse keeper."  # greedy: until the context is full
BEGINNING = "Once upon a time"


def test_the_answer_is_drawn_as_it_comes(tab: Callable[..., ChatTab], coder_chat: ServerProcess) -> None:
    page = tab(coder_chat)
    page.page.evaluate(
        """() => {
            window.seen = []
            new MutationObserver(() => {
                const text = document.querySelector('article.answer .markdown')?.textContent ?? ''
                if (text && text !== window.seen.at(-1)?.text) window.seen.push({ text, at: performance.now() })
            }).observe(document.body, { subtree: true, childList: true, characterData: true })
        }"""
    )
    page.send("Write two sentences about the sea.")
    expect(page.page.get_by_role("button", name="Stop (Esc)")).to_be_visible()
    answer = page.wait_for_answer()
    seen = page.page.evaluate("window.seen")
    text = page.texts.last.text_content()
    assert len(seen) > 5 and seen[-1]["text"] == text
    for before, after in pairwise(seen):
        assert after["text"].startswith(before["text"]) or len(after["text"]) > len(before["text"])
    line = re.sub(r"\s", " ", answer.locator(".figures").inner_text())
    number = r"[\d.]+"
    assert re.fullmatch(
        rf"⏱ first token {number} m?s · total {number} m?s · {number} tok/s · \d+ tokens( · [\d ]+ cached)?", line
    ), line


def test_stop_frees_the_engine_and_keeps_the_text(tab: Callable[..., ChatTab], coder_chat: ServerProcess) -> None:
    page = tab(coder_chat)
    page.send(LONG)
    page.wait_for_text()
    page.page.keyboard.press("Escape")
    answer = page.wait_for_answer()
    coder_chat.wait_until_idle(5)
    text = page.texts.last.text_content() or ""
    assert text
    expect(answer).to_contain_text("Stopped.")
    page.button("Continue").click()
    page.wait_for_text(len(text) + 5)
    page.button("Stop (Esc)").click()
    page.wait_for_answer()
    coder_chat.wait_until_idle(5)
    longer = page.texts.last.text_content() or ""
    assert longer.startswith(text)
    assert page.bodies[-1]["continue_final_message"] is True
    assert page.bodies[-1]["messages"][-1]["role"] == "assistant"
    assert page.answers.count() == 1


def test_sending_ends_the_answer_before(tab: Callable[..., ChatTab], coder_chat: ServerProcess) -> None:
    page = tab(coder_chat)
    page.send(LONG)
    text = page.wait_for_text(30)
    page.send("Say only: done")
    expect(page.answers).to_have_count(2)
    page.page.wait_for_function("document.querySelectorAll('article.answer')[0].getAttribute('aria-busy') === 'false'")
    assert coder_chat.metric("vllm:num_requests_running") <= 1
    page.wait_for_answer()
    first = page.texts.first.text_content() or ""
    assert first.startswith(text)
    sent = page.bodies[-1]["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "user"]
    assert sent[1]["content"].startswith(BEGINNING)
    coder_chat.wait_until_idle(5)


def test_later_turns_reuse_what_was_computed(tab: Callable[..., ChatTab], coder_chat: ServerProcess) -> None:
    page = tab(coder_chat)
    page.ask("Name three rivers in Europe, one a line.")
    answer = page.ask("And three in Asia.")
    cached = re.search(r"(\d[\d ]*) cached", re.sub(r"\s", " ", answer.locator(".figures").inner_text()))
    assert cached and int(cached[1].replace(" ", "")) >= 32
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
    page.send(LONG)
    page.wait_for_text(20)
    page.page.wait_for_timeout(2500)  # it is stored every two seconds
    page.reload()
    coder_chat.wait_until_idle(5)
    text = page.wait_for_text()
    assert text.startswith(BEGINNING)
    page.page.wait_for_timeout(10_500)  # then nobody can be writing it any more
    page.reload()
    expect(page.answers.last).to_contain_text("The connection broke off")
    page.button("Continue").click()
    page.wait_for_text(len(text) + 3)
    page.page.keyboard.press("Escape")
    page.wait_for_answer()
