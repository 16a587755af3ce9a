"""Counts of a partition, taken while its answers are made, and merged for the report of a run.

Main class: Statistics; `count` makes those of one partition, `merged` those of a run. Everything is a sum of whole
numbers or the least rows of all, so that neither the order of merging nor workers show.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from junctor.model.answers import IMPOSSIBLE, INVALID, OK, Answers, SampledAnswers, Scores
from junctor.model.errors import RunError, counted
from junctor.model.query import observed_words
from junctor.runtime.records import typed

if TYPE_CHECKING:
    from junctor.evidence.batch import EvidenceBatch
    from junctor.model.network import Network

FORMAT_VERSION = 1
# Bins of posteriors, of equal width from 0 to 1.
BINS = 20
# Targets whose posteriors are counted, most states of one of them, and rows of a partition in which they are: all
# posteriors of a million rows take a tenth of what their inference does. Rows side by side, because those far from each
# other take ten times as long to fetch.
MOST_TARGETS, MOST_STATES, COUNTED_ROWS, SIDE_BY_SIDE = 32, 64, 4096, 64
# Different reasons of a partition that are told apart, and rows that each of them has as examples.
MOST_REASONS, EXAMPLES = 1000, 3
# Observed targets that are told one by one.
MOST_OBSERVED = 5
# Rows of least log P(e).
LOWEST = 10
# Columns of up to so many states are counted all at once, by comparing their cells with each state; cells at a time,
# a byte each, and of these so many as a sum of bytes may have.
COMPARED_STATES, COMPARED_CELLS, SUMMED_CELLS = 32, 1 << 21, 1024
# A bin of `Spread` is what a float32 is without its last bits: 64 bins for each power of two.
_LAST_BITS = 17
_LARGEST_KEY = 0x7F800000 >> _LAST_BITS
# Numbers nearer to zero than that are zero.
_TINY = 2.0**-20
# Sums are of whole numbers of 2^-20: floats would depend on the order.
_UNIT = 2.0**20

# What differs from cell to cell in reasons of the same kind: suggestions, quoted cells, numbers.
_HINT = re.compile(r", did you mean .*?\?(?=;|$)")
_QUOTED = re.compile(r"(column |likelihood of )?('(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\")(\.\.\.)?")
_UNKNOWN = re.compile(r"(unknown \w+ |found )(?!')[^;,]+?(?=;|,| likelihoods)")
_NUMBER = re.compile(r"[-+]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?")


@dataclass(frozen=True, slots=True)
class RowKey:
    """A row of the evidence.

    row: its number, from 1.
    key: its case id; None where that is no more than a number of the row.
    """

    row: int
    key: str | None = None

    def __str__(self) -> str:
        return f"row {self.row:,}" if self.key is None else f"row {self.row:,} ({self.key})"


@dataclass(frozen=True, slots=True)
class Reason:
    """Rows with a reason of one kind: their status, number, the first of them, and the whole reason of the first one.

    Earlier versions kept no whole reason.
    """

    status: str
    rows: int
    examples: tuple[RowKey, ...]
    text: str = ""

    def __add__(self, other: Reason) -> Reason:
        examples = _first(self.examples, other.examples)
        text = self.text if examples[:1] == self.examples[:1] else other.text
        return Reason(self.status, self.rows + other.rows, examples, text)


@dataclass(frozen=True, slots=True)
class Cells:
    """Cells of an evidence column, without those of invalid rows.

    states: cells of each state, in the order of the network.
    soft: cells with a likelihood.
    missing: cells without evidence.
    """

    states: tuple[int, ...]
    soft: int = 0
    missing: int = 0

    def __add__(self, other: Cells) -> Cells:
        states = tuple(mine + its for mine, its in zip(self.states, other.states, strict=True))
        return Cells(states, self.soft + other.soft, self.missing + other.missing)

    @property
    def cells(self) -> int:
        """Number of all cells."""
        return sum(self.states) + self.soft + self.missing


@dataclass(frozen=True, slots=True)
class Spread:
    """How numbers are spread: their counts in bins with fixed edges, 64 for each power of two, and their sum.

    counts: bin -> numbers in it; a negative number is in the bin -k of its magnitude's bin k.
    total: sum, in units of 2^-20.
    """

    counts: dict[int, int] = field(default_factory=dict)
    total: int = 0

    @classmethod
    def of(cls, values: npt.NDArray[np.floating]) -> Spread:
        """Return the counts of finite numbers [n]."""
        if not values.size:
            return cls()
        bits = values.astype(np.float32).view(np.int32)
        keys = (bits & 0x7FFFFFFF) >> _LAST_BITS
        keys[np.abs(values) < _TINY] = 0
        np.negative(keys, out=keys, where=bits < 0)
        least = int(keys.min())
        counts = np.bincount(keys - least)
        there = np.flatnonzero(counts)
        total = round(float(values.sum(dtype=np.float64)) * _UNIT)
        return cls(dict(zip((there + least).tolist(), counts[there].tolist(), strict=True)), total)

    def __add__(self, other: Spread) -> Spread:
        return Spread(_added(self.counts, other.counts), self.total + other.total)

    @property
    def rows(self) -> int:
        """How many numbers there are."""
        return sum(self.counts.values())

    @property
    def mean(self) -> float:
        """Their mean; nan without any."""
        return self.total / _UNIT / self.rows if self.counts else math.nan

    def quantile(self, share: float) -> float:
        """Return the middle of the bin below which `share` of the numbers lie; nan without any."""
        left = share * self.rows
        for key in sorted(self.counts):
            left -= self.counts[key]
            if left <= 0:
                return sum(edges_of(key)) / 2
        return math.nan


def edges_of(key: int) -> tuple[float, float]:
    """Return the lower and the upper edge of a bin of `Spread`."""
    magnitude = abs(key)
    low, high = (float(np.int32(k << _LAST_BITS).view(np.float32)) for k in (magnitude, magnitude + 1))
    if magnitude == 0:
        return 0.0, 0.0
    return (low, high) if key > 0 else (-high, -low)


@dataclass(frozen=True, slots=True)
class Logarithms:
    """Natural logarithms of rows that are ok: of P(e), or of P(assignment, e) for explanations.

    spread: of all of them.
    lowest: the least ones, with their rows.
    """

    spread: Spread = field(default_factory=Spread)
    lowest: tuple[tuple[float, RowKey], ...] = ()

    def __add__(self, other: Logarithms) -> Logarithms:
        return Logarithms(self.spread + other.spread, _lowest((*self.lowest, *other.lowest)))


@dataclass(frozen=True, slots=True)
class Sampled:
    """Answers of sampled rows that are ok.

    rows: of them.
    samples: drawn for them.
    short: rows with a reason: the requested error was not reached, or samples are worth too little.
    errors: largest standard error of a posterior of each row.
    effective: effective samples of each row.
    widths: widest interval of a posterior of each row, where there are intervals.
    gaps: how far the bound on log P(e) is above the estimate of each row, where there is one.
    """

    rows: int = 0
    samples: int = 0
    short: int = 0
    errors: Spread = field(default_factory=Spread)
    effective: Spread = field(default_factory=Spread)
    widths: Spread = field(default_factory=Spread)
    gaps: Spread = field(default_factory=Spread)

    def __add__(self, other: Sampled) -> Sampled:
        counts = self.rows + other.rows, self.samples + other.samples, self.short + other.short
        spreads = (getattr(self, name) + getattr(other, name) for name in _SAMPLED_SPREADS)
        return Sampled(*counts, *spreads)

    def to_record(self) -> dict[str, Any]:
        """Return a record for JSON."""
        spreads = {name: getattr(self, name) for name in _SAMPLED_SPREADS}
        # Those of intervals only where there are some.
        shown = {name: _spread_record(each) for name, each in spreads.items() if each.counts or name in _ALWAYS}
        return {"rows": self.rows, "samples": self.samples, "short": self.short, **shown}


_ALWAYS = ("errors", "effective")
_SAMPLED_SPREADS = (*_ALWAYS, "widths", "gaps")


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts of one partition, or of several together.

    rows: of all statuses.
    statuses: rows of each status.
    reasons: kind of reason -> its rows.
    other_reasons: rows with a reason of a kind beyond `MOST_REASONS` of a partition.
    columns: variable -> cells of its evidence column.
    logarithms: of rows that are ok.
    targets: variable -> for each state the rows with a posterior in each of `BINS` bins; scores: the rows whose most
        probable state it is, by its probability; explanations: one bin, the rows with that state.
    counted: rows that `targets` are counted in.
    rows_by_strategy: strategy -> rows that it answered.
    rows_by_wider_format: wider number format -> different rows that needed it.
    sampled: of sampled rows.
    """

    rows: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, Reason] = field(default_factory=dict)
    other_reasons: int = 0
    columns: dict[str, Cells] = field(default_factory=dict)
    logarithms: Logarithms = field(default_factory=Logarithms)
    targets: dict[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    counted: int = 0
    rows_by_strategy: dict[str, int] = field(default_factory=dict)
    rows_by_wider_format: dict[str, int] = field(default_factory=dict)
    sampled: Sampled = field(default_factory=Sampled)

    def __add__(self, other: Statistics) -> Statistics:
        return Statistics(
            self.rows + other.rows,
            _added(self.statuses, other.statuses),
            _added(self.reasons, other.reasons),
            self.other_reasons + other.other_reasons,
            _added(self.columns, other.columns),
            self.logarithms + other.logarithms,
            self._targets_with(other),
            self.counted + other.counted,
            _added(self.rows_by_strategy, other.rows_by_strategy),
            _added(self.rows_by_wider_format, other.rows_by_wider_format),
            self.sampled + other.sampled,
        )

    def _targets_with(self, other: Statistics) -> dict[str, tuple[tuple[int, ...], ...]]:
        tables = {name: np.array(counts) for name, counts in self.targets.items()}
        for name, counts in other.targets.items():
            tables[name] = tables[name] + np.array(counts) if name in tables else np.array(counts)
        return {name: _nested(table) for name, table in tables.items()}

    def to_record(self) -> dict[str, Any]:
        """Return a record for JSON."""
        return {
            "format_version": FORMAT_VERSION,
            "rows": self.rows,
            "statuses": self.statuses,
            "reasons": [
                [text, reason.status, reason.rows, [[each.row, each.key] for each in reason.examples], reason.text]
                for text, reason in self.reasons.items()
            ],
            "other_reasons": self.other_reasons,
            "columns": {name: [*cells.states, cells.soft, cells.missing] for name, cells in self.columns.items()},
            "logarithms": {
                **_spread_record(self.logarithms.spread),
                "lowest": [[value, each.row, each.key] for value, each in self.logarithms.lowest],
            },
            "targets": self.targets,
            "counted": self.counted,
            "ways": self.rows_by_strategy,
            "climbed": self.rows_by_wider_format,
            "sampled": self.sampled.to_record(),
        }


def statistics_of(record: Mapping[str, Any]) -> Statistics:
    """Return the statistics of a record of `Statistics.to_record`; raises RunError for another record."""
    try:
        if record["format_version"] != FORMAT_VERSION:
            raise RunError(f"found statistics of format version {record['format_version']}, expected {FORMAT_VERSION}")
        logs, sampled = record["logarithms"], record["sampled"]
        found = typed(
            Statistics,
            Statistics(
                record["rows"],
                record["statuses"],
                {
                    text: Reason(status, rows, tuple(RowKey(*each) for each in examples), *whole)
                    for text, status, rows, examples, *whole in record["reasons"]
                },
                record["other_reasons"],
                {name: Cells(tuple(cells[:-2]), *cells[-2:]) for name, cells in record["columns"].items()},
                Logarithms(_spread_of(logs), tuple((value, RowKey(row, key)) for value, row, key in logs["lowest"])),
                {name: tuple(map(tuple, counts)) for name, counts in record["targets"].items()},
                record["counted"],
                record["ways"],
                record["climbed"],
                Sampled(
                    sampled["rows"],
                    sampled["samples"],
                    sampled["short"],
                    *(_spread_of(sampled[name]) for name in _ALWAYS),
                    **{name: _spread_of(sampled[name]) for name in ("widths", "gaps") if name in sampled},
                ),
            ),
        )
        if any(len(counts) != len(rows[0]) for rows in found.targets.values() for counts in rows):
            raise ValueError("targets: rows of different lengths")
        return found
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"not the statistics of a part ({error})") from error


