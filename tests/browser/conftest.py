"""The chat page in the system's Chromium, without a window, against real servers."""

import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

sys.path.append(str(Path(__file__).parent.parent / "server"))

from chat_page import ChatTab, open_tab
from server_process import ServerProcess, running

from typebar.server.chat_page import FOLDER

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = "Chromium" if CHROMIUM is None else "the built page (make page)"
    if CHROMIUM is not None and (FOLDER / "index.html").exists():
        return
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.skip(reason=f"{missing} is not there"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Ends with the module: while it runs, its event loop would be in the way of other tests' asyncio.run."""
    arguments = ["--no-sandbox", "--disable-smooth-scrolling", "--host-resolver-rules=MAP typebar.lan 127.0.0.1"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def coder_chat(coder_path: Path) -> Iterator[ServerProcess]:
    """The real model, greedy, so that answers are the same every time. One thread leaves Chromium the other cores."""
    options = ["--max-model-len", "4096", "--temperature", "0", "--drain", "1", "--threads", "1"]
    with running(coder_path, *options) as server:
        yield server


@pytest.fixture(scope="session")
def tiny_chat(tiny_path: Path) -> Iterator[ServerProcess]:
    """The random model: endless answers of broken text, for what does not depend on words."""
    with running(tiny_path, "--served-model-name", "tiny", "--drain", "1", "--threads", "1") as server:
        yield server


@pytest.fixture
def free_port() -> int:
    """A port on which nobody listens, for servers that are started again."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


OpenTab = Callable[..., ChatTab]


@pytest.fixture
def tab(browser: Browser) -> Iterator[OpenTab]:
    """Opens the page of a server in a browser of its own; `tab(server, width=390)`. Fails at the end where a script
    failed, the policy was violated, or another host was asked for anything."""
    opened: list[ChatTab] = []

    def open_one(server: ServerProcess, **options: object) -> ChatTab:
        opened.append(open_tab(browser, server.url, **options))
        return opened[-1]

    yield open_one
    problems = [problem for one in opened for problem in one.problems]
    for one in opened:
        one.page.context.close()
    assert not problems, problems
