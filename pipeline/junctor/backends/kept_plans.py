"""Plans of many or long rows, from process to process: laid out in a tenth of a second, and read in a quarter of that.

Main class: KeptPlans, set up by the router.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import astuple
from itertools import chain
from typing import Any

from junctor.model.network import Network
from junctor.planning.plan import Free, Likelihood, Plan, Potential, Reduce, Slice, Step, Table
from junctor.planning.shape import Pattern, Shape, shape_of
from junctor.runtime.cache import Cache

KIND = "plan"
# Part of the key: another way to plan, another number.
PLANNING = 4
# Plans of smaller networks are made in a few milliseconds, and there may be many of fewer rows, but not where each row
# takes so many operations. Of networks of more variables the digest takes longer than some rows.
LEAST_VARIABLES, LEAST_ROWS, LEAST_OPERATIONS, MOST_VARIABLES = 100, 1024, 1e8, 2000

_KINDS: tuple[type[Step], ...] = (Potential, Slice, Likelihood, Reduce, Free)


class KeptPlans:
    """Plans in a cache, by the digest of all that they depend on.

    cache: of the user.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def plan(
        self,
        network: Network,
        pattern: Pattern,
        targets: tuple[int, ...] | None,
        explain: bool,
        rows: int,
        make: Callable[[], Plan],
    ) -> Plan:
        """Return a plan, made unless it is kept.

        network: of the plan.
        make: compiles the plan.
        All others: as of `compile_plan`.
        """
        variables = len(network.variables)
        if variables < LEAST_VARIABLES or (rows < LEAST_ROWS and variables > MOST_VARIABLES):
            return make()
        key = PLANNING, network.digest, sorted(pattern.sliced), sorted(pattern.weighted), targets, explain, rows

        def parse(content: bytes) -> Plan:
            return _parsed(content, shape_of(network), pattern)

        def is_worth(plan: Plan) -> bool:
            return rows >= LEAST_ROWS or plan.operations >= LEAST_OPERATIONS

        return self._cache.kept(KIND, repr(key), parse, make, _to_bytes, is_worth)


def _to_bytes(plan: Plan) -> bytes:
    """Return the bytes of a plan without its shape and pattern."""
    record = {
        "tables": [astuple(table) for table in plan.tables],
        "steps": [(_KINDS.index(type(step)), *astuple(step)) for step in plan.steps],
        "pairs": (plan.marginals, plan.edges),
        "numbers": (plan.totals, plan.constants, plan.traceback, plan.clique_entries),
        "criterion": plan.criterion,
    }
    return json.dumps(record, separators=(",", ":")).encode()


def _parsed(content: bytes, shape: Shape, pattern: Pattern) -> Plan:
    """Return a plan for a pattern; raises ValueError for other bytes."""
    try:
        record = json.loads(content)
        tables = tuple(Table(tuple(scope), entries, per_case) for scope, entries, per_case in record["tables"])
        steps = tuple(map(_step, record["steps"]))
        marginals, edges = (tuple(map(tuple, pairs)) for pairs in record["pairs"])
        totals, constants, traceback, clique_entries = map(tuple, record["numbers"])
        plan = Plan(
            shape,
            pattern,
            tables,
            steps,
            marginals,
            totals,
            edges,
            constants,
            traceback,
            clique_entries,
            record["criterion"],
        )
        _check(plan)
        return plan
    except (KeyError, TypeError, IndexError, RecursionError) as error:
        raise ValueError(f"no plan: {error}") from error


def _step(record: list[Any]) -> Step:
    kind, *fields = record
    step: Step = _KINDS[kind](*(tuple(field) if isinstance(field, list) else field for field in fields))
    return step


def _check(plan: Plan) -> None:
    """Raise ValueError for numbers that are none of the plan's tables, of its factors or of its variables."""
    tables, factors, variables = set[int](), set(plan.constants), {v for table in plan.tables for v in table.scope}
    for step in plan.steps:
        match step:
            case Reduce(out, operands, eliminated):
                tables.update((out, *operands))
                variables.update(eliminated)
            case Potential(out, members):
                tables.add(out)
                factors.update(members)
            case Slice(out, factor):
                tables.add(out)
                factors.add(factor)
            case Likelihood(out, variable):
                tables.add(out)
                variables.add(variable)
            case Free(table):
                tables.add(table)
    tables.update(plan.totals, (table for _, table in plan.marginals), chain.from_iterable(plan.edges))
    variables.update(v for v, _ in plan.marginals)
    shape = plan.shape
    bounds = (tables, plan.tables), (factors, shape.scopes), (variables, shape.cardinalities)
    if not all(numbers <= set(range(len(those))) for numbers, those in bounds):
        raise ValueError("no plan: a number of nothing")