def observed_lines(observed: Mapping[str, int], statuses: Mapping[str, int]) -> list[str]:
    """Return a line for each target that rows observe, of the first ones.

    observed: rows of each, of a manifest.
    statuses: rows of each status.
    """
    rows = sum(statuses.values()) - statuses.get("invalid", 0)
    lines = [observed_words(name, count, rows) for name, count in observed.items()]
    if len(lines) > MOST_OBSERVED:
        lines[MOST_OBSERVED:] = [f"{counted(len(lines) - MOST_OBSERVED, 'more target')} observed in rows, too"]
    return lines


def observed_in(record: Mapping[str, Any]) -> dict[str, int]:
    """Return the observed targets of the record of a manifest, none of one without; raises TypeError for others."""
    return typed(dict[str, int], record.get("observed_targets", {}), "observed_targets")


def merged(parts: Iterable[Statistics]) -> Statistics:
    """Return the statistics of several partitions together."""
    return reduce(add, parts, Statistics())


def complete(statistics: Statistics) -> Statistics:
    """Return the statistics with a cell for each valid row: columns that a partition lacks are missing there."""
    valid = statistics.rows - statistics.statuses.get("invalid", 0)
    columns = {
        name: replace(cells, missing=cells.missing + valid - cells.cells) for name, cells in statistics.columns.items()
    }
    return replace(statistics, columns=columns)


