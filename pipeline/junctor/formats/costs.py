"""Tables of costs as factors, for the readers of toulbar2's files: a cost c becomes exp(-c), and a hard one 0.

Costs are added and factors multiplied, so that the log of a Markov network's entry is minus the cost of its states.
A double holds no exp(-c) from c = 746 on: a table with larger costs becomes several factors over the same variables,
whose logs add up to it, and whole numbers stay whole. Main class: `CostTables`; called by `wcsp` and `cfn`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from junctor.formats.text import MAX_FILLED
from junctor.model.errors import ModelError, Place
from junctor.model.network import DraftTable, table_size

# Of a cost, what one factor takes: products of two or three exp(-COST_OF_A_FACTOR) need no other range of numbers.
COST_OF_A_FACTOR = 200.0
# A cost beyond this would be hundreds of factors.
MAX_COST = 2.0**16


@dataclass
class CostTables:
    """Makes the factors of a file's cost functions; what they take that the file does not write out is limited.

    hard: costs from this on are hard; `math.inf` for none.
    """

    hard: float
    _left: int = field(default=MAX_FILLED, init=False)

    def filled(self, shape: Sequence[int], default: float, written: int, what: str, place: Place) -> _Costs:
        """Return a table of the default cost; raises ModelError for one that is too large.

        shape: sizes of its axes.
        written: how many of its entries the file has.
        what, place: the table in errors.
        """
        size = table_size(shape, what, place)
        self._take(
            size - min(written, size), f"{what} has {size:,} entries, but only {written:,} are written out", place
        )
        return np.full(size, default)

    def factors(self, scope: Sequence[str], costs: _Costs, what: str, place: Place) -> list[DraftTable]:
        """Return the factors whose product is exp(-costs), and 0 where they are hard.

        scope: names of the variables; costs: flat, the last variable fastest. A constant is never hard.
        what, place: the table in errors.
        """
        impossible = (costs >= self.hard) & bool(scope)
        soft = np.where(impossible, 0.0, costs)
        _refuse_costs(soft, what, place)
        factors = max(1, math.ceil(float(np.abs(soft).max(initial=0.0)) / COST_OF_A_FACTOR))
        self._take((factors - 1) * costs.size, f"{what} has large costs, and would be {factors:,} factors", place)
        drafts = []
        for _ in range(factors):
            part = np.clip(soft, -COST_OF_A_FACTOR, COST_OF_A_FACTOR)
            soft = soft - part
            drafts.append(DraftTable(scope, np.where(impossible, 0.0, np.exp(-part)), place))
        return drafts

    def _take(self, entries: int, what: str, place: Place) -> None:
        self._left -= entries
        if self._left < 0:
            raise ModelError(f"{what}; entries that a file does not write out may be {MAX_FILLED:,} in all", place)


_Costs = npt.NDArray[np.float64]


def _refuse_costs(costs: _Costs, what: str, place: Place) -> None:
    wrong = np.flatnonzero(~(np.abs(costs) <= MAX_COST))
    if wrong.size:
        found = float(costs[wrong[0]])
        raise ModelError(
            f"{what}: found the cost {found:.17g}, below the bound from which costs are hard, expected one of at most "
            f"{MAX_COST:,.0f}: divide all costs and the bound by the same number",
            place,
        )
