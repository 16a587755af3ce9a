"""Propagation through index mapping tables on a GPU, message by message: the baseline of `launch.py`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from baselines.index_mapping import Setting, index_mapping, source
from junctor.cliques.host import kernels_for, natural_table
from junctor.model.network import Network
from junctor.planning.cliques import StoredPlan
from junctor_kernels.tables.reference import DOUBLE, SINGLE, Algebra

ALGEBRAS = {4: SINGLE, 8: DOUBLE}
KERNELS = {"reduce": "reduce_mapped", "scatter": "scatter_mapped"}


class Size(NamedTuple):
    """Entries of a separator and of the clique table on one side of it."""

    separator: int
    clique: int

    @property
    def terms(self) -> int:
        return self.clique // self.separator


class Operation(NamedTuple):
    """Half of a message: a reduction of a clique for the separator above clique `edge`, or a scattering from there."""

    name: str
    clique: int
    edge: int


def operations_of(plan: StoredPlan) -> Iterator[Operation]:
    """Yield what one propagation does: messages to the root, children before parents, and back."""
    edges = [(i, clique.parent) for i, clique in enumerate(plan.cliques) if clique.parent is not None]
    for child, parent in edges:
        yield Operation("reduce", child, child)
        yield Operation("scatter", parent, child)
    for child, parent in reversed(edges):
        yield Operation("reduce", parent, child)
        yield Operation("scatter", child, child)


def size_of(plan: StoredPlan, operation: Operation) -> Size:
    return Size(plan.separator_entries(operation.edge), plan.entries(operation.clique))


def mapping_of(plan: StoredPlan, operation: Operation, xp: Any = np) -> Any:
    """Return the mapping table of a clique and a separator; tables have their variables in ascending order."""
    scope, separator = plan.cliques[operation.clique].natural, plan.cliques[operation.edge].separator
    return index_mapping(scope, separator, plan.sizes, xp)


Chooser = Callable[[str, Size], Setting]


class Gpu:
    """The kernels in a number format, a stream, and how long what is put into it takes."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        import cupy

        self.cupy, self.dtype = cupy, dtype
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self._module = cupy.RawModule(code=source(dtype), options=("-std=c++17",))
        self._kernels = {name: self._module.get_function(kernel) for name, kernel in KERNELS.items()}

    @property
    def name(self) -> str:
        return str(self.cupy.cuda.runtime.getDeviceProperties(0)["name"].decode())

    def launch(self, name: str, setting: Setting, mapping: Any, *arrays: Any) -> None:
        entries, terms = mapping.shape
        numbers = [np.int32(number) for number in (entries, terms, setting.together)]
        blocks, threads = (setting.blocks(entries),), (setting.threads,)
        self._kernels[name](blocks, threads, (arrays[0], mapping, *arrays[1:], *numbers))

    def seconds(self, enqueue: Callable[[], object], repeats: int, best: Callable[..., float] = min) -> float:
        """Return what the launches that `enqueue` makes take as one graph."""
        cupy, stream, times = self.cupy, self.stream, []
        with stream:
            stream.begin_capture()
            enqueue()
            graph = stream.end_capture()
            graph.launch(stream)
            for _ in range(repeats):
                begin, end = cupy.cuda.Event(), cupy.cuda.Event()
                begin.record(stream)
                graph.launch(stream)
                end.record(stream)
                end.synchronize()
                times.append(cupy.cuda.get_elapsed_time(begin, end) / 1e3)
        return best(times)


class MappedTree:
    """The tables, separators and mapping tables of a tree on a device (or, with NumPy as `xp`, here).

    Tables hold probabilities as they are, as in the paper: these messages are not rescaled, and the powers of two that
    our own tables are scaled by would multiply to what no number format holds. Raises ValueError for a Markov network,
    whose total is not known to be one.
    """

    def __init__(self, plan: StoredPlan, network: Network, dtype: np.dtype[Any], xp: Any) -> None:
        if network.kind != "bayes":
            raise ValueError(f"found a {network.kind} network, only tables of a Bayesian network sum to one")
        self.plan, self.operations, self._host = plan, list(operations_of(plan)), getattr(xp, "asnumpy", np.asarray)
        self.initial = [
            xp.array(_probabilities(plan, network, i, ALGEBRAS[dtype.itemsize])) for i in range(len(plan.cliques))
        ]
        self.tables = [table.copy() for table in self.initial]
        edges = [i for i, clique in enumerate(plan.cliques) if clique.parent is not None]
        self.mappings = {
            (each.clique, each.edge): mapping_of(plan, each, xp) for each in self.operations if each.name == "reduce"
        }
        self.separators = {i: xp.ones(plan.separator_entries(i), dtype) for i in edges}
        self.ratios = {i: xp.empty(plan.separator_entries(i), dtype) for i in edges}

    def arguments(self) -> Iterator[tuple[Operation, tuple[Any, ...]]]:
        """Yield every operation with its mapping table and arrays.

        Again on calibrated tables, separators stay as they are, but for rounding, which adds up.
        """
        for each in self.operations:
            table, ratio = self.tables[each.clique], self.ratios[each.edge]
            arrays = (table, self.separators[each.edge], ratio) if each.name == "reduce" else (table, ratio)
            yield each, (self.mappings[each.clique, each.edge], *arrays)

    def reset(self) -> None:
        """Begin with the factors again."""
        for table, initial in zip(self.tables, self.initial, strict=True):
            table[...] = initial
        for separator in self.separators.values():
            separator[...] = 1

    def enqueue(self, gpu: Gpu, choose: Chooser) -> None:
        for operation, (mapping, *arrays) in self.arguments():
            gpu.launch(operation.name, choose(operation.name, size_of(self.plan, operation)), mapping, *arrays)

    def worst_sum(self, gpu: Gpu, choose: Chooser) -> float:
        """Propagate once, from the factors on; return by how much the sum of a table differs from P(e), which is 1."""
        self.reset()
        self.enqueue(gpu, choose)
        return max(abs(float(self._host(table).sum(dtype=np.float64)) - 1) for table in self.tables)


def _probabilities(plan: StoredPlan, network: Network, clique: int, algebra: Algebra) -> Any:
    """Return the product of a clique's factors, flat, as it is."""
    made = natural_table(plan, network, clique, algebra, kernels_for(algebra, 0))
    return np.ldexp(made.table.ravel(), int(made.exponent))


def propagation_seconds(tree: MappedTree, gpu: Gpu, choices: Mapping[str, Chooser], rounds: int) -> dict[str, float]:
    """Return the median seconds of a propagation with each way to choose settings; they take turns."""
    times: dict[str, list[float]] = {name: [] for name in choices}
    for _ in range(rounds):
        for name, choose in choices.items():
            tree.reset()
            gpu.cupy.cuda.runtime.deviceSynchronize()
            times[name].append(gpu.seconds(lambda choose=choose: tree.enqueue(gpu, choose), 3))
    return {name: statistics.median(each) for name, each in times.items()}
