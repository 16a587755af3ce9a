"""Stored cliques in the memory of this machine: initial tables of a network, and the passes over them on the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from junctor_kernels.tables import stored
from junctor_kernels.tables.reference import DOUBLE, Algebra, exponents_of, logarithms, multiplied
from junctor_kernels.tables.views import View, boxes, place, view

from junctor.cliques.parts import Trace, measured
from junctor.model.network import Network
from junctor.planning.cliques import (
    CHUNK,
    COMPILED_ENTRIES,
    DOWN,
    EVIDENCE,
    UP,
    CliqueOperand,
    CliquePass,
    StoredClique,
    StoredPlan,
    passes,
)

Array = npt.NDArray[Any]
Likelihoods = Mapping[int, npt.NDArray[np.float64]]

# Arrays of CHUNK entries that kernels need in addition to the table.
CHUNK_ARRAYS = 4


class Kernels(NamedTuple):
    """What is done to a chunk of a table, as `junctor_kernels.tables.stored` specifies it."""

    scatter: Callable[[Array, View, Array], bool]
    reduce: Callable[[Array, View, Array], None]


@dataclass(eq=False, slots=True)
class CliqueOutcome:
    """Result of a propagation: the natural log of P(e) (-inf where it is 0), and whether any product lost digits."""

    log_evidence: float
    lost: bool


class CliqueExecutor(Protocol):
    """Holds the tables of a plan in one number format, somewhere, and calibrates them."""

    def propagate(self, likelihoods: Likelihoods) -> CliqueOutcome:
        """Calibrate all tables with a likelihood of each observed variable, the largest entry of each about 1."""

    def table(self, clique: int) -> Array:
        """Return the calibrated table of a clique, flat, in the order of its layout, up to a factor."""

    def sums(self, clique: int, wanted: Sequence[int]) -> Array:
        """Return the sums of the calibrated table of a clique for some of its variables, flat, in the order given."""


def kernels_for(algebra: Algebra, entries: int) -> Kernels:
    """Return the compiled kernels where the tables are worth it and the algebra has them, else those of NumPy."""
    # NumPy is the specification, and fast enough for small tables.
    if entries < COMPILED_ENTRIES or not algebra.tiny:
        return Kernels(
            lambda table, view, values: stored.scatter(table, view, values, algebra),
            lambda table, view, sums: stored.reduce(table, view, sums, algebra),
        )
    # Numba takes half a second to load, which whoever has a GPU or small tables is spared.
    from junctor_kernels.cpu import stored as stored_cpu

    return Kernels(stored_cpu.scatter, stored_cpu.reduce)


class Initial(NamedTuple):
    """The product of a clique's factors, flat, its largest entry about 1; and whether entries lost digits.

    exponent: a whole number, the power of two that it was divided by; logarithms are so much smaller.
    """

    table: Array
    exponent: float
    lost: bool


def natural_table(plan: StoredPlan, network: Network, clique: int, algebra: Algebra, kernels: Kernels) -> Initial:
    """Multiply the factors of a clique, in the natural order of its variables.

    Products are made in double precision whatever the format, and rounded once.
    """
    node, wide = plan.cliques[clique], algebra if not algebra.tiny else DOUBLE
    # Ones, or zeros in log space: a clique without factors stays like that.
    table = np.full(plan.entries(clique), wide.one, dtype=wide.dtype)
    exponent, lost = 0.0, False
    # In natural order; `initial_table` brings the separator to the front where the layout wants that.
    shape = [plan.sizes[v] for v in node.natural]
    for number in node.factors:
        factor = network.factors[number]
        values, scale, flushed = scaled(plain(factor.table.reshape(-1), wide), wide)
        exponent += scale
        lost |= flushed
        for box in boxes(shape, CHUNK):
            start, entries = place(shape, box)
            along = view(node.natural, box, factor.scope, plan.sizes)
            lost |= kernels.scatter(table[start : start + entries], along, values)
    product = rounded(table, algebra)
    return Initial(product.table, exponent + product.exponent, lost | product.lost)


def initial_table(
    plan: StoredPlan, network: Network, clique: int, algebra: Algebra, kernels: Kernels, trace: Trace | None = None
) -> Initial:
    """Return the product of a clique's factors in the order of its layout, its separator in front."""
    natural = natural_table(plan, network, clique, algebra, kernels)
    order = measured(trace, "preprocessing", in_layout)
    return natural._replace(table=order(natural.table, plan.cliques[clique], plan.sizes))


