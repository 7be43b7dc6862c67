"""How an answer is drawn while it is written: what a paint touches does not grow with the answer."""

import re
from collections.abc import Callable

import pytest
from chat_page import ChatTab, stream
from playwright.sync_api import expect
from server_process import ServerProcess

# The test writes the answer: feed(events) hands on what a server would send, finish() ends it.
FEED = """() => {
    const real = window.fetch
    window.fetch = (address, options) => {
        if (!String(address).endsWith('/v1/chat/completions')) return real(address, options)
        const encoder = new TextEncoder()
        const body = new ReadableStream({
            start(controller) {
                window.feed = (events) => controller.enqueue(encoder.encode(events))
                window.finish = () => controller.close()
            },
        })
        return Promise.resolve(new Response(body))
    }
}"""
# Nodes that each paint adds, removes or changes in the answer; the line with its numbers, one node, is left out.
TOUCHED = """() => {
    const size = (node) => 1 + (node.querySelectorAll ? node.querySelectorAll('*').length : 0)
    const sizes = (nodes) => [...nodes].reduce((sum, node) => sum + size(node), 0)
    window.touched = []
    new MutationObserver((records) => {
        const count = (one) => (one.type === 'childList' ? sizes(one.addedNodes) + sizes(one.removedNodes) : 1)
        window.touched.push(records.reduce((sum, record) => sum + count(record), 0))
    }).observe(document.querySelector('article.answer .markdown'), {
        subtree: true, childList: true, characterData: true, attributes: true,
    })
}"""
STEP = 40  # characters, those of nine tokens: what a fast model writes between two paints
LINES = 32  # of a piece of code

CODE = "\n".join(f"def step_{at}(tokens):\n    return [token * {at} for token in tokens]  # {at}\n" for at in range(99))
LONG = {
    "code": f"```python\n{CODE}\n```",
    "code of no known language": f"```whatever\n{CODE}\n```",
    "list": "\n".join(f"{at}. **item {at}** with `code` and [a link](https://example.org)" for at in range(1, 150)),
    "table": "\n".join(["| a | b |", "|---|--:|", *(f"| `row {at}` | **{at}** of many |" for at in range(200))]),
    "paragraphs": "\n\n".join(f"Paragraph {at} has *some* words and `code` in it, and more." for at in range(150)),
}


def writing(page: ChatTab) -> None:
    """Ask, so that an answer is written of which nothing has come."""
    page.page.evaluate(FEED)
    page.send("go")
    page.page.wait_for_function("() => window.feed")


def write(page: ChatTab, text: str) -> None:
    page.page.evaluate("events => window.feed(events)", stream([text], is_whole=False))


def wait_until_drawn(page: ChatTab, text: str) -> None:
    """Until the last number of the text is there."""
    last = re.findall(r"(?:step_|item |row |Paragraph )\d+(?=\W)", text)[-1]
    page.page.wait_for_function("last => document.querySelector('.markdown')?.textContent.includes(last)", arg=last)


def touched(page: ChatTab, text: str, start: int) -> list[int]:
    """What each of the next paints touches."""
    page.page.evaluate("() => { window.touched = [] }")
    for at in range(10):
        before = page.page.evaluate("() => window.touched.length")
        write(page, text[start + at * STEP : start + (at + 1) * STEP])
        page.page.wait_for_function("before => window.touched.length > before", arg=before)
    found: list[int] = page.page.evaluate("() => window.touched")
    return found


def write_until_coloured(page: ChatTab, text: str, start: int) -> int:
    """Go on until what came at once has its colours, which can take a while; where the text ends then."""
    pieces = page.page.locator("pre code > span")
    for end in range(start, start + 600, STEP):
        if pieces.count() > text[:end].count("\n") // LINES:
            return end
        write(page, text[end : end + STEP])
        wait_until_drawn(page, text[: end + STEP])
        page.page.wait_for_timeout(1000)  # ms
    raise AssertionError(f"{pieces.count()} pieces with colours of {text[:end].count(chr(10)) // LINES + 1}")


@pytest.mark.parametrize("kind", LONG)
def test_a_paint_touches_as_little_at_the_end_as_at_the_beginning(
    tab: Callable[..., ChatTab], tiny_chat: ServerProcess, kind: str
) -> None:
    text = LONG[kind]
    page = tab(tiny_chat)
    writing(page)
    write(page, text[:1000])
    wait_until_drawn(page, text[:1000])
    if kind == "code":
        expect(page.page.locator("[class^=hljs-]").first).to_be_visible()
    page.page.evaluate(TOUCHED)
    first = touched(page, text, 1000)
    late = len(text) - 2000
    write(page, text[1000 + 10 * STEP : late])
    wait_until_drawn(page, text[:late])
    if kind == "code":
        late = write_until_coloured(page, text, late)
    last = touched(page, text, late)
    count = page.page.evaluate("() => document.querySelectorAll('.markdown *').length")
    most = 450 if kind == "code" else 60  # the colours of a piece, out and in
    assert max(first + last) < most, (first, last)
    if kind not in ("code of no known language", "paragraphs"):
        assert count > 500
    write(page, text[late + 10 * STEP :])
    page.page.evaluate("() => window.finish()")
    page.wait_for_answer()


def test_code_in_pieces_is_the_code(tab: Callable[..., ChatTab], tiny_chat: ServerProcess) -> None:
    """Its text, what a selection copies, and colours that go on from one piece to the next."""
    code = '"""A text\n\n' + "of many lines <b> &lt; &amp;\n" * 40 + '"""\n' + CODE
    page = tab(tiny_chat)
    writing(page)
    write(page, f"```python\n{code[:1500]}")
    block = page.page.locator("pre code")
    expect(block.locator(".hljs-string").first).to_be_visible()
    write(page, f"{code[1500:]}```\n\nThat is it.")
    expect(page.texts).to_contain_text("That is it.")
    for is_over in (False, True):
        assert block.text_content() == code.rstrip("\n")
        copied = block.evaluate("code => { getSelection().selectAllChildren(code); return getSelection().toString() }")
        assert copied.rstrip("\n") == code.rstrip("\n")
        pieces = block.locator(":scope > span")
        assert pieces.count() == code.rstrip("\n").count("\n") // LINES + 1
        assert (pieces.nth(0).text_content() or "").count("\n") == LINES
        expect(pieces.nth(1).locator(".hljs-string").first).to_contain_text("of many lines <b> &lt; &amp;")
        assert block.locator("b").count() == 0
        if not is_over:
            page.page.evaluate("() => window.finish()")
            page.wait_for_answer()
