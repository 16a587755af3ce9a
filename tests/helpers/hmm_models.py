"""Hidden Markov models and sequences for tests, and an oracle that enumerates paths and shares no code."""

from __future__ import annotations

import math
from itertools import pairwise, product
from typing import Any

import numpy as np
from hypothesis import strategies as st
from junctor.hmm.model import HiddenMarkovModel, SparseMatrix, build_model
from junctor.hmm.packing import SequenceBatch


def rows_of_one(rng: np.random.Generator, rows: int, columns: int, zeros: float) -> Any:
    """Rows of probabilities; some are zero."""
    table = rng.random((rows, columns)) * (rng.random((rows, columns)) >= zeros)
    table[np.arange(rows), rng.integers(0, columns, rows)] += 0.1
    return table / table.sum(axis=1, keepdims=True)


def sparse_of(matrix: Any) -> SparseMatrix:
    rows, columns = np.nonzero(matrix)
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(matrix)))])
    return SparseMatrix(starts.astype(np.int64), columns.astype(np.int32), matrix[rows, columns])


def random_model(
    states: int, symbols: int, seed: int = 0, zeros: float = 0.0, sparse: bool = False
) -> HiddenMarkovModel:
    rng = np.random.default_rng(seed)
    transition = rows_of_one(rng, states, states, zeros)
    start, emission = rows_of_one(rng, 1, states, zeros)[0], rows_of_one(rng, states, symbols, zeros)
    return build_model(start, sparse_of(transition) if sparse else transition, emission)


def batch_of(sequences: Any) -> SequenceBatch:
    starts = np.cumsum([0, *map(len, sequences)]).astype(np.int64)
    return SequenceBatch(starts, np.array([s for each in sequences for s in each], np.int32))


def random_batch(model: HiddenMarkovModel, lengths: Any, seed: int = 0) -> SequenceBatch:
    rng = np.random.default_rng(seed)
    # -1: nothing was observed.
    return batch_of([rng.integers(-1, model.symbols, length) for length in lengths])


def paths(model: HiddenMarkovModel, symbols: Any) -> list[tuple[float, tuple[int, ...]]]:
    """All paths of one sequence with their probabilities, most probable first, as Python multiplies."""
    transition = model.transition.dense() if isinstance(model.transition, SparseMatrix) else model.transition
    found = []
    for path in product(range(model.states), repeat=len(symbols)):
        factors = [float(model.start[path[0]])]
        factors += [float(transition[i, j]) for i, j in pairwise(path)]
        factors += [float(model.emission[i, s]) for i, s in zip(path, symbols, strict=True) if s >= 0]  # type: ignore[index]
        found.append((math.prod(factors), path))
    return sorted(found, key=lambda each: -each[0])


def enumerated(model: HiddenMarkovModel, sequences: Any, weights: Any) -> tuple[Any, Any, Any]:
    """Expected counts of start, transitions and emissions, as weights of all paths of each possible sequence."""
    start, transition = np.zeros(model.states), np.zeros((model.states, model.states))
    emission = np.zeros((model.states, model.symbols))
    for symbols, weight in zip(sequences, weights, strict=True):
        every = paths(model, symbols)
        total = math.fsum(p for p, _ in every)
        for p, path in every if total else []:
            start[path[0]] += weight * p / total
            for i, j in pairwise(path):
                transition[i, j] += weight * p / total
            for i, s in zip(path, symbols, strict=True):
                if s >= 0:
                    emission[i, s] += weight * p / total
    return start, transition, emission


def as_table(model: HiddenMarkovModel, entries: Any) -> Any:
    """Entries of the transition matrix as a square."""
    if isinstance(model.transition, SparseMatrix):
        table = np.zeros((model.states, model.states))
        table[model.transition.rows, model.transition.columns] = entries
        return table
    return entries


@st.composite
def small_cases(draw: st.DrawFn) -> tuple[HiddenMarkovModel, list[list[int]]]:
    states, symbols = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    model = random_model(
        states, symbols, draw(st.integers(0, 999)), draw(st.sampled_from([0.0, 0.4, 0.8])), draw(st.booleans())
    )
    symbol = st.integers(-1, symbols - 1)
    return model, draw(st.lists(st.lists(symbol, min_size=1, max_size=5), min_size=1, max_size=5))


def sensor_model(seed: int, sizes: Any = (2, 3), states: int = 2, zeros: float = 0.0) -> HiddenMarkovModel:
    """A model whose symbols are a state of each of some sensors: u0,v0, u0,v1, ..."""
    bare = random_model(states, math.prod(sizes), seed, zeros)
    sensors = {name: [f"{name}{n}" for n in range(size)] for name, size in zip("uvwx", sizes, strict=False)}
    return build_model(bare.start, bare.transition, bare.emission, list("pqrs")[:states], sensors=sensors)


def seen_in_part(
    model: HiddenMarkovModel, sequences: Any, labels: Any = None, weights: Any = None
) -> tuple[Any, Any, Any, list[float]]:
    """Expected counts, and P of each sequence, by adding up all paths and all symbols that agree with what is seen.

    sequences: of steps, each the symbols that it may be; None for an unobserved one, of which nothing is counted.
    labels: of each sequence the state of each step, None for unknown; None for no labels.
    """
    table = model.transition.dense() if isinstance(model.transition, SparseMatrix) else model.transition
    start, transition = np.zeros(model.states), np.zeros((model.states, model.states))
    emission, totals = np.zeros((model.states, model.symbols)), []
    for n, steps in enumerate(sequences):
        known = [None] * len(steps) if labels is None else labels[n]
        allowed = [range(model.states) if label is None else [label] for label in known]
        joint = []
        for path in product(*allowed):
            for symbols in product(*([None] if step is None else step for step in steps)):
                factors = [float(model.start[path[0]]), *(float(table[i, j]) for i, j in pairwise(path))]
                factors += [float(model.emission[i, s]) for i, s in zip(path, symbols, strict=True) if s is not None]  # type: ignore[index]
                joint.append((math.prod(factors), path, symbols))
        totals.append(math.fsum(p for p, _, _ in joint))
        for p, path, symbols in joint if totals[-1] else []:
            share = p / totals[-1] * (1.0 if weights is None else weights[n])
            start[path[0]] += share
            for i, j in pairwise(path):
                transition[i, j] += share
            for i, s in zip(path, symbols, strict=True):
                if s is not None:
                    emission[i, s] += share
    return start, transition, emission, totals
