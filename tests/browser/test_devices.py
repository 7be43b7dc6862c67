"""What a device asks of the page: less motion, a keyboard on the screen, round corners."""

from collections.abc import Callable

import pytest
from chat_page import ChatTab, answer_with, stream
from playwright.sync_api import expect
from server_process import ServerProcess

PHONE = {"width": 390, "height": 844, "is_mobile": True, "has_touch": True}
BELOW = """selector => {
    const view = window.visualViewport
    return view.offsetTop + view.height - document.querySelector(selector).getBoundingClientRect().bottom
}"""  # px between an element and the lower end of what is seen
AT_END = """() => {
    const box = document.querySelector('.transcript')
    return box.scrollHeight - box.clientHeight - box.scrollTop < 2
}"""


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_nothing_moves_where_less_motion_is_wanted(
    tab: Callable[..., ChatTab], tiny_chat: ServerProcess, motion: str
) -> None:
    page = tab(tiny_chat, reduced_motion=motion)
    # Every animation that begins while the answer is waited for, the drawer opens and a menu is used.
    page.page.evaluate(
        """() => {
            window.moved = []
            const look = () => {
                const running = document.getAnimations().filter((one) => one.effect.getComputedTiming().duration > 0)
                window.moved.push(...running.map((one) => one.animationName ?? one.transitionProperty))
                requestAnimationFrame(look)
            }
            look()
        }"""
    )
    page.page.route("**/v1/chat/completions", lambda route: None, times=1)  # no answer comes
    page.send("hello")
    expect(page.page.get_by_role("img", name="Sending")).to_be_visible()
    page.button("Settings").click()
    expect(page.page.get_by_role("dialog", name="Settings")).to_be_visible()
    page.page.evaluate("() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))")
    moved = set(page.page.evaluate("() => window.moved"))
    assert moved >= {"breathe", "slide"} if motion == "no-preference" else moved == set()


def fill(page: ChatTab) -> None:
    answer_with(page, stream(["A line of the answer.\n\n"] * 60))
    page.send("fill the page")
    page.wait_for_answer()
    page.page.wait_for_function(AT_END)


def test_the_composer_stays_above_a_keyboard_that_takes_a_part_of_the_page(
    tab: Callable[..., ChatTab], tiny_chat: ServerProcess
) -> None:
    """As on Android, and on iOS with `interactive-widget`: the page gets lower. Nothing measures heights in scripts."""
    page = tab(tiny_chat, **PHONE)
    fill(page)
    page.composer.tap()
    page.page.set_viewport_size({"width": 390, "height": 420})
    page.page.wait_for_function("() => window.visualViewport.height === 420")
    page.page.wait_for_function(AT_END)
    assert 0 <= page.page.evaluate(BELOW, ".composer-box") < 20
    page.composer.fill("line\n" * 30)  # grows, but never over the rest
    expect(page.composer).to_be_in_viewport()
    assert page.page.evaluate(BELOW, ".composer-box") >= 0
    assert page.page.locator(".top-bar").evaluate("bar => bar.getBoundingClientRect().top") == 0
    assert page.page.locator(".transcript").evaluate("box => box.clientHeight") > 60
    page.page.set_viewport_size({"width": 390, "height": 844})
    page.page.wait_for_function("() => window.visualViewport.height === 844")
    assert 0 <= page.page.evaluate(BELOW, ".composer-box") < 20


def test_the_composer_comes_into_what_is_seen_of_a_page_that_stays_as_high(
    tab: Callable[..., ChatTab], tiny_chat: ServerProcess
) -> None:
    """As on iOS, whose keyboard covers the page and shrinks only the visual viewport: here by zooming in."""
    page = tab(tiny_chat, **PHONE)
    fill(page)
    page.composer.blur()
    session = page.page.context.new_cdp_session(page.page)
    session.send("Emulation.setPageScaleFactor", {"pageScaleFactor": 2})
    page.page.wait_for_function("() => window.visualViewport.height === 422 && window.visualViewport.offsetTop === 0")
    assert page.page.evaluate(BELOW, "#message") < 0
    page.composer.focus()
    page.page.wait_for_function(f"() => ({BELOW})('#message') >= 0")
    assert page.composer.evaluate("area => area.getBoundingClientRect().top - visualViewport.offsetTop") >= 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_round_corners_and_the_bar_of_the_system_cover_nothing(
    tab: Callable[..., ChatTab], tiny_chat: ServerProcess, scheme: str
) -> None:
    page = tab(tiny_chat, color_scheme=scheme, **PHONE)
    session = page.page.context.new_cdp_session(page.page)
    insets = {"top": 47, "bottom": 34, "left": 0, "right": 0}
    session.send("Emulation.setSafeAreaInsetsOverride", {"insets": insets})
    page.page.wait_for_function(f"() => ({BELOW})('.composer-box') >= 34")
    top = "element => element.getBoundingClientRect().top"
    assert page.page.locator(".top-bar h1").evaluate(top) >= 47
    page.button("Show conversations").click()
    assert page.button("Close conversations").evaluate(top) >= 47
    assert page.page.evaluate(BELOW, ".sidebar-foot .link") >= 34
    page.button("Close conversations").click()
    page.button("Settings").click()
    dialog = page.page.get_by_role("dialog", name="Settings")
    assert dialog.get_by_role("button", name="Close").evaluate(top) >= 47
    dialog.evaluate("dialog => dialog.scrollTo(0, dialog.scrollHeight)")
    assert page.page.evaluate(BELOW, "dialog .dialog-body section:last-child") >= 34
