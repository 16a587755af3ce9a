"""Contraction paths: the pairs of operands of a clique that are multiplied before the others.

Main class: Paths, used by `compile`. A message contracted at once multiplies all operands over the whole clique; two of
them contracted first meet only over their own variables, and those that no other operand has are summed out at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from junctor.planning.shape import Shape, bits

# Products of at most so many entries are allowed whatever the sizes of operands and result.
SMALL_PRODUCT = 1 << 16
# Costs of a step in addition to its multiply-adds (entries of the joint scope times per-case operands), in their unit:
# for each entry written, and for the step.
WRITE_OPERATIONS = 2
STEP_OPERATIONS = 16
# Best pairs that the search follows; with more than MOST_TRIED operands it is greedy.
TRIED_PAIRS = 4
MOST_TRIED = 6
# With more operands a clique is contracted at once: the search would take longer than a path saves.
MOST_ON_PATH = 24


class PathOperand(NamedTuple):
    """An operand of a contraction.

    name: a table, or the name of a product that is not computed yet.
    scope: variables as a bit set.
    per_case: whether it differs between cases.
    """

    name: int | ProductName
    scope: int
    per_case: bool


# The names of two operands and the bit set of the variables that stay.
ProductName = tuple[object, object, int]


def product_name(one: object, other: object, kept: int) -> ProductName:
    """Return the name of a product, the same whichever operand comes first."""
    return (one, other, kept) if repr(one) <= repr(other) else (other, one, kept)


class Pair(NamedTuple):
    """Two operands to multiply.

    one, other: their positions.
    kept: bit set of the variables of the product.
    cost: multiply-adds, writes and fixed costs.
    """

    one: int
    other: int
    kept: int
    cost: int


class Paths:
    """Finds cheap paths; products in `made` (name -> table) exist already and cost nothing."""

    def __init__(self, shape: Shape, made: Mapping[ProductName, int]) -> None:
        self._made = made
        self._shape = shape
        self._known: dict[int, int] = {}

    def find(self, operands: Sequence[PathOperand], kept: int) -> list[Pair]:
        """Return the pairs to contract one after the other: both leave the list, their product joins its end.

        The operands left after the last pair are contracted at once, to the variables in the bit set `kept`.
        """
        if not any(operand.per_case for operand in operands):
            # Shared products cost nothing for each case; compared with each other, they cost as per-case ones.
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
        tried.sort(key=lambda candidate: candidate[:2])
        for _, pair, left in tried[: TRIED_PAIRS if len(operands) <= MOST_TRIED else 1]:
            if pair.cost < cost:
                rest_cost, rest = self._cheapest(left, kept)
                if pair.cost + rest_cost < cost:
                    cost, path = pair.cost + rest_cost, [pair, *rest]
        return cost, path

    def _pairs(self, operands: Sequence[PathOperand], kept: int) -> Iterator[Pair]:
        """Yield the pairs whose product is not large."""
        # The largest product that needs no more memory than the contraction has anyway.
        room = max(SMALL_PRODUCT, self._entries(kept), *(self._entries(operand.scope) for operand in operands))
        once = twice = thrice = 0
        for operand in operands:
            # Variables that occur in at least one, two and three operands.
            thrice |= twice & operand.scope
            twice |= once & operand.scope
            once |= operand.scope
        for i, one in enumerate(operands):
            for j in range(i + 1, len(operands)):
                both = one.scope & operands[j].scope
                union = one.scope | operands[j].scope
                # Kept are variables of one operand of the pair that a second operand has, and of both that a third one
                # has.
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
            # Shared factors are multiplied once for a block of cases.
            per_case += operand.per_case
        return self._entries(union) * per_case

    def _product(self, one: PathOperand, other: PathOperand, kept: int) -> PathOperand:
        name = product_name(one.name, other.name, kept)
        return PathOperand(self._made.get(name, name), kept, one.per_case or other.per_case)

    def _entries(self, scope: int) -> int:
        if scope not in self._known:
            self._known[scope] = self._shape.entries(bits(scope))
        return self._known[scope]
