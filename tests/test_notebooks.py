"""The notebooks of the documentation: Jupyter runs their cells, in order, and they are stored without outputs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs").glob("*.ipynb"))


def code(notebook: Path) -> list[dict[str, Any]]:
    """The cells of code."""
    record = json.loads(notebook.read_text())
    assert record["nbformat"] == 4
    return [cell for cell in record["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_jupyter_runs_all_cells(notebook: Path, tmp_path: Path) -> None:
    pytest.importorskip("nbconvert", reason="nbconvert is not installed")
    assert not [cell["id"] for cell in code(notebook) if cell["outputs"] or cell["execution_count"]]
    words = [sys.executable, "-m", "jupyter", "nbconvert", "--to", "notebook", "--execute", str(notebook)]
    # In the folder of whoever asks; the kernel is in that of the notebook.
    ran = subprocess.run([*words, "--output-dir", str(tmp_path)], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    cells = code(tmp_path / notebook.name)
    assert cells
    # Each ends with what it shows; before that it may say that it compiles.
    assert {cell["outputs"][-1]["output_type"] for cell in cells} == {"execute_result"}
