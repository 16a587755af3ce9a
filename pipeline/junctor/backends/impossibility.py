"""Rows with P(e) = 0, decided exactly from the zeros of the network, whatever number format doubts them.

Main functions: `answer_impossible`, called for the doubtful rows of every backend, and `decide`, which the search for
contradictions calls as well. Constraint satisfaction by bucket elimination (Dechter 1999).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from junctor_kernels.cpu.columns import addresses_of, take_codes
from junctor_kernels.orders.greedy import weights_of
from junctor_kernels.orders.sparse import moral_graph
from junctor_kernels.row_trees import case_words as words
from junctor_kernels.row_trees import plan as rowplan
from junctor_kernels.row_trees import possible

from junctor.backends.impossible_answers import leave_impossible
from junctor.cost.figures import shipped_figures
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch, Rows, SoftEvidence
from junctor.evidence.compiled_cells import evidence_cells
from junctor.model.answers import Answers
from junctor.model.network import Network
from junctor.runtime.threads import in_threads

Mask = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

# Rows whose evidence is in memory as codes at a time: blocks for many threads.
MOST_ROWS = 1 << 14
# Work that is worth a thread, by prices, which are half of the time where trees are small. A thread begins in a tenth
# of that time; its memory, which is kept from round to round, is made in a third.
THREAD_SECONDS = 0.0005


@dataclass(frozen=True, slots=True)
class Limits:
    """What a decision may take; what it finds does not depend on threads.

    memory: bytes.
    threads: number of threads.
    operations: most word operations of the tree of a case that culprits are asked of, by itself.
    """

    memory: int
    threads: int = 1
    operations: float = math.inf


@dataclass(frozen=True, eq=False)
class Zeros:
    """The zeros of a network.

    supports: of all factors, each over the variables that its zeros depend on.
    constrained: bool [variables], where some state can be impossible; findings elsewhere contradict nothing.
    masks: uint8, states that the codes of hard findings, and of none, allow: [states + 1, states] for each variable.
    starts: int64 [variables], where the masks of a variable begin.
    """

    supports: words.Supports
    constrained: Mask
    masks: Bytes
    starts: npt.NDArray[np.int64]

    @cached_property
    def operations(self) -> float:
        """Word operations of the tree in which any findings of one state each may be missing; inf for too large a one.

        That is the tree of all variables, to which any findings are likelihoods.
        """
        variables, cards = np.arange(len(self.constrained)), self.supports.factors.cards
        codes = np.stack([np.zeros_like(cards), cards], axis=1).astype(np.int32)
        findings = words.Findings(variables, codes, self.masks, self.starts, variables)
        return operations_of(self.supports, findings, Rooms(self.supports.factors, variables))


# Kept as long as the network: the next batch, and every block of this one, asks again.
_ZEROS: WeakKeyDictionary[Network, Zeros] = WeakKeyDictionary()


def zeros_of(network: Network) -> Zeros:
    """Return the zeros of a network, the same object at every call."""
    if network not in _ZEROS:
        _ZEROS[network] = _zeros(network)
    return _ZEROS[network]


def _zeros(network: Network) -> Zeros:
    directed = network.kind == "bayes"
    tables = [
        # Factor v of a Bayesian network keeps v, and with it its place among the relevant ones.
        _reduced(factor.scope, factor.table > 0, v if directed else None)
        for v, factor in enumerate(network.factors)
    ]
    scopes = [scope for scope, _ in tables]
    constrained = np.zeros(len(network.variables), dtype=np.bool_)
    for scope, above in tables:
        if not above.all():
            constrained[list(scope)] = True
    strides = [math.prod(above.shape[axis + 1 :]) for _, above in tables for axis in range(above.ndim)]
    begins = np.cumsum([0, *map(len, scopes)], dtype=np.int64)
    flat = np.array([v for scope in scopes for v in scope], dtype=np.int64)
    factors = rowplan.Factors(
        cards=np.array(network.cardinalities, dtype=np.int64),
        starts=begins,
        scopes=flat,
        strides=np.array(strides, dtype=np.int64),
        places=np.cumsum([0, *(above.size for _, above in tables)], dtype=np.int64),
        values=np.zeros(0),
        directed=int(directed),
        graph=moral_graph(len(network.variables), begins, flat),
        weights=weights_of(network.cardinalities),
        means=np.array(network.cardinalities, dtype=np.float64),
    )
    # `ravel` copies tables that are not in C order.
    entries = [np.zeros(0, dtype=np.bool_), *(above.ravel() for _, above in tables)]
    supports = words.Supports(factors, np.concatenate(entries).astype(np.uint8))
    masks = [np.vstack([np.eye(size), np.ones(size)]).astype(np.uint8).ravel() for size in network.cardinalities]
    starts = np.cumsum([0, *map(len, masks)], dtype=np.int64)[:-1]
    return Zeros(supports, constrained, np.concatenate(masks), starts)


def _reduced(scope: Sequence[int], above: Mask, child: int | None) -> tuple[tuple[int, ...], Mask]:
    """Return a support over the variables that it depends on, and `child`."""
    kept = list(scope)
    # Most tables have no zeros at all.
    all_above = bool(above.all())
    for v in scope:
        axis = kept.index(v)
        first = above.take([0], axis=axis)
        if v != child and (all_above or (above == first).all()):
            above = first.squeeze(axis)
            kept.remove(v)
    return tuple(kept), above


class FindingColumns:
    """The findings of a batch that can contradict something, in the codes of the kernel.

    zeros: of the network.
    batch: its evidence.
    """

    # A likelihood counts by the states that it allows; one that allows all states is no finding.

    def __init__(self, zeros: Zeros, batch: EvidenceBatch) -> None:
        self._batch = batch
        variables = [v for v in sorted(batch.states.keys() | batch.likelihoods.keys()) if zeros.constrained[v]]
        self.variables = np.array(variables, dtype=np.int64)
        self.sizes: npt.NDArray[np.int32] = zeros.supports.factors.cards[self.variables].astype(np.int32)
        self._number = len(zeros.constrained)
        self._masks, self._starts = zeros.masks, zeros.starts[self.variables]
        self._cells = evidence_cells(batch)
        # Column of a variable with likelihoods -> codes of all rows.
        self._soft: dict[int, npt.NDArray[np.int32]] = {}
        for column, v in enumerate(variables):
            if v in batch.likelihoods:
                self._add_likelihoods(column, batch.likelihoods[v])
        # Where the codes of each column begin: states of the batch, -1 for none, or codes with likelihoods.
        self.addresses = np.zeros(len(variables), dtype=np.int64)
        hard = [column for column in range(len(variables)) if column not in self._soft]
        self.addresses[hard] = self._cells.addresses([variables[column] for column in hard])
        self.addresses[list(self._soft)] = addresses_of(self._soft.values())

    def _add_likelihoods(self, column: int, soft: SoftEvidence) -> None:
        """Give the likelihoods of a column codes after those of its states."""
        above, size, start = soft.values > 0, int(self.sizes[column]), self._starts[column]
        different, numbers = np.unique(above, axis=0, return_inverse=True)
        codes = np.full(self._batch.rows, UNOBSERVED, dtype=np.int32)
        codes[soft.rows] = np.where(above.all(axis=1), UNOBSERVED, size + 1 + numbers.ravel())
        states = self._batch.states.get(int(self.variables[column]))
        # A cell is observed, or has a likelihood.
        self._soft[column] = codes if states is None else np.maximum(codes, states, dtype=np.int32)
        hard = self._masks[start : start + (size + 1) * size]
        self._starts[column] = len(self._masks)
        self._masks = np.concatenate([self._masks, hard, different.ravel().astype(np.uint8)])

    def of_rows(self, rows: Rows) -> words.Findings:
        """Return the findings of some rows."""
        codes = np.empty((len(self.variables), len(rows)), dtype=np.int32)
        take_codes(self.addresses, np.ascontiguousarray(rows), self.sizes, codes)
        return self.of_codes(codes)

    def of_codes(self, codes: npt.NDArray[np.int32], columns: Rows | slice = slice(None)) -> words.Findings:
        """Return the findings with some codes, int32 [columns, cases], of all columns or of some (ascending)."""
        variables = self.variables[columns]
        column = np.full(self._number, -1, dtype=np.int64)
        column[variables] = np.arange(len(variables))
        return words.Findings(variables, codes, self._masks, self._starts[columns], column)

    def rows_at_a_time(self, memory: int) -> int:
        """Return the rows whose findings, and their copies, take at most a part of some bytes."""
        return max(1, min(MOST_ROWS, memory // 4 // (16 * max(1, len(self.variables)))))


def answer_impossible(
    network: Network, batch: EvidenceBatch, rows: Rows, answers: Answers, memory: int, threads: int
) -> Rows:
    """Answer the impossible ones among some rows, and return the others, and those whose tree exceeds the memory.

    network: the network.
    batch: evidence.
    rows: int64, rows of the batch.
    answers: of the batch, written here.
    memory: bytes that this may take.
    threads: number of threads.
    """
    impossible = impossible_rows(network, batch, rows, Limits(memory, threads))
    if not impossible.any():
        return rows
    sizes = np.array([network.cardinalities[v] for v in answers.targets], dtype=np.int64)
    leave_impossible(rows[impossible], answers, sizes, threads)
    return rows[~impossible]


def impossible_rows(network: Network, batch: EvidenceBatch, rows: Rows, limits: Limits) -> Mask:
    """Return which of some rows have P(e) = 0, bool [rows]; False also where that takes more than allowed."""
    impossible = np.zeros(len(rows), dtype=np.bool_)
    # A byte of its support, and as many while it is made, for every entry of the network.
    entries = sum(factor.table.size for factor in network.factors)
    if 2 * entries > limits.memory:
        return impossible
    zeros = zeros_of(network)
    if zeros.supports.above.all():
        return impossible
    columns = FindingColumns(zeros, batch)
    limits = replace(limits, memory=limits.memory - entries)
    step, rooms = columns.rows_at_a_time(limits.memory), Rooms(zeros.supports.factors, columns.variables)
    for start in range(0, len(rows), step):
        here = slice(start, start + step)
        decision = decide(zeros.supports, columns.of_rows(rows[here]), limits, rooms)
        impossible[here] = decision.found == words.IMPOSSIBLE
    return impossible


@dataclass(frozen=True, eq=False, slots=True)
class Decision:
    """What is found of some cases.

    found: uint8 [cases], IMPOSSIBLE, POSSIBLE or TOO_LARGE of the kernel.
    culprits: uint8 [cases, columns], 1 for findings of impossible cases that are impossible together, which depend on
        the network and the case alone; no rows where nobody asked.
    """

    found: Bytes
    culprits: Bytes


class Rooms:
    """Memory of threads, kept from one decision to the next: to make it takes as long as a small block.

    factors: of the network.
    variables: of the columns of all findings that are decided.
    fixed: bytes of a thread without messages.
    """

    def __init__(self, factors: rowplan.Factors, variables: npt.NDArray[np.int64]) -> None:
        self._sizes = factors.graph, len(factors.starts) - 1, len(variables), int(factors.cards[variables].sum())
        self.fixed = words.room_bytes(*self._sizes)
        self._rooms: dict[int, words.Room] = {}

    def __len__(self) -> int:
        return len(self._rooms)

    def of(self, place: int) -> words.Room:
        """Return the memory of a thread."""
        if place not in self._rooms:
            self._rooms[place] = words.room(*self._sizes, 1)
        return self._rooms[place]

    def enlarge(self, place: int, entries: int) -> None:
        """Give a thread memory for messages of so many words."""
        self._rooms[place] = self._rooms[place]._replace(arena=np.zeros(entries, dtype=np.uint64))

    def limit(self, entries: int) -> None:
        """Take memory for messages of more words away."""
        for place, room in self._rooms.items():
            if room.arena.size > entries:
                self.enlarge(place, 1)

    def forget(self) -> None:
        """Forget trees, whose columns were others."""
        for room in self._rooms.values():
            room.counts[:] = 0

    def clear(self) -> None:
        """Give all memory back."""
        self._rooms.clear()


def operations_of(supports: words.Supports, findings: words.Findings, rooms: Rooms) -> float:
    """Return the word operations of the tree of all cases together, at most 64; inf if it is too large.

    Arguments as of `decide`.
    """
    cases = findings.codes.shape[1]
    asked = np.array([0, cases]), np.array([0, 2]), 1, (1 << 62), np.zeros(2), np.zeros(3)
    rooms.forget()
    chosen = possible.choose(supports.factors, findings, *asked, rooms.of(0))
    return float(asked[-1][1]) if chosen == 0 else math.inf


def decide(
    supports: words.Supports, findings: words.Findings, limits: Limits, rooms: Rooms, accuse: bool = False
) -> Decision:
    """Decide which cases are possible.

    supports: of the network.
    findings: of the cases.
    limits: what this may take.
    rooms: memory of threads, which is part of it.
    accuse: whether culprits are asked for.
    """
    columns, cases = findings.codes.shape
    found = np.full(cases, words.TOO_LARGE, dtype=np.uint8)
    culprits = np.zeros((cases if accuse else 0, columns), dtype=np.uint8)
    free = limits.memory - 3 * findings.codes.nbytes - 2 * culprits.nbytes
    if not cases or rooms.fixed > free:
        return Decision(found, culprits)
    order, patterns = _by_pattern(findings.codes, supports.factors.cards[findings.variables], accuse)
    if order is not None:
        findings = findings._replace(codes=np.ascontiguousarray(findings.codes[:, order]))
    _Blocks(supports, findings, replace(limits, memory=free), rooms, Decision(found, culprits)).decide(patterns)
    if order is None:
        return Decision(found, culprits)
    # Back from the order of patterns.
    result = Decision(np.empty_like(found), np.empty_like(culprits))
    result.found[order] = found
    if accuse:
        result.culprits[order] = culprits
    return result


def _by_pattern(codes: npt.NDArray[np.int32], sizes: npt.NDArray[np.int64], kinds: bool) -> tuple[Rows | None, Rows]:
    """Return the cases in an order in which equal patterns are neighbours, and where each pattern begins and ends.

    None for the order that they are in, where there is one pattern.

    kinds: whether a likelihood makes another pattern than a state.
    """
    patterns = _patterns(codes, sizes)
    is_soft = codes > sizes[:, None] if kinds else np.zeros((0, 0), dtype=np.bool_)
    if is_soft.any():
        patterns = np.vstack([patterns, _patterns(is_soft.astype(np.int32), np.zeros_like(sizes))])
    if (patterns == patterns[:, :1]).all():
        return None, np.array([0, codes.shape[1]])
    order = np.lexsort(patterns[::-1])
    arranged = patterns[:, order]
    is_new = (arranged[:, 1:] != arranged[:, :-1]).any(axis=0)
    return order, np.flatnonzero(np.concatenate([[True], is_new, [True]]))


def _patterns(codes: npt.NDArray[np.int32], sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Return which columns of some cases have findings, as bits, uint64 [words, cases]."""
    patterns = np.empty((-(-len(codes) // words.BITS), codes.shape[1]), dtype=np.uint64)
    possible.write_patterns(codes, sizes, patterns)
    return patterns


class _Blocks:
    """Cases, arranged by patterns, on their way through the kernel in blocks.

    supports, findings, limits: as of `decide`.
    rooms: memory of threads.
    decision: written.
    """

    def __init__(
        self, supports: words.Supports, findings: words.Findings, limits: Limits, rooms: Rooms, decision: Decision
    ) -> None:
        self._supports = supports
        self._findings = findings
        self._limits = limits
        self._rooms = rooms
        self._decision = decision

    def decide(self, patterns: Rows) -> None:
        """Decide all cases in the cheapest blocks; patterns: begins and end of each."""
        self._rooms.forget()
        cuts = self._cuts(patterns)
        # A single block has no choice.
        starts, seconds, largest = cuts[-1], 0.0, 0
        if len(starts) > 2 or len(cuts) > 1:
            chosen, best = self._choose(cuts, len(patterns) - 1)
            seconds = 1.0
            if chosen >= 0:
                starts, seconds, largest = cuts[chosen], best[0], int(best[2])
        fixed, memory = self._rooms.fixed, self._limits.memory
        worth = 1 + int(min(seconds, 1.0) / THREAD_SECONDS)
        threads = max(1, min(self._limits.threads, worth, len(starts) - 1, memory // (fixed + 8 * largest)))
        if len(self._rooms) * (fixed + 8 * largest) > memory:
            self._rooms.clear()
        most = (memory // max(threads, len(self._rooms)) - fixed) // 8
        self._rooms.limit(most)
        large = self._run(starts, threads, most)
        if large:
            # Blocks too large for the share of one thread may fit where one thread has all memory, a word of cases.
            self._rooms.clear()
            for block in large:
                self._run(_cut(starts[block : block + 2], words.BITS), 1, (memory - fixed) // 8)

    def _cuts(self, patterns: Rows) -> list[Rows]:
        """Return ways to cut the cases into blocks: where these begin, and the end."""
        cases = len(self._decision.found)
        sizes = (words.MOST_CASES, words.BITS) if cases > words.BITS else (words.BITS,)
        cuts = []
        if not len(self._decision.culprits):
            # Blocks of several patterns: what only some of their cases observe enters as a likelihood. Their trees
            # depend on all of these cases, and so would culprits.
            cuts = [_cut(np.array([0, cases]), size) for size in sizes]
        if len(patterns) > 2 or not cuts:
            cuts += [_cut(patterns, size) for size in sizes]
        return list({len(starts): starts for starts in cuts}.values())

    def _choose(self, cuts: Sequence[Rows], patterns: int) -> tuple[int, list[float]]:
        """Return the cheapest of some cuts, -1 where none is possible, its seconds, word operations and words."""
        edges, best = np.cumsum([0, *map(len, cuts)]), np.zeros(3)
        most = (self._limits.memory - self._rooms.fixed) // 8
        # Those of the package, whatever was measured: the cut of the cases changes no answer.
        trees, factors = shipped_figures().trees, self._supports.factors
        seconds = np.array([trees.word, trees.table])
        asked = (np.concatenate(cuts), edges, patterns, most, seconds, best, self._rooms.of(0))
        return int(possible.choose(factors, self._findings, *asked)), best.tolist()

    def _run(self, starts: Rows, threads: int, most: int) -> list[int]:
        """Decide some blocks in threads whose messages may take `most` words each; return those that take more."""
        begun, blocks = np.zeros(1, dtype=np.int64), len(starts) - 1
        # As if all blocks had been begun, so that a thread ends after the one that it is at.
        stop = partial(begun.fill, blocks)
        found = in_threads(lambda _, place: self._share(starts, begun, place, most), range(threads), threads, stop)
        return sorted(block for some in found for block in some)

    def _share(self, starts: Rows, begun: Rows, place: int, most: int) -> list[int]:
        """Decide blocks in a thread until all are begun; return those that are too large for it."""
        # A float in any case: compiled code is of one kind.
        operations, block = float(self._limits.operations), -1
        large: list[int] = []
        asked = self._supports, self._findings, starts, begun.ctypes.data
        while True:
            room = self._rooms.of(place)
            written = self._decision.found, self._decision.culprits
            block = possible.decide(*asked, block, operations, room, *written)
            if block < 0:
                return large
            needed = int(room.tree.nodes.counts[rowplan.ARENA]) * int(
                words.words_for(starts[block + 1] - starts[block])
            )
            if needed > most:
                large.append(block)
                block = -1
            else:
                # A quarter more than needed, so that not every following block reallocates.
                self._rooms.enlarge(place, min(most, needed + needed // 4))


def _cut(patterns: Rows, most: int) -> Rows:
    """Return where blocks of at most so many cases begin that keep within one pattern, and the end."""
    sizes = np.diff(patterns)
    if sizes.max(initial=0) <= most:
        return patterns
    counts = -(-sizes // most)
    # Number of each block within its pattern.
    numbers = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.append(np.repeat(patterns[:-1], counts) + most * numbers, patterns[-1])
