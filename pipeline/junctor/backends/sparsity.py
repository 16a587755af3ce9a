"""Structural zeros: entries and terms that are zero whatever the evidence, and need not be computed.

Main class: NonzeroSupport, computed by `support_of` for the compiled CPU and GPU backends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.tables import reference
from junctor_kernels.tables.axes import Contraction

from junctor.planning.plan import Free, Likelihood, Potential, Reduce, Slice
from junctor.runtime.gc_pause import collector_paused

# Program refers to this module at run time.
if TYPE_CHECKING:
    from junctor.backends.numpy import Program

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


@collector_paused()
def support_of(program: Program) -> NonzeroSupport:
    """Return the support of all tables of a program, propagated through its plan step by step."""
    support = NonzeroSupport()
    for step in program.plan.steps:
        if isinstance(step, Free):
            continue
        if isinstance(step, Slice):
            # Evidence selects the column: an entry counts if it is positive in any of them.
            support.tables[step.out] = program.columns[step.out].table.max(axis=1) > program.algebra.zero
        elif isinstance(step, Likelihood):
            support.tables[step.out] = np.ones(program.plan.tables[step.out].entries, dtype=np.bool_)
        # Shared tables are computed already: their zeros are exact.
        elif isinstance(step, Potential) or step.out in program.shared:
            support.tables[step.out] = program.shared[step.out].table[:, 0] > program.algebra.zero
        else:
            counts = _terms(step, program, support.tables)
            support.tables[step.out] = counts > 0
            support.terms[step.out] = int(counts.sum())
    return support


def _terms(step: Reduce, program: Program, tables: Mapping[int, Mask]) -> npt.NDArray[np.floating]:
    """Return the number of terms of each kept entry that can differ from zero: a contraction of zeros and ones."""
    what = program.lowered[step.out].contraction
    masks = [tables[operand] for operand in program.lowered[step.out].operands]
    if what.kept_entries * what.eliminated_entries <= SMALL_CONTRACTION:
        return _small_counts(what, tuple(mask.tobytes() for mask in masks))
    return _counts(what, masks, program.contract)


@lru_cache(maxsize=REMEMBERED)
def _small_counts(what: Contraction, masks: tuple[bytes, ...]) -> npt.NDArray[np.floating]:
    return _counts(what, [np.frombuffer(mask, dtype=np.bool_) for mask in masks], reference.reduce)


def _counts(what: Contraction, masks: Sequence[Mask], contract: Contract) -> npt.NDArray[np.floating]:
    # Counted by the contraction itself, in doubles: exact up to 2^53 terms.
    ones = [mask.astype(np.float64)[:, None] for mask in masks]
    return contract(what, ones, reference.DOUBLE)[:, 0]
