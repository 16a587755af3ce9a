"""Where the tables of a program can differ from zero, whatever the evidence: what need not be computed at all."""

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

if TYPE_CHECKING:
    from junctor.backends.numpy import Program

Mask = npt.NDArray[np.bool_]
Contract = Callable[[Contraction, Sequence[npt.NDArray[Any]], reference.Algebra], npt.NDArray[Any]]

# Terms that a program may list for the compiled backend, and entries that are looked at together for that.
MOST_LISTED = 1 << 22
LISTING_ENTRIES = 1 << 18
# What is found out about contractions of at most so many terms is kept, for so many of them: plans of one network share
# most of their small contractions, and have some of them many times.
SMALL_CONTRACTION = 1024
REMEMBERED = 8192


@dataclass(eq=False)
class NonzeroSupport:
    """The entries of every table that can differ from zero, and the terms of every reduction that can.

    tables: table -> bool [entries]. terms: reduction, by its table -> pairs of a kept entry and an eliminated index.
    """

    tables: dict[int, Mask] = field(default_factory=dict)
    terms: dict[int, int] = field(default_factory=dict)


@collector_paused()
def support_of(program: Program) -> NonzeroSupport:
    """Propagate what is not zero through the plan; a likelihood may be positive everywhere, a slice in any column."""
    support = NonzeroSupport()
    for step in program.plan.steps:
        if isinstance(step, Free):
            continue
        if isinstance(step, Slice):
            support.tables[step.out] = program.columns[step.out].table.max(axis=1) > program.algebra.zero
        elif isinstance(step, Likelihood):
            support.tables[step.out] = np.ones(program.plan.tables[step.out].entries, dtype=np.bool_)
        elif isinstance(step, Potential) or step.out in program.shared:
            support.tables[step.out] = program.shared[step.out].table[:, 0] > program.algebra.zero
        else:
            counts = _terms(step, program, support.tables)
            support.tables[step.out] = counts > 0
            support.terms[step.out] = int(counts.sum())
    return support


def _terms(step: Reduce, program: Program, tables: Mapping[int, Mask]) -> npt.NDArray[np.floating]:
    """Return for each kept entry how many of its terms can differ from zero: the sum over them of ones."""
    what = program.lowered[step.out].contraction
    masks = [tables[operand] for operand in program.lowered[step.out].operands]
    if what.kept_entries * what.eliminated_entries <= SMALL_CONTRACTION:
        return _small_counts(what, tuple(mask.tobytes() for mask in masks))
    return _counts(what, masks, program.contract)


@lru_cache(maxsize=REMEMBERED)
def _small_counts(what: Contraction, masks: tuple[bytes, ...]) -> npt.NDArray[np.floating]:
    return _counts(what, [np.frombuffer(mask, dtype=np.bool_) for mask in masks], reference.reduce)


def _counts(what: Contraction, masks: Sequence[Mask], contract: Contract) -> npt.NDArray[np.floating]:
    ones = [mask.astype(np.float64)[:, None] for mask in masks]
    return contract(what, ones, reference.DOUBLE)[:, 0]
