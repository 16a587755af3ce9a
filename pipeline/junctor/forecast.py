"""What a batch of evidence will take, known before any of it is propagated."""

from __future__ import annotations

from dataclasses import dataclass

from junctor.engine import LADDERS, Engine
from junctor.evidence.batch import EvidenceBatch
from junctor.memory import COMPILED_OPERATION_SECONDS, OPERATION_SECONDS, Memory
from junctor.planning.budget import Budget
from junctor.planning.compile import DEFAULT_EFFORT
from junctor.planning.elimination import best_order, moral_graph
from junctor.planning.junction_tree import JunctionTree, junction_tree
from junctor.planning.plan import Plan
from junctor.planning.shape import Shape, mask_of
from junctor.results import answer_width

# What a row takes beside its arithmetic: reading its evidence and writing its answers.
ROW_SECONDS = 5e-6


@dataclass(frozen=True, slots=True)
class Forecast:
    """One evidence pattern of a batch: rows, plan, bytes that it needs at least and will take, and on which backend."""

    rows: int
    plan: Plan
    least: int
    projected: int
    compiled: bool = False

    @property
    def operations(self) -> int:
        """Entry operations of all its rows."""
        return self.plan.shared_operations + self.rows * self.plan.case_operations

    @property
    def seconds(self) -> float:
        """Seconds of one core for all its rows; coarse."""
        operation = COMPILED_OPERATION_SECONDS if self.compiled else OPERATION_SECONDS
        return self.operations * operation + self.rows * ROW_SECONDS


def forecast(engine: Engine, batch: EvidenceBatch) -> list[Forecast]:
    """Return a forecast for each pattern, most work first; raises BudgetError where one does not fit."""
    explain = engine.query.kind == "mpe"
    formats = 1 if explain else len(LADDERS[engine.query.precision])
    itemsize = 4 if engine.query.precision == "single" and not explain else 8
    budget = Budget(engine.allowed, batch.rows * answer_width(engine.network, engine.query))
    found = []
    for pattern, rows in engine.groups(batch):
        plan = engine.plan(pattern, len(rows))
        memory = Memory(plan, formats, compiles=not explain and engine.query.precision != "log")
        memory.fit(budget, budget.free, len(rows), len(rows) * engine.rows // batch.rows)
        projected = memory.projected(itemsize) + budget.reserved
        found.append(Forecast(len(rows), plan, memory.least + budget.reserved, projected, memory.lanes > 0))
    return sorted(found, key=lambda each: -each.operations)


def tree_of(shape: Shape) -> JunctionTree:
    """Return the junction tree of all variables, as it is without evidence."""
    everything = range(len(shape.cardinalities))
    graph = moral_graph(len(everything), shape.scopes)
    return junction_tree(best_order(graph, mask_of(everything), shape.cardinalities, DEFAULT_EFFORT), shape)
