"""The page of two runs side by side, as HTML: what drifted from A to B. Main function: `write_comparison`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from junctor.model.errors import counted
from junctor.runs.drift import DRIFTED, by_chance, distance
from junctor.runs.outcome import Outcome
from junctor.runs.report import pictures
from junctor.runs.report.words import (
    SHOWN,
    Table,
    bars,
    differing,
    drift_heading,
    facts_of,
    folder_of,
    means_of,
    missing_statistics,
    part,
    pictured,
    share,
    shares_of,
    states_of,
    write,
)
from junctor.runs.statistics import Cells, Spread
from junctor.runtime.remote import AnyPath


def write_comparison(one: Outcome, other: Outcome, path: AnyPath) -> None:
    """Write the page of two runs side by side, whole or not at all."""
    page = Comparison(one, other)
    write("comparison.html", page.title, page, path)


@dataclass(frozen=True, slots=True)
class ComparedColumn:
    """A line of the table of the columns of two runs; shares are of cells."""

    name: str
    distance: float
    by_chance: float
    drifted: bool
    missing_a: float
    missing_b: float
    difference: str


class Comparison:
    """What the page of two runs says: A is before, B after."""

    shown = SHOWN

    def __init__(self, one: Outcome, other: Outcome) -> None:
        self._one, self._other = one, other
        self.title = f"{folder_of(one)} (A) and {folder_of(other)} (B)"

    @property
    def lead(self) -> str:
        """The finding of all."""
        changed = sum(each.drifted for each in self.columns), sum(each[3] for each in self.targets)
        columns, targets = (counted(n, what) for n, what in zip(changed, ("column", "target"), strict=True))
        return f"{columns} and {targets} drifted from A to B." if any(changed) else "Nothing drifted from A to B."

    @property
    def missing(self) -> str:
        """What an earlier version has not counted."""
        return " ".join(filter(None, (missing_statistics(each) for each in (self._one, self._other))))

    @property
    def rows_heading(self) -> str:
        """Change of the share of rows that are ok."""
        one, other = (part(each.statistics.statuses.get("ok", 0), each.statistics.rows) for each in self._both)
        return f"{share(one)} of the rows are ok in A, {share(other)} in B"

    @property
    def statuses(self) -> list[tuple[str, int, float, int, float]]:
        """Status, rows and shares of both."""
        a, b = (each.statistics for each in self._both)
        return [
            (name, x := a.statuses.get(name, 0), part(x, a.rows), y := b.statuses.get(name, 0), part(y, b.rows))
            for name in a.statuses | b.statuses
        ]

    @cached_property
    def columns(self) -> list[ComparedColumn]:
        """Columns of both runs, the most drifted first, then those of one run alone."""
        a, b = (each.statistics.columns for each in self._both)
        found = [self._column(name, a[name], b[name]) for name in a if name in b and self._alike(name)]
        for here, word, cells in ((a.keys() - b.keys(), "A", a), (b.keys() - a.keys(), "B", b)):
            for name in sorted(here):
                missing = [part(cells[name].missing, cells[name].cells) if word == run else math.nan for run in "AB"]
                found.append(
                    ComparedColumn(name, math.nan, math.nan, False, missing[0], missing[1], f"in {word} alone")
                )
        return sorted(found, key=lambda each: -1.0 if math.isnan(each.distance) else each.distance, reverse=True)

    def _column(self, name: str, a: Cells, b: Cells) -> ComparedColumn:
        apart = distance(a.states, b.states)
        # Counts differ from counts: the variances add up.
        chance = math.hypot(*(by_chance(len(each.states), sum(each.states)) for each in (a, b)))
        missing = [part(each.missing, each.cells) for each in (a, b)]
        difference = ""
        if not math.isnan(apart):
            difference = differing(states_of(self._one, name), shares_of(a), shares_of(b))
        return ComparedColumn(name, apart, chance, apart > max(DRIFTED, 2 * chance), missing[0], missing[1], difference)

    @property
    def evidence_heading(self) -> str:
        """Which columns drift."""
        if not self.columns:
            return "No evidence columns were counted"
        return drift_heading([each.name for each in self.columns if each.drifted], "from A to B")

    @property
    def evidence_text(self) -> str:
        """How drift is measured."""
        return (
            "Distance is the Jensen-Shannon distance between the observed states of both runs, from 0 (equal) to 1 "
            f"(disjoint). A column drifts above {DRIFTED} and twice what chance explains."
        )

    @cached_property
    def column_pictures(self) -> list[str]:
        """Bars of the most drifted columns."""
        a, b = (each.statistics.columns for each in self._both)
        known = [each for each in self.columns if not math.isnan(each.distance)]
        known = known[: pictured(sum(each.drifted for each in known))]
        groups = [
            bars(
                f"{pictures.short(each.name, 30)}  {each.distance:.2f}",
                states_of(self._one, each.name),
                shares_of(b[each.name]),
                shares_of(a[each.name]),
            )
            for each in known
        ]
        return pictures.columns(groups)

    @property
    def _spreads(self) -> list[tuple[str, Spread]]:
        # B first, filled: the colours are those of bars and marks.
        return [
            (name, each.statistics.logarithms.spread)
            for name, each in zip("BA", reversed(self._both), strict=True)
            if each.statistics.logarithms.spread.counts
        ]

    @property
    def logarithm_heading(self) -> str:
        """Both medians."""
        if len(self._spreads) < 2:
            return "No logarithms to compare"
        b, a = (f"{spread.quantile(0.5):.3g}" for _, spread in self._spreads)
        return f"Half of the rows have {self._one.logarithm} above {a} in A, above {b} in B"

    @cached_property
    def logarithm_picture(self) -> str | None:
        """How logarithms are spread in both."""
        spreads = self._spreads
        return pictures.logarithms(spreads, self._one.logarithm) if spreads else None

    @cached_property
    def targets(self) -> list[tuple[str, float, str, bool]]:
        """Target, distance, largest difference and whether it drifted; the most drifted first."""
        a, b = (each.statistics.targets for each in self._both)
        names = [name for name in a if name in b and self._alike(name) and np.shape(a[name]) == np.shape(b[name])]
        if self._one.shown != self._other.shown:
            return []
        found = [self._target(name, np.array(a[name], np.float64), np.array(b[name], np.float64)) for name in names]
        return sorted(found, key=lambda each: -1.0 if math.isnan(each[1]) else each[1], reverse=True)

    def _target(self, name: str, a: Table, b: Table) -> tuple[str, float, str, bool]:
        if self._one.shown == "posteriors":
            # Of the state whose bins differ most.
            apart = max((distance(x, y) for x, y in zip(a, b, strict=True) if x.sum() and y.sum()), default=math.nan)
            numbers, places = (means_of(a), means_of(b)), int(np.count_nonzero((a + b).any(axis=0)))
        else:
            apart, places = distance(a.sum(axis=1), b.sum(axis=1)), len(a)
            numbers = a.sum(axis=1) / max(1.0, a.sum()), b.sum(axis=1) / max(1.0, b.sum())
        chance = math.hypot(*(by_chance(max(1, places), each.statistics.counted) for each in self._both))
        return name, apart, differing(states_of(self._one, name), *numbers), apart > max(DRIFTED, 2 * chance)

    @property
    def target_heading(self) -> str:
        """Which targets drift."""
        if not self.targets:
            return "No targets to compare"
        return drift_heading([name for name, _, _, drifted in self.targets if drifted], "from A to B", "target")

    @property
    def facts(self) -> list[tuple[str, str, str]]:
        """Versions, digests, queries of both."""
        one, other = dict(facts_of(self._one)), dict(facts_of(self._other))
        return [(name, one.get(name, ""), other.get(name, "")) for name in one | other]

    @property
    def _both(self) -> tuple[Outcome, Outcome]:
        return self._one, self._other

    def _alike(self, name: str) -> bool:
        """Return whether a variable has the same states in both networks."""
        one, other = (each.answering for each in self._both)
        if one is None or other is None or name not in one.index or name not in other.index:
            return False
        return one.variables[one.index[name]].states == other.variables[other.index[name]].states
