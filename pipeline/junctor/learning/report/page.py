"""The page of the fit of a network, as HTML. Main function: `write_fit_page`."""

from __future__ import annotations

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
from junctor.learning.report.sections import (
    MOST_LETTERS,
    MOST_PARENTS,
    FitFound,
    FitSections,
    ParameterLine,
    number_text,
)
from junctor.model.errors import counted
from junctor.runs.report.pictures import short
from junctor.runs.report.words import part, share, write
from junctor.runtime.remote import AnyPath

# Lines of the table of variables at most.
MOST_COLUMNS = 1000


def write_fit_page(learned: Learned, tolerance: float, facts: Mapping[str, Any], path: AnyPath) -> None:
    """Write the page of a fit, whole or not at all.

    learned: with its parameters.
    tolerance: of the fit.
    facts: options and files, for the end of the page.
    path: of the file.
    """
    page = FitPage(learned, tolerance, facts)
    write("network.html", page.title, page, path, __package__)


@dataclass(frozen=True, slots=True)
class GapLine:
    """A line of the table of variables; shares are of the cells of the rows."""

    name: str
    observed: float
    missing: float
    soft: float
    is_latent: bool


class FitPage(FitSections):
    """What the page of the fit of a network says.

    learned: with its parameters.
    tolerance: of the fit.
    facts: options and files.
    """

    def __init__(self, learned: Learned, tolerance: float, facts: Mapping[str, Any]) -> None:
        assert learned.parameters is not None
        self._learned = learned
        self._table: pa.Table = learned.parameters
        found = FitFound(
            learned.trace,
            learned.restarts,
            learned.converged,
            learned.reason,
            learned.rows,
            learned.weight,
            learned.reasons,
            learned.check,
        )
        columns = {
            name: self._table[name].to_numpy().astype(np.float64) for name in ("before", "after", "count", "error")
        }
        super().__init__(found, columns, self._starts(), tolerance, facts)
        name = learned.network.name
        # BIF calls networks without a name so.
        name = str(facts.get("network file", "a network")).rsplit("/", 1)[-1] if name in {"", "unknown"} else name
        self.title = f"Fit of {short(name, MOST_LETTERS)}"

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

    # Parameters.

    def _starts(self) -> npt.NDArray[np.int64]:
        """Where each distribution begins in the table of parameters."""
        network, names = self._learned.network, self._table["variable"].combine_chunks().dictionary_encode()
        sizes = [network.variables[network.index[name]].cardinality for name in names.dictionary.to_pylist()]
        codes = names.indices.to_numpy()
        cards = np.array(sizes, dtype=np.int64)[codes]
        runs = np.flatnonzero(np.diff(codes, prepend=-1))
        position = np.arange(len(codes)) - np.repeat(runs, np.diff(runs, append=len(codes)))
        starts: npt.NDArray[np.int64] = np.flatnonzero(position % cards == 0)
        return starts

    @property
    def size(self) -> str:
        """Number of variables."""
        return counted(len(self._learned.network.public), "variable")

    def names(self, numbers: npt.NDArray[np.int64]) -> list[tuple[str, str, str]]:
        """Return variable, state and parents of parameters by number."""
        rows = self._table.select(["variable", "parents", "state"]).take(pa.array(numbers)).to_pylist()
        return [(each["variable"], each["state"], _given(each["parents"])) for each in rows]

    def group_title(self, variable: str, given: str) -> str:
        """Return the title of a distribution."""
        return f"{short(variable, 30)}{f' | {given}' if given else ''}"

    def described(self, line: ParameterLine) -> str:
        """Return a parameter in words."""
        return f"{line.variable} = {line.state}{f' given {line.given}' if line.given else ''}"

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
            "mean log probability of the cells": [number_text(each.score) for each in both],
            "cells that have their most probable state": [share(each.hits) for each in both],
            "mean distance of predicted and seen": [share(each.error) for each in both],
            "by chance": [share(each.by_chance) for each in both],
        }
        return [(name, before, after) for name, (before, after) in found.items()]


def _given(parents: list[dict[str, str]]) -> str:
    """Return `A=yes, B=no`."""
    return short(", ".join(f"{each['variable']}={each['state']}" for each in parents), MOST_PARENTS) if parents else ""
