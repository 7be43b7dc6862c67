"""What a person does on the chat page, in its words."""

from __future__ import annotations

import json
from typing import Any

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, Request, Route, expect

WAIT = 60_000  # ms: what any step may take on a busy machine

expect.set_options(timeout=WAIT)


class ChatTab:
    """A tab with the page. `problems`: failed scripts, violations of the policy, requests to other hosts."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.problems: list[str] = []
        self.bodies: list[dict[str, Any]] = []  # of chat requests
        self.prepared: list[dict[str, Any]] = []  # answers to the next of them
        self._answered = 0
        page.set_default_timeout(WAIT)
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (self.problems.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("console", self._on_console)
        page.on("request", self._on_request)

    def _on_console(self, message: ConsoleMessage) -> None:
        if "Content Security Policy" in message.text:
            self.problems.append(message.text)

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith((self.url, "blob:", "data:")):
            self.problems.append(f"asked for {request.url}")
        if request.url.endswith("/v1/chat/completions") and request.post_data:
            self.bodies.append(json.loads(request.post_data))

    def answer(self, route: Route) -> None:
        """Answer a chat request with what is prepared, or let the server do so."""
        if self._answered == len(self.prepared):
            route.continue_()
            return
        self._answered += 1
        route.fulfill(**self.prepared[self._answered - 1])

    @property
    def composer(self) -> Locator:
        return self.page.get_by_role("textbox", name="Message")

    @property
    def questions(self) -> Locator:
        return self.page.locator("article.question")

    @property
    def answers(self) -> Locator:
        return self.page.locator("article.answer")

    @property
    def texts(self) -> Locator:
        return self.page.locator("article.answer .markdown")

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    def send(self, text: str) -> None:
        self.composer.fill(text)
        self.composer.press("Enter")

    def ask(self, text: str) -> Locator:
        """Send, and wait for the end of the answer."""
        self.send(text)
        return self.wait_for_answer()

    def wait_for_answer(self) -> Locator:
        last = self.answers.last
        expect(last).to_have_attribute("aria-busy", "false")
        return last

    def wait_for_text(self, least: int = 1) -> str:
        """The text of the last answer once it has some."""
        expect(self.texts.last).to_be_visible()
        self.page.wait_for_function(
            "least => [...document.querySelectorAll('article.answer .markdown')].at(-1)?.textContent.length >= least",
            arg=least,
        )
        return self.texts.last.text_content() or ""

    def write_without_end(self) -> None:
        """Ask for answers that do not end before the context is full, a minute or more: whatever is done meanwhile, on
        however busy a machine, is done while the server writes."""

        def lengthen(route: Route) -> None:
            route.continue_(post_data=json.dumps({**json.loads(route.request.post_data or "{}"), "min_tokens": 4000}))

        self.page.route("**/v1/chat/completions", lengthen)

    def limit(self, tokens: int) -> None:
        """Set the most tokens of an answer."""
        self.button("Settings").click()
        field = self.page.get_by_label("Most tokens of an answer")
        field.fill(str(tokens))
        field.press("Tab")
        self.page.keyboard.press("Escape")

    def switch(self, name: str, is_on: bool) -> None:
        """Turn a switch of the settings on or off."""
        self.button("Settings").click()
        self.page.get_by_role("switch", name=name).set_checked(is_on)
        self.page.keyboard.press("Escape")

    def reload(self) -> None:
        self.page.reload()
        expect(self.composer).to_be_visible()


def open_tab(
    browser: Browser, url: str, *, context: BrowserContext | None = None, width: int = 1280, height: int = 800,
    path: str = "/", locale: str = "en-US", **options: Any,
) -> ChatTab:  # fmt: skip
    """A new tab, in a browser without a past unless a context is given."""
    if context is None:
        context = browser.new_context(viewport={"width": width, "height": height}, locale=locale, **options)
    tab = ChatTab(context.new_page(), url)
    tab.page.goto(url + path)
    expect(tab.page.locator("#message")).to_be_visible()
    return tab


def stream(pieces: list[str], *, is_whole: bool = True) -> str:
    """The events of an answer."""
    chunks = [{"model": "m", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}]
    chunks += [{"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in pieces]
    if is_whole:
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + ("data: [DONE]\n\n" if is_whole else "")


def answer_with(tab: ChatTab, body: str, status: int = 200, headers: dict[str, str] | None = None) -> None:
    """Let the next chat request be answered with this instead of by the server; several calls, several requests.

    The route stays: one that is taken off and on again between requests misses some of them on a busy machine.
    """
    kind = "text/event-stream" if status == 200 else "application/json"
    answer = {"status": status, "body": body, "headers": {"content-type": kind, **(headers or {})}}
    if not tab.prepared:
        tab.page.route("**/v1/chat/*", tab.answer)
    tab.prepared.append(answer)
