"""`junctor.learn` beside pyAgrum's EM: same start, same rows.

uv run --with pyagrum==3.3.1 pytest tests/benchmarks/test_learning.py
"""

from __future__ import annotations

import learning
import numpy as np
import numpy.typing as npt
import pytest
from helpers.files import ASIA
from junctor.formats import read_network
from junctor.learning.learn import learn
from junctor.model.network import Network

pytest.importorskip("pyagrum", reason="pyAgrum comes with an environment of its own")


@pytest.mark.parametrize(
    "missing", [pytest.param(0.1, marks=pytest.mark.slow), 0.3, pytest.param(0.6, marks=pytest.mark.slow)]
)
def test_iterates_are_those_of_pyagrum(missing: float) -> None:
    truth = read_network(ASIA)
    start, cells = learning.started(truth), learning.cells_of(truth, 500, missing)
    iterations = 10
    _, tables = learning.peers(start, cells, iterations)
    found = learn(start, table_of(truth, cells), acceleration="none", tolerance=0.0, max_iterations=iterations)
    for factor, theirs in zip(found.network.factors, tables, strict=True):
        np.testing.assert_allclose(factor.table, theirs, atol=1e-12)


def table_of(network: Network, cells: npt.NDArray[np.int32]) -> dict[str, list[str | None]]:
    """Return rows of states as a table, empty where they are -1."""
    return {
        variable.name: [None if state < 0 else variable.states[state] for state in cells[:, v].tolist()]
        for v, variable in enumerate(network.variables)
    }
