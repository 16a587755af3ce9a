"""Index arithmetic of one contraction: kept and eliminated axes, and the strides of every operand along both.

    out[s, b] = sum over r of  prod over k of  table_k[A_k[s] + R_k[r]  (, b)]

Main class: Contraction, plain integers that the backends turn into views, loops or launches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

# Contractions that are remembered.
REMEMBERED = 8192

# Offsets are separable (A_k depends on s alone, R_k on r alone), so nothing of the size of a clique is ever tabulated.


@dataclass(frozen=True, slots=True)
class Strides:
    """One operand's strides, in entries, along the kept and the eliminated axes; 0 along axes that it does not have."""

    kept: tuple[int, ...]
    eliminated: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Contraction:
    """A contraction.

    kept: sizes of the kept axes, slowest first.
    eliminated: sizes of the eliminated axes, slowest first.
    operands: strides of every operand along both.
    kept_entries: entries of the result for one case.
    eliminated_entries: terms that are summed (or maximised) over for each entry of the result.
    """

    kept: tuple[int, ...]
    eliminated: tuple[int, ...]
    operands: tuple[Strides, ...]
    # Computed once, as the hash: contractions are shared by many steps, and looked up for each of them.
    kept_entries: int = field(init=False, repr=False, compare=False)
    eliminated_entries: int = field(init=False, repr=False, compare=False)
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kept_entries", math.prod(self.kept))
        object.__setattr__(self, "eliminated_entries", math.prod(self.eliminated))
        object.__setattr__(self, "_hash", hash((self.kept, self.eliminated, self.operands)))

    def __hash__(self) -> int:
        return self._hash


def contraction(
    kept: Sequence[int],
    eliminated: Sequence[int],
    scopes: Iterable[Sequence[int]],
    sizes: Mapping[int, int],
    remember: bool = True,
) -> Contraction:
    """Return the contraction of labelled axes, with as few axes as possible.

    kept, eliminated: axis labels, slowest first.
    scopes: the axis labels of each operand, in its C order.
    sizes: the length of each axis.
    remember: False in searches, which ask for many contractions once.
    """
    # Labels are replaced by numbers: the plans of a network have most of their contractions in common.
    number = {label: i for i, label in enumerate((*kept, *eliminated))}
    numbered = tuple([tuple([number.setdefault(label, len(number)) for label in scope]) for scope in scopes])
    make = _numbered if remember else _numbered.__wrapped__
    return make(len(kept), len(eliminated), numbered, tuple(map(sizes.__getitem__, number)))


@lru_cache(REMEMBERED)
def _numbered(kept: int, eliminated: int, scopes: tuple[tuple[int, ...], ...], sizes: tuple[int, ...]) -> Contraction:
    # Axes of length 1 vanish, and neighbouring axes that every operand walks through as one are merged: fewer axes make
    # longer inner loops.
    axes, strides_of = kept + eliminated, []
    for scope in scopes:
        # By number instead of by label, which `row_major` has: each contraction of a small network comes once.
        along, stride = [0] * len(sizes), 1
        for label in reversed(scope):
            along[label] = stride
            stride *= sizes[label]
        strides_of.append(along)
    # The strides of all operands along each axis.
    steps = list(zip(*strides_of, strict=True)) if strides_of else [()] * axes
    kept_sizes, kept_strides = _merged(steps[:kept], sizes[:kept])
    eliminated_sizes, eliminated_strides = _merged(steps[kept:axes], sizes[kept:axes])
    nothing = ((),) * len(scopes)
    strides = map(Strides, kept_strides or nothing, eliminated_strides or nothing)
    return Contraction(kept_sizes, eliminated_sizes, tuple(strides))


def unmerged(
    kept: Sequence[int], eliminated: Sequence[int], scopes: Iterable[Sequence[int]], sizes: Mapping[int, int]
) -> Contraction:
    """Return the contraction of labelled axes, one axis for each label, for callers that address single variables."""
    operands = [row_major(scope, sizes) for scope in scopes]
    return Contraction(
        tuple(sizes[label] for label in kept),
        tuple(sizes[label] for label in eliminated),
        tuple(
            Strides(tuple(at.get(label, 0) for label in kept), tuple(at.get(label, 0) for label in eliminated))
            for at in operands
        ),
    )


def row_major(scope: Sequence[int], sizes: Mapping[int, int] | Sequence[int]) -> dict[int, int]:
    """Return the stride of every axis of a table in C order."""
    at: dict[int, int] = {}
    stride = 1
    for label in reversed(scope):
        at[label] = stride
        stride *= sizes[label]
    return at


def _merged(
    steps: Sequence[tuple[int, ...]], sizes: Sequence[int]
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Return the sizes of merged axes, and the strides of each operand along them (nothing where no axis is left).

    steps: strides of all operands along each axis.
    sizes: of the axes.
    """
    merged_sizes: list[int] = []
    merged: list[tuple[int, ...]] = []
    for here, size in zip(steps, sizes, strict=True):
        if size == 1:
            continue
        # An axis merges with the next faster one where, in every operand, one of its steps is a whole run of that one.
        if merged and merged[-1] == tuple([stride * size for stride in here]):
            merged_sizes[-1] *= size
            merged[-1] = here
        else:
            merged_sizes.append(size)
            merged.append(here)
    return tuple(merged_sizes), tuple(zip(*merged, strict=True))
