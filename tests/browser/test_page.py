"""The page by itself: keys, branches, scrolling, texts that would be code, phone, tabs, files, keys of servers."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chat_page import ChatTab, answer_with, open_tab, stream
from playwright.sync_api import Browser, expect
from server_process import ServerProcess, running

ATTACKS = [
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "<scr", "ipt>alert(1)</scr", "ipt>\n\n",
    "[x](javascript:alert(1)) ",
    "![x](https://evil.example/?q=1)\n\n",
    "```\n<form action=//evil.example><input autofocus onfocus=alert(1)></form>\n```\n\n",
    '<iframe srcdoc="<script>alert(1)</script>"></iframe>\n\n',
    "| <img src=x onerror=alert(1)> |\n|---|\n| <b onclick=alert(1)>x</b> |\n\n",
    "```\"><img src=x onerror=alert(1)>\nx\n```\n",
]  # fmt: skip


def test_what_a_model_writes_stays_text(tab: Callable[..., ChatTab], tiny_chat: ServerProcess) -> None:
    page = tab(tiny_chat)
    answer_with(page, stream(ATTACKS))
    page.ask("".join(ATTACKS))
    for _ in range(2):
        for selector in ("img", "iframe", "form", "script:not([src])", "object", "[onerror]", "[onload]", "[onclick]"):
            assert page.page.locator(f".transcript {selector}").count() == 0, selector
        for link in page.page.locator(".transcript a").all():
            assert (link.get_attribute("href") or "").startswith("https://")
            assert "noopener" in (link.get_attribute("rel") or "")
        expect(page.questions).to_contain_text("<img src=x onerror=alert(1)>")
        expect(page.texts).to_contain_text("<img src=x onerror=alert(1)>")
        expect(page.page.locator(".top-bar h1")).to_contain_text("<img src=x")
        page.reload()
        expect(page.answers).to_have_count(1)


def test_errors_of_the_server_are_text(tab: Callable[..., ChatTab], tiny_chat: ServerProcess) -> None:
    page = tab(tiny_chat)
    answer_with(page, json.dumps({"error": {"message": "<img src=x onerror=alert(1)>", "code": "x"}}), 400)
    answer = page.ask("hello")
    expect(answer).to_contain_text("The server refused: <img src=x onerror=alert(1)>")
    assert page.page.locator(".transcript img").count() == 0


def test_a_cut_stream_is_said_and_continued(tab: Callable[..., ChatTab], tiny_chat: ServerProcess) -> None:
    page = tab(tiny_chat)
    answer_with(page, stream(["one ", "two"], is_whole=False))
    answer = page.ask("count")
    expect(answer).to_contain_text("The connection broke off")
    answer_with(page, stream([" three"]))
    page.button("Continue").click()
    expect(page.texts).to_have_text("one two three")
    assert page.bodies[-1]["messages"][-1] == {"role": "assistant", "content": "one two"}
    expect(page.answers.last).not_to_contain_text("broke off")


def test_a_full_server_is_waited_for(tab: Callable[..., ChatTab], tiny_chat: ServerProcess) -> None:
    page = tab(tiny_chat)
    page.limit(5)
    answer_with(page, json.dumps({"error": {"message": "full", "code": "queue_full"}}), 429, {"retry-after": "30"})
    page.send("hello")
    expect(page.answers).to_contain_text("The server is full. Next try in")
    page.button("Try now").click()
    page.wait_for_text()


def test_a_server_that_is_gone_is_waited_for(tab: Callable[..., ChatTab], tiny_path: Path, free_port: int) -> None:
    port = str(free_port)
    with running(tiny_path, "--port", port) as server:
        page = tab(server)
        page.limit(5)
    page.send("hello")
    expect(page.answers).to_contain_text("The server does not answer.")
    with running(tiny_path, "--port", port):
        page.button("Try now").click()
        page.wait_for_text()
        page.wait_for_answer()


def test_a_full_context_offers_to_leave_out_old_turns(tab: Callable[..., ChatTab], tiny_chat: ServerProcess) -> None:
    page = tab(tiny_chat)
    page.limit(4)
    for _ in range(3):
        page.ask("word " * 240)
    answer = page.ask("word " * 240)
    expect(answer).to_contain_text("too long for the model")
    page.button("Leave out old turns and go on").click()
    page.wait_for_text()
    page.wait_for_answer()
    expect(page.page.get_by_role("note")).to_contain_text("no longer sent")
    assert page.bodies[-1]["messages"][-1]["content"] == "word " * 240
    assert len(page.bodies[-1]["messages"]) < 7


def test_the_last_turns_are_sent(tab: Callable[..., ChatTab], tiny_chat: ServerProcess) -> None:
    page = tab(tiny_chat)
    for turn in range(6):
        answer_with(page, stream([f"answer {turn}\n\n\n &lt; "]))
        page.ask(f"question {turn}")
    sent = page.bodies[-1]["messages"]
    assert [message["content"] for message in sent[::2]] == [f"question {turn}" for turn in range(1, 6)]
    assert sent[1]["content"] == "answer 1\n\n\n &lt; "
    expect(page.page.get_by_role("note")).to_be_visible()


def test_enter_sends_and_with_a_modifier_breaks_the_line(tab: Callable[..., ChatTab], tiny_chat: ServerProcess) -> None:
    page = tab(tiny_chat)
    expect(page.composer).to_be_focused()
    keyboard = page.page.keyboard
    keyboard.type("a")
    keyboard.press("Shift+Enter")
    keyboard.type("b")
    keyboard.press("Control+Enter")
    keyboard.type("c")
    expect(page.composer).to_have_value("a\nb\nc")
    answer_with(page, stream(["first"]))
    keyboard.press("Enter")
    page.wait_for_answer()
    assert page.bodies[0]["messages"][0]["content"] == "a\nb\nc"
    keyboard.press("ArrowUp")
    expect(page.composer).to_have_value("a\nb\nc")
    keyboard.press("Control+A")
    keyboard.type("changed")
    answer_with(page, stream(["second"]))
    keyboard.press("Enter")
    expect(page.texts).to_have_text("second")
    expect(page.questions).to_contain_text("2/2")
    page.button("Previous version").click()
    expect(page.texts).to_have_text("first")


def test_an_input_method_that_composes_never_sends(tab: Callable[..., ChatTab], tiny_chat: ServerProcess) -> None:
    page = tab(tiny_chat)
    session = page.page.context.new_cdp_session(page.page)
    session.send("Input.imeSetComposition", {"text": "nihao", "selectionStart": 5, "selectionEnd": 5})
    enter = {"type": "rawKeyDown", "key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 229}
    session.send("Input.dispatchKeyEvent", enter)
    page.page.evaluate(
        """() => document.getElementById('message').dispatchEvent(
            new KeyboardEvent('keydown', { key: 'Enter', isComposing: true, bubbles: true, cancelable: true }))"""
    )
    session.send("Input.insertText", {"text": "你好"})
    expect(page.composer).to_have_value("你好")
    assert not page.bodies
    answer_with(page, stream(["好"]))
    page.page.keyboard.press("Enter")
    page.wait_for_answer()
    assert page.bodies[0]["messages"][0]["content"] == "你好"


def test_the_whole_page_is_reached_by_keyboard(tab: Callable[..., ChatTab], tiny_chat: ServerProcess) -> None:
    page = tab(tiny_chat)
    answer_with(page, stream(["```py\nx = 1\n```"]))
    page.ask("hello")
    page.page.locator("body").evaluate("() => document.activeElement.blur()")
    names = []
    for _ in range(40):
        page.page.keyboard.press("Tab")
        names.append(
            page.page.evaluate(
                "() => document.activeElement.getAttribute('aria-label') || document.activeElement.textContent.trim()"
            )
        )
    for name in ("New conversation", "Search", "hello", "Settings", "Edit and send again", "Copy code",
                 "Copy as Markdown", "Answer again", "Branch from here", "Attach text files", "Message"):  # fmt: skip
        assert name in names, (name, names)
    page.page.locator("body").evaluate("() => document.activeElement.blur()")
    page.page.keyboard.press("/")
    expect(page.composer).to_be_focused()
    expect(page.composer).to_have_value("")
    page.button("Settings").focus()
    page.page.keyboard.press("Enter")
    expect(page.page.get_by_role("dialog", name="Settings")).to_be_visible()
    page.page.keyboard.press("Escape")
    expect(page.page.get_by_role("dialog")).to_have_count(0)
    expect(page.button("Settings")).to_be_focused()


AT_END = """() => {
    const box = document.querySelector('.transcript')
    return box.scrollHeight - box.clientHeight - box.scrollTop < 2
}"""


def test_scrolling_up_lets_go_of_the_end(tab: Callable[..., ChatTab], coder_chat: ServerProcess) -> None:
    page = tab(coder_chat, height=500)
    answer_with(page, stream(["A line of the answer.\n\n"] * 40))
    page.ask("fill the page")
    page.write_without_end()
    page.send("Write a long story.")
    page.wait_for_text()
    box = page.page.locator(".transcript")
    page.page.wait_for_function(AT_END)
    box.hover()
    page.page.mouse.wheel(0, -300)
    expect(page.button("To the newest")).to_be_visible()
    top = box.evaluate("box => box.scrollTop")
    height = box.evaluate("box => box.scrollHeight")
    grown = "height => document.querySelector('.transcript').scrollHeight > height + 40"
    page.page.wait_for_function(grown, arg=height)
    assert box.evaluate("box => box.scrollTop") == top
    page.button("To the newest").click()
    page.page.wait_for_function(AT_END)
    height = box.evaluate("box => box.scrollHeight")
    page.page.wait_for_function(grown, arg=height)
    page.page.wait_for_function(AT_END)
    page.page.keyboard.press("Escape")
    page.wait_for_answer()


def test_the_phone_layout_fits(tab: Callable[..., ChatTab], tiny_chat: ServerProcess) -> None:
    page = tab(tiny_chat, width=390, height=664, is_mobile=True, has_touch=True)
    wide = "| a | b | c |\n|---|---|---|\n| " + "wide " * 30 + "| x | y |\n\n```\n" + "x" * 300 + "\n```\n"
    answer_with(page, stream([wide]))
    page.ask("z" * 200)
    assert page.page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.page.locator(".transcript").evaluate("box => box.scrollWidth <= box.clientWidth")
    assert page.composer.evaluate("area => parseFloat(getComputedStyle(area).fontSize)") >= 16
    page.button("Show conversations").click()
    search = page.page.get_by_role("searchbox")
    expect(search).to_be_visible()
    assert search.evaluate("field => parseFloat(getComputedStyle(field).fontSize)") >= 16
    page.button("Close conversations").click()
    page.button("Settings").click()
    for field in page.page.locator("dialog .field").all():
        assert field.evaluate("field => parseFloat(getComputedStyle(field).fontSize)") >= 16


def test_two_tabs_share_conversations(tab: Callable[..., ChatTab], browser: Browser, tiny_chat: ServerProcess) -> None:
    first = tab(tiny_chat)
    second = open_tab(browser, tiny_chat.url, context=first.page.context)
    answer_with(first, stream(["from the first tab"]))
    first.ask("one")
    second.page.get_by_role("navigation").get_by_text("one", exact=True).click()
    expect(second.texts).to_have_text("from the first tab")
    answer_with(second, stream(["from the second tab"]))
    second.ask("two")
    expect(first.texts.last).to_have_text("from the second tab")
    second.page.get_by_role("navigation").locator("li.current").hover()
    second.page.get_by_role("button", name="More for").click()
    second.page.get_by_role("menuitem", name="Delete").click()
    second.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(first.page.get_by_text("No conversations yet.")).to_be_visible()
    expect(first.answers).to_have_count(0)
    assert not second.problems


def test_a_dropped_file_is_sent_whole(tab: Callable[..., ChatTab], tiny_chat: ServerProcess, tmp_path: Path) -> None:
    page = tab(tiny_chat)
    source = tmp_path / "sum.py"
    source.write_text("def add(a, b):\n    return a + b\n\n\n" * 40)
    binary = tmp_path / "x.bin"
    binary.write_bytes(b"\x00\xff")
    page.page.locator(".composer input[type=file]").set_input_files([source, binary])
    expect(page.page.locator(".composer .file")).to_contain_text("sum.py")
    expect(page.page.locator(".composer .file")).to_contain_text("1.4")
    expect(page.page.get_by_role("alert")).to_contain_text("x.bin is not text")
    answer_with(page, stream(["ok"]))
    page.ask("Explain")
    content = page.bodies[0]["messages"][0]["content"]
    assert source.read_text() in content and content.endswith("Explain")


def test_export_and_import(tab: Callable[..., ChatTab], tiny_chat: ServerProcess, tmp_path: Path) -> None:
    page = tab(tiny_chat)
    answer_with(page, stream(["# Title\n\n\ntext  "]))
    page.ask("export me")
    with page.page.expect_download() as download:
        page.button("Export all").click()
    file = tmp_path / "all.json"
    download.value.save_as(file)
    page.button("Forget everything").click()
    page.page.get_by_role("dialog").get_by_role("button", name="Forget everything").click()
    expect(page.page.get_by_text("No conversations yet.")).to_be_visible()
    page.page.locator(".sidebar-foot input[type=file]").set_input_files(file)
    page.page.get_by_role("navigation").get_by_text("export me").click()
    expect(page.texts).to_contain_text("text")
    answer_with(page, stream(["again"]))
    page.ask("more")
    assert page.bodies[-1]["messages"][1]["content"] == "# Title\n\n\ntext  "


@pytest.fixture(scope="module")
def keyed_server(tiny_path: Path) -> Iterator[ServerProcess]:
    with running(tiny_path, "--api-key", "s3cret", "--allowed-host", "typebar.lan") as server:
        yield server


def test_the_key_is_asked_for_and_kept_in_the_tab(tab: Callable[..., ChatTab], keyed_server: ServerProcess) -> None:
    page = tab(keyed_server)
    page.limit(5)
    page.send("hello")
    dialog = page.page.get_by_role("dialog", name="This server needs an API key")
    dialog.get_by_label("API key").fill("wrong")
    dialog.get_by_role("button", name="Use it").click()
    expect(dialog).to_contain_text("does not know this key")
    dialog.get_by_label("API key").fill("s3cret")
    dialog.get_by_label("API key").press("Enter")
    page.wait_for_text()
    page.wait_for_answer()
    assert page.page.evaluate("Object.values(localStorage)") == []
    page.reload()
    page.ask("again")
    assert page.page.get_by_role("dialog").count() == 0


def test_plain_http_on_a_name_of_the_network_is_enough(
    tab: Callable[..., ChatTab], browser: Browser, keyed_server: ServerProcess
) -> None:
    page = open_tab(browser, f"http://typebar.lan:{keyed_server.port}")
    assert page.page.evaluate("window.isSecureContext") is False
    answer_with(page, stream(["text to copy"]))
    page.ask("hello")
    page.button("Copy as Markdown").click()
    expect(page.button("Copied")).to_be_visible()
    page.composer.fill("")
    page.composer.press("Control+V")
    expect(page.composer).to_have_value("text to copy")
    assert not page.problems
    page.page.context.close()


def test_the_language_follows_the_browser_and_can_be_changed(
    tab: Callable[..., ChatTab], tiny_chat: ServerProcess
) -> None:
    page = tab(tiny_chat, locale="zh-CN")
    expect(page.page.get_by_role("heading", name="向本机上的模型提问")).to_be_visible()
    assert page.page.locator("html").get_attribute("lang") == "zh-Hans"
    page.button("设置").click()
    page.page.get_by_label("语言").select_option("en")
    expect(page.page.get_by_role("dialog", name="Settings")).to_be_visible()
    page.reload()
    expect(page.page.get_by_role("heading", name="Ask the model on this machine")).to_be_visible()


def test_light_and_dark(tab: Callable[..., ChatTab], tiny_chat: ServerProcess) -> None:
    page = tab(tiny_chat, color_scheme="dark")
    paper = "getComputedStyle(document.documentElement).backgroundColor"
    dark = page.page.evaluate(paper)
    page.button("Settings").click()
    page.page.get_by_label("Appearance").select_option("light")
    assert page.page.evaluate(paper) != dark
    page.page.get_by_label("Appearance").select_option("dark")
    assert page.page.evaluate(paper) == dark
