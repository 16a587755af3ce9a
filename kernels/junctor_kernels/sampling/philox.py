"""Random numbers by counting: Philox 4x32-10, the same bits in NumPy, Numba and CUDA.

A number follows from a key and a counter alone (Salmon, Moraes, Dror and Shaw 2011, *Parallel Random Numbers: As Easy
as 1, 2, 3*), so nobody hands a state on, and who draws which number does not matter. The key is the seed. A counter is

    sample | 16 bits of the sample, stage | group of four draws, 8 bits of the row | row

and gives four words, one for each draw of its group.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from junctor_kernels.cpu.jit import jit

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
MASK = 0xFFFFFFFF
# Draws that one counter gives.
WORDS = 4
# Counters have room for so many samples of a stage, stages, groups of draws and rows.
MOST_SAMPLES, MOST_STAGES, MOST_GROUPS, MOST_ROWS = 1 << 48, 1 << 16, 1 << 24, 1 << 40

Words = npt.NDArray[np.uint32]


class RandomStream(NamedTuple):
    """Whose numbers these are: all samples of one stage of one row, for one seed (64 bits)."""

    seed: int
    row: int
    stage: int

    def record(self) -> npt.NDArray[np.uint64]:
        """Return uint64 [6]: the halves of the key, what is added to a sample's high bits and to a group, the row."""
        high = self.row >> 32
        parts = (self.seed & MASK, self.seed >> 32 & MASK, self.stage << 16, high << 24, self.row & MASK, 0)
        return np.array(parts, dtype=np.uint64)


def words(stream: RandomStream, samples: npt.NDArray[np.uint64], group: int) -> Words:
    """Return uint32 [4, samples]: the draws of a group for each sample number."""
    key0, key1, stage, high, row, _ = (np.uint64(part) for part in stream.record())
    samples = samples.astype(np.uint64)
    mask, half = np.uint64(MASK), np.uint64(32)
    one, two = samples & mask, samples >> half | stage
    three, four = np.full_like(one, np.uint64(group) | high), np.full_like(one, row)
    for _ in range(ROUNDS):
        low, high_ = np.uint64(MULTIPLIERS[0]) * one, np.uint64(MULTIPLIERS[1]) * three
        one, two, three, four = high_ >> half ^ two ^ key0, high_ & mask, low >> half ^ four ^ key1, low & mask
        key0, key1 = (key0 + np.uint64(KEY_STEPS[0])) & mask, (key1 + np.uint64(KEY_STEPS[1])) & mask
    return np.stack([one, two, three, four]).astype(np.uint32)


def _fill(stream: Any, first: Any, group: Any, out: Any) -> None:
    """Write the draws of a group, halved to 31 bits, for samples from `first` on: uint32 [4, count].

    All of them agree in the upper 32 bits of their number.
    """
    mask, half = np.uint64(MASK), np.uint64(32)
    second = np.uint64(first) >> half | stream[2]
    third = np.uint64(group) | stream[3]
    start = np.uint64(first) & mask
    for i in range(out.shape[1]):
        one, two, three, four = start + np.uint64(i), second, third, stream[4]
        key0, key1 = stream[0], stream[1]
        for _ in range(ROUNDS):
            low, high = np.uint64(MULTIPLIERS[0]) * one, np.uint64(MULTIPLIERS[1]) * three
            one, two = (high >> half) ^ two ^ key0, high & mask
            three, four = (low >> half) ^ four ^ key1, low & mask
            key0 = (key0 + np.uint64(KEY_STEPS[0])) & mask
            key1 = (key1 + np.uint64(KEY_STEPS[1])) & mask
        out[0, i], out[1, i] = np.uint32(one >> np.uint64(1)), np.uint32(two >> np.uint64(1))
        out[2, i], out[3, i] = np.uint32(three >> np.uint64(1)), np.uint32(four >> np.uint64(1))


fill: Any = jit(_fill)
