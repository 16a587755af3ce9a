"""UAI evidence (`.evid`): numbers of variables and states, no names, one case or several.

Main class: EvidSource, opened by `junctor.evidence.read`. The file is held in memory, 8 bytes a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from junctor.evidence.batch import UNOBSERVED, EvidenceBatch
from junctor.evidence.encode import EncodedPartition, numbered, row_numbers
from junctor.evidence.files import open_bytes
from junctor.evidence.layout import NO_COLUMNS
from junctor.model.errors import EvidenceError, Place
from junctor.model.network import Network
from junctor.runtime.files import read_whole
from junctor.runtime.remote import AnyPath

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False, slots=True)
class _Cases:
    """Observations of all cases, one case after the other.

    starts: int64 [cases + 1], case i has the observations starts[i] to starts[i + 1].
    variables: int64 [observations].
    states: int64 [observations], of these variables.
    tokens: int64 [cases], position in the file, counted in numbers, of the first variable of each case.
    """

    starts: Integers
    variables: Integers
    states: Integers
    tokens: Integers

    def rows(self) -> Integers:
        """Return the case of each observation."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    def without(self, hidden: frozenset[int]) -> _Cases:
        """Return the cases without the observations of some variables; what is left is not at its token."""
        kept = ~np.isin(self.variables, list(hidden))
        starts = np.append(0, np.cumsum(kept))[self.starts]
        return _Cases(starts, self.variables[kept], self.states[kept], self.tokens)

    def token_of(self, observation: int) -> int:
        """Return the position in the file, counted in numbers, of the variable of an observation."""
        case = int(np.searchsorted(self.starts, observation, side="right")) - 1
        return int(self.tokens[case] + 2 * (observation - self.starts[case]))


