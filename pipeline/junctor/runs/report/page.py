"""The page of a finished run, and of two runs side by side, as HTML.

Main functions: `write_page` and `write_comparison`. What a page says is decided here, in `Page` and `Comparison`; the
templates only place it, and escape all of it: names of states and reasons are data of others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import numpy as np
import numpy.typing as npt
from jinja2 import Environment, PackageLoader, StrictUndefined

from junctor.runs.drift import DRIFTED, Drift, by_chance, distance
from junctor.runs.outcome import Outcome
from junctor.runs.report import pictures
from junctor.runs.statistics import BINS, COUNTED_ROWS, MOST_TARGETS, Cells, Reason, RowKey, Spread
from junctor.runs.thresholds import Verdict
from junctor.runtime.files import aside

# Columns with pictures where few drift and at the most, targets with pictures, columns in the first table, reasons.
FEW_COLUMNS, PICTURED_COLUMNS, PICTURED_TARGETS, SHOWN, SHOWN_REASONS = 6, 12, 12, 12, 12
# Backend -> what it does with rows.
WAYS = {
    "numpy": "a plan for each evidence pattern, in NumPy",
    "entries": "a plan for each evidence pattern, compiled, one case at a time over the entries of its tables",
    "cpu": "a plan for each evidence pattern, compiled, in blocks of cases",
    "gpu": "a plan for each evidence pattern, on a GPU, in blocks of cases",
    "row trees": "junction trees made in compiled code, for single rows or shared by groups of them",
    "joint table": "the joint table of all states",
    "chunked cpu": "a plan for each evidence pattern, in chunks: its tables exceed the memory",
    "chunked gpu": "a plan for each evidence pattern, in chunks on GPUs: its tables exceed their memory",
    "chunked workers": "a plan for each evidence pattern, in chunks shared by all workers",
}
FORMATS = {"double": "double precision", "log": "log space"}
QUANTILES = (("5 % of the rows are below", 0.05), ("half are below", 0.5), ("95 % are below", 0.95))

Table = npt.NDArray[np.float64]


def write_page(outcome: Outcome, verdicts: Sequence[Verdict], path: Path) -> None:
    """Write the page of a run, whole or not at all.

    outcome: of the run.
    verdicts: of its thresholds.
    path: of the file.
    """
    page = Page(outcome, verdicts)
    _write("page.html", page.title, page, path)


def write_comparison(one: Outcome, other: Outcome, path: Path) -> None:
    """Write the page of two runs side by side, whole or not at all."""
    page = Comparison(one, other)
    _write("comparison.html", page.title, page, path)


def _write(template: str, title: str, page: object, path: Path) -> None:
    environment = Environment(
        loader=PackageLoader("junctor.runs.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"count": count, "share": share, "number": number, "seconds": seconds}
    style = (files("junctor.runs.report") / "style.css").read_text()
    text = environment.get_template(template).render(page=page, title=title, style=style, version=version("junctor"))
    with aside(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="replace")


def count(value: int) -> str:
    """Return a whole number for people."""
    return f"{value:,}"


def share(value: float) -> str:
    """Return a share as a percentage that is 0 or 100 only where the share is; a dash for nan."""
    if math.isnan(value):
        return "–"
    if 0 < value < 0.0001:
        return "<0.01 %"
    if 0.9999 < value < 1:
        return ">99.99 %"
    return f"{100 * value:.{2 if value < 0.01 or value > 0.99 else 1}f} %" if 0 < value < 1 else f"{100 * value:.0f} %"


def number(value: float) -> str:
    """Return a number to three places, a dash for nan."""
    return "–" if math.isnan(value) else f"{value:.3f}" if abs(value) < 10 else f"{value:,.2f}"


def seconds(value: float) -> str:
    """Return seconds for people."""
    return f"{value:,.1f}"


@dataclass(frozen=True, slots=True)
class ColumnLine:
    """A line of the table of evidence columns; shares are of its cells."""

    name: str
    distance: float
    by_chance: float
    drifted: bool
    observed: float
    missing: float
    soft: float
    difference: str


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


class Page:
    """What the page of one run says.

    outcome: of the run.
    verdicts: of its thresholds.
    """

    shown = SHOWN

    def __init__(self, outcome: Outcome, verdicts: Sequence[Verdict]) -> None:
        self.verdicts = verdicts
        self._outcome = outcome
        self._manifest = outcome.manifest
        self._counts = outcome.statistics
        self.title = title_of(outcome)

    @property
    def lead(self) -> str:
        """The finding of all: rows, and how many are ok."""
        rows, ok = self._counts.rows, self._counts.statuses.get("ok", 0)
        if not rows:
            return "No rows."
        crossed = sum(each.crossed for each in self.verdicts)
        text = f"{counted(rows, 'row')}, {share(ok / rows)} of them ok."
        return f"{text} {counted(crossed, 'threshold')} crossed." if crossed else text

    @property
    def missing(self) -> str:
        """What an earlier version has not counted."""
        return missing_statistics(self._outcome)

    # Rows.

    @property
    def rows_heading(self) -> str:
        """How many rows have no answer."""
        rows, bad = self._counts.rows, self._counts.rows - self._counts.statuses.get("ok", 0)
        if not bad:
            return "Every row has an answer" if rows else "No rows"
        return f"{bad:,} of {counted(rows, 'row')} ({share(bad / rows)}) {'has' if bad == 1 else 'have'} no answer"

    @property
    def statuses(self) -> list[tuple[str, int, float]]:
        """Status, rows, share."""
        return [(name, found, part(found, self._counts.rows)) for name, found in self._counts.statuses.items()]

    @cached_property
    def reasons(self) -> list[tuple[str, Reason]]:
        """The most frequent reasons."""
        ranked = sorted(self._counts.reasons.items(), key=lambda item: (-item[1].rows, item[0]))
        return ranked[:SHOWN_REASONS]

    @property
    def other_reasons(self) -> int:
        """Rows with other reasons."""
        known = sum(reason.rows for reason in self._counts.reasons.values()) + self._counts.other_reasons
        return known - sum(reason.rows for _, reason in self.reasons)

    # Evidence.

    @cached_property
    def columns(self) -> list[ColumnLine]:
        """Evidence columns, the most drifted first."""
        return [self._line(each) for each in self._outcome.drifts]

    def _line(self, drift: Drift) -> ColumnLine:
        cells, whole = drift.cells, drift.cells.cells
        return ColumnLine(
            drift.name,
            drift.distance,
            drift.by_chance,
            drift.drifted,
            part(sum(cells.states), whole),
            part(cells.missing, whole),
            part(cells.soft, whole),
            self._difference(drift),
        )

    def _difference(self, drift: Drift) -> str:
        if drift.expected is None or math.isnan(drift.distance):
            return ""
        seen = shares_of(drift.cells)
        at = int(np.abs(seen - drift.expected).argmax())
        state = pictures.short(states_of(self._outcome, drift.name)[at], 40)
        return f"{state}: {share(float(seen[at]))} seen, {share(float(drift.expected[at]))} in the network"

    @property
    def has_soft(self) -> bool:
        """Whether a column has likelihoods."""
        return any(each.soft for each in self.columns)

    @property
    def evidence_heading(self) -> str:
        """Which columns drift."""
        if not self.columns:
            return "No evidence columns were counted"
        return drift_heading([each.name for each in self.columns if each.drifted], "from the network")

    @property
    def evidence_text(self) -> str:
        """How drift is measured."""
        if not self.columns:
            if self._outcome.network is None:
                return "Evidence of sequences is counted by rows alone."
            return "There are no rows with evidence."
        return (
            "Distance is the Jensen-Shannon distance of the observed states from the marginals of the network without "
            f"evidence ({self._outcome.expected[1]}), from 0 (equal) to 1 (disjoint). A column drifts above {DRIFTED} "
            "and twice what chance explains. Cells of invalid rows are left out."
        )

    @cached_property
    def column_pictures(self) -> list[str]:
        """Bars of the most drifted columns."""
        known = [each for each in self._outcome.drifts if each.expected is not None and not math.isnan(each.distance)]
        groups = []
        for each in known[: pictured(sum(each.drifted for each in known))]:
            assert each.expected is not None
            title = f"{pictures.short(each.name, 30)}  {each.distance:.2f}"
            groups.append(bars(title, states_of(self._outcome, each.name), shares_of(each.cells), each.expected))
        return pictures.columns(groups)

    # Probability of the evidence.

    @property
    def logarithm(self) -> str:
        """Name of the column of logarithms."""
        return self._outcome.logarithm

    @property
    def logarithm_heading(self) -> str:
        """Median and minimum."""
        logs = self._counts.logarithms
        if not logs.lowest:
            return f"No {self.logarithm}: no row is ok, or none was counted"
        median, least = logs.spread.quantile(0.5), logs.lowest[0][0]
        return f"Half of the rows have {self.logarithm} above {median:.3g}, the least {least:.3g}"

    @cached_property
    def logarithm_picture(self) -> str | None:
        """How logarithms are spread."""
        spread = self._counts.logarithms.spread
        return pictures.logarithms([("", spread)], self.logarithm) if spread.counts else None

    @property
    def quantiles(self) -> list[tuple[str, float]]:
        """Mean and quantiles, to a hundredth of their value."""
        spread = self._counts.logarithms.spread
        return [("mean", spread.mean), *((name, spread.quantile(at)) for name, at in QUANTILES)]

    @property
    def lowest(self) -> Sequence[tuple[float, RowKey]]:
        """The least probable rows."""
        return self._counts.logarithms.lowest

    # Targets.

    @property
    def _kind(self) -> str:
        return kind_of(self._outcome)

    @property
    def target_heading(self) -> str:
        """How many targets are shown."""
        found = len(self._counts.targets)
        if not found:
            return "No targets were counted"
        what = {"mpe": "Most probable states", "scores": "Most probable states and their probabilities"}
        return f"{what.get(self._kind, 'Posteriors')} of {counted(found, 'target')}"

    @property
    def target_text(self) -> str:
        """What is counted, and in how many rows."""
        if not self._counts.targets:
            return "" if self._outcome.network is not None else "Paths and posteriors of steps are not counted."
        text = {
            "mpe": "Shares of rows by the state that their explanation has.",
            "scores": "Rows by most probable state (share on the right) and its probability: the darker, the more.",
        }.get(self._kind, "Rows by the posterior of each state: the darker, the more; on the right its mean.")
        text += f" Counted in {counted(self._counts.counted, 'row')}"
        evenly = self._counts.counted < self._counts.statuses.get("ok", 0)
        text += f", up to {COUNTED_ROWS:,} of a part." if evenly else "."
        if len(self._counts.targets) == MOST_TARGETS:
            text += f" The first {MOST_TARGETS} targets are counted, those without evidence before others."
        return text

    @cached_property
    def target_pictures(self) -> list[str]:
        """Strips, or bars of explanations."""
        groups = []
        for name, table in list(self._counts.targets.items())[:PICTURED_TARGETS]:
            counts, states = np.array(table, dtype=np.float64), states_of(self._outcome, name)
            right = self._right(counts)
            if self._kind == "mpe":
                groups.append(bars(name, states, right, None))
            else:
                order = np.sort(np.argsort(-right, kind="stable")[: pictures.MOST_STATES])
                groups.append(pictures.Group(name, [states[i] for i in order], counts[order], right[order]))
        if self._kind == "mpe":
            drawn = pictures.columns(groups)
        else:
            drawn = pictures.posteriors(groups, "posterior probability")
        return drawn

    def _right(self, counts: Table) -> Table:
        """Return for each state its mean posterior, or its share of the rows."""
        if self._kind == "posteriors":
            return means_of(counts)
        shares: Table = counts.sum(axis=1) / max(1.0, counts.sum())
        return shares

    @property
    def target_columns(self) -> list[str]:
        """Columns of the table of targets."""
        if self._kind != "posteriors":
            return ["rows"]
        return ["mean", "rows below 10 %", "rows above 50 %", "rows above 90 %"]

    @property
    def target_rows(self) -> list[tuple[str, str, list[float]]]:
        """Target, state, numbers of each line."""
        lines = []
        for name, table in self._counts.targets.items():
            counts = np.array(table, dtype=np.float64)
            right, whole = self._right(counts), np.maximum(1.0, counts.sum(axis=1))
            for n, state in enumerate(states_of(self._outcome, name)):
                values = [float(right[n])]
                if self._kind == "posteriors":
                    tenth = BINS // 10
                    parts = counts[n, :tenth], counts[n, BINS // 2 :], counts[n, BINS - tenth :]
                    values += [float(some.sum() / whole[n]) for some in parts]
                lines.append((name if n == 0 else "", pictures.short(state, 40), values))
        return lines

    # Reliability.

    @property
    def reliability_heading(self) -> str:
        """Whether rows needed wider numbers, or are estimates."""
        sampled, climbed = self._counts.sampled, sum(self._counts.climbed.values())
        if sampled.rows:
            text = f"{counted(sampled.rows, 'row')} sampled"
            return f"{text}, {sampled.short:,} of them doubtful" if sampled.short else f"{text}, none of them doubtful"
        if not self._outcome.counted:
            return "Number formats were not counted"
        return (
            f"{counted(climbed, 'row')} needed a wider number format"
            if climbed
            else "No row needed a wider number format"
        )

    @property
    def reliability(self) -> list[str]:
        """Lines on number formats and sampling errors."""
        lines = [f"Computed in {self._manifest.spec.precision} precision."]
        for name, rows in self._counts.climbed.items():
            lines.append(
                f"{counted(rows, 'different row')} in {FORMATS.get(name, name)}: an underflow is never an answer."
            )
        sampled = self._counts.sampled
        if sampled.rows:
            errors, effective = sampled.errors, sampled.effective
            lines.append(
                f"{sampled.samples:,} samples. Largest standard error of a row's posteriors: half are below "
                f"{errors.quantile(0.5):.2g}, 95 % below {errors.quantile(0.95):.2g}. Effective samples: half of the "
                f"rows have more than {effective.quantile(0.5):,.0f}, 95 % more than {effective.quantile(0.05):,.0f}."
            )
        if sampled.short:
            lines.append(
                f"{counted(sampled.short, 'row')} did not reach the requested error, or have few effective samples: "
                "their reason says so."
            )
        return lines

    # The run.

    @property
    def run_heading(self) -> str:
        """Rows and seconds."""
        manifest = self._manifest
        there = f", {counted(manifest.reused_parts, 'part')} of earlier calls" if manifest.reused_parts else ""
        if manifest.seconds <= 0 or there:
            return f"{counted(manifest.rows, 'row')}, the last call took {manifest.seconds:.1f} s{there}"
        rate = manifest.rows / manifest.seconds
        return f"{counted(manifest.rows, 'row')} in {manifest.seconds:.1f} s: {rate:,.0f} a second"

    @property
    def run_lines(self) -> list[str]:
        """The plan in words."""
        ranked = sorted(self._counts.ways.items(), key=lambda item: -item[1])
        return [f"{counted(rows, 'row')}: {WAYS.get(way, way)}." for way, rows in ranked]

    @property
    def stages(self) -> list[tuple[str, float]]:
        """Stage and seconds of the last call."""
        return list(asdict(self._manifest.stages).items())

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Versions, digests, query."""
        return facts_of(self._outcome)


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
        if self._kind != kind_of(self._other):
            return []
        found = [self._target(name, np.array(a[name], np.float64), np.array(b[name], np.float64)) for name in names]
        return sorted(found, key=lambda each: -1.0 if math.isnan(each[1]) else each[1], reverse=True)

    def _target(self, name: str, a: Table, b: Table) -> tuple[str, float, str, bool]:
        if self._kind == "posteriors":
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

    @property
    def _kind(self) -> str:
        return kind_of(self._one)

    def _alike(self, name: str) -> bool:
        """Return whether a variable has the same states in both networks."""
        one, other = (each.network for each in self._both)
        if one is None or other is None or name not in one.index or name not in other.index:
            return False
        return one.variables[one.index[name]].states == other.variables[other.index[name]].states


