"""Satish and Sundaram's algorithm finds the posteriors, and its flops are counted as they count them."""

from __future__ import annotations

import grids_paper as papers
import junctor
import numpy as np
import pytest
from baselines.hugin_log import Side, log_tree, side
from common import Asked
from junctor.generate import grid


def test_entries_of_a_separator_lie_apart() -> None:
    # Of a table over 3, 5 and 8 the entries of variable 5 = 0 are 0, 1, 4, 5.
    found = side((3, 5, 8), (5,))
    np.testing.assert_array_equal(found.first[:, None] + found.rest, [[0, 1, 4, 5], [2, 3, 6, 7]])


@pytest.mark.parametrize("size", [(1, 2), (3, 4), (4, 4)])
def test_their_algorithm_finds_the_posteriors(size: tuple[int, int]) -> None:
    network = grid(*size, seed=3)
    tree = log_tree(network)
    assert len(tree.edges) == len(tree.tables) - 1
    list(tree.updates())
    (row,) = junctor.posteriors(network, [{}]).to_pylist()
    for variable, each in enumerate(network.variables):
        np.testing.assert_allclose(tree.posterior(variable), row[each.name], rtol=0, atol=1e-12)


def test_flops_of_an_update() -> None:
    # Two cliques of two variables that share one, in both directions: of 4 entries an exponential and an addition each,
    # of 2 a logarithm and a difference, of 4 an addition.
    tree = log_tree(grid(1, 3, seed=1))
    found = list(tree.updates())
    assert [update.flops for update in found] == [4 * 9 + 2 * 9 + 4] * 2
    assert [update.accesses for update in found] == [4 + 3 * 2 + 2 * 4] * 2


def test_the_root_is_the_centre() -> None:
    tree = log_tree(grid(1, 8, seed=1))
    (root,) = {edge.other for edge in tree.edges} - {edge.one for edge in tree.edges}
    depth = {root: 0}
    for edge in reversed(tree.edges):
        depth[edge.one] = depth[edge.other] + 1
    assert max(depth.values()) == (len(tree.tables) - 1 + 1) // 2


def test_experiments_take_as_many_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[Side, Side]] = []
    tree = log_tree(grid(3, 3, seed=1))
    update = type(tree)._update

    def noted(self: object, *of: object) -> object:
        taken.append(of[2])  # type: ignore[arg-type]
        return update(self, *of)  # type: ignore[arg-type]

    monkeypatch.setattr(type(tree), "_update", noted)
    right, wrong = papers.propagated(tree), papers.propagated(tree, consecutive=True)
    assert right.flops == wrong.flops
    assert len(taken) == 2 * (papers.REPEATS + 1) * len(right.updates)


def test_columns_of_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Measured:
        def measure(self, *of: object) -> tuple[list[float], float]:
            # Preparation, collect, distribute, marginals, all, with evidence and answers.
            return [9.0, 0.1, 0.2, 0.3, 0.7, 1.0], 0.0

    monkeypatch.setattr(papers, "Gpu", Measured)
    papers.figure_seven(Asked(small=True, gpu=True))
    row = capsys.readouterr().out.splitlines()[-1].split(" | ")
    core = float(row[3])
    assert (row[4], float(row[5])) == ("0.700", pytest.approx(core / 0.7, abs=0.51))
    papers.figure_eight(Asked(small=True, gpu=True))
    row = capsys.readouterr().out.splitlines()[-1].split(" | ")
    assert row[-4:] == ["10%", "20%", "30%", "30%"]
