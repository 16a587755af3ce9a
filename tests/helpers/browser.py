"""A headless Chromium: the machine's, or Playwright's own; None where there is neither."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@contextmanager
def chromium() -> Iterator[Any]:
    """Context manager: a browser of Playwright; skips the test, with a reason, where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = os.environ.get("CHROME_PATH") or next(filter(None, map(shutil.which, NAMES)), None)
    with api.sync_playwright() as playwright:
        if found is None and not Path(playwright.chromium.executable_path).exists():
            pytest.skip("no Chromium: `playwright install chromium`, or CHROME_PATH")
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


def check_page(browser: Any, page_file: Path, pictures: int) -> None:
    """Check a page on three screens: nothing is wider, nothing is said or asked for; so many pictures at least."""
    for width in (375, 768, 1440):
        page = browser.new_page(viewport={"width": width, "height": 900})
        said: list[str] = []
        asked: list[str] = []
        page.on("console", lambda message, said=said: said.append(message.text))
        page.on("pageerror", lambda error, said=said: said.append(str(error)))
        page.on("dialog", lambda dialog, said=said: said.append(dialog.message))
        page.on("request", lambda request, asked=asked: asked.append(request.url))
        page.goto(page_file.as_uri())
        assert page.title()
        # Wide tables scroll by themselves.
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("document.querySelectorAll('svg').length") >= pictures
        assert said == []
        assert asked == [page_file.as_uri()]
        page.close()
