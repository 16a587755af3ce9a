"""Rows of parts by their work, and by what rows of a part share."""

from __future__ import annotations

import numpy as np
import pytest
from junctor.engine.engine import Engine
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch
from junctor.generate import random_network, sample
from junctor.model.network import Network
from junctor.model.options import ComputeOptions
from junctor.model.query import Query
from junctor.runs.part_sizes import PART_SECONDS, rows_of_part, shorter_part

ROWS = 4096


@pytest.fixture(scope="module")
def network() -> Network:
    return random_network(40, parents=4, seed=1)


def batch_of(network: Network, observed: np.ndarray) -> EvidenceBatch:
    """Return rows of evidence on the variables that are `observed`, bool [rows, variables]."""
    states = np.where(observed, sample(network, len(observed), seed=3), UNOBSERVED).astype(np.int32)
    return EvidenceBatch(len(states), {v: np.ascontiguousarray(states[:, v]) for v in range(states.shape[1])})


def engine_of(network: Network) -> Engine:
    return Engine(network, Query(), ComputeOptions(1 << 30, threads=1, device="cpu"), expected_rows=ROWS)


@pytest.mark.parametrize(
    ("rows", "seconds", "least", "expected"),
    [
        (1000, PART_SECONDS / 1000, 1, 1000),
        (1000, PART_SECONDS / 999, 1, 512),
        (1000, PART_SECONDS / 512, 1, 512),
        (1000, PART_SECONDS / 511, 1, 256),
        (1000, 10 * PART_SECONDS, 1, 1),
        (1000, 10 * PART_SECONDS, 4, 4),
        # As many as there are GPUs.
        (1000, 10 * PART_SECONDS, 5, 4),
        (3, 10 * PART_SECONDS, 8, 3),
        (1000, 0.0, 1, 1000),
    ],
)
def test_a_part_has_a_power_of_two_of_rows(rows: int, seconds: float, least: int, expected: int) -> None:
    assert shorter_part(rows, seconds, least) == expected


def test_rows_that_share_nothing_are_cut() -> None:
    large = random_network(40, states=(8, 12), parents=3, seed=1)
    batch, engine = batch_of(large, np.random.default_rng(0).random((ROWS, 40)) < 0.5), engine_of(large)
    assert all(route.group.alone for route in engine.routes(batch))
    assert rows_of_part(engine, batch, PART_SECONDS / 64) == 64
    assert rows_of_part(engine, batch, PART_SECONDS / ROWS) == ROWS


def test_rows_that_share_trees_stay_together(network: Network) -> None:
    """Their trees are planned, and their tables filled, for each part anew."""
    patterns = np.random.default_rng(0).random((2, 40)) < 0.5
    batch = batch_of(network, patterns[np.arange(ROWS) % 2])
    engine = engine_of(network)
    assert all(route.group.shared for route in engine.routes(batch))
    assert rows_of_part(engine, batch, PART_SECONDS / 64) == ROWS // 2


def test_equal_rows_stay_together(network: Network) -> None:
    """Each part answers its own: 64 rows that are repeated would be answered as often as there are parts."""
    few = batch_of(network, np.random.default_rng(0).random((64, 40)) < 0.5)
    batch = EvidenceBatch(ROWS, {v: np.resize(column, ROWS) for v, column in few.states.items()})
    assert rows_of_part(engine_of(network), batch, PART_SECONDS / 64) == ROWS
