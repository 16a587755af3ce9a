"""Every page of the site on a telephone: `uv run python docs/site/look.py FOLDER`.

None is wider than the screen, and no picture is missing. Without a browser it says so, and fails nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "tests"))
from helpers.browser import chromium

WIDTH = 390
MISSING = "[...document.images].filter(image => !image.naturalWidth).map(image => image.src)"


def faults(browser: Any, folder: Path) -> Iterator[str]:
    """Yield what is wrong with the pages of a site."""
    page = browser.new_page(viewport={"width": WIDTH, "height": 900}, java_script_enabled=False)
    for file in sorted(_pages(folder)):
        page.goto(file.as_uri())
        if (width := page.evaluate("document.documentElement.scrollWidth")) > WIDTH:
            yield f"{file.relative_to(folder)}: {width} pixels wide"
        for picture in page.evaluate(MISSING):
            yield f"{file.relative_to(folder)}: no picture {picture}"


def _pages(folder: Path) -> Iterator[Path]:
    """Yield the pages to look at: sources are plain text, and decisions a few lines of prose."""
    yield from folder.glob("*.html")
    for top in ("api", "commands", "data", "docs"):
        for page in (folder / top).rglob("*.html"):
            # Some only send on to another one.
            if page.parent.name != "decisions" and 'http-equiv="refresh"' not in page.read_text():
                yield page


def main(folder: Path) -> None:
    """Print what is wrong, and end with an error where there is something."""
    try:
        with chromium() as browser:
            found = list(faults(browser, folder.resolve()))
    except pytest.skip.Exception as reason:
        print(f"not looked at: {reason}")
        return
    if found:
        raise SystemExit("\n".join(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
