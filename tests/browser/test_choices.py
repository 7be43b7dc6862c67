"""What a person can choose: how answers are made, which of them is shown, which conversation, which files."""

import re
from collections.abc import Callable
from pathlib import Path

from chat_page import ChatTab, answer_with, stream
from playwright.sync_api import expect
from server_process import ServerProcess


def test_settings_are_sent_and_kept(tab: Callable[..., ChatTab], tiny_chat: ServerProcess) -> None:
    page = tab(tiny_chat)
    answer_with(page, stream(["as it is"]))
    page.ask("first")
    for name in ("temperature", "top_p", "max_tokens", "seed", "response_format"):
        assert name not in page.bodies[0], "what nobody chose is the server's to choose"
    page.button("New conversation").click()
    page.button("Settings").click()
    dialog = page.page.get_by_role("dialog", name="Settings")
    dialog.get_by_label("System prompt").fill("Be  brief.\n")
    dialog.get_by_label("Preset").select_option("code")
    dialog.get_by_label("Seed").fill("7")
    dialog.get_by_label("Most tokens of an answer").fill("9")
    page.page.keyboard.press("Escape")  # from within a field, whose value counts
    answer_with(page, stream(["as chosen"]))
    page.ask("second")
    body = page.bodies[1]
    assert body["messages"][0] == {"role": "system", "content": "Be  brief.\n"}
    assert (body["temperature"], body["top_p"], body["top_k"]) == (0.3, 0.95, 10)
    assert (body["seed"], body["max_tokens"]) == (7, 9)
    page.reload()
    page.button("Settings").click()
    expect(dialog.get_by_label("Preset")).to_have_value("code")
    dialog.get_by_role("slider", name="Temperature").fill("1")
    expect(dialog.get_by_label("Preset")).to_have_value("own")
    page.page.keyboard.press("Escape")
    answer_with(page, stream(["hotter"]))
    page.ask("third")
    assert page.bodies[2]["temperature"] == 1
    page.page.get_by_role("navigation").get_by_text("first").click()
    answer_with(page, stream(["still as it is"]))
    page.ask("fourth")
    assert "temperature" not in page.bodies[3], "settings are those of the conversation"


def test_another_answer_stands_beside_the_first(tab: Callable[..., ChatTab], tiny_chat: ServerProcess) -> None:
    page = tab(tiny_chat)
    answer_with(page, stream(["the first"]))
    page.ask("question")
    answer_with(page, stream(["the second"]))
    page.button("Answer again").click()
    expect(page.texts).to_have_text("the second")
    expect(page.composer).to_be_focused()
    assert page.bodies[0]["messages"] == page.bodies[1]["messages"]
    page.button("Previous version").click()
    expect(page.texts).to_have_text("the first")
    answer_with(page, stream(["more of the first"]))
    page.ask("and then?")
    assert page.bodies[2]["messages"][1]["content"] == "the first"
    page.reload()
    expect(page.texts.first).to_have_text("the first")
    page.button("Next version").click()
    expect(page.texts).to_have_text(["the second"])
    page.button("Branch from here").click()
    expect(page.page.locator(".conversations li")).to_have_count(2)
    expect(page.texts).to_have_text(["the second"])
    expect(page.page.locator(".branches")).to_have_count(0)


def test_conversations_are_found_by_what_was_said(tab: Callable[..., ChatTab], tiny_chat: ServerProcess) -> None:
    page = tab(tiny_chat)
    for question, answer in (("one", "about Lighthouses"), ("two", "about rivers")):
        page.button("New conversation").click()
        answer_with(page, stream([answer]))
        page.ask(question)
    titles = page.page.locator(".conversations .title")
    expect(titles).to_have_text(["two", "one"])
    search = page.page.get_by_role("searchbox", name="Search")
    search.fill("lighthouse")
    expect(titles).to_have_text(["one"])
    search.fill("two")
    expect(titles).to_have_text(["two"])
    search.fill("nowhere")
    expect(page.page.get_by_text("Nothing found.")).to_be_visible()
    search.fill("")
    expect(titles).to_have_text(["two", "one"])


