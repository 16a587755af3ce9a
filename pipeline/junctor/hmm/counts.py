"""Expected counts of sequences: the E-step of Baum and Welch over groups of sequences, in a fixed order.

Main class: SequenceCounter, for `junctor.hmm.learn`. Counts do not depend on threads or memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.hmm import counts_cpu, forward_backward_cpu
from junctor_kernels.hmm.counts_cpu import RUN, TILE, SequenceSums

from junctor.hmm.emissions import emissions_of, offsets_of
from junctor.hmm.engine import log_probabilities, refuse_long
from junctor.hmm.model import HiddenMarkovModel, SparseMatrix
from junctor.hmm.numbers import SumNumbers
from junctor.hmm.observations import Observed, observed
from junctor.hmm.packing import Lockstep, SequenceBatch, locksteps
from junctor.hmm.smooth import parts_of
from junctor.model.errors import BudgetError
from junctor.model.options import ONE_THREAD, ComputeOptions
from junctor.planning.budget import exact_bytes
from junctor.runtime.devices import has_gpu
from junctor.runtime.machine import allowed_memory, usable_cores
from junctor.runtime.threads import ahead

Array = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
# Sequences in lockstep, and the most bytes of their rows unless it is a single one. The order of sums follows from
# these, so they do not depend on the memory.
TOGETHER = 32
GROUP_BYTES = 64 * 2**20
# Multiply-adds of a batch (transitions times steps) from which a GPU pays for its start.
DEVICE_TERMS = 1 << 36


@dataclass(frozen=True, eq=False, slots=True)
class SequenceCounts:
    """Expected counts of sequences.

    start: float64 [states].
    transition: float64, as `HiddenMarkovModel.entries`.
    emission: float64 [states, symbols], None for sequences with log-likelihoods.
    log_value: float64 [sequences], natural log of P(sequence); 0 for sequences that do not take part.
    """

    start: Array
    transition: Array
    emission: Array | None
    log_value: Array


@dataclass(frozen=True, eq=False, slots=True)
class _Group:
    """What a group of sequences adds up to; `lost`: those that lost a number, and are not in it."""

    sums: SequenceSums
    lost: Integers


@dataclass(frozen=True, eq=False, slots=True)
class KnownPaths:
    """Sequences all of whose states are known: they are counted, for any parameters.

    is_known: bool [sequences], of a batch.
    batch: of these sequences alone.
    weights: float64 [these sequences].
    """

    is_known: npt.NDArray[np.bool_]
    batch: SequenceBatch
    weights: Array

    def added_to(self, counts: SequenceCounts, model: HiddenMarkovModel) -> SequenceCounts:
        """Return the counts of all sequences; those that the model rules out add nothing, their log value is -inf."""
        assert self.batch.labels is not None
        states, starts, size = self.batch.labels, self.batch.starts, model.states
        logs = log_probabilities(model, self.batch, states)
        counts.log_value[self.is_known] = logs
        weights = np.repeat(np.where(logs > -np.inf, self.weights, 0.0), self.batch.lengths)
        later = np.setdiff1d(np.arange(len(states)), starts[:-1])
        before, after = states[later - 1].astype(np.int64), states[later].astype(np.int64)
        pairs = before * size + after
        if isinstance(model.transition, SparseMatrix):
            # Those that are not there have no weight.
            pairs, _ = model.transition.places(before, after)
        start = np.bincount(states[starts[:-1]], weights[starts[:-1]], size)
        entries = np.bincount(pairs, weights[later], model.entries.size).reshape(model.entries.shape)
        counts = replace(counts, start=counts.start + start, transition=counts.transition + entries)
        if counts.emission is None or self.batch.symbols is None:
            return counts
        seen = np.flatnonzero(self.batch.symbols >= 0)
        places = states[seen].astype(np.int64) * model.symbols + self.batch.symbols[seen]
        emission = np.bincount(places, weights[seen], counts.emission.size).reshape(counts.emission.shape)
        return replace(counts, emission=counts.emission + emission)


def known_paths(batch: SequenceBatch, weights: Array, model: HiddenMarkovModel) -> KnownPaths | None:
    """Return the sequences of which all states are known, and no step is seen in part; None without any."""
    if batch.labels is None:
        return None
    is_open = batch.labels < 0
    if batch.symbols is not None:
        is_open |= batch.symbols >= model.symbols
    sequences = np.repeat(np.arange(len(batch)), batch.lengths)
    is_known = (np.bincount(sequences, is_open, len(batch)) == 0) & (batch.lengths > 0) & (weights > 0)
    if not is_known.any():
        return None
    steps = is_known[sequences]
    starts = np.concatenate([[0], np.cumsum(batch.lengths[is_known])]).astype(np.int64)
    symbols = None if batch.symbols is None else batch.symbols[steps]
    likelihoods = None if batch.likelihoods is None else batch.likelihoods[steps]
    alone = SequenceBatch(starts, symbols, likelihoods, labels=batch.labels[steps])
    return KnownPaths(is_known, alone, weights[is_known])


@dataclass(frozen=True, eq=False)
class SequenceCounter:
    """Counts over one batch of sequences, for any model of the same shape.

    batch: the sequences.
    weights: float64 [sequences]; those with 0 do not take part.
    options: memory for the model, sums and rows, and threads.
    """

    batch: SequenceBatch
    weights: Array
    options: ComputeOptions = ONE_THREAD
    # The same for all models: of steps that are observed in part, or labelled, the symbols, the counter of these, and
    # sequences all of whose states are known.
    _others: list[tuple[Observed, SequenceCounter, KnownPaths | None] | None] = field(default_factory=list, init=False)

    def count(self, model: HiddenMarkovModel) -> SequenceCounts:
        """Return the expected counts; impossible sequences add nothing, their log value is -inf.

        Raises BudgetError where the memory is too small for the model and one group of sequences.
        """
        if (others := self._with_symbols(model)) is not None:
            seen, counter, known = others
            counts = counter.count(seen.model_of(model))
            if counts.emission is not None:
                counts = replace(counts, emission=seen.counts_of(model, counts.emission))
            return counts if known is None else known.added_to(counts, model)
        log_value = np.zeros(len(self.batch))
        start, entries = np.zeros(model.states), np.zeros(model.entries.shape)
        emission = None if self.batch.symbols is None else np.zeros((model.states, model.symbols))
        pending = np.flatnonzero(self.weights > 0)
        for logs in (False, True):
            if not len(pending):
                break
            groups, gpu = self._groups_of(pending, model), None if logs else self._gpu(model)
            refuse_long(model, self.batch.lengths[pending], self.options, gpu is not None)
            numbers = SumNumbers(model, np.float64, logs) if gpu is None else gpu.numbers
            if not numbers.fits:
                continue
            if gpu is None:
                sums, pending = self._total(numbers, groups, log_value)
            else:
                sums, pending = gpu.total(self.batch, self.weights, groups, log_value)
            found = _unpacked(model, numbers, sums)
            start += found.start
            entries += found.transition
            if emission is not None and found.emission is not None:
                emission += found.emission
        return SequenceCounts(start, entries, emission, log_value)

    def _with_symbols(self, model: HiddenMarkovModel) -> tuple[Observed, SequenceCounter, KnownPaths | None] | None:
        if not self._others:
            seen = observed(self.batch, model)
            known = None if seen is None else known_paths(self.batch, self.weights, model)
            rest = self.weights if known is None else np.where(known.is_known, 0.0, self.weights)
            self._others.append(None if seen is None else (seen, replace(self, batch=seen.batch, weights=rest), known))
        return self._others[0]

    def _gpu(self, model: HiddenMarkovModel) -> Any:
        """Return the counter of a GPU that is asked for, or worth it, and has room; raises BudgetError, DeviceError."""
        asked = self.options.device
        terms = int(self.batch.starts[-1]) * model.entries.size
        if asked == "cpu" or (asked == "auto" and (terms < DEVICE_TERMS or not has_gpu())):
            return None
        from junctor.hmm.counts_gpu import GpuCounter

        try:
            return GpuCounter(model, self.options.device_memory, self._device)
        except BudgetError:
            if asked == "gpu":
                raise
            return None

    @cached_property
    def _device(self) -> Any:
        from junctor.hmm.decode_gpu import open_device

        # One for all iterations.
        return open_device(np.float64)

    def _groups_of(self, pending: Integers, model: HiddenMarkovModel) -> list[Lockstep]:
        # Without the padding of rows, which depends on the machine.
        rows = max(1, GROUP_BYTES // (8 * model.states))
        groups = locksteps(self.batch.lengths, pending, TOGETHER)
        return [part for steps in groups for part in parts_of(steps, rows)]

    def _total(self, numbers: SumNumbers, groups: list[Lockstep], log_value: Array) -> tuple[SequenceSums, Integers]:
        """Return the sums over groups, and the sequences that lost a number, ascending."""
        total = self._empty(numbers)
        threads = self._threads(numbers, groups, sum(array.nbytes for array in total))
        lost = []
        # In their order, whoever is ready first.
        for group in ahead(lambda steps: self._group(numbers, steps, log_value), groups, threads):
            for into, sums in zip(total, group.sums, strict=True):
                counts_cpu.add_sums(into, sums)
            lost.append(group.lost)
        return total, np.sort(np.concatenate(lost))

    def _threads(self, numbers: SumNumbers, groups: list[Lockstep], of_sums: int) -> int:
        """Return the threads that have room; raises BudgetError if none has."""
        # A thread: rows, emissions of their own for log-likelihoods, indices, operands of a run.
        rows = max(steps.rows for steps in groups) + 2 * TOGETHER + 1
        row = numbers.row_bytes * (1 if self.batch.symbols is not None else 3) + 32
        each = rows * row + 2 * (RUN + 1) * numbers.row_bytes + of_sums
        # Finished sums wait for their turn: one more than there are threads, and the total.
        model = 2 * numbers.nbytes + 2 * of_sums
        allowed = allowed_memory(self.options)
        threads = min(self.options.threads or usable_cores(), len(groups), (allowed - model) // each)
        if threads < 1:
            raise BudgetError(
                f"expected counts of {numbers.states:,} states and sequences of {groups[0].ticks:,} steps need "
                f"{exact_bytes(model + each)}, allowed are {exact_bytes(allowed)}: raise --memory"
            )
        return threads

    def _empty(self, numbers: SumNumbers) -> SequenceSums:
        size, stride = numbers.states, numbers.stride
        sparse = len(numbers.backward.starts)
        rows = stride if numbers.logs else -(-size // TILE) * TILE
        entries = len(numbers.backward.numbers) if sparse else rows * stride
        emission = 0 if self.batch.symbols is None else len(numbers.emissions) * stride
        return SequenceSums(np.zeros(2 * stride), np.zeros(2 * entries), np.zeros(2 * emission))

    def _group(self, numbers: SumNumbers, steps: Lockstep, log_value: Array) -> _Group:
        """Count sequences in lockstep, again without those that lose a number."""
        where = steps.steps(self.batch.starts, 0, steps.ticks - 1)
        which, emissions, leasts = emissions_of(numbers, self.batch, where)
        trellis, sums = np.empty(len(where) * numbers.stride), self._empty(numbers)
        # None and True are types to Numba: the kernels are compiled without a branch.
        logs = True if numbers.logs else None
        shared = trellis, numbers.stride, steps.starts, which, emissions.reshape(-1), leasts
        size, least = numbers.states, numbers.least
        totals, lost = forward_backward_cpu.forward(numbers.forward, size, least, numbers.start, *shared, logs)
        log_value[steps.sequences] = totals + offsets_of(numbers, self.batch, steps, where)
        # A sequence without loss in the forward pass has an exact zero: no wider format makes it possible.
        kept = ~lost & (totals > -np.inf)
        if kept.all():
            weights = self.weights[steps.sequences]
            lost = counts_cpu.expect(numbers.backward, size, least, *shared, weights, sums, logs)
            kept = ~lost
        if kept.all():
            return _Group(sums, steps.sequences[lost])
        again = self._empty(numbers)
        if not kept.any():
            return _Group(again, steps.sequences[lost])
        # Sums of others have to be without them.
        rest = self._group(numbers, Lockstep(steps.sequences[kept], steps.lengths[kept]), log_value)
        return _Group(rest.sums, np.concatenate([steps.sequences[lost], rest.lost]))


def _unpacked(model: HiddenMarkovModel, numbers: SumNumbers, sums: SequenceSums) -> SequenceCounts:
    """Return the counts that sums of kernels stand for, without log values."""
    size, stride = numbers.states, numbers.stride
    start, transition, emission = (array.reshape(2, -1).sum(axis=0) for array in sums)
    if not model.sparse:
        transition = transition.reshape(-1, stride)[:size, :size]
        transition = transition.T if numbers.logs else transition
    if not numbers.logs:
        transition = transition * model.entries
    by_state = emission.reshape(-1, stride)[:-1, :size].T if len(emission) else None
    return SequenceCounts(start[:size], transition, by_state, np.empty(0))
