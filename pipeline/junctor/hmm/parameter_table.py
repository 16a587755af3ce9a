"""Parameters of a model before and after a fit, as a table with the columns of those of networks.

Main class: Estimates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from junctor.hmm.parameters import ChainParameters
from junctor.learning.expectation import Floats
from junctor.learning.parameter_table import PARAMETERS_SCHEMA

# What a state that a distribution is of is called among the parents.
STATE = "state"


@dataclass(frozen=True, eq=False, slots=True)
class Estimates:
    """Parameters of a model before and after a fit.

    parameters: their layout.
    before, after: float64, probabilities.
    counts: float64, expected ones of the sequences, after.
    errors: float64, standard errors; None if they were not asked for.
    """

    parameters: ChainParameters
    before: Floats
    after: Floats
    counts: Floats
    errors: Floats | None = None

    def names(self, numbers: npt.NDArray[np.int64]) -> list[tuple[str, str, str]]:
        """Return part, state or symbol, and the state that it is given (of a start none), of parameters by number."""
        model = self.parameters.model
        found: list[tuple[str, str, str]] = []
        for part, row, column in self.parameters.places(numbers):
            names = model.symbol_names if part == "emission" else model.state_names
            given = "" if row < 0 else model.state_names[row] if model.state_names else str(row)
            found.append((part, names[column] if names else str(column), given))
        return found

    def table(self) -> pa.Table:
        """Return a row for each parameter: the part as `variable`, and its state, if it has one, as parent `state`."""
        names = self.names(np.arange(len(self.after)))
        columns = [
            [part for part, _, _ in names],
            [[{"variable": STATE, "state": given}] if given else [] for _, _, given in names],
            [name for _, name, _ in names],
            *(pa.array(column) for column in (self.before, self.after, self.counts)),
            pa.nulls(len(names), pa.float64()) if self.errors is None else pa.array(self.errors),
        ]
        return pa.Table.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, PARAMETERS_SCHEMA, strict=True)],
            schema=PARAMETERS_SCHEMA,
        )
