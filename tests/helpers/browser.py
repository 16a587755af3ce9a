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