def kind_of(outcome: Outcome) -> str:
    """Return what is answered: `posteriors`, `scores` or `mpe`; of sequences nothing that is counted by targets."""
    spec = outcome.manifest.spec
    return "mpe" if spec.query == "mpe" else str(getattr(spec, "answers", ""))


def title_of(outcome: Outcome) -> str:
    """Return the title of a page: network and folder."""
    network = outcome.network.name if outcome.network is not None else ""
    # BIF calls networks without a name so.
    return f"{network} · {folder_of(outcome)}" if network and network != "unknown" else folder_of(outcome)


def folder_of(outcome: Outcome) -> str:
    """Return the name of a run's folder."""
    return outcome.directory.path.name or str(outcome.directory.path)


def missing_statistics(outcome: Outcome) -> str:
    """Return what a page says of parts without statistics, nothing where all have some."""
    parts = len(outcome.manifest.parts)
    if outcome.counted == parts:
        return ""
    name = folder_of(outcome)
    which = (
        f"Only {outcome.counted:,} of {parts:,} parts of {name} have" if outcome.counted else f"No part of {name} has"
    )
    return (
        f"{which} statistics: an earlier version wrote the others. Of these, this page has "
        "rows and statuses alone; --overwrite answers them again."
    )


def facts_of(outcome: Outcome) -> list[tuple[str, str]]:
    """Return versions, digests and the query of a run."""
    manifest, size = outcome.manifest, sum(each.bytes for each in outcome.manifest.parts)
    facts = {"finished": manifest.finished_at, "directory": str(outcome.directory.path)}
    facts |= {"answers": f"{counted(len(manifest.parts), 'part')}, {size / 2**20:,.1f} MiB in {manifest.spec.folder}"}
    if outcome.network is not None:
        facts["network"] = f"{outcome.network.name or 'no name'}, {counted(len(outcome.network.variables), 'variable')}"
    record = manifest.to_record()["spec"]
    for name, value in record.items():
        if value not in (None, (), [], False) and name != "format_version":
            text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
            facts[name.replace("_", " ")] = pictures.short(text, 400)
    return list(facts.items())


