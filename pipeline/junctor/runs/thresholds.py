"""Thresholds of a run: conditions such as `impossible > 1%` or `drift(xray) > 0.2` that make it fail at its end.

Main functions: `parse_threshold`, for the command line and jobs, and `check`, called when a run is finished.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from junctor.model.answers import SAMPLED_STATUS_NAMES
from junctor.model.errors import InputError, RunError, ThresholdError, nearest

if TYPE_CHECKING:
    from junctor.runs.statistics import RowKey, Statistics

# SUBJECT COMPARISON VALUE, where SUBJECT is a status, `rows`, `missing(COLUMN)`, `drift(COLUMN)` or
# `mean(log_evidence)`, and VALUE a number or, of statuses and missing cells, a percentage.
FUNCTIONS = ("missing", "drift", "mean")
LOGARITHMS = ("log_evidence", "log_probability", "log_likelihood")
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
# The name of a column may have parentheses itself: the last one ends it.
_FORM = re.compile(r"\s*(?P<subject>[a-z]+)\s*(?:\((?P<name>.*)\))?\s*(?P<how>>=|<=|>|<)\s*(?P<value>[^<>=]*)", re.S)
_VALUE = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")
# Rows that an error names.
SHOWN_ROWS = 3


@dataclass(frozen=True, slots=True)
class Threshold:
    """A condition that must not hold at the end of a run.

    text: as the user wrote it.
    subject: a status, `rows`, `missing`, `drift` or `mean`.
    name: column of `missing` and `drift`, logarithm of `mean`; None for others.
    comparison: `>`, `>=`, `<` or `<=`.
    value: a count, a share where `percent`, or a number.
    percent: whether it is compared with a share of rows or cells.
    """

    text: str
    subject: str
    name: str | None
    comparison: str
    value: float
    percent: bool

    def holds(self, found: float) -> bool:
        """Return whether the condition holds for what was found; never for nan."""
        return _COMPARISONS[self.comparison](found, self.value)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a threshold.

    threshold: the condition.
    found: what was compared, for people.
    crossed: whether it holds.
    rows: some of the rows.
    """

    threshold: Threshold
    found: str
    crossed: bool
    rows: tuple[RowKey, ...] = ()


def parse_threshold(text: str) -> Threshold:
    """Return the threshold that a text says; raises InputError for anything else."""
    form = _FORM.fullmatch(text)
    if form is None:
        raise InputError(f"found {text!r}, expected a threshold such as 'impossible > 1%' or 'drift(xray) > 0.2'")
    subject, name, value = form["subject"], form["name"], form["value"].strip()
    known = (*SAMPLED_STATUS_NAMES, "rows", *(f"{function}(...)" for function in FUNCTIONS))
    if (subject in FUNCTIONS) != (name is not None) or subject not in (*SAMPLED_STATUS_NAMES, "rows", *FUNCTIONS):
        raise InputError(f"{text!r}: found {subject!r}, expected {', '.join(known)}{nearest(subject, known)}")
    name = None if name is None else name.strip()
    if name == "":
        raise InputError(f"{text!r}: found no name in the parentheses, expected that of a column")
    if subject == "mean" and name not in LOGARITHMS:
        raise InputError(f"{text!r}: found {name!r}, expected {', '.join(LOGARITHMS)}")
    number = value.removesuffix("%").strip()
    if not _VALUE.fullmatch(number) or not math.isfinite(float(number)):
        raise InputError(f"{text!r}: found {value!r}, expected a number or a percentage")
    return _checked(Threshold(text.strip(), subject, name, form["how"], float(number), value.endswith("%")))


def _checked(threshold: Threshold) -> Threshold:
    """Return a threshold with a share in place of a percentage; raises InputError for a value that does not suit."""
    if threshold.percent:
        if threshold.subject in ("rows", "drift", "mean"):
            raise InputError(f"{threshold.text!r}: found a percentage, expected a number")
        if not 0 <= threshold.value <= 100:
            raise InputError(f"{threshold.text!r}: found {threshold.value:g}%, expected 0 to 100%")
        parts = threshold.text, threshold.subject, threshold.name, threshold.comparison, threshold.value / 100, True
        return Threshold(*parts)
    if threshold.subject not in ("drift", "mean") and threshold.value != int(threshold.value):
        raise InputError(f"{threshold.text!r}: found {threshold.value:g}, expected a whole number or a percentage")
    if threshold.subject == "drift" and not 0 <= threshold.value <= 1:
        raise InputError(f"{threshold.text!r}: found {threshold.value:g}, expected a distance from 0 to 1")
    return threshold


