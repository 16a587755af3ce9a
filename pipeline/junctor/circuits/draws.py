"""Exact draws from the circuit of a row. Main class: CircuitDraws, made by `CircuitProgram.draws`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from junctor_kernels.circuits.draws import draw_states
from junctor_kernels.circuits.nodes import FlatCircuit


@dataclass(frozen=True, eq=False, slots=True)
class CircuitDraws:
    """P(all variables | e) of one row, to draw from; auxiliary variables, which circuits sum out, are left at 0.

    circuit: its nodes.
    numbers, variables: int32 [indicators], the state that each stands for, and its variable, -1 for none.
    bounds: float64 [edges], running shares of the terms of each sum.
    choices: random numbers that a draw takes at most.
    size: number of variables.
    fixed: states that the row observes, and the circuit does not have.
    """

    circuit: FlatCircuit
    numbers: npt.NDArray[np.int32]
    variables: npt.NDArray[np.int32]
    bounds: npt.NDArray[np.float64]
    choices: int
    size: int
    fixed: tuple[tuple[int, int], ...]

    def draw(self, chances: npt.NDArray[np.float64]) -> npt.NDArray[np.int32]:
        """Return draws, int32 [variables, draws].

        chances: float64 [draws, choices], random numbers from 0 to below 1.
        """
        states = np.zeros((self.size, len(chances)), dtype=np.int32)
        for v, state in self.fixed:
            states[v] = state
        waiting = np.zeros(len(self.circuit.children) + 1, dtype=np.int64)
        draw_states(self.circuit, self.numbers, self.variables, self.bounds, chances, waiting, states)
        return states
