"""Forecast of a run from a sample of its rows: seconds of its parts, and the most memory that its process takes.

Main function: `forecast_run`, called by `junctor inspect`. What rows take is that of the engine's forecast; files, and
what a process takes in any case, are counted here, with prices of `junctor.cost.figures`.
"""

from __future__ import annotations

from dataclasses import dataclass

from junctor.cost.figures import Figures, FileFigures
from junctor.engine.engine import Engine
from junctor.engine.forecast import forecast
from junctor.evidence.batch import EvidenceBatch
from junctor.evidence.encode import EncodedPartition
from junctor.model.answers import answer_width
from junctor.model.network import Network
from junctor.model.query import Query, target_names
from junctor.model.strategies import Strategy
from junctor.runs.partition import WRITERS
from junctor.runs.results import default_partition_rows
from junctor.runs.run import INPUTS_AHEAD
from junctor.strategies.strategy import Route

# Parts of a sample at most that are forecast: each is planned as in a run.
FORECAST_PARTS = 4
# Bytes of the compressed pages of a part, as a share of its answers.
PAGES_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class RunSeconds:
    """Seconds of a run whose rows are answered by one thread, by what they go to.

    starting: until everything is loaded.
    reading: evidence, with its encoding.
    answering: rows.
    writing: answers, with their statistics.
    parts: of the run; while one is written the next is answered, by another thread.
    """

    starting: float
    reading: float
    answering: float
    writing: float
    parts: int

    @property
    def total(self) -> float:
        """From the start to the end of the process; of one core where there is only one part."""
        shorter, longer = sorted((self.answering, self.writing))
        return self.starting + self.reading + longer + shorter / self.parts


@dataclass(frozen=True, eq=False, slots=True)
class ForecastOfRun:
    """Forecast of a run.

    routes: of the sample, those with most operations first.
    rows: of all.
    sampled: rows of the sample that were looked at.
    seconds: of the run.
    held: bytes of evidence and answers that are in memory beside those that propagation is planned with.
    """

    routes: list[Route]
    rows: int
    sampled: int
    seconds: RunSeconds
    held: int

    @property
    def operations(self) -> int:
        """Of all rows."""
        return sum(route.operations for route in self.routes) * self.rows // max(1, self.sampled)


def sampled_rows(network: Network, query: Query, most: int) -> int:
    """Return the rows that a forecast wants to see: some whole parts of a run, `most` at the most."""
    return min(most, FORECAST_PARTS * default_partition_rows(network, query))


def forecast_run(engine: Engine, sample: EncodedPartition, total: int, bound: int = 0) -> ForecastOfRun:
    """Return the forecast of a run.

    engine: with the network, the query and the options.
    sample: as many rows as `sampled_rows` wants, or all.
    total: number of all rows.
    bound: as of `forecast`.
    """
    network, query = engine.network, engine.query
    size = default_partition_rows(network, query)
    batches = _parts(sample, size, total)
    sampled, parts = sum(batch.rows for batch in batches), max(1, -(-total // size))
    routes = [route for batch in batches for route in forecast(engine, batch, bound)]
    figures = engine.facts.figures
    answering = sum(_answering(route, figures.files) for route in routes) * total / max(1, sampled)
    columns = len(sample.batch.states) + len(sample.batch.likelihoods)
    seconds = _seconds(network, query, total, answering, columns, parts, figures)
    # Propagation is planned with the answers to a part, or to a sample that is smaller; what was encoded ahead is not
    # given back.
    planned = max(batch.rows for batch in batches)
    held = (_waiting(parts) * min(size, total) + max(0, min(size, total) - planned)) * answer_width(network, query)
    held += min(INPUTS_AHEAD, total * sample.batch.nbytes // max(1, sample.batch.rows))
    ordered = sorted(routes, key=lambda route: -route.operations)
    return ForecastOfRun(ordered, total, sampled, seconds, round(held))


def _answering(route: Route, files: FileFigures) -> float:
    """Return the seconds of a route without those of files, which a run counts by cells and bytes."""
    beside = 0.0 if route.strategy is Strategy.ROW_TREES else route.rows * files.row
    return max(0.0, route.seconds - beside)


def _waiting(parts: int) -> float:
    """Return the parts of answers that wait to be written, with the pages that are made of them."""
    return min(WRITERS, parts - 1) + min(WRITERS, parts) * PAGES_SHARE


def _parts(sample: EncodedPartition, size: int, total: int) -> list[EvidenceBatch]:
    """Return a sample in parts of so many rows; the last one has fewer if it is the last one of all `total` rows."""
    whole, rows = sample.batch.rows // size, sample.batch.rows
    ends = [size * (i + 1) for i in range(whole)]
    if not whole or (rows == total and rows > size * whole):
        ends.append(rows)
    return [sample.rows(size * i, end - size * i).batch for i, end in enumerate(ends)]


def _seconds(
    network: Network, query: Query, rows: int, answering: float, columns: int, parts: int, figures: Figures
) -> RunSeconds:
    """Return the seconds of a run.

    rows: of all.
    answering: seconds of their answers.
    columns: of evidence.
    parts: of the run.
    figures: of the CPU.
    """
    files = figures.files
    width = answer_width(network, query)
    writing = rows * width * files.answer_byte + parts * len(target_names(network, query)) * files.answer_column
    return RunSeconds(figures.loading.process, rows * columns * files.cell, answering, writing, parts)
