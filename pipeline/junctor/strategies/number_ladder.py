"""Rows of one group through its programs: blocks of cases on several threads, doubtful rows again in a wider format."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from threading import Event, Lock
from typing import Protocol

import numpy as np
import numpy.typing as npt
from junctor_kernels.tables.reference import Algebra

from junctor.backends.evidence_blocks import block_of, write
from junctor.backends.numpy import BlockOutcome, EvidenceBlock
from junctor.backends.plan_memory import ProgramCache
from junctor.evidence.batch import EvidenceBatch, Rows
from junctor.model.answers import Answers, Scores
from junctor.runtime.threads import in_threads

# The first rows of a group tell whether a number format will do: so many of them, and the share of doubtful ones above
# which all others begin in the next format. At a half, single precision and then double takes as long as double alone.
PROBED_ROWS = 64
MOST_DOUBTFUL = 0.5
# Steps of a plan from which on another number format takes NumPy longer than to load what tells impossible rows, which
# their reasons need anyway.
MANY_STEPS = 2000


def answer_rows(prepared: ProgramCache, batch: EvidenceBatch, rows: Rows, answers: Answers, executor: Executor) -> Rows:
    """Answer `rows` in the first number format of the ladder, and those in doubt that are possible in the next.

    executor: returns what answers so many rows in a number format.
    Returns rows of scores that no device takes: these are made of posteriors.
    """
    possible = rows[:0]
    for algebra in prepared.ladder:
        if not rows.size or (isinstance(answers, Scores) and prepared.on_device(algebra, len(rows)) is None):
            return rows
        if algebra is not prepared.ladder[0]:
            answers.climbed[algebra.name] += len(rows)
        doubtful, later = answer_in(prepared, algebra, batch, rows, answers, executor)
        asked = np.setdiff1d(doubtful, possible, assume_unique=True)
        if asked.size and (prepared.sizes.runs_compiled or len(prepared.plan.steps) >= MANY_STEPS):
            # Imported here: compiled code takes longer to load than a few rows of a small plan to climb.
            from junctor.backends.impossibility import answer_impossible

            sizes = prepared.sizes
            left = answer_impossible(prepared.network, batch, asked, answers, sizes.spare, sizes.threads)
            possible = np.union1d(possible, left)
            doubtful = np.intersect1d(doubtful, possible, assume_unique=True)
        rows = np.sort(np.concatenate([doubtful, later]))
    return rows[:0]


def answer_in(
    prepared: ProgramCache, algebra: Algebra, batch: EvidenceBatch, rows: Rows, answers: Answers, executor: Executor
) -> tuple[Rows, Rows]:
    """Write the answers to `rows` as one number format finds them.

    Returns the doubtful ones and, where most of the first rows are doubtful, all rows after these: both are for the
    next format.
    """
    backend = executor(algebra, len(rows))
    pattern, sizes = prepared.plan.pattern, prepared.plan.shape.cardinalities
    asked = prepared.tells_from_first(algebra)
    # On a GPU they go alone, or all others would be under way before it is known; evidence of these comes meanwhile.
    # Not again once they did well: most likely all that alone would do is to keep the others waiting.
    alone = (
        asked and backend.cases > PROBED_ROWS and prepared.has_large_blocks and algebra.name not in prepared.did_well
    )
    first = FirstRows(asked, alone)

    def answer_part(start: int, place: int, end: int) -> Rows:
        part = rows[start:end]
        if first.fail and start >= PROBED_ROWS:
            return part[:0]
        answer = backend.prepare(block_of(batch, part, pattern, sizes), part, answers, place)
        if start >= PROBED_ROWS and first.fails():
            return part[:0]
        outcome = answer()
        write(outcome, part, answers)
        # A row without any probability left is most likely impossible, which says nothing of the others.
        first.add(start, outcome.doubtful & ~np.isneginf(outcome.log_value))
        doubtful: Rows = part[outcome.doubtful]
        return doubtful

    def answer_any(bounds: tuple[int, int], place: int) -> Rows:
        if bounds[0] or not alone:
            return answer_part(bounds[0], place, bounds[1])
        try:
            return answer_part(0, place, bounds[1])
        finally:
            # Also where it went wrong: others wait.
            first.told.set()

    # Rows that tell go in small parts, so that little is under way until they have told.
    small, least = (PROBED_ROWS, 1) if alone else (backend.cases, backend.threads)
    begin = min(len(rows), small * least) if asked else 0
    edges = [*range(0, begin, small), *range(begin, len(rows), backend.cases_at_once(len(rows))), len(rows)]
    doubtful = np.concatenate([rows[:0], *in_threads(answer_any, list(pairwise(edges)), backend.threads)])
    if not first.fail:
        prepared.did_well.add(algebra.name)
        return doubtful, rows[:0]
    prepared.did_well.discard(algebra.name)
    # Blocks that were under way already make no difference: which rows climb depends on the first rows alone.
    return doubtful[np.isin(doubtful, rows[:PROBED_ROWS])], rows[PROBED_ROWS:]


class FirstRows:
    """Whether a number format will do for a pattern, as its first rows in a batch tell.

    asked: False where that is of no use.
    alone: whether they are answered before all others.
    told: set once they have told.
    fail: True once too many of them are doubtful.
    """

    def __init__(self, asked: bool, alone: bool) -> None:
        self._left = MOST_DOUBTFUL * PROBED_ROWS if asked else math.inf
        self._lock = Lock()
        self.told = Event()
        if not alone:
            self.told.set()
        self.fail = False

    def fails(self) -> bool:
        """Return True if too many are doubtful, once they have told."""
        self.told.wait()
        return self.fail

    def add(self, start: int, doubtful: npt.NDArray[np.bool_]) -> None:
        """Count doubtful rows of a block that begins at row `start` of the group."""
        with self._lock:
            self._left -= int(np.count_nonzero(doubtful[: max(0, PROBED_ROWS - start)]))
            self.fail = self._left < 0


class BlockExecutor(Protocol):
    """What answers blocks of at most `cases` cases, up to `threads` of them at once."""

    cases: int
    threads: int

    def cases_at_once(self, rows: int) -> int:
        """Return how many of so many rows to prepare at once: a block, or several whole ones."""
        # The size of blocks must not depend on threads, for roundings follow it; how many are prepared at once may.

    def prepare(self, block: EvidenceBlock, rows: Rows, answers: Answers, place: int) -> Callable[[], BlockOutcome]:
        """Bring the evidence of cases to a place below `threads`, as far as there is anything to do ahead.

        Returns what answers them; their posteriors or states are in `rows` of the answers then.
        """


Executor = Callable[[Algebra, int], BlockExecutor]
