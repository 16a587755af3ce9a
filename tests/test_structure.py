"""The shape of the source: names, places of files, and imports."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.files import ROOT

SOURCES = {
    "junctor": ROOT / "pipeline" / "junctor",
    "junctor_flows": ROOT / "flows" / "junctor_flows",
    "junctor_kernels": ROOT / "kernels" / "junctor_kernels",
}


def modules() -> Iterator[Path]:
    for folder in SOURCES.values():
        yield from folder.rglob("*.py")


def test_no_two_public_classes_share_a_name() -> None:
    homes = defaultdict(list)
    for path in modules():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(str(path.relative_to(ROOT)))
    assert len(homes) > 100
    assert not {name: paths for name, paths in homes.items() if len(paths) > 1}


def test_modules_lie_in_the_folders_of_their_layers() -> None:
    files = {path.name for path in SOURCES["junctor"].iterdir() if path.is_file()}
    assert files == {"__init__.py", "api.py", "generate.py", "py.typed"}
    assert {path.name for path in SOURCES["junctor_kernels"].iterdir() if path.is_file()} <= {"__init__.py", "py.typed"}


def test_folders_of_tests_are_those_of_the_source() -> None:
    folders = {path.parent.name for folder in SOURCES.values() for path in folder.rglob("*.py")}
    tests = {path.parent.relative_to(ROOT / "tests").parts[0] for path in ROOT.glob("tests/*/**/test_*.py")}
    assert tests <= {folder.removeprefix("junctor_") for folder in folders} | {"api", "benchmarks", "routes"}


def test_names_of_test_modules_are_unique() -> None:
    names = [path.name for path in ROOT.glob("tests/**/test_*.py")]
    assert len(names) == len(set(names))


def test_no_modules_import_each_other_in_a_circle() -> None:
    grimp = pytest.importorskip("grimp", reason="comes with import-linter")
    graph = grimp.build_graph(*SOURCES, exclude_type_checking_imports=False, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    # Whoever imports nothing that is left is in no circle.
    while free := {module for module, others in imports.items() if not others & imports.keys()}:
        imports = {module: others for module, others in imports.items() if module not in free}
    # Nor is whom nobody that is left imports.
    while free := imports.keys() - set().union(*imports.values()):
        imports = {module: others for module, others in imports.items() if module not in free}
    assert not imports, sorted(imports)
