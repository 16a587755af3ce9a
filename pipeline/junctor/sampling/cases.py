"""Rows of evidence as samplers read them: the variables to draw, their order, and the factors of a sample's weight.

Main class: CaseLayout, built by `layout_of` for each evidence pattern; called by `sampling.engine`. Observed variables
are removed before ordering (Yu and van Engelen, Definition 2): nobody waits for them, so levels get fewer and wider.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from junctor_kernels.sampling.layout import Integers, SampledCase, slots_of

from junctor.sampling.rows import Evidence, Hard, Soft, with_parents
from junctor.sampling.tables import SampledNetwork


@dataclass(frozen=True, eq=False, slots=True)
class StrideSums:
    """Sums of stride * observed state, to be added to offsets of tables.

    places: int64, index of the offset to add to.
    columns: int64, index of the observed variable.
    strides: int64, entries for each of its states.
    """

    places: npt.NDArray[np.int64]
    columns: npt.NDArray[np.int64]
    strides: npt.NDArray[np.int64]

    def apply(self, states: npt.NDArray[np.int64], numbers: Integers) -> None:
        """Add the sums to flat int32 offsets; `states`: int64, of the observed variables."""
        # Not `numbers[places] +=`: several observed parents add to one offset.
        np.add.at(numbers, self.places, (self.strides * states[self.columns]).astype(np.int32))


@dataclass(frozen=True, eq=False, slots=True)
class CaseLayout:
    """The draws of all rows of a pattern, as far as they do not depend on the observed states.

    network, evidence: the tables and the pattern.
    drawn: variables in the order of their nodes.
    weighed: variables with evidence below or on them; only they gain from an importance function (Cheng and Druzdzel
        2000, theorem 2).
    nodes, parents, factors, levels, spans, slots: as in `SampledCase`, with every observed variable in its first state.
    moves: offsets that observed states add to thresholds and entries of nodes, and to entries of factors.
    observed: observed variables, ascending.
    planes: bits of the states of all nodes.
    """

    network: SampledNetwork
    evidence: Evidence
    drawn: tuple[int, ...]
    weighed: frozenset[int]
    nodes: Integers
    parents: Integers
    factors: Integers
    levels: Integers
    spans: Integers
    slots: Integers
    moves: tuple[StrideSums, StrideSums]
    observed: tuple[int, ...]
    planes: int

    def node_of(self) -> dict[int, int]:
        """Return the node of each drawn variable."""
        return {v: n for n, v in enumerate(self.drawn)}

    def case(self, hard: Hard, soft: Soft, learns: bool) -> SampledCase:
        """Return a row of the pattern.

        hard: observed variable -> state.
        soft: variable -> likelihood of its states, float64.
        learns: whether nodes above evidence are drawn from an importance function.
        """
        states = np.array([hard[v] for v in self.observed], dtype=np.int64)
        # The layout is shared by all rows of the pattern, and by threads.
        nodes, factors = self.nodes.copy(), self.factors.copy()
        begins, entries = nodes[:, :2].ravel(), factors[:, 0].copy()
        self.moves[0].apply(states, begins)
        self.moves[1].apply(states, entries)
        nodes[:, :2], factors[:, 0] = begins.reshape(-1, 2), entries
        if not learns:
            nodes[:, 7] = 0
        tables = self.network.tables.probabilities
        # Factors without drawn parents are one number for all samples of the row.
        fixed = (factors[:, 2] == 0) & (factors[:, 3] == 0)
        # Added once to log P(e) instead of multiplied into every weight.
        certain = sum(math.log(p) if p > 0 else -math.inf for p in tables[factors[fixed, 0]].tolist())
        likelihoods = [soft[v] for v in sorted(self.evidence.soft)]
        tops = [float(values.max()) for values in likelihoods]
        certain += sum(map(math.log, tops))
        # A likelihood above zero is at least its smallest positive entry, whatever state is drawn.
        least = sum(self.network.least[v] for v in self.observed)
        least += sum(
            math.log(values[values > 0].min()) - math.log(top) for values, top in zip(likelihoods, tops, strict=True)
        )
        flat = np.concatenate([np.zeros(0), *likelihoods])
        of_each = np.repeat(np.array(tops), [len(values) for values in likelihoods])
        arrays = nodes, self.parents, factors[~fixed], self.levels, self.spans, self.slots, flat, of_each
        return SampledCase(*arrays, certain, self.planes, least)


def layout_of(network: SampledNetwork, evidence: Evidence, targets: Sequence[int] | None) -> CaseLayout:
    """Return the draws of a pattern, without barren variables.

    network: the tables.
    evidence: the pattern.
    targets: variables whose posteriors are computed, None for all.
    """
    parents = {v: [p for p in network.parents(v) if p not in evidence.observed] for v in network.order}
    # Barren variables (neither targets nor ancestors of targets or evidence) sum to one.
    needed = with_parents(network.network, evidence.observed | evidence.soft)
    weighed = frozenset(needed - evidence.observed)
    wanted = set(network.order) if targets is None else needed | with_parents(network.network, frozenset(targets))
    wanted -= evidence.observed
    levels = _levels(network.order, parents, wanted)
    # By level, then by size of the table, so that neighbouring threads of a GPU do similar work.
    drawn = tuple(sorted(wanted, key=lambda v: (levels[v], network.entries[v + 1] - network.entries[v], v)))
    return _lowered(network, evidence, drawn, weighed, [levels[v] for v in drawn])


def _levels(order: Sequence[int], parents: Mapping[int, Sequence[int]], wanted: set[int]) -> dict[int, int]:
    levels: dict[int, int] = {}
    for v in order:
        if v in wanted:
            levels[v] = 1 + max((levels[p] for p in parents[v]), default=-1)
    return levels


def _lowered(
    network: SampledNetwork, evidence: Evidence, drawn: tuple[int, ...], weighed: frozenset[int], levels: Sequence[int]
) -> CaseLayout:
    cards = network.network.cardinalities
    links = _Links(network, drawn, tuple(sorted(evidence.observed)))
    nodes, factors, spans = list[tuple[int, ...]](), list[tuple[int, ...]](), list[int]()
    for n, v in enumerate(drawn):
        first, count, moves = links.link(network.parents(v))
        # The highest row that the drawn parents can select: rows beyond it belong to other observed states.
        spans.append(1 + sum(stride * (cards[drawn[p]] - 1) for p, stride, _, _ in links.parents[first:]))
        # A row has one threshold less than entries.
        widths = (2 * n, cards[v] - 1), (2 * n + 1, cards[v])
        links.begins += [(place, column, stride * width) for column, stride in moves for place, width in widths]
        planes = links.planes[n], links.bits[n]
        nodes.append((network.cuts[v], network.entries[v], cards[v], first, count, *planes, int(v in weighed)))
    for f, v in enumerate(links.observed):
        first, count, moves = links.link(network.network.factors[v].scope)
        # Tables of observed variables become factors of the weight.
        links.entries += [(f, column, stride) for column, stride in moves]
        factors.append((network.entries[v], first, count, 0))
    start = 0
    for v in sorted(evidence.soft):
        first, count, _ = links.link((v,))
        factors.append((start, first, count, 1))
        start += cards[v]
    ends = [n for n in range(1, len(drawn)) if levels[n] != levels[n - 1]]
    tables, starts = _integers(nodes, 8), np.array([0, *ends, len(drawn)], dtype=np.int32)
    arrays = tables, _integers(links.parents, 4), _integers(factors, 4), starts
    counts = np.array(spans, dtype=np.int32), slots_of(tables)
    moves_of = _moves(links.begins), _moves(links.entries)
    return CaseLayout(network, evidence, drawn, weighed, *arrays, *counts, moves_of, links.observed, links.planes[-1])


class _Links:
    """Collects the parents of nodes and factors, and the strides of observed ones."""

    def __init__(self, network: SampledNetwork, drawn: Sequence[int], observed: tuple[int, ...]) -> None:
        self.observed = observed
        self.bits = [(network.network.cardinalities[v] - 1).bit_length() for v in drawn]
        self.planes: list[int] = np.cumsum([0, *self.bits]).tolist()
        self.parents = list[tuple[int, ...]]()
        self.begins = list[tuple[int, int, int]]()
        self.entries = list[tuple[int, int, int]]()
        self._cards = network.network.cardinalities
        self._place = {v: n for n, v in enumerate(drawn)}
        self._column = {v: i for i, v in enumerate(observed)}

    def link(self, scope: Sequence[int]) -> tuple[int, int, list[tuple[int, int]]]:
        """Append the drawn variables of a scope; return their first index and number, and strides of observed ones."""
        # The last variable of a scope is the fastest.
        first, moves, stride = len(self.parents), list[tuple[int, int]](), 1
        for v in reversed(scope):
            if v in self._column:
                moves.append((self._column[v], stride))
            else:
                n = self._place[v]
                self.parents.append((n, stride, self.planes[n], self.bits[n]))
            stride *= self._cards[v]
        return first, len(self.parents) - first, moves


def _moves(rows: Sequence[tuple[int, int, int]]) -> StrideSums:
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return StrideSums(*(np.ascontiguousarray(columns[:, i]) for i in range(3)))


def _integers(rows: Sequence[Sequence[int]], columns: int) -> Integers:
    return np.array(rows, dtype=np.int32).reshape(-1, columns)
