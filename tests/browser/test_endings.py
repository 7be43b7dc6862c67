"""How answers end when they do not just end: the page says so, keeps what came and can be used."""

import json
from collections.abc import Callable
from pathlib import Path

from chat_page import ChatTab, answer_with, stream
from playwright.sync_api import expect
from server_process import ServerProcess, running

FAILURE = f"data: {json.dumps({'error': {'message': 'the engine failed', 'code': 'engine_error'}})}\n\ndata: [DONE]\n\n"


def expect_usable(page: ChatTab) -> None:
    """A new message is answered."""
    page.composer.fill("and now?")
    expect(page.button("Send")).to_be_enabled()
    answer_with(page, stream(["all is well"]))
    page.button("Send").click()
    expect(page.texts.last).to_have_text("all is well")
    page.wait_for_answer()
    expect(page.composer).to_be_focused()


def test_an_error_after_some_text_keeps_it(tab: Callable[..., ChatTab], tiny_chat: ServerProcess) -> None:
    page = tab(tiny_chat)
    answer_with(page, stream(["some ", "text"], is_whole=False) + FAILURE)
    answer = page.ask("hello")
    expect(answer).to_contain_text("The server refused: the engine failed")
    expect(page.texts).to_have_text("some text")
    expect(answer.locator(".figures")).to_contain_text("tokens")
    answer_with(page, stream([" and more"]))
    page.button("Continue").click()
    expect(page.texts).to_have_text("some text and more")
    expect_usable(page)


def test_an_error_before_any_text_offers_another_try(tab: Callable[..., ChatTab], tiny_chat: ServerProcess) -> None:
    page = tab(tiny_chat)
    answer_with(page, stream([], is_whole=False) + FAILURE)
    expect(page.ask("hello")).to_contain_text("The server refused: the engine failed")
    answer_with(page, stream(["here it is"]))
    page.button("Try again").click()
    expect(page.texts).to_have_text("here it is")
    expect(page.answers).to_have_count(1)
    expect_usable(page)


def test_a_stream_that_ends_before_any_text_is_asked_for_again(
    tab: Callable[..., ChatTab], tiny_chat: ServerProcess
) -> None:
    page = tab(tiny_chat)
    answer_with(page, stream([], is_whole=False))
    answer_with(page, stream(["the second time"]))
    page.send("hello")
    expect(page.texts).to_have_text("the second time")
    expect_usable(page)


def test_a_model_that_is_being_loaded_is_waited_for(tab: Callable[..., ChatTab], tiny_chat: ServerProcess) -> None:
    page = tab(tiny_chat)
    answer_with(page, json.dumps({"error": {"message": "loading", "code": "loading"}}), 503, {"retry-after": "30"})
    answer_with(page, stream(["loaded"]))
    page.send("hello")
    expect(page.answers).to_contain_text("The model is being loaded. Next try in")
    page.button("Try now").click()
    expect(page.texts).to_have_text("loaded")
    expect_usable(page)


def test_what_is_not_sent_while_offline_is_sent_once_online(
    tab: Callable[..., ChatTab], tiny_chat: ServerProcess
) -> None:
    page = tab(tiny_chat)
    page.limit(5)
    page.page.context.set_offline(True)
    page.send("hello")
    expect(page.answers).to_contain_text("The server does not answer. Next try in")
    expect(page.questions).to_contain_text("hello")
    page.page.context.set_offline(False)
    page.wait_for_text()
    page.wait_for_answer()


def test_a_wait_can_be_stopped_and_keeps_the_message(tab: Callable[..., ChatTab], tiny_chat: ServerProcess) -> None:
    page = tab(tiny_chat)
    answer_with(page, json.dumps({"error": {"message": "full", "code": "queue_full"}}), 429, {"retry-after": "30"})
    page.send("hello")
    expect(page.answers).to_contain_text("The server is full.")
    page.page.keyboard.press("Escape")
    expect(page.wait_for_answer()).to_contain_text("Stopped.")
    expect(page.questions).to_contain_text("hello")
    expect_usable(page)


def test_a_server_that_dies_while_it_writes(tab: Callable[..., ChatTab], coder_path: Path, free_port: int) -> None:
    options = ("--port", str(free_port), "--temperature", "0", "--threads", "1")
    with running(coder_path, *options) as server:
        page = tab(server)
        page.write_without_end()
        page.send("Write a long story about a lighthouse keeper.")
        text = page.wait_for_text(40)
    answer = page.wait_for_answer()
    expect(answer).to_contain_text("The connection broke off")
    assert (page.texts.last.text_content() or "").startswith(text)
    page.page.unroute("**/v1/chat/completions")
    page.limit(5)
    with running(coder_path, *options):
        page.button("Continue").click()
        expect(answer).not_to_contain_text("broke off")
        page.wait_for_answer()
        assert page.bodies[-1]["messages"][-1]["role"] == "assistant"
        assert (page.texts.last.text_content() or "").startswith(text)


def test_a_tab_that_slept_goes_on(tab: Callable[..., ChatTab], tiny_chat: ServerProcess) -> None:
    """Frozen, as browsers do with tabs that nobody looks at: no timer and no event comes."""
    page = tab(tiny_chat)
    page.limit(400)
    session = page.page.context.new_cdp_session(page.page)
    page.send("hello")
    page.wait_for_text()
    session.send("Page.setWebLifecycleState", {"state": "frozen"})
    tiny_chat.wait_until_idle()
    session.send("Page.setWebLifecycleState", {"state": "active"})
    answer = page.wait_for_answer()
    expect(answer).not_to_contain_text("broke off")
    assert page.texts.last.text_content()
    expect_usable(page)
