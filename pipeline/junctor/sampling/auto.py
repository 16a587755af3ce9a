"""Exact answers where they fit the budget, samples for the other rows, and the reasons.

Which rows are sampled follows from network, evidence, query and a budget that is settled when a run begins and kept in
its directory: a run that goes on elsewhere, or later, takes the same ways.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from junctor_kernels.tables.reference import Algebra

from junctor.cost.constants import CPU
from junctor.engine.engine import Engine, rounded
from junctor.engine.forecast import Forecast, forecast
from junctor.engine.patterns import PatternGroup, patterns_of
from junctor.evidence.batch import EvidenceBatch, SoftEvidence
from junctor.model.answers import Answers, SampledAnswers
from junctor.model.errors import BudgetError
from junctor.model.network import Network
from junctor.model.options import DeviceChoice
from junctor.model.query import Query
from junctor.out_of_core.memory_splits import ChunkRoute
from junctor.planning.shape import Pattern
from junctor.runs.storage import RunDirectory
from junctor.runtime.files import read_json, write_json
from junctor.runtime.machine import allowed_disk, spill_folder
from junctor.sampling.engine import SamplingEngine

if TYPE_CHECKING:
    from junctor.cost.model import CostModels

# Seconds of one core that an exact answer to a row may take; tests replace it.
MOST_SECONDS = CPU.exact_row

Rows = npt.NDArray[np.int64]

logger = logging.getLogger("junctor")


@dataclass(frozen=True, eq=False, slots=True)
class RowsBeyondBudget:
    """Rows whose exact answers exceed the budget, and why."""

    rows: Rows
    reason: str


class _Judge(Engine):
    """An engine that is only asked; it remembers what it refused, because a refusal takes as long as a plan."""

    def __init__(
        self, network: Network, query: Query, memory: int, rows: int, speeds: Callable[[], CostModels] | None
    ) -> None:
        super().__init__(network, query, memory, rows, speeds=speeds)
        self._refused: dict[tuple[object, ...], BudgetError] = {}

    def chunking(self, pattern: Pattern, uses: int, algebra: Algebra, free: int, on_gpu: bool = False) -> ChunkRoute:
        """Return how rows of a pattern go through `free` bytes in chunks; raises BudgetError where they cannot."""
        key = pattern, rounded(uses), algebra.name, free, self.disk
        if key in self._refused:
            raise self._refused[key]
        try:
            return super().chunking(pattern, uses, algebra, free, on_gpu)
        except BudgetError as error:
            self._refused[key] = error
            raise


class AutoEngine:
    """Answers batches of evidence exactly where that fits, by sampling elsewhere. Errors as of both engines."""

    def __init__(
        self,
        network: Network,
        query: Query,
        memory: int | None = None,
        rows: int = 0,
        threads: int = 1,
        speeds: Callable[[], CostModels] | None = None,
    ) -> None:
        self.network, self.query = network, query
        self._exact = Engine(network, query, memory, rows, threads, speeds=speeds)
        self._judge = _Judge(network, query, self._exact.allowed, rows, speeds)
        self._memory, self._threads = self._exact.allowed, threads
        self._samples: SamplingEngine | None = None

    @property
    def least(self) -> int:
        """Bytes that are needed at the least: none is known before rows are looked at."""
        return 0

    def seconds(self, rows: int) -> float:
        """Return about what so many rows take if all are sampled; coarse."""
        return self._sampler.seconds(rows) if self.network.kind == "bayes" else 0.0

    def configure(
        self,
        device: DeviceChoice,
        device_memory: int | None = None,
        spill: str | None = None,
        disk: int | None = None,
        directory: Path | None = None,
        all_gpus: bool = False,
    ) -> None:
        """Settle where the work is done, and which budget decides: the first who comes to a directory writes it."""
        self._exact.device, self._exact.device_memory, self._exact.all_gpus = device, device_memory, all_gpus
        if self._samples is not None:
            self._samples.configure(device, device_memory, all_gpus=all_gpus)
        self._exact.spill, self._exact.disk = spill_folder(spill), disk
        kept = None if directory is None else read_json(RunDirectory(directory).budget)
        if kept is None:
            folder = spill_folder(spill)
            kept = {"memory": self._judge.allowed, "disk": allowed_disk(folder) if disk is None else disk}
            if directory is not None:
                write_json(RunDirectory(directory).budget, kept)
        self._judge.allowed, self._judge.disk = kept["memory"], kept["disk"]

    def answer(self, batch: EvidenceBatch, held: int = 0, first_row: int = 0) -> SampledAnswers:
        """Return the answers to all rows of a batch, whose first one has the number `first_row`."""
        beyond = np.zeros(batch.rows, dtype=np.bool_)
        for found in self.beyond(batch):
            beyond[found.rows] = True
        answers = as_sampled(self._exact.answer(without(batch, beyond), held))
        if beyond.any():
            sampled = self._sampler.answer(without(batch, ~beyond), held, first_row)
            take(sampled, answers, np.flatnonzero(beyond))
        return answers

    def beyond(self, batch: EvidenceBatch) -> Iterator[RowsBeyondBudget]:
        """Yield the rows of a batch that are sampled, by their reasons."""
        for each in forecast(self._judge, batch, refuse=False):
            if each.group.alone:
                yield from self._beyond_alone(each.group, batch)
            elif reason := why(each):
                yield RowsBeyondBudget(each.group.rows, reason)

    def _beyond_alone(self, group: PatternGroup, batch: EvidenceBatch) -> Iterator[RowsBeyondBudget]:
        """Yield those of the rows with a tree of their own whose tree is too large, and whose plan is as well."""
        engine = self._judge.row_engine
        large = [
            each
            for each in patterns_of(batch).exact(group.rows)
            if engine.work(each.pattern.sliced, each.pattern.weighted)[1] > engine.entries
        ]
        for each in large:
            # A batch of these rows alone has one group.
            keep = np.ones(batch.rows, dtype=np.bool_)
            keep[each.rows] = False
            for found in forecast(self._judge, without(batch, keep), refuse=False):
                if reason := why(found):
                    yield RowsBeyondBudget(each.rows, reason)

    @property
    def _sampler(self) -> SamplingEngine:
        if self._samples is None:
            exact = self._exact
            device = exact.device if isinstance(exact.device, str) else "cpu"
            self._samples = SamplingEngine(self.network, self.query, self._memory, self._threads)
            self._samples.configure(device, exact.device_memory, all_gpus=exact.all_gpus)
        return self._samples


def why(found: Forecast) -> str | None:
    """Return why rows of a forecast are sampled, None where they are answered exactly."""
    if found.refused is not None:
        return found.refused
    each = found.seconds / max(1, found.group.answered)
    if each > MOST_SECONDS:
        return f"an exact answer would take about {each:.2g} s, {MOST_SECONDS:g} s are allowed"
    return None


def explain(engine: AutoEngine, batch: EvidenceBatch) -> None:
    """Log how many rows of a batch are sampled, and why."""
    for found in engine.beyond(batch):
        logger.warning("%d of %d rows are sampled: %s", len(found.rows), batch.rows, found.reason)


# The reason of a row that another engine answers, while this one passes over it.
_ELSEWHERE = "answered elsewhere"


def without(batch: EvidenceBatch, left_out: npt.NDArray[np.bool_]) -> EvidenceBatch:
    """Return a batch of as many rows, some of which are passed over."""
    if not left_out.any():
        return batch
    passed = {int(row): _ELSEWHERE for row in np.flatnonzero(left_out)}
    likelihoods = {v: _kept(each, ~left_out) for v, each in batch.likelihoods.items()}
    states = {v: np.where(left_out, np.int32(-1), column) for v, column in batch.states.items()}
    return EvidenceBatch(batch.rows, states, likelihoods, {**passed, **batch.invalid})


def _kept(likelihood: SoftEvidence, keep: npt.NDArray[np.bool_]) -> SoftEvidence:
    here = keep[likelihood.rows]
    return SoftEvidence(likelihood.rows[here], likelihood.values[here])


def as_sampled(answers: Answers) -> SampledAnswers:
    """Return exact answers with errors of 0."""
    rows = len(answers.status)
    return SampledAnswers(
        answers.targets,
        answers.status,
        answers.log_value,
        answers.posteriors,
        reasons=answers.reasons,
        errors={v: np.zeros_like(table) for v, table in answers.posteriors.items()},
        log_error=np.zeros(rows),
        effective=np.full(rows, np.nan),
        samples=np.zeros(rows, dtype=np.int64),
        sampled=np.zeros(rows, dtype=np.bool_),
    )


def take(source: SampledAnswers, answers: SampledAnswers, rows: Rows) -> None:
    """Copy some rows from one to the other."""
    for name in ("status", "log_value", "log_error", "effective", "samples", "sampled"):
        getattr(answers, name)[rows] = getattr(source, name)[rows]
    for v in answers.targets:
        answers.posteriors[v][rows], answers.errors[v][rows] = source.posteriors[v][rows], source.errors[v][rows]
    for row in rows.tolist():
        answers.reasons.pop(row, None)
        if row in source.reasons:
            answers.reasons[row] = source.reasons[row]
