"""Where the tables of a program can differ from zero, whatever the evidence: what need not be computed at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from junctor_kernels import reference

from junctor.planning.plan import Free, Likelihood, Potential, Reduce, Slice

if TYPE_CHECKING:
    from junctor.propagation import Program

Mask = npt.NDArray[np.bool_]

# Terms that a program may list for the compiled backend, and entries that are looked at together for that.
MOST_LISTED = 1 << 22
LISTING_ENTRIES = 1 << 18


@dataclass(eq=False)
class Support:
    """The entries of every table that can differ from zero, and the terms of every reduction that can.

    tables: table -> bool [entries]. terms: reduction, by its table -> pairs of a kept entry and an eliminated index.
    """

    tables: dict[int, Mask] = field(default_factory=dict)
    terms: dict[int, int] = field(default_factory=dict)


def support_of(program: Program) -> Support:
    """Propagate what is not zero through the plan; a likelihood may be positive everywhere, a slice in any column."""
    support = Support()
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
    lowered = program.lowered[step.out]
    ones = [tables[operand].astype(np.float64)[:, None] for operand in lowered.operands]
    return reference.reduce(lowered.contraction, ones, reference.DOUBLE, program.scratch_entries)[:, 0]
