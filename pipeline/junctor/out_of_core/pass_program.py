"""What a task of a cut plan does to parts of tables: plain functions.

A task is one configuration of the chunk variables of a pass. `PassProgram` has its steps; `ChunkedProgram` calls it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.tables import reference
from junctor_kernels.tables.axes import Contraction
from junctor_kernels.tables.reference import Algebra

from junctor.backends.numpy import contracted

Array = npt.NDArray[np.floating[Any]]
# Contracts parts of tables [entries, 1] to another one.
Contract = Callable[[Contraction, Sequence[Array]], Array]
# The largest entry of a table, and the smallest above zero (1 on logarithms, where nothing is lost).
MaxMin = tuple[float, float]


@dataclass(frozen=True, slots=True)
class CpuTasks:
    """Contracts on the CPU: NumPy in blocks of `scratch` entries, or compiled code with `threads` where that pays."""

    algebra: Algebra
    scratch: int = reference.SCRATCH_ENTRIES
    threads: int = 0

    def __call__(self, what: Contraction, operands: Sequence[Array]) -> Array:
        """Return the contraction of parts of tables, [entries, 1]."""
        return contracted(what, operands, self.algebra, self.scratch, self.threads)


@dataclass(frozen=True, slots=True)
class PartStep:
    """A reduction in terms of parts; operands in the order in which they combine."""

    out: int
    operands: tuple[int, ...]
    what: Contraction


@dataclass(frozen=True, slots=True)
class PassProgram:
    """The steps of a pass, the same for all of its tasks; last: table -> the step that uses it last."""

    steps: tuple[PartStep, ...]
    algebra: Algebra
    last: dict[int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        last = {table: n for n, step in enumerate(self.steps) for table in (*step.operands, step.out)}
        object.__setattr__(self, "last", last)

    def run(
        self, load: Callable[[int], Array], contract: Contract, factors: dict[int, float]
    ) -> Iterator[tuple[int, Array, float]]:
        """Yield every table that a task makes, its part [entries, 1], and its smallest entry above zero.

        load: returns the part of a table from elsewhere, contiguous [entries, 1]; released after its last use.
        contract: the contraction of parts.
        factors: table -> what results are multiplied with (on logarithms: what is added); the pilot task of a pass
        chooses those that are missing.
        """
        alive: dict[int, Array] = {}
        for n, step in enumerate(self.steps):
            for table in step.operands:
                if table not in alive:
                    alive[table] = load(table)
            operands = [alive[table] for table in step.operands]
            with beyond_the_format():
                made = contract(step.what, operands)
            yield step.out, made, self._scale(step.out, made, factors)
            alive[step.out] = made
            # Or they would be alive beside the next load, beyond the working memory of the plan.
            del operands, made
            for table in [table for table in alive if self.last[table] == n]:
                del alive[table]

    def _scale(self, table: int, made: Array, factors: dict[int, float]) -> float:
        """Scale a part in place; returns its smallest entry above zero (1 on logarithms, where nothing is lost)."""
        if self.algebra.logs:
            if table not in factors:
                largest = largest_of(made)
                # A part that is all zero (-inf) has no scale: later tasks may still have entries.
                # A whole number, which rounds nothing.
                factors[table] = -float(np.rint(largest)) if math.isfinite(largest) else 0.0
            made += factors[table]
            return 1.0
        if table not in factors:
            exponent = math.frexp(largest_of(made))[1]
            # Powers of two scale without rounding; the format's smallest exponent bounds the factor.
            factors[table] = 2.0 ** -max(exponent, int(np.finfo(self.algebra.dtype).minexp))
        factor = factors[table]
        # Before scaling: an entry that scaling flushes below the format would pass for a zero.
        least = float(reference.least_above_zero(made)[0]) * factor if made.any() else 1.0
        if factor != 1:
            with beyond_the_format():
                made *= self.algebra.dtype.type(factor)
        return least


def shifted(part: Array, shift: float, algebra: Algebra) -> Array:
    """Return a part of a table as tasks read it: contiguous [entries, 1], times two to a power, or more by a logarithm.

    part: in any shape.
    shift: as of `TableStats`.
    algebra: of the table.
    """
    if shift and algebra.logs:
        return np.add(part, shift, order="C").reshape(-1, 1)
    if shift:
        with beyond_the_format():
            return np.ldexp(part, int(shift), order="C").reshape(-1, 1)
    # Arrays out of network buffers need not be aligned.
    return np.require(part, requirements=["C", "A"]).reshape(-1, 1)


def add_to(total: Array, made: Array, algebra: Algebra) -> None:
    """Add what a further task made to what others did, in place."""
    with beyond_the_format():
        algebra.join(total, made, out=total)


def beyond_the_format() -> np.errstate:
    """Context manager: numbers may exceed the format; the row is in doubt then, and goes to a wider one."""
    # The pilot task scales by its own largest entry, and those of other tasks may be far larger.
    return np.errstate(over="ignore", invalid="ignore")


def largest_of(made: Array) -> float:
    """Return the largest entry; what is not a number counts as beyond the format, because maxima would pass over it."""
    largest = float(made.max())
    return math.inf if math.isnan(largest) else largest


def joined(max_mins: Iterable[MaxMin]) -> MaxMin:
    """Return the largest and the smallest entry of a table from those of its parts."""
    # Where a part is all zero its least entry is 1, as if there were none.
    largest, least = zip(*max_mins, strict=True)
    return max(largest), min(least)
