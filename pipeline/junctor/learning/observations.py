"""Rows of evidence, prepared once for many expected counts. Main objects: `observe`, Observations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from junctor_kernels.row_trees import components as split
from junctor_kernels.row_trees import counts as kernel
from junctor_kernels.row_trees.propagate import ANSWERED, IMPOSSIBLE, TOO_LARGE

from junctor.cliques.joint import joint_posteriors
from junctor.evidence.batch import EvidenceBatch
from junctor.learning.expectation import Expectation, Floats
from junctor.model.errors import EvidenceError, ModelError
from junctor.model.network import Factor, Network, Variable
from junctor.model.options import ONE_THREAD, ComputeOptions
from junctor.runtime.machine import allowed_memory, usable_cores
from junctor.runtime.threads import in_threads

# Cells and rows that are split at a time: not fewer for more threads, so that sums do not depend on these.
PIECE_CELLS, PIECE_ROWS = 1 << 22, 1 << 14
# Parts of an expectation that threads take in turn.
CHUNKS = 64
# Factors of components that are a part at least.
CHUNK_FACTORS = 1 << 14
# States of a component that are enumerated; tests have trees instead.
ENUMERATED = kernel.MOST_STATES
# Initial room of a store, in components.
ROOM = 1 << 10
# Initial entries of messages.
ARENA_ENTRIES = 1 << 12


@dataclass(frozen=True, eq=False)
class Observations:
    """Evidence that takes part in learning.

    network: a Bayesian network; its zeros say which rows are impossible.
    weight: sum of the weights of the rows that take part.
    rows: their number.
    impossible: numbers of the rows with P(e) = 0, which do not take part.
    """

    network: Network
    weight: float
    rows: int
    impossible: tuple[int, ...]
    _complete: Floats = field(repr=False)
    _store: split.Store = field(repr=False)
    _likelihoods: Floats = field(repr=False)
    _scale: float = field(repr=False)
    _options: ComputeOptions = field(repr=False)

    @property
    def components(self) -> int:
        """How many different components the rows have."""
        return int(self._store.counts[split.COMPONENTS])

    @cached_property
    def _propagation(self) -> _Propagation:
        return _Propagation(links_of(self.network), self._store, CHUNKS, self._options)

    def expect(self, values: Floats) -> Expectation:
        """Return the expected counts of all families; rounding changes a count by 1e-15 of it, whatever the rows.

        values: float64 [entries], all tables of the network's factors, flat, one after the other.
        """
        size, here = len(values), self._complete > 0
        every = np.concatenate([values, self._likelihoods])
        log_values, chunks = self._propagation.count(every, size)
        with np.errstate(divide="ignore"):
            complete = float((self._complete[here] * np.log(values[here])).sum())
        weights = self._store.weights[: self.components].sum(axis=1)
        sums = np.zeros((size, 2))
        sums[:, split.SUM] = self._complete
        # A chunk after the other: sums depend on their order.
        for chunk in chunks:
            kernel.add_sums(chunk, sums)
        return Expectation(sums.sum(axis=1), self._scale + complete + float((weights * log_values).sum()))


def observe(
    network: Network,
    batches: Iterable[EvidenceBatch],
    weights: Iterable[Floats] | None = None,
    options: ComputeOptions = ONE_THREAD,
) -> Observations:
    """Return rows of evidence, prepared for expected counts; invalid rows and those of weight 0 are left out.

    network: Bayesian; auxiliary variables of noisy nodes count as unobserved.
    batches: evidence; what is summed depends on their order, by rounding alone.
    weights: float64 [rows] for each batch, not negative; 1 for every row if not given.
    options: threads and memory, on which no result depends.
    Raises ModelError for Markov networks, and EvidenceError for weights that are none.
    """
    if network.kind != "bayes":
        raise ModelError("a Markov network has no families to count: its parameters do not follow from counts")
    preparation = _Preparation(network, options)
    if weights is None:
        for batch in batches:
            preparation.add(batch, np.ones(batch.rows))
    else:
        for batch, some in zip(batches, weights, strict=True):
            preparation.add(batch, some)
    return preparation.observations()


class _Preparation:
    """Splits rows into components, part by part."""

    def __init__(self, network: Network, options: ComputeOptions) -> None:
        self._network, self._options, self._links = network, options, links_of(network)
        self._values = values_of(network)
        self._support = self._values > 0
        self._threads = options.threads or usable_cores()
        self._likelihoods: dict[bytes, int] = {}
        self._tables: list[Floats] = []
        self._scales: list[float] = []
        self._rows = self._taken = self._used = 0
        self._weights: list[float] = []
        self._impossible: list[int] = []
        self._store, self._complete = _empty(network), np.zeros((len(self._values), 2))

    def add(self, batch: EvidenceBatch, weights: Floats) -> None:
        """Take the rows of a batch."""
        weights = np.array(weights, dtype=np.float64)
        if weights.shape != (batch.rows,) or not (np.isfinite(weights) & (weights >= 0)).all():
            raise EvidenceError(f"found weights that are no {batch.rows} numbers of 0 or more, one for each row")
        weights[list(batch.invalid)] = 0.0
        soft = self._soft(batch)
        variables = len(self._network.variables)
        size = max(1, min(PIECE_ROWS, PIECE_CELLS // variables))
        pieces = [slice(start, min(batch.rows, start + size)) for start in range(0, batch.rows, size)]

        def split_piece(piece: slice, _thread: int) -> tuple[split.Store, Floats, npt.NDArray[np.uint8]]:
            return self._split(batch, soft, weights, piece)

        for first in range(0, len(pieces), 2 * self._threads):
            some = pieces[first : first + 2 * self._threads]
            for piece, (store, complete, marks) in zip(some, in_threads(split_piece, some, self._threads), strict=True):
                here = np.flatnonzero(marks)
                self._impossible.extend((self._rows + piece.start + here).tolist())
                weights[piece.start + here] = 0.0
                self._store = _merged(store, self._store, self._network)
                kernel.add_sums(complete, self._complete)
        self._scales.extend(self._scaled(batch, weights))
        self._weights.append(math.fsum(weights.tolist()))
        self._taken += int(np.count_nonzero(weights))
        self._rows += batch.rows

    def _split(
        self, batch: EvidenceBatch, soft: npt.NDArray[np.int32], weights: Floats, piece: slice
    ) -> tuple[split.Store, Floats, npt.NDArray[np.uint8]]:
        """Return components, complete counts and marks of impossible rows of a piece."""
        states = np.full((piece.stop - piece.start, len(self._network.variables)), -1, dtype=np.int32)
        for v, column in batch.states.items():
            states[:, v] = column[piece]
        some = soft[piece] if len(soft) else soft
        taken, marks = weights[piece].copy(), np.zeros(len(states), dtype=np.uint8)
        store, complete = self._components(states, some, taken)
        if not self._support.all() or self._tables:
            support = np.concatenate([self._support, *(table > 0 for table in self._tables)])
            impossible = self._impossible_of(store, support)
            if impossible.any() or complete[~self._support].any():
                work = split.splitting(len(self._network.variables), len(self._network.factors))
                split.mark_rows(self._links, states, some, taken, work, support, impossible, store, marks)
                taken[marks > 0] = 0.0
                store, complete = self._components(states, some, taken)
        return store, complete, marks

    def _components(
        self, states: npt.NDArray[np.int32], soft: npt.NDArray[np.int32], weights: Floats
    ) -> tuple[split.Store, Floats]:
        store, complete = _empty(self._network), np.zeros((len(self._values), 2))
        work = split.splitting(len(self._network.variables), len(self._network.factors))
        row = 0
        while True:
            row = split.split(self._links, states, soft, weights, row, work, complete, store)
            if row == split.DONE:
                return store, complete
            store = _merged(store, _larger(store, self._network), self._network)

    def _impossible_of(self, store: split.Store, support: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return which components have probability 0; sums of ones do not underflow."""
        one = ComputeOptions(self._options.memory, 1, "cpu")
        log_values, _ = _Propagation(self._links, store, 1, one).count(support.astype(np.float64), 0)
        impossible: npt.NDArray[np.bool_] = np.isneginf(log_values)
        return impossible

    def _soft(self, batch: EvidenceBatch) -> npt.NDArray[np.int32]:
        """Return the first entry of each cell's likelihood, int32 [rows, variables]; no rows where there is none."""
        if not batch.likelihoods:
            return np.zeros((0, 0), dtype=np.int32)
        found = np.full((batch.rows, len(self._network.variables)), -1, dtype=np.int32)
        for v, soft in batch.likelihoods.items():
            for row, values in zip(soft.rows, soft.values / soft.values.max(axis=1, keepdims=True), strict=True):
                key = values.tobytes()
                if key not in self._likelihoods:
                    self._likelihoods[key] = len(self._values) + self._used
                    self._tables.append(values)
                    self._used += len(values)
                found[row, v] = self._likelihoods[key]
        return found

    def _scaled(self, batch: EvidenceBatch, weights: Floats) -> Iterator[float]:
        """Yield what was taken from the logarithms of likelihoods, which are scaled to 1."""
        for soft in batch.likelihoods.values():
            yield float((weights[soft.rows] * np.log(soft.values.max(axis=1))).sum())

    def observations(self) -> Observations:
        """Return the rows of all batches."""
        likelihoods = np.concatenate([np.zeros(0), *self._tables])
        return Observations(
            self._network,
            math.fsum(self._weights),
            self._taken,
            tuple(self._impossible),
            self._complete.sum(axis=1),
            self._store,
            likelihoods,
            math.fsum(self._scales),
            self._options,
        )


