"""Mini-buckets: an elimination whose tables keep within a budget of entries.

Main function: `plan_buckets`, called by `sampling.bounded` for each evidence pattern. Variables are eliminated one
after the other; the functions over a variable, its bucket, are multiplied and summed together only as far as their
product is no larger than allowed (Dechter and Rish 2003). No arrays here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

Scope = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MiniBucket:
    """Functions that are multiplied, and whose product is summed over one variable.

    scope: variables of the product in the order of elimination; the first one is summed over.
    factors: numbers of factors.
    messages: numbers of mini-buckets whose sums it takes.
    """

    scope: Scope
    factors: tuple[int, ...]
    messages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BucketPlan:
    """An elimination by mini-buckets.

    minis: all mini-buckets, in the order of elimination.
    buckets: for each variable, in the order of elimination, the numbers of its mini-buckets.
    takers: for each mini-bucket the one that takes its message, -1 where that is a number.
    entries: of the tables of all mini-buckets.
    """

    minis: tuple[MiniBucket, ...]
    buckets: tuple[range, ...]
    takers: tuple[int, ...]
    entries: int

    @property
    def split(self) -> int:
        """Number of buckets with several mini-buckets; with none of them the elimination is exact."""
        return sum(len(bucket) > 1 for bucket in self.buckets)


def plan_buckets(scopes: Sequence[Scope], cards: Sequence[int], order: Sequence[int], entries: int) -> BucketPlan:
    """Return the elimination with the largest tables that all together have at most so many entries.

    Where none has so few it is the one with the fewest.

    scopes: variables of each factor.
    cards: number of states of every variable.
    order: variables in the order of elimination.
    entries: budget, which factors by themselves may exceed.
    """
    best = _planned(scopes, cards, order, entries)
    # Halvings of the largest table that are too few, and that are enough as far as is known.
    few, enough = 0, entries.bit_length() if best.entries > entries else 0
    while enough - few > 1:
        halvings = (few + enough) // 2
        plan = _planned(scopes, cards, order, entries >> halvings)
        if plan.entries <= entries:
            best, enough = plan, halvings
        else:
            # Smaller tables may be more entries: what is split has messages of its own.
            best, few = min(best, plan, key=lambda each: each.entries), halvings
    return best


def _planned(scopes: Sequence[Scope], cards: Sequence[int], order: Sequence[int], most: int) -> BucketPlan:
    """Return the elimination whose mini-buckets have at most `most` entries, or a single function."""
    place = {v: i for i, v in enumerate(order)}
    # Of each variable the functions whose first variable to be eliminated it is: scope, factor or message.
    waiting: list[list[tuple[Scope, int, bool]]] = [[] for _ in order]
    for number, scope in enumerate(scopes):
        if scope:
            ordered = tuple(sorted(scope, key=place.__getitem__))
            waiting[place[ordered[0]]].append((ordered, number, False))
    minis: list[MiniBucket] = []
    buckets: list[range] = []
    takers: list[int] = []
    total = 0
    for v, functions in zip(order, waiting, strict=True):
        first = len(minis)
        # A variable of no function counts as one of a function of ones.
        for scope, members in _parted(functions, cards, place, most) or [((v,), [])]:
            taken = tuple(number for _, number, is_message in members if is_message)
            for message in taken:
                takers[message] = len(minis)
            factors = tuple(number for _, number, is_message in members if not is_message)
            if len(scope) > 1:
                waiting[place[scope[1]]].append((scope[1:], len(minis), True))
            minis.append(MiniBucket(scope, factors, taken))
            takers.append(-1)
            total += _size(scope, cards)
        buckets.append(range(first, len(minis)))
    return BucketPlan(tuple(minis), tuple(buckets), tuple(takers), total)


@dataclass(eq=False, slots=True)
class _Part:
    """A mini-bucket in the making: its variables, the entries of its table, and its functions."""

    union: set[int] = field(default_factory=set)
    entries: int = 1
    members: list[tuple[Scope, int, bool]] = field(default_factory=list)


def _parted(
    functions: Sequence[tuple[Scope, int, bool]], cards: Sequence[int], place: dict[int, int], most: int
) -> list[tuple[Scope, list[tuple[Scope, int, bool]]]]:
    """Return the mini-buckets of a bucket: each function, the largest first, goes where there is room for it."""
    parts: list[_Part] = []
    # Those without room for another variable are found by their variables: there may be thousands of them.
    roomy: list[_Part] = []
    full: dict[int, list[_Part]] = {}
    for function in sorted(functions, key=lambda each: -_size(each[0], cards)):
        scope = function[0]
        part = next((each for each in full.get(scope[-1], ()) if each.union.issuperset(scope)), None)
        part = part or next((each for each in roomy if _with(each, scope, cards) <= most), None)
        if part is None:
            part = _Part()
            parts.append(part)
            roomy.append(part)
        part.entries = _with(part, scope, cards)
        part.union.update(scope)
        part.members.append(function)
        if 2 * part.entries > most and part in roomy:
            roomy.remove(part)
            for v in part.union:
                full.setdefault(v, []).append(part)
    return [(tuple(sorted(part.union, key=place.__getitem__)), part.members) for part in parts]


def _with(part: _Part, scope: Scope, cards: Sequence[int]) -> int:
    """Return the entries that a part has with the variables of one more function."""
    return part.entries * _size([v for v in scope if v not in part.union], cards)


def _size(variables: Sequence[int], cards: Sequence[int]) -> int:
    return math.prod(map(cards.__getitem__, variables))
