"""Answers to sampled rows, filled in row by row. Main class: AnswerBuffer, written by `sampling.engine`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from junctor.evidence.batch import Rows
from junctor.model.answers import OK, UNRELIABLE, SampledAnswers
from junctor.sampling.estimate import LEAST_EFFECTIVE, Estimate

if TYPE_CHECKING:
    from junctor.sampling.cases import CaseLayout

Places = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False, slots=True)
class EstimateSlots:
    """Positions of the estimates of a pattern in the answers, one for each state of each drawn target.

    places: int64, index in an estimate.
    targets: int64, number of the target.
    states: int64, its state.
    observed: (number, variable) of targets whose state is known.
    """

    places: Places
    targets: Places
    states: Places
    observed: tuple[tuple[int, int], ...]


def slots_of(targets: Sequence[int], layout: CaseLayout) -> EstimateSlots:
    """Return the positions of the estimates of a pattern; `targets`: variables, in the order asked."""
    return places_of(targets, layout.drawn, layout.network.network.cardinalities)


def places_of(targets: Sequence[int], drawn: Sequence[int], cardinalities: Sequence[int]) -> EstimateSlots:
    """Return the positions of estimates.

    targets: variables, in the order asked.
    drawn: variables whose states are the slots of an estimate, one after another.
    cardinalities: number of states of every variable.
    """
    starts = np.cumsum([0, *(cardinalities[v] for v in drawn)]).tolist()
    place = {v: n for n, v in enumerate(drawn)}
    rows = [
        (slot, target, slot - starts[place[v]])
        for target, v in enumerate(targets)
        if v in place
        for slot in range(starts[place[v]], starts[place[v] + 1])
    ]
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3)
    at, number, state = (np.ascontiguousarray(columns[:, i]) for i in range(3))
    observed = tuple((number, v) for number, v in enumerate(targets) if v not in place)
    return EstimateSlots(at, number, state, observed)


class AnswerBuffer:
    """The answers to some rows of a batch, which hold no numbers until their estimates are written.

    cardinalities: number of states of every variable.
    answers: to the batch.
    rows: that are sampled.
    """

    def __init__(self, cardinalities: Sequence[int], answers: SampledAnswers, rows: Rows) -> None:
        assert answers.memory is not None
        assert answers.error_memory is not None
        self.answers = answers
        self._posteriors, self._errors = answers.memory, answers.error_memory
        self._sizes = np.array([cardinalities[v] for v in answers.targets], dtype=np.int64)
        self._starts = len(answers.status) * (np.cumsum(self._sizes) - self._sizes)
        # NaN, so that a number that was never written cannot pass for an answer.
        for table in (*answers.posteriors.values(), *answers.errors.values()):
            table[rows] = np.nan
        answers.log_error[rows], answers.sampled[rows] = np.nan, True

    def write(self, row: int, slots: EstimateSlots, hard: Mapping[int, int], estimate: Estimate) -> None:
        """Write the estimate of a row.

        row: of the batch.
        slots: positions for its pattern.
        hard: observed variable -> state.
        estimate: of its samples.
        """
        answers = self.answers
        # All targets at once: a loop over targets takes as long as the rest of a row on a GPU.
        at = self._starts[slots.targets] + row * self._sizes[slots.targets] + slots.states
        errors = estimate.errors[slots.places]
        self._posteriors[at], self._errors[at] = estimate.posteriors[slots.places], errors
        # Observed targets are not sampled: their state has probability 1, without an error.
        for number, v in slots.observed:
            start = int(self._starts[number] + row * self._sizes[number])
            self._errors[start : start + int(self._sizes[number])] = 0.0
            for numbers in (self._posteriors, *answers.interval_memory):
                numbers[start : start + int(self._sizes[number])] = 0.0
                numbers[start + hard[v]] = 1.0
        answers.status[row], answers.log_value[row] = OK, estimate.log_evidence
        answers.log_error[row], answers.effective[row] = estimate.log_error, estimate.effective
        answers.samples[row] = estimate.samples
        intervals = estimate.intervals
        if intervals is not None:
            for numbers, ends in zip(answers.interval_memory, (intervals.lower, intervals.upper), strict=True):
                numbers[at] = ends[slots.places]
            answers.log_bounds[:, row] = intervals.log_evidence
            errors = intervals.half[slots.places]
        if not estimate.reached:
            largest = float(errors.max(initial=0.0))
            what = "the largest error" if intervals is None else "half of the widest interval"
            answers.reasons[row] = f"{what} is {largest:.2g} after {estimate.samples:,} samples"
        if estimate.effective < LEAST_EFFECTIVE:
            few = f"{estimate.effective:.2g} effective samples are too few to trust these numbers and errors"
            advice = ": take more, or another sampler"
            if intervals is not None:
                advice = ", while the intervals hold: take more, or more --table-entries"
            answers.leave(row, UNRELIABLE, few + advice)
