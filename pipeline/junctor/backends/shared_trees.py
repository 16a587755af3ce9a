"""Trees that rows share, kept for the next batch of the same pattern.

Main classes: SharedTree and KeptTrees.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy.typing as npt
from junctor_kernels.row_trees import plan as rowplan

# Bytes of trees that are kept, and their share of all memory at the most.
KEPT_BYTES, KEPT_SHARE = 1 << 24, 1 / 64
# What a tree follows from: shares of the rows that observe each variable, variables with likelihoods, rows.
TreeKey = tuple[bytes, bytes, int]


@dataclass(frozen=True, eq=False, slots=True)
class SharedTree:
    """A tree of some rows: factors with their mean numbers of states, the plan, entries of a row's messages, tables."""

    factors: rowplan.Factors
    arrays: tuple[npt.NDArray[Any], ...]
    entries: float
    tables: int

    @property
    def is_mixed(self) -> bool:
        """Whether its rows differ in what they observe."""
        means = self.factors.means
        return bool(((means != 1) & (means != self.factors.cards)).any())

    @property
    def nbytes(self) -> int:
        """Bytes of the plan and of what is the tree's own of its factors."""
        return sum(array.nbytes for array in (*self.arrays, self.factors.means, self.factors.weights))


class KeptTrees:
    """Trees by what they follow from, the longest unused first; threads may use it at the same time."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._trees: dict[TreeKey, SharedTree] = {}
        self._bytes = 0

    def find(self, key: TreeKey) -> SharedTree | None:
        """Return a tree that is kept."""
        with self._lock:
            return self._trees.get(key)

    def keep(self, key: TreeKey, tree: SharedTree, memory: int) -> None:
        """Keep a tree as the last one used, and drop those that there is no room for; memory: bytes of all threads."""
        with self._lock:
            # Two groups of a batch may have the same key.
            self._drop(key)
            self._trees[key] = tree
            self._bytes += tree.nbytes
            while self._bytes > min(KEPT_BYTES, KEPT_SHARE * memory):
                self._drop(next(iter(self._trees)))

    def _drop(self, key: TreeKey) -> None:
        tree = self._trees.pop(key, None)
        if tree is not None:
            self._bytes -= tree.nbytes