def pictured(drifted: int) -> int:
    """Return how many columns have pictures where so many drift."""
    return min(PICTURED_COLUMNS, max(FEW_COLUMNS, drifted))


def drift_heading(names: Sequence[str], whence: str, what: str = "column") -> str:
    """Return the heading of a section on drift: which columns or targets drift, the first few by name."""
    if not names:
        return f"No {what} drifts {whence}"
    shown = ", ".join(pictures.short(name, 30) for name in names[:4])
    more = f" and {len(names) - 4:,} more" if len(names) > 4 else ""
    return f"{counted(len(names), what)} {'drifts' if len(names) == 1 else 'drift'} {whence}: {shown}{more}"


def counted(value: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{value:,} {noun}{'' if value == 1 else 's'}"


def part(some: float, whole: float) -> float:
    """Return a share, nan of nothing."""
    return some / whole if whole else math.nan


def shares_of(cells: Cells) -> Table:
    """Return the shares of the observed states, float64 [states]."""
    states = np.array(cells.states, dtype=np.float64)
    shares: Table = states / max(1.0, states.sum())
    return shares


def means_of(counts: Table) -> Table:
    """Return the means of posteriors from their bins [states, BINS], about."""
    middles = (np.arange(counts.shape[1]) + 0.5) / counts.shape[1]
    means: Table = counts @ middles / np.maximum(1.0, counts.sum(axis=1))
    return means


def differing(states: Sequence[str], a: Table, b: Table) -> str:
    """Return the state whose numbers differ most, and both."""
    at = int(np.abs(a - b).argmax())
    return f"{pictures.short(states[at], 40)}: {share(float(a[at]))} in A, {share(float(b[at]))} in B"


def bars(title: str, states: Sequence[str], values: Table, marks: Table | None) -> pictures.Group:
    """Return the lines of a variable: of many states those that are most frequent or differ most, in their order."""
    weight = values if marks is None else np.abs(values - marks) + np.maximum(values, marks)
    order = np.sort(np.argsort(-weight, kind="stable")[: pictures.MOST_STATES])
    return pictures.Group(title, [states[i] for i in order], values[order], None if marks is None else marks[order])


def states_of(outcome: Outcome, name: str) -> tuple[str, ...]:
    """Return the names of the states of a variable."""
    assert outcome.network is not None
    return tuple(outcome.network.variables[outcome.network.index[name]].states)