def count_cells(network: Network, batch: EvidenceBatch) -> dict[str, Cells]:
    """Return the cells of each evidence column, without those of invalid rows."""
    bad = np.fromiter(batch.invalid, np.int64, len(batch.invalid))
    rows, sizes = batch.rows - len(bad), {v: network.cardinalities[v] for v in batch.states}
    counts = _counts_of_states(batch.states, sizes, bad)
    found = {}
    for v in sorted(batch.states.keys() | batch.likelihoods.keys()):
        seen, soft = counts.get(v, [0] * network.cardinalities[v]), 0
        if v in batch.likelihoods:
            soft = int(np.count_nonzero(~np.isin(batch.likelihoods[v].rows, bad)))
        found[network.variables[v].name] = Cells(tuple(seen), soft, rows - sum(seen) - soft)
    return found


def _counts_of_states(
    states: Mapping[int, npt.NDArray[np.int32]], sizes: Mapping[int, int], bad: npt.NDArray[np.int64]
) -> dict[int, list[int]]:
    """Return variable -> rows of each state.

    states: variable -> int32 [rows], -1 where unobserved.
    sizes: variable -> number of states.
    bad: rows that are left out.
    """
    found = {v: [0] * size for v, size in sizes.items()}
    small = [v for v in states if sizes[v] <= COMPARED_STATES]
    # Columns of many states first: those that have a state are then the first rows of a matrix.
    small.sort(key=lambda v: -sizes[v])
    if small:
        rows = len(states[small[0]])
        step = max(SUMMED_CELLS, COMPARED_CELLS // len(small))
        for begin in range(0, rows, step):
            block = [states[v][begin : begin + step] for v in small]
            here = _small_counts(block, [sizes[v] for v in small], bad[(bad >= begin) & (bad < begin + step)] - begin)
            for v, counts in zip(small, here, strict=True):
                found[v] = [one + other for one, other in zip(found[v], counts, strict=True)]
    for v in states.keys() - small:
        # Unobserved cells are -1.
        seen = np.delete(states[v], bad) + 1
        found[v] = np.bincount(seen, minlength=sizes[v] + 1)[1:].tolist()
    return found


def _small_counts(
    columns: Sequence[npt.NDArray[np.int32]], sizes: Sequence[int], bad: npt.NDArray[np.int64]
) -> list[list[int]]:
    """Return for each column the rows of each of its states; sizes: states of the columns, in falling order."""
    rows = len(columns[0])
    cells = np.full((len(columns), -(-rows // SUMMED_CELLS) * SUMMED_CELLS), -1, dtype=np.int8)
    # All at once: whoever else is at work in Python gets in between two calls.
    np.stack(columns, out=cells[:, :rows], casting="unsafe")
    cells[:, bad] = -1
    counts = np.zeros((len(columns), sizes[0]), dtype=np.int64)
    # Columns that have a state.
    having = np.searchsorted(-np.array(sizes), -np.arange(sizes[0])).tolist()
    for state, there in enumerate(having):
        # The eight bytes of a word are added at once, each at most 128 times.
        words = (cells[:there] == state).view(np.uint64).reshape(there, -1, SUMMED_CELLS // 8)
        counts[:there, state] = words.sum(axis=2).view(np.uint8).reshape(there, -1).sum(axis=1)
    return [row[:size] for row, size in zip(counts.tolist(), sizes, strict=True)]


def count(
    network: Network,
    cells: Mapping[str, Cells],
    answers: Answers,
    case_ids: pa.Array,
    first_row: int,
    names: Sequence[str],
) -> Statistics:
    """Return the statistics of one partition.

    network: that answers.
    cells: of its evidence columns.
    answers: to all of its rows.
    case_ids: Arrow array [rows].
    first_row: number of its first row in the evidence, from 0.
    names: of the statuses, by number.
    """
    plain = count_outcomes(answers.status, answers.reasons, answers.log_value, RowKeys(case_ids, first_row), names)
    ok = np.flatnonzero(answers.status == OK)
    counted = spaced(ok)
    return replace(
        plain,
        columns=dict(cells),
        targets=_count_targets(network, cells, answers, counted),
        counted=len(counted),
        rows_by_strategy=dict(answers.ways),
        rows_by_wider_format=dict(answers.climbed),
        sampled=_count_sampled(answers, ok),
    )


def count_outcomes(
    status: npt.NDArray[np.int8],
    reasons: Mapping[int, str],
    log_values: npt.NDArray[np.float64],
    keys: RowKeys,
    names: Sequence[str],
) -> Statistics:
    """Return what is counted of rows and of sequences alike.

    status: int8 [rows].
    reasons: row -> text.
    log_values: float64 [rows].
    keys: names of the rows.
    names: of the statuses, by number.
    """
    found, others = count_reasons(status, reasons, keys, names)
    logarithms = count_logarithms(log_values, np.flatnonzero(status == OK), keys)
    statuses = dict(zip(names, np.bincount(status, minlength=len(names)).tolist(), strict=True))
    return Statistics(len(status), statuses, found, others, logarithms=logarithms)


class RowKeys:
    """Names the rows of a partition; case_ids: Arrow array [rows], first_row: number of the first, from 0."""

    def __init__(self, case_ids: pa.Array, first_row: int) -> None:
        self._case_ids = case_ids
        self._first = first_row

    def __getitem__(self, row: int) -> RowKey:
        """Return the name of a row of the partition."""
        number, key = self._first + row, self._case_ids[row]
        # Evidence without case ids has numbers of rows, from 0, in their place.
        if not key.is_valid or (pa.types.is_int64(key.type) and key.as_py() == number):
            return RowKey(number + 1)
        # Arrow would take its bytes for text.
        if isinstance(key.type, pa.UuidType):
            return RowKey(number + 1, str(key.as_py()))
        try:
            return RowKey(number + 1, key.cast(pa.string()).as_py())
        except pa.ArrowException:
            # Not every type has a text in Arrow.
            return RowKey(number + 1, str(key))


def count_reasons(
    status: npt.NDArray[np.int8], reasons: Mapping[int, str], keys: RowKeys, names: Sequence[str]
) -> tuple[dict[str, Reason], int]:
    """Return the most frequent kinds of reasons, and the rows with another one.

    status: int8 [rows].
    reasons: row -> text.
    keys: names of the rows.
    names: of the statuses, by number.
    """
    kinds: dict[tuple[int, str], str] = {}
    rows: dict[tuple[int, str], list[int]] = {}
    for row in sorted(reasons):
        which = int(status[row]), reasons[row]
        # Most texts come more than once.
        if which not in kinds:
            kinds[which] = kind_of_reason(reasons[row], which[0])
        rows.setdefault((which[0], kinds[which]), []).append(row)
    order = sorted(rows, key=lambda kind: (-len(rows[kind]), kind))
    found = {}
    for kind in reversed(order[:MOST_REASONS]):
        examples = rows[kind][:EXAMPLES]
        keyed = tuple(keys[row] for row in examples)
        found[kind[1]] = Reason(names[kind[0]], len(rows[kind]), keyed, reasons[examples[0]])
    return dict(reversed(found.items())), len(reasons) - sum(reason.rows for reason in found.values())


def kind_of_reason(text: str, status: int) -> str:
    """Return a reason without what differs from row to row: cells and suggestions, numbers of samples and errors."""
    if status == INVALID:
        text = _UNKNOWN.sub(r"\1…", _QUOTED.sub(_without_cell, _HINT.sub("", text)))
    elif status == IMPOSSIBLE:
        # Findings that contradict each other are what counts.
        return text
    else:
        text = _NUMBER.sub("…", text)
    return text


def _without_cell(match: re.Match[str]) -> str:
    return match[0] if match[1] else "…"


def count_logarithms(values: npt.NDArray[np.float64], ok: npt.NDArray[np.int64], keys: RowKeys) -> Logarithms:
    """Return the spread of the logarithms [rows] of the rows `ok`, and the lowest of them."""
    values = values if len(ok) == len(values) else values[ok]
    if not (finite := np.isfinite(values)).all():
        values, ok = values[finite], ok[finite]
    if not values.size:
        return Logarithms()
    last = np.partition(values, min(LOWEST, len(values)) - 1)[min(LOWEST, len(values)) - 1]
    below = np.flatnonzero(values < last)
    # Of equal ones the first.
    at = np.concatenate([below, np.flatnonzero(values == last)[: LOWEST - len(below)]])
    return Logarithms(Spread.of(values), _lowest((float(values[i]), keys[int(ok[i])]) for i in at))


def spaced(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return at most `COUNTED_ROWS` of the rows [n]: so many side by side, at places evenly spaced."""
    if len(rows) <= COUNTED_ROWS:
        return rows
    places = np.linspace(0, len(rows) - SIDE_BY_SIDE, COUNTED_ROWS // SIDE_BY_SIDE).astype(np.int64)
    chosen: npt.NDArray[np.int64] = rows[(places[:, None] + np.arange(SIDE_BY_SIDE)).reshape(-1)]
    return chosen


def _count_targets(
    network: Network, cells: Mapping[str, Cells], answers: Answers, rows: npt.NDArray[np.int64]
) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Return the bins of the first targets; those that are observed come last where the user named none."""
    last = set[int]()
    if answers.targets == tuple(range(len(network.public))):
        last.update(network.index[name] for name in cells)
    small = [n for n, v in enumerate(answers.targets) if network.cardinalities[v] <= MOST_STATES]
    first, others = ([n for n in small if (answers.targets[n] in last) is later] for later in (False, True))
    numbers = [*first, *others][:MOST_TARGETS]
    sizes = [network.cardinalities[answers.targets[n]] for n in numbers]
    if isinstance(answers, Scores):
        tables = _best_counts(answers, numbers, sizes, rows)
    else:
        tables = [
            _target_counts(answers, answers.targets[n], size, rows) for n, size in zip(numbers, sizes, strict=True)
        ]
    return {
        network.variables[answers.targets[n]].name: _nested(table) for n, table in zip(numbers, tables, strict=True)
    }


def _target_counts(answers: Answers, target: int, size: int, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return how often each state has a posterior in each bin, int64 [size, BINS]; of explanations [size, 1]."""
    if target in answers.states:
        return np.bincount(answers.states[target][rows], minlength=size)[:, None]
    # Half the time of an index.
    bins = _bins(np.take(answers.posteriors[target], rows, axis=0))
    return np.bincount((np.arange(size) * BINS + bins).reshape(-1), minlength=size * BINS).reshape(size, BINS)


def _best_counts(
    scores: Scores, targets: Sequence[int], sizes: Sequence[int], rows: npt.NDArray[np.int64]
) -> list[npt.NDArray[np.int64]]:
    """Return how often each state of a target is the best with a probability in each bin, int64 [size, BINS].

    targets: by their places in the scores; sizes: their states.
    """
    # All at once: these are a third of a millisecond, target by target two.
    firsts = np.cumsum([0, *sizes])
    best, probabilities = (
        np.take(each[list(targets), :, 0], rows, axis=1) for each in (scores.best, scores.probabilities)
    )
    places = (firsts[:-1, None] + best) * BINS + _bins(probabilities)
    tables = np.bincount(places.reshape(-1), minlength=int(firsts[-1]) * BINS).reshape(-1, BINS)
    return np.split(tables, firsts[1:-1])


def _count_sampled(answers: Answers, ok: npt.NDArray[np.int64]) -> Sampled:
    estimates = answers.estimates if isinstance(answers, Scores) else answers
    if not isinstance(estimates, SampledAnswers):
        return Sampled()
    rows = ok[estimates.sampled[ok]]
    largest = np.zeros(len(rows))
    if isinstance(answers, Scores):
        # States beyond the last one have no error.
        tables = [np.nan_to_num(errors[rows]) for errors in answers.errors]
    else:
        tables = [estimates.errors[v][rows] for v in answers.targets]
    for table in tables:
        np.maximum(largest, table.max(axis=1, initial=0.0), out=largest)
    short = sum(row in answers.reasons for row in rows.tolist())
    samples = int(estimates.samples[rows].sum())
    counts = len(rows), samples, short, Spread.of(largest), Spread.of(estimates.effective[rows])
    if not len(estimates.log_bounds):
        return Sampled(*counts)
    if isinstance(answers, Scores):
        spans = [np.nan_to_num(upper[rows] - lower[rows]) for lower, upper in zip(*answers.intervals, strict=True)]
    else:
        spans = [estimates.upper[v][rows] - estimates.lower[v][rows] for v in answers.targets]
    widths = [span.max(axis=1) for span in spans]
    gaps = Spread.of(estimates.log_bounds[2, rows] - estimates.log_value[rows])
    return Sampled(*counts, Spread.of(np.max(widths, axis=0)) if widths else Spread(), gaps)


def _bins(probabilities: npt.NDArray[np.floating]) -> npt.NDArray[np.int64]:
    return np.clip((probabilities * BINS).astype(np.int64), 0, BINS - 1)


def _nested(table: npt.NDArray[np.int64]) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, table.tolist()))


def _first(one: tuple[RowKey, ...], other: tuple[RowKey, ...]) -> tuple[RowKey, ...]:
    return tuple(sorted((*one, *other), key=lambda each: each.row)[:EXAMPLES])


def _lowest(rows: Iterable[tuple[float, RowKey]]) -> tuple[tuple[float, RowKey], ...]:
    return tuple(sorted(rows, key=lambda each: (each[0], each[1].row))[:LOWEST])


def _added(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> dict[Any, Any]:
    result = dict(one)
    for key, value in other.items():
        result[key] = result[key] + value if key in result else value
    return result


def _spread_record(spread: Spread) -> dict[str, Any]:
    return {"bins": list(spread.counts), "counts": list(spread.counts.values()), "total": spread.total}


def _spread_of(record: Mapping[str, Any]) -> Spread:
    return Spread(dict(zip(record["bins"], record["counts"], strict=True)), record["total"])