def test_one_conversation_is_exported_as_markdown(
    tab: Callable[..., ChatTab], tiny_chat: ServerProcess, tmp_path: Path
) -> None:
    page = tab(tiny_chat)
    answer_with(page, stream(["**bold**\n\n```\ncode\n```"]))
    page.ask("mark it")
    page.page.get_by_role("button", name="More for").click()
    with page.page.expect_download() as download:
        page.page.get_by_role("menuitem", name="Export as Markdown").click()
    assert download.value.suggested_filename == "mark it.md"
    file = tmp_path / "one.md"
    download.value.save_as(file)
    assert file.read_text() == "# mark it\n\n## You\n\nmark it\n\n## Answer\n\n**bold**\n\n```\ncode\n```\n"


def test_a_file_is_dropped_on_the_page(tab: Callable[..., ChatTab], tiny_chat: ServerProcess) -> None:
    page = tab(tiny_chat)
    data = page.page.evaluate_handle(
        """() => {
            const data = new DataTransfer()
            data.items.add(new File(['a\\n\\n  b\\u00e9\\t'], 'notes.txt'))
            data.items.add(new File(['x'.repeat(1_000_001)], 'large.txt'))
            return data
        }"""
    )
    page.page.dispatch_event(".app", "dragover", {"dataTransfer": data})
    expect(page.page.get_by_text("Drop text or code files here")).to_be_visible()
    page.page.dispatch_event(".app", "drop", {"dataTransfer": data})
    expect(page.page.locator(".composer .file")).to_have_text(re.compile(r"notes\.txt 9\sB"))
    notice = page.page.get_by_role("alert")
    expect(notice).to_contain_text("large.txt has 1.0")
    expect(notice).to_contain_text("It was not cut")
    edge = "element => element.getBoundingClientRect()"
    composer = page.page.locator(".composer").evaluate(edge)
    assert notice.locator("span").evaluate(edge)["bottom"] < composer["top"], "the notice covers the composer"
    answer_with(page, stream(["ok"]))
    page.button("Send").click()
    expect(page.texts).to_have_text("ok")
    assert page.bodies[0]["messages"][0]["content"] == "notes.txt:\n```txt\na\n\n  b\u00e9\t\n```\n"


def test_the_panel_shows_what_the_server_does(tab: Callable[..., ChatTab], coder_chat: ServerProcess) -> None:
    page = tab(coder_chat)
    page.write_without_end()
    page.send("Write a long story about a lighthouse keeper.")
    page.wait_for_text()
    page.page.locator(".server-chip").click()
    dialog = page.page.get_by_role("dialog", name="Server")
    expect(dialog).to_contain_text(re.compile(r"Threads\s*1"))
    expect(dialog).to_contain_text(re.compile(r"Running\s*1 of"))
    expect(dialog.get_by_role("meter", name="KV cache in use")).to_be_visible()
    page.page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert page.answers.last.get_attribute("aria-busy") == "true", "Esc closed the dialog, not the answer"
    page.page.keyboard.press("Escape")
    page.wait_for_answer()
    page.page.locator(".server-chip").click()
    expect(dialog).to_contain_text(re.compile(r"Running\s*0 of"))


def test_numbers_of_a_continued_answer_are_those_of_the_whole(
    tab: Callable[..., ChatTab], coder_chat: ServerProcess
) -> None:
    page = tab(coder_chat)
    page.limit(1)
    figures = page.answers.last.locator(".figures")
    page.ask("Count to thirty.")
    expect(figures).to_contain_text("· 1 token")
    first = figures.inner_text()
    page.limit(8)
    page.button("Continue").click()
    expect(figures).to_contain_text("9 tokens")
    page.wait_for_answer()

    def number(name: str, line: str) -> str:
        found = re.search(rf"{name}\s(\S+\s(?:ms|s))", line)
        assert found, line
        return found[1]

    whole = figures.inner_text()
    assert number("first token", whole) == number("first token", first)
    assert number("total", whole) != number("total", first)
