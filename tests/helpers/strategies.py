"""Hypothesis strategies: small networks and evidence with everything in them that can go wrong.

Numbers are drawn as bytes that index a short palette, one draw for each table: failing examples shrink to
tables of ones, and no randomness hides in a seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
from hypothesis import note
from hypothesis import strategies as st
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch, SoftEvidence
from junctor.model.errors import Place
from junctor.model.network import DraftTable, DraftVariable, Kind, Network, build_network

# Simplest first, since shrinking goes there.
WEIGHTS = (1.0, 0.0, 2.0, 3.0, 0.7, 1e-3, 1e-20, 1e-40, 1e-300, 1.0 - 1e-9)
POTENTIALS = (*WEIGHTS, 1e20, 1e200)
LIKELIHOODS = (1.0, 0.0, 0.5, 0.2, 7.0, 1e-20, 1e-40, 1e-300, 1e200)

MAX_TABLE = 128  # entries of one drawn table
MAX_PARENTS = 4
NOTHING, HARD, SOFT = 0, 1, 2  # what a cell says of its variable

PLACE = Place("drawn")


@st.composite
def networks(
    draw: st.DrawFn,
    max_variables: int = 8,
    max_joint: int = 4096,
    kind: Kind | Literal["both"] = "both",
) -> Network:
    """A network of up to `max_variables` variables of 1 to 5 states, and at most `max_joint` joint states.

    Bayesian: any DAG, in any order of the variables. Markov: any scopes, repeated, empty and none among them.
    Tables hold zeros, tiny and huge numbers, deterministic and uniform rows.
    """
    cardinalities = draw(_cardinalities(max_variables, max_joint))
    drawn_kind: Kind = draw(st.sampled_from(("bayes", "markov"))) if kind == "both" else kind
    scopes = draw(_bayes_scopes(cardinalities) if drawn_kind == "bayes" else _markov_scopes(cardinalities))
    table = _conditional if drawn_kind == "bayes" else _potential
    variables = [
        DraftVariable(f"v{i}", [f"s{state}" for state in range(count)], PLACE) for i, count in enumerate(cardinalities)
    ]
    tables = [
        DraftTable([f"v{i}" for i in scope], draw(table([cardinalities[i] for i in scope])), PLACE) for scope in scopes
    ]
    network = build_network("drawn", drawn_kind, variables, tables)
    note(describe(network))
    return network


@st.composite
def evidence_batches(
    draw: st.DrawFn, network: Network, max_rows: int = 12, min_rows: int = 0, soft: bool = True, invalid: bool = True
) -> EvidenceBatch:
    """Evidence for `network`: one pattern for all rows, several, or one for each; impossible rows among them.

    soft: whether cells may hold likelihoods (not normalised; zeros, tiny and huge entries). invalid: whether rows
    may be marked invalid.
    """
    rows = draw(st.integers(min_rows, max_rows))
    what = _pattern_mix(draw, rows, len(network.variables), soft)
    states: dict[int, npt.NDArray[np.int32]] = {}
    likelihoods: dict[int, SoftEvidence] = {}
    for variable, cardinality in enumerate(network.cardinalities):
        hard_rows, soft_rows = np.flatnonzero(what[:, variable] == HARD), np.flatnonzero(what[:, variable] == SOFT)
        if hard_rows.size or draw(st.booleans()):  # a table may have a column that says nothing
            states[variable] = np.full(rows, UNOBSERVED, dtype=np.int32)
            states[variable][hard_rows] = draw(_bytes(hard_rows.size)) % cardinality
        if soft_rows.size:
            values = [draw(_palette_table((cardinality,), LIKELIHOODS)) for _ in soft_rows]
            likelihoods[variable] = SoftEvidence(soft_rows.astype(np.int64), np.array(values))
    reasons = draw(st.sets(st.integers(0, rows - 1), max_size=2)) if invalid and rows else set()
    return EvidenceBatch(rows, states, likelihoods, {row: f"row {row} is bad" for row in sorted(reasons)})


@st.composite
def questions(
    draw: st.DrawFn, max_rows: int, max_variables: int = 6, max_joint: int = 512
) -> tuple[Network, EvidenceBatch]:
    """Draw a network, and rows of evidence for it; arguments as of `networks` and `evidence_batches`."""
    network = draw(networks(max_variables=max_variables, max_joint=max_joint))
    return network, draw(evidence_batches(network, max_rows=max_rows))


def row_evidence(batch: EvidenceBatch, row: int) -> tuple[dict[int, int], dict[int, npt.NDArray[np.float64]]]:
    """Return what `row` of the batch says: variable -> observed state, and variable -> likelihood."""
    hard = {v: int(column[row]) for v, column in batch.states.items() if column[row] != UNOBSERVED}
    soft = {}
    for variable, likelihood in batch.likelihoods.items():
        for at in np.flatnonzero(likelihood.rows == row):
            soft[variable] = likelihood.values[at]
    return hard, soft


def describe(network: Network) -> str:
    """Return the network as text, for the report of a failing example."""
    lines = [f"{network!r} with cardinalities {network.cardinalities}"]
    lines += [f"  {factor.scope}: {factor.table.tolist()}" for factor in network.factors]
    return "\n".join(lines)


@st.composite
def _cardinalities(draw: st.DrawFn, max_variables: int, max_joint: int) -> list[int]:
    cardinalities: list[int] = []
    joint = 1
    for _ in range(draw(st.integers(1, max_variables))):
        cardinalities.append(draw(st.integers(1, max(1, min(5, max_joint // joint)))))
        joint *= cardinalities[-1]
    return cardinalities


@st.composite
def _bayes_scopes(draw: st.DrawFn, cardinalities: Sequence[int]) -> list[tuple[int, ...]]:
    """Draw parents and child (last) for each variable, the parents from those before it in a random order."""
    order = draw(st.permutations(range(len(cardinalities))))
    scopes = []
    for position, child in enumerate(order):
        before = order[:position]
        parents = draw(st.lists(st.sampled_from(before), unique=True, max_size=MAX_PARENTS)) if before else []
        scopes.append((*_within(MAX_TABLE // cardinalities[child], parents, cardinalities), child))
    return scopes


@st.composite
def _markov_scopes(draw: st.DrawFn, cardinalities: Sequence[int]) -> list[tuple[int, ...]]:
    scope = st.lists(st.integers(0, len(cardinalities) - 1), unique=True, max_size=MAX_PARENTS)
    drawn = draw(st.lists(scope, max_size=len(cardinalities) + 2))
    return [_within(MAX_TABLE, variables, cardinalities) for variables in drawn]


def _within(entries: int, scope: Sequence[int], cardinalities: Sequence[int]) -> tuple[int, ...]:
    """Keep the variables of `scope`, from its start, whose table has at most `entries` entries."""
    kept: list[int] = []
    size = 1
    for variable in scope:
        if size * cardinalities[variable] <= entries:
            kept.append(variable)
            size *= cardinalities[variable]
    return tuple(kept)


@st.composite
def _conditional(draw: st.DrawFn, shape: Sequence[int]) -> npt.NDArray[np.float64]:
    """Draw a conditional table: uniform, deterministic, or rows of anything, divided by their sums."""
    style = draw(st.sampled_from(("mixed", "deterministic", "uniform")))
    if style == "uniform":
        return np.full(shape, 1.0 / shape[-1])
    rows = int(np.prod(shape[:-1], dtype=int))
    if style == "deterministic":
        chosen = draw(_bytes(rows)) % shape[-1]
        return np.array(chosen[:, None] == np.arange(shape[-1]), dtype=np.float64)
    weights = np.array(WEIGHTS)[draw(_bytes(rows * shape[-1])) % len(WEIGHTS)].reshape(rows, shape[-1])
    weights[~weights.any(axis=1), 0] = 1.0
    # The largest entry first: the sum of a row of 1e-300 must not lose digits among the smallest doubles.
    weights /= weights.max(axis=1, keepdims=True)
    weights /= weights.sum(axis=1, keepdims=True)
    return weights


def _potential(shape: Sequence[int]) -> st.SearchStrategy[npt.NDArray[np.float64]]:
    """Draw a table of a Markov network: zeros and ones, ordinary numbers, or anything."""
    return st.sampled_from((POTENTIALS, (1.0, 0.0), (1.0, 2.0, 3.0))).flatmap(
        lambda palette: _palette_table(shape, palette)
    )


@st.composite
def _palette_table(draw: st.DrawFn, shape: Sequence[int], palette: Sequence[float]) -> npt.NDArray[np.float64]:
    """Draw a table with entries from `palette`, at least one of them above zero."""
    size = int(np.prod(shape, dtype=int))
    values = np.array(palette)[draw(_bytes(size)) % len(palette)].reshape(shape)
    return values if values.any() else np.ones(shape)


def _bytes(size: int) -> st.SearchStrategy[npt.NDArray[np.int64]]:
    return st.binary(min_size=size, max_size=size).map(lambda drawn: np.frombuffer(drawn, np.uint8).astype(np.int64))


def _pattern_mix(draw: st.DrawFn, rows: int, variables: int, soft: bool) -> npt.NDArray[np.int64]:
    """Draw what each cell says, int64 [rows, variables]; rows share a few patterns or have each their own."""
    # Half of the cells say nothing, so that most rows leave something to compute.
    cells = st.sampled_from((NOTHING, NOTHING, HARD, SOFT) if soft else (NOTHING, HARD))
    pattern = st.lists(cells, min_size=variables, max_size=variables)
    patterns = draw(st.lists(pattern, min_size=1, max_size=max(1, min(rows, 6))))
    chosen = draw(st.lists(st.integers(0, len(patterns) - 1), min_size=rows, max_size=rows))
    return np.array([patterns[i] for i in chosen], dtype=np.int64).reshape(rows, variables)
