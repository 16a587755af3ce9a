"""The page of the fit of a hidden Markov model, as HTML. Main function: `write_chain_page`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from junctor.hmm.learned import LearnedModel
from junctor.hmm.model import HiddenMarkovModel, SparseMatrix
from junctor.hmm.parameter_table import Estimates
from junctor.hmm.report.pictures import before_and_after
from junctor.learning.report.sections import (
    MOST_LETTERS,
    FitFound,
    FitSections,
    ParameterLine,
    number_text,
)
from junctor.model.errors import counted
from junctor.runs.report.pictures import short
from junctor.runs.report.words import part, share, write
from junctor.runtime.remote import AnyPath

# Lines of the table of states at most, and symbols of each.
MOST_STATES, MOST_SYMBOLS = 1000, 3

Floats = npt.NDArray[np.float64]


def write_chain_page(
    learned: LearnedModel, estimates: Estimates, tolerance: float, facts: Mapping[str, Any], path: AnyPath
) -> None:
    """Write the page of a fit, whole or not at all.

    learned: what came of it.
    estimates: its parameters.
    tolerance: of the fit.
    facts: options and files, for the end of the page.
    path: of the file.
    """
    page = ChainPage(learned, estimates, tolerance, facts)
    write("chain.html", page.title, page, path, __package__, "junctor.learning.report")


@dataclass(frozen=True, slots=True)
class StateLine:
    """A line of the table of states; share of the steps, mean steps of a stay before and after, likely symbols."""

    name: str
    share: float
    before: str
    after: str
    symbols: str


class ChainPage(FitSections):
    """What the page of the fit of a hidden Markov model says.

    learned: what came of it.
    estimates: its parameters.
    tolerance: of the fit.
    facts: options and files.
    """

    row, model, unit = "sequence", "model", "step"
    heads = ("part", "state or symbol", "given state")

    def __init__(self, learned: LearnedModel, estimates: Estimates, tolerance: float, facts: Mapping[str, Any]) -> None:
        self._learned, self._estimates = learned, estimates
        fit = learned.fit
        found = FitFound(
            fit.trace,
            learned.restarts,
            fit.converged,
            fit.reason,
            learned.statuses,
            learned.weight,
            learned.reasons,
            learned.check,
        )
        errors = np.full(len(estimates.after), np.nan) if estimates.errors is None else estimates.errors
        columns = {"before": estimates.before, "after": estimates.after, "count": estimates.counts, "error": errors}
        super().__init__(found, columns, estimates.parameters.distributions, tolerance, facts)
        name = str(facts.get("model file", "a model")).rsplit("/", 1)[-1]
        self.title = f"Fit of {short(name, MOST_LETTERS)}"

    @property
    def rows_heading(self) -> str:
        """How many sequences and steps it was learned from, and how many of these are missing."""
        learned = self._learned
        missing = share(part(learned.missing, learned.steps))
        steps = f"{counted(learned.steps, 'step')} in all, {missing} of them without an observation"
        return f"Learned from {counted(learned.statuses['ok'], 'sequence')}, {steps}"

    # Parameters.

    @property
    def size(self) -> str:
        """States and symbols."""
        model = self._learned.model
        symbols = counted(model.symbols, "symbol") if model.symbols else "no emissions"
        return f"{counted(model.states, 'state')}, {symbols}{', sparse transitions' if model.sparse else ''}"

    def names(self, numbers: npt.NDArray[np.int64]) -> list[tuple[str, str, str]]:
        """Return part, state or symbol, and given state of parameters by number."""
        return self._estimates.names(numbers)

    def group_title(self, variable: str, given: str) -> str:
        """Return the title of a distribution."""
        return f"{variable} of {given}" if variable == "emission" else f"{variable} from {given}" if given else variable

    def described(self, line: ParameterLine) -> str:
        """Return a parameter in words."""
        if line.variable == "start":
            return f"start in {line.state}"
        if line.variable == "emission":
            return f"emission of {line.state} in {line.given}"
        return f"transition from {line.given} to {line.state}"

    @cached_property
    def _models(self) -> tuple[HiddenMarkovModel, HiddenMarkovModel]:
        """The model before and after."""
        estimates = self._estimates
        return estimates.parameters.model_of(estimates.before), self._learned.model

    @property
    def has_symbols(self) -> bool:
        """Whether states emit symbols."""
        return self._learned.model.symbols > 0

    @cached_property
    def tables(self) -> list[str]:
        """All parameters before and after, a picture for each part."""
        before, after = self._models
        states, symbols = after.state_names, after.symbol_names
        drawn = [
            before_and_after("Start", (before.start[None], after.start[None]), None, states, "state"),
            before_and_after(
                "Transition, from row to column", (before.transition, after.transition), states, states, "state"
            ),
        ]
        if before.emission is not None and after.emission is not None:
            emissions = before.emission, after.emission
            drawn.append(before_and_after("Emission, rows are states", emissions, states, symbols, "symbol"))
        return drawn

    @cached_property
    def states(self) -> list[StateLine]:
        """States, those of most steps first."""
        (before, after), steps = self._models, self._steps
        order = np.argsort(-steps, kind="stable")[:MOST_STATES]
        stays = [_stays(each)[order].tolist() for each in (before, after)]
        lines = []
        for state, first, last in zip(order.tolist(), *stays, strict=True):
            name = after.state_names[state] if after.state_names else str(state)
            symbols = _likely(after, state)
            lines.append(
                StateLine(
                    short(name, MOST_LETTERS), part(steps[state], steps.sum()), _stay(first), _stay(last), symbols
                )
            )
        return lines

    @property
    def other_states(self) -> int:
        """States that are not shown."""
        return max(0, self._learned.model.states - MOST_STATES)

    @cached_property
    def _steps(self) -> Floats:
        """Expected steps in each state."""
        parameters, counts = self._estimates.parameters, self._estimates.counts
        moves, matrix = parameters.part_of(counts, "transition"), parameters.model.transition
        if isinstance(matrix, SparseMatrix):
            into = np.bincount(matrix.columns, moves, parameters.model.states)
        else:
            into = moves.sum(axis=0)
        steps: Floats = parameters.part_of(counts, "start") + into
        return steps


def _stays(model: HiddenMarkovModel) -> Floats:
    """Return the mean number of steps that a state lasts."""
    every = np.arange(model.states)
    matrix = model.transition
    again = matrix.at(every, every) if isinstance(matrix, SparseMatrix) else matrix.diagonal()
    with np.errstate(divide="ignore"):
        # Roundings may exceed 1.
        lasting: Floats = 1.0 / np.maximum(1.0 - again, 0.0)
    return lasting


def _stay(steps: float) -> str:
    return number_text(steps) if np.isfinite(steps) else "for ever"


def _likely(model: HiddenMarkovModel, state: int) -> str:
    """Return the most probable symbols of a state."""
    if model.emission is None:
        return ""
    row = model.emission[state]
    order = np.argsort(-row, kind="stable")[:MOST_SYMBOLS]
    names = model.symbol_names or [str(n) for n in range(model.symbols)]
    return ", ".join(f"{short(names[n], MOST_LETTERS)} ({share(float(row[n]))})" for n in order.tolist() if row[n] > 0)
