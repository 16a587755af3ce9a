"""Rows of a network whose tables are full of zeros and equal entries, by an arithmetic circuit.

One circuit serves every row whatever it observes. Where the network has none within the limits, what all rows of a
group observe alike is fixed in one, and at last each row gets a circuit of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from junctor.circuits.limits import MOST_DECISIONS, SearchLimits, refused
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch, Rows
from junctor.evidence.patterns import PatternGroup
from junctor.model.answers import Answers
from junctor.model.question import EVERY_NEED
from junctor.model.strategies import Strategy
from junctor.strategies.facts import Facts, cached
from junctor.strategies.strategy import Allowance, MemoryUse, Offer, Price, Route, Run, Way

if TYPE_CHECKING:
    from junctor.circuits.compile import Circuit
    from junctor.circuits.parts import CircuitParts

# Circuits that stay in memory; decisions of the search for the circuit of one row, and for one of some targets.
KEPT_CIRCUITS, ROW_DECISIONS, PART_DECISIONS = 8, 64_000, 16_000
# Rows to come that are so few that what they observe alike is fixed first: it makes a circuit far smaller.
FEW = 8


class CircuitRows(Way):
    """Sums and products of a circuit, for blocks of cases on cores or on a GPU."""

    name = Strategy.CIRCUIT
    supports = EVERY_NEED

    def refuses(self, facts: Facts) -> str | None:
        """Networks with long lists of states or large tables have none."""
        if facts.explains and facts.network.hidden:
            return "circuits do not explain networks with noisy nodes"
        if facts.explains and facts.asks_gpu:
            return "circuits explain on CPUs, and a GPU is asked for"
        return refused(facts.network, facts.network.factors)

    def offer(self, group: PatternGroup, batch: EvidenceBatch, facts: Facts) -> Offer | str:
        """By the circuit for all rows, where one is known: nothing is searched for."""
        kept = (found for _, found in facts.store.circuits.values())
        found = [each for each in kept if not isinstance(each, str) and not each.fixed]
        if not found:
            return "no circuit was searched for: trees take less time than that"
        return Offer(group, Price(row=row_seconds(found[0], facts)))

    def prepare(self, group: PatternGroup, uses: int, batch: EvidenceBatch, facts: Facts, room: Allowance) -> Route:
        """Search, unless it was done."""
        found = program_of(group.rows, batch, facts, MOST_DECISIONS)
        reserved, edges = room.budget.reserved, 0
        reason, size = "a circuit for each row: there is none for all of them", 0
        on_gpu = room.gpu is not None and not facts.explains
        if not isinstance(found, str):
            edges, size = found.edges, found.nbytes + facts.threads * found.block_bytes
            size += found.gpu_host_bytes(batch, len(group.rows)) if on_gpu else 0
            fixed = f", what all rows observe alike fixed ({len(found.fixed):,})" if found.fixed else ""
            parts = f", {len(found.programs):,} parts of the targets" if len(found.programs) > 1 else ""
            reason = (
                f"a circuit of {edges:,} edges for all rows{fixed}{parts}: zeros and equal entries leave little work"
            )
        if size > room.budget.free:
            raise room.budget.refuse(size, "a circuit", "allow more memory")
        memory = MemoryUse(facts.allowed, reserved, reserved + size, reserved + size)
        operations = 2 * edges * len(group.rows)
        reason = facts.reason(self.name, reason)
        return Route(group, self.name, reason, memory, operations=operations, circuit_on_gpu=on_gpu)

    def forecast(self, route: Route, batch: EvidenceBatch, facts: Facts, bound: int) -> Route:
        """By the edges of the circuit."""
        found = program_of(route.group.rows, batch, facts, MOST_DECISIONS)
        rows = len(route.group.rows)
        if isinstance(found, str):
            seconds = rows * facts.figures.circuits.row
        else:
            seconds = rows * (gpu_row_seconds if route.circuit_on_gpu else row_seconds)(found, facts)
        seconds += route.rows * facts.figures.files.row
        return replace(route, seconds=seconds, work={"operations": float(route.operations)})

    def answer(self, work: Sequence[Route], batch: EvidenceBatch, answers: Answers, run: Run) -> Rows:
        """In blocks of cases, side by side; rows without a circuit are left."""
        left = [row for route in work for row in _answer(route.group.rows, batch, answers, run)]
        return np.array(left, dtype=np.int64)


def row_seconds(program: CircuitParts, facts: Facts) -> float:
    """Return the seconds of a row on one core."""
    near = program.block_bytes <= facts.cpu_costs.cache
    figures = facts.figures.circuits
    return program.edges * (figures.edge if near else figures.far_edge)


def gpu_row_seconds(program: CircuitParts, facts: Facts) -> float:
    """Return the seconds of a row on the GPU at hand: of edges, or of answers on their way where they take longer."""
    rates = facts.gpu_costs.figures.gpu_rates
    return max(program.edges / rates.edges, facts.answer_bytes(1) / rates.answers)


def is_for_gpu(program: CircuitParts, rows: int, facts: Facts) -> bool:
    """Return True if a GPU answers so many rows: where it is asked for, or done sooner than the cores."""
    if facts.explains or not facts.takes_gpu:
        return False
    there = facts.gpu_host.start + rows * gpu_row_seconds(program, facts)
    return facts.asks_gpu or there < rows * row_seconds(program, facts) / facts.threads


def program_of(rows: Rows, batch: EvidenceBatch, facts: Facts, decisions: int) -> CircuitParts | str:
    """Return the circuit that answers all of some rows, or why there is none.

    decisions: that a search may take, of one order.
    """
    alike = fixed_states(rows, batch)
    found: CircuitParts | str = ""
    # What is fixed makes circuits smaller: without one of few rows there is none for all.
    for fixed in [alike] if facts.to_come(batch, len(rows)) <= FEW else [{}, alike][: 2 if alike else 1]:
        found = _program(fixed, rows, batch, facts, decisions)
        if not isinstance(found, str):
            break
    return found


def fixed_states(rows: Rows, batch: EvidenceBatch) -> dict[int, int]:
    """Return what all of some rows observe alike: variable -> state."""
    found = dict[int, int]()
    if not rows.size:
        return found
    for v, states in batch.states.items():
        first = states[rows[0]]
        # Most columns differ in their ends.
        if first != UNOBSERVED and states[rows[-1]] == first and (states[rows] == first).all():
            found[v] = int(first)
    return found


def _program(
    fixed: dict[int, int], rows: Rows, batch: EvidenceBatch, facts: Facts, decisions: int
) -> CircuitParts | str:
    """Return the circuit with some states fixed; what no row observes is summed out where some are."""
    seen, asked = set(range(len(facts.network.public))), set[int]()
    if fixed and facts.explains:
        # What nobody asks for is not summed out of a maximum.
        seen -= fixed.keys()
    elif fixed:
        # Of batches alike circuits are alike, whatever a column happens to hold; those of a row serve it alone.
        columns = {v for v, states in batch.states.items() if len(rows) > 1 or states[rows[0]] != UNOBSERVED}
        seen = columns.union(batch.likelihoods) - fixed.keys()
        asked = set(facts.targets) - fixed.keys() - seen
    key, circuits = (tuple(sorted(fixed.items())), tuple(sorted(seen)), tuple(sorted(asked))), facts.store.circuits
    with facts.store.lock:
        allowed, found = circuits.get(key, (0, ""))
        # A search that was allowed more may find what an earlier one did not.
        if isinstance(found, str) and allowed < decisions:
            circuits.pop(key, None)
        make = lambda: (decisions, _searched(fixed, seen, asked, facts, decisions))  # noqa: E731
        return cached(circuits, key, KEPT_CIRCUITS, make)[1]


def _searched(
    fixed: dict[int, int], seen: set[int], asked: set[int], facts: Facts, decisions: int
) -> CircuitParts | str:
    """Return the circuit of all variables that rows may observe or ask for, or circuits of parts, or why there is none.

    seen, asked: variables that rows may observe, and others whose posteriors are asked for.
    Parts of these are tried before more decisions than those of a row go into the search for one circuit.
    """
    from junctor.circuits.evaluate import CircuitProgram
    from junctor.circuits.kept import kept_circuit
    from junctor.circuits.parts import CircuitParts, in_parts, parents_first

    network = facts.network

    def search(some: Collection[int], decisions: int) -> Circuit | str:
        limits = SearchLimits.within(facts.allowed, decisions)
        return kept_circuit(network, fixed, seen.union(some), limits, facts.threads)

    def part(some: Collection[int]) -> CircuitProgram | str:
        found = search(some, min(decisions, PART_DECISIONS))
        return found if isinstance(found, str) else CircuitProgram(network, found, seen.union(some))

    found = search(asked, min(decisions, ROW_DECISIONS))
    if isinstance(found, str) and asked and network.kind == "bayes":
        parts = in_parts([v for v in parents_first(network, fixed) if v in asked], part)
        if not isinstance(parts, str):
            return CircuitParts(parts)
    if isinstance(found, str) and decisions > ROW_DECISIONS:
        found = search(asked, decisions)
    return found if isinstance(found, str) else CircuitParts([CircuitProgram(network, found)])


def _answer(rows: Rows, batch: EvidenceBatch, answers: Answers, run: Run) -> Iterator[int]:
    """Write answers to rows, and yield those that are left."""
    facts = run.facts
    program = program_of(rows, batch, facts, MOST_DECISIONS)
    if not isinstance(program, str):
        _run(program, batch, rows, answers, run)
        return
    for row in rows.tolist() if len(rows) > 1 else ():
        one = np.array([row])
        own = _program(fixed_states(one, batch), one, batch, facts, ROW_DECISIONS)
        if isinstance(own, str):
            yield row
        else:
            _run(own, batch, one, answers, run)
    if len(rows) == 1:
        yield int(rows[0])


def _run(program: CircuitParts, batch: EvidenceBatch, rows: Rows, answers: Answers, run: Run) -> None:
    if run.facts.explains:
        program.explain(batch, rows, answers, run.facts.threads)
        return
    program.answer(batch, rows, answers, run.facts.threads, run.device)


WAY = CircuitRows()
