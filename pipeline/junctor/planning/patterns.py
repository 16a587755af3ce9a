"""Which evidence patterns get a plan of their own, and which share one.

A plan for exactly the observed variables is the cheapest to run, but takes time to make. Rows with rare patterns share
the plan of the variables that all of them observe; the rest of their evidence enters as likelihoods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from junctor.planning.shape import Pattern


@dataclass(frozen=True, slots=True)
class Found:
    """An evidence pattern of a batch: variables observed, variables with soft evidence, and how many rows have it."""

    observed: frozenset[int]
    soft: frozenset[int]
    rows: int


@dataclass(frozen=True, slots=True)
class Group:
    """Patterns (numbers in the list of those found) that run through one plan."""

    pattern: Pattern
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cost:
    """What a pattern costs, in seconds: `once` to plan and prepare it, `row` for each row; `fits` in the memory."""

    once: float
    row: float
    fits: bool = True


def share_patterns(found: Sequence[Found], estimate: Callable[[Pattern], Cost]) -> list[Group]:
    """Group patterns so that planning and running together cost little by `estimate`.

    The estimate is asked for a few patterns only: the most frequent one, which stands for all, and those shared.
    """
    by_rows = sorted(range(len(found)), key=lambda i: (-found[i].rows, i))
    if len(found) == 1:
        return [_own(found, 0)]
    shared = estimate(common_pattern(found, by_rows))
    own = estimate(_own(found, by_rows[0]).pattern)
    gain = shared.row - own.row
    enough = own.once / gain if gain > 0 else float("inf")
    frequent = [i for i in by_rows if not shared.fits or found[i].rows > enough]
    rare = by_rows[len(frequent) :]
    groups = [_own(found, i) for i in frequent]
    if rare:
        groups.append(Group(common_pattern(found, rare), tuple(rare)))
    return groups


def common_pattern(found: Sequence[Found], members: Sequence[int]) -> Pattern:
    """Return the pattern that serves all `members`: what all observe is sliced, all other evidence is weighted."""
    observed = frozenset.intersection(*(found[i].observed for i in members))
    evidence = frozenset.union(*(found[i].observed | found[i].soft for i in members))
    return Pattern(observed, evidence - observed)


def _own(found: Sequence[Found], i: int) -> Group:
    return Group(Pattern(found[i].observed, found[i].soft), (i,))
