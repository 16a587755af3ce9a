"""The documentation: links and module paths lead somewhere, pages are short, the glossary is in order."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import build
import commands
import junctor
import links
import pytest
import typer
from junctor import hmm
from junctor.cli import app_for

ROOT = Path(__file__).parents[1]
SITE = ROOT / "docs" / "site"
DECISIONS = ROOT / "docs" / "decisions"
MEASUREMENTS = ROOT / "docs" / "measurements"
PAGES = sorted(ROOT.glob("*.md"))
PAGES += [page for folder in ("benchmarks", "data", "docs", "tests") for page in sorted((ROOT / folder).rglob("*.md"))]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
# Paths with a wildcard name no single file.
SOURCE = re.compile(r"(?<![\w/])(?:pipeline|kernels|flows|benchmarks|tests|docs)/[\w./-]+\.(?:py|cu|md|json|svg)\b")
PAGE = re.compile(r"(?<![\w/])docs/[\w/-]+\.md\b")
FENCED = re.compile(r"^```.*?^```", re.M | re.S)
# Lines of pages that are read whole, titles and blank lines included.
MOST_LINES = {"README.md": 80, "CHANGELOG.md": 40, "docs/performance.md": 45}
MOST_LINES |= {str(page.relative_to(ROOT)): 25 for page in sorted(DECISIONS.glob("*.md")) if page.name != "README.md"}
TERM = re.compile(r"^- \*\*(.+?)\*\*:", re.M)


def names(pages: list[Path]) -> list[str]:
    return [str(page.relative_to(ROOT)) for page in pages]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in LINK.findall(FENCED.sub("", page.read_text())):
        if link.startswith(("https://", "http://")):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{link}: no such file"
        assert target.is_relative_to(ROOT), f"{link}: outside of the repository"
        assert not anchor or anchor in anchors(target), f"{link}: no such heading"


@pytest.mark.parametrize(("page", "most"), MOST_LINES.items(), ids=MOST_LINES)
def test_pages_that_are_read_whole_are_short(page: str, most: int) -> None:
    assert len((ROOT / page).read_text().splitlines()) <= most


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_lines_of_prose_are_short(page: Path) -> None:
    lines = FENCED.sub("", page.read_text()).splitlines()
    # Tables and indented code are as wide as they need.
    assert not [line for line in lines if len(line) > 120 and " | " not in line and not line.startswith("    ")]


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_paths_of_modules_exist(page: Path) -> None:
    text = re.sub(r"\]\([^)]*\)", "]", page.read_text()).replace("\\_", "_")
    missing = [path for path in SOURCE.findall(text) if not (ROOT / path).exists()]
    assert not missing


def test_pages_that_sources_name_exist() -> None:
    folders = ("pipeline", "kernels", "flows", "benchmarks", "tests")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*") if file.suffix in (".py", ".cu")]
    named = {path for file in files for path in PAGE.findall(file.read_text())}
    assert len(named) > 5
    assert not [path for path in named if not (ROOT / path).exists()]


def test_terms_of_the_glossary_are_unique_and_sorted() -> None:
    terms = [term.lower() for term in TERM.findall((ROOT / "docs" / "glossary.md").read_text())]
    assert len(terms) > 100
    assert terms == sorted(set(terms))


def test_sources_of_the_glossary_are_listed() -> None:
    # Entries go over several lines.
    text = (ROOT / "docs" / "glossary.md").read_text().replace("\n  ", " ")
    terms, _, sources = text.partition("## Sources")
    cited = re.findall(r"\[([A-Z][^\]]*)\]", "\n".join(line for line in terms.splitlines() if line.startswith("- ")))
    authors = {re.split(r",| and | et al", source)[0].strip() for group in cited for source in group.split(";")}
    missing = {re.sub(r" \d{4}$", "", author) for author in authors if re.sub(r" \d{4}$", "", author) not in sources}
    assert not missing


@pytest.mark.parametrize("folder", [DECISIONS, MEASUREMENTS], ids=lambda folder: folder.name)
def test_every_page_is_in_the_index_of_its_folder(folder: Path) -> None:
    listed = LINK.findall((folder / "README.md").read_text())
    pages = {page.name for page in folder.glob("*.md")} - {"README.md"}
    assert pages
    assert pages <= set(listed)
    assert len(listed) == len(set(listed))


def test_measurements_have_a_date() -> None:
    pages = set(MEASUREMENTS.glob("*.md")) - {MEASUREMENTS / "README.md"}
    assert not [page.name for page in pages if not re.search(r"\b20\d\d-\d\d\b", page.read_text())]


def test_decisions_have_context_choice_and_consequence() -> None:
    parts = ("**Context", "**Choice", "**Consequence")
    for page in set(DECISIONS.glob("*.md")) - {DECISIONS / "README.md"}:
        text = page.read_text()
        places = [text.find(part) for part in parts]
        assert -1 < places[0] < places[1] < places[2], page.name
        assert all(text.count(part) == 1 for part in parts), page.name


def test_the_reference_has_all_public_names_and_no_broken_links(tmp_path: Path) -> None:
    pytest.importorskip("pdoc", reason="of those who develop")
    words = [sys.executable, "-W", "error:Found", str(SITE / "reference.py"), str(tmp_path)]
    subprocess.run(words, check=True, capture_output=True)
    for name, public in (("junctor", junctor.__all__), ("junctor/hmm", hmm.__all__), ("junctor/generate", ["grid"])):
        page = tmp_path / f"{name}.html"
        assert {f'id="{each}"' for each in public} <= set(re.findall(r'id="[^"]+"', page.read_text()))
    # The page of the site from which it is reached.
    (tmp_path.parent / "index.html").touch()
    assert not list(links.lost_links(tmp_path))
    text = (tmp_path / "junctor.html").read_text()
    # Options of the table are keywords, with their texts.
    assert all(word in text for word in ("time_limit", "hide_targets", "column that names the cases"))


def test_links_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.html").write_text(
        '<h1 id="top">A</h1><a href="sub/b.html#there"></a><a href="sub/b.html#not"></a><a href="#top"></a>'
        '<a href="#end"></a><img src="none.png"><a href="https://example.org/"></a><img src="data:,">'
        '<script src="https://example.org/a.js"></script><link rel="icon" href="//example.org/b.ico">'
    )
    (tmp_path / "sub" / "b.html").write_text('<p id="there"><a href="../a.html"></a><a href="c.html"></a></p>')
    lost = ["a.html: #end", "a.html: //example.org/b.ico is loaded", "a.html: https://example.org/a.js is loaded"]
    lost += ["a.html: none.png", "a.html: sub/b.html#not", "sub/b.html: c.html"]
    assert sorted(links.lost_links(tmp_path)) == lost


def test_all_commands_and_options_have_a_place_in_the_reference() -> None:
    pages = commands.pages()
    group = typer.main.get_command(app_for())
    assert pages.keys() == {"index.md", *(f"{name}.md" for name in group.commands)}
    for name, command in group.commands.items():
        assert f"[{name}]({name}.md)" in pages["index.md"]
        for below in getattr(command, "commands", {}).values() or [command]:
            words = [each.metavar or each.name for each in below.params if each.param_type_name == "argument"]
            words += [each.opts[0] for each in below.params if each.param_type_name == "option"]
            assert words or name in ("warmup", "serve")
            assert [word for word in words if f"| `{word}" not in pages[f"{name}.md"]] == []
    # Signs of Markdown and HTML are those of the help, and options are code.
    assert "with `--method` auto such rows" in pages["run.md"]
    assert "'rows &lt; 1000'" in pages["learn.md"]
    assert "such as 'DIAG\\_\\*'" in pages["run.md"]


def test_pages_of_sources_are_named_in_place_of_the_sources() -> None:
    named = set[Path]()
    text = build.linked(ROOT / "docs" / "memory.md", named)
    assert "](../pipeline/junctor/planning/chunks.py.html)" in text
    assert "](../pipeline/junctor/placement.html)" in text
    assert "](forecasts.md)" in text
    assert {ROOT / "pipeline/junctor/planning/chunks.py", ROOT / "pipeline/junctor/placement"} <= named
    notebooks = re.findall(r"\[notebook\]\(([\w/.]+)\)", build.linked(ROOT / "README.md", named))
    assert [Path(each).suffix for each in notebooks] == [".md"]


def test_options_in_pages_are_wholes() -> None:
    page = "<p>a --b <code>run --fail-if x-y -o -1 a--b</code></p><pre><code><span>--json</span></code></pre>"
    option = '<span class="option">{}</span>'.format
    whole = f"run {option('--fail-if')} x-y {option('-o')} -1 a--b"
    assert build.whole_options(page) == page.replace("run --fail-if x-y -o -1 a--b", whole)


def test_pages_of_the_navigation_exist_and_no_page_is_left_out() -> None:
    navigation = re.findall(r"docs/[\w/]+\.md", (SITE / "mkdocs.yml").read_text())
    assert len(navigation) > 25
    listed = {
        page.relative_to(ROOT).as_posix()
        for folder in ("docs", "docs/scheduling", "docs/tutorials")
        for page in ROOT.glob(f"{folder}/*.md")
    }
    listed |= {f"docs/{page.stem}.md" for page in (ROOT / "docs").glob("*.ipynb")}
    indices = {f"docs/{folder}/README.md" for folder in ("decisions", "measurements")}
    assert sorted(navigation) == sorted(listed | indices)
