"""Rows whose plan exceeds the memory: cut into chunks, case by case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from junctor.evidence.batch import EvidenceBatch, Rows
from junctor.evidence.patterns import PatternGroup
from junctor.model.answers import Answers
from junctor.model.strategies import Strategy
from junctor.planning.budget import format_bytes, traded
from junctor.strategies.chunk_cuts import ChunkCuts
from junctor.strategies.facts import Facts
from junctor.strategies.strategy import Allowance, MemoryUse, Offer, Route, Run, Way

if TYPE_CHECKING:
    from junctor.out_of_core.memory_splits import ChunkRoute


class ChunkRows(Way):
    """Plans that are cut for the memory."""

    name = Strategy.CHUNKS

    def offer(self, group: PatternGroup, batch: EvidenceBatch, facts: Facts) -> Offer | str:
        """Not asked: a cut takes seconds, and what fits in one piece goes in one piece."""
        return "chunks are for rows that fit in no other way"

    def prepare(self, group: PatternGroup, uses: int, batch: EvidenceBatch, facts: Facts, room: Allowance) -> Route:
        """The cut that takes least, with all memory to itself; raises BudgetError."""
        budget = room.budget
        if budget.passing:
            # In one piece, once that memory is free again, or in larger chunks.
            where = "propagation beside earlier answers"
            raise budget.refuse(budget.free + 1, where, "wait until they are written")
        # Chunks get all memory: the plan exceeds it already.
        room.kept.clear()
        chunks = ChunkCuts(facts).chosen_chunks(group.pattern, uses, facts.chunk_ladder[0], budget.free, room.gpu)
        plan, size = chunks.chunks.plan, chunks.memory + budget.reserved
        way = "slots of a GPU" if chunks.limits.on_gpu else "compiled" if chunks.entry_threads else "NumPy"
        reason = facts.reason(self.name, f"in chunks, {way}: the plan exceeds the memory") + _told(chunks)
        memory = MemoryUse(facts.allowed, budget.reserved, size, size)
        operations = len(group.rows) * chunks.operations
        return Route(group, self.name, reason, memory, uses, plan, chunks=chunks, operations=operations)

    def forecast(self, route: Route, batch: EvidenceBatch, facts: Facts, bound: int) -> Route:
        """By the tasks of the cut plan."""
        assert route.chunks is not None
        seconds = route.chunks.total(len(route.group.rows)) + route.rows * facts.figures.files.row
        return replace(route, seconds=seconds)

    def answer(self, work: Sequence[Route], batch: EvidenceBatch, answers: Answers, run: Run) -> Rows:
        """Case by case."""
        # Imported where rows go in chunks: few do, and it loads much.
        from junctor.strategies.chunked_rows import ChunkedRows, explainer_for

        chunked = ChunkedRows(run.facts, run.device, run.gpu, run.budget.free, run.possible)
        for route in work:
            if run.facts.explains:
                chunked.explain(explainer_for(run, chunked), route, route.group.rows, batch, answers)
            else:
                chunked.answer(route, route.group.rows, batch, answers)
        return np.zeros(0, dtype=np.int64)


def _told(route: ChunkRoute) -> str:
    """Return what is done for the memory, for people: slices, messages made again, peaks, and the budget that binds."""
    done = traded(len(route.slices), route.again.messages, route.slower)
    trade = f"; {done}" if done else ""
    of_gpu = f"{format_bytes(route.working + route.resident)} of the GPU, " * route.limits.on_gpu
    peaks = f"{of_gpu}{format_bytes(route.memory)} of memory, {format_bytes(route.disk)} in files"
    if route.workers and route.side is not None:
        gpus = route.side.share(route.side.rows)
        of_gpus = of_gpu.replace("the GPU", f"each of {gpus} GPUs" if gpus > 1 else "its GPU")
        each = f"{of_gpus}{format_bytes(route.memory // route.side.rows)} of memory"
        return f"{trade}; each of {route.side.rows} workers holds {each} at the peak; {route.option} binds"
    return f"{trade}; at the peak {peaks}; {route.option} binds"


WAY = ChunkRows()
