"""Choices of learning by name, and checks of them, for the command line, which offers them without loading NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Real

from junctor.model.errors import EvidenceError, InputError
from junctor.model.options import Impossible
from junctor.model.query import one_of

# Share of a distribution that its zeros get where impossible rows are smoothed.
SMOOTHING = 1e-3
# Numbers of impossible rows that an error names.
MOST_ROWS = 5


def check_choices(restarts: int, start: str, holdout: float, seed: int, impossible: Impossible) -> None:
    """Raise InputError for choices of any fit that make no sense.

    restarts: random starts; start: random, or another one.
    holdout: share of the rows.
    seed: of starts and of the rows held out.
    impossible: what becomes of impossible rows.
    """
    one_of("impossible", impossible, Impossible)
    if restarts < 1:
        raise InputError(f"found {restarts!r} restarts, expected at least 1")
    if restarts > 1 and start != "random":
        raise InputError(f"{restarts} restarts from the same start would end alike: add --start random")
    if not (isinstance(holdout, Real) and 0 <= holdout < 1):
        raise InputError(f"found a holdout of {holdout!r}, expected a share from 0 to below 1")
    if not 0 <= seed < 2**64:
        raise InputError(f"found seed {seed}, expected 0 to 2^64 - 1")


def refuse_impossible(
    rows: Sequence[int],
    choice: Impossible,
    names_of: Callable[[Sequence[int]], list[str]],
    row: str = "row",
    model: str = "network",
    cause: str = "",
) -> None:
    """Raise EvidenceError for impossible rows that are not to be skipped.

    rows: their numbers, from 0.
    choice: what becomes of them; smoothing has left these.
    names_of: returns what people find some of them by.
    row, model: what they are called.
    cause: what rules out the first of them, where it is known.
    """
    if not len(rows) or choice == "skip":
        return
    some = ", ".join(names_of(rows[:MOST_ROWS]))
    which = f"{row} {some} is" if len(rows) == 1 else f"{len(rows):,} {row}s are"
    named = "" if len(rows) == 1 else f" ({some}{', ...' if len(rows) > MOST_ROWS else ''})"
    lift = "" if choice == "smooth" else ", --impossible smooth lifts the zeros"
    of_first = f" ({'' if len(rows) == 1 else 'the first: '}{cause})" if cause else ""
    raise EvidenceError(
        f"{which} impossible{named} by zeros of the {model}{of_first}: --impossible skip leaves such {row}s out{lift}"
    )
