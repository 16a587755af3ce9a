"""What a task of a cut plan does to parts of tables: plain functions, the same here and on other machines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels import reference
from junctor_kernels.axes import Contraction
from junctor_kernels.reference import Algebra

Array = npt.NDArray[np.floating[Any]]
# Contracts parts of tables [entries, 1] to another one; what goes to other processes has to be picklable.
Contract = Callable[[Contraction, Sequence[Array]], Array]
# The largest entry of a table, and the smallest above zero (1 on logarithms, where nothing is lost).
Extremes = tuple[float, float]


@dataclass(frozen=True, slots=True)
class OnCpu:
    """Contracts on the CPU: NumPy in blocks of `scratch` entries, or compiled code with `threads` where that pays."""

    algebra: Algebra
    scratch: int = reference.SCRATCH_ENTRIES
    threads: int = 0

    def __call__(self, what: Contraction, operands: Sequence[Array]) -> Array:
        """Return the contraction of parts of tables, [entries, 1]."""
        if self.threads:
            from junctor_kernels import entries

            return entries.reduce(what, operands, self.algebra, self.threads)
        return reference.reduce(what, operands, self.algebra, self.scratch)


@dataclass(frozen=True, slots=True)
class Step:
    """A reduction in terms of parts: operands in the order in which they combine, and where their parts begin."""

    out: int
    operands: tuple[int, ...]
    what: Contraction


@dataclass(frozen=True, slots=True)
class Body:
    """The steps of a pass, the same for all of its tasks."""

    steps: tuple[Step, ...]
    algebra: Algebra

    def run(
        self, load: Callable[[int], Array], contract: Contract, powers: dict[int, float]
    ) -> Iterator[tuple[int, Array, float]]:
        """Yield every table that a task makes, its part [entries, 1], and its smallest entry above zero.

        load: returns the part of a table from elsewhere, contiguous [entries, 1]; parts are let go after their last
        use. powers: what results are multiplied with (on logarithms: what is added); the first task of a pass settles
        those that are missing.
        """
        last = {table: n for n, step in enumerate(self.steps) for table in (*step.operands, step.out)}
        alive: dict[int, Array] = {}
        for n, step in enumerate(self.steps):
            for table in step.operands:
                if table not in alive:
                    alive[table] = load(table)
            operands = [alive[table] for table in step.operands]
            made = contract(step.what, operands)
            yield step.out, made, self._scale(step.out, made, powers)
            alive[step.out] = made
            del operands, made
            for table in [table for table in alive if last[table] == n]:
                del alive[table]

    def _scale(self, table: int, made: Array, powers: dict[int, float]) -> float:
        """Scale a part in place; returns its smallest entry above zero (1 on logarithms, where nothing is lost)."""
        if self.algebra.combine is np.add:
            if table not in powers:
                largest = largest_of(made)
                powers[table] = -largest if math.isfinite(largest) else 0.0
            made += powers[table]
            return 1.0
        if table not in powers:
            exponent = math.frexp(largest_of(made))[1]
            powers[table] = 2.0 ** -max(exponent, int(np.finfo(self.algebra.dtype).minexp))
        power = powers[table]
        # Taken before, because what this takes below the format would pass for a zero.
        least = float(reference.least_above_zero(made)[0]) * power if made.any() else 1.0
        if power != 1:
            made *= self.algebra.dtype.type(power)
        return least


def shifted(part: Array, shift: int) -> Array:
    """Return a part of a table as tasks read it: contiguous [entries, 1], times two to the power `shift`."""
    # What came over a network may lie anywhere.
    if shift:
        return np.ldexp(part, shift, order="C").reshape(-1, 1)
    return np.require(part, requirements=["C", "A"]).reshape(-1, 1)


def add_to(total: Array, made: Array, algebra: Algebra) -> None:
    """Add what a further task made to what others did, in place."""
    add = np.logaddexp if algebra.combine is np.add else np.add
    add(total, made, out=total)


def largest_of(made: Array) -> float:
    """Return the largest entry."""
    return float(made.max())


def joined(extremes: Iterable[Extremes]) -> Extremes:
    """Return the extremes of a table from those of its parts."""
    # Where a part is all zero its least entry is 1, as if there were none.
    largest, least = zip(*extremes, strict=True)
    # NumPy's maximum, because Python's passes over what is not a number.
    return float(np.max(largest)), min(least)
