"""Scores as an Arrow table: for each target its most probable state, the probability of that state and the entropy.

Main class: ScoreTables, kept by the API from call to call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from junctor.model.answers import Answers, Scores
from junctor.model.query import Query, has_intervals, target_names
from junctor.runs.results import (
    BESIDE_SCORES,
    INTERVAL,
    SHARING_ROWS,
    STATE_TYPE,
    AnswerTables,
    Columns,
    columns_beside,
    fields_beside,
    sampled_columns,
    status_array,
    with_own,
)
from junctor.runtime.arrow import free_names, number_array, reason_array, string_array
from junctor.runtime.arrow_batches import ArrayStruct, BatchMaker, starts_of

# Columns, in this order: `case_id`; for each target X `X`, the name of its most probable state, `X_probability` and
# `X_entropy` (natural logarithm, nats), and of sampled rows `X_error`, the standard error of that probability, where
# the sampler has intervals also their ends `X_lower` and `X_upper`; each `variable=state` that was asked for, and of
# sampled rows `variable=state_error` and so on; `X_mean` and `X_variance` of each expected variable; then as in tables
# of posteriors `log_evidence`, (of sampled rows `log_evidence_error`, `effective_samples`, `samples`, `method`,)
# `status`, `reason`. With `--top K` `X`, `X_probability`, `X_error` and ends are fixed-size lists of K, null beyond the
# last state. Targets keep their names, then come `variable=state`, then all others: a name that is taken gets a
# trailing underscore.


@dataclass(frozen=True, slots=True)
class ScoreColumns:
    """Names of the columns of scores that are not targets; those of targets in the order of the targets.

    chosen, chosen_errors: of `variable=state`, in the order asked.
    beside: the others.
    intervals, chosen_intervals: of the ends of intervals, those of all targets or `variable=state` for each end.
    means, variances: of expected variables, in the order asked.
    """

    chosen: tuple[str, ...]
    probabilities: tuple[str, ...]
    entropies: tuple[str, ...]
    chosen_errors: tuple[str, ...]
    beside: Columns
    intervals: tuple[tuple[str, ...], ...] = ()
    chosen_intervals: tuple[tuple[str, ...], ...] = ()
    means: tuple[str, ...] = ()
    variances: tuple[str, ...] = ()


def score_columns(query: Query, targets: Sequence[str], intervals: bool = False) -> ScoreColumns:
    """Return the names of the columns other than `targets`; intervals: whether the sampler has any."""
    free = free_names(targets)
    chosen = tuple(free(name) for name in query.probabilities)
    probabilities, entropies, errors = (
        tuple(free(f"{name}_{what}") for name in targets) for what in ("probability", "entropy", "error")
    )
    chosen_errors = tuple(free(f"{name}_error") for name in query.probabilities)
    beside = columns_beside(query, errors, free, intervals)
    ends = INTERVAL if intervals else ()
    of_targets, of_chosen = (
        tuple(tuple(free(f"{name}_{end}") for name in names) for end in ends)
        for names in (targets, query.probabilities)
    )
    moments = (tuple(free(f"{name}_{what}") for name, _ in query.expected) for what in ("mean", "variance"))
    return ScoreColumns(chosen, probabilities, entropies, chosen_errors, beside, of_targets, of_chosen, *moments)


class ScoreTables(AnswerTables):
    """Makes tables of the scores of one query; keeps schemas and names of states for the next one."""

    def table(self, answers: Answers, case_ids: pa.Array, apart: bool = True) -> pa.Table:
        """Return the scores of one batch as a table, rows in the order of the batch.

        answers: Scores.
        case_ids: Arrow array [rows].
        apart: as in `AnswerTables.table`.
        """
        assert isinstance(answers, Scores)
        schema, bad = self._schema_and_bad(answers.status, case_ids.type)
        columns = []
        for n, numbers in enumerate(answers.chosen[: len(self._query.probabilities)]):
            columns.append(number_array(numbers, bad))
            if answers.estimates is not None:
                beside = answers.chosen_errors[n], *answers.chosen_intervals[:, n]
                columns += [number_array(each, bad) for each in beside]
        columns += [number_array(numbers, bad) for numbers in self._moments(answers)]
        columns.append(number_array(answers.log_value, bad))
        if answers.estimates is not None:
            columns += sampled_columns(answers.estimates, bad)
        columns += [status_array(answers.status, self._statuses), reason_array(answers.reasons, len(answers.status))]
        return self._table(answers, bad, [case_ids, *columns], schema, apart)

    def _moments(self, answers: Scores) -> Iterator[npt.NDArray[np.floating]]:
        """Yield mean and variance of each expected variable, [rows]; sums in double precision."""
        at = len(self._query.probabilities)
        for _, numbers in self._query.expected:
            values, chances = np.array(numbers), answers.chosen[at : at + len(numbers)].astype(np.float64)
            mean = values @ chances
            away = values[:, None] - mean
            at += len(numbers)
            yield mean.astype(answers.chosen.dtype)
            yield (away * away * chances).sum(axis=0).astype(answers.chosen.dtype)

    def schema(self, case_id_type: pa.DataType) -> pa.Schema:
        """Return the schema of a table of scores, with the names of columns and states in its metadata."""
        network, query = self._network, self._query
        targets, sampled = target_names(network, query), query.method != "exact"
        names = score_columns(query, targets, has_intervals(network, query))
        number = pa.float32() if query.precision == "single" else pa.float64()
        state, probability = STATE_TYPE, number
        if query.top is not None:
            state, probability = pa.list_(STATE_TYPE, query.top), pa.list_(number, query.top)
        fields = [pa.field(names.beside.case_id, case_id_type)]
        for n, target in enumerate(targets):
            fields += [pa.field(target, state), pa.field(names.probabilities[n], probability)]
            fields.append(pa.field(names.entropies[n], number))
            if sampled:
                beside = names.beside.errors[n], *(each[n] for each in names.intervals)
                fields += [pa.field(each, probability) for each in beside]
        for n, name in enumerate(names.chosen):
            fields.append(pa.field(name, number))
            if sampled:
                beside = names.chosen_errors[n], *(each[n] for each in names.chosen_intervals)
                fields += [pa.field(each, number) for each in beside]
        fields += [pa.field(each, number) for pair in zip(names.means, names.variances, strict=True) for each in pair]
        fields += fields_beside(names.beside, sampled)
        columns = {
            "probability_columns": dict(zip(targets, names.probabilities, strict=True)),
            "entropy_columns": dict(zip(targets, names.entropies, strict=True)),
            "probabilities": dict(zip(query.probabilities, names.chosen, strict=True)),
        }
        if query.expected:
            of = [name for name, _ in query.expected]
            columns |= {
                "mean_columns": dict(zip(of, names.means, strict=True)),
                "variance_columns": dict(zip(of, names.variances, strict=True)),
            }
        kinds = zip(BESIDE_SCORES, (names.beside.errors, *names.intervals), strict=False)
        errors = {kind: dict(zip(targets, each, strict=True)) for kind, each in kinds}
        return pa.schema(fields, self._metadata(targets, columns, errors))

    @cached_property
    def _maker(self) -> BatchMaker:
        """What makes the columns of the targets."""
        schema, targets = self._schema(pa.int64()), target_names(self._network, self._query)
        variables = [self._network.index[name] for name in targets]
        # Columns of a target: states, probabilities, the entropy, and of sampled rows errors and ends of intervals.
        sampled = 6 if has_intervals(self._network, self._query) else 4
        each = 3 if self._query.method == "exact" else sampled
        names = {1 + each * n: string_array(self._network.variables[v].states) for n, v in enumerate(variables)}
        filled = {}
        if (top := self._query.top) is not None:
            there = [min(top, self._network.cardinalities[v]) for v in variables]
            of_lists = [place for place in range(each) if place != 2]
            filled = {1 + each * n + place: there[n] for n in range(len(variables)) for place in of_lists}
        return BatchMaker(schema, names, {0, *range(1 + each * len(variables), len(schema))}, filled)

    def _table(
        self,
        answers: Scores,
        bad: npt.NDArray[np.bool_] | None,
        others: Sequence[pa.Array],
        schema: pa.Schema,
        apart: bool,
    ) -> pa.Table:
        """Return a table; others: columns that are not of targets."""
        ranked = [answers.best, answers.probabilities] + [answers.errors] * (answers.estimates is not None)
        ranked += [*answers.intervals]
        if self._query.top is None:
            ranked = [each[:, :, 0] for each in ranked]
        numbers = [*ranked[:2], answers.entropies, *ranked[2:]]
        memory = [np.ascontiguousarray(each) for each in numbers]
        starts = np.stack([starts_of(each) for each in memory], axis=1).reshape(-1)
        arrays = [ArrayStruct(column) for column in others]
        rows, behind = len(answers.status), len(schema) - len(others) + 1
        table = pa.Table.from_batches([self._maker.batch(schema, rows, starts, memory, bad, arrays)])
        places = 0, *range(behind, len(schema))
        if not apart or rows <= SHARING_ROWS:
            return table
        return with_own(dict(zip(places, others, strict=True)), table)
