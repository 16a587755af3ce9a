"""The order of passes, shared by threads and Dask workers: submit what may begin, take reports, drop what is read.

`PassRunner` is what either of them offers. Streams of GPUs have a loop of their own (`gpu.run`), because they never
wait for a report: see docs/decisions/0023-three-ways-to-hand-in-work.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from junctor.backends.numpy import BlockOutcome, EvidenceBlock
from junctor.out_of_core.bound_plan import BoundPlan, PassReport
from junctor.out_of_core.store import ChunkStore
from junctor.placement.pass_order import PassOrder
from junctor.runtime.progress import pass_done

Array = npt.NDArray[np.floating[Any]]


class PassRunner(Protocol):
    """Does the tasks of passes for one propagation; store: the tables in this process, at first the leaves."""

    @property
    def store(self) -> ChunkStore:
        """The tables in this process."""

    def accepts(self, number: int) -> bool:
        """Return True if a pass may begin beside those in flight; what it reads is there."""

    def submit(self, number: int, shifts: Mapping[int, float]) -> None:
        """Begin a pass; shifts: table -> its shift (`TableStats`), of all tables that it reads."""

    def reports(self) -> Iterator[PassReport]:
        """Yield the reports of passes that are done; waits if there is none."""

    def fetch(self, table: int) -> Array:
        """Return the entries of a stored table, in any shape."""

    def drop(self, table: int) -> None:
        """Forget a table that no later pass reads."""


def propagate(bound: BoundPlan, block: EvidenceBlock, runner: PassRunner) -> BlockOutcome:
    """Propagate one case and return its posteriors and log P(e).

    bound: the plan.
    block: evidence of the case.
    runner: does the tasks; serves one propagation.
    """
    stats = bound.begin(block, runner.store)
    order, done = PassOrder(bound.chunks), 0
    while order:
        # As many as the runner accepts: one for threads, several for workers.
        while (number := order.begin(runner.accepts)) is not None:
            runner.submit(number, bound.shifts(number, stats))
        for report in runner.reports():
            bound.update(stats, report)
            done += 1
            pass_done(done, len(bound.chunks.passes))
            for table in order.end(report.number):
                # Answers are read off at the end, in the order of the plan.
                if table not in bound.results:
                    runner.drop(table)
    return bound.outcome(block, {table: runner.fetch(table) for table in bound.results}, stats)
