"""Answers of the engine against enumeration and against each other; networks written by hand."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import pytest
from junctor.engine.engine import Engine
from junctor.evidence.batch import EvidenceBatch
from junctor.model.answers import IMPOSSIBLE, INVALID, OK, UNANSWERED, Answers, unanswered
from junctor.model.errors import Place
from junctor.model.network import DraftTable, DraftVariable, Factor, Network, Variable, build_network
from junctor.model.options import ONE_THREAD, ComputeOptions
from junctor.model.query import Query
from junctor.model.strategies import Strategy

from helpers import oracle, strategies

TOLERANCE = {"double": 1e-12, "log": 1e-12, "single": 1e-5}


def in_log_space(network: Network, batch: EvidenceBatch, options: ComputeOptions = ONE_THREAD) -> Answers:
    """Return posteriors of which every number comes from log space."""
    forced = replace(options, strategy=Strategy.ENTRIES)
    return Engine(network, Query(precision="log"), forced).answer(batch)


def blank(network: Network, batch: EvidenceBatch, targets: Sequence[int] | None = None) -> Answers:
    """Return posteriors to be written, all nan, of all variables if nothing is said."""
    targets, sizes = tuple(range(len(network.variables)) if targets is None else targets), network.cardinalities
    memory = np.full(batch.rows * sum(sizes[v] for v in targets), np.nan)
    return unanswered(Query(), targets, sizes, batch.rows, {}, memory.view(np.uint8))


def check_posteriors(
    network: Network, batch: EvidenceBatch, answers: Answers, tolerance: float, left: Collection[int] = ()
) -> None:
    """Rows that are left to others are not written, all others are as in full enumeration."""
    for row in range(batch.rows):
        if row in left:
            assert answers.status[row] == UNANSWERED
            continue
        if row in batch.invalid:
            assert answers.status[row] == INVALID
            assert answers.reasons[row] == batch.invalid[row]
            continue
        hard, soft = strategies.row_evidence(batch, row)
        log_evidence, expected = oracle.enumerate_posteriors(network, hard, soft)
        if np.isneginf(log_evidence):
            assert answers.status[row] == IMPOSSIBLE
            assert np.isneginf(answers.log_value[row])
            assert answers.reasons[row]
            continue
        assert answers.status[row] == OK
        assert row not in answers.reasons
        assert answers.log_value[row] == pytest.approx(log_evidence, rel=tolerance, abs=10 * tolerance)
        for variable in answers.targets:
            np.testing.assert_allclose(answers.posteriors[variable][row], expected[variable], rtol=0, atol=tolerance)


def check_explanations(network: Network, batch: EvidenceBatch, answers: Answers, tolerance: float) -> None:
    """Explanations are as probable as any; their log probability is their own."""
    for row in range(batch.rows):
        if row in batch.invalid:
            assert answers.status[row] == INVALID
            continue
        hard, soft = strategies.row_evidence(batch, row)
        best, _ = oracle.enumerate_mpe(network, hard, soft)
        if np.isneginf(best):
            assert answers.status[row] == IMPOSSIBLE
            continue
        assert answers.status[row] == OK
        states = [int(answers.states[v][row]) for v in range(len(network.variables))]
        assert all(states[v] == state for v, state in hard.items())
        assert answers.log_value[row] == pytest.approx(oracle.log_joint(network, states, soft), rel=1e-13, abs=1e-11)
        assert answers.log_value[row] == pytest.approx(best, rel=1e-12, abs=tolerance)


def assert_same(found: Answers, expected: Answers) -> None:
    for name in ("status", "log_value"):
        assert getattr(found, name).tobytes() == getattr(expected, name).tobytes()
    for v in expected.posteriors:
        assert found.posteriors[v].tobytes() == expected.posteriors[v].tobytes()
    for v in expected.states:
        assert found.states[v].tobytes() == expected.states[v].tobytes()
    assert found.reasons == expected.reasons


def markov(*tables: tuple[tuple[str, ...], object]) -> Network:
    names = sorted({name for scope, _ in tables for name in scope})
    return build_network(
        "hand-made",
        "markov",
        [DraftVariable(name, ("0", "1"), Place()) for name in names],
        [DraftTable(scope, np.asarray(values, dtype=float), Place()) for scope, values in tables],
    )


def complete(*sizes: int) -> Network:
    """Return a Markov network with a factor for each two variables: one clique of all of them."""
    variables = [Variable(f"x{v}", tuple(map(str, range(size)))) for v, size in enumerate(sizes)]
    rng = np.random.default_rng(1)
    pairs = itertools.combinations(range(len(sizes)), 2)
    shapes = [(pair, tuple(sizes[v] for v in pair)) for pair in pairs]
    # Variables of one state change nothing.
    factors = [Factor(pair, np.ones(shape) if 1 in shape else rng.uniform(0.1, 1, shape)) for pair, shape in shapes]
    return Network("complete", tuple(variables), tuple(factors), "markov")
