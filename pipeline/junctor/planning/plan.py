"""Plans: frozen records that say what is computed from what, in which order, and when memory is given back.

A plan holds integers and nothing else: no arrays, no device. Tables are numbered; a step makes one table or frees one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from junctor.planning.shape import Pattern, Shape

Phase = Literal["collect", "distribute", "marginal", "total", "product"]


@dataclass(frozen=True, slots=True)
class Table:
    """An array [entries over `scope` in C order, cases]; without `per_case` all cases share it."""

    scope: tuple[int, ...]
    entries: int
    per_case: bool


@dataclass(frozen=True, slots=True)
class Potential:
    """Make a shared table: the product of `factors`, none of which has an observed variable."""

    out: int
    factors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Slice:
    """Make a table of each case: `factor` at that case's observed states."""

    out: int
    factor: int


@dataclass(frozen=True, slots=True)
class Likelihood:
    """Make a table of each case: the likelihood of the states of `variable`, all ones where there is no evidence."""

    out: int
    variable: int


@dataclass(frozen=True, slots=True)
class Reduce:
    """Contract `operands`: multiply, sum (or maximise) over `eliminated`, keep the axes of `out`; then rescale."""

    out: int
    operands: tuple[int, ...]
    eliminated: tuple[int, ...]
    phase: Phase
    level: int


@dataclass(frozen=True, slots=True)
class Free:
    """Give back the memory of `table`."""

    table: int


Step = Potential | Slice | Likelihood | Reduce | Free


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that propagation of one evidence pattern does.

    marginals: variable -> the table that becomes its posterior once divided by its sum.
    totals: the tables (one a component) whose values are the parts of P(e).
    edges: (message to the root, message back, total) of every edge that carries both; their product is P(e) on the
    separator, which tells what a lost term could have weighed.
    constants: factors without unobserved variables, single numbers of each case.
    traceback: for explanations, the steps from the roots down, each to be undone.
    """

    shape: Shape
    pattern: Pattern
    tables: tuple[Table, ...]
    steps: tuple[Step, ...]
    marginals: tuple[tuple[int, int], ...]
    totals: tuple[int, ...]
    edges: tuple[tuple[int, int, int], ...]
    constants: tuple[int, ...]
    traceback: tuple[int, ...]
    clique_entries: tuple[int, ...]
    criterion: str

    def work(self, step: Reduce) -> int:
        """Return the entry operations of one case of `step`: clique entries times operands."""
        terms = math.prod(self.shape.cardinalities[v] for v in step.eliminated)
        return self.tables[step.out].entries * terms * max(1, len(step.operands))

    def reductions(self, per_case: bool) -> Iterator[Reduce]:
        """Yield the reductions that are done for each case, or those that are done once for all."""
        for step in self.steps:
            if isinstance(step, Reduce) and self.tables[step.out].per_case == per_case:
                yield step

    @property
    def case_operations(self) -> int:
        """Entry operations that one case costs."""
        return sum(self.work(step) for step in self.reductions(per_case=True))

    @property
    def shared_operations(self) -> int:
        """Entry operations that are done once for the plan (messages that no case's evidence reaches)."""
        return sum(self.work(step) for step in self.reductions(per_case=False))

    @property
    def total_clique_entries(self) -> int:
        """Sum over cliques of their entries: the usual size of a junction tree, though no clique is ever stored."""
        return sum(self.clique_entries)

    @property
    def levels(self) -> int:
        """Number of reductions that have to wait for each other."""
        return max((step.level for step in self.steps if isinstance(step, Reduce)), default=-1) + 1

    def peak_case_entries(self) -> int:
        """Return the most entries of per-case tables, and numbers that go with them, alive at once for one case."""
        return self._peak(lambda table: table.entries + CASE_NUMBERS if table.per_case else 0)

    def shared_entries(self) -> int:
        """Return the entries of all shared tables and sliced factors; they stay for as long as the plan is in use."""
        tables = sum(table.entries for table in self.tables if not table.per_case)
        sliced = sum(self.shape.entries(self.shape.scopes[factor]) for factor in self.sliced_factors())
        # Each configuration of the observed variables has a scale and a least entry, at most as many as entries.
        return tables + 3 * sliced

    def sliced_factors(self) -> list[int]:
        """Return the factors that have an observed variable."""
        return [*(step.factor for step in self.steps if isinstance(step, Slice)), *self.constants]

    def _peak(self, entries: Any) -> int:
        alive = peak = 0
        for step in self.steps:
            if isinstance(step, Free):
                alive -= entries(self.tables[step.table])
            else:
                alive += entries(self.tables[step.out])
                peak = max(peak, alive)
        return peak

    def to_json(self) -> str:
        """Return the plan as JSON; equal plans give equal text."""
        record = asdict(self)
        record["pattern"] = {name: sorted(members) for name, members in record["pattern"].items()}
        record["steps"] = [{"step": type(step).__name__.lower(), **asdict(step)} for step in self.steps]
        return json.dumps(record, sort_keys=True)


# Beside its entries a per-case table carries a scale, two bounds on lost terms, its smallest entry above zero, and at
# first its largest entry.
CASE_NUMBERS = 5
