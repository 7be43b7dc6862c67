"""Pictures of the page with the real model, to be looked at: desktop, phone, dark, Chinese; and the one in docs/.

python tests/browser/screenshots.py [FOLDER]     FOLDER: build/screenshots
"""

import shutil
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

sys.path.append(str(Path(__file__).resolve().parent.parent / "server"))

from chat_page import open_tab
from server_process import running

from typebar.model.download import resolve_model

ROOT = Path(__file__).resolve().parent.parent.parent
ENGLISH = "Compare Python and Rust in a Markdown table of three rows. Then show a hello world in Rust."
FOR_DOCS = "Write a Python function that removes duplicates from a list and keeps the order. Only the code."
CHINESE = "用两句话说明什么是哈希表，再给一个简短的 Python 例子。"
SCENES: dict[str, dict[str, Any]] = {
    "desktop": {"question": ENGLISH},
    "dark": {"question": ENGLISH, "color_scheme": "dark"},
    "phone": {"question": ENGLISH, "width": 390, "height": 844, "is_mobile": True, "has_touch": True},
    "chinese": {"question": CHINESE, "locale": "zh-CN"},
}
WRITTEN = 220  # characters of the answer that is shown while it is written


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    model = resolve_model("qwen2.5-coder-0.5b-instruct").path
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with running(model, "--temperature", "0") as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, scene in SCENES.items():
            take(browser, server.url, folder / name, **scene)
        take_for_docs(browser, server.url, ROOT / "docs" / "page.png")
        browser.close()


def take(browser: Browser, url: str, path: Path, *, question: str, **options: Any) -> None:
    tab = open_tab(browser, url, device_scale_factor=2, **options)
    tab.page.wait_for_function("() => document.querySelector('.server-chip.ready')")
    tab.page.screenshot(path=f"{path}-empty.png")
    tab.page.locator("#message").fill(question)
    tab.page.locator("#message").press("Enter")
    tab.page.wait_for_function(
        "least => document.querySelector('article.answer .markdown')?.textContent.length >= least", arg=WRITTEN
    )
    tab.page.screenshot(path=f"{path}-writing.png")
    tab.wait_for_answer()
    tab.page.locator(".transcript").evaluate("box => (box.scrollTop = 0)")
    tab.page.wait_for_timeout(300)
    tab.page.screenshot(path=f"{path}-answer.png")
    tab.page.locator(".top-bar .icon-button").last.click()
    tab.page.wait_for_timeout(300)
    tab.page.screenshot(path=f"{path}-settings.png")
    tab.page.context.close()
    print(f"{path}-*.png", flush=True)


def take_for_docs(browser: Browser, url: str, path: Path) -> None:
    """At the size of its pixels, so that it stays below 150 kB."""
    tab = open_tab(browser, url, width=1120, height=800)
    tab.limit(200)
    tab.ask(FOR_DOCS)
    tab.page.locator(".transcript").evaluate("box => (box.scrollTop = 0)")
    tab.page.mouse.move(0, 0)
    tab.page.screenshot(path=path, animations="disabled")
    tab.page.context.close()
    print(path, f"{path.stat().st_size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "screenshots")
