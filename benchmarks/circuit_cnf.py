"""Bayesian networks as weighted CNF, which counters of models read. Main function: `weighted_cnf`.

A variable of two states is one of the formula, others have one for each state. Each distinct row of a table has chance
variables, after Sang, Beame and Kautz (Performing Bayesian inference by weighted model counting, AAAI 2005): a row with
n states above zero has n - 1 of them, each of which decides between the next state and those after it. They sum to one
where other rows apply, so that the weights of all models sum to P(e).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from junctor.model.network import Network

Clause = Sequence[int]
Floats = npt.NDArray[np.float64]


def weighted_cnf(network: Network, observed: Mapping[int, int]) -> str:
    """Return P(e) in the form of the Model Counting Competition (DIMACS); barren variables are left out.

    observed: variable -> state.
    """
    formula = _Formula()
    relevant = _ancestors(network, observed)
    literals = {v: formula.states(network.cardinalities[v]) for v in relevant}
    for v in relevant:
        *parents, _ = network.factors[v].scope
        table = network.factors[v].table
        rows: dict[bytes, list[int]] = {}
        for states in np.ndindex(*table.shape[:-1]):
            unless = [-literals[parent][state] for parent, state in zip(parents, states, strict=True)]
            row = table[states]
            if row.tobytes() not in rows:
                rows[row.tobytes()] = formula.chances(row[row > 0])
            formula.choose(unless, rows[row.tobytes()], [literals[v][state] for state in np.flatnonzero(row)])
    formula.clauses += [[literals[v][state]] for v, state in observed.items()]
    return str(formula)


def _ancestors(network: Network, variables: Mapping[int, int]) -> list[int]:
    """Return variables and their ancestors; the factor of each of a Bayesian network is that of its number."""
    found, waiting = set(variables), list(variables)
    while waiting:
        new = set(network.factors[waiting.pop()].scope) - found
        found |= new
        waiting += new
    return sorted(found)


class _Formula:
    """Clauses and weights of literals, which grow."""

    def __init__(self) -> None:
        self.clauses: list[Clause] = []
        self._weights: list[tuple[int, float]] = []
        self._count = 0

    def states(self, count: int) -> list[int]:
        """Return the literals of the states of a new variable, of which one is true."""
        if count == 2:
            (second,) = self._new(1)
            return [-second, second]
        literals = self._new(count)
        self.clauses.append(literals)
        self.clauses += [[-one, -other] for i, one in enumerate(literals) for other in literals[:i]]
        return literals

    def chances(self, numbers: Floats) -> list[int]:
        """Return chance variables for the numbers above zero of a row."""
        chances = self._new(len(numbers) - 1)
        for i, chance in enumerate(chances):
            taken, rest = float(numbers[i]), float(numbers[i + 1 :].sum())
            self._weights += [(chance, taken / (taken + rest)), (-chance, rest / (taken + rest))]
        return chances

    def choose(self, unless: Clause, chances: Sequence[int], literals: Sequence[int]) -> None:
        """Add what chances imply for the states of a row, unless some literal is true."""
        for i, literal in enumerate(literals):
            self.clauses.append([*unless, *chances[:i], *(-chance for chance in chances[i : i + 1]), literal])

    def _new(self, count: int) -> list[int]:
        self._count += count
        return list(range(self._count - count + 1, self._count + 1))

    def __str__(self) -> str:
        lines = ["c t wmc", f"p cnf {self._count} {len(self.clauses)}"]
        lines += [f"c p weight {literal} {weight!r} 0" for literal, weight in self._weights]
        lines += [f"{' '.join(map(str, clause))} 0" for clause in self.clauses]
        return "\n".join(lines) + "\n"
