"""The page of a fit, as HTML.

Main function: `write_fit_page`. What the page says is decided here, by `FitPage`; the template only places it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from junctor.learning.check import RELIABILITY_BINS
from junctor.learning.learned import Learned
from junctor.learning.report import pictures
from junctor.runs.report.pictures import MOST_STATES, Group, short
from junctor.runs.report.words import SHOWN, counted, part, share, write
from junctor.runtime.remote import AnyPath

# Distributions with pictures, and lines of tables at most.
PICTURED, MOST_PARAMETERS, MOST_COLUMNS, MOST_ITERATIONS, MOST_STARTS, MOST_REASONS = 6, 1000, 1000, 200, 50, 12
# Traces of starts in the picture, and points of each.
MOST_TRACES, MOST_POINTS = 50, 500
# Expected rows of a distribution below which its changes come last: they are mostly chance.
FEW_ROWS = 5
# Characters of names.
MOST_LETTERS, MOST_PARENTS = 60, 200

Floats = npt.NDArray[np.float64]


def write_fit_page(learned: Learned, tolerance: float, facts: Mapping[str, Any], path: AnyPath) -> None:
    """Write the page of a fit, whole or not at all.

    learned: with its parameters.
    tolerance: of the fit.
    facts: options and files, for the end of the page.
    path: of the file.
    """
    page = FitPage(learned, tolerance, facts)
    write("fit.html", page.title, page, path, __package__)


@dataclass(frozen=True, slots=True)
class GapLine:
    """A line of the table of variables; shares are of the cells of the rows."""

    name: str
    observed: float
    missing: float
    soft: float
    is_latent: bool


@dataclass(frozen=True, slots=True)
class StartLine:
    """A line of the table of starts."""

    number: int
    iterations: int
    log_likelihood: str
    objective: str
    below: str
    end: str


@dataclass(frozen=True, slots=True)
class ParameterLine:
    """A line of the table of parameters."""

    variable: str
    state: str
    parents: str
    before: str
    after: str
    error: str
    change: str
    count: str


class FitPage:
    """What the page of a fit says.

    learned: with its parameters.
    tolerance: of the fit.
    facts: options and files.
    """

    shown = SHOWN

    def __init__(self, learned: Learned, tolerance: float, facts: Mapping[str, Any]) -> None:
        assert learned.parameters is not None
        self._learned, self._tolerance, self._facts = learned, tolerance, facts
        self._table: pa.Table = learned.parameters
        name = learned.network.name
        # BIF calls networks without a name so.
        name = str(facts.get("network file", "a network")).rsplit("/", 1)[-1] if name in {"", "unknown"} else name
        self.title = f"Fit of {short(name, MOST_LETTERS)}"

    @property
    def lead(self) -> str:
        """The finding of all: likelihood of a row at the start and at the end."""
        first, last = (self._of_row(each.log_likelihood) for each in (self._learned.trace[0], self._learned.trace[-1]))
        end = "" if self._learned.converged else " It has not converged."
        return f"Log-likelihood of a row: {first:.6g} at the start, {last:.6g} after {self._iterations}.{end}"

    @property
    def _iterations(self) -> str:
        return counted(self._learned.trace[-1].number, "iteration")

    def _of_row(self, value: float) -> float:
        return value / (self._learned.weight or 1.0)

    # Rows.

    @property
    def rows_heading(self) -> str:
        """How many rows it was learned from, and how much of them is missing."""
        cells = self._learned.cells.values()
        whole = sum(self._cells_of(name) for name in self._learned.cells)
        missing = share(part(sum(each.missing for each in cells), whole))
        return f"Learned from {counted(self._learned.rows['ok'], 'row')}, {missing} of their cells missing"

    def _cells_of(self, name: str) -> int:
        cells = self._learned.cells[name]
        return cells.observed + cells.soft + cells.missing

    @property
    def rows_text(self) -> str:
        """Weight, and what statuses mean."""
        weight = self._learned.weight
        heavy = "" if weight == self._learned.rows["ok"] else f" Their weights sum to {weight:,.6g}."
        return (
            f"Rows that are ok took part.{heavy} Impossible rows are ruled out by zeros of the network, invalid ones "
            "cannot be read, held-out ones are kept for the check below."
        )

    @property
    def statuses(self) -> list[tuple[str, int, float]]:
        """Status, rows, share."""
        rows = self._learned.rows
        return [(name.replace("_", " "), count, part(count, sum(rows.values()))) for name, count in rows.items()]

    @property
    def reasons(self) -> list[tuple[int, str]]:
        """First invalid rows, from 1, and why they are."""
        found = list(self._learned.reasons.items())[:MOST_REASONS]
        return [(row + 1, short(reason, MOST_PARENTS)) for row, reason in found]

    @cached_property
    def columns(self) -> list[GapLine]:
        """Variables, those with the most gaps first."""
        latent, lines = set(self._learned.latent), []
        for name, cells in self._learned.cells.items():
            whole = self._cells_of(name)
            shares = part(cells.observed, whole), part(cells.missing, whole), part(cells.soft, whole)
            lines.append(GapLine(short(name, MOST_LETTERS), *shares, name in latent))
        return sorted(lines, key=lambda each: -each.missing)[:MOST_COLUMNS]

    @property
    def has_soft(self) -> bool:
        """Whether a variable has likelihoods."""
        return any(cells.soft for cells in self._learned.cells.values())

    @property
    def gaps_text(self) -> str:
        """How many variables have gaps."""
        cells = self._learned.cells.values()
        gaps, left = sum(each.missing > 0 for each in cells), len(cells) - MOST_COLUMNS
        latent = f", {len(self._learned.latent):,} of them latent: no row observes them" if self._learned.latent else ""
        more = f" {left:,} variables with fewer gaps are left out." if left > 0 else ""
        return f"{gaps:,} of {counted(len(cells), 'variable')} have gaps{latent}.{more}"

    # Objective.

    @property
    def objective_heading(self) -> str:
        """Whether it converged, and why it ended."""
        end = "Converged" if self._learned.converged else "Not converged"
        return f"{end} after {self._iterations}: {self._learned.reason}"

    @property
    def objective_text(self) -> str:
        """What the objective is."""
        many = len(self._learned.restarts)
        starts = f" The best of {many:,} starts is kept." if many > 1 else ""
        return (
            "The objective is log-likelihood + log prior, here divided by the weight of the rows. Change is its gain "
            "divided by its absolute value, or by the weight if that is larger; a plain step of a change within the "
            f"tolerance ends the fit.{starts}"
        )

    @cached_property
    def _order(self) -> list[int]:
        """Numbers of the starts, the best first."""
        restarts = self._learned.restarts
        return sorted(range(len(restarts)), key=lambda number: -restarts[number].log_posterior)

    @cached_property
    def objective_pictures(self) -> list[str]:
        """Objective and change by iteration."""
        restarts = self._learned.restarts
        traces = [np.array(restarts[n].objective[:MOST_POINTS]) / (self._learned.weight or 1.0) for n in self._order]
        changes = [each.change for each in self._learned.trace[1 : MOST_POINTS + 1]]
        second = pictures.steps(changes, self._tolerance)
        return [pictures.objectives(traces[:MOST_TRACES], 0), *([second] if second is not None else [])]

    @property
    def restarts(self) -> list[StartLine]:
        """Starts, the best first."""
        best, lines = self._learned.restarts[self._order[0]], []
        for number in self._order[:MOST_STARTS]:
            each = self._learned.restarts[number]
            lines.append(
                StartLine(
                    number + 1,
                    each.iterations,
                    f"{each.log_likelihood:,.3f}",
                    f"{each.log_posterior:,.3f}",
                    f"{best.log_posterior - each.log_posterior:,.3f}",
                    "converged" if each.converged else "not converged",
                )
            )
        return lines

    @property
    def other_restarts(self) -> int:
        """Starts that are not shown."""
        return max(0, len(self._learned.restarts) - MOST_STARTS)

    @property
    def iterations(self) -> list[tuple[str, ...]]:
        """Cells of the lines of iterations."""
        return [
            (
                f"{each.number:,}",
                f"{each.log_likelihood:,.6f}",
                f"{each.log_posterior:,.6f}",
                f"{each.change:.3g}" if each.number else "–",
                f"{each.step:.3g}" if each.number else "–",
                f"{each.seconds:.3g}",
            )
            for each in self._learned.trace[-MOST_ITERATIONS:]
        ]

    @property
    def other_iterations(self) -> int:
        """Iterations that are not shown."""
        return max(0, len(self._learned.trace) - MOST_ITERATIONS)

    # Parameters.

    @cached_property
    def _columns(self) -> dict[str, Floats]:
        names = ("before", "after", "count", "error")
        return {name: self._table[name].to_numpy().astype(np.float64) for name in names}

    @cached_property
    def _distributions(self) -> npt.NDArray[np.int64]:
        """Where each distribution begins in the table of parameters."""
        network, names = self._learned.network, self._table["variable"].combine_chunks().dictionary_encode()
        sizes = [network.variables[network.index[name]].cardinality for name in names.dictionary.to_pylist()]
        codes = names.indices.to_numpy()
        cards = np.array(sizes, dtype=np.int64)[codes]
        runs = np.flatnonzero(np.diff(codes, prepend=-1))
        position = np.arange(len(codes)) - np.repeat(runs, np.diff(runs, append=len(codes)))
        starts: npt.NDArray[np.int64] = np.flatnonzero(position % cards == 0)
        return starts

    @cached_property
    def _changes(self) -> Floats:
        """How much each parameter changed; 2 less where few rows tell of its distribution, so that these come last."""
        rows = np.repeat(self._rows, np.diff(self._distributions, append=self._table.num_rows))
        changes = np.abs(self._columns["after"] - self._columns["before"])
        # Both states of two change alike but for a rounding: they keep their order.
        ordered: Floats = np.where(rows >= FEW_ROWS, changes, changes - 2.0).round(12)
        return ordered

    @cached_property
    def _rows(self) -> Floats:
        """Expected rows of each distribution."""
        rows: Floats = np.add.reduceat(self._columns["count"], self._distributions)
        return rows

    @property
    def has_errors(self) -> bool:
        """Whether there are standard errors."""
        return bool(self._table["error"].null_count < self._table.num_rows)

    @property
    def parameters_heading(self) -> str:
        """The largest change."""
        if not (self._columns["before"] != self._columns["after"]).any():
            return "No parameter changed"
        first = self.parameters[0]
        given = f" given {first.parents}" if first.parents else ""
        text = short(f"{first.variable} = {first.state}{given}", MOST_PARENTS)
        return f"Largest change: {text}, from {first.before} to {first.after}"

    @property
    def parameters_text(self) -> str:
        """How many changed, and by more than chance explains."""
        lines = [f"{counted(self._table.num_rows, 'probability').replace('ys', 'ies')} in all."]
        few = int((self._rows < FEW_ROWS).sum())
        if few:
            lines.append(f"{counted(few, 'distribution')} with fewer than {FEW_ROWS} expected rows come last.")
        if self.has_errors:
            errors = self._columns["error"]
            known = (errors > 0) & np.isfinite(errors)
            changes = np.abs(self._columns["after"] - self._columns["before"])
            beyond = int((changes[known] > pictures.WHISKER * errors[known]).sum())
            lines.append(
                f"{beyond:,} of {int(known.sum()):,} with a standard error changed by more than twice that. Fixed "
                "ones, and those of 0 or 1, have an error of 0."
            )
            unknown = int(np.isinf(errors).sum())
            if unknown:
                lines.append(f"Of {unknown:,} the rows tell too little for an error.")
        else:
            lines.append("Standard errors are there with --errors.")
        return " ".join(lines)

    @cached_property
    def parameters(self) -> list[ParameterLine]:
        """Parameters, the most changed first."""
        order = np.argsort(-self._changes, kind="stable")[:MOST_PARAMETERS]
        names = self._table.select(["variable", "parents", "state"]).take(pa.array(order)).to_pylist()
        columns = {name: values[order].tolist() for name, values in self._columns.items()}
        lines = []
        for n, each in enumerate(names):
            before, after, error = columns["before"][n], columns["after"][n], columns["error"][n]
            lines.append(
                ParameterLine(
                    short(each["variable"], MOST_LETTERS),
                    short(each["state"], MOST_LETTERS),
                    _given(each["parents"]),
                    probability(before),
                    probability(after),
                    "unknown" if math.isinf(error) else probability(error),
                    f"{'+' if after > before else '-' if after < before else ''}{probability(abs(after - before))}",
                    f"{columns['count'][n]:,.1f}",
                )
            )
        return lines

    @property
    def other_parameters(self) -> int:
        """Parameters that are not shown."""
        return max(0, int(self._table.num_rows) - MOST_PARAMETERS)

    @cached_property
    def parameter_pictures(self) -> list[str]:
        """Bars of the most changed distributions."""
        if not self._table.num_rows:
            return []
        largest = np.maximum.reduceat(self._changes, self._distributions)
        order = np.argsort(-largest, kind="stable")[:PICTURED]
        ends = np.append(self._distributions[1:], self._table.num_rows)
        groups = [self._group(self._distributions[n], ends[n]) for n in order if largest[n] not in (0.0, -2.0)]
        return pictures.changes(groups) if groups else []

    def _group(self, first: int, end: int) -> Group:
        lines = first + np.sort(np.argsort(-self._changes[first:end], kind="stable")[:MOST_STATES])
        names = self._table.select(["variable", "parents", "state"]).take(pa.array(lines)).to_pylist()
        given = _given(names[0]["parents"])
        title = f"{short(names[0]['variable'], 30)}{f' | {given}' if given else ''}"
        before, after, errors = (self._columns[name][lines] for name in ("before", "after", "error"))
        return Group(title, [each["state"] for each in names], after, before, errors if self.has_errors else None)

    # Held-out rows.

    @property
    def holdout_heading(self) -> str:
        """Whether held-out rows are more probable than before."""
        check = self._learned.check
        if check is None:
            return "No rows were held out"
        if not check.rows:
            return "No held-out row is possible before and after"
        more = "more" if check.gain >= 0 else "less"
        return f"Held-out rows are {more} probable than before: {check.gain:+.4g} in log-likelihood of a row"

    @property
    def holdout_text(self) -> str:
        """How rows are compared."""
        check = self._learned.check
        if check is None:
            return "With --holdout 10% a tenth of the rows is kept, and shows whether the fit holds for other rows."
        text = "Means are over the rows that are possible before and after."
        if check.rows > 1:
            text += f" The standard error of the difference is {check.error:.2g}."
        if check.impossible[1]:
            text += " Rows become impossible where a probability became 0: a prior helps."
        return text

    @property
    def holdout_lines(self) -> list[tuple[str, str, str]]:
        """Name, before, after."""
        check = self._learned.check
        if check is None:
            return []
        return [
            ("rows possible before and after", f"{check.rows:,}", f"{check.rows:,}"),
            ("log-likelihood of a row", *map(_number, check.log_likelihoods)),  # type: ignore[list-item]
            ("impossible rows", f"{check.impossible[0]:,}", f"{check.impossible[1]:,}"),
        ]

    # Calibration.

    @property
    def calibration_heading(self) -> str:
        """How far probabilities of cells are off."""
        check = self._learned.check
        if check is None or check.after is None:
            return "No cells to check probabilities by"
        return (
            f"Probabilities of held-out cells are off by {share(check.after.error)}, "
            f"{share(check.after.by_chance)} by chance alone"
        )

    @property
    def calibration_text(self) -> str:
        """How cells are chosen."""
        check = self._learned.check
        if check is None or check.after is None:
            return "Calibration needs rows that are held out, and have states."
        text = (
            f"{counted(check.cells, 'cell')} of held-out rows, chosen by a hash, were taken out one at a time. Each "
            "state has a probability given the other cells; where it is 30 %, 30 % of the cells should have that state."
        )
        if check.other_cells:
            text += f" {check.other_cells:,} more are in rows that are impossible without them."
        return text

    @property
    def calibration_picture(self) -> str | None:
        """What is seen by what is predicted."""
        check = self._learned.check
        if check is None or check.before is None or check.after is None:
            return None
        return pictures.reliability(check.before.bins, check.after.bins)

    @property
    def bins(self) -> list[tuple[str, int, float, float, float]]:
        """Bin, states, predicted, seen, by chance."""
        check = self._learned.check
        assert check is not None
        assert check.after is not None
        lines = []
        for each in check.after.bins:
            low = min(int(each.predicted * RELIABILITY_BINS), RELIABILITY_BINS - 1) / RELIABILITY_BINS
            name = f"{100 * low:.0f} to {100 * (low + 1 / RELIABILITY_BINS):.0f} %"
            lines.append((name, each.states, each.predicted, each.seen, each.by_chance))
        return lines

    @property
    def calibration_lines(self) -> list[tuple[str, str, str]]:
        """Name, before, after."""
        check = self._learned.check
        assert check is not None
        assert check.before is not None
        assert check.after is not None
        both = check.before, check.after
        found = {
            "mean log probability of the cells": [_number(each.score) for each in both],
            "cells that have their most probable state": [share(each.hits) for each in both],
            "mean distance of predicted and seen": [share(each.error) for each in both],
            "by chance": [share(each.by_chance) for each in both],
        }
        return [(name, before, after) for name, (before, after) in found.items()]

    # The fit.

    @property
    def fit_heading(self) -> str:
        """Seconds of iterations."""
        seconds = sum(each.seconds for each in self._learned.trace)
        best = " of the best start" if len(self._learned.restarts) > 1 else ""
        return f"{self._iterations}{best} in {seconds:.1f} s"

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Options and files."""
        lines = [("network", f"{counted(len(self._learned.network.public), 'variable')}")]
        for name, value in self._facts.items():
            if value not in (None, (), [], False, ""):
                text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
                lines.append((name.replace("_", " "), short(text, 400)))
        return lines


def probability(value: float) -> str:
    """Return a probability that is 0 or 1 only where it is; a dash for nan."""
    if math.isnan(value):
        return "–"
    if value in (0.0, 1.0):
        return f"{value:.0f}"
    return f"{value:.4f}" if 0.001 <= value <= 0.9995 else f"{value:.1e}" if value < 0.001 else f"{value:.7f}"


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.5g}"


def _given(parents: list[dict[str, str]]) -> str:
    """Return `A=yes, B=no`."""
    return short(", ".join(f"{each['variable']}={each['state']}" for each in parents), MOST_PARENTS) if parents else ""
