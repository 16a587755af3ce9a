"""Answers to batches of sequences: most probable paths, or log-likelihoods and posteriors of the states."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from junctor.hmm.blocks import TrellisMemory, fitting
from junctor.hmm.decode import CpuDecoder, Decoder, decode
from junctor.hmm.model import HiddenMarkovModel, SparseMatrix
from junctor.hmm.numbers import PathNumbers, logarithms
from junctor.hmm.packing import EMPTY, Lockstep, SequenceBatch
from junctor.hmm.smooth import GpuLimits, Smoother
from junctor.model.answers import IMPOSSIBLE, INVALID, OK
from junctor.model.errors import BudgetError, DeviceError, EvidenceError
from junctor.model.options import ONE_THREAD, ComputeOptions
from junctor.model.query import Precision
from junctor.runtime.devices import has_gpu
from junctor.runtime.machine import allowed_disk, allowed_memory, spill_folder, usable_cores
from junctor.runtime.threads import in_threads

SequenceKind = Literal["viterbi", "posteriors"]
NO_PROBABILITY = "the sequence has probability 0"
# Sequences side by side on a CPU: the matrix is read once for all of them.
TOGETHER = 64
# Sequences that rather stay together, though their trellis goes in blocks, than be fewer.
COMPANY = 8
# Terms of a run (transitions times steps) from which on a GPU is worth its while.
DEVICE_TERMS = 1 << 36

logger = logging.getLogger("junctor")


@dataclass(frozen=True, eq=False, slots=True)
class SequenceAnswers:
    """Answers to a batch of sequences; those whose status is not OK hold no numbers to be read.

    starts: int64 [sequences + 1], where the steps of each begin.
    status: int8 [sequences].
    log_value: float64 [sequences], natural log of P(path, sequence), or of P(sequence).
    states: [steps], the smallest unsigned type; None for posteriors.
    posteriors: float [steps, states]; None for paths.
    reasons: sequence -> why it is not OK.
    """

    starts: npt.NDArray[np.int64]
    status: npt.NDArray[np.int8]
    log_value: npt.NDArray[np.float64]
    states: npt.NDArray[Any] | None = None
    posteriors: npt.NDArray[Any] | None = None
    reasons: dict[int, str] = field(default_factory=dict)


@dataclass(eq=False)
class SequenceEngine:
    """Answers batches of one model.

    model: start, transitions, emissions.
    kind: of answers.
    precision: numbers to compute with.
    options: memory for rows and posteriors beside the model and the sequences, device memory for model and rows, disk
        for rows that exceed the memory; no answer depends on threads, nor on the device.
    """

    model: HiddenMarkovModel
    kind: SequenceKind = "viterbi"
    precision: Precision = "double"
    options: ComputeOptions = ONE_THREAD

    def answer(self, batch: SequenceBatch) -> SequenceAnswers:
        """Answer a batch. Raises BudgetError where the memory is too small, DiskError, DeviceError."""
        self._refuse_other_kind(batch)
        status = np.full(len(batch), OK, np.int8)
        reasons = dict(batch.invalid or {})
        for n in np.flatnonzero(batch.lengths == 0).tolist():
            reasons.setdefault(n, EMPTY)
        status[list(reasons)] = INVALID
        log_value = np.full(len(batch), -np.inf)
        found = np.flatnonzero(status == OK)
        if self.kind == "viterbi":
            states = np.zeros(int(batch.starts[-1]), np.min_scalar_type(self.model.states - 1))
            self._decode(batch, found, states)
            log_value[found] = log_probabilities(self.model, batch, states)[found]
            answers = SequenceAnswers(batch.starts, status, log_value, states, None, reasons)
        else:
            gpu = self._limits if self._on_gpu(int(batch.lengths[found].sum())) else None
            posteriors = self._smoother.answer(batch, found, self._allowed, self._threads, log_value, gpu)
            answers = SequenceAnswers(batch.starts, status, log_value, None, posteriors, reasons)
        for n in found[log_value[found] == -np.inf].tolist():
            status[n], reasons[n] = IMPOSSIBLE, NO_PROBABILITY
        return answers

    @cached_property
    def _allowed(self) -> int:
        return allowed_memory(self.options)

    @cached_property
    def _threads(self) -> int:
        return self.options.threads or usable_cores()

    @cached_property
    def _folder(self) -> Path:
        return spill_folder(self.options.spill_dir)

    @cached_property
    def _files(self) -> int:
        disk = self.options.spill_bytes
        return allowed_disk(self._folder) if disk is None else disk

    @cached_property
    def _numbers(self) -> PathNumbers:
        # Maxima of logarithms lose nothing, so log space is what double precision is.
        return PathNumbers(self.model, np.float32 if self.precision == "single" else np.float64)

    @cached_property
    def _smoother(self) -> Smoother:
        return Smoother(self.model, self.precision)

    @property
    def _limits(self) -> GpuLimits:
        return GpuLimits(self.options.device_memory, self._folder, self._files)

    @cached_property
    def _gpu(self) -> Any:
        from junctor.hmm.decode_gpu import GpuDecoder

        return GpuDecoder(
            self.model, np.float32 if self.precision == "single" else np.float64, self.options.device_memory
        )

    def _decode(self, batch: SequenceBatch, found: npt.NDArray[np.int64], states: npt.NDArray[Any]) -> None:
        if not len(found):
            return
        # Log-likelihoods that sequences bring take as much as the rows.
        share = 1 if batch.likelihoods is None else 2
        if self._on_gpu(int(batch.lengths[found].sum())):
            machine: Decoder = self._gpu
            room = TrellisMemory(self._gpu.allowed // share, self._allowed, self._files)
            for steps in fitting(batch, found, self._gpu.together, self._gpu.company, machine.row_bytes, room):
                self._put(decode(machine, batch, steps, room, self._folder), batch, steps, states)
            return
        room = TrellisMemory(max(0, self._allowed - self._numbers.nbytes) // share, 0, self._files)
        if len(found) < 2 * self._threads:
            # Too few to go round: threads share the ticks.
            machine = CpuDecoder(self._numbers, self._threads)
            for steps in fitting(batch, found, TOGETHER, COMPANY, machine.row_bytes, room):
                self._put(decode(machine, batch, steps, room, self._folder), batch, steps, states)
        else:
            self._decode_in_threads(batch, found, states, room)

    def _decode_in_threads(
        self, batch: SequenceBatch, found: npt.NDArray[np.int64], states: npt.NDArray[Any], room: TrellisMemory
    ) -> None:
        machine, each = (
            CpuDecoder(self._numbers),
            TrellisMemory(room.here // self._threads, 0, room.disk // self._threads),
        )
        # Every thread gets as many groups, of whole tiles of four.
        groups = self._threads * -(-len(found) // (TOGETHER * self._threads))
        together = -(-len(found) // groups // 4) * 4
        in_threads(
            lambda steps, _: self._put(decode(machine, batch, steps, each, self._folder), batch, steps, states),
            list(fitting(batch, found, together, COMPANY, machine.row_bytes, each)),
            self._threads,
        )

    def _put(
        self, path: npt.NDArray[np.int32], batch: SequenceBatch, steps: Lockstep, states: npt.NDArray[Any]
    ) -> None:
        states[steps.steps(batch.starts, 0, steps.ticks - 1)] = path

    def _on_gpu(self, steps: int) -> bool:
        if self.options.device != "auto":
            return self.options.device == "gpu"
        if steps * _entries(self.model) < DEVICE_TERMS or not has_gpu():
            return False
        try:
            return self._smoother.on_gpu(self._limits) if self.kind == "posteriors" else self._gpu is not None
        except (BudgetError, DeviceError) as error:
            logger.warning("not on the GPU: %s", error)
            return False

    def _refuse_other_kind(self, batch: SequenceBatch) -> None:
        if batch.symbols is not None and self.model.emission is None:
            raise EvidenceError("the model has no emissions: its sequences have to bring log-likelihoods")


def log_probabilities(
    model: HiddenMarkovModel, batch: SequenceBatch, states: npt.NDArray[Any]
) -> npt.NDArray[np.float64]:
    """Return log P(path, sequence) of each sequence of a batch, in double precision; 0 for an empty one."""
    inner = np.ones(len(states), np.bool_)
    firsts = batch.starts[:-1][batch.lengths > 0]
    inner[firsts] = False
    transition = model.transition
    terms = np.empty(len(states))
    terms[firsts] = logarithms(model.start[states[firsts]])
    later = np.flatnonzero(inner)
    before, after = states[later - 1], states[later]
    if isinstance(transition, SparseMatrix):
        terms[later] = logarithms(transition.at(before, after))
    else:
        terms[later] = logarithms(transition[before, after])
    terms += _emitted(model, batch, states)
    sums = np.zeros(len(batch))
    if len(firsts):
        sums[batch.lengths > 0] = np.add.reduceat(terms, firsts)
    return sums


def _emitted(model: HiddenMarkovModel, batch: SequenceBatch, states: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    if batch.symbols is None:
        assert batch.likelihoods is not None
        emitted: npt.NDArray[np.float64] = batch.likelihoods[np.arange(len(states)), states]
        return emitted
    assert model.emission is not None
    observed = batch.symbols >= 0
    found = logarithms(model.emission[states, np.where(observed, batch.symbols, 0)])
    return np.where(observed, found, 0.0)


def _entries(model: HiddenMarkovModel) -> int:
    return len(model.transition.values) if isinstance(model.transition, SparseMatrix) else model.transition.size
