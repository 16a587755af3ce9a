"""Expected counts on a GPU: components are enumerated there, a block of them at a time, while the CPU counts others.

Main objects: `gpu_components` and GpuComponents, for `junctor.learning.observations`. Lists of blocks stay on the
device between iterations; only parameters go in, only sums and totals come out. No sum depends on the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import pairwise
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.row_trees import components as split
from junctor_kernels.row_trees import counts as kernel
from junctor_kernels.row_trees import counts_gpu, pieces

from junctor.learning.expectation import Floats
from junctor.model.errors import BudgetError
from junctor.model.options import ComputeOptions
from junctor.planning.budget import exact_bytes, format_bytes
from junctor.runtime.devices import check_device, gpu_errors, has_gpu
from junctor.runtime.machine import allowed_memory, usable_cores
from junctor.runtime.threads import ahead, in_threads

Array = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]
# States of a component that are enumerated on a GPU at most, where its pattern has as many components as states: lists
# of offsets are then no larger than what they serve.
MOST_STATES = 1 << 12
# Entries that the components of an iteration multiply from which a GPU pays for its start.
DEVICE_TERMS = 1 << 28
# Of these in a block. The order of sums follows from it, so it does not depend on the memory.
BLOCK_TERMS = 1 << 26
# Bytes for each of these while the lists of a block are made, at the most.
LIST_BYTES = 32
# Share of the free device memory unless the user gives a limit.
DEVICE_SHARE = 0.7
# Totals whose logarithms a thread takes at a time.
TOTALS = 1 << 18
# Arrays in a piece of memory begin at multiples of so many bytes.
ALIGNED = 64


def open_device() -> counts_gpu.CountDevice:
    """Return the first GPU that this process sees; raises DeviceError, in words for users."""
    check_device("gpu")
    with gpu_errors():
        return counts_gpu.CudaCounts()


def gpu_components(
    families: split.Families,
    store: split.Store,
    order: Integers,
    enumerated: int,
    local: kernel.Local,
    entries: int,
    options: ComputeOptions,
) -> GpuComponents | None:
    """Return the components of a store that a GPU counts, None where none is asked for, or none is worth it.

    families, store: of the rows.
    order: int64 [components], those of a pattern together.
    enumerated: states that the CPU enumerates at most; the GPU takes all such components.
    local: memory for the largest pattern.
    entries: of all tables and likelihoods.
    options: devices, threads and memory.
    Raises BudgetError where memory that was asked for is too small, and DeviceError.
    """
    if options.device == "cpu" or not len(order):
        return None
    shape = _Shape.of(families, store, order, enumerated)
    auto = options.device == "auto"
    if not len(shape.taken) or (auto and (shape.terms < DEVICE_TERMS or not has_gpu())):
        return None
    device = open_device()
    try:
        return GpuComponents(families, store, order, shape, local, entries, options, device)
    except (BudgetError, MemoryError) as error:
        if auto:
            return None
        if isinstance(error, BudgetError):
            raise
        raise BudgetError(
            f"the GPU has too little free memory ({error}): lower --device-memory, or use --device cpu"
        ) from error


@dataclass(frozen=True, eq=False, slots=True)
class _Shape:
    """Patterns of a store: which of them a GPU takes, int64 throughout.

    taken: their numbers, ascending.
    first: of the components of each, in the order of all.
    counts, states, factors: of each.
    """

    taken: Integers
    first: Integers
    counts: Integers
    states: Integers
    factors: Integers

    @classmethod
    def of(cls, families: split.Families, store: split.Store, order: Integers, enumerated: int) -> _Shape:
        patterns = int(store.counts[split.PATTERNS])
        counts = np.bincount(store.pattern[order], minlength=patterns)
        cards = families.cards[store.variables[: int(store.counts[split.VARIABLES])]].astype(np.float64)
        # Infinite for very many.
        with np.errstate(over="ignore"):
            states = np.multiply.reduceat(cards, store.variable_starts[:patterns])
        taken = np.flatnonzero((counts > 0) & ((states <= enumerated) | ((states <= MOST_STATES) & (states <= counts))))
        factors = np.diff(store.factor_starts[: patterns + 1])
        first = np.cumsum(counts) - counts
        return cls(taken, first[taken], counts[taken], states[taken].astype(np.int64), factors[taken])

    @property
    def terms(self) -> int:
        """Entries that components multiply in an iteration, of patterns whose lists are no larger than that."""
        return int((self.counts * self.states * self.factors)[self.states <= self.counts].sum())

    def blocks(self) -> list[npt.NDArray[np.int32]]:
        """Return the parts of each block, int32 [parts, columns]."""
        blocks, parts, terms = [], list[tuple[int, ...]](), 0
        begins = [0] * 5
        numbers = (self.taken, self.counts, self.states, self.factors)
        for pattern, count, states, factors in zip(*(each.tolist() for each in numbers), strict=True):
            length = pieces.line_length(states)
            while count:
                some = min(count, (BLOCK_TERMS - terms) // (length * factors))
                if some < 1 and parts:
                    blocks.append(np.array(parts, dtype=np.int32))
                    parts, terms, begins = [], 0, [0] * 5
                    continue
                # A single component is never too large.
                some = max(1, some)
                parts.append((some, factors, states, pattern, *begins))
                # Components, bases, offsets, numbers of rows, threads.
                steps = (some, some * factors, factors * length, some * states, some * length // pieces.TOGETHER)
                begins = [begin + step for begin, step in zip(begins, steps, strict=True)]
                terms, count = terms + some * length * factors, count - some
        return [*blocks, np.array(parts, dtype=np.int32)]


@dataclass(frozen=True, eq=False, slots=True)
class _Block:
    """A block whose lists are in one piece of memory.

    memory: uint8, of the device, or of the host if `is_away`.
    is_away: whether it is sent in each iteration.
    places: byte at which each list begins.
    counts: numbers of the struct, and `row_count`, of all numbers of rows.
    first: of its components.
    """

    memory: Any
    is_away: bool
    places: dict[str, int]
    counts: dict[str, int]
    first: int

    @property
    def launches(self) -> dict[str, int]:
        """Kernels and their threads."""
        tasks, components, units, entries = (
            self.counts[f"{name}_count"] for name in ("task", "component", "unit", "entry")
        )
        launches = {"multiply": tasks, "weigh": components, "add_pieces": units, "add_units": 32 * entries}
        # Of likelihoods alone nothing is counted.
        return {kernel: threads for kernel, threads in launches.items() if threads}


class GpuComponents:
    """Components that a GPU counts, again and again with other numbers; arguments as of `gpu_components`.

    rest: int64, the other components, those of a pattern together.
    Raises BudgetError where the memory is too small.
    """

    def __init__(
        self,
        families: split.Families,
        store: split.Store,
        order: Integers,
        shape: _Shape,
        local: kernel.Local,
        entries: int,
        options: ComputeOptions,
        device: counts_gpu.CountDevice,
    ) -> None:
        self._device, self._turn = device, Lock()
        self._threads = options.threads or usable_cores()
        is_taken = np.zeros(int(store.counts[split.PATTERNS]), dtype=np.bool_)
        is_taken[shape.taken] = True
        here = is_taken[store.pattern[order]]
        self._order, self.rest = order[here], order[~here]
        self._blocks = _listed(families, store, self._order, shape.blocks(), local, options)
        size = int(families.places[-1])
        rows, units = (max(block.counts[name] for block in self._blocks) for name in ("row_count", "unit_count"))
        self._place(8 * (entries + 2 * size + len(self._order) + rows + 2 * units), options.device_memory)
        self._values, self._sums = device.empty(entries, np.float64), device.empty(2 * size, np.float64)
        self._totals = device.empty(len(self._order), np.float64)
        self._rows, self._unit_sums = device.empty(rows, np.float64), device.empty(2 * units, np.float64)
        self._records = [self._record(block) for block in self._blocks]
        self._found = device.pinned(len(self._order), np.float64), device.pinned(2 * size, np.float64)

    def count(
        self, values: Floats, results: tuple[Floats, npt.NDArray[np.uint8]], beside: Callable[[], None]
    ) -> tuple[Floats, Integers]:
        """Return the sums of counts, float64 [entries, 2], and the components that may have lost digits.

        values: float64, entries of all tables, then likelihoods.
        results: log P and status of each component of the store, written for those that are counted.
        beside: called while the device works.
        """
        device = self._device
        # Two calls at the same time share the memory of the device.
        with self._turn:
            device.set(self._values, values)
            device.clear(self._sums)
            for block, record in zip(self._blocks, self._records, strict=True):
                if block.is_away:
                    device.set(self._away, block.memory)
                device.launch(block.launches, record)
            beside()
            totals, sums = map(device.get, (self._totals, self._sums), self._found)
            spans = list(pairwise([*range(0, len(totals), TOTALS), len(totals)]))
            in_threads(lambda span, _: kernel.take_totals(totals, self._order, *span, results), spans, self._threads)
            # Not `totals < LEAST_TOTAL`: what is no number is left, too.
            left = self._order[~(totals >= kernel.LEAST_TOTAL)]
            return np.ascontiguousarray(sums.reshape(2, -1).T), left

    def _place(self, fixed: int, limit: int | None) -> None:
        """Put blocks on the device, as far as they have room; the others are sent in each iteration.

        fixed: bytes of everything else.
        limit: bytes of the device, None for a share of the free ones.
        """
        sizes = [len(block.memory) for block in self._blocks]
        left = (int(DEVICE_SHARE * self._device.room()) if limit is None else limit) - fixed
        # Room for those that are sent, one after the other.
        away = 0 if sum(sizes) <= left else max(sizes)
        if away > left:
            raise BudgetError(
                f"expected counts need {exact_bytes(fixed + away)} of the GPU, allowed are "
                f"{exact_bytes(max(0, left + fixed))}: raise --device-memory, or use --device cpu"
            )
        self._away = self._device.empty(max(1, away), np.uint8)
        here = int(np.searchsorted(np.cumsum(sizes), left - away, side="right"))
        self._blocks[:here] = [
            replace(block, memory=self._device.put(block.memory), is_away=False) for block in self._blocks[:here]
        ]

    def _record(self, block: _Block) -> Integers:
        """Return the struct of a block."""
        device = self._device
        address = device.address(self._away if block.is_away else block.memory)
        arrays = {"values": self._values, "rows": self._rows, "unit_sums": self._unit_sums, "sums": self._sums}
        fields = {name: device.address(array) for name, array in arrays.items()}
        fields |= {name: address + place for name, place in block.places.items()}
        fields |= {"totals": device.address(self._totals) + 8 * block.first, "size": len(self._sums) // 2}
        return counts_gpu.record({**fields, **block.counts})


def _listed(
    families: split.Families,
    store: split.Store,
    order: Integers,
    blocks: list[npt.NDArray[np.int32]],
    local: kernel.Local,
    options: ComputeOptions,
) -> list[_Block]:
    """Return blocks of components in the memory of the host; raises BudgetError if they take too much."""
    ends = np.cumsum([0, *(parts[:, pieces.COUNT].sum() for parts in blocks)]).tolist()

    def listed(number: int) -> _Block:
        parts, first = blocks[number], ends[number]
        own = deepcopy(local)
        lists = pieces.lists_of(families, store, order[first : ends[number + 1]], parts, own)
        counts = {"part_count": len(parts), "component_count": ends[number + 1] - first}
        counts |= {"unit_count": len(lists["units"]), "entry_count": len(lists["entries"])}
        last = parts[-1].tolist()
        counts["row_count"] = last[pieces.ROWS] + last[pieces.COUNT] * last[pieces.STATES]
        threads = last[pieces.COUNT] * pieces.line_length(last[pieces.STATES]) // pieces.TOGETHER
        counts["task_count"] = last[pieces.TASKS] + threads
        return _Block(*_together(lists), counts, first)

    found, taken, allowed = [], 0, allowed_memory(options)
    threads = min(options.threads or usable_cores(), max(1, allowed // (LIST_BYTES * BLOCK_TERMS)))
    for block in ahead(listed, range(len(blocks)), threads):
        found.append(block)
        taken += len(block.memory)
        if taken > allowed:
            raise BudgetError(
                f"lists of components for the GPU take more than the {format_bytes(allowed)} that are allowed: give "
                "more memory, or use --device cpu"
            )
    return found


def _together(lists: dict[str, Array]) -> tuple[npt.NDArray[np.uint8], bool, dict[str, int]]:
    """Return lists in one piece of memory, which is of the host, and the byte at which each begins."""
    places, end = {}, 0
    for name, array in lists.items():
        places[name] = end
        end += -(-array.nbytes // ALIGNED) * ALIGNED
    memory = np.zeros(end, dtype=np.uint8)
    for name, array in lists.items():
        memory[places[name] : places[name] + array.nbytes] = array.reshape(-1).view(np.uint8)
    return memory, True, places
