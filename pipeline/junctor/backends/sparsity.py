"""Structural zeros: entries and terms that are zero whatever the evidence, and need not be computed.

Main class: NonzeroSupport, computed by `support_of` for the compiled CPU and GPU backends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.tables import reference
from junctor_kernels.tables.axes import Contraction, contraction

from junctor.backends.scaled_table import ScaledTable
from junctor.model.network import Network
from junctor.planning.plan import Free, Likelihood, Plan, Potential, Slice
from junctor.runtime.gc_pause import collector_paused

Mask = npt.NDArray[np.bool_]
Contract = Callable[[Contraction, Sequence[npt.NDArray[Any]], reference.Algebra], npt.NDArray[Any]]

# Terms that a program may list explicitly: 16 MiB of int32.
MOST_LISTED = 1 << 22
# Terms that are tested at a time.
LISTING_ENTRIES = 1 << 18
# Results for contractions of at most so many terms are cached: plans of one network share most of their small
# contractions, and repeat some of them many times.
SMALL_CONTRACTION = 1024
# Number of cached contractions.
REMEMBERED = 8192


@dataclass(eq=False)
class NonzeroSupport:
    """Entries of tables and terms of reductions that can differ from zero.

    tables: table -> bool [entries].
    terms: table of a reduction -> number of pairs of a kept entry and an eliminated index.
    """

    tables: dict[int, Mask] = field(default_factory=dict)
    terms: dict[int, int] = field(default_factory=dict)
    _names: dict[int, bytes] = field(default_factory=dict)

    def name(self, table: int) -> bytes:
        """Return the entries of a table as bytes, for caches."""
        if table not in self._names:
            self._names[table] = self.tables[table].tobytes()
        return self._names[table]

    def add(self, table: int, what: Contraction, operands: Sequence[int], contract: Contract) -> int:
        """Add the table of a contraction and return its number of terms that can differ from zero."""
        pairs = what.kept_entries * what.eliminated_entries
        if pairs <= SMALL_CONTRACTION:
            names = tuple(map(self.name, operands))
            self.tables[table], self._names[table], terms = _small_support(what, names)
            return terms
        masks = [self.tables[operand] for operand in operands]
        if pairs <= LISTING_ENTRIES:
            self.tables[table], terms = _support(what, masks)
            return terms
        counts = _counts(what, masks, contract)
        self.tables[table] = counts > 0
        return int(counts.sum())


@collector_paused()
def support_of(
    plan: Plan,
    network: Network,
    shared: Mapping[int, ScaledTable],
    lowered: Mapping[int, tuple[Contraction, Sequence[int]]],
    zero: float,
    contract: Contract,
) -> NonzeroSupport:
    """Return the support of all tables of a plan, propagated through it step by step; the same in every number format.

    network: with the numbers of all factors.
    shared: table -> its numbers, where no evidence changes them.
    lowered: table of a reduction -> its contraction and operands.
    zero: of the algebra of the shared numbers.
    contract: contracts tables of zeros and ones.
    """
    sizes = dict(enumerate(plan.shape.cardinalities))
    support = NonzeroSupport()
    for step in plan.steps:
        if isinstance(step, Free):
            continue
        if isinstance(step, Slice):
            # Evidence selects the column: an entry counts if it is positive in any of them.
            factor = network.factors[step.factor]
            observed = tuple(axis for axis, v in enumerate(factor.scope) if v in plan.pattern.sliced)
            support.tables[step.out] = (factor.table > 0).any(axis=observed).ravel()
        elif isinstance(step, Likelihood):
            support.tables[step.out] = np.ones(plan.tables[step.out].entries, dtype=np.bool_)
        # Shared tables are computed already, and their zeros are exact where nothing was lost.
        elif step.out in shared and not shared[step.out].lost.any():
            support.tables[step.out] = shared[step.out].table[:, 0] > zero
        elif isinstance(step, Potential):
            factors = [network.factors[i] for i in step.factors]
            what = contraction(plan.tables[step.out].scope, (), [factor.scope for factor in factors], sizes)
            support.tables[step.out] = _counts(what, [factor.table.ravel() > 0 for factor in factors], contract) > 0
        else:
            what, operands = lowered[step.out]
            terms = support.add(step.out, what, operands, contract)
            if step.out not in shared:
                support.terms[step.out] = terms
    return support


@lru_cache(maxsize=REMEMBERED)
def _small_support(what: Contraction, names: tuple[bytes, ...]) -> tuple[Mask, bytes, int]:
    """Return the entries of a contraction that can differ from zero, also as bytes, and the number of such terms."""
    mask, terms = _support(what, names)
    return mask, mask.tobytes(), terms


def _support(what: Contraction, masks: Sequence[Mask | bytes]) -> tuple[Mask, int]:
    terms = nonzero_terms(what, masks)
    return np.logical_or.reduce(terms, axis=1), int(np.count_nonzero(terms))


def nonzero_terms(what: Contraction, masks: Sequence[Mask | bytes]) -> npt.NDArray[np.bool_]:
    """Return the terms that can differ from zero, bool [kept entries, eliminated entries].

    what: the contraction.
    masks: entries of its operands that can differ from zero, bool or as bytes.
    """
    shape = (*what.kept, *what.eliminated)
    result = np.ones(shape, np.bool_)
    for mask, strides in zip(masks, what.operands, strict=True):
        result &= np.ndarray(shape, np.bool_, mask, 0, (*strides.kept, *strides.eliminated))
    return result.reshape(what.kept_entries, what.eliminated_entries)


def _counts(what: Contraction, masks: Sequence[Mask], contract: Contract) -> npt.NDArray[np.floating]:
    """Return the number of terms of each kept entry that can differ from zero: a contraction of zeros and ones."""
    # Counted by the contraction itself, in doubles: exact up to 2^53 terms.
    ones = [mask.astype(np.float64)[:, None] for mask in masks]
    return contract(what, ones, reference.DOUBLE)[:, 0]
