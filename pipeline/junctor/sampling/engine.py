"""Rows of evidence by sampling: each gets its importance function, its samples and its errors."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np
from junctor_kernels.sampling.layout import BLOCK, STATES, Floats, SampledCase, Sums, own_share
from junctor_kernels.sampling.philox import MOST_ROWS, RandomStream

from junctor.cost.figures import shipped_figures
from junctor.evidence.batch import EvidenceBatch, Rows
from junctor.model.answers import IMPOSSIBLE, MISSED, NO_PROBABILITY, UNRELIABLE, SampledAnswers
from junctor.model.errors import BudgetError, EvidenceError, counted
from junctor.model.network import Network
from junctor.model.options import ONE_THREAD, ComputeOptions
from junctor.model.query import Query, sampler_of, target_names
from junctor.planning.budget import exact_bytes
from junctor.runtime.devices import has_gpu
from junctor.runtime.kept_results import method_cache
from junctor.runtime.machine import allowed_memory, usable_cores
from junctor.runtime.threads import in_threads
from junctor.sampling.answer_buffer import AnswerBuffer, slots_of
from junctor.sampling.cases import CaseLayout, layout_of
from junctor.sampling.epis import beliefs_of
from junctor.sampling.estimate import MISSED_SAMPLES, Estimate, estimate_of, until
from junctor.sampling.importance import STAGES, needs_logs, parents_to_free, prior_of, rate
from junctor.sampling.rows import DEFAULT_SAMPLES, KEPT_LAYOUTS, Evidence, Hard, Soft, evidence_of
from junctor.sampling.sampler import CpuSampling, Pending, RowSampler, SampleDevice, SamplingRequest
from junctor.sampling.tables import refuse, sampled_network

if TYPE_CHECKING:
    from junctor.sampling.gpu import GpuSampling
    from junctor.sampling.tables import SampledNetwork

# Half of the samples, but never more, teach the importance function.
MOST_LEARNING = 100_000
LEARNERS = ("ais-bn", "sis")
# With an error to reach, so many teach.
ERROR_LEARNING = 50_000
# Logarithms that weights may have while they are multiplied as they are: their squares must not leave the doubles.
PLAIN_LIMIT = 340.0
# Bytes of an entry of a table: probabilities, logarithms, chances, ratios, order, thresholds, scores.
SHARED_BYTES, ROW_BYTES = 64, 32

logger = logging.getLogger("junctor")


class SamplingEngine:
    """Answers batches of evidence on one directed network by importance sampling.

    network: directed.
    query: for posteriors, and how they are sampled.
    options: what the process may use; a GPU is used where there is one, all of them for many samples of a row.

    A row's answer depends on network, evidence, targets, sampling options, its number and the seed; neither on the
    other rows of the batch nor on threads. Raises ModelError for Markov networks and variables of too many states,
    EvidenceError for unknown targets, BudgetError where the tables do not fit.
    """

    def __init__(self, network: Network, query: Query, options: ComputeOptions = ONE_THREAD) -> None:
        refuse(network, sampler_of(network, query))
        self.network = network
        self.query = query
        self.sampler = sampler_of(network, query)
        self.options = options
        self.threads = options.threads or usable_cores()
        self.targets = tuple(network.index[name] for name in target_names(network, query))
        self.allowed = allowed_memory(options)
        # Caches by pattern: rows of a batch share few patterns, whose layouts take longer than a row's own arrays.
        self._layout = method_cache(KEPT_LAYOUTS, self._layout_of)
        self._slots = lru_cache(KEPT_LAYOUTS)(partial(slots_of, self.targets))
        self._beliefs = lru_cache(KEPT_LAYOUTS)(beliefs_of)
        if self.least > self.allowed:
            raise BudgetError(
                f"the tables of {network.name or 'the network'} take {exact_bytes(self.least)} while rows are "
                f"sampled, allowed are {exact_bytes(self.allowed)}: allow more with --memory"
            )

    def _layout_of(self, evidence: Evidence) -> CaseLayout:
        return layout_of(self.sampled, evidence, None if self.query.targets is None else self.targets)

    @property
    def least(self) -> int:
        """Bytes that one row at a time needs."""
        return SHARED_BYTES * self._entries + self._row_bytes

    def seconds(self, rows: int) -> float:
        """Return about what so many rows take on one core; coarse, and for an error what the first samples take."""
        samples = self._learning + self._main
        return rows * samples * len(self.network.variables) * shipped_figures().walks.draw

    def answer(self, batch: EvidenceBatch, rows: Rows, answers: SampledAnswers, first_row: int) -> None:
        """Write the answers to some rows of a batch.

        batch: some rows of the run.
        rows: int64, of the batch, ascending.
        answers: to all of its rows.
        first_row: number of the first row of the batch, which random numbers depend on.
        """
        if first_row + batch.rows > MOST_ROWS:
            raise EvidenceError(f"row {first_row + batch.rows:,}: sampling numbers at most {MOST_ROWS:,} rows")
        sheet = AnswerBuffer(self.network.cardinalities, answers, rows)
        evidence = dict(zip(rows.tolist(), evidence_of(batch, rows), strict=True))
        begin = partial(self._begin_row, evidence, sheet, first_row)
        if self._device is self.cpu:
            # Threads share a row, or have a row each, with an importance function of its own.
            at_once = min(self.threads, (self.allowed - SHARED_BYTES * self._entries) // self._row_bytes)
            at_once = at_once if len(rows) >= at_once else 1
            threads = self.threads if at_once == 1 else 1
            in_threads(lambda row, _: begin(threads, self.cpu, row)(), list(evidence), at_once)
        else:
            # One after the other: a device has room for the importance function of one row.
            for row in evidence:
                begin(self.threads, self.gpu, row)()
        short = int((answers.status[rows] == UNRELIABLE).sum())
        if short:
            logger.warning("too few effective samples in %s: see the reasons", counted(short, "row"))

    def estimate(self, hard: Hard, soft: Soft, row: int = 0) -> tuple[CaseLayout, SampledCase, Estimate | None]:
        """Return layout, case and estimate of one row, None where no sample agreed with it; for a closer look."""
        layout, case = self._case(hard, soft)
        if case.certain == -math.inf:
            return layout, case, None
        return layout, case, self._begin(self._device, layout, case, hard, row, self.threads)()

    def _case(self, hard: Hard, soft: Soft) -> tuple[CaseLayout, SampledCase]:
        layout = self._layout(Evidence(frozenset(hard), frozenset(soft)))
        return layout, layout.case(hard, soft, self._weighs)

    @cached_property
    def sampled(self) -> SampledNetwork:
        """The tables, ready for sampling."""
        return sampled_network(self.network)

    @cached_property
    def cpu(self) -> CpuSampling:
        """The tables on the CPU, and where importance functions begin."""
        return CpuSampling(self.sampled)

    @cached_property
    def _prior(self) -> dict[int, Floats]:
        return prior_of(self.sampled)

    @property
    def _device(self) -> SampleDevice:
        if self.options.device == "cpu" or (self.options.device == "auto" and not has_gpu()):
            return self.cpu
        return self.gpu

    @cached_property
    def gpu(self) -> GpuSampling:
        """The tables on a GPU. Raises DeviceError and BudgetError."""
        from junctor.sampling.gpu import gpu_sampling

        return gpu_sampling(self.cpu, self.options.device_memory, self.options.all_gpus)

    @property
    def _weighs(self) -> bool:
        """True if samples are drawn from an importance function."""
        return self.sampler != "lw"

    @property
    def _learning(self) -> int:
        """Samples of all learning stages together."""
        sampling = self.query.sampling
        if self.sampler not in LEARNERS:
            return 0
        if sampling.error is not None:
            return ERROR_LEARNING
        return min((sampling.samples or DEFAULT_SAMPLES) // 2, MOST_LEARNING) // STAGES * STAGES

    @property
    def _stage(self) -> int:
        return self._learning // STAGES

    @property
    def _main(self) -> int:
        return (self.query.sampling.samples or DEFAULT_SAMPLES) - self._learning

    @cached_property
    def _entries(self) -> int:
        return sum(factor.table.size for factor in self.network.factors)

    @property
    def _row_bytes(self) -> int:
        return ROW_BYTES * self._entries + self._stage * (len(self.network.variables) + 16)

    def _begin_row(
        self,
        evidence: Mapping[int, tuple[Hard, Soft]],
        sheet: AnswerBuffer,
        first_row: int,
        threads: int,
        device: SampleDevice,
        row: int,
    ) -> Callable[[], None]:
        """Begin with a row; returns a function that waits for the answer and writes it."""
        hard, soft = evidence[row]
        layout, case = self._case(hard, soft)
        # Evidence that contradicts itself needs no samples.
        if case.certain == -math.inf:
            sheet.answers.leave(row, IMPOSSIBLE, NO_PROBABILITY)
            return lambda: None
        estimate = self._begin(device, layout, case, hard, first_row + row, threads)

        def finish() -> None:
            sampled = estimate()
            if sampled is not None:
                return sheet.write(row, self._slots(layout), hard, sampled)
            drawn = self._learning + (self._main if self.query.sampling.error is None else MISSED_SAMPLES)
            reason = f"none of {drawn:,} samples agrees with the evidence: it is very unlikely, or impossible"
            return sheet.answers.leave(row, MISSED, reason)

        return finish

    def _begin(
        self, device: SampleDevice, layout: CaseLayout, case: SampledCase, hard: Hard, row: int, threads: int
    ) -> Callable[[], Estimate | None]:
        """Begin to sample a row; returns a function that waits for the estimate."""
        sampling = self.query.sampling
        sampler = device.row(self._ask(layout, case, hard, threads))
        learns = self.sampler in LEARNERS and bool(layout.weighed)
        stages = self._learn(sampler, row) if learns else []
        # Where there is nothing to learn, all samples count.
        main = self._main if learns else self._main + self._learning
        # The last of these samples, or the first ones of an error, which are whole blocks.
        own = own_share(main if sampling.error is None else BLOCK) if self._weighs and layout.weighed else 0.0
        draw = partial(sampler.sums, RandomStream(sampling.seed, row, 0), own=own)
        drawn = draw(0, main) if sampling.error is None else None

        def finish() -> Estimate | None:
            known = [stage() for stage in stages]
            read = partial(self._read, case, known, self._learning if learns else 0)
            return read(drawn()) if drawn is not None else self._until(draw, read, layout)

        return finish

    def _ask(self, layout: CaseLayout, case: SampledCase, hard: Hard, threads: int) -> SamplingRequest:
        weighs = self._weighs and bool(layout.weighed)
        logs = needs_logs(layout, case.least, PLAIN_LIMIT) if weighs else case.least <= -PLAIN_LIMIT
        sampler = self.sampler if weighs else "lw"
        # Samples that are drawn in any case: an error may take fewer or more.
        samples = self._main if self.query.sampling.error is None else 0
        ask = SamplingRequest(layout, case, sampler, (), logs, threads, samples=samples)
        if ask.sampler == "ais-bn":
            return replace(ask, free=parents_to_free(layout, hard, self._prior))
        return replace(ask, beliefs=self._beliefs(layout)) if ask.sampler == "epis-bn" else ask

    def _learn(self, sampler: RowSampler, row: int) -> list[Pending]:
        sampling = self.query.sampling
        learned: list[Pending] = []
        for stage in range(STAGES):
            stream = RandomStream(sampling.seed, row, stage + 1)
            keep = sampling.stages == "all"
            sums = sampler.learn(stream, self._stage, rate(self.sampler, stage), keep)
            learned += [sums] if sums is not None else []
        return learned

    def _read(self, case: SampledCase, stages: Sequence[Sums], learned: int, sums: Sums) -> Estimate | None:
        starts = np.cumsum([0, *case.nodes[:-1, STATES]]).tolist() if len(case.nodes) else []
        samples = learned + round(sums.drawn)
        # Without evidence below what is drawn all weights are the same.
        return estimate_of([*stages, sums], starts, case.certain, samples, exact=not len(case.factors))

    def _until(
        self, draw: Callable[[int, int], Pending], read: Callable[[Sums], Estimate | None], layout: CaseLayout
    ) -> Estimate | None:
        """Draw samples until the error asked for is reached."""
        asked = self._slots(layout).places

        def errors(sums: Sums) -> tuple[float, float]:
            estimate = read(sums)
            if estimate is None:
                return math.inf, 0.0
            return float(estimate.errors[asked].max(initial=0.0)), estimate.effective

        error = self.query.sampling.error
        assert error is not None
        sums, reached = until(error, lambda first, count: draw(first, count)(), errors)
        estimate = read(sums)
        return None if estimate is None else replace(estimate, reached=reached)
