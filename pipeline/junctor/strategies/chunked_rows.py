"""Rows whose plan exceeds the memory: posteriors and explanations, case by case, by whoever the chunks are for.

Main class: ChunkedRows, made for a batch with such rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from junctor_kernels.gpu.blocks import BlockDevice, CudaBlockDevice
from junctor_kernels.tables.reference import Algebra

from junctor.backends.evidence_blocks import write, write_tables
from junctor.backends.numpy import BlockOutcome, EvidenceBlock
from junctor.evidence.batch import EvidenceBatch
from junctor.evidence.patterns import Rows, patterns_of
from junctor.model.answers import Answers
from junctor.out_of_core.explanations import as_outcome
from junctor.out_of_core.memory_splits import ChunkRoute
from junctor.out_of_core.programs import (
    SingleCaseProgram,
    answer_case_by_case,
    case_by_case,
    program_of,
    rounds_of,
)
from junctor.out_of_core.slices import SlicedProgram
from junctor.planning.plan import Plan
from junctor.runtime.devices import open_other_gpus
from junctor.strategies.chunk_cuts import ChunkCuts
from junctor.strategies.chunk_explanations import ChunkExplainer
from junctor.strategies.facts import Facts
from junctor.strategies.gpu_room import GpuRoom
from junctor.strategies.strategy import Route, Run

logger = logging.getLogger("junctor")


@dataclass(frozen=True, slots=True)
class ChunkedRows:
    """Answers rows in chunks; all memory beside answers is theirs.

    facts: what is asked, and of which machine.
    device, gpu: the GPU that answers rows, if one does, and what it has room for.
    free: bytes beside the answers.
    answer_impossible: answers the impossible ones among rows in doubt, and returns the others.
    """

    facts: Facts
    device: BlockDevice | None
    gpu: GpuRoom | None
    free: int
    answer_impossible: Callable[[Rows, EvidenceBatch, Answers], Rows]

    def answer(self, route: Route, rows: Rows, batch: EvidenceBatch, answers: Answers) -> None:
        """Write the posteriors of rows."""
        for row_engine in self.facts.store.row_engines.values():
            row_engine.allow(0)
        chunks = route.chunks
        # Rows that lose digits in one number format come back, and are cut anew: entries of the next one are wider.
        for algebra in self.facts.ladder:
            if algebra is not self.facts.ladder[0]:
                answers.climbed[algebra.name] += len(rows)
            chunks = self._chunks_in(algebra, route) if chunks is None else chunks
            logger.info("%d rows in chunks, about %.2g s each", len(rows), chunks.seconds)
            doubtful = [rows[:0]]
            for part, programs in self._in_rounds(chunks, algebra, rows):
                doubtful.append(answer_case_by_case(programs, chunks, batch, part, answers))
                # Their memory goes first.
                programs.clear()
            rows = self.answer_impossible(np.concatenate(doubtful), batch, answers)
            if not rows.size:
                return
            chunks = None

    def explain(
        self, explainer: ChunkExplainer, route: Route, rows: Rows, batch: EvidenceBatch, answers: Answers
    ) -> None:
        """Write the explanations of rows; explainer: finds them from what was propagated."""
        chunks = route.chunks
        for algebra in self.facts.chunk_ladder:
            if algebra is not self.facts.chunk_ladder[0]:
                answers.climbed[algebra.name] += len(rows)
                chunks = self._chunks_in(algebra, route)
            assert chunks is not None
            logger.info("%d rows in chunks, about %.2g s each", len(rows), chunks.seconds)
            found: list[tuple[Rows, EvidenceBlock, BlockOutcome]] = []
            for part, programs in self._in_rounds(chunks, algebra, rows):
                found += case_by_case(programs, chunks, batch, part)
                # Their memory goes first: what is ambiguous of a row is answered in one piece.
                programs.clear()
            left = rows[:0]
            for part, block, outcome in found:
                explained: tuple[dict[int, int], float] | None = None
                if np.isneginf(outcome.log_value[0]) and not outcome.doubtful[0]:
                    explained = dict.fromkeys(range(len(self.facts.network.variables)), 0), -np.inf
                elif not outcome.doubtful[0]:
                    explained = explainer.explain(chunks.chunks.plan, block, outcome, algebra)
                if explained is None:
                    left = np.append(left, part)
                    continue
                whole = as_outcome(*explained)
                write_tables(whole, block, part, answers)
                write(whole, part, answers)
            rows = self.answer_impossible(left, batch, answers)
            if not rows.size:
                return

    def propagate(self, route: Route, batch: EvidenceBatch, algebra: Algebra) -> tuple[EvidenceBlock, BlockOutcome]:
        """Return the evidence of the only row of a batch, and what its propagation finds in an algebra."""
        chunks = self._chunks_in(algebra, route)
        ((row, programs),) = self._in_rounds(chunks, algebra, np.arange(1))
        ((_, block, outcome),) = case_by_case(programs, chunks, batch, row)
        return block, outcome

    def _chunks_in(self, algebra: Algebra, route: Route) -> ChunkRoute:
        """Return how rows of a route go through in an algebra."""
        with self.facts.store.lock:
            return ChunkCuts(self.facts).chosen_chunks(route.group.pattern, route.uses, algebra, self.free, self.gpu)

    def _in_rounds(
        self, chunks: ChunkRoute, algebra: Algebra, rows: Rows
    ) -> Iterator[tuple[Rows, list[SingleCaseProgram]]]:
        """Yield rows, and what answers them: workers, this process, or its GPUs, several rows at a time.

        Whoever takes them clears the list, so that the memory is free for the next ones.
        """
        sizes = [chunks.chunks.plan.shape.cardinalities[v] for v in chunks.slices]
        for part, programs in self._programs(chunks, algebra, rows):
            if chunks.slices:
                # In place: the list is what keeps them.
                programs[:] = [SlicedProgram(programs, chunks.slices, sizes, algebra)]
            yield part, programs

    def _programs(
        self, chunks: ChunkRoute, algebra: Algebra, rows: Rows
    ) -> Iterator[tuple[Rows, list[SingleCaseProgram]]]:
        """Yield rows, and what answers them, or the slices of them."""
        facts, options, network = self.facts, self.facts.options, self.facts.plan_network(chunks.pattern)
        if facts.workers is not None and chunks.workers:
            yield from facts.workers.rounds_of(chunks, network, algebra, rows)
        elif not isinstance(self.device, CudaBlockDevice) or not chunks.limits.on_gpu:
            yield rows, [program_of(chunks, network, algebra)]
        else:
            # Only chunks are spread over several GPUs.
            all_gpus = options.all_gpus and (chunks.side is None or chunks.side.gpus > 1)
            others = open_other_gpus(options.device_memory) if all_gpus else ()
            yield from rounds_of(chunks, network, algebra, (self.device, *others), rows)


def explainer_for(run: Run, chunked: ChunkedRows) -> ChunkExplainer:
    """Return what finds explanations of rows in chunks."""
    facts = run.facts

    def route_of(batch: EvidenceBatch) -> Route:
        (group,) = patterns_of(batch).exact(np.arange(1))
        # No other row has this pattern.
        return run.route(group, batch, uses=1)

    def plan_of(route: Route) -> Plan:
        with facts.store.lock:
            return facts.plan(route.group.pattern, route.uses)

    return ChunkExplainer(facts.network, route_of, chunked.propagate, run.explain_in_one_piece, plan_of)
