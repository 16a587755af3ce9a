"""Thresholds of a fit: conditions as of a run, such as `invalid > 1%`, under which nothing is written.

Main functions: `fit_thresholds`, before the work, and `refuse_crossed_fit`, after it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from junctor.learning.learned import LearnedCells
from junctor.model.errors import InputError
from junctor.runs.statistics import Cells, Logarithms, Reason, RowKey, Spread, Statistics
from junctor.runs.thresholds import SHOWN_ROWS, Threshold, parse_threshold, refuse_crossed, refuse_unknown, verdicts
from junctor.runtime.remote import shown

STATUSES = ("ok", "impossible", "invalid")


def fit_thresholds(texts: Iterable[str], columns: Collection[str] | None) -> tuple[Threshold, ...]:
    """Return the thresholds that texts say; raises InputError for one on something that a fit has not.

    texts: such as `missing(xray) > 20%`.
    columns: names of the columns whose cells are counted; None before the network is read.
    """
    thresholds = tuple(map(parse_threshold, texts))
    for each in thresholds:
        if each.subject == "drift":
            raise InputError(
                f"{each.text!r}: a fit has no drift, expected {', '.join(STATUSES)}, rows, missing(...) or "
                "mean(log_likelihood)"
            )
    refuse_unknown(thresholds, STATUSES, "log_likelihood", None if columns is None else lambda: columns)
    return thresholds


def refuse_crossed_fit(
    thresholds: Sequence[Threshold],
    statuses: Mapping[str, int],
    mean: float,
    page: str | None,
    cells: Mapping[str, LearnedCells] | None = None,
    invalid: Iterable[int] = (),
) -> None:
    """Raise ThresholdError for thresholds that are crossed.

    thresholds: of `fit_thresholds`.
    statuses: rows of each status, those held out included.
    mean: log-likelihood of a row that took part.
    page: of the fit, as it was given, None without one.
    cells: of each column.
    invalid: numbers of the first invalid rows, from 0.
    """
    rows = sum(statuses.values())
    examples = tuple(RowKey(row + 1) for row in sorted(invalid)[:SHOWN_ROWS])
    statistics = Statistics(
        rows,
        dict(statuses),
        {"": Reason("invalid", statuses.get("invalid", 0), examples)} if examples else {},
        columns={name: Cells((each.observed,), each.soft, each.missing) for name, each in (cells or {}).items()},
        logarithms=Logarithms(Spread.of(np.array([mean]))),
    )
    kept = "nothing is written: the same command without --fail-if writes the fit"
    refuse_crossed(verdicts(thresholds, statistics, lambda _: {}), None, page and shown(page), kept, "fit")
