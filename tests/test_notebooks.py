"""The notebooks of the documentation: their cells run, in order, and are stored without outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs").glob("*.ipynb"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_cells_run_in_order(notebook: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = json.loads(notebook.read_text())
    assert record["nbformat"] == 4
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    cells = [cell for cell in record["cells"] if cell["cell_type"] == "code"]
    assert cells
    for cell in cells:
        assert not cell["outputs"]
        exec(compile("".join(cell["source"]), f"{notebook.name}: {cell['id']}", "exec"), names)