def in_layout(table: Array, node: StoredClique, sizes: Sequence[int]) -> Array:
    """Return a flat table in the order of a clique's layout: the swaps of the clique, as one transposition.

    table: in the natural order of the clique's variables.
    sizes: states of every variable.
    """
    # Without variables of one state, which move no entry: a clique may have more of them than an array has axes.
    natural, layout = ([v for v in scope if sizes[v] > 1] for scope in (node.natural, node.layout))
    ordered = table.reshape([sizes[v] for v in natural]).transpose([natural.index(v) for v in layout])
    return np.ascontiguousarray(ordered).reshape(-1)


def rounded(table: Array, algebra: Algebra) -> Initial:
    """Scale a table in double precision (or of logarithms), and round it to the format of an algebra."""
    table, exponent, lost = scaled(table, DOUBLE if algebra.tiny else algebra)
    with np.errstate(under="ignore"):
        result = table.astype(algebra.dtype, copy=False)
    return Initial(result, exponent, lost | bool(algebra.tiny and ((table > 0) & (result < algebra.tiny)).any()))


def plain(numbers: npt.NDArray[np.float64], algebra: Algebra) -> Array:
    """Return a copy of plain numbers, or their logarithms where an algebra wants those."""
    if algebra.tiny:
        return numbers.copy()
    with np.errstate(divide="ignore"):
        return np.log(numbers)


def scaled(table: Array, algebra: Algebra) -> tuple[Array, float, bool]:
    """Scale a table in place: its largest entry into [0.5, 1), or about 0 where it holds logarithms.

    Returns the table, the exponent of `Initial`, and whether an entry lost digits.
    """
    # This changes no digit, so that results do not depend on how often tables are scaled.
    exponent = float(exponents_of(table.max(), algebra))
    if not algebra.tiny:
        table -= exponent
        return table, exponent, False
    possible = table > 0
    with np.errstate(under="ignore"):
        np.ldexp(table, -int(exponent), out=table)
    return table, exponent, bool((possible & (table < algebra.tiny)).any())


def scaled_evidence(likelihoods: Likelihoods, algebra: Algebra) -> dict[int, Initial]:
    """Return the likelihoods in an algebra, the largest entry of each about 1."""
    return {v: rounded(plain(likelihood, algebra), algebra) for v, likelihood in likelihoods.items()}


def log_evidence(
    plan: StoredPlan,
    clique_exponents: Sequence[float],
    evidence: Mapping[int, Initial],
    up_exponents: Mapping[int, float],
    totals: Mapping[int, float],
    algebra: Algebra,
) -> float:
    """Return the natural log of P(e) from the exponents of all scales, and the totals of the roots before."""
    exponents, number, power = list(clique_exponents), np.full(1, algebra.one), np.zeros(1)
    # Children come before parents: what a clique was divided by reaches the root of its tree.
    for i, clique in enumerate(plan.cliques):
        exponents[i] += sum(evidence[v].exponent for v in clique.variables if v in evidence)
        if clique.parent is None:
            number, power = multiplied(number, power, np.array([totals[i]]), np.array([exponents[i]]), algebra)
        else:
            exponents[clique.parent] += exponents[i] + up_exponents[i]
    return float(logarithms(number, power, algebra)[0])


def projected_bytes(plan: StoredPlan, algebra: Algebra, copies: int) -> int:
    """Return the bytes that stored tables take on the host: `copies` of each, messages, and the work on the largest."""
    numbers, wide = range(len(plan.cliques)), DOUBLE.dtype.itemsize
    largest = max(plan.entries(i) for i in numbers)
    separators = [plan.separator_entries(i) for i in numbers]
    # The sums of a message are in memory with all messages; a table is made in double precision, in one order and then
    # in another, with marks of one byte where digits may get lost.
    messages = 2 * sum(separators) + max(separators)
    making = (2 * wide + 4) * largest
    scratch = CHUNK_ARRAYS * algebra.dtype.itemsize * min(CHUNK, largest)
    return algebra.dtype.itemsize * (copies * plan.total_entries() + messages) + max(making, scratch)


