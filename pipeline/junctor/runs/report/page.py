"""The page of a finished run, as HTML.

Main function: `write_page`. What the page says is decided here, by `Page`; the template only places it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np

from junctor.model.errors import counted
from junctor.model.strategies import Strategy
from junctor.runs.drift import DRIFTED, Drift
from junctor.runs.outcome import Outcome
from junctor.runs.report import pictures
from junctor.runs.report.words import (
    SHOWN,
    Table,
    bars,
    drift_heading,
    facts_of,
    means_of,
    missing_statistics,
    part,
    pictured,
    share,
    shares_of,
    states_of,
    title_of,
    write,
)
from junctor.runs.statistics import BINS, COUNTED_ROWS, MOST_TARGETS, Reason, RowKey, Sampled, observed_lines
from junctor.runs.thresholds import Verdict
from junctor.runtime.remote import AnyPath

# Targets with pictures, and reasons.
PICTURED_TARGETS, SHOWN_REASONS = 12, 12
# Strategy -> what it does with rows.
WAYS = {
    Strategy.ENTRIES.value: "a plan for each evidence pattern, over the entries of its tables",
    Strategy.CPU_BLOCKS.value: "a plan for each evidence pattern, compiled, in blocks of cases",
    Strategy.GPU_BLOCKS.value: "a plan for each evidence pattern, on a GPU, in blocks of cases",
    Strategy.ROW_TREES.value: "junction trees made in compiled code, for single rows or shared by groups of them",
    Strategy.JOINT_TABLE.value: "the joint table of all states",
    Strategy.IMPOSSIBLE.value: "impossible by the zeros of the network, which is known before any number is computed",
    Strategy.CHUNKS.value: "a plan for each evidence pattern, in chunks: its tables exceed the memory",
    Strategy.CIRCUIT.value: "an arithmetic circuit, which zeros and equal entries of the tables make small",
    Strategy.SAMPLES.value: "samples of each row",
}
FORMATS = {"double": "double precision", "log": "log space", "max": "logarithms in double precision"}
QUANTILES = (("5 % of the rows are below", 0.05), ("half are below", 0.5), ("95 % are below", 0.95))


def write_page(outcome: Outcome, verdicts: Sequence[Verdict], path: AnyPath) -> None:
    """Write the page of a run, whole or not at all.

    outcome: of the run.
    verdicts: of its thresholds.
    path: of the file.
    """
    page = Page(outcome, verdicts)
    write("page.html", page.title, page, path)


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
        self._shown = outcome.shown
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

    @property
    def observed(self) -> list[str]:
        """Which targets repeat the input."""
        return observed_lines(self._outcome.manifest.observed_targets, self._counts.statuses)

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
    def target_heading(self) -> str:
        """How many targets are shown."""
        found = len(self._counts.targets)
        if not found:
            return "No targets were counted"
        what = {"states": "Most probable states", "best": "Most probable states and their probabilities"}
        return f"{what.get(self._shown, 'Posteriors')} of {counted(found, 'target')}"

    @property
    def target_text(self) -> str:
        """What is counted, and in how many rows."""
        if not self._counts.targets:
            return "" if self._outcome.network is not None else "Paths and posteriors of steps are not counted."
        text = {
            "states": "Shares of rows by the state that their explanation has.",
            "best": "Rows by most probable state (share on the right) and its probability: the darker, the more.",
        }.get(self._shown, "Rows by the posterior of each state: the darker, the more; on the right its mean.")
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
            if self._shown == "states":
                groups.append(bars(name, states, right, None))
            else:
                order = np.sort(np.argsort(-right, kind="stable")[: pictures.MOST_STATES])
                groups.append(pictures.Group(name, [states[i] for i in order], counts[order], right[order]))
        if self._shown == "states":
            drawn = pictures.columns(groups)
        else:
            drawn = pictures.posteriors(groups, "posterior probability")
        return drawn

    def _right(self, counts: Table) -> Table:
        """Return for each state its mean posterior, or its share of the rows."""
        if self._shown == "posteriors":
            return means_of(counts)
        shares: Table = counts.sum(axis=1) / max(1.0, counts.sum())
        return shares

    @property
    def target_columns(self) -> list[str]:
        """Columns of the table of targets."""
        if self._shown != "posteriors":
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
                if self._shown == "posteriors":
                    tenth = BINS // 10
                    parts = counts[n, :tenth], counts[n, BINS // 2 :], counts[n, BINS - tenth :]
                    values += [float(some.sum() / whole[n]) for some in parts]
                lines.append((name if n == 0 else "", pictures.short(state, 40), values))
        return lines

    # Reliability.

    @property
    def reliability_heading(self) -> str:
        """Whether rows needed wider numbers, or are estimates."""
        sampled, climbed = self._counts.sampled, sum(self._counts.rows_by_wider_format.values())
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
        for name, rows in self._counts.rows_by_wider_format.items():
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
        if sampled.gaps.rows:
            lines.append(self._intervals(sampled))
        if sampled.short:
            lines.append(
                f"{counted(sampled.short, 'row')} did not reach the requested error, or have few effective samples: "
                "their reason says so."
            )
        return lines

    def _intervals(self, sampled: Sampled) -> str:
        """Return the line on intervals."""
        return (
            "Each interval holds with the probability that was asked for (--confidence). Widest of a row's posteriors: "
            f"half are narrower than {sampled.widths.quantile(0.5):.2g}, 95 % than "
            f"{sampled.widths.quantile(0.95):.2g}. Certain bounds on the logarithm of the probability of the evidence "
            f"are above its estimates by less than {sampled.gaps.quantile(0.5):.2g} in half of the rows, "
            f"{sampled.gaps.quantile(0.95):.2g} in 95 %."
        )

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
        ranked = sorted(self._counts.rows_by_strategy.items(), key=lambda item: -item[1])
        chunks = [each for each in self._manifest.choices if each.strategy == Strategy.CHUNKS.value]
        return [
            *(f"{counted(rows, 'row')}: {WAYS.get(way, way)}." for way, rows in ranked),
            *(f"{counted(each.rows, 'row')} of the first part: {each.reason}." for each in chunks),
        ]

    @property
    def stages(self) -> list[tuple[str, float]]:
        """Stage and seconds of the last call."""
        return list(asdict(self._manifest.stages).items())

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Versions, digests, query."""
        return facts_of(self._outcome)
