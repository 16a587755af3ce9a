"""Stored cliques on a GPU: offsets in its memory, the tasks of a pass, and `ResidentExecutor` for trees that fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.gpu.stored import CliqueDevice, PlacedBatch, upload_batch
from junctor_kernels.gpu.stored_tasks import MOST_ENTRIES, CliqueLaunch, SeparatorTable, TaskBatch, swaps_back
from junctor_kernels.tables.reference import Algebra, exponents_of
from junctor_kernels.tables.views import Box, View, view, whole

from junctor.cliques.host import (
    CliqueOutcome,
    Initial,
    Likelihoods,
    log_evidence,
    scaled_evidence,
    scope_of,
    table_sums,
)
from junctor.cliques.parts import Trace, What, marked
from junctor.planning.budget import Budget
from junctor.planning.cliques import (
    DOWN,
    EVIDENCE,
    SUM,
    UP,
    CliqueOperand,
    CliquePass,
    StoredPlan,
    passes,
    table_plan,
)
from junctor.planning.first_fit import side_by_side

Array = npt.NDArray[Any]
Make = Callable[[int], Initial]

# The highest bit of 64.
TOP = np.uint64(1 << 63)
# Numbers of nothing that are sent at a time.
NOTHING = 1 << 16


class Separators:
    """Where messages, evidence, their largest entries and the mark of a loss lie on a device, from `base` on.

    They lie in front of everything else; sizes: of each in bytes, in the order in which they lie.
    """

    def __init__(self, plan: StoredPlan, algebra: Algebra) -> None:
        self._plan = plan
        self._algebra = algebra
        self._dtype = algebra.dtype
        self.base = 0
        count, item = len(plan.cliques), algebra.dtype.itemsize
        self.sizes: dict[Hashable, int] = {"lost": item, "largest": 2 * count * item}
        for kind in (UP, DOWN):
            self.sizes |= {CliqueOperand(kind, i): plan.separator_entries(i) * item for i in range(count)}
        # Evidence is scaled when it comes: to scale it as messages with this largest entry changes nothing.
        self.sizes["neutral"] = item
        self.sizes |= {CliqueOperand(EVIDENCE, v): size * item for v, size in enumerate(plan.sizes)}
        self._offsets, _ = side_by_side(self.sizes)

    @property
    def lost(self) -> int:
        """The address of the mark."""
        return self.base + self._offsets["lost"]

    def message(self, operand: CliqueOperand) -> SeparatorTable:
        """Return the addresses of a message or of evidence."""
        number = operand.number + (len(self._plan.cliques) if operand.kind == DOWN else 0)
        offset = self._offsets["largest"] + number * self._dtype.itemsize
        largest = self._offsets["neutral"] if operand.kind == EVIDENCE else offset
        return SeparatorTable(self.base + self._offsets[operand], self.base + largest)

    def sums(self, work: CliquePass, number: int) -> SeparatorTable:
        """Return the message that a pass sums for a separator."""
        return self.message(CliqueOperand(UP if number == work.clique else DOWN, number))

    def begin(self, device: CliqueDevice, evidence: dict[int, Initial], stream: Any) -> list[Array]:
        """Enqueue evidence, and sums of nothing; returns arrays that have to live until they are copied."""
        # Everything in front of evidence.
        device.clear(self.base, self._offsets["neutral"], stream)
        arrays = [] if self._algebra.tiny else [self._send_nothing(device, stream)]
        places = {v: self.message(CliqueOperand(EVIDENCE, v)).values for v in evidence}
        arrays += [_sent(device, likelihood.table, places[v], stream) for v, likelihood in evidence.items()]
        # Its exponent is 0: largest entries are read by their exponents. Of logarithms these are the bits of 0's rank.
        neutral = np.array([0.5 if self._algebra.tiny else -0.0], dtype=self._dtype)
        return [*arrays, _sent(device, neutral, self.base + self._offsets["neutral"], stream)]

    def _send_nothing(self, device: CliqueDevice, stream: Any) -> Array:
        """Enqueue logarithms of 0 in the place of all messages; returns the array that they are copied from."""
        first = self._offsets["largest"] + self.sizes["largest"]
        count = (self._offsets["neutral"] - first) // self._dtype.itemsize
        nothing = device.host(min(count, NOTHING), self._dtype)
        nothing[:] = self._algebra.zero
        for at in range(0, count, NOTHING):
            piece = nothing[: count - at]
            device.upload(piece, self.base + first + at * self._dtype.itemsize, stream)
        return nothing

    def _numbers(self, largest: Array) -> Array:
        """Return largest entries as numbers: of logarithms the device has ranks, as `algebra.cu` orders them."""
        if self._algebra.tiny:
            return largest
        ranks = largest.view(np.uint64)
        return np.where(ranks >= TOP, ranks & ~TOP, ~ranks).view(np.float64)

    def download(self, device: CliqueDevice, operand: CliqueOperand, count: int, stream: Any) -> Array:
        """Wait for what is enqueued, and return a message of so many entries as it was summed."""
        host = device.host(count, self._dtype)
        device.download(self.message(operand).values, host, stream)
        device.synchronize(device.record(stream))
        return host

    def outcome(
        self, device: CliqueDevice, exponents: Sequence[float], evidence: dict[int, Initial], lost: bool, stream: Any
    ) -> CliqueOutcome:
        """Wait for what is enqueued, and return the outcome."""
        count = len(self._plan.cliques)
        mark, largest = device.host(1, np.int32), device.host(count, self._dtype)
        device.download(self.lost, mark, stream)
        device.download(self.base + self._offsets["largest"], largest, stream)
        device.synchronize(device.record(stream))
        # The exponents by which kernels scaled messages follow from the largest entries.
        numbers, algebra = self._numbers(largest), self._algebra
        up = exponents_of(numbers, algebra)
        if algebra.tiny:
            up = np.maximum(up, np.finfo(self._dtype).minexp + 1)
        up_exponents = {i: float(exponent) for i, exponent in enumerate(up)}
        # The separator of a root has one entry, which is the largest one.
        totals = dict(enumerate(numbers.tolist()))
        lost |= bool(mark[0]) or any(likelihood.lost for likelihood in evidence.values())
        return CliqueOutcome(log_evidence(self._plan, exponents, evidence, up_exponents, totals, algebra), lost)


def _sent(device: CliqueDevice, values: Array, address: int, stream: Any) -> Array:
    host = device.host(len(values), values.dtype)
    host[:] = values
    device.upload(host, address, stream)
    return host


def add_pass(
    batch: TaskBatch,
    separators: Separators,
    plan: StoredPlan,
    work: CliquePass,
    box: Box,
    table: tuple[int, int],
    parts: int,
    adds: bool,
) -> int:
    """Add the tasks of a pass over a box of a table; returns the bytes of parts of sums.

    batch: that they are added to.
    separators: addresses of messages and evidence.
    plan, work: the pass.
    box: of the table.
    table: addresses that are read and written.
    parts: address for parts of sums.
    adds: whether sums are added to what is there.
    """
    clique, item = plan.cliques[work.clique], batch.itemsize
    source, target = table

    def along(scope: Sequence[int]) -> View:
        return view(clique.layout, box, scope, plan.sizes)

    factors = [(along(scope_of(plan, operand)), separators.message(operand)) for operand in work.factors]
    owned = along(clique.separator)
    # What is not in front is gathered, as for the children.
    runs = work.clique in work.sums and bool(owned.run())
    own = (owned, separators.sums(work, work.clique).values) if runs else None
    # A table that is only summed stays as it is, and need not be written.
    changes = bool(factors) or source != target
    used = 0
    if own or changes:
        entries = math.prod(last - first for first, last in box)
        used += item * batch.scatter((source, target if changes else 0), entries, factors, own, adds, parts)
    # Gathers read the products, so they come second.
    for i in work.sums:
        if i != work.clique or not runs:
            sums = separators.sums(work, i).values
            used += item * batch.gather(target, along(plan.cliques[i].separator), sums, adds, parts + used)
    return used


def add_message_tasks(batch: TaskBatch, separators: Separators, plan: StoredPlan, work: CliquePass) -> None:
    """Add the tasks that make messages of the sums of a pass."""
    for i in work.sums:
        # A downward message is divided by the upward one, which the receiver sent itself.
        before = None if i == work.clique else separators.message(CliqueOperand(UP, i))
        batch.settle(separators.sums(work, i), plan.separator_entries(i), before)


class ResidentExecutor:
    """All tables on a device; the launches of a propagation are one graph, replayed for every case of a pattern.

    plan: of the tree.
    make: returns the natural table of a clique.
    allowed: bytes on the device.
    trace: gets the times of all copies and kernels, which then are no graph.
    size: bytes taken there.
    Raises BudgetError.
    """

    def __init__(
        self,
        plan: StoredPlan,
        make: Make,
        algebra: Algebra,
        device: CliqueDevice,
        allowed: int,
        trace: Trace | None = None,
    ) -> None:
        self._plan = plan
        self._dtype = algebra.dtype
        self._device = device
        self._algebra = algebra
        self._trace = trace
        self._allowed = allowed
        self._layout(allowed)
        self._stream = device.stream()
        self._exponents, self._lost = self._bring(make)
        self._ready: tuple[frozenset[int], Callable[[], None]] | None = None

    def _layout(self, allowed: int) -> None:
        """Choose the offsets of all tables, messages and tasks, and allocate their memory."""
        plan, item = self._plan, self._dtype.itemsize
        self._separators = Separators(plan, self._algebra)
        # Twice: the initial tables serve the next case, the others are calibrated in place.
        sizes = dict(self._separators.sizes)
        for kind in ("initial", "table"):
            sizes |= {(kind, i): plan.entries(i) * item for i in range(len(plan.cliques))}
        self._offsets, _ = side_by_side(sizes)
        self._base = self._batch = 0
        # Where all variables are observed there are the most tasks.
        batch, parts = self._tasks(frozenset(range(len(plan.sizes))), 0)
        permutations, swaps = self._permutations()
        tasks = max(batch.size(), permutations.size() + swaps.nbytes)
        self._offsets, self.size = side_by_side(sizes | {"parts": parts, "batch": tasks})
        self._parts = self._offsets["parts"]
        self._batch = self._offsets["batch"]
        if self.size > allowed or max(map(plan.entries, range(len(plan.cliques)))) > MOST_ENTRIES:
            raise Budget(allowed).refuse(self.size, "holding all cliques on the device", "stream them through it")
        self._memory = self._device.allocate(self.size)
        self._base = self._separators.base = self._memory.ptr

    def _bring(self, make: Make) -> tuple[list[float], bool]:
        """Copy the natural tables to the device and bring their separators to the front; returns scales and losses."""
        scales, lost = [], False
        # One at a time: the host needs no room for all of them.
        for i in range(len(self._plan.cliques)):
            table, scale, flushed = make(i)
            scales.append(scale)
            lost |= flushed
            # The pinned copy must live until the device has it.
            pinned = self._device.host(len(table), table.dtype)
            pinned[:] = table
            self._device.synchronize(self._marked("in", partial(self._device.upload, pinned, self._at("table", i))))
            del pinned
        self.preprocess()
        return scales, lost

    def preprocess(self) -> None:
        """Bring the separators of the tables as they are to the front, all in one launch; makes the initial tables."""
        # Nothing is summed yet, so there is room for swaps and tasks.
        # Swaps lie where tasks of propagation will: they are needed once.
        batch, swaps = self._permutations()
        at = self._base + self._batch
        sent = _sent(self._device, swaps, at, self._stream)
        launches, placed, host = upload_batch(self._device, batch, at + swaps.nbytes, self._stream)
        self._launch(launches, placed)
        self._device.synchronize(self._device.record(self._stream))
        del sent, host

    def _permutations(self) -> tuple[TaskBatch, npt.NDArray[np.int64]]:
        batch, all_swaps, begin = TaskBatch(self._dtype), [np.zeros(0, dtype=np.int64)], self._base + self._batch
        for i, clique in enumerate(self._plan.cliques):
            at = begin + sum(swaps.nbytes for swaps in all_swaps)
            all_swaps.append(swaps_back(clique.swaps))
            batch.permute(self._at("table", i), self._at("initial", i), self._plan.entries(i), at, len(clique.swaps))
        batch.close()
        return batch, np.concatenate(all_swaps)

    def _at(self, kind: str, clique: int) -> int:
        return self._base + self._offsets[kind, clique]

    def _launch(self, launches: Sequence[CliqueLaunch], placed: PlacedBatch) -> None:
        lost = self._separators.lost
        for work in launches:
            if self._trace is None:
                self._device.launch(self._algebra.name, work, placed, lost, self._stream)
            else:
                self._marked(work, partial(self._device.launch, self._algebra.name, work, placed, lost))

    def _marked(self, what: What, enqueue: Callable[[Any], None]) -> Any:
        """Enqueue something in the stream; returns the event behind it."""
        record, stream = self._device.record, self._stream
        return marked(self._trace, lambda: record(stream), what, lambda: enqueue(stream))

    def _tasks(self, observed: frozenset[int], parts: int) -> tuple[TaskBatch, int]:
        """Return the tasks of all stages, and the bytes that parts of sums take in any of them."""
        batch, most, plan = TaskBatch(self._dtype), 0, self._plan
        for stage in passes(plan, observed):
            used = 0
            for work in stage:
                table = self._at("table", work.clique)
                reads = self._at("initial", work.clique) if work.first else table
                box = whole(plan.cliques[work.clique].shape(plan.sizes))
                used += add_pass(batch, self._separators, plan, work, box, (reads, table), parts + used, False)
            # Passes of a stage run at once, and stages after each other: parts of sums are reused.
            most = max(most, used)
            batch.close()
            for work in stage:
                add_message_tasks(batch, self._separators, plan, work)
            batch.close()
        return batch, most

    def _ready_for(self, observed: frozenset[int]) -> Callable[[], None]:
        """Return what enqueues the launches for a pattern of evidence."""
        # The last pattern is kept, for further cases of the same one.
        if self._ready is None or self._ready[0] != observed:
            batch, _ = self._tasks(observed, self._base + self._parts)
            launches, placed, host = upload_batch(self._device, batch, self._base + self._batch, self._stream)
            self._device.synchronize(self._device.record(self._stream))
            del host
            launch = partial(self._launch, launches, placed)
            if self._trace is None:
                launch = partial(self._device.graph(self._stream, launch).launch, self._stream)
            self._ready = observed, launch
        return self._ready[1]

    def propagate(self, likelihoods: Likelihoods) -> CliqueOutcome:
        """Calibrate all tables."""
        evidence = scaled_evidence(likelihoods, self._algebra)
        launch = self._ready_for(frozenset(likelihoods))
        pinned = self._separators.begin(self._device, evidence, self._stream)
        launch()
        outcome = self._separators.outcome(self._device, self._exponents, evidence, self._lost, self._stream)
        # The outcome waited for the stream, and so for the copies from pinned memory.
        del pinned
        return outcome

    def table(self, clique: int) -> Array:
        """Return a copy of the calibrated table of a clique."""
        host = self._device.host(self._plan.entries(clique), self._dtype)
        download = partial(self._device.download, self._at("table", clique), host)
        self._device.synchronize(self._marked("out", download))
        return host

    def sums(self, clique: int, wanted: Sequence[int]) -> Array:
        """Return the sums of a calibrated table for some of its variables, made where the table lies."""
        node, (table, device) = self._plan.cliques[clique], (self._at("table", clique), self._device)
        plan, box = table_plan(self._plan.sizes, node.layout, tuple(wanted)), whole(node.shape(self._plan.sizes))
        separators = Separators(plan, self._algebra)

        def tasks(parts: int) -> tuple[TaskBatch, int]:
            batch = TaskBatch(self._dtype)
            used = add_pass(batch, separators, plan, SUM, box, (table, table), parts, False)
            batch.close()
            return batch, used

        # Laid out twice: addresses are known only when the sizes are.
        batch, parts = tasks(0)
        offsets, size = side_by_side(separators.sizes | {"parts": parts, "batch": batch.size()})
        if self.size + size > self._allowed:
            return table_sums(self.table(clique), node.layout, wanted, plan.sizes, self._algebra, self._trace)
        memory = device.allocate(size)
        separators.base = memory.ptr
        launches, placed, host = upload_batch(
            device, tasks(memory.ptr + offsets["parts"])[0], memory.ptr + offsets["batch"], self._stream
        )
        self._launch(launches, placed)
        found = separators.download(device, CliqueOperand(UP, 0), plan.separator_entries(0), self._stream)
        # The download waited for the copy.
        del host
        return found
