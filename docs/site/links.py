"""Links of a folder of HTML pages that lead nowhere, and what these load from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Page(HTMLParser):
    """The links of a page, what it loads, and what links can lead to in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag names."""
        for name, value in attrs:
            if name in ("href", "src"):
                (self.loaded if name == "src" or tag == "link" else self.links).add(value or "")
            elif name in ("id", "name"):
                self.ids.add(value or "")


def lost_links(folder: Path) -> Iterator[str]:
    """Yield the links of pages that lead nowhere; they may lead elsewhere, but nothing is loaded from there."""
    folder = folder.resolve()
    pages = {page: _Page(page.read_text()) for page in folder.rglob("*.html")}
    for page, found in pages.items():
        for link in sorted(found.links | found.loaded):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in found.loaded and parts.scheme != "data":
                    yield f"{page.relative_to(folder)}: {link} is loaded"
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            ids = pages[target].ids if target in pages else ()
            if not target.is_file() or (parts.fragment and ids and unquote(parts.fragment) not in ids):
                yield f"{page.relative_to(folder)}: {link}"
