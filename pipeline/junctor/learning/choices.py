"""Choices of learning by name, for the command line, which offers them without loading NumPy."""

from __future__ import annotations

from typing import Literal

# Parameters that EM begins with.
Start = Literal["network", "random", "uniform"]
# What becomes of rows that the zeros of the network rule out.
Impossible = Literal["refuse", "skip", "smooth"]
Acceleration = Literal["squarem", "none"]
