"""Contraction paths: which operands of a clique are multiplied before the others.

A message contracted at once multiplies all its operands over the whole clique. Two of them contracted first meet only
over the variables that they have, and what nobody else has is summed out there and then. The cost of a step is its
entry operations (entries of the joint scope times operands that differ between cases) and what it writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from junctor.planning.shape import Shape, bits

# Products up to this size may be made whatever the sizes of the operands and of the result.
SMALL_PRODUCT = 1 << 16
# What a step costs beside its entry operations, in those: so much for each entry that it writes, and so much at all.
WRITE_OPERATIONS = 2
STEP_OPERATIONS = 16
# How many of the best pairs are followed up, and to how many operands; with more of them only the best one is.
TRIED_PAIRS = 4
MOST_TRIED = 6
# With more operands than this a clique is contracted at once: a path would take longer to find than it saves.
MOST_ON_PATH = 24


class PathOperand(NamedTuple):
    """A table of a contraction, or the product that would be one; `scope` is a bit set."""

    name: int | ProductName
    scope: int
    per_case: bool


# The names of two operands and the bit set of the variables that stay.
ProductName = tuple[object, object, int]


def product_name(one: object, other: object, kept: int) -> ProductName:
    """Return the name of a product, the same whichever operand comes first."""
    return (one, other, kept) if repr(one) <= repr(other) else (other, one, kept)


class Pair(NamedTuple):
    """Two operands by position, the variables that stay of them (a bit set), and how much they cost."""

    one: int
    other: int
    kept: int
    cost: int


class Paths:
    """Finds cheap paths; products in `made` (name -> table) have been paid for."""

    def __init__(self, shape: Shape, made: Mapping[ProductName, int]) -> None:
        self._made = made
        self._shape = shape
        self._known: dict[int, int] = {}

    def find(self, operands: Sequence[PathOperand], kept: int) -> list[Pair]:
        """Return the pairs to contract one after the other: both leave the list, their product joins its end.

        What is left after the last pair is contracted at once, to the variables in the bit set `kept`.
        """
        if not any(operand.per_case for operand in operands):
            operands = [operand._replace(per_case=True) for operand in operands]
        return self._cheapest(operands, kept)[1] if len(operands) <= MOST_ON_PATH else []

    def _cheapest(self, operands: Sequence[PathOperand], kept: int) -> tuple[int, list[Pair]]:
        cost, path = self._at_once(operands, kept), list[Pair]()
        if len(operands) < 3:
            return cost, path
        tried = []
        for pair in self._pairs(operands, kept):
            left = [*operands[: pair.one], *operands[pair.one + 1 : pair.other], *operands[pair.other + 1 :]]
            left.append(self._product(operands[pair.one], operands[pair.other], pair.kept))
            tried.append((pair.cost + self._at_once(left, kept), pair, left))
        tried.sort(key=lambda each: each[:2])
        for _, pair, left in tried[: TRIED_PAIRS if len(operands) <= MOST_TRIED else 1]:
            if pair.cost < cost:
                rest_cost, rest = self._cheapest(left, kept)
                if pair.cost + rest_cost < cost:
                    cost, path = pair.cost + rest_cost, [pair, *rest]
        return cost, path

    def _pairs(self, operands: Sequence[PathOperand], kept: int) -> Iterator[Pair]:
        """Yield the pairs whose product is not large."""
        room = max(SMALL_PRODUCT, self._entries(kept), *(self._entries(operand.scope) for operand in operands))
        once = twice = thrice = 0
        for operand in operands:
            thrice |= twice & operand.scope
            twice |= once & operand.scope
            once |= operand.scope
        for i, one in enumerate(operands):
            for j in range(i + 1, len(operands)):
                both = one.scope & operands[j].scope
                union = one.scope | operands[j].scope
                # A variable of one of the pair is needed where a second operand has it, one of both where a third has.
                left = union & (kept | thrice | (twice & ~both))
                if self._entries(left) <= room:
                    yield Pair(i, j, left, self._cost(one, operands[j], left))

    def _cost(self, one: PathOperand, other: PathOperand, kept: int) -> int:
        if isinstance(self._product(one, other, kept).name, int) or not (one.per_case or other.per_case):
            return 0
        return self._at_once((one, other), kept) + WRITE_OPERATIONS * self._entries(kept) + STEP_OPERATIONS

    def _at_once(self, operands: Sequence[PathOperand], kept: int) -> int:
        union, per_case = kept, 0
        for operand in operands:
            union |= operand.scope
            # Factors that all cases share are multiplied once for a block of them.
            per_case += operand.per_case
        return self._entries(union) * per_case

    def _product(self, one: PathOperand, other: PathOperand, kept: int) -> PathOperand:
        name = product_name(one.name, other.name, kept)
        return PathOperand(self._made.get(name, name), kept, one.per_case or other.per_case)

    def _entries(self, scope: int) -> int:
        if scope not in self._known:
            self._known[scope] = self._shape.entries(bits(scope))
        return self._known[scope]
