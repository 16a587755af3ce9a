"""The documentation as a site: `uv run python docs/site/build.py FOLDER`, then open FOLDER/index.html.

Pages of the repository, the commands, the Python functions and the sources that pages name. A link that leads nowhere
fails it, and so does what is loaded from elsewhere. Its search needs a server: `python -m http.server -d FOLDER`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import commands
import sources
from links import lost_links

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# A link, or what is no link because it lies in code.
# Code within a line of a page, and an option in it.
CODE = re.compile(r"<code>[^<]*</code>")
OPTION = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")
LINK = re.compile(r"^```.*?^```|`[^`\n]+`|\]\(([^)\s#]+)", re.M | re.S)


def build(folder: Path) -> None:
    """Write the site into a folder, and raise SystemExit where a link leads nowhere."""
    with TemporaryDirectory() as scratch:
        pages = Path(scratch) / "pages"
        named = _lay_out(pages)
        shutil.copy(HERE / "mkdocs.yml", scratch)
        words = [sys.executable, "-m", "zensical", "build", "--strict"]
        if subprocess.run(words, cwd=scratch, env={**os.environ, "NO_COLOR": "1"}).returncode:
            raise SystemExit("there is no site: see above")
        for page in (Path(scratch) / "site").rglob("*.html"):
            page.write_text(whole_options(page.read_text()))
        shutil.copytree(Path(scratch) / "site", folder, dirs_exist_ok=True)
    # Its links are those of a server's root.
    (folder / "404.html").unlink()
    # Of those who build a site.
    import reference

    sources.write(ROOT, named, folder)
    reference.build(folder / "api")
    if lost := list(lost_links(folder)):
        raise SystemExit("\n".join([*lost, f"{len(lost)} links lead nowhere"]))


def _lay_out(pages: Path) -> set[Path]:
    """Copy the pages of the repository to where a site is made of them; return the sources that they name."""
    named = set[Path]()
    for page in [*ROOT.glob("*.md"), ROOT / "data" / "README.md", *(ROOT / "docs").rglob("*")]:
        target = pages / page.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        if page.suffix == ".md":
            target.write_text(linked(page, named))
        elif page.suffix in (".svg", ".png"):
            shutil.copy(page, target)
        elif page.suffix == ".ipynb":
            _run_notebook(page, target.parent)
    (pages / "commands").mkdir()
    for name, text in commands.pages().items():
        (pages / "commands" / name).write_text(text)
    shutil.copy(HERE / "site.css", pages)
    return named


def linked(page: Path, named: set[Path]) -> str:
    """Return the text of a page with links to the pages that are made of sources and notebooks; add to the sources."""

    def made(link: re.Match[str]) -> str:
        target = (page.parent / (link[1] or ".")).resolve()
        if link[1] is None or "://" in link[1] or target.suffix in (".md", ".svg", ".png"):
            return link[0]
        if target.suffix == ".ipynb":
            return link[0].removesuffix(".ipynb") + ".md"
        named.add(target)
        return f"{link[0].rstrip('/')}.html"

    return LINK.sub(made, page.read_text())


def whole_options(page: str) -> str:
    """Return a page with the options in its lines as wholes: browsers break lines after hyphens."""
    return CODE.sub(lambda code: OPTION.sub(r'<span class="option">\g<0></span>', code[0]), page)


def _run_notebook(notebook: Path, folder: Path) -> None:
    """Write a page of a notebook and of what its cells answer."""
    words = [sys.executable, "-m", "nbconvert", "--to", "markdown", "--execute", "--output-dir", str(folder)]
    subprocess.run([*words, str(notebook)], cwd=ROOT, check=True)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
