"""Rows of evidence, prepared once for many expected counts.

Main objects: `observe` and Observations; between workers, `split_rows` and `gather`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from junctor_kernels.row_trees import components as split
from junctor_kernels.row_trees import counts as kernel
from junctor_kernels.row_trees.propagate import ANSWERED, IMPOSSIBLE, TOO_LARGE

from junctor.cliques.joint import joint_posteriors
from junctor.evidence.batch import EvidenceBatch, SoftEvidence
from junctor.learning.counts_gpu import gpu_components
from junctor.learning.expectation import A_WEIGHT, Expectation, Floats, wrong_weights
from junctor.model.errors import BudgetError, EvidenceError, ModelError
from junctor.model.network import Factor, Network, Variable
from junctor.model.options import ONE_THREAD, ComputeOptions
from junctor.planning.budget import exact_bytes
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
# What probabilities may exceed 1 by.
ROUNDING = 1e-9
# Initial room of a store, in components.
ROOM = 1 << 10
# Entries of tables and likelihoods together, which have 32-bit numbers.
MOST_ENTRIES = (1 << 31) - 1
# Sums of whole numbers up to here are exact.
MOST_WHOLE = 1 << 53
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
    def distributions(self) -> npt.NDArray[np.int64]:
        """Where each distribution begins among the entries of all tables, int64."""
        states = [factor.table.shape[-1] for factor in self.network.factors]
        counts = [factor.table.size // factor.table.shape[-1] for factor in self.network.factors]
        lengths = np.repeat(np.array(states, dtype=np.int64), counts)
        return np.cumsum(lengths) - lengths

    @cached_property
    def _propagation(self) -> _Propagation:
        entries = sum(factor.table.size for factor in self.network.factors) + len(self._likelihoods)
        return _Propagation(families_of(self.network), self._store, CHUNKS, self._options, entries)

    @cached_property
    def _weights(self) -> Floats:
        weights: Floats = self._store.weights[: self.components].sum(axis=1)
        return weights

    def expect(self, values: Floats) -> Expectation:
        """Return the expected counts of all families; rounding changes a count by 1e-15 of it, whatever the rows.

        values: float64 [entries], all tables of the network's factors, flat, one after the other.
        """
        size, here = len(values), self._complete > 0
        every = np.concatenate([values, self._likelihoods])
        log_values, chunks = self._propagation.count(every, size)
        with np.errstate(divide="ignore"):
            complete = float((self._complete[here] * np.log(values[here])).sum())
        sums = np.zeros((size, 2))
        sums[:, split.SUM] = self._complete
        # A chunk after the other: sums depend on their order.
        for chunk in chunks:
            _add_sums(chunk, sums)
        return Expectation(sums.sum(axis=1), self._scale + complete + float((self._weights * log_values).sum()))


@dataclass(frozen=True, eq=False, slots=True)
class SplitRows:
    """Rows of a batch as components; what a worker returns.

    rows: of the batch; taken: of them that take part.
    weight: sum of the weights of these.
    impossible: numbers of the rows with P(e) = 0.
    complete: float64 [entries, 2], counts of families that are observed in full.
    store: of the other components.
    likelihoods: float64, different ones, scaled.
    scale: what that took from the logarithm of the likelihood.
    """

    rows: int
    taken: int
    weight: float
    impossible: tuple[int, ...]
    complete: Floats
    store: split.Store
    likelihoods: Floats
    scale: float


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
    options: threads and memory, on which no result depends; of devices, as far as rounding goes.
    Raises ModelError for Markov networks, EvidenceError for weights that are none, and BudgetError for components that
    take too much memory.
    """
    given = itertools.repeat(None) if weights is None else iter(weights)
    # Weights may be made with their batch: they are asked for after it.
    return gather(network, (split_rows(network, batch, next(given), options) for batch in batches), options)


def split_rows(
    network: Network, batch: EvidenceBatch, weights: Floats | None = None, options: ComputeOptions = ONE_THREAD
) -> SplitRows:
    """Return the rows of a batch as components; arguments and errors as of `observe`."""
    _check(network)
    weights = np.ones(batch.rows) if weights is None else np.array(weights, dtype=np.float64)
    if weights.shape != (batch.rows,) or wrong_weights(weights).size:
        raise EvidenceError(f"found weights that are not {batch.rows} numbers, each {A_WEIGHT}, one for each row")
    weights[list(batch.invalid)] = 0.0
    return _Splitting(network, batch, options).rows(weights)


