"""The meaning of one evidence cell: a state by name or by index, unobserved, or unknown.

Main class: StateCells, one for each observed variable; called by `junctor.evidence.columns`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from functools import cached_property

from junctor.evidence.batch import UNOBSERVED
from junctor.model.errors import nearest
from junctor.model.network import Variable

MISSING_TEXTS = ("", "NA", "?", "null", "NaN", "nan")
UNKNOWN = -2

Cell = str | bool | int | float | Decimal | None

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
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
    # 2. Null, NaN and the texts empty, `NA`, `?`, `null`, `NaN` and `nan` are unobserved.
    # 3. True and false, as booleans or as text in any case, are the state of that name in any case.
    # 4. A whole number (3, 3.0, `3`, `3.0`, not `03`) is the index of a state from 0, but only if no state has a name
    #    that looks like a number: otherwise numbers are names.
    # 5. Anything else is unknown, and its row invalid.
    def __init__(self, variable: Variable, noun: str = "state") -> None:
        self._noun = noun
        self._states = variable.states
        self._codes = {name: code for code, name in enumerate(variable.states)}
        self._hints: dict[str, str] = {}

    # Both are for cells that are no name of a state: most tables have none.
    @cached_property
    def _by_index(self) -> bool:
        return not any(_NUMBER.fullmatch(name.strip()) for name in self._states)

    @cached_property
    def _truths(self) -> dict[str, int | None]:
        return {truth: _only(self._states, truth) for truth in ("true", "false")}

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
        if isinstance(cell, str) and text in MISSING_TEXTS:
            return UNOBSERVED
        # `true` and `false` have at most five letters; longer cells need no case folding.
        truth = self._truths.get(text.casefold()) if len(text) <= 5 else None
        if truth is not None:
            return truth
        index = _integer(cell)
        if index is not None and self._by_index and 0 <= index < len(self._states):
            return index
        return UNKNOWN

    def reason(self, cell: Cell) -> str:
        """Say what is wrong with a cell that is UNKNOWN, and what was expected."""
        shown = _short(repr(cell) if isinstance(cell, str) else str(cell))
        names = ", ".join(_short(name) for name in self._states[:_STATES_SHOWN])
        if len(self._states) > _STATES_SHOWN:
            names += f", ... ({len(self._states)} in all)"
        return f"unknown {self._noun} {shown}{self._hint(cell)}; {self._noun}s are {names}"

    def _hint(self, cell: Cell) -> str:
        if not isinstance(cell, str) or len(cell) > _HINT_LENGTH:
            return ""
        most_hints = min(_HINTS, 1 + _HINT_COMPARISONS // len(self._states))
        if cell not in self._hints and len(self._hints) < most_hints:
            self._hints[cell] = nearest(cell.strip(), self._states)
        return self._hints.get(cell, "")


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


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_LENGTH else f"{text[:_SHOWN_LENGTH]}..."
