"""Columns of tables of sequences, as users name them. Main class: SequenceColumns, for the API and the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from junctor.model.errors import EvidenceError, InputError, Place, nearest
from junctor.model.options import Gaps
from junctor.model.query import one_of

# Names the sequences where no other column does.
CASE_ID = "case_id"


@dataclass(frozen=True, slots=True)
class SequenceColumns:
    """Columns of a table as they were named; None for those that are found, or not there.

    column: of the lists, or in a table with a row for each step of the symbols.
    case_id: of names of the sequences.
    step: of numbers or times that order the rows of a sequence.
    labels: of states that are known.
    weight: of weights of the sequences.
    gaps: what becomes of gaps in whole numbers of steps.
    """

    column: str | None = None
    case_id: str | None = None
    step: str | None = None
    labels: str | None = None
    weight: str | None = None
    gaps: Gaps = "invalid"

    def __post_init__(self) -> None:
        one_of("gaps", self.gaps, Gaps)
        if self.gaps != "invalid" and self.step is None:
            raise InputError(
                "--gaps is for a table with a row for each step, whose number stands in the column of --step"
            )

    def symbols(self, names: Sequence[str], sensors: Sequence[str], place: Place | None) -> list[str]:
        """Return the column of the symbols among the columns of a table, or one for each sensor of the model."""
        others = {self.case_id or CASE_ID, self.step, self.labels, self.weight}
        left = [name for name in names if name not in others]
        if self.column is None and (apart := columns_of_sensors(sensors, left, place)):
            return apart
        if self.column is None and len(left) != 1:
            raise EvidenceError(f"found the columns {left}, expected one of symbols: --column names it", place)
        return [self.column or left[0]]

    def read(self, names: Sequence[str], sensors: Sequence[str], place: Place | None) -> list[str]:
        """Return the columns of a table with a row for each step that are read; raises EvidenceError."""
        ids = CASE_ID if self.case_id is None and CASE_ID in names else self.case_id
        found = [*self.symbols(names, sensors, place), ids, self.step, self.labels, self.weight]
        wanted = list(dict.fromkeys(name for name in found if name is not None))
        for name in wanted:
            if name not in names:
                raise EvidenceError(f"no column {name!r}{nearest(name, names)}", place)
        return wanted


NO_NAMES = SequenceColumns()


def columns_of_sensors(sensors: Sequence[str], names: Sequence[str], place: Place | None) -> list[str]:
    """Return the columns of sensors; none where no sensor has one, and EvidenceError where only some have.

    sensors: of a model; `Noise_1` and `Noise'` are found as `Noise`, too.
    names: of the columns.
    place: the file, for errors.
    """
    found = {sensor: sensor if sensor in names else sensor.removesuffix("'").removesuffix("_1") for sensor in sensors}
    lacking = [sensor for sensor, name in found.items() if name not in names]
    if lacking and len(lacking) < len(sensors):
        some = sorted(set(found.values()) & set(names))
        raise EvidenceError(f"found columns of {some}, but none of {lacking[0]!r}{nearest(lacking[0], names)}", place)
    return [] if lacking else list(found.values())
