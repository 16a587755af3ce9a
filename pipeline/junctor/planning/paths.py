"""Contraction paths: the pairs of operands of a clique that are multiplied before the others.

Main class: Paths, used by `compile`. A message contracted at once multiplies all operands over the whole clique; two of
them contracted first meet only over their own variables, and those that no other operand has are summed out at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
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
# Fewer operands are multiplied at once in any case.
LEAST_ON_PATH = 3
# With more operands a clique is contracted at once: the search would take longer than a path saves.
MOST_ON_PATH = 24
# Searches that are remembered: long networks ask for few different ones, very often.
REMEMBERED = 4096


class PathOperand(NamedTuple):
    """An operand of a contraction: its table, the variables of the table, and whether it differs between cases."""

    table: int
    scope: tuple[int, ...]
    per_case: bool


class Pair(NamedTuple):
    """Two operands to multiply: their positions, and the variables of the product."""

    one: int
    other: int
    kept: frozenset[int]


class Products:
    """Products of pairs of tables that exist already: their tables."""

    def __init__(self) -> None:
        self._made: dict[int, dict[int, dict[frozenset[int], int]]] = {}

    def find(self, one: int, other: int, kept: frozenset[int]) -> int | None:
        """Return the table of a product over `kept`, None where there is none."""
        return self.of(one).get(other, {}).get(kept)

    def of(self, table: int) -> Mapping[int, Mapping[frozenset[int], int]]:
        """Return the products with a table: by the other operand and by the variables kept."""
        return self._made.get(table, {})

    def add(self, one: int, other: int, kept: frozenset[int], table: int) -> None:
        """Add a product; its operands are found in either order."""
        for a, b in ((one, other), (other, one)):
            self._made.setdefault(a, {}).setdefault(b, {})[kept] = table


class Paths:
    """Finds cheap paths; products that are made already cost nothing."""

    def __init__(self, shape: Shape, made: Products) -> None:
        self._sizes = shape.cardinalities
        self._made = made

    def find(self, operands: Sequence[PathOperand], kept: Iterable[int]) -> list[Pair]:
        """Return the pairs to contract one after the other: both leave the list, their product joins its end.

        The operands left after the last pair are contracted at once, to the variables in `kept`.
        """
        if not LEAST_ON_PATH <= len(operands) <= MOST_ON_PATH:
            return []
        # Variables and tables are numbered in the order of the operands: the same search comes again and again.
        number: dict[int, int] = {}
        scopes = tuple(_mask(operand.scope, number) for operand in operands)
        result = _mask(kept, number)
        variables = list(number)
        # Shared products cost nothing for each case; compared with each other, they cost as per-case ones.
        any_case = any(operand.per_case for operand in operands)
        per_case = tuple(operand.per_case or not any_case for operand in operands)
        made = self._made_of([operand.table for operand in operands], number)
        pairs = _search(tuple(map(self._sizes.__getitem__, variables)), scopes, per_case, result, made)
        return [Pair(one, other, frozenset(variables[i] for i in bits(mask))) for one, other, mask in pairs]

    def _made_of(self, tables: list[int], number: Mapping[int, int]) -> tuple[_Made, ...]:
        """Return the products of some of the tables and of such products, tables numbered in their order."""
        made: list[_Made] = []
        place = {table: i for i, table in enumerate(tables)}
        for table in tables:
            products = self._made.of(table)
            for other in products.keys() & place.keys() if products else ():
                # Each pair once, from its later table: products join the end of the list.
                if place[other] < place[table]:
                    for kept, product in products[other].items():
                        if product not in place:
                            place[product] = len(tables)
                            tables.append(product)
                        mask = sum(1 << number[v] for v in kept)
                        made.append((place[other], place[table], mask, place[product]))
        return tuple(sorted(made))


# A product that is made already: the numbers of its operands, its variables as a bit set, and its own number.
_Made = tuple[int, int, int, int]
# An operand: its number (-1 for a product that is not made yet), variables as a bit set, whether it differs by case.
_Operand = tuple[int, int, bool]
# Two operands: their positions, and the variables of the product as a bit set.
_Step = tuple[int, int, int]


def _mask(scope: Iterable[int], number: dict[int, int]) -> int:
    """Return variables as a bit set; new ones are numbered."""
    mask = 0
    for v in scope:
        mask |= 1 << number.setdefault(v, len(number))
    return mask


@lru_cache(REMEMBERED)
def _search(
    sizes: tuple[int, ...], scopes: tuple[int, ...], per_case: tuple[bool, ...], kept: int, made: tuple[_Made, ...]
) -> tuple[_Step, ...]:
    operands = list(zip(range(len(scopes)), scopes, per_case, strict=True))
    products = {(one, other, mask): product for one, other, mask, product in made}
    return tuple(_Search(sizes, kept, products).cheapest(operands)[1])


class _Search:
    """The search for the path of one contraction.

    sizes: cardinality of each variable.
    kept: variables of the result.
    made: numbers of two operands and variables -> number of their product.
    """

    def __init__(self, sizes: Sequence[int], kept: int, made: Mapping[tuple[int, int, int], int]) -> None:
        self._sizes = sizes
        self._kept = kept
        self._made = made
        self._known: dict[int, int] = {0: 1}

    def cheapest(self, operands: list[_Operand]) -> tuple[int, list[_Step]]:
        """Return the cost of the cheapest path that is tried, and its steps."""
        cost, path = self._at_once(operands), list[_Step]()
        if len(operands) < LEAST_ON_PATH:
            return cost, path
        tried = []
        for one, other, kept in self._pairs(operands):
            first, second = operands[one], operands[other]
            product = self._product(first, second, kept)
            spent = self._cost(first, second, product)
            left = [operand for i, operand in enumerate(operands) if i not in (one, other)]
            left.append(product)
            tried.append((spent + self._at_once(left), (one, other, kept), spent, left))
        tried.sort(key=lambda candidate: candidate[:2])
        for _, step, spent, left in tried[: TRIED_PAIRS if len(operands) <= MOST_TRIED else 1]:
            if spent < cost:
                rest_cost, rest = self.cheapest(left)
                if spent + rest_cost < cost:
                    cost, path = spent + rest_cost, [step, *rest]
        return cost, path

    def _pairs(self, operands: Sequence[_Operand]) -> list[_Step]:
        """Return the pairs whose product is not large."""
        # The largest product that needs no more memory than the contraction has anyway.
        room = max(SMALL_PRODUCT, self._entries(self._kept), *(self._entries(scope) for _, scope, _ in operands))
        once = twice = thrice = 0
        for _, scope, _ in operands:
            # Variables that occur in at least one, two and three operands.
            thrice |= twice & scope
            twice |= once & scope
            once |= scope
        pairs = []
        for i, (_, one, _) in enumerate(operands):
            for j in range(i + 1, len(operands)):
                other = operands[j][1]
                # Kept are variables of one operand of the pair that a second operand has, and of both that a third one
                # has.
                left = (one | other) & (self._kept | thrice | (twice & ~(one & other)))
                if self._entries(left) <= room:
                    pairs.append((i, j, left))
        return pairs

    def _cost(self, one: _Operand, other: _Operand, product: _Operand) -> int:
        """Return multiply-adds, writes and fixed costs of a product."""
        if product[0] >= 0 or not product[2]:
            return 0
        entries = self._entries(one[1] | other[1] | product[1]) * (one[2] + other[2])
        return entries + WRITE_OPERATIONS * self._entries(product[1]) + STEP_OPERATIONS

    def _at_once(self, operands: Sequence[_Operand]) -> int:
        union, per_case = self._kept, 0
        for _, scope, differs in operands:
            union |= scope
            # Shared factors are multiplied once for a block of cases.
            per_case += differs
        return self._entries(union) * per_case

    def _product(self, one: _Operand, other: _Operand, kept: int) -> _Operand:
        a, b = one[0], other[0]
        number = self._made.get((a, b, kept) if a < b else (b, a, kept), -1) if self._made else -1
        return number, kept, one[2] or other[2]

    def _entries(self, scope: int) -> int:
        if scope not in self._known:
            # All but the lowest variable is known, mostly.
            low = scope & -scope
            self._known[scope] = self._entries(scope ^ low) * self._sizes[low.bit_length() - 1]
        return self._known[scope]
