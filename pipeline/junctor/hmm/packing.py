"""Sequences as flat arrays, and batches of them side by side: longest first, rows ordered by tick, then by sequence."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
# Why a sequence without steps has no answer.
EMPTY = "the sequence is empty"


@dataclass(frozen=True, eq=False, slots=True)
class SequenceBatch:
    """Sequences of any lengths, one after the other.

    starts: int64 [sequences + 1], where each begins. symbols: int32 [steps], -1 where nothing was observed; None where
    `likelihoods` has the natural log-likelihoods of the states, float64 [steps, states]. invalid: sequence -> reason.
    """

    starts: Integers
    symbols: npt.NDArray[np.int32] | None
    likelihoods: npt.NDArray[np.float64] | None = None
    invalid: dict[int, str] | None = None

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> Integers:
        """Steps of each sequence."""
        return np.diff(self.starts)


@dataclass(frozen=True, eq=False)
class Lockstep:
    """Some sequences of a batch that go side by side, those that are under way at a tick first.

    sequences: int64 [n], longest first. lengths: int64 [n], theirs, descending.
    """

    sequences: Integers
    lengths: Integers

    @cached_property
    def counts(self) -> Integers:
        """Sequences under way at each tick."""
        # As many as are longer than t: where t falls among the lengths, ascending.
        shorter = np.searchsorted(self.lengths[::-1], np.arange(self.ticks), side="right")
        return len(self.lengths) - shorter

    @cached_property
    def starts(self) -> Integers:
        """Where the rows of each tick begin, [ticks + 1]."""
        return np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int64)

    @property
    def ticks(self) -> int:
        """Steps of the longest sequence."""
        return int(self.lengths[0])

    @property
    def rows(self) -> int:
        """Steps of all sequences."""
        return int(self.lengths.sum())

    def steps(self, starts: Integers, first: int, last: int) -> Integers:
        """Return the step, counted through the batch, of each row of the ticks from `first` to `last`."""
        ticks = np.repeat(np.arange(first, last + 1), self.counts[first : last + 1])
        slots = np.arange(self.starts[first], self.starts[last + 1]) - self.starts[ticks]
        found: Integers = starts[self.sequences[slots]] + ticks
        return found


def locksteps(lengths: npt.NDArray[Any], candidates: Integers, together: int) -> list[Lockstep]:
    """Put sequences that are about as long side by side, `together` at a time.

    candidates: int64, those to take; each has at least one step. Equally long ones keep their order.
    """
    order = candidates[np.argsort(-lengths[candidates], kind="stable")]
    parts = [order[n : n + together] for n in range(0, len(order), together)]
    return [Lockstep(part, lengths[part]) for part in parts]
