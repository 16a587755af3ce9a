"""Exact answers where they fit the budget, samples for the other rows, and the reasons.

Which rows are sampled follows from network, evidence, query and a budget that is fixed when a run begins and kept in
its directory: a run that continues elsewhere, or later, makes the same choices.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from junctor.cost.policy import EXACT_ROW
from junctor.engine.engine import Engine
from junctor.engine.forecast import forecast, forecast_of
from junctor.evidence.batch import EvidenceBatch, SoftEvidence
from junctor.evidence.patterns import PatternGroup, patterns_of
from junctor.model.answers import Answers, SampledAnswers
from junctor.model.errors import RunError
from junctor.model.network import Network
from junctor.model.options import ONE_THREAD, ComputeOptions
from junctor.model.query import Query
from junctor.planning.budget import FOREVER
from junctor.runtime.files import read_json, write_json
from junctor.runtime.machine import allowed_disk
from junctor.runtime.records import typed
from junctor.runtime.remote import AnyPath
from junctor.sampling.engine import SamplingEngine

if TYPE_CHECKING:
    from junctor.cost.model import CostModels

# Seconds of one core that an exact answer to a row may take where no limit is given; tests replace it.
MOST_SECONDS = EXACT_ROW

# Most reasons that are told.
_TOLD_REASONS = 3

Rows = npt.NDArray[np.int64]

logger = logging.getLogger("junctor")


@dataclass(frozen=True, eq=False, slots=True)
class RowsBeyondBudget:
    """Rows whose exact answers exceed the budget, and why."""

    rows: Rows
    reason: str


class AutoEngine:
    """Answers batches of evidence exactly where that fits, by sampling elsewhere. Errors as of both engines.

    network, query: what is asked.
    options: what the process may use.
    costs: returns the cost models of devices; those of this machine if not given.
    expected_rows: how many rows are to come in all batches together, 0 where that is not known.
    budget_file: with the memory and disk that decide which rows are sampled; the first who comes writes it.
    """

    def __init__(
        self,
        network: Network,
        query: Query,
        options: ComputeOptions = ONE_THREAD,
        costs: Callable[[], CostModels] | None = None,
        expected_rows: int = 0,
        budget_file: AnyPath | None = None,
    ) -> None:
        self.network = network
        self.query = query
        self._exact = Engine(network, query, _patient(options), costs, expected_rows)
        budget = _budget(self._exact, options.time_limit, budget_file)
        memory, disk, seconds = int(budget["memory"]), int(budget["disk"]), budget["seconds"]
        judged = ComputeOptions(memory, threads=1, device="cpu", spill_bytes=disk, time_limit=seconds)
        # For forecasts only: one thread of a CPU, so that choices do not depend on the machine. Plans serve both.
        self._judge = self._exact.with_options(judged)

    def with_options(self, options: ComputeOptions) -> AutoEngine:
        """Return an engine with other options that shares what was planned, and the budget."""
        if _patient(options) == self._exact.options:
            return self
        engine = copy(self)
        engine._exact = self._exact.with_options(_patient(options))
        engine.__dict__.pop("_sampler", None)
        return engine

    @property
    def least(self) -> int:
        """Bytes that are needed at the least: none is known before rows are looked at."""
        return 0

    def seconds(self, rows: int) -> float:
        """Return about what so many rows take if all are sampled; coarse."""
        return self._sampler.seconds(rows) if self.network.kind == "bayes" else 0.0

    def answer(self, batch: EvidenceBatch, reserved: int = 0, first_row: int = 0) -> SampledAnswers:
        """Return the answers to all rows of a batch.

        batch: some rows of the run.
        reserved: bytes of earlier answers.
        first_row: number of the first row, which random numbers depend on.
        """
        beyond = np.zeros(batch.rows, dtype=np.bool_)
        for refused in self.beyond(batch):
            beyond[refused.rows] = True
        answers = as_sampled(self._exact.answer(without(batch, beyond), reserved))
        if beyond.any():
            sampled = self._sampler.answer(without(batch, ~beyond), reserved, first_row)
            take(sampled, answers, np.flatnonzero(beyond))
        return answers

    def beyond(self, batch: EvidenceBatch) -> Iterator[RowsBeyondBudget]:
        """Yield the rows of a batch that are sampled, by their reasons."""
        choice = self._judge.choice(batch)
        batch = choice.batch
        for route in forecast_of(self._judge, choice):
            if route.refused is not None:
                yield RowsBeyondBudget(batch.served(route.group.rows), str(route.refused))
            elif route.group.by_trees:
                yield from self._trees_beyond(route.group, batch)

    def _trees_beyond(self, group: PatternGroup, batch: EvidenceBatch) -> Iterator[RowsBeyondBudget]:
        """Yield those of the rows with a tree of their own whose tree is too large, and whose plan is as well."""
        row_engine = self._judge.facts.row_engine
        for exact in patterns_of(batch).exact(group.rows):
            if row_engine.work(exact.pattern.sliced, exact.pattern.weighted)[1] <= row_engine.entries:
                continue
            # A batch of these rows alone has one group.
            keep = np.ones(batch.rows, dtype=np.bool_)
            keep[exact.rows] = False
            for route in forecast(self._judge, without(batch, keep)):
                if route.refused is not None:
                    yield RowsBeyondBudget(batch.served(exact.rows), str(route.refused))

    @cached_property
    def _sampler(self) -> SamplingEngine:
        options = replace(self._exact.options, memory=self._exact.allowed)
        return SamplingEngine(self.network, self.query, options)


def _patient(options: ComputeOptions) -> ComputeOptions:
    """Return the options of the engine that answers: what is left to it was judged already."""
    return replace(options, time_limit=FOREVER)


def _budget(engine: Engine, time_limit: float | None, file: AnyPath | None) -> dict[str, float]:
    """Return the memory and disk, in bytes, and the seconds of a row that decide which rows are sampled."""
    kept = None if file is None else read_json(file)
    # Fixed once: free memory and disk change while a run is interrupted.
    if kept is None:
        disk = engine.options.spill_bytes
        kept = {"memory": engine.allowed, "disk": allowed_disk(engine.facts.spill_dir) if disk is None else disk}
        kept["seconds"] = MOST_SECONDS if time_limit is None else time_limit
        if file is not None:
            write_json(file, kept)
    try:
        # A budget without seconds is of a run that was given no limit of time.
        seconds = typed(float, kept.get("seconds", MOST_SECONDS), "seconds")
        return {name: typed(int, kept[name], name) for name in ("memory", "disk")} | {"seconds": seconds}
    except (KeyError, TypeError) as error:
        raise RunError(f"{file}: not the budget of exact answers ({error}): start afresh with --overwrite") from error


def explain(engine: AutoEngine, batch: EvidenceBatch) -> None:
    """Log how many rows of a batch are sampled, and why those of most rows are."""
    reasons = Counter[str]()
    for refused in engine.beyond(batch):
        reasons[refused.reason] += len(refused.rows)
    # Each pattern has numbers of its own: a batch may have as many reasons as rows.
    for reason, rows in reasons.most_common(_TOLD_REASONS):
        logger.warning("%d of %d rows are sampled: %s", rows, batch.rows, reason)
    if (others := len(reasons) - _TOLD_REASONS) > 0:
        logger.warning("%d of %d rows are sampled in all, for %d more reasons", reasons.total(), batch.rows, others)


# The reason of a row that another engine answers, while this one passes over it.
_ELSEWHERE = "answered elsewhere"


def without(batch: EvidenceBatch, left_out: npt.NDArray[np.bool_]) -> EvidenceBatch:
    """Return a batch of as many rows, some of which are passed over."""
    if not left_out.any():
        return batch
    # As many rows as before: row numbers, and with them random numbers, stay as they are.
    passed = {int(row): _ELSEWHERE for row in np.flatnonzero(left_out)}
    likelihoods = {}
    for v, likelihood in batch.likelihoods.items():
        here = ~left_out[likelihood.rows]
        likelihoods[v] = SoftEvidence(likelihood.rows[here], likelihood.values[here])
    states = {v: np.where(left_out, np.int32(-1), column) for v, column in batch.states.items()}
    return EvidenceBatch(batch.rows, states, likelihoods, {**passed, **batch.invalid})


def as_sampled(answers: Answers) -> SampledAnswers:
    """Return exact answers with errors of 0."""
    rows = len(answers.status)
    return SampledAnswers(
        answers.targets,
        answers.status,
        answers.log_value,
        answers.posteriors,
        reasons=answers.reasons,
        ways=answers.ways,
        climbed=answers.climbed,
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