@dataclass(frozen=True, eq=False, slots=True)
class EvidSource:
    """The cases of a UAI evidence file; case ids are row numbers, and there is no column to keep."""

    columns: list[int]
    case_id_type: pa.DataType
    _cases: _Cases = field(repr=False)
    _invalid: dict[int, str] = field(repr=False)
    kept_schema: pa.Schema = NO_COLUMNS

    @classmethod
    def read(cls, path: AnyPath, network: Network, strict: bool, hidden: frozenset[int] = frozenset()) -> EvidSource:
        """Read a file, without what it says of `hidden` variables; raises EvidenceError with line and column."""
        with open_bytes(path) as file:
            text = _Text(read_whole(file).removeprefix(b"\xef\xbb\xbf"), str(path))
        numbers = text.numbers()
        cases = _read_cases(numbers, text, network)
        outside = np.flatnonzero(cases.variables >= len(network.public))
        if outside.size:
            raise text.error(
                f"found variable {cases.variables[outside[0]]}, expected 0 to {len(network.public) - 1}",
                cases.token_of(int(outside[0])),
            )
        if hidden:
            cases = cases.without(hidden)
        invalid = dict(_invalid_cases(cases, network))
        if strict and invalid:
            row = min(invalid)
            raise text.error(f"row {row + 1}: {invalid[row]}", int(cases.tokens[row]) - 1)
        return cls(np.unique(cases.variables).tolist(), pa.int64(), cases, invalid)

    def partitions(self, rows: int, threads: int = 1) -> Iterator[EncodedPartition]:
        """Yield partitions of `rows` rows; see `EvidenceSource`."""
        if rows < 1:
            raise ValueError(f"partitions need at least one row, not {rows}")
        total = len(self._cases.starts) - 1
        # By partition at once: a search in all invalid rows for each partition would be quadratic.
        bad: dict[int, dict[int, str]] = {}
        for row, reason in self._invalid.items():
            bad.setdefault(row // rows, {})[row % rows] = reason
        for first in range(0, total, rows):
            here = min(rows, total - first)
            invalid = bad.get(first // rows, {})
            states = self._states(first, here)
            # Invalid rows get no answer, but a state out of range would index outside of tables.
            for column in states.values():
                column[list(invalid)] = UNOBSERVED
            batch = EvidenceBatch(here, states, {}, invalid)
            yield EncodedPartition(batch, row_numbers(first, here), first)

    def names_of(self, rows: Sequence[int]) -> list[str]:
        """Return what people find some rows by; see `EvidenceSource`."""
        return numbered(rows)

    def _states(self, first: int, rows: int) -> dict[int, npt.NDArray[np.int32]]:
        cases = self._cases
        piece = slice(int(cases.starts[first]), int(cases.starts[first + rows]))
        states = np.full((len(self.columns), rows), UNOBSERVED, dtype=np.int32)
        column = np.searchsorted(self.columns, cases.variables[piece])
        row = np.repeat(np.arange(rows), np.diff(cases.starts[first : first + rows + 1]))
        states[column, row] = cases.states[piece]
        return dict(zip(self.columns, states, strict=True))


def _read_cases(numbers: Integers, text: _Text, network: Network) -> _Cases:
    """Return the cases of a file; raises EvidenceError if it has neither of the two forms in use."""
    # Nothing in a file declares its form:
    # - one case: the number of observed variables, then a variable and its state for each (`0`: no evidence);
    # - several cases: the number of cases, then each of them in the form above.
    # The form that uses up all numbers is meant. Where both do (`2 0 1 1 0`), it is the one in which all variables and
    # states exist and no variable repeats; else several cases if the first number and each case have their own lines.
    single, several = _one_case(numbers), _several_cases(numbers)
    if single is not None and several is not None:
        consistent = [cases for cases in (single, several) if _is_consistent(cases, network)]
        if len(consistent) == 1:
            return consistent[0]
        return several if text.has_lines_of(several) else single
    cases = single if single is not None else several
    if cases is None:
        count = int(numbers[0])
        raise text.error(
            f"found {len(numbers) - 1} numbers after the first, {count}: expected either {2 * count} (one case: a "
            f"variable and its state, {count} times) or {count} cases, each with its own number of variables first",
            0,
        )
    return cases


def _one_case(numbers: Integers) -> _Cases | None:
    if len(numbers) != 1 + 2 * numbers[0]:
        return None
    return _Cases(np.array([0, numbers[0]]), numbers[1::2], numbers[2::2], np.array([1]))


def _several_cases(numbers: Integers) -> _Cases | None:
    # Items of a memoryview are Python integers, several times faster one by one than those of an array.
    flat, end, at, tokens = memoryview(numbers.data), len(numbers), 1, []
    for _ in range(min(int(numbers[0]), end)):
        if at >= end:
            return None
        tokens.append(at + 1)
        at += 1 + 2 * flat[at]
    # `0` is one case without evidence, not zero cases.
    if at != end or len(tokens) != numbers[0] or not tokens:
        return None
    first = np.array(tokens, dtype=np.int64)
    starts = np.append(0, np.cumsum(numbers[first - 1]))
    # Position of each observation in the file: two numbers each, from the first one of its case.
    places = np.repeat(first - 2 * starts[:-1], np.diff(starts)) + 2 * np.arange(starts[-1])
    return _Cases(starts, numbers[places], numbers[places + 1], first)


def _is_consistent(cases: _Cases, network: Network) -> bool:
    inside = bool((cases.variables < len(network.public)).all())
    return inside and not any(True for _ in _invalid_cases(cases, network))


def _invalid_cases(cases: _Cases, network: Network) -> Iterator[tuple[int, str]]:
    """Yield the rows of invalid cases with all their errors."""
    rows = cases.rows()
    cardinalities = np.array(network.cardinalities)
    wrong = cases.states >= cardinalities[cases.variables]
    # Sorted by case and variable, repeated variables of a case are neighbours; the sort is stable, so the first one
    # stays.
    order = np.lexsort((cases.variables, rows))
    again = np.zeros(len(rows), dtype=np.bool_)
    again[order[1:]] = (np.diff(rows[order]) == 0) & (np.diff(cases.variables[order]) == 0)
    reasons: dict[int, list[str]] = {}
    for at in np.flatnonzero(wrong | again).tolist():
        variable = int(cases.variables[at])
        name = f"variable {variable} ({network.variables[variable].name!r})"
        if wrong[at]:
            message = f"{name}: unknown state {cases.states[at]}, expected 0 to {cardinalities[variable] - 1}"
            reasons.setdefault(int(rows[at]), []).append(message)
        if again[at]:
            reasons.setdefault(int(rows[at]), []).append(f"{name} is observed twice")
    for row, errors in reasons.items():
        yield row, "; ".join(errors)


@dataclass(frozen=True, slots=True)
class _Text:
    """The bytes of a file and its name; locates its numbers for errors."""

    data: bytes
    file: str

    def numbers(self) -> Integers:
        """Return all numbers of the file, int64; raises EvidenceError for anything else in it."""
        # Ten digits and more are refused: no network has such numbers, and sums of them could overflow.
        strange = re.search(rb"[^\s\d]|\d{10,}", self.data)
        if strange:
            before = self.data[: strange.start()]
            start = strange.start() - len(re.search(rb"\S*\Z", before)[0])  # type: ignore[index]
            word = re.match(rb"\S{1,40}", self.data[start:])[0].decode(errors="replace")  # type: ignore[index]
            raise EvidenceError(
                f"found {word!r}, expected numbers of variables and states: from 0, below a thousand million",
                self._place(start),
            )
        if not self.data.strip():
            raise EvidenceError("the file is empty, expected numbers (0 is a case without evidence)", Place(self.file))
        return np.fromstring(self.data, dtype=np.int64, sep=" ")

    def has_lines_of(self, cases: _Cases) -> bool:
        """Return True if the number of cases and each case stand on lines of their own."""
        lengths = [len(line.split()) for line in self.data.splitlines()]
        return [length for length in lengths if length] == [1, *(1 + 2 * np.diff(cases.starts)).tolist()]

    def error(self, message: str, token: int) -> EvidenceError:
        """Return an error at the number with index `token` in the file."""
        for i, match in enumerate(re.finditer(rb"\S+", self.data)):
            if i == token:
                return EvidenceError(message, self._place(match.start()))
        return EvidenceError(message, Place(self.file))

    def _place(self, offset: int) -> Place:
        before = self.data[:offset]
        return Place(self.file, before.count(b"\n") + 1, offset - before.rfind(b"\n"))
