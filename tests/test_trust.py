"""Evidence and models are data, never code: nothing that is read from a file can run."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers.command_line import junctor_cli
from helpers.files import ASIA, ROOT

SOURCES = [ROOT / name for name in ("pipeline", "flows", "kernels")]
RUNS_CODE = {"eval", "exec", "execfile", "compile", "__import__"}
PICKLES = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "yaml", "jsonpickle"}


def found_in(tree: ast.AST) -> Iterator[str]:
    """Yield what could run the content of a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            yield from {name.split(".")[0] for name in (*names, module)} & PICKLES
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in RUNS_CODE:
                yield node.func.id
            for keyword in node.keywords:
                # False is the default of NumPy.
                if keyword.arg == "allow_pickle" and not (
                    isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                ):
                    yield "allow_pickle"


def test_the_walk_finds_what_it_looks_for() -> None:
    for text in ("import pickle", "from yaml import load", "eval(x)", "np.load(p, allow_pickle=True)"):
        assert list(found_in(ast.parse(text)))
    assert not list(found_in(ast.parse("re.compile(x); np.load(p, allow_pickle=False); self.eval(x)")))


def test_no_source_reads_code_from_files() -> None:
    paths = [path for folder in SOURCES for path in folder.rglob("*.py")]
    assert len(paths) > 200
    found = {str(path.relative_to(ROOT)): set(found_in(ast.parse(path.read_text()))) for path in paths}
    assert not {path: what for path, what in found.items() if what}


class Trap:
    """An object whose pickle runs a command when it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("how", ["objects", "bare pickle", "truncated"])
def test_tables_of_cliques_are_numbers(tmp_path: Path, how: str) -> None:
    kept, mark = tmp_path / "kept", tmp_path / "ran"
    assert junctor_cli("calibrate", ASIA, "--keep-cliques", str(kept)).exit_code == 0
    for path in kept.glob("clique-*.npy"):
        if how == "objects":
            np.save(path, np.array([Trap(mark)], dtype=object), allow_pickle=True)
        elif how == "bare pickle":
            path.write_bytes(b"cos\nmkdir\n(V" + str(mark).encode() + b"\ntR.")
        else:
            path.write_bytes(path.read_bytes()[:-8])
    asked = junctor_cli("ask", str(kept), "lung")
    assert asked.exit_code == 3
    assert "no table of numbers" in asked.stderr
    assert not mark.exists()
