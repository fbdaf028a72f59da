"""A headless Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium() -> str:
    """The path of a Chromium; skips the test where there is none."""
    found = os.environ.get("LLMK_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no Chromium is installed: apt-get install chromium (looked for {', '.join(NAMES)})")
    return found


@contextmanager
def tab(
    url: str, width: int = 1280, height: int = 800, scheme: Any = "light", complaints: list[str] | None = None
) -> Iterator[Any]:
    """A tab that shows the page of the server at ``url``. Everything that the browser complains of, and every address
    of another server that is asked for, fails the test, or is added to ``complaints``."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install playwright")
    found: list[str] = [] if complaints is None else complaints
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme).new_page()
        page.set_default_timeout(30_000)
        page.on("console", lambda message: message.type == "error" and found.append(message.text))
        page.on("pageerror", lambda error: found.append(str(error)))
        page.on("dialog", lambda dialog: (found.append(f"a dialog: {dialog.message}"), dialog.dismiss()))
        page.on("popup", lambda popup: found.append(f"a window: {popup.url}"))
        local = (f"{url}/", "data:", "blob:")
        page.on("request", lambda request: request.url.startswith(local) or found.append(f"asked for {request.url}"))
        try:
            page.goto(f"{url}/")
            yield page
        finally:
            browser.close()
    if complaints is None:
        assert not found, found


def ready(page: Any) -> None:
    """Waits until the page has found its server."""
    page.wait_for_selector("#dot[data-state=well]", state="attached")


def answered(page: Any, number: int = 1) -> Any:
    """The ``number``-th answer of the model, once it is complete."""
    page.wait_for_function(
        "n => document.querySelectorAll('.message.assistant:not(.running) .actions').length >= n", arg=number
    )
    return page.locator(".message.assistant").nth(number - 1)


def ask(page: Any, text: str) -> None:
    """Sends a message."""
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")
