"""What came of a finished run: its manifest, the merged statistics of its parts, and drift against its network.

Main class: Outcome; `report`, thresholds and comparisons read nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from junctor.model.errors import RunError
from junctor.model.query import answering_network
from junctor.model.question import Question, question_of
from junctor.runs.drift import Drift, Vector, drifts, marginals
from junctor.runs.manifest import Manifest
from junctor.runs.partition import Part, network_for
from junctor.runs.statistics import Reason, Statistics, complete, merged, statistics_of
from junctor.runs.storage import STATISTICS, Directory, RunDirectory, RunSpec, run_digest
from junctor.runs.thresholds import Verdict, parse_threshold, refuse_incomplete, refuse_unknown, verdicts
from junctor.runtime.files import read_json, refused

if TYPE_CHECKING:
    from junctor.model.network import Network

# Reasons of a status that are told at the end of a run.
TOLD = 3


@dataclass(frozen=True, eq=False)
class Outcome:
    """A finished run.

    directory: of the run.
    manifest: of the run.
    statistics: of all parts; of parts without any, rows and statuses alone.
    counted: parts with statistics.
    network: None for sequences.
    """

    directory: Directory[Any]
    manifest: Manifest
    statistics: Statistics
    counted: int
    network: Network | None

    @cached_property
    def expected(self) -> tuple[dict[str, Vector], str]:
        """Marginals of the network for all evidence columns, and how they were found."""
        if self.network is None:
            return {}, ""
        return marginals(self.network, list(self.statistics.columns))

    @cached_property
    def drifts(self) -> list[Drift]:
        """All evidence columns against the marginals of the network, the most drifted first."""
        return drifts(self.statistics.columns, self.expected[0])

    def verdicts(self, texts: Sequence[str]) -> list[Verdict]:
        """Return what comes of thresholds; raises RunError for those that need statistics which are not there."""
        thresholds = [parse_threshold(text) for text in texts]
        for each in thresholds:
            refuse_incomplete(each, len(self.manifest.parts), self.counted)
        return verdicts(thresholds, self.statistics, self._distances)

    def refuse_unknown(self, texts: Sequence[str]) -> None:
        """Raise InputError for thresholds on what the run has not."""
        thresholds = [parse_threshold(text) for text in texts]
        refuse_unknown(thresholds, list(self.statistics.statuses), self.logarithm, lambda: self.statistics.columns)

    @property
    def question(self) -> Question | None:
        """What was asked of each row; None of sequences."""
        spec = self.manifest.spec
        return question_of(spec.folder) if isinstance(spec, RunSpec) else None

    @cached_property
    def answering(self) -> Network | None:
        """The network with what the question adds to it."""
        spec = self.manifest.spec
        return answering_network(self.network, spec.as_query()) if self.network and isinstance(spec, RunSpec) else None

    @property
    def shown(self) -> str:
        """What is counted of targets, as of `Question`; of sequences nothing."""
        return "" if self.question is None else self.question.counted

    @property
    def logarithm(self) -> str:
        """Name of the column of logarithms."""
        if self.question is not None:
            return self.question.log_column
        return "log_likelihood" if self.manifest.spec.query == "posteriors" else "log_probability"

    def _distances(self, names: Collection[str]) -> dict[str, float]:
        if not names:
            return {}
        # Of an increment, an input that could not be read may be the only one with a column.
        known = {each.name: each.distance for each in self.drifts}
        return {name: known.get(name, math.nan) for name in names}


def outcome_of(directory: Directory[Any], manifest: Manifest) -> Outcome:
    """Return the outcome of a finished run; raises RunError for files that cannot be read."""
    run = run_digest(directory.read_spec())
    parts = [_statistics(directory, run, part) for part in manifest.parts]
    # In the order of the rows, whoever answered them.
    with refused(lambda said: RunError(f"{directory.path / STATISTICS}: do not fit each other ({said}): delete them")):
        statistics = complete(merged(found for found in parts if found is not None))
    for found, part in zip(parts, manifest.parts, strict=True):
        if found is None:
            statistics += Statistics(part.rows, part.statuses)
    network = None
    if isinstance(directory, RunDirectory):
        network = network_for(directory.network, directory.read_spec().network_digest)
    return Outcome(directory, manifest, statistics, sum(found is not None for found in parts), network)


def most_frequent(directory: Directory[Any], parts: Sequence[Part]) -> list[tuple[str, Reason]]:
    """Return the kinds of reasons of most rows without an answer, at most `TOLD` of each status.

    directory: of a finished run.
    parts: whose rows are meant; those whose statistics are gone, or of an earlier version, tell none.
    """
    # Of most parts the manifest says all.
    reasons = statistics_in(directory, [part for part in parts if part.rows > part.statuses["ok"]]).reasons
    ranked = sorted(reasons.items(), key=lambda item: (-item[1].rows, item[0]))
    told: list[tuple[str, Reason]] = []
    for status in dict.fromkeys(reason.status for _, reason in ranked):
        told += [each for each in ranked if each[1].status == status != "ok"][:TOLD]
    return told


def statistics_in(directory: Directory[Any], parts: Sequence[Part]) -> Statistics:
    """Return the merged statistics of those of some parts that have any."""
    run = run_digest(directory.read_spec())
    found = (_statistics(directory, run, part) for part in parts)
    return merged(each for each in found if each is not None)


def _statistics(directory: Directory[Any], run: str, part: Part) -> Statistics | None:
    path = directory.statistics(directory.path / part.file)
    record = read_json(path)
    if record is None:
        return None
    try:
        found = statistics_of(record)
    except RunError as error:
        raise RunError(f"{path}: {error}: delete it, and the report is made without it") from error
    # Of another part: someone has moved files. Those of earlier versions name no run.
    is_its = record.get("run", run) == run and (found.rows, found.statuses) == (part.rows, part.statuses)
    return found if is_its else None
