"""EPIS-BN: an importance function from loopy belief propagation (Yuan and Druzdzel 2003).

Main functions: `beliefs_of` for a pattern and `epis_function` for a row; called by `sampling.engine` and `sampler`. A
variable is drawn from its table times the messages from evidence below: the posterior itself in polytrees, an
approximation elsewhere, without any samples for learning.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.sampling import layout as places
from junctor_kernels.sampling import loopy as beliefs
from junctor_kernels.sampling.layout import Floats, Function, Integers, SampledCase
from junctor_kernels.sampling.loopy import Links
from junctor_kernels.sampling.thresholds import shape

from junctor.runtime.threads import in_threads
from junctor.sampling.cases import CaseLayout
from junctor.sampling.importance import least_of
from junctor.sampling.tables import SampledNetwork

# Sweeps through the network; more have no measurable effect, see docs/sampling.md.
SWEEPS = 2
# Least number of entries that a thread computes at a time.
PIECE_ENTRIES = 1 << 14


@dataclass(frozen=True, eq=False, slots=True)
class LoopyMessages:
    """The messages of a pattern, between weighed nodes of its layout and factors of its cases.

    links: tables of the nodes, then of the factors, and their links.
    entries: entries of all tables without observed variables.
    nodes: int64, weighed nodes of the layout.
    factors: int64, hard factors of the cases.
    smallest: float64 [nodes], threshold that small chances are lifted to.
    soft: (factor, slice of the node's numbers) of likelihoods.
    """

    links: Links
    entries: int
    nodes: npt.NDArray[np.int64]
    factors: npt.NDArray[np.int64]
    smallest: Floats
    soft: tuple[tuple[int, slice], ...]

    def of(self, case: SampledCase) -> tuple[Links, Floats]:
        """Return the links of a row, and the likelihood of each node's states from evidence on it, at most 1."""
        tables = self.links.tables.copy()
        entries = case.nodes[self.nodes, places.ENTRY], case.factors[self.factors, places.FACTOR_ENTRY]
        tables[:, beliefs.ENTRY] = np.concatenate(entries)
        # At most 1: only ratios matter, and products of many stay in range.
        own, said = np.ones(self.links.numbers), case.likelihoods(False)
        for factor, span in self.soft:
            start = case.factors[factor, places.FACTOR_ENTRY]
            own[span] = said[start : start + span.stop - span.start]
        return self.links._replace(tables=tables), own


def beliefs_of(layout: CaseLayout) -> LoopyMessages:
    """Return the messages of a pattern."""
    nodes = np.flatnonzero(layout.nodes[:, places.WEIGHED])
    place = np.full(len(layout.nodes), -1)
    place[nodes] = np.arange(len(nodes))
    # As in the cases of the layout: without factors that are the same for all samples.
    factors = layout.factors[(layout.factors[:, places.FACTOR_COUNT] > 0) | (layout.factors[:, places.SOFT] > 0)]
    hard, soft = np.flatnonzero(factors[:, places.SOFT] == 0), np.flatnonzero(factors[:, places.SOFT])
    states = np.concatenate([layout.nodes[nodes, places.STATES], np.ones(len(hard), dtype=np.int32)])
    firsts = np.concatenate([layout.nodes[nodes, places.PARENTS], factors[hard, places.FACTOR_PARENTS]])
    counts = np.concatenate([layout.nodes[nodes, places.COUNT], factors[hard, places.FACTOR_COUNT]])
    starts = np.searchsorted(nodes, layout.levels)
    levels = np.unique(np.append(starts[starts < len(nodes)], len(nodes)))
    links = _links(layout, place, states, firsts, counts, levels)
    begins = links.tables[: len(nodes), beliefs.NUMBERS].tolist()
    said = []
    for factor in soft.tolist():
        node = int(place[layout.parents[factors[factor, places.FACTOR_PARENTS], places.NODE]])
        said.append((factor, slice(begins[node], begins[node] + int(states[node]))))
    smallest = np.array([least_of(size) for size in states[: len(nodes)].tolist()])
    return LoopyMessages(links, int(beliefs.sizes(links).sum()), nodes, hard, smallest, tuple(said))


def _links(
    layout: CaseLayout,
    place: npt.NDArray[np.int64],
    states: Integers,
    firsts: Integers,
    counts: npt.NDArray[Any],
    levels: npt.NDArray[np.int64],
) -> Links:
    """Return the links of tables.

    layout: of the pattern.
    place: index of each node among the weighed ones, -1 for others.
    states: int32, number of states of each table's node, 1 for factors.
    firsts, counts: first parent of each table in the layout, and number of its parents.
    levels: first table of each level.
    """
    owners = np.repeat(np.arange(len(counts)), counts)
    # The layout has the fastest parent first.
    parents = layout.parents[np.repeat(firsts + np.cumsum(counts) - 1, counts) - np.arange(len(owners))]
    nodes = place[parents[:, places.NODE]]
    # Messages to and from a parent with one state carry no information.
    speaks = states[nodes] > 1
    owners, parents, nodes = owners[speaks], parents[speaks], nodes[speaks]
    cards, counts = states[nodes], np.bincount(owners, minlength=len(counts))
    messages, numbers = _begins(cards), _begins(states[: levels[-1]])
    # Stable: the order of a node's children, and so of its products, must not depend on the platform.
    order = np.argsort(nodes, kind="stable")
    children = np.bincount(nodes, minlength=levels[-1])
    tables = np.zeros((len(counts), beliefs.TABLE_COLUMNS), dtype=np.int32)
    tables[:, beliefs.STATES], tables[:, beliefs.FIRST], tables[:, beliefs.COUNT] = states, _begins(counts)[:-1], counts
    of_nodes = tables[: levels[-1]]
    of_nodes[:, beliefs.NUMBERS] = numbers[:-1]
    of_nodes[:, beliefs.CHILDREN], of_nodes[:, beliefs.CHILD_COUNT] = _begins(children)[:-1], children
    ends = np.append(levels, len(counts))
    bounds = np.stack([ends, numbers[np.minimum(ends, levels[-1])], messages[_begins(counts)[ends]]], axis=1)
    # Strides count rows for nodes, and entries for factors, which have no states of their own.
    strides = parents[:, places.STRIDE] * states[owners]
    links = np.stack([nodes, strides, messages[:-1], cards], axis=1)
    return Links(
        _int32(tables), _int32(links), _int32(messages[order]), _int32(bounds), int(numbers[-1]), int(messages[-1])
    )


def epis_function(
    network: SampledNetwork, pattern: LoopyMessages, case: SampledCase, logs: bool, threads: int = 1
) -> Function:
    """Return the importance function of a row; nodes without evidence below keep their own tables.

    network: the tables.
    pattern: its messages.
    case: the row.
    logs: whether values and ratios are logarithms.
    threads: CPU threads.
    """
    tables = network.tables
    links, own = pattern.of(case)
    said = beliefs.propagate(links, tables.probabilities, own, SWEEPS)
    # Not initialised: only ratios of weighed nodes, which are written here, are ever read.
    ratios = np.empty_like(tables.probabilities)
    drawn = tables.thresholds.copy(), tables.order.copy()
    function = Function(*drawn, network.values(logs), ratios, np.zeros(0), logs, tables)
    both = np.stack([pattern.nodes, np.arange(len(pattern.nodes))], axis=1).astype(np.int32)

    def work(part: slice, _: int) -> None:
        shape(case, both[part], links, tables.probabilities, said, pattern.smallest, function)

    in_threads(work, _pieces(case, pattern), threads)
    return function


def _pieces(case: SampledCase, pattern: LoopyMessages) -> list[slice]:
    """Return the nodes in pieces of about PIECE_ENTRIES entries."""
    entries = case.spans[pattern.nodes].astype(np.int64) * case.nodes[pattern.nodes, places.STATES]
    piece = (np.cumsum(entries) - 1) // PIECE_ENTRIES
    ends = [0, *(1 + np.flatnonzero(np.diff(piece))).tolist(), len(piece)]
    return [slice(start, end) for start, end in pairwise(ends)]


def _begins(sizes: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def _int32(array: npt.NDArray[Any]) -> Integers:
    return np.ascontiguousarray(array, dtype=np.int32)
