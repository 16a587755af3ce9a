"""Rows that go the way that somebody asks for, whatever they would take another way. Main function: `forced_groups`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from junctor.backends.row_work import LANES
from junctor.engine.tree_groups import TreeChoice
from junctor.evidence.batch import EvidenceBatch
from junctor.evidence.patterns import PatternGroup, Patterns, serving_few
from junctor.model.errors import InputError
from junctor.model.strategies import Strategy

if TYPE_CHECKING:
    from junctor.strategies.facts import Planner


def forced_groups(
    planner: Planner, strategy: Strategy, patterns: Patterns, batch: EvidenceBatch, shares: bool
) -> list[PatternGroup]:
    """Return the rows of a batch in groups that a strategy answers; raises InputError where it answers none of them.

    Rows whose trees are too large, or whose numbers need a wider format, get a plan as always.
    shares: whether there is memory for trees that rows share.
    """
    if (why := refusal(planner, strategy)) is not None:
        raise InputError(f"strategy {strategy.value}: {why}; leave the choice to junctor, or take another one")
    if not patterns.rows.size:
        return []
    if strategy is Strategy.JOINT_TABLE:
        pattern, count = serving_few(batch, len(planner.network.variables))
        return [PatternGroup(pattern, patterns.rows, count, strategy)]
    if strategy is Strategy.ROW_TREES:
        return _trees(planner, patterns, batch, shares)
    return patterns.exact(patterns.rows)


def refusal(planner: Planner, strategy: Strategy) -> str | None:
    """Return why a strategy cannot answer a query on this network and machine, None where it can."""
    explains = planner.query.kind == "mpe"
    if strategy is Strategy.IMPOSSIBLE:
        return "it answers nothing but rows that are impossible, which are found in any case"
    if strategy is Strategy.GPU_BLOCKS:
        return None if planner.takes_gpu else "there is no GPU that may be used"
    if strategy is not Strategy.CHUNKS and planner.asks_gpu:
        return "it runs on CPUs, and a GPU is asked for"
    if strategy is Strategy.JOINT_TABLE:
        if explains:
            return "explanations have no joint table"
        if (table := planner.joint_table) is None:
            return "the network has too many joint states"
        if table.nbytes > planner.allowed:
            return f"the joint table takes {table.nbytes:,} bytes, allowed are {planner.allowed:,}"
    return None


def _trees(planner: Planner, patterns: Patterns, batch: EvidenceBatch, shares: bool) -> list[PatternGroup]:
    """Return rows with trees, shared where that pays; explanations share none."""
    if planner.query.kind == "mpe" or len(patterns.rows) < LANES or not shares:
        return [patterns.together()]
    if len(patterns.counts) > 1:
        return TreeChoice(batch, patterns, planner.row_engine).groups()
    (group,) = patterns.exact(patterns.rows)
    return [PatternGroup(group.pattern, group.rows, strategy=Strategy.ROW_TREES, shared=True)]
