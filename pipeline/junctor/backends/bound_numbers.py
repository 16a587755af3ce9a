"""Numbers that a plan is bound to. Main class: BoundNumbers, made by `backends.numpy`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from junctor.backends.scaled_table import Floats, ScaledTable, Table
from junctor.planning.plan import Plan


@dataclass(frozen=True, eq=False, slots=True)
class FactorColumns:
    """A factor as a matrix, scaled column by column; a case reads the column of its observed states.

    Where all variables of a factor are observed, its entries are in double precision.

    table: [configurations of free variables, configurations of observed ones].
    exponent, least: float64 [columns], as in ScaledTable.
    observed: observed variables of the factor.
    radices: stride of each of them in the number of a column.
    """

    table: Table
    exponent: Floats
    least: Floats
    observed: tuple[int, ...]
    radices: tuple[int, ...]

    def at(self, states: Mapping[int, npt.NDArray[np.integer]], cases: int) -> npt.NDArray[np.int64]:
        """Return the column of every case; states: observed variable -> integers [cases]."""
        column = np.zeros(cases, dtype=np.int64)
        for variable, radix in zip(self.observed, self.radices, strict=True):
            column += np.multiply(states[variable], radix, dtype=np.int64)
        return column


@dataclass(frozen=True, eq=False, slots=True)
class BoundNumbers:
    """What a program has of a network.

    shared: table -> its numbers, of all tables that cases share.
    columns: of sliced factors, in the order of their steps, then of the constants.
    growth: float64 [reductions], growth of losses.
    """

    shared: dict[int, ScaledTable]
    columns: list[FactorColumns]
    growth: Floats


def cut_scope(plan: Plan, factor: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the free and the observed variables of a factor."""
    scope, sliced = plan.shape.scopes[factor], plan.pattern.sliced
    return tuple([v for v in scope if v not in sliced]), tuple([v for v in scope if v in sliced])


def radices_of(plan: Plan, observed: tuple[int, ...]) -> tuple[int, ...]:
    """Return the stride of each observed variable of a factor in the number of its column."""
    return tuple([plan.shape.entries(observed[i + 1 :]) for i in range(len(observed))])
