"""Scores made of posteriors, slice by slice, so that the posteriors of a batch are never in memory all at once.

Main class: ScoreMaker, used by the engine.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from junctor_kernels.tables import scores as reference

from junctor.evidence.batch import EvidenceBatch, Rows, SoftEvidence, span_of
from junctor.model.answers import INVALID, UNANSWERED, Answers, SampledAnswers, Scores, score_bytes
from junctor.model.network import Network
from junctor.model.query import Query, chosen_states, target_names
from junctor.runtime.threads import in_threads

# Posterior probabilities of a task of a thread, and its most rows.
TASK_STATES, TASK_ROWS = 1 << 17, 1 << 13


class ScoreMaker:
    """Makes the scores of one query; raises EvidenceError for unknown names.

    network, query: what is asked.
    """

    def __init__(self, network: Network, query: Query) -> None:
        self._network = network
        self._query = query
        self.targets = tuple(network.index[name] for name in target_names(network, query))
        self._chosen = tuple((network.index[name], state) for name, state in chosen_states(network, query))

    def size(self, rows: int) -> int:
        """Return the bytes of the scores of so many rows."""
        return score_bytes(self._query, len(self.targets), len(self._chosen), rows)

    def blank(self, batch: EvidenceBatch, memory: npt.NDArray[np.uint8] | None = None) -> Scores:
        """Return scores to be written; memory: `size`, fresh if not given."""
        memory = np.empty(self.size(batch.rows), dtype=np.uint8) if memory is None else memory
        rows, targets, top = batch.rows, len(self.targets), self._query.top or 1
        status = np.full(rows, UNANSWERED, dtype=np.int8)
        status[list(batch.invalid)] = INVALID
        # States last: numbers of eight bytes begin at multiples of eight.
        numbers, best = np.split(memory, [memory.size - 4 * targets * rows * top])
        ends = [targets * rows * top, targets * rows * (top + 1)]
        probabilities, entropies, chosen = np.split(numbers.view(f"f{self._query.number_bytes}"), ends)
        return Scores(
            self.targets,
            status,
            np.full(rows, np.nan),
            reasons=dict(batch.invalid),
            best=best.view(np.int32).reshape(targets, rows, top),
            probabilities=probabilities.reshape(targets, rows, top),
            entropies=entropies.reshape(targets, rows),
            chosen=chosen.reshape(len(self._chosen), rows),
            choices=self._chosen,
        )

    def write(self, answers: Answers, rows: Rows, scores: Scores, threads: int, compiled: bool) -> None:
        """Write the scores of answers to `rows` of a batch; they do not depend on threads or on what is compiled.

        answers: posteriors [rows, cardinality] of the targets and the variables of chosen states.
        rows: int64 [n], of the scores, ascending.
        scores: of the batch.
        threads: number of threads.
        compiled: whether compiled code is loaded, and worth it.
        """
        at = span_of(rows)
        scores.status[at], scores.log_value[at] = answers.status, answers.log_value
        for row, reason in answers.reasons.items():
            scores.reasons[int(rows[row])] = reason
        scores.climbed.update(answers.climbed)
        for n, (v, state) in enumerate(self._chosen):
            scores.chosen[n, at] = answers.posteriors[v][:, state]
        if compiled and answers.memory is not None:
            self._compiled(answers, at, scores, threads)
        else:
            for n, v in enumerate(self.targets):
                whole = scores.best[n], scores.probabilities[n], scores.entropies[n]
                parts = tuple(np.empty((len(rows), *array.shape[1:]), dtype=array.dtype) for array in whole)
                reference.score(answers.posteriors[v], *parts)
                for array, part in zip(whole, parts, strict=True):
                    array[at] = part

    def sampled(self, answers: SampledAnswers) -> Scores:
        """Return the scores of sampled posteriors, with errors and intervals of the probabilities that they state."""
        rows = len(answers.status)
        scores = self.blank(EvidenceBatch(rows))
        self.write(answers, np.arange(rows), scores, 1, False)
        # Of each number its error, and the ends of its interval where there is one.
        kinds = 3 if answers.lower else 1
        beside = np.full((kinds, *scores.probabilities.shape), math.nan, scores.probabilities.dtype)
        chosen_beside = np.empty((kinds, *scores.chosen.shape), scores.chosen.dtype)
        for n, v in enumerate(self.targets):
            there, best = scores.best[n] >= 0, np.maximum(scores.best[n], 0)
            for kind, table in enumerate((answers.errors[v], *answers.intervals_of(v))):
                beside[kind, n] = np.where(there, np.take_along_axis(table, best, axis=1), math.nan)
        for n, (v, state) in enumerate(self._chosen):
            for kind, table in enumerate((answers.errors[v], *answers.intervals_of(v))):
                chosen_beside[kind, n] = table[:, state]
        scores.ways.update(answers.ways)
        scores = replace(
            scores,
            errors=beside[0],
            chosen_errors=chosen_beside[0],
            intervals=beside[1:],
            chosen_intervals=chosen_beside[1:],
            estimates=answers.without_tables(),
        )
        scores.clear_unanswered()
        return scores

    def _compiled(self, answers: Answers, at: Rows | slice, scores: Scores, threads: int) -> None:
        # Imported here: it loads compiled code.
        from junctor_kernels.cpu.scores import score_rows

        total, memory = len(answers.status), answers.memory
        assert memory is not None
        start, places = (at.start, np.zeros(0, dtype=np.int64)) if isinstance(at, slice) else (0, at)

        def make(task: tuple[int, int, int], _: int) -> None:
            first, last, begin = task
            end, numbers = min(begin + TASK_ROWS, total), memory[total * self._starts[first] :]
            arrays = (array[first:last] for array in (scores.best, scores.probabilities, scores.entropies))
            score_rows(numbers, self._sizes[first:last], total, begin, end, start + begin, places, *arrays)

        tasks = [(*targets, begin) for targets in self._shares(total) for begin in range(0, total, TASK_ROWS)]
        in_threads(make, tasks, threads)

    def _shares(self, rows: int) -> Iterator[tuple[int, int]]:
        """Yield first and last target of each task: whole columns lie together in memory, cells of a row do not."""
        most = max(1, TASK_STATES // max(1, min(rows, TASK_ROWS)))
        numbers = (self._starts[:-1] // most).tolist()
        bounds = [n for n, share in enumerate(numbers) if n == 0 or share != numbers[n - 1]]
        yield from pairwise([*bounds, len(numbers)])

    @cached_property
    def _starts(self) -> npt.NDArray[np.int64]:
        return np.cumsum([0, *self._sizes])

    @cached_property
    def _sizes(self) -> npt.NDArray[np.int64]:
        return np.array([self._network.cardinalities[v] for v in self.targets], dtype=np.int64)


def slices_of(groups: Sequence[Rows], most: int) -> Iterator[list[tuple[int, Rows]]]:
    """Yield slices of at most `most` rows: numbers of groups, and their rows in the slice.

    Small groups share a slice, large ones are cut into parts of much the same size.
    """
    parts: list[tuple[int, Rows]] = []
    held = 0
    for number, rows in enumerate(groups):
        for part in np.array_split(rows, -(-len(rows) // most)) if len(rows) else []:
            if held + len(part) > most:
                yield parts
                parts, held = [], 0
            parts.append((number, part))
            held += len(part)
    if parts:
        yield parts


def rows_of(batch: EvidenceBatch, rows: Rows, variables: Collection[int]) -> EvidenceBatch:
    """Return the evidence of some valid rows, all different, in their order; they have none on other variables."""
    if len(rows) == batch.rows and isinstance(span_of(rows), slice):
        return batch
    at = span_of(rows)
    likelihoods = {}
    for v in batch.likelihoods.keys() & variables:
        likelihood = batch.likelihoods[v]
        here, values = likelihood.among(rows)
        order = np.argsort(here)
        likelihoods[v] = SoftEvidence(here[order], values[order])
    return EvidenceBatch(
        len(rows), {v: batch.states[v][at] for v in sorted(batch.states.keys() & variables)}, likelihoods
    )
