"""Samples of a network and their weights in NumPy: the specification of the compiled CPU and GPU kernels.

Main functions: `draw`, `weights`, `sums`, `scores`. The weight of a sample is the product of the factors of its
evidence (Fung and Chang 1990; Shachter and Peot 1990) and, for nodes drawn from an importance function, of the ratios
of their probabilities to their chances.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from junctor_kernels.sampling import layout, philox
from junctor_kernels.sampling.layout import (
    BLOCK,
    FULL,
    OWN_SAMPLES,
    SCORE_UNIT,
    Floats,
    Integers,
    SampledCase,
    Sums,
    Tables,
)
from junctor_kernels.sampling.philox import RandomStream

States = npt.NDArray[np.uint8]


def draw(
    tables: Tables, case: SampledCase, stream: RandomStream, first: int, count: int, own: Tables | None = None
) -> States:
    """Return the states of samples, uint8 [nodes, count].

    tables: thresholds and order of all variables.
    case: the row of evidence.
    stream: random numbers of the row and stage.
    first, count: first sample and number of samples.
    own: what the last samples of each block are drawn from in its place, if given.
    """
    states = np.zeros((len(case.nodes), count), dtype=np.uint8)
    numbers = np.arange(first, first + count, dtype=np.uint64)
    is_own = numbers % BLOCK >= BLOCK - OWN_SAMPLES
    for n, node in enumerate(case.nodes):
        # Four nodes share one counter.
        if n % philox.WORDS == 0:
            words = philox.words(stream, numbers, n // philox.WORDS) >> 1
        # A row of n states has n - 1 thresholds: the last one would be FULL.
        row = _offsets(states, case.parents, node[layout.PARENTS], node[layout.COUNT])
        drawn = [_chosen(each, node, row, words[n % philox.WORDS]) for each in (tables, own) if each is not None]
        states[n] = np.where(is_own, drawn[-1], drawn[0]) if node[layout.WEIGHED] else drawn[-1]
    return states


def _chosen(tables: Tables, node: Integers, row: npt.NDArray[np.int64], words: npt.NDArray[np.uint32]) -> States:
    size = int(node[layout.STATES])
    place = np.zeros(len(row), dtype=np.int64)
    for k in range(size - 1):
        place += words >= tables.thresholds[node[layout.FIRST] + row * (size - 1) + k]
    chosen: States = tables.order[node[layout.ENTRY] + row * size + place] if size > 2 else place.astype(np.uint8)
    return chosen


def entries_read(tables: Tables, case: SampledCase, states: States) -> int:
    """Return the number of comparisons with thresholds over all nodes and samples, for forecasts of time."""
    total = 0
    for n, node in enumerate(case.nodes):
        size = int(node[layout.STATES])
        row = _offsets(states, case.parents, node[layout.PARENTS], node[layout.COUNT])
        order = tables.order[(node[layout.ENTRY] + row * size)[:, None] + np.arange(size)]
        place = (order == states[n][:, None]).argmax(axis=1) if size > 2 else states[n]
        total += int(np.minimum(place + 1, size - 1).sum())
    return total


def weights(
    values: Floats, ratios: Floats, soft: Floats, case: SampledCase, states: States, logs: bool, own: float = 0.0
) -> Floats:
    """Return the weights of samples, float64 [count].

    values: of the entries of all tables.
    ratios: of weighed nodes.
    soft: of soft evidence.
    case: the row of evidence.
    states: of the samples.
    logs: whether values, ratios, soft and the result are logarithms.
    own: share of the samples that is drawn from the tables themselves: the chance of a sample is that of the mixture
        (the balance heuristic of Veach and Guibas 1995; Owen and Zhou 2000), whichever part drew it.
    """
    combine = np.add if logs else np.multiply
    ratio, result = (np.full(states.shape[1], 0.0 if logs else 1.0) for _ in range(2))
    for n, node in enumerate(case.nodes):
        if node[layout.WEIGHED]:
            row = _offsets(states, case.parents, node[layout.PARENTS], node[layout.COUNT])
            ratio = combine(ratio, ratios[node[layout.ENTRY] + row * node[layout.STATES] + states[n]])
    for factor in case.factors:
        at = factor[layout.FACTOR_ENTRY] + _offsets(
            states, case.parents, factor[layout.FACTOR_PARENTS], factor[layout.FACTOR_COUNT]
        )
        result = combine(result, (soft if factor[layout.SOFT] else values)[at])
    if logs:
        with np.errstate(divide="ignore"):
            ratio = ratio - np.logaddexp(np.log(1.0 - own), np.log(own) + ratio)
    else:
        ratio = ratio / (1.0 - own + own * ratio)
    weighed: Floats = combine(result, ratio)
    return weighed


def sums(case: SampledCase, states: States, weight: Floats, logs: bool) -> Sums:
    """Return the sums over samples of their weights and squares, for each state of each node.

    case: the row of evidence.
    states: uint8 [nodes, count].
    weight: float64 [count].
    logs: whether weights are logarithms.
    """
    shift = float(weight.max(initial=-np.inf)) if logs else 0.0
    plain = np.exp(weight - shift) if logs and shift > -np.inf else np.zeros_like(weight) if logs else weight
    # Weights and squares together: standard errors need both.
    powers = np.stack([plain, plain * plain], axis=1)
    slots = np.array([powers[states[n] == state].sum(axis=0) for n, state, _, _ in case.slots]).reshape(-1, 2)
    return Sums(shift, slots, powers.sum(axis=0), len(weight), int((plain > 0).sum()), float(plain.max(initial=0.0)))


def scores(case: SampledCase, states: States, weight: Floats, logs: bool, entries: int) -> npt.NDArray[np.int64]:
    """Return the integer weights of learning samples by the entry that each weighed node was drawn from.

    case, states, weight, logs: as in `sums`.
    entries: number of entries of all tables; the result is int64 [entries].
    """
    totals = np.zeros(entries, dtype=np.int64)
    largest = weight.max(initial=-np.inf if logs else 0.0)
    if largest <= (-np.inf if logs else 0.0):
        return totals
    share = np.exp(weight - largest) if logs else weight / largest
    # Relative to the heaviest sample: sums of fewer than 2^23 samples stay within int64.
    whole = np.rint(share * SCORE_UNIT).astype(np.int64)
    for n, node in enumerate(case.nodes):
        if node[layout.WEIGHED]:
            row = _offsets(states, case.parents, node[layout.PARENTS], node[layout.COUNT])
            np.add.at(totals, node[layout.ENTRY] + row * node[layout.STATES] + states[n], whole)
    return totals


def thresholds_of(row: Floats, chances: Floats, least: int) -> tuple[list[int], list[int], list[int]]:
    """Return thresholds, order and widths (in units of 1 / FULL) of a table row.

    row: its probabilities.
    chances: with which its states are drawn.
    least: smallest width of a state with a positive probability.
    """
    # The most probable state gets the rest, so that widths sum to FULL; states of probability zero get nothing.
    size = len(row)
    order = sorted(range(size), key=lambda state: -chances[state])
    widths = [0] * size
    for state in order[1:]:
        widths[state] = max(least, int(chances[state] * FULL + 0.5)) if row[state] > 0 else 0
    widths[order[0]] = FULL - sum(widths)
    if size <= 2:
        order = list(range(size))
    return np.cumsum([widths[state] for state in order])[:-1].tolist(), order, widths


def blocks_of(count: int) -> int:
    """Return the number of blocks of so many samples."""
    return -(-count // BLOCK)


def _offsets(states: States, parents: Integers, first: int, count: int) -> npt.NDArray[np.int64]:
    result = np.zeros(states.shape[1], dtype=np.int64)
    for parent in parents[first : first + count]:
        result += int(parent[layout.STRIDE]) * states[parent[layout.NODE]].astype(np.int64)
    return result
