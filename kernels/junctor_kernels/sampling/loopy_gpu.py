"""Messages on a GPU: the source of their kernel, the struct that it reads, and its arrays (`cuda/beliefs.cu`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from junctor_kernels.gpu.device import KernelModule, cuda_source
from junctor_kernels.sampling.layout import MOST_STATES
from junctor_kernels.sampling.loopy import CARD, CLEARED, COUNT, STATES, Links

# The fields of the struct `Messages`, in its order: addresses, then numbers.
FIELDS = (
    *("tables", "links", "children", "levels", "owners", "senders", "probabilities", "own"),
    *("up", "down", "prior", "mine", "below", "barrier"),
    *("level_count", "messages", "sweeps"),
)
KERNEL = "propagate"
# Threads of a block: a power of two.
THREADS = 256


def source() -> str:
    """Return the CUDA C++ source of the kernel."""
    constants = {"MOST_THREADS": THREADS, "MOST_STATES": MOST_STATES, "CLEARED": CLEARED}
    return cuda_source(("beliefs.cu",), constants)


KERNELS = KernelModule(source)


def record(fields: Mapping[str, int]) -> npt.NDArray[np.int64]:
    """Return the struct `Messages`; raises KeyError where a field is missing."""
    return np.array([fields[name] for name in FIELDS], dtype=np.int64)


def arrays(links: Links, own: npt.NDArray[np.float64]) -> dict[str, npt.NDArray[Any]]:
    """Return what the kernel reads of a row, by field.

    owners: int32 [numbers], the node of each number. senders: int32 [messages, 2], the link and table of each.
    """
    nodes = int(links.levels[-2, 0])
    owners = np.repeat(np.arange(nodes, dtype=np.int32), links.tables[:nodes, STATES])
    of_link = np.repeat(np.arange(len(links.tables), dtype=np.int32), links.tables[:, COUNT])
    senders = np.repeat(
        np.stack([np.arange(len(of_link), dtype=np.int32), of_link], axis=1), links.links[:, CARD], axis=0
    )
    known: dict[str, npt.NDArray[Any]] = {"tables": links.tables, "links": links.links, "children": links.children}
    return known | {"levels": links.levels, "owners": owners, "senders": senders, "own": own}


def blocks(links: Links, processors: int) -> int:
    """Return the blocks that have something to do in a step, at most one a multiprocessor: they wait for each other."""
    return max(1, min(processors, int(np.diff(links.levels, axis=0).max())))
