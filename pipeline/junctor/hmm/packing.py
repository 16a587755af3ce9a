"""Sequences as flat arrays, and groups of them in lockstep: longest first, rows ordered by tick, then by sequence.

Main classes: SequenceBatch and Lockstep, for the engine, the decoders and the smoothers.
"""

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

    starts: int64 [sequences + 1], first step of each sequence.
    symbols: int32 [steps], -1 for unobserved, from the number of symbols on a row of `partial`; None where the
        sequences have `likelihoods`.
    likelihoods: float64 [steps, states], natural log-likelihoods of the states.
    invalid: sequence -> reason.
    partial: int32 [observations, sensors], a state of each sensor, -1 for unobserved; None for models without sensors.
    labels: int32 [steps], the states that are known, -1 for others; None where none is.
    """

    starts: Integers
    symbols: npt.NDArray[np.int32] | None
    likelihoods: npt.NDArray[np.float64] | None = None
    invalid: dict[int, str] | None = None
    partial: npt.NDArray[np.int32] | None = None
    labels: npt.NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> Integers:
        """Steps of each sequence."""
        return np.diff(self.starts)


@dataclass(frozen=True, eq=False)
class Lockstep:
    """Sequences of a batch that are processed in lockstep, one tick after the other.

    sequences: int64 [n], longest first.
    lengths: int64 [n], theirs, descending.
    """

    # Longest first: the sequences that go on at a tick are a prefix of those of the tick before.

    sequences: Integers
    lengths: Integers

    @cached_property
    def counts(self) -> Integers:
        """Number of sequences longer than each tick, int64 [ticks]."""
        # The position of t among the lengths in ascending order counts those that have ended.
        shorter = np.searchsorted(self.lengths[::-1], np.arange(self.ticks), side="right")
        return len(self.lengths) - shorter

    @cached_property
    def starts(self) -> Integers:
        """First row of each tick, int64 [ticks + 1]."""
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
        """Return the index in the batch of the step of each row, for the ticks from `first` to `last`."""
        ticks = np.repeat(np.arange(first, last + 1), self.counts[first : last + 1])
        # Rows of a tick are ordered by sequence: their positions within the tick are indices of `sequences`.
        slots = np.arange(self.starts[first], self.starts[last + 1]) - self.starts[ticks]
        steps: Integers = starts[self.sequences[slots]] + ticks
        return steps

    def starts_in(self, first: int, last: int) -> Integers:
        """Return the first row of each tick from `first` to `last`, and the end; rows count from the tick `first`."""
        starts: Integers = self.starts[first : last + 2] - self.starts[first]
        return starts

    def going_on(self, last: int) -> int:
        """Return the number of sequences that go on after the tick `last`."""
        return int(self.counts[last + 1]) if last + 1 < self.ticks else 0

    def halves(self) -> tuple[Lockstep, Lockstep]:
        """Return the longer and the shorter half of the sequences."""
        half = -(-len(self.sequences) // 2)
        parts = slice(0, half), slice(half, None)
        longer, shorter = (Lockstep(self.sequences[part], self.lengths[part]) for part in parts)
        return longer, shorter


def locksteps(lengths: npt.NDArray[Any], candidates: Integers, together: int) -> list[Lockstep]:
    """Return groups of `together` sequences of similar length.

    lengths: steps of all sequences of a batch.
    candidates: int64, sequences to group, each with at least one step.
    together: sequences of a group.
    """
    # A stable sort: equal lengths keep their order, so that the same input gives the same groups everywhere.
    order = candidates[np.argsort(-lengths[candidates], kind="stable")]
    parts = [order[n : n + together] for n in range(0, len(order), together)]
    return [Lockstep(part, lengths[part]) for part in parts]