class _Propagation:
    """Computes the components of a store, again and again with other numbers.

    links, store: of the rows.
    chunks: parts that threads take in turn, at most.
    options: threads and memory.
    """

    def __init__(self, links: split.Links, store: split.Store, chunks: int, options: ComputeOptions) -> None:
        self._links, self._store, self._options = links, store, options
        self._threads = options.threads or usable_cores()
        count = int(store.counts[split.COMPONENTS])
        self._order = np.argsort(store.pattern[:count], kind="stable")
        # Parts of much the same work.
        factors = np.cumsum(np.diff(store.base_starts[: count + 1])[self._order])
        total = int(factors[-1]) if count else 0
        parts = min(chunks, 1 + total // CHUNK_FACTORS)
        ends = np.searchsorted(factors, np.arange(1, parts) * (total / parts))
        self._bounds = sorted({0, count, *ends.tolist()})
        self._largest = _largest(links, store)
        self._rooms: list[kernel.CountRoom] = []

    def count(self, values: Floats, counted: int) -> tuple[Floats, list[Floats]]:
        """Return log P of each component, and the sums of counts of each part.

        values: float64, entries of all tables, then likelihoods.
        counted: entries of the tables whose families are counted, 0 for none.
        """
        links, store, order, bounds = self._links, self._store, self._order, self._bounds
        results = np.zeros(len(order)), np.zeros(len(order), dtype=np.uint8)
        most = most_entries(self._options, self._threads)
        # Two calls at the same time do not share memory.
        rooms, self._rooms = self._rooms, []
        rooms = rooms or [self._room(ARENA_ENTRIES) for _ in range(min(self._threads, len(bounds) - 1))]

        def count(part: tuple[int, int], thread: int) -> Floats:
            sums, (at, end) = np.zeros((counted, 2)), part
            while at < end:
                at = kernel.count(links, store, order, at, end, values, ENUMERATED, rooms[thread], sums, results)
                if at < end:
                    needed = kernel.needed(rooms[thread])
                    if needed > most:
                        results[1][order[at]] = TOO_LARGE
                        at += 1
                    else:
                        rooms[thread] = self._room(min(most, needed + needed // 4))
            return sums

        chunks = in_threads(count, list(pairwise(bounds)), self._threads)
        self._rooms = rooms
        left = np.flatnonzero((results[1] != ANSWERED) & (results[1] != IMPOSSIBLE))
        if left.size:
            sums = np.zeros((counted, 2))
            for component in left.tolist():
                results[0][component] = _alone(links, store, component, values, sums, self._options)
            chunks.append(sums)
        return results[0], chunks

    def _room(self, entries: int) -> kernel.CountRoom:
        return kernel.room(len(self._links.cards), *self._largest, entries)


def most_entries(options: ComputeOptions, threads: int) -> int:
    """Return how many entries the messages of a component may have in the memory of a thread."""
    return allowed_memory(options) // threads // 8


def _alone(
    links: split.Links, store: split.Store, component: int, values: Floats, sums: Floats, options: ComputeOptions
) -> float:
    """Add the counts of a component in log space, or in whatever memory it takes; return log P."""
    pattern, given = store.pattern[component], len(links.starts) - 1
    variables = store.variables[store.variable_starts[pattern] : store.variable_starts[pattern + 1]].tolist()
    factors = store.factors[store.factor_starts[pattern] : store.factor_starts[pattern + 1]].tolist()
    bases = store.bases[store.base_starts[component] : store.base_starts[component + 1]].tolist()
    tables, offsets, scopes = [], [], []
    for factor, base in zip(factors, bases, strict=True):
        if factor >= given:
            axes = [(factor - given, 1)]
        else:
            here = range(links.starts[factor], links.starts[factor + 1])
            axes = [(int(links.scopes[at]), int(links.strides[at])) for at in here if links.scopes[at] in variables]
        entries = np.array(base)
        for v, stride in axes:
            entries = entries[..., None] + stride * np.arange(links.cards[v])
        scope = tuple(variables.index(v) for v, _ in axes)
        tables.append(Factor(scope, values[entries]))
        offsets.append(entries)
        scopes.append([f"x{v}" for v in scope])
    named = tuple(Variable(f"x{i}", tuple(map(str, range(links.cards[v])))) for i, v in enumerate(variables))
    network = Network("component", named, tuple(tables), "markov")
    asked = [i for i, factor in enumerate(factors) if factor < given] if len(sums) else []
    questions = [scopes[i] for i in asked] or scopes[:1]
    try:
        found = joint_posteriors(network, questions, precision="log", memory=options.memory)
    except EvidenceError:
        # No evidence is given: the component itself is impossible.
        return -math.inf
    weight = float(store.weights[component].sum())
    for i, posterior in zip(asked, found.posteriors, strict=False):
        for entry, value in zip(offsets[i].ravel().tolist(), posterior.ravel().tolist(), strict=True):
            sums[entry, split.SUM] += weight * value
    return found.log_evidence


def links_of(network: Network) -> split.Links:
    """Return what the splitting of rows needs of a network."""
    scopes = [factor.scope for factor in network.factors]
    strides = [
        math.prod(factor.table.shape[axis + 1 :]) for factor in network.factors for axis in range(factor.table.ndim)
    ]
    owners: list[list[int]] = [[] for _ in network.variables]
    for number, scope in enumerate(scopes):
        for v in scope:
            owners[v].append(number)
    return split.Links(
        cards=np.array(network.cardinalities, dtype=np.int64),
        starts=np.cumsum([0, *map(len, scopes)], dtype=np.int64),
        scopes=np.array([v for scope in scopes for v in scope], dtype=np.int32),
        strides=np.array(strides, dtype=np.int64),
        places=np.cumsum([0, *(factor.table.size for factor in network.factors)], dtype=np.int64),
        of_starts=np.cumsum([0, *map(len, owners)], dtype=np.int64),
        of_factors=np.array([number for found in owners for number in found], dtype=np.int32),
    )


def values_of(network: Network) -> Floats:
    """Return the entries of all tables of a network, flat, one table after the other."""
    return np.concatenate([np.zeros(0), *(factor.table.ravel() for factor in network.factors)])


def _empty(network: Network) -> split.Store:
    # Room for the components of one row at least.
    most = 2 * len(network.variables) + len(network.factors)
    return split.store(most, most + ROOM, most, 2 * most, 2 * most + 8 * ROOM)


def _larger(store: split.Store, network: Network) -> split.Store:
    """Return an empty store with twice the room."""
    counts, most = 2 * store.counts, 2 * len(network.variables) + len(network.factors)
    return split.store(*(int(count) + most for count in counts[:3]), *(int(count) + 2 * most for count in counts[3:]))


def _merged(source: split.Store, into: split.Store, network: Network) -> split.Store:
    """Return a store with the components of two, those of `into` first: `into` itself, or a larger one."""
    at = split.merge(source, 0, into)
    while at != split.DONE:
        # The other one first, so that numbers are those of one large store.
        larger = _larger(into, network)
        if split.merge(into, 0, larger) != split.DONE:
            raise AssertionError("a larger store has no room for the components of a smaller one")
        into = larger
        at = split.merge(source, at, into)
    return into


def _largest(links: split.Links, store: split.Store) -> tuple[int, int, int, int]:
    """Return the most variables and factors of a pattern, and the largest sums of lengths of scopes and of squares."""
    patterns = int(store.counts[split.PATTERNS])
    lengths = np.concatenate([np.diff(links.starts), np.ones(len(links.cards), dtype=np.int64)])
    used = lengths[store.factors[: int(store.counts[split.FACTORS])]]
    starts = store.factor_starts[: patterns + 1]

    def most(counts: npt.NDArray[np.int64], begins: npt.NDArray[np.int64]) -> int:
        sums = np.concatenate([[0], np.cumsum(counts)])
        return int(np.diff(sums[begins]).max(initial=1))

    variables = np.ones(int(store.counts[split.VARIABLES]), dtype=np.int64)
    return (
        most(variables, store.variable_starts[: patterns + 1]),
        most(np.ones_like(used), starts),
        most(used, starts),
        most(used * used, starts),
    )