def gather(network: Network, splits: Iterable[SplitRows], options: ComputeOptions = ONE_THREAD) -> Observations:
    """Return the rows of some batches, in their order; arguments and errors as of `observe`."""
    _check(network)
    families = families_of(network)
    size, given = int(families.places[-1]), len(families.starts) - 1
    store, complete, likelihoods = _empty(network), np.zeros((size, 2)), _Likelihoods(families)
    rows, taken, allowed = 0, 0, allowed_memory(options)
    weights, scales, impossible = [], [], list[int]()
    for part in splits:
        impossible.extend(rows + row for row in part.impossible)
        rows, taken = rows + part.rows, taken + part.taken
        weights.append(part.weight)
        scales.append(part.scale)
        _add_sums(part.complete, complete)
        store = _merged(likelihoods.renumbered(part, given), store, network)
        # While it grows there are two of them.
        if (needed := 2 * sum(array.nbytes for array in store) + likelihoods.nbytes) > allowed:
            raise BudgetError(
                f"the gaps of {rows:,} rows take {exact_bytes(needed)}, allowed are {exact_bytes(allowed)}: "
                "give more memory (--memory), or learn from fewer rows"
            )
    return Observations(
        network,
        math.fsum(weights),
        taken,
        tuple(impossible),
        complete.sum(axis=1),
        store,
        likelihoods.values,
        math.fsum(scales),
        options,
    )


def _check(network: Network) -> None:
    if network.kind != "bayes":
        raise ModelError("a Markov network has no families to count: its parameters do not follow from counts")


class _Likelihoods:
    """Different likelihoods of all rows, behind the tables of a network.

    families: of the network.
    """

    def __init__(self, families: split.Families) -> None:
        self._cards, self._size = families.cards, int(families.places[-1])
        self._places: dict[bytes, int] = {}
        self._tables: list[Floats] = []
        self._used = 0

    @property
    def values(self) -> Floats:
        """All of them, one after the other."""
        return np.concatenate([np.zeros(0), *self._tables])

    @property
    def nbytes(self) -> int:
        """Bytes that they take, as keys and as numbers."""
        return 2 * 8 * self._used

    def place(self, values: Floats) -> int:
        """Return the first entry of a likelihood, which is listed if it is new."""
        key = values.tobytes()
        if key not in self._places:
            if self._size + self._used + len(values) > MOST_ENTRIES:
                raise BudgetError(
                    f"tables and different likelihoods have more than {MOST_ENTRIES:,} numbers together: learn from "
                    "fewer rows"
                )
            self._places[key] = self._size + self._used
            self._tables.append(values)
            self._used += len(values)
        return self._places[key]

    def renumbered(self, part: SplitRows, given: int) -> split.Store:
        """Return a batch's components with the places that its likelihoods have here."""
        if not len(part.likelihoods):
            return part.store
        count = int(part.store.counts[split.COMPONENTS])
        starts = part.store.factor_starts
        factors = [part.store.factors[starts[pattern] : starts[pattern + 1]] for pattern in part.store.pattern[:count]]
        every = np.concatenate([np.zeros(0, dtype=np.int32), *factors])
        bases = part.store.bases.copy()
        for at in np.flatnonzero(every >= given):
            first = bases[at] - self._size
            bases[at] = self.place(part.likelihoods[first : first + self._cards[every[at] - given]])
        return part.store._replace(bases=bases)


def _scales(soft: SoftEvidence) -> Floats:
    """Return what likelihoods are divided by: their largest entry, or 1 where an entry would be lost."""
    largest: Floats = soft.values.max(axis=1)
    smallest = np.where(soft.values > 0, soft.values, np.inf).min(axis=1)
    return np.where(smallest / largest > np.finfo(float).tiny, largest, 1.0)


def _are_plain(states: npt.NDArray[np.int32], weights: Floats) -> bool:
    """Return True for rows without gaps whose weights are whole: NumPy counts them to the same bit, uncompiled."""
    there = weights > 0
    is_whole = (weights == np.floor(weights)).all() and weights.sum() < MOST_WHOLE
    return bool(is_whole and (states[there] >= 0).all())


def _add_sums(source: Floats, into: Floats) -> None:
    """Add sums to others, float64 [entries, 2]."""
    for value in source.T:
        before = into[:, split.SUM].copy()
        total = before + value
        larger = np.abs(before) >= np.abs(value)
        into[:, split.LOST] += np.where(larger, (before - total) + value, (value - total) + before)
        into[:, split.SUM] = total


