"""What the page promises as a whole: it shuts nobody out, asks no other host, is small, opens long conversations."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_page import ChatTab, answer_with, stream
from playwright.sync_api import Page, Route, expect
from server_process import ServerProcess

from typebar.server.chat_page import FOLDER

AXE = Path(__file__).resolve().parent.parent.parent / "web" / "node_modules" / "axe-core" / "axe.min.js"
RICH = """## A heading

Text with **bold**, `code`, a [link](https://example.org) and a list:

1. one
2. two
   - [x] a task

| name | count |
|---|---:|
| a | 1 |

> A quotation

```python
def add(a: int, b: int) -> int:
    return a + b  # a comment
```

```mermaid
of no known language
```

The area is $\\pi r^2$, and $$\\sum_{i=1}^n i = \\frac{n(n+1)}{2}$$
"""
ATTACK = "<img src=x onerror=alert(1)>"


def grave_issues(page: Page) -> list[str]:
    """What axe-core finds serious or critical."""
    page.wait_for_timeout(300)  # what fades in has not its colours yet
    if not page.evaluate("typeof axe === 'object'"):
        page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{issue['id']}: {node['html'][:200]} {node['failureSummary']}"
        for issue in found["violations"]
        if issue["impact"] in ("serious", "critical")
        for node in issue["nodes"]
    ]


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not there: npm --prefix web ci")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_no_serious_barrier_is_found(
    tab: Callable[..., ChatTab], tiny_chat: ServerProcess, scheme: str, width: int
) -> None:
    page = tab(tiny_chat, color_scheme=scheme, width=width)
    assert grave_issues(page.page) == []
    answer_with(page, stream([RICH]))
    page.ask("Show everything")
    answer_with(page, json.dumps({"error": {"message": "no", "code": "x"}}), 400)
    page.ask("Fail")
    expect(page.page.locator("code [class^=hljs-]").first).to_be_visible()
    assert grave_issues(page.page) == []
    page.button("Settings").click()
    assert grave_issues(page.page) == []
    page.page.keyboard.press("Escape")
    page.page.get_by_role("button", name="tiny").click()
    expect(page.page.get_by_role("dialog", name="Server")).to_contain_text("Running")
    assert grave_issues(page.page) == []
    page.page.keyboard.press("Escape")
    if width < 820:
        page.button("Show conversations").click()
    page.page.get_by_role("button", name="More for").click()
    assert grave_issues(page.page) == []
    page.page.get_by_role("menuitem", name="Delete").click()
    assert grave_issues(page.page) == []


def test_no_other_host_is_asked(tab: Callable[..., ChatTab], tiny_chat: ServerProcess) -> None:
    page = tab(tiny_chat)
    asked: list[str] = []

    def refuse_others(route: Route) -> None:
        if route.request.url.startswith((tiny_chat.url, "blob:", "data:")):
            route.continue_()
        else:
            asked.append(route.request.url)
            route.abort()

    page.page.context.route("**/*", refuse_others)
    page.reload()
    page.button("Settings").click()
    page.page.get_by_label("Show TeX formulas").check()
    page.page.keyboard.press("Escape")
    answer_with(page, stream([RICH, "![a picture](https://example.org/a.png)"]))
    page.ask("Show everything")
    expect(page.page.locator(".katex").first).to_be_visible()
    expect(page.page.locator("code [class^=hljs-]").first).to_be_visible()
    page.limit(5)
    page.ask("and something of the server's")
    page.page.wait_for_function("() => document.fonts.status === 'loaded'")
    assert asked == []


def test_the_first_load_is_small_and_brings_no_formulas(tab: Callable[..., ChatTab], tiny_chat: ServerProcess) -> None:
    page = tab(tiny_chat)
    sizes: dict[str, int] = page.page.evaluate(
        """() => Object.fromEntries(['navigation', 'resource'].flatMap((type) => performance.getEntriesByType(type))
            .map((entry) => [entry.name, entry.encodedBodySize]))"""
    )
    assert sum(sizes.values()) < 200_000, sizes
    assert not [name for name in sizes if "math" in name or "languages" in name]
    answer_with(page, stream(["A price of $5 and $\\pi$"]))
    page.ask("hello")
    expect(page.texts).to_have_text("A price of $5 and $\\pi$")
    everything = sum(file.stat().st_size for file in FOLDER.rglob("*.gz"))
    assert everything < 400_000


def whole(title: str, texts: list[str], **fields: Any) -> str:
    """An export of one conversation in which the texts take turns."""
    messages = [
        {"id": f"m{at:04}", "conversation": "c", "parent": f"m{at - 1:04}" if at else None, "text": text,
         "role": "assistant" if at % 2 else "user", "created": 1_700_000_000_000 + at, "end": "done", **fields}
        for at, text in enumerate(texts)
    ]  # fmt: skip
    conversation = {"id": "c", "title": title, "created": 1, "updated": 2, "leaf": messages[-1]["id"], "settings": {}}
    found = [{"conversation": conversation, "messages": messages}]
    return json.dumps({"format": "typebar-conversations", "version": 1, "conversations": found})


def bring_in(page: ChatTab, text: str, tmp_path: Path) -> None:
    file = tmp_path / "export.json"
    file.write_text(text)
    page.page.locator(".sidebar-foot input[type=file]").set_input_files(file)


def test_two_hundred_messages_open_in_less_than_a_second(
    tab: Callable[..., ChatTab], tiny_chat: ServerProcess, tmp_path: Path
) -> None:
    page = tab(tiny_chat)
    bring_in(page, whole("Two hundred", ["And then?", RICH] * 100), tmp_path)
    session = page.page.context.new_cdp_session(page.page)
    session.send(
        "Performance.enable", {"timeDomain": "threadTicks"}
    )  # what the page works, however busy the machine is

    def worked() -> float:
        metrics: list[dict[str, Any]] = session.send("Performance.getMetrics")["metrics"]
        return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")

    seconds = []
    for _ in range(3):
        page.button("New conversation").click()
        expect(page.answers).to_have_count(0)
        before = worked()
        page.page.get_by_role("navigation").get_by_text("Two hundred").click()
        page.page.wait_for_function("() => document.querySelectorAll('article').length > 1")
        seconds.append(worked() - before)
        expect(page.answers.last).to_be_in_viewport()
        expect(page.answers).to_have_count(100)
        expect(page.answers.last).to_be_in_viewport()
    assert min(seconds) < 1, seconds


def test_what_is_imported_stays_text(tab: Callable[..., ChatTab], tiny_chat: ServerProcess, tmp_path: Path) -> None:
    page = tab(tiny_chat)
    page.button("Settings").click()
    page.page.get_by_label("Show TeX formulas").check()
    page.page.keyboard.press("Escape")
    formulas = f"$\\href{{javascript:alert(1)}}{{x}}$ $\\includegraphics{{//evil.example/x.png}}$ $\\text{{{ATTACK}}}$"
    files = [{"name": ATTACK, "text": ATTACK}]
    bring_in(page, whole(ATTACK, [ATTACK, formulas], files=files, model=ATTACK), tmp_path)
    page.page.get_by_role("navigation").get_by_text(ATTACK).click()
    expect(page.page.locator(".katex").first).to_be_visible()
    expect(page.questions).to_contain_text(ATTACK)
    page.page.get_by_role("button", name="More for").click()
    page.page.get_by_role("menuitem", name="Delete").click()
    expect(page.page.get_by_role("dialog")).to_contain_text(ATTACK)
    for selector in ("img", "iframe", "form", "[onerror]", "a[href^='javascript:']"):
        assert page.page.locator(selector).count() == 0, selector
    page.page.keyboard.press("Escape")
    expect(page.page.get_by_role("dialog")).to_have_count(0)


def test_a_conversation_by_keyboard_alone(tab: Callable[..., ChatTab], tiny_chat: ServerProcess) -> None:
    page = tab(tiny_chat)
    keyboard = page.page.keyboard

    def tab_to(name: str, key: str = "Tab") -> None:
        focused = "() => document.activeElement.getAttribute('aria-label') || document.activeElement.textContent.trim()"
        for _ in range(60):
            keyboard.press(key)
            if str(page.page.evaluate(focused)).startswith(name):
                return
        raise AssertionError(f"no key leads to {name}")

    answer_with(page, stream(["one ", "two"], is_whole=False))
    keyboard.type("count")
    keyboard.press("Enter")
    page.wait_for_answer()
    answer_with(page, stream([" three"]))
    tab_to("Continue", "Shift+Tab")
    keyboard.press("Enter")
    expect(page.composer).to_be_focused()  # what had the focus is gone
    expect(page.texts).to_have_text("one two three")
    tab_to("More for", "Shift+Tab")
    keyboard.press("Enter")
    expect(page.page.get_by_role("menuitem", name="Rename")).to_be_focused()
    keyboard.press("ArrowDown")
    expect(page.page.get_by_role("menuitem", name="Rename")).not_to_be_focused()
    keyboard.press("ArrowUp")
    expect(page.page.get_by_role("menuitem", name="Rename")).to_be_focused()
    keyboard.press("Enter")
    expect(page.page.get_by_role("dialog", name="Rename")).to_be_visible()
    keyboard.press("Control+A")
    keyboard.type("Numbers")
    keyboard.press("Enter")
    expect(page.page.locator(".top-bar h1")).to_have_text("Numbers")
    tab_to("More for", "Shift+Tab")
    keyboard.press("Enter")
    expect(page.page.get_by_role("menuitem", name="Rename")).to_be_focused()
    keyboard.press("ArrowUp")
    expect(page.page.get_by_role("menuitem", name="Delete")).to_be_focused()
    keyboard.press("Enter")
    tab_to("Delete")
    keyboard.press("Enter")
    expect(page.page.get_by_text("No conversations yet.")).to_be_visible()
    expect(page.composer).to_be_focused()
    expect(page.answers).to_have_count(0)
