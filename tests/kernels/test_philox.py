"""Counted random numbers against the published answers of Random123, and NumPy against compiled code."""

from __future__ import annotations

import numpy as np
import pytest
from junctor_kernels.sampling.philox import MOST_GROUPS, MOST_ROWS, MOST_SAMPLES, MOST_STAGES, RandomStream, fill, words

# Counters and keys of `kat_vectors` for philox4x32 with 10 rounds, in our parts, and what they give.
KNOWN = [
    (RandomStream(0, 0, 0), 0, 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        RandomStream(2**64 - 1, MOST_ROWS - 1, MOST_STAGES - 1),
        MOST_SAMPLES - 1,
        MOST_GROUPS - 1,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        RandomStream(0x299F31D0A4093822, 0x1303707344, 0x85A3),
        0x08D3243F6A88,
        0x198A2E,
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("stream", "sample", "group", "expected"), KNOWN)
def test_known_answers(stream: RandomStream, sample: int, group: int, expected: tuple[int, ...]) -> None:
    assert tuple(words(stream, np.array([sample], dtype=np.uint64), group)[:, 0]) == expected


@pytest.mark.parametrize("first", [0, 256, (1 << 40) + 512])
def test_compiled_draws_are_those_of_numpy_halved(first: int) -> None:
    stream, out = RandomStream(12345678901234567890, (1 << 33) + 5, 7), np.zeros((4, 256), dtype=np.uint32)
    fill(stream.record(), first, 3, out)
    assert (out == words(stream, np.arange(first, first + 256, dtype=np.uint64), 3) >> 1).all()


def test_every_part_of_a_counter_matters() -> None:
    samples = np.arange(4, dtype=np.uint64)
    streams = [
        RandomStream(1, 2, 3),
        RandomStream(2, 2, 3),
        RandomStream(1 << 32, 2, 3),
        RandomStream(1, 3, 3),
        RandomStream(1, 2, 4),
    ]
    streams += [RandomStream(1, (1 << 32) + 2, 3)]
    found = {words(stream, samples, group).tobytes() for stream in streams for group in (0, 1)}
    assert len(found) == 2 * len(streams)
