"""Pages as tests read them, and what holds for all of them: no network, no scripts, data of others is text."""

from __future__ import annotations

import re
from html import escape
from html.parser import HTMLParser

EVIL = "<script>alert('x')</script><img src=x onerror=alert(1)>&\"$"


class Tags(HTMLParser):
    """Tags, attributes and text of a page; between: what parts the text of two elements."""

    def __init__(self, text: str, between: str = " ") -> None:
        super().__init__()
        self.between = between
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data + self.between


def check_names_are_text(text: str) -> None:
    """Check that names like EVIL are there, and nothing but text."""
    assert EVIL not in text
    assert "&lt;script&gt;alert(&#39;x&#39;)" in text or escape(EVIL, quote=False) in text
    found = Tags(text)
    assert not found.tags & {"script", "img", "iframe", "object", "form"}
    assert not [name for name, _ in found.attributes if name.startswith("on")]


def check_nothing_is_loaded(text: str, pictures: tuple[str, ...] = ()) -> None:
    """Check that a page asks for nothing; pictures: beginnings of addresses that hold what they are of."""
    assert "default-src 'none'" in text
    for name, value in Tags(text).attributes:
        if name in {"src", "href", "xlink:href", "data", "action", "poster", "srcset"}:
            assert value.startswith(("#", "data:,", *pictures)), value
    assert all(found.startswith("#") for found in re.findall(r"url\(([^)]*)\)", text))
    assert "@import" not in text