def table_sums(
    table: Array,
    scope: Sequence[int],
    wanted: Sequence[int],
    sizes: Sequence[int],
    algebra: Algebra,
    trace: Trace | None = None,
) -> Array:
    """Return the sums of a flat table for some of its variables, flat.

    scope: variables of the table, in the order of its axes.
    wanted: variables of the sums, likewise.
    sizes: states of every variable.
    """
    sums = np.full(math.prod(sizes[v] for v in wanted), algebra.zero, dtype=algebra.dtype)
    reduce, shape = measured(trace, "reduction", kernels_for(algebra, len(table)).reduce), [sizes[v] for v in scope]
    for box in boxes(shape, CHUNK):
        start, entries = place(shape, box)
        reduce(table[start : start + entries], view(scope, box, wanted, sizes), sums)
    return sums


class HostExecutor:
    """The tables in this machine's memory; passes run on the CPU, chunk by chunk.

    initial: of every clique.
    in_place: whether the initial tables themselves become the calibrated ones, so that they serve once.
    chunk: the most entries of a table that a kernel takes at a time.
    trace: gets the times of the kernels.
    """

    def __init__(
        self,
        plan: StoredPlan,
        initial: Sequence[Initial],
        algebra: Algebra,
        kernels: Kernels,
        in_place: bool = False,
        chunk: int = CHUNK,
        trace: Trace | None = None,
    ) -> None:
        self._plan = plan
        self._initial = initial
        self._algebra = algebra
        self._trace = trace
        scatter, reduce = measured(trace, "scattering", kernels.scatter), measured(trace, "reduction", kernels.reduce)
        self._kernels = Kernels(scatter, reduce)
        self._chunk = chunk
        self._tables = [table if in_place else np.empty_like(table) for table, _, _ in initial]

    def table(self, clique: int) -> Array:
        """Return the calibrated table of a clique."""
        return self._tables[clique]

    def sums(self, clique: int, wanted: Sequence[int]) -> Array:
        """Return the sums of a calibrated table for some of its variables."""
        scope = self._plan.cliques[clique].layout
        return table_sums(self._tables[clique], scope, wanted, self._plan.sizes, self._algebra, self._trace)

    def propagate(self, likelihoods: Likelihoods) -> CliqueOutcome:
        """Calibrate all tables."""
        evidence = scaled_evidence(likelihoods, self._algebra)
        values = {CliqueOperand(EVIDENCE, v): table for v, (table, _, _) in evidence.items()}
        lost = any(table.lost for table in (*self._initial, *evidence.values()))
        up_exponents, totals = {}, {}
        for work in chain.from_iterable(passes(self._plan, frozenset(likelihoods))):
            sums, flushed = self._pass(work, values)
            lost |= flushed
            for number, table in sums.items():
                # Upward sums are messages as they are; downward ones are divided by what came up.
                if number == work.clique:
                    totals[number] = float(table[0])
                    values[CliqueOperand(UP, number)], up_exponents[number], flushed = scaled(table, self._algebra)
                else:
                    change = stored.ratio(table, values[CliqueOperand(UP, number)], self._algebra)
                    values[CliqueOperand(DOWN, number)], _, flushed = scaled(change, self._algebra)
                lost |= flushed
        exponents = [table.exponent for table in self._initial]
        return CliqueOutcome(log_evidence(self._plan, exponents, evidence, up_exponents, totals, self._algebra), lost)

    def _pass(self, work: CliquePass, values: Mapping[CliqueOperand, Array]) -> tuple[dict[int, Array], bool]:
        """Go over a table once; returns the sums for each separator, and whether a product lost digits."""
        clique, plan, lost = self._plan.cliques[work.clique], self._plan, False
        shape = clique.shape(plan.sizes)
        sums = {i: np.full(plan.separator_entries(i), self._algebra.zero, dtype=self._algebra.dtype) for i in work.sums}
        for box in boxes(shape, self._chunk):
            start, entries = place(shape, box)
            chunk = self._tables[work.clique][start : start + entries]
            # Copied chunk by chunk, while it is in the cache for what follows.
            if work.first:
                chunk[...] = self._initial[work.clique].table[start : start + entries]
            for operand in work.factors:
                along = view(clique.layout, box, scope_of(plan, operand), plan.sizes)
                lost |= self._kernels.scatter(chunk, along, values[operand])
            for i, total in sums.items():
                self._kernels.reduce(chunk, view(clique.layout, box, plan.cliques[i].separator, plan.sizes), total)
        return sums, lost


def scope_of(plan: StoredPlan, operand: CliqueOperand) -> tuple[int, ...]:
    """Return the variables of what a pass multiplies by."""
    return (operand.number,) if operand.kind == EVIDENCE else plan.cliques[operand.number].separator
