"""Pages of the sources that the documentation names: a file with its lines, a folder with what lies in it."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from html import escape
from pathlib import Path

# Of files that are text, as far as pages name them or the folders that they lie in.
TEXT = (".py", ".cu", ".cuh", ".h", ".toml", ".yaml", ".json")
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>
body {{ margin: 1rem; font-family: sans-serif; line-height: 1.4; overflow-wrap: anywhere }}
pre {{ overflow-x: auto; font-size: 0.8rem; overflow-wrap: normal }}
</style></head><body><p><a href="{home}">Junctor</a></p><h1>{title}</h1>
{body}
</body></html>
"""


def write(root: Path, named: Iterable[Path], folder: Path) -> None:
    """Write a page beside where each file or folder would lie, and of the files in these folders.

    root: of the repository.
    named: files and folders in it.
    folder: of the site.
    """
    for each in {file for place in named for file in [place, *_inside(place)]}:
        name = each.relative_to(root)
        target = folder / f"{name}.html"
        target.parent.mkdir(parents=True, exist_ok=True)
        home = "../" * (len(name.parts) - 1) + "index.html"
        body = _listed(each) if each.is_dir() else f"<pre>{escape(each.read_text())}</pre>"
        target.write_text(PAGE.format(title=escape(str(name)), home=home, body=body))


def _inside(folder: Path) -> list[Path]:
    """Return the files of a folder that have pages, in the order of their names; of a file none."""
    return sorted(each for each in folder.glob("*.*") if each.suffix in TEXT)


def _listed(folder: Path) -> str:
    """Return the list of a folder's files, each with the first line of its docstring."""
    row = '<li><a href="{}/{}.html">{}</a> {}</li>'
    rows = [row.format(folder.name, each.name, each.name, _about(each)) for each in _inside(folder)]
    return f"<ul>{''.join(rows)}</ul>"


def _about(file: Path) -> str:
    """Return the first line of a module's docstring."""
    text = ast.get_docstring(ast.parse(file.read_text())) if file.suffix == ".py" else None
    return escape((text or "").partition("\n")[0])
