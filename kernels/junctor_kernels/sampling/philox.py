"""Counter-based random numbers: Philox 4x32-10, the same bits in NumPy, Numba and CUDA.

Main class: RandomStream. A number depends on a key and a counter alone, so threads and devices share no state (Salmon,
Moraes, Dror and Shaw, Parallel random numbers: as easy as 1, 2, 3, 2011).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from junctor_kernels.cpu.jit import jit

# Constants of the paper.
ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
MASK = 0xFFFFFFFF
# Draws of one counter.
WORDS = 4
# The key is the seed. The four words of a counter are: sample | 16 bits of the sample, stage | group of four draws, 8
# bits of the row | row. These are the limits that follow.
MOST_SAMPLES = 1 << 48
MOST_STAGES = 1 << 16
MOST_GROUPS = 1 << 24
MOST_ROWS = 1 << 40

Words = npt.NDArray[np.uint32]


class RandomStream(NamedTuple):
    """The random numbers of all samples of one stage of one row.

    seed: 64 bits.
    row: below MOST_ROWS.
    stage: below MOST_STAGES.
    """

    seed: int
    row: int
    stage: int

    def record(self) -> npt.NDArray[np.uint64]:
        """Return uint64 [6]: the halves of the key, terms of the second and third counter word, the fourth, padding."""
        high = self.row >> 32
        parts = (self.seed & MASK, self.seed >> 32 & MASK, self.stage << 16, high << 24, self.row & MASK, 0)
        return np.array(parts, dtype=np.uint64)


def words(stream: RandomStream, samples: npt.NDArray[np.uint64], group: int) -> Words:
    """Return the draws of a group, uint32 [4, samples].

    stream: key and row.
    samples: uint64, sample numbers.
    group: number of the group of four draws.
    """
    key0, key1, stage, high, row, _ = (np.uint64(part) for part in stream.record())
    samples = samples.astype(np.uint64)
    mask, half = np.uint64(MASK), np.uint64(32)
    one, two = samples & mask, samples >> half | stage
    # 32-bit words in 64-bit integers: NumPy has no product of the high and low half.
    three, four = np.full_like(one, np.uint64(group) | high), np.full_like(one, row)
    for _ in range(ROUNDS):
        low, high_ = np.uint64(MULTIPLIERS[0]) * one, np.uint64(MULTIPLIERS[1]) * three
        one, two, three, four = high_ >> half ^ two ^ key0, high_ & mask, low >> half ^ four ^ key1, low & mask
        key0, key1 = (key0 + np.uint64(KEY_STEPS[0])) & mask, (key1 + np.uint64(KEY_STEPS[1])) & mask
    return np.stack([one, two, three, four]).astype(np.uint32)


def _fill(stream: Any, first: Any, group: Any, out: Any) -> None:
    """Write the draws of a group, halved to 31 bits.

    stream: uint64 [6], a record.
    first: first sample; all of them agree in the upper 32 bits of their number.
    group: number of the group of four draws.
    out: uint32 [4, count].
    """
    mask, half = np.uint64(MASK), np.uint64(32)
    second = np.uint64(first) >> half | stream[2]
    third = np.uint64(group) | stream[3]
    # Blocks begin at multiples of their size, so that only the lowest word changes within a block.
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
