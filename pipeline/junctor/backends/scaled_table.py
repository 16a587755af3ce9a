"""Tables with their scales and what is known of their losses; `junctor.propagation` says what the bounds mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.tables import reference
from junctor_kernels.tables.reference import Algebra

Floats = npt.NDArray[np.float64]
Table = npt.NDArray[np.floating[Any]]


@dataclass(eq=False, slots=True)
class ScaledTable:
    """A table [entries, cases or 1], the logarithm of its scale, bounds on losses and the smallest entry above zero.

    All but the table are [cases or 1].
    """

    table: Table
    log_scale: Floats
    lost: Floats
    open: Floats
    least: Floats


def scaled_to(numbers: Floats, algebra: Algebra) -> ScaledTable:
    """Bring plain numbers [entries, columns] into an algebra, the largest of each column scaled to neutral."""
    largest = numbers.max(axis=0)
    with np.errstate(divide="ignore", under="ignore"):
        log_scale = np.log(largest)
        if algebra.combine is np.add:
            table = np.log(numbers)
            table -= np.where(np.isneginf(log_scale), 0.0, log_scale)
            return ScaledTable(table, log_scale, np.zeros(1), np.zeros(1), np.ones(log_scale.shape))
        largest[largest == 0] = 1.0
        least = reference.least_above_zero(numbers) / largest
        table = (numbers / largest).astype(algebra.dtype, copy=False)
    lost = lost_below(least, algebra)
    return ScaledTable(table, log_scale, lost, lost, least)


def lost_below(least: Floats, algebra: Algebra) -> Floats:
    """Return the most that each entry of a table lost when it was brought into a format."""
    return np.where(least < algebra.tiny, algebra.tiny, 0.0)


def lost_here(operands: Sequence[ScaledTable], terms: int, least: Floats, algebra: Algebra) -> Floats:
    """Return the most that each entry loses in a contraction of `terms` terms and its rescaling; least: after it."""
    with np.errstate(under="ignore"):
        product = math.prod((value.least for value in operands), start=np.ones(1))
    safe = (product >= algebra.tiny) & (least >= algebra.tiny)
    return np.where(safe, 0.0, len(operands) * algebra.tiny * terms)
