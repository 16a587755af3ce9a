"""The ways to answer rows, by the names that a user knows them by. Main class: Strategy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Literal

# Its values, for options: those that rows can be asked to go.
StrategyName = Literal["joint-table", "row-trees", "entries", "cpu-blocks", "gpu-blocks", "chunks", "circuit"]


class Strategy(Enum):
    """A way to answer rows; a value is what users read and write."""

    # On the table of all joint states.
    JOINT_TABLE = "joint-table"
    # On junction trees made in compiled code: one for each row, or one that rows share.
    ROW_TREES = "row-trees"
    # By a plan, over the entries of its tables: in NumPy, or compiled where they are large.
    ENTRIES = "entries"
    # By a plan, on blocks of cases, in compiled code.
    CPU_BLOCKS = "cpu-blocks"
    # The same on a GPU.
    GPU_BLOCKS = "gpu-blocks"
    # By a plan that is cut into chunks: case by case, by this process, its GPUs, or workers.
    CHUNKS = "chunks"
    # By an arithmetic circuit, where zeros and equal entries leave little work.
    CIRCUIT = "circuit"
    # Not at all: the zeros of the network alone tell that they are impossible.
    IMPOSSIBLE = "impossible"
    # Not exactly, but by samples, where these are asked for or an exact answer takes more than it may.
    SAMPLES = "samples"


# Those that choices compare.
EXACT = tuple(each for each in Strategy if each is not Strategy.SAMPLES)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A strategy that rows are not answered by.

    reason: why, for people.
    seconds: of all rows to come, nan where nobody asked for its price.
    """

    strategy: Strategy
    reason: str
    seconds: float = math.nan


@dataclass(frozen=True, slots=True)
class NotChosen:
    """The same for people and files; seconds: None where nobody asked for its price."""

    strategy: str
    reason: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Chosen:
    """What was chosen for some rows and why, for people and files.

    price: seconds of all rows to come that the choice went by, None where nothing was compared.
    forecast: seconds of these rows, None where nobody made one.
    others: what was not chosen.
    """

    rows: int
    strategy: str
    reason: str
    price: float | None
    forecast: float | None
    others: tuple[NotChosen, ...]
