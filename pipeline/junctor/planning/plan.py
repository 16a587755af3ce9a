"""Plans: frozen records of the tables of a propagation, the steps that compute them, and when memory is freed.

Main class: Plan; built by `compile`, executed by the backends. A plan holds integers only, no arrays and no device.
Tables are numbered; a step makes one table or frees one.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Literal

from junctor.model.html import html_table
from junctor.planning.shape import Pattern, Shape

# Collect: towards the roots; distribute: away from them; total: P(e) at a root; product: an intermediate result.
Phase = Literal["collect", "distribute", "marginal", "total", "product"]


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a plan.

    scope: variables of its axes, in C order.
    entries: product of their cardinalities.
    per_case: whether every case has its own; otherwise all cases share it.
    """

    scope: tuple[int, ...]
    entries: int
    per_case: bool


@dataclass(frozen=True, slots=True)
class Potential:
    """Make the shared table `out`: the product of `factors`, none of which has an observed variable."""

    out: int
    factors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Slice:
    """Make the per-case table `out`: `factor` at the observed states of the case."""

    out: int
    factor: int


@dataclass(frozen=True, slots=True)
class Likelihood:
    """Make the per-case table `out`: the likelihood of each state of `variable`, all ones without evidence."""

    out: int
    variable: int


@dataclass(frozen=True, slots=True)
class Reduce:
    """Contract tables: multiply, sum (or maximise) over eliminated variables, then rescale.

    out: table of the result; its scope is what remains.
    operands: tables that are multiplied.
    eliminated: variables that are summed out, or maximised out for explanations.
    phase: what the result is for.
    level: number of reductions before it that depend on each other; those of one level are independent.
    """

    out: int
    operands: tuple[int, ...]
    eliminated: tuple[int, ...]
    phase: Phase
    level: int


@dataclass(frozen=True, slots=True)
class Free:
    """Free the memory of `table`."""

    table: int


Step = Potential | Slice | Likelihood | Reduce | Free


@dataclass(frozen=True)
class Plan:
    """The propagation of one evidence pattern.

    shape: cardinalities and scopes of the network.
    pattern: variables with evidence.
    tables: all tables, by number.
    steps: in the order of execution.
    marginals: (variable, table) pairs; a table divided by its sum is the posterior.
    totals: tables without axes, one for each component; their product with the constants is P(e).
    edges: (message up, message down, total) of every edge that carries both; the product of the messages sums to P(e)
        on the separator, which bounds the weight of terms lost by underflow.
    constants: factors whose variables are all observed, one number for each case.
    traceback: for explanations, indices of the maximising steps from the roots down.
    clique_entries: entries of each clique of the junction tree.
    criterion: name of the search that found the elimination order.
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

    def _repr_html_(self) -> str:
        largest = max(self.clique_entries, default=0)
        rows = [
            ("variables", len(self.shape.cardinalities)),
            ("variables with evidence", len(self.pattern.sliced | self.pattern.weighted)),
            ("cliques", len(self.clique_entries)),
            ("entries of the largest clique", f"{largest:,}"),
            ("steps", len(self.steps)),
            ("multiply-adds of a case", f"{self.case_operations:,}"),
            ("elimination order", self.criterion),
        ]
        return html_table("Plan", ("", ""), rows)

    def work(self, step: Reduce) -> int:
        """Return the multiply-adds of one case of `step`: entries of the joint scope times operands."""
        terms = math.prod(self.shape.cardinalities[v] for v in step.eliminated)
        return self.tables[step.out].entries * terms * max(1, len(step.operands))

    def reductions(self, per_case: bool) -> Iterator[Reduce]:
        """Yield the reductions of each case (`per_case`), or those done once for all cases."""
        for step in self.steps:
            if isinstance(step, Reduce) and self.tables[step.out].per_case == per_case:
                yield step

    @cached_property
    def case_operations(self) -> int:
        """Multiply-adds of one case."""
        return sum(self.work(step) for step in self.reductions(per_case=True))

    @cached_property
    def shared_operations(self) -> int:
        """Multiply-adds done once for the plan (messages that do not depend on evidence)."""
        return sum(self.work(step) for step in self.reductions(per_case=False))

    @property
    def operations(self) -> int:
        """Multiply-adds of a case whose messages are all its own."""
        return self.shared_operations + self.case_operations

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the pattern, the tables and what is done with them; equal for equal plans."""
        # Sets have no order.
        pattern = sorted(self.pattern.sliced), sorted(self.pattern.weighted)
        what = self.tables, self.steps, self.marginals, self.totals, self.edges, self.constants, self.traceback
        return hashlib.sha256(repr((pattern, *what)).encode()).hexdigest()

    @property
    def total_clique_entries(self) -> int:
        """Sum of the entries of all cliques: the usual size of a junction tree, though no clique is ever stored."""
        return sum(self.clique_entries)

    @property
    def levels(self) -> int:
        """Length of the longest chain of dependent reductions."""
        return max((step.level for step in self.steps if isinstance(step, Reduce)), default=-1) + 1

    def peak_case_entries(self) -> int:
        """Return the largest sum of entries and CASE_NUMBERS of the per-case tables alive at once for one case."""
        alive = peak = 0
        for step in self.steps:
            table = self.tables[step.table if isinstance(step, Free) else step.out]
            # Shared tables stay: they count once for a plan, not for a case.
            entries = table.entries + CASE_NUMBERS if table.per_case else 0
            alive += -entries if isinstance(step, Free) else entries
            peak = max(peak, alive)
        return peak

    def shared_entries(self) -> int:
        """Return the entries of all shared tables and sliced factors, which stay while the plan is in use."""
        tables = sum(table.entries for table in self.tables if not table.per_case)
        sliced = sum(self.shape.entries(self.shape.scopes[factor]) for factor in self.sliced_factors())
        # Each configuration of the observed variables has a scale and a smallest entry: at most twice as many as
        # entries.
        return tables + 3 * sliced

    def sliced_factors(self) -> list[int]:
        """Return the factors with an observed variable."""
        return [*(step.factor for step in self.steps if isinstance(step, Slice)), *self.constants]

    def to_json(self) -> str:
        """Return the plan as JSON; equal plans give equal text."""
        # Fields come by name, so that the text outlives changes of their order.
        record = asdict(self)
        # Sets have no order; JSON must be the same in every process.
        record["pattern"] = {name: sorted(members) for name, members in record["pattern"].items()}
        record["steps"] = [{"step": type(step).__name__.lower(), **asdict(step)} for step in self.steps]
        return json.dumps(record, sort_keys=True)


# Numbers of a per-case table in addition to its entries: a scale, two bounds on lost terms, its smallest entry above
# zero, and, until it is rescaled, its largest entry.
CASE_NUMBERS = 5