class _Splitting:
    """Splits the rows of a batch, piece by piece."""

    def __init__(self, network: Network, batch: EvidenceBatch, options: ComputeOptions) -> None:
        self._network, self._batch, self._options = network, batch, options
        self._families, self._values = families_of(network), values_of(network)
        self._likelihoods = _Likelihoods(self._families)
        self._soft = np.zeros((0, 0), dtype=np.int32)
        if batch.likelihoods:
            self._soft = np.full((batch.rows, len(network.variables)), -1, dtype=np.int32)
            for v, soft in batch.likelihoods.items():
                scaled = soft.values / _scales(soft)[:, None]
                self._soft[soft.rows, v] = [self._likelihoods.place(values) for values in scaled]
        self._support = np.concatenate([self._values, self._likelihoods.values]) > 0

    def rows(self, weights: Floats) -> SplitRows:
        """Return the components of the rows; their weights are set to 0 where they are impossible."""
        rows, threads = self._batch.rows, self._options.threads or usable_cores()
        size = max(1, min(PIECE_ROWS, PIECE_CELLS // len(self._network.variables)))
        pieces = [slice(start, min(rows, start + size)) for start in range(0, rows, size)]
        store, complete = _empty(self._network), np.zeros((len(self._values), 2))
        marks = np.zeros(rows, dtype=np.uint8)
        for first in range(0, len(pieces), 2 * threads):
            some = pieces[first : first + 2 * threads]
            for part, counts in in_threads(lambda piece, _: self._piece(weights, marks, piece), some, threads):
                store = _merged(part, store, self._network)
                _add_sums(counts, complete)
        impossible = np.flatnonzero(marks)
        weights[impossible] = 0.0
        # What was taken from the logarithms.
        scale = [float((weights[soft.rows] * np.log(_scales(soft))).sum()) for soft in self._batch.likelihoods.values()]
        return SplitRows(
            rows,
            int(np.count_nonzero(weights)),
            math.fsum(weights.tolist()),
            tuple(impossible.tolist()),
            complete,
            store,
            self._likelihoods.values,
            math.fsum(scale),
        )

    def _piece(self, weights: Floats, marks: npt.NDArray[np.uint8], piece: slice) -> tuple[split.Store, Floats]:
        """Return components and complete counts of some rows, without impossible ones, which are marked."""
        states = np.full((piece.stop - piece.start, len(self._network.variables)), -1, dtype=np.int32)
        for v, column in self._batch.states.items():
            states[:, v] = column[piece]
        soft, taken = self._soft[piece], weights[piece].copy()
        store, complete = self._components(states, soft, taken)
        if not self._support.all():
            impossible = self._impossible_of(store)
            if impossible.any() or complete[~self._support[: len(complete)]].any():
                work = split.splitting(len(self._network.variables), len(self._network.factors))
                here = marks[piece]
                split.mark_rows(self._families, states, soft, taken, work, self._support, impossible, store, here)
                taken[here > 0] = 0.0
                store, complete = self._components(states, soft, taken)
        return store, complete

    def _components(
        self, states: npt.NDArray[np.int32], soft: npt.NDArray[np.int32], weights: Floats
    ) -> tuple[split.Store, Floats]:
        store, complete = _empty(self._network), np.zeros((len(self._values), 2))
        if _are_plain(states, weights):
            self._count_plainly(states[weights > 0], weights[weights > 0], complete)
            return store, complete
        work = split.splitting(len(self._network.variables), len(self._network.factors))
        row = 0
        while True:
            row = split.split(self._families, states, soft, weights, row, work, complete, store)
            if row == split.DONE:
                return store, complete
            store = _merged(store, _larger(store, self._network), self._network)

    def _count_plainly(self, states: npt.NDArray[np.int32], weights: Floats, complete: Floats) -> None:
        """Add up the rows of each entry of each family."""
        families = self._families
        for factor, (begin, end) in enumerate(pairwise(families.places.tolist())):
            own = slice(families.starts[factor], families.starts[factor + 1])
            entries = states[:, families.scopes[own]] @ families.strides[own]
            complete[begin:end, split.SUM] = np.bincount(entries, weights, end - begin)

    def _impossible_of(self, store: split.Store) -> npt.NDArray[np.bool_]:
        """Return which components have probability 0; sums of ones do not underflow."""
        one = ComputeOptions(self._options.memory, 1, "cpu")
        support = self._support.astype(np.float64)
        log_values, _ = _Propagation(self._families, store, 1, one, len(support)).count(support, 0)
        impossible: npt.NDArray[np.bool_] = np.isneginf(log_values)
        return impossible


class _Propagation:
    """Computes the components of a store, again and again with other numbers.

    families, store: of the rows.
    chunks: parts that threads take in turn, at most.
    options: devices, threads and memory.
    entries: of all tables and likelihoods.
    """

    def __init__(
        self, families: split.Families, store: split.Store, chunks: int, options: ComputeOptions, entries: int
    ) -> None:
        self._families, self._store, self._chunks, self._options = families, store, chunks, options
        self._threads = options.threads or usable_cores()
        self._order = np.argsort(store.pattern[: int(store.counts[split.COMPONENTS])], kind="stable")
        self._largest = _largest(families, store)
        self._rooms = [self._room(ARENA_ENTRIES)]
        local = self._rooms[0].local
        self._gpu = gpu_components(families, store, self._order, ENUMERATED, local, entries, options)
        self._parts = self._cut(self._order)
        self._beside = [] if self._gpu is None else self._cut(self._gpu.rest)

    def count(self, values: Floats, counted: int) -> tuple[Floats, list[Floats]]:
        """Return log P of each component, and the sums of counts of each part.

        values: float64, entries of all tables, then likelihoods.
        counted: entries of the tables whose families are counted, 0 for none.
        """
        results = np.zeros(len(self._order)), np.zeros(len(self._order), dtype=np.uint8)
        # Products of numbers above 1 could hide what underflow has lost: trees have bounds.
        enumerated = ENUMERATED if values.max(initial=0.0) <= 1 + ROUNDING else 0
        chunks: list[Floats] = []

        def count(parts: list[npt.NDArray[np.int64]]) -> None:
            chunks.extend(self._counted(parts, values, enumerated, counted, results))

        if self._gpu is None or not enumerated:
            count(self._parts)
        else:
            sums, left = self._gpu.count(values, results, lambda: count(self._beside))
            chunks.append(sums)
            count(self._cut(left) if left.size else [])
        left = np.flatnonzero((results[1] != ANSWERED) & (results[1] != IMPOSSIBLE))
        if left.size:
            sums = np.zeros((counted, 2))
            for component in left.tolist():
                results[0][component] = _alone(self._families, self._store, component, values, sums, self._options)
            chunks.append(sums)
        return results[0], chunks

    def _counted(
        self,
        parts: list[npt.NDArray[np.int64]],
        values: Floats,
        enumerated: int,
        counted: int,
        results: tuple[Floats, npt.NDArray[np.uint8]],
    ) -> list[Floats]:
        """Count parts on the CPU, and return the sums of each; other arguments as of `kernel.count`."""
        families, store = self._families, self._store
        most = most_entries(self._options, self._threads)
        # Two calls at the same time do not share memory.
        rooms, self._rooms = self._rooms, []
        rooms += [self._room(ARENA_ENTRIES) for _ in range(min(self._threads, len(parts)) - len(rooms))]

        def count(part: npt.NDArray[np.int64], thread: int) -> Floats:
            sums, at, end = np.zeros((counted, 2)), 0, len(part)
            if self._are_few(part, enumerated):
                what = values, enumerated, rooms[thread], sums, results
                at = kernel.enumerate_components(families, store, part, at, end, *what)
            while at < end:
                at = kernel.count(families, store, part, at, end, values, enumerated, rooms[thread], sums, results)
                if at < end:
                    needed = kernel.needed(rooms[thread])
                    if needed > most:
                        results[1][part[at]] = TOO_LARGE
                        at += 1
                    else:
                        rooms[thread] = self._room(min(most, needed + needed // 4))
            return sums

        chunks = in_threads(count, parts, self._threads)
        self._rooms = rooms
        return chunks

    @cached_property
    def _bits(self) -> Floats:
        """Logarithm to base 2 of the states of each pattern."""
        counts, variables = self._store.counts, self._store.variables
        of_variables = np.log2(self._families.cards[variables[: counts[split.VARIABLES]]])
        until = np.concatenate([[0.0], np.cumsum(of_variables)])
        return np.diff(until[self._store.variable_starts[: counts[split.PATTERNS] + 1]])

    def _are_few(self, part: npt.NDArray[np.int64], enumerated: int) -> bool:
        """Return True if each component of a part has at most so many states."""
        if not enumerated:
            return False
        most = self._bits[self._store.pattern[part]].max(initial=0.0)
        return bool(most <= math.log2(enumerated) + ROUNDING)

    def _cut(self, order: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
        """Return components, those of a pattern together, in parts of much the same work."""
        factors = np.cumsum(np.diff(self._store.base_starts)[order])
        total = int(factors[-1]) if len(order) else 0
        parts = min(self._chunks, 1 + total // CHUNK_FACTORS)
        ends = np.searchsorted(factors, np.arange(1, parts) * (total / parts))
        return [order[begin:end] for begin, end in pairwise(sorted({0, len(order), *ends.tolist()}))]

    def _room(self, entries: int) -> kernel.CountRoom:
        cards = self._families.cards
        return kernel.room(len(cards), int(cards.max(initial=1)), *self._largest, entries)


def most_entries(options: ComputeOptions, threads: int) -> int:
    """Return how many entries the messages of a component may have in the memory of a thread."""
    return allowed_memory(options) // threads // 8


def _alone(
    families: split.Families, store: split.Store, component: int, values: Floats, sums: Floats, options: ComputeOptions
) -> float:
    """Add the counts of a component in log space, or in whatever memory it takes; return log P."""
    pattern, given = store.pattern[component], len(families.starts) - 1
    variables = store.variables[store.variable_starts[pattern] : store.variable_starts[pattern + 1]].tolist()
    factors = store.factors[store.factor_starts[pattern] : store.factor_starts[pattern + 1]].tolist()
    bases = store.bases[store.base_starts[component] : store.base_starts[component + 1]].tolist()
    tables, offsets, scopes = [], [], []
    for factor, base in zip(factors, bases, strict=True):
        if factor >= given:
            axes = [(factor - given, 1)]
        else:
            here = range(families.starts[factor], families.starts[factor + 1])
            axes = [
                (int(families.scopes[at]), int(families.strides[at])) for at in here if families.scopes[at] in variables
            ]
        entries = np.array(base)
        for v, stride in axes:
            entries = entries[..., None] + stride * np.arange(families.cards[v])
        scope = tuple(variables.index(v) for v, _ in axes)
        tables.append(Factor(scope, values[entries]))
        offsets.append(entries)
        scopes.append([f"x{v}" for v in scope])
    named = tuple(Variable(f"x{i}", tuple(map(str, range(families.cards[v])))) for i, v in enumerate(variables))
    network = Network("component", named, tuple(tables), "markov")
    asked = [i for i, factor in enumerate(factors) if factor < given] if len(sums) else []
    questions = [scopes[i] for i in asked] or scopes[:1]
    try:
        memory, time_limit = options.memory, options.time_limit
        found = joint_posteriors(network, questions, precision="log", memory=memory, time_limit=time_limit)
    except EvidenceError:
        # No evidence is given: the component itself is impossible.
        return -math.inf
    weight = float(store.weights[component].sum())
    for i, posterior in zip(asked, found.posteriors, strict=False):
        for entry, value in zip(offsets[i].ravel().tolist(), posterior.ravel().tolist(), strict=True):
            sums[entry, split.SUM] += weight * value
    return found.log_evidence


def families_of(network: Network) -> split.Families:
    """Return what the splitting of rows needs of a network."""
    scopes = [factor.scope for factor in network.factors]
    strides = [
        math.prod(factor.table.shape[axis + 1 :]) for factor in network.factors for axis in range(factor.table.ndim)
    ]
    owners: list[list[int]] = [[] for _ in network.variables]
    for number, scope in enumerate(scopes):
        for v in scope:
            owners[v].append(number)
    return split.Families(
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
    if not source.counts[split.COMPONENTS]:
        return into
    at = split.merge(source, 0, into)
    while at != split.DONE:
        # The other one first, so that numbers are those of one large store.
        larger = _larger(into, network)
        if split.merge(into, 0, larger) != split.DONE:
            raise AssertionError("a larger store has no room for the components of a smaller one")
        into = larger
        at = split.merge(source, at, into)
    return into


def _largest(families: split.Families, store: split.Store) -> tuple[int, int, int, int]:
    """Return the most variables and factors of a pattern, and the largest sums of lengths of scopes and of squares."""
    patterns = int(store.counts[split.PATTERNS])
    lengths = np.concatenate([np.diff(families.starts), np.ones(len(families.cards), dtype=np.int64)])
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
