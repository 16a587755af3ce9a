"""How many rows make a part of a run, by the work in them: so few that hardly any is lost with a process.

Main functions: `rows_of_part` for evidence, `shorter_part` for all else; called for runs whose parts nobody has chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from junctor.engine.engine import Engine
    from junctor.evidence.batch import EvidenceBatch
    from junctor.strategies.facts import Facts
    from junctor.strategies.strategy import Route

# Most seconds of forecast work in a part, of one core or of the GPU that answers: what is lost with a process. Choice;
# 2026-11-29.
PART_SECONDS = 20.0
# How much longer all rows may take in smaller parts, for what the rows of a part share. Choice; 2026-11-29.
MOST_SHARED = 0.1


def shorter_part(rows: int, seconds: float, least: int = 1) -> int:
    """Return how many rows make a part of at most `PART_SECONDS`, a power of two; those of the part if these are.

    rows: of a part as it is.
    seconds: forecast of a row.
    least: rows at the least.
    """
    if rows * seconds <= PART_SECONDS:
        return rows
    fitting = max(1, least, int(PART_SECONDS / seconds))
    return min(rows, 1 << (fitting.bit_length() - 1))


def rows_of_part(engine: Engine, batch: EvidenceBatch, seconds: float, least: int = 1) -> int:
    """Return the same for rows of evidence: more where these share so much that they would take longer apart.

    engine: that answers.
    batch: the first rows of the run, as many as a part has.
    seconds, least: of `shorter_part`.
    """
    from junctor.engine.choose import estimate

    rows = shorter_part(batch.rows, seconds, least)
    choice = engine.choice(batch)
    routes = [estimate(choice.facts, route, choice.batch) for route in engine.routes_of(choice)]
    most = (1 + MOST_SHARED) * sum(route.seconds for route in routes)
    while rows < batch.rows and _in_parts(choice.facts, choice.batch, routes, rows) > most:
        rows *= 2
    return min(rows, batch.rows)


def _in_parts(facts: Facts, batch: EvidenceBatch, routes: Sequence[Route], rows: int) -> float:
    """Return the seconds of a batch, with its equal rows, in parts of so many rows; routes: of the batch as a whole."""
    parts, equal = batch.rows / rows, 1.0
    if batch.equal is not None:
        # Of rows that are equal to none before them, the first part has as many as any.
        equal = np.count_nonzero(batch.equal.distinct < rows) * parts / len(batch.equal.distinct)
    return sum(_of_route(facts, batch, route, parts, equal) for route in routes)


def _of_route(facts: Facts, batch: EvidenceBatch, route: Route, parts: float, equal: float) -> float:
    """Return the seconds of the rows of a route in parts; equal: how many times as many are answered."""
    from junctor.engine.choose import estimate

    group = route.group
    if group.alone or not route.seconds or route.chunks is not None:
        return route.seconds * equal
    few = replace(group, rows=group.rows[: max(1, round(len(group.rows) * equal / parts))])
    seconds = parts * estimate(facts, replace(route, group=few), batch).seconds
    if group.shared:
        # Rows that are too few for a tree that they share get trees of their own.
        alone = replace(route, group=replace(group, shared=False))
        seconds = min(seconds, equal * estimate(facts, alone, batch).seconds)
    return seconds
