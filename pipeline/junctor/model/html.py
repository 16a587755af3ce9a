"""Tables in HTML, as notebooks show objects. Main function: `html_table`, called by networks and plans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

# Longest text of a cell.
_LONGEST = 120


def html_table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]], left_out: int = 0) -> str:
    """Return a table in HTML; all texts are escaped, and cut after 120 characters.

    title: above it.
    header: name of each column.
    rows: cells of each row.
    left_out: number of further rows, told below.
    """
    head = _row("th", header)
    body = "".join(_row("td", row) for row in rows)
    more = f"<p>and {left_out:,} more</p>" if left_out else ""
    return f"<p>{_text(title)}</p><table><thead>{head}</thead><tbody>{body}</tbody></table>{more}"


def _row(tag: str, cells: Sequence[object]) -> str:
    return f"<tr>{''.join(f'<{tag}>{_text(cell)}</{tag}>' for cell in cells)}</tr>"


def _text(cell: object) -> str:
    # Imported where a notebook shows something: with it come all entities of HTML.
    from html import escape

    text = str(cell)
    return escape(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...")
