"""Batches one after the other: while one is answered, the next is read and grouped and the last ones are finished.

Main function: `answer_in_sequence`, called by the Python API for tables of several batches. Runs do the same with files
(`junctor.runs.partition`), where memory is also shared with writers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from junctor.engine.engine import Engine
from junctor.evidence.batch import EvidenceBatch
from junctor.model.answers import Answers
from junctor.model.errors import BudgetError
from junctor.planning.budget import EXPLAINED_AT_ONCE, EXPLAINING_BYTES, PLENTY_BYTES
from junctor.runtime.threads import Threads

Source = TypeVar("Source")
Read = TypeVar("Read")
Result = TypeVar("Result")


def answer_in_sequence(
    sources: Sequence[Source],
    read: Callable[[Source], Read],
    batch_of: Callable[[Read], EvidenceBatch],
    engine_for: Callable[[], Engine],
    finish: Callable[[Read, Answers], Result],
) -> list[Result]:
    """Return what is made of the answers to several batches, in their order; the same as if one waited for the other.

    sources: of the batches, at least one.
    read: makes a source what a batch is in.
    batch_of: returns the batch.
    engine_for: returns the engine of the next batch.
    finish: makes the result.
    Raises what they raise, once nothing is in progress.
    """
    results: list[Result] = []
    finishing: deque[Future[Result]] = deque()

    def read_ahead(source: Source, engine: Engine) -> Read:
        found = read(source)
        # What does not fit is refused when it is answered.
        with suppress(BudgetError, MemoryError):
            engine.prepare(batch_of(found))
        return found

    def explain_and_finish(engine: Engine, found: Read, answers: Answers) -> Result:
        engine.explain(batch_of(found), answers, EXPLAINING_BYTES, threads=1)
        return finish(found, answers)

    with Threads(1 + EXPLAINED_AT_ONCE, thread_name_prefix="junctor-batches") as threads:
        # The first one makes the engine, and chooses first, so that choices do not depend on who is quicker.
        engine = engine_for()
        coming: Future[Read] | None = None
        for n in range(len(sources)):
            found = read_ahead(sources[0], engine) if coming is None else coming.result()
            engine = engine_for() if n else engine
            coming = threads.submit(read_ahead, sources[n + 1], engine) if n + 1 < len(sources) else None
            batch, answers = batch_of(found), None
            if engine.allowed >= PLENTY_BYTES:
                # Where that leaves too little, reasons are found at once.
                with suppress(BudgetError):
                    answers = engine.answer(batch, EXPLAINED_AT_ONCE * (EXPLAINING_BYTES + batch.nbytes), False)
            later = answers is not None
            answers = engine.answer(batch) if answers is None else answers
            if len(finishing) == EXPLAINED_AT_ONCE:
                results.append(finishing.popleft().result())
            if later:
                finishing.append(threads.submit(explain_and_finish, engine, found, answers))
            else:
                finishing.append(threads.submit(finish, found, answers))
        results.extend(each.result() for each in finishing)
    return results
