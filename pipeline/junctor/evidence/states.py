"""The meaning of one evidence cell: a state by name or by index, unobserved, or unknown.

Main class: StateCells, one for each observed variable; called by `junctor.evidence.columns`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from functools import cached_property
from typing import Any

from junctor.evidence.batch import UNOBSERVED
from junctor.model.errors import nearest
from junctor.model.network import Variable

# In lower case: cells are compared without case and surrounding white space. Netica and GeNIe write `*`, SAS and Stata
# `.`, databases `\\N` and `(null)`, the others come from R, Excel, pandas and C.
MISSING_TEXTS = frozenset(
    (
        *("", "-", "?", "*", ".", "na", "n/a", "<na>", "nan", "-nan", "nat", "none", "null", "(null)", "\\n"),
        *("#na", "#n/a", "#n/a n/a", "#null!", "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan"),
    )
)
# What is false and what is true where a variable has just these two states, in any case.
_TRUTHS = (("false", "true"), ("f", "t"), ("no", "yes"), ("n", "y"), ("0", "1"))
# Cells that are booleans, in any case.
_BOOLEANS = {"true": True, "t": True, "false": False, "f": False}
UNKNOWN = -2

Cell = str | bool | int | float | Decimal | None
# What a cell is in any spelling, as `value_of` gives it.
Value = Decimal | str | None

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
ANY_NUMBER = re.compile(rf"{_NUMBER.pattern}|[+-]?(?i:inf|infinity)", re.ASCII)
# Numbers with a decimal comma, but for those that may be thousands as well, such as `1,250`.
DECIMAL_COMMA = r"[+-]?(?:[0-9]*,(?:[0-9]{1,2}|[0-9]{4,})|(?:0[0-9]*|[0-9]{4,})?,[0-9]{3})(?:[eE][+-]?[0-9]+)?"
_DECIMAL_COMMA, _THOUSANDS = re.compile(DECIMAL_COMMA), re.compile(r"[+-]?[1-9][0-9]{0,2},[0-9]{3}")
# Numbers of persons and codes of diseases: `01` may be another one than `1`.
_PADDED = re.compile(r"[+-]?0\d.*", re.ASCII)
# At most 18 digits fit 64 bits; int() raises for texts of more than 4,300.
_INTEGER = re.compile(r"(-?(?:0|[1-9]\d{0,17}))(?:\.0+)?", re.ASCII)

# Suggestions compare a cell with every state, which is slow: a table of garbage must not slow the reader down. Most
# suggestions for a variable, most comparisons for all of them, longest cell with a suggestion.
_HINTS = 1000
_HINT_COMPARISONS = 20_000
_HINT_LENGTH = 64
_STATES_SHOWN = 8
_SHOWN_LENGTH = 40


class StateCells:
    """Reads the cells of one variable: `code` gives the state, `reason` the error for an unknown cell."""

    # Rules, in this order:
    # 1. The name of a state is that state, even if it is `NA` or `?`. Text is compared as it stands, then without
    #    surrounding white space; a number by its digits, an integral one (3.0) also as an integer.
    # 2. Null, NaN, the texts of MISSING_TEXTS and those of the caller are unobserved, in any case, but for one that is
    #    a state's name in another case; so are numbers of the caller in any spelling that is no state (5.).
    # 3. True and false, as booleans or as text in any case, and `T` and `F`, are the state called true and false in any
    #    case; of two states that are one of the pairs of _TRUTHS in any case, they are these.
    # 4. A whole number (3, 3.0, `3`, `3.0`, not `03`) is the index of a state from 0, but only if no state has a name
    #    that looks like a number: otherwise numbers are names. Where the states are `yes, no` or `true, false` in this
    #    order, 1 may be the second one or the true one, and is unknown.
    # 5. A number in another spelling (0.50, +0.5, `5e-1`, not `00.5`) is the state of that value (`0.5`), if there is
    #    only one.
    # 6. Anything else is unknown, and its row invalid.
    def __init__(self, variable: Variable, noun: str = "state", missing: Sequence[str] = ()) -> None:
        self._noun = noun
        self._extra = missing
        self._states = variable.states
        self._codes = {name: code for code, name in enumerate(variable.states)}
        self._hints: dict[str, str] = {}

    # Both are for cells that are no name of a state: most tables have none.
    @cached_property
    def _by_index(self) -> bool:
        return not any(_NUMBER.fullmatch(name.strip()) for name in self._states)

    @cached_property
    def _truths(self) -> dict[bool, int | None]:
        folded = [str(name.strip().casefold() if (n := _integer(name)) is None else n) for name in self._states]
        for false, true in _TRUTHS:
            if sorted(folded) == [false, true]:
                return {False: folded.index(false), True: folded.index(true)}
        return {truth: _only(self._states, str(truth).casefold()) for truth in (False, True)}

    @cached_property
    def _is_reversed(self) -> bool:
        """Whether 1 is the index of what is false."""
        return len(self._states) == 2 and (self._truths[True], self._truths[False]) == (0, 1)

    @cached_property
    def _missing(self) -> frozenset[str]:
        return missing_texts(self._extra).difference(name.strip().lower() for name in self._states)

    @cached_property
    def _missing_numbers(self) -> frozenset[Value]:
        values = map(value_of, self._missing.intersection(text.strip().lower() for text in self._extra))
        return frozenset(value for value in values if isinstance(value, Decimal))

    @cached_property
    def _numbers(self) -> dict[Value, list[int]]:
        """The states of each number."""
        found: dict[Value, list[int]] = {}
        for code, name in enumerate(self._states):
            value = _unpadded(name) if _NUMBER.fullmatch(name.strip()) else None
            if value is not None:
                found.setdefault(value, []).append(code)
        return found

    def equal_states(self, cell: Cell) -> list[int]:
        """Return the states whose names are the same number as a cell."""
        return self._numbers.get(_unpadded(cell), []) if self._numbers else []

    def code(self, cell: Cell) -> int:
        """Return the state that `cell` names, UNOBSERVED, or UNKNOWN."""
        # By far the most common, and the first rule.
        if type(cell) is str and cell in self._codes:
            return self._codes[cell]
        # NaN alone differs from itself.
        if cell is None or cell != cell:
            return UNOBSERVED
        for text in _spellings(cell):
            if text in self._codes:
                return self._codes[text]
        return self._code_of_other(cell)

    def _code_of_other(self, cell: Cell) -> int:
        text = str(cell).strip()
        if text.lower() in self._missing:
            return UNOBSERVED
        equal = self.equal_states(cell)
        if len(equal) == 1:
            return equal[0]
        # -9.0 is `-9`: pandas makes floats of integers beside nulls.
        if self._extra and value_of(cell) in self._missing_numbers:
            return UNOBSERVED
        # `true` and `false` have at most five letters; longer cells need no case folding.
        meant = _BOOLEANS.get(text.casefold()) if len(text) <= 5 else None
        truth = None if meant is None else self._truths[meant]
        if truth is not None:
            return truth
        index = _integer(cell)
        if index is not None and self._by_index and 0 <= index < len(self._states) and not self._is_reversed:
            return index
        return UNKNOWN

    def reason(self, cell: Cell) -> str:
        """Say what is wrong with a cell that is UNKNOWN, and what was expected."""
        shown = _short(repr(cell) if isinstance(cell, str) else str(cell))
        names = ", ".join(_short(name) for name in self._states[:_STATES_SHOWN])
        if len(self._states) > _STATES_SHOWN:
            names += f", ... ({len(self._states)} in all)"
        integer = _integer(cell)
        if integer in (0, 1) and self._by_index and self._is_reversed:
            # The states are the true one and the false one, in this order.
            first, second = self._states[1 - integer], self._states[integer]
            return f"{shown} may mean {first!r}, or {second!r} by its index: give the {self._noun} by name"
        equal = [repr(_short(self._states[code])) for code in self.equal_states(cell)[:2]]
        if len(equal) == 2:
            return f"{shown} may mean {equal[0]} or {equal[1]}, which are one number: give the {self._noun} by name"
        return f"unknown {self._noun} {shown}{self._hint(cell)}; {self._noun}s are {names}"

    def _hint(self, cell: Cell) -> str:
        if not isinstance(cell, str) or len(cell) > _HINT_LENGTH:
            return ""
        most_hints = min(_HINTS, 1 + _HINT_COMPARISONS // len(self._states))
        if cell not in self._hints and len(self._hints) < most_hints:
            self._hints[cell] = nearest(cell.strip(), self._states)
        return self._hints.get(cell, "")


def plain_cell(cell: Any) -> Any:
    """Return what a scalar of Arrow holds, and bytes as text, as in columns of bytes; any other cell as it is."""
    if hasattr(cell, "as_py"):
        cell = cell.as_py()
    return cell.decode(errors="backslashreplace") if isinstance(cell, bytes | bytearray) else cell


def value_of(cell: Cell) -> Value:
    """Return what a cell is in any spelling: a number, or `true` or `false`; None for all others.

    A float is its shortest digits: 0.1 is one tenth, as in the text `0.10`.
    """
    # NaN alone differs from itself.
    if cell is None or cell != cell:
        return None
    if isinstance(cell, int | float | Decimal) and not isinstance(cell, bool):
        return Decimal(float.__repr__(cell)) if isinstance(cell, float) else Decimal(cell)
    text = str(cell).strip()
    if ANY_NUMBER.fullmatch(text):
        try:
            return Decimal(text)
        except InvalidOperation:
            # An exponent of more than 18 digits.
            return None
    return text.lower() if len(text) <= 5 and text.lower() in ("true", "false") else None


def with_point(text: str) -> str:
    """Return a number with a point in place of its decimal comma, any other text as it is."""
    return text.replace(",", ".") if "," in text and _DECIMAL_COMMA.fullmatch(text) else text


def comma_hint(cell: Cell) -> str:
    """Return what is unclear about a number whose comma may be of thousands, empty for all other cells."""
    unclear = isinstance(cell, str) and _THOUSANDS.fullmatch(cell.strip())
    return " (its comma may be of decimals or of thousands)" if unclear else ""


def missing_texts(more: Sequence[str] = ()) -> frozenset[str]:
    """Return the texts that stand for no observation, in lower case: the usual ones, and `more`."""
    return MISSING_TEXTS.union(text.strip().lower() for text in more)


def _only(states: tuple[str, ...], truth: str) -> int | None:
    # Both `True` and `TRUE` as states leave no way to choose.
    codes = [code for code, name in enumerate(states) if name.casefold() == truth]
    return codes[0] if len(codes) == 1 else None


def _spellings(cell: Cell) -> Iterator[str]:
    """Yield the names that a cell may stand for; none for booleans, whose names are compared without case."""
    if isinstance(cell, bool):
        return
    yield str(cell)
    if isinstance(cell, str):
        yield cell.strip()
    integer = _integer(cell)
    if integer is not None:
        yield str(integer)


def _integer(cell: Cell) -> int | None:
    # Before int, of which bool is a subclass.
    if isinstance(cell, bool):
        return None
    if isinstance(cell, str):
        match = _INTEGER.fullmatch(cell.strip())
        return int(match[1]) if match else None
    if isinstance(cell, int):
        return cell
    if isinstance(cell, float):
        return int(cell) if cell.is_integer() else None
    if isinstance(cell, Decimal):
        return int(cell) if cell == cell.to_integral_value() else None
    return None


def _unpadded(cell: Cell) -> Value:
    """Return the value of a cell, None for text with zeros before a number."""
    return None if isinstance(cell, str) and _PADDED.match(cell.strip()) else value_of(cell)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_LENGTH else f"{text[:_SHOWN_LENGTH]}..."
