"""What the pages of all fits say: of networks and of hidden Markov models. Main class: FitSections.

What a page says is decided by its class; the template only places it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from junctor.learning.checkpoint import Restart
from junctor.learning.em import Iteration
from junctor.learning.holdout import HoldoutComparison
from junctor.learning.report import pictures
from junctor.model.errors import counted
from junctor.runs.report.pictures import MOST_STATES, Group, short
from junctor.runs.report.words import SHOWN, part

# Distributions with pictures, and lines of tables at most.
PICTURED, MOST_PARAMETERS, MOST_ITERATIONS, MOST_STARTS, MOST_REASONS = 6, 1000, 200, 50, 12
# Traces of starts in the picture, and points of each.
MOST_TRACES, MOST_POINTS = 50, 500
# Expected rows of a distribution below which its changes come last: they are mostly chance.
FEW_ROWS = 5
# Characters of names.
MOST_LETTERS, MOST_PARENTS = 60, 200

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, slots=True)
class FitFound:
    """What came of any fit.

    trace, restarts, converged, reason: of the loop, as in `junctor.learning.learned`.
    rows: of each status; weight: of those that took part; reasons: row -> why it is left out.
    check: what held-out rows say; None without any.
    """

    trace: Sequence[Iteration]
    restarts: Sequence[Restart]
    converged: bool
    reason: str
    rows: Mapping[str, int]
    weight: float
    reasons: Mapping[int, str]
    check: HoldoutComparison | None


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
    given: str
    before: str
    after: str
    error: str
    change: str
    count: str


class FitSections(ABC):
    """What the page of any fit says.

    found: what came of it.
    columns: float64 [parameters], `before`, `after`, `count` and `error`, nan without errors.
    distributions: int64, where each distribution begins among the parameters.
    tolerance: of the fit.
    facts: options and files.
    """

    shown = SHOWN
    # What a row, the model, and what distributions are counted in are called.
    row, model, unit = "row", "network", "row"
    # Heads of the names of parameters.
    heads = ("variable", "state", "parents")

    def __init__(
        self,
        found: FitFound,
        columns: Mapping[str, Floats],
        distributions: npt.NDArray[np.int64],
        tolerance: float,
        facts: Mapping[str, Any],
    ) -> None:
        self._found, self._tolerance, self._facts = found, tolerance, facts
        self._columns, self._distributions = columns, distributions

    @property
    @abstractmethod
    def size(self) -> str:
        """How large the model is."""

    @abstractmethod
    def names(self, numbers: npt.NDArray[np.int64]) -> list[tuple[str, str, str]]:
        """Return variable, state, and what these are given, of parameters by number."""

    @abstractmethod
    def group_title(self, variable: str, given: str) -> str:
        """Return the title of a distribution."""

    @abstractmethod
    def described(self, line: ParameterLine) -> str:
        """Return a parameter in words."""

    @property
    def rows_text(self) -> str:
        """Weight, and what statuses mean."""
        weight = self._found.weight
        heavy = "" if weight == self._found.rows["ok"] else f" Their weights sum to {weight:,.6g}."
        return (
            f"{self.row.capitalize()}s that are ok took part.{heavy} Impossible {self.row}s are ruled out by zeros of "
            f"the {self.model}, invalid ones cannot be read, held-out ones are kept for the check below."
        )

    @property
    def lead(self) -> str:
        """The finding of all: likelihood of a row at the start and at the end."""
        first, last = (self._of_row(each.log_likelihood) for each in (self._found.trace[0], self._found.trace[-1]))
        end = "" if self._found.converged else " It has not converged."
        return f"Log-likelihood of a {self.row}: {first:.6g} at the start, {last:.6g} after {self._iterations}.{end}"

    @property
    def _iterations(self) -> str:
        return counted(self._found.trace[-1].number, "iteration")

    def _of_row(self, value: float) -> float:
        return value / (self._found.weight or 1.0)

    @property
    def statuses(self) -> list[tuple[str, int, float]]:
        """Status, rows, share."""
        rows = self._found.rows
        return [(name.replace("_", " "), count, part(count, sum(rows.values()))) for name, count in rows.items()]

    @property
    def reasons(self) -> list[tuple[int, str]]:
        """Numbers of the first rows that are left out, from 1, and why they are."""
        found = list(self._found.reasons.items())[:MOST_REASONS]
        return [(row + 1, short(reason, MOST_PARENTS)) for row, reason in found]

    # Objective.

    @property
    def objective_heading(self) -> str:
        """Whether it converged, and why it ended."""
        end = "Converged" if self._found.converged else "Not converged"
        return f"{end} after {self._iterations}: {self._found.reason}"

    @property
    def objective_text(self) -> str:
        """What the objective is."""
        many = len(self._found.restarts)
        starts = f" The best of {many:,} starts is kept." if many > 1 else ""
        return (
            f"The objective is log-likelihood + log prior, here divided by the weight of the {self.row}s. Change is "
            "its gain divided by its absolute value, or by the weight if that is larger; a plain step of a change "
            f"within the tolerance ends the fit.{starts}"
        )

    @cached_property
    def _order(self) -> list[int]:
        """Numbers of the starts, the best first."""
        restarts = self._found.restarts
        return sorted(range(len(restarts)), key=lambda number: -restarts[number].log_posterior)

    @cached_property
    def objective_pictures(self) -> list[str]:
        """Objective and change by iteration."""
        restarts = self._found.restarts
        traces = [np.array(restarts[n].objective[:MOST_POINTS]) / (self._found.weight or 1.0) for n in self._order]
        changes = [each.change for each in self._found.trace[1 : MOST_POINTS + 1]]
        second = pictures.steps(changes, self._tolerance)
        return [pictures.objectives(traces[:MOST_TRACES], 0, self.row), *([second] if second is not None else [])]

    @property
    def restarts(self) -> list[StartLine]:
        """Starts, the best first."""
        best, lines = self._found.restarts[self._order[0]], []
        for number in self._order[:MOST_STARTS]:
            each = self._found.restarts[number]
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
        return max(0, len(self._found.restarts) - MOST_STARTS)

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
            for each in self._found.trace[-MOST_ITERATIONS:]
        ]

    @property
    def other_iterations(self) -> int:
        """Iterations that are not shown."""
        return max(0, len(self._found.trace) - MOST_ITERATIONS)

    # Parameters.

    @cached_property
    def _changes(self) -> Floats:
        """How much each parameter changed; 2 less where few rows tell of its distribution, so that these come last."""
        rows = np.repeat(self._rows, np.diff(self._distributions, append=len(self._columns["after"])))
        changes = np.abs(self._columns["after"] - self._columns["before"])
        # Both states of two change alike but for a rounding: they keep their order.
        ordered: Floats = np.where(rows >= FEW_ROWS, changes, changes - 2.0).round(12)
        return ordered

    @cached_property
    def _rows(self) -> Floats:
        """Expected rows, or steps, of each distribution."""
        rows: Floats = np.add.reduceat(self._columns["count"], self._distributions)
        return rows

    @property
    def has_errors(self) -> bool:
        """Whether there are standard errors."""
        return not np.isnan(self._columns["error"]).all()

    @property
    def parameters_heading(self) -> str:
        """The largest change."""
        if not (self._columns["before"] != self._columns["after"]).any():
            return "No parameter changed"
        first = self.parameters[0]
        text = short(self.described(first), MOST_PARENTS)
        return f"Largest change: {text}, from {first.before} to {first.after}"

    @property
    def parameters_text(self) -> str:
        """How many changed, and by more than chance explains."""
        lines = [f"{counted(len(self._changes), 'probability').replace('ys', 'ies')} in all."]
        few = int((self._rows < FEW_ROWS).sum())
        if few:
            lines.append(f"{counted(few, 'distribution')} with fewer than {FEW_ROWS} expected {self.unit}s come last.")
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
                lines.append(f"Of {unknown:,} the {self.row}s tell too little for an error.")
        else:
            lines.append("Standard errors are there with --errors.")
        return " ".join(lines)

    @cached_property
    def parameters(self) -> list[ParameterLine]:
        """Parameters, the most changed first."""
        order = np.argsort(-self._changes, kind="stable")[:MOST_PARAMETERS]
        names = self.names(order)
        columns = {name: values[order].tolist() for name, values in self._columns.items()}
        lines = []
        for n, (variable, state, given) in enumerate(names):
            before, after, error = columns["before"][n], columns["after"][n], columns["error"][n]
            lines.append(
                ParameterLine(
                    short(variable, MOST_LETTERS),
                    short(state, MOST_LETTERS),
                    given,
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
        return max(0, len(self._changes) - MOST_PARAMETERS)

    @cached_property
    def parameter_pictures(self) -> list[str]:
        """Bars of the most changed distributions."""
        if not len(self._changes):
            return []
        largest = np.maximum.reduceat(self._changes, self._distributions)
        order = np.argsort(-largest, kind="stable")[:PICTURED]
        ends = np.append(self._distributions[1:], len(self._changes))
        groups = [self._group(self._distributions[n], ends[n]) for n in order if largest[n] not in (0.0, -2.0)]
        return pictures.changes(groups) if groups else []

    def _group(self, first: int, end: int) -> Group:
        lines = first + np.sort(np.argsort(-self._changes[first:end], kind="stable")[:MOST_STATES])
        names = self.names(lines)
        before, after, errors = (self._columns[name][lines] for name in ("before", "after", "error"))
        states = [state for _, state, _ in names]
        return Group(
            self.group_title(names[0][0], names[0][2]), states, after, before, errors if self.has_errors else None
        )

    # Held-out rows.

    @property
    def holdout_heading(self) -> str:
        """Whether held-out rows are more probable than before."""
        check = self._found.check
        if check is None:
            return f"No {self.row}s were held out"
        if not check.rows:
            return f"No held-out {self.row} is possible before and after"
        more = "more" if check.gain >= 0 else "less"
        return (
            f"Held-out {self.row}s are {more} probable than before: {check.gain:+.4g} in log-likelihood of a {self.row}"
        )

    @property
    def holdout_text(self) -> str:
        """How rows are compared."""
        check = self._found.check
        if check is None:
            return (
                f"With --holdout 10% a tenth of the {self.row}s is kept, and shows whether the fit holds for other "
                f"{self.row}s."
            )
        text = f"Means are over the {self.row}s that are possible before and after."
        if check.rows > 1:
            text += f" The standard error of the difference is {check.error:.2g}."
        if check.impossible[1]:
            text += f" {self.row.capitalize()}s become impossible where a probability became 0: a prior helps."
        return text

    @property
    def holdout_lines(self) -> list[tuple[str, str, str]]:
        """Name, before, after."""
        check = self._found.check
        if check is None:
            return []
        return [
            (f"{self.row}s possible before and after", f"{check.rows:,}", f"{check.rows:,}"),
            (f"log-likelihood of a {self.row}", *map(number_text, check.log_likelihoods)),  # type: ignore[list-item]
            (f"impossible {self.row}s", f"{check.impossible[0]:,}", f"{check.impossible[1]:,}"),
        ]

    # The fit.

    @property
    def fit_heading(self) -> str:
        """Seconds of iterations."""
        seconds = sum(each.seconds for each in self._found.trace)
        best = " of the best start" if len(self._found.restarts) > 1 else ""
        return f"{self._iterations}{best} in {seconds:.1f} s"

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Options and files."""
        lines = [(self.model, self.size)]
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


def number_text(value: float) -> str:
    """Return a number to five places, a dash for nan."""
    return "–" if math.isnan(value) else f"{value:.5g}"
