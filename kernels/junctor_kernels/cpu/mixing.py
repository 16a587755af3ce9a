"""Random numbers for numbers, in compiled code: SplitMix64 (Steele, Lea and Flood 2014). Main function: `mixed`."""

from __future__ import annotations

from typing import Any

import numpy as np

from junctor_kernels.cpu.jit import part

# What a sequence of random numbers adds before each.
STEP = np.uint64(0x9E3779B97F4A7C15)


@part
def mixed(number: Any) -> Any:
    """Return a random number for a number, uint64: the finaliser of SplitMix64."""
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))