def refuse_unknown(
    thresholds: Sequence[Threshold],
    statuses: Collection[str],
    logarithm: str,
    columns: Callable[[], Collection[str]] | None,
) -> None:
    """Raise InputError for a threshold on something that the run has not.

    statuses: of the answers.
    logarithm: name of the column of logarithms.
    columns: returns the names of the evidence columns; None before it is read, when any may be there.
    """
    for each in thresholds:
        if each.subject in SAMPLED_STATUS_NAMES and each.subject not in statuses:
            raise InputError(
                f"{each.text!r}: rows of this run are never {each.subject}, expected {', '.join(statuses)}"
            )
        if each.subject == "mean" and each.name != logarithm:
            raise InputError(f"{each.text!r}: the answers have no {each.name}, expected mean({logarithm})")
        if columns is None or each.subject not in ("missing", "drift"):
            continue
        if not (names := columns()):
            raise InputError(
                f"{each.text!r}: no column of the inputs is counted, expected {', '.join(statuses)}, rows or "
                f"mean({logarithm})"
            )
        if each.name not in names:
            hint = nearest(each.name or "", names)
            raise InputError(f"{each.text!r}: the evidence has no column {each.name!r} of the network{hint}")


def verdicts(
    thresholds: Sequence[Threshold], statistics: Statistics, drift: Callable[[Collection[str]], dict[str, float]]
) -> list[Verdict]:
    """Return what comes of each threshold.

    statistics: of the run.
    drift: returns the distance of each of some columns, nan where it is not known.
    """
    distances = drift({each.name for each in thresholds if each.subject == "drift" and each.name is not None})
    return [_verdict(each, statistics, distances) for each in thresholds]


def _verdict(threshold: Threshold, statistics: Statistics, distances: dict[str, float]) -> Verdict:
    subject, name = threshold.subject, threshold.name or ""
    if subject == "drift":
        return Verdict(threshold, f"{distances[name]:.3g}", threshold.holds(distances[name]))
    if subject == "mean":
        mean = statistics.logarithms.spread.mean
        return Verdict(threshold, f"{mean:.4g}", threshold.holds(mean))
    if subject == "rows":
        return Verdict(threshold, f"{statistics.rows:,}", threshold.holds(statistics.rows))
    if subject == "missing":
        cells = statistics.columns.get(name)
        count, whole = (cells.missing, cells.cells) if cells is not None else (0, 0)
    else:
        count, whole = statistics.statuses.get(subject, 0), statistics.rows
    share = count / whole if whole else 0.0
    what = "cells" if subject == "missing" else "rows"
    found = f"{count:,} of {whole:,} {what}, {100 * share:.3g}%"
    crossed = threshold.holds(share if threshold.percent else count)
    rows = () if subject == "missing" else _examples(statistics, subject)
    return Verdict(threshold, found, crossed, rows)


def _examples(statistics: Statistics, status: str) -> tuple[RowKey, ...]:
    """Return the first rows with a status; those of all others where the status is ok."""
    rows = [
        row
        for reason in statistics.reasons.values()
        if (reason.status != "ok" if status == "ok" else reason.status == status)
        for row in reason.examples
    ]
    return tuple(sorted(rows, key=lambda each: each.row)[:SHOWN_ROWS])


def refuse_crossed(
    found: Sequence[Verdict],
    rows: str | None,
    page: str | None,
    kept: str = "the answers are kept",
    what: str = "run",
) -> None:
    """Raise ThresholdError for thresholds that are crossed.

    found: what came of all of them.
    rows: where all rows are that have no answer; None where that is nowhere.
    page: path of the page of the run; None without one.
    kept: what becomes of the work.
    what: is judged.
    """
    crossed = [verdict for verdict in found if verdict.crossed]
    if not crossed:
        return
    texts = []
    for each in crossed:
        more = ", ..." if len(each.rows) == SHOWN_ROWS else ""
        examples = f" ({', '.join(map(str, each.rows))}{more})" if each.rows else ""
        texts.append(f"{each.threshold.text}: found {each.found}{examples}")
    where = [rows] if rows is not None and any(each.rows for each in crossed) else []
    where += [f"the page of the {what} is {page}"] if page is not None else []
    raise ThresholdError("; ".join([*texts, kept, *where]))


def refuse_incomplete(threshold: Threshold, parts: int, counted: int) -> None:
    """Raise RunError where a threshold needs statistics that parts of an earlier version have not."""
    if counted < parts and threshold.subject in FUNCTIONS:
        raise RunError(
            f"{threshold.text!r}: {parts - counted} of {parts} parts are of an earlier version, without statistics: "
            "start afresh with --overwrite"
        )
