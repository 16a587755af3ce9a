"""Circuits on a GPU: the source of the kernels, the struct that they read, and nodes by layers (`cuda/circuits.cu`).

Called by `junctor.circuits.on_gpu`; launches go through the device of `junctor_kernels.gpu.blocks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from junctor_kernels.circuits.evaluate import Parents
from junctor_kernels.circuits.nodes import FlatCircuit
from junctor_kernels.cpu.jit import loops
from junctor_kernels.gpu import blocks
from junctor_kernels.gpu.blocks import WARP, BlockLaunch, Writer
from junctor_kernels.gpu.device import KernelModule, cuda_source

# The fields of the struct `Run`, in its order: addresses, then numbers.
FIELDS = (
    *("items", "edges_at", "children", "parents_at", "products_at", "parents", "variables", "numbers", "soft"),
    *("is_sum", "weights", "shares", "states", "likelihoods", "rows", "targets", "sources"),
    *("values", "slopes", "posteriors", "found", "answers"),
    *("cases", "filled", "nodes", "leaves", "asked", "answered"),
)
# Columns of `targets`: states, those of all targets before, and of those that are here before.
TARGET_COLUMNS = 3
# No node: items of a launch fill blocks of threads.
NOBODY = -1

Integers = npt.NDArray[np.int32]


def source(numbers: str) -> str:
    """Return the CUDA C++ source of the kernels; numbers: "single" or "double"."""
    names = ("MANY_THREADS", "WRITE_THREADS", "WRITE_SHARE", "WRITE_CASES")
    constants = {name: getattr(blocks, name) for name in names} | {"TARGET_COLUMNS": TARGET_COLUMNS}
    return cuda_source(("numbers.cu", "circuits.cu"), constants, double=numbers == "double")


KERNELS = KernelModule(source)
# Kernels that write posteriors, by the bytes of a number.
WRITERS = {4: Writer(KERNELS, "write_single"), 8: Writer(KERNELS, "write_double")}


def record(fields: Mapping[str, int]) -> npt.NDArray[np.int64]:
    """Return the struct `Run`; raises KeyError where a field is missing."""
    return np.array([fields[name] for name in FIELDS], dtype=np.int64)


class Layers(NamedTuple):
    """Nodes of a circuit as launches take them.

    items: int32, the node of each warp, NOBODY for none.
    up, down: launches, each over nodes that need those of the launches before alone.
    """

    items: Integers
    up: list[BlockLaunch]
    down: list[BlockLaunch]


def layers_of(circuit: FlatCircuit, parents: Parents) -> Layers:
    """Return the nodes of a circuit by layers."""
    nodes, leaves = len(circuit.is_sum), len(circuit.indicators)
    # Children come before their parents.
    heights = _heights(circuit.edges_at, circuit.children)
    depths = _heights(parents.at, parents.nodes, reverse=True)
    items: list[Integers] = []
    up = _launches("indicate", heights, np.arange(leaves), items)
    up += _launches("add_and_multiply", heights, np.arange(leaves, nodes), items)
    down = _launches("hand_down", depths, np.arange(nodes), items)
    return Layers(np.concatenate(items), up, down)


def _heights(starts: npt.NDArray[Any], others: npt.NDArray[Any], reverse: bool = False) -> npt.NDArray[np.int64]:
    """Return the longest way from each node to one that needs none: int64 [nodes]; others: that each needs."""
    found = np.zeros(len(starts) - 1, dtype=np.int64)
    _count_steps(starts, others, reverse, found)
    return found


@loops
def _count_steps(starts: Any, others: Any, reverse: bool, found: Any) -> None:
    """Write the longest ways; nodes need those before them alone, or with `reverse` those behind them."""
    for i in range(found.size):
        node = found.size - 1 - i if reverse else i
        for edge in range(starts[node], starts[node + 1]):
            found[node] = max(found[node], found[others[edge]] + 1)


def _launches(
    kernel: str, layers: npt.NDArray[np.int64], nodes: npt.NDArray[np.int64], items: list[Integers]
) -> list[BlockLaunch]:
    """Return the launches of some nodes, a layer each, and add their items to a list."""
    together = blocks.MANY_THREADS // WARP
    first = sum(map(len, items))
    found = []
    order = nodes[np.argsort(layers[nodes], kind="stable")]
    for layer in np.split(order, np.flatnonzero(np.diff(layers[order])) + 1) if len(order) else ():
        padded = np.full(-(-len(layer) // together) * together, NOBODY, dtype=np.int32)
        padded[: len(layer)] = layer
        items.append(padded)
        found.append(BlockLaunch(kernel, first, len(padded)))
        first += len(padded)
    return found
