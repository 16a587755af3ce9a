"""Answers to batches of sequences: most probable paths, or log-likelihoods and posteriors of the states.

Main class: SequenceEngine, called by `junctor.hmm.api` and by runs.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from junctor.cost.figures import shipped_figures
from junctor.hmm.blocks import TrellisMemory, fitting
from junctor.hmm.decode import CpuDecoder, Decoder, decode
from junctor.hmm.model import HiddenMarkovModel, SparseMatrix
from junctor.hmm.numbers import PathNumbers, logarithms
from junctor.hmm.observations import observed
from junctor.hmm.packing import EMPTY, Lockstep, SequenceBatch
from junctor.hmm.smooth import GpuLimits, Smoother
from junctor.model.answers import IMPOSSIBLE, INVALID, OK
from junctor.model.errors import BudgetError, DeviceError, EvidenceError
from junctor.model.options import ONE_THREAD, ComputeOptions
from junctor.model.query import Precision
from junctor.planning.budget import row_seconds, too_long
from junctor.runtime.devices import has_gpu, lack_of_memory
from junctor.runtime.machine import allowed_disk, allowed_memory, spill_folder, usable_cores
from junctor.runtime.threads import in_threads

SequenceKind = Literal["viterbi", "posteriors"]
NO_PROBABILITY = "the sequence has probability 0"
# Sequences in lockstep on a CPU: the matrix is read once for all of them.
TOGETHER = 64
# Size of groups that are computed in blocks rather than halved once more.
COMPANY = 8
# Multiply-adds of a batch (transitions times steps) from which a GPU pays for its start.
DEVICE_TERMS = 1 << 36

logger = logging.getLogger("junctor")


@dataclass(frozen=True, eq=False, slots=True)
class SequenceAnswers:
    """Answers to a batch of sequences; those whose status is not OK hold no numbers to be read.

    starts: int64 [sequences + 1], first step of each sequence.
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
    options: memory for rows and posteriors in addition to the model and the sequences, device memory for model and
        rows, disk for rows that exceed the memory.
    """

    # No answer depends on the number of threads or on the device.

    model: HiddenMarkovModel
    kind: SequenceKind = "viterbi"
    precision: Precision = "double"
    options: ComputeOptions = ONE_THREAD

    def answer(self, batch: SequenceBatch) -> SequenceAnswers:
        """Answer a batch. Raises BudgetError where the memory is too small, DiskError, DeviceError."""
        self._refuse_other_kind(batch)
        if (seen := observed(batch, self.model)) is not None:
            return replace(self, model=seen.model_of(self.model)).answer(seen.batch)
        status = np.full(len(batch), OK, np.int8)
        reasons = dict(batch.invalid or {})
        for n in np.flatnonzero(batch.lengths == 0).tolist():
            reasons.setdefault(n, EMPTY)
        status[list(reasons)] = INVALID
        log_value = np.full(len(batch), -np.inf)
        valid = np.flatnonzero(status == OK)
        on_gpu = valid.size > 0 and self._on_gpu(int(batch.lengths[valid].sum()))
        refuse_long(self.model, batch.lengths[valid], self.options, on_gpu)
        # Others may take what was free of the GPU.
        told = lack_of_memory() if on_gpu else nullcontext()
        if self.kind == "viterbi":
            states = np.zeros(int(batch.starts[-1]), np.min_scalar_type(self.model.states - 1))
            with told:
                self._decode(batch, valid, states, on_gpu)
            # Always in double precision, from the path alone: rows of the trellis are rescaled and may be single.
            log_value[valid] = log_probabilities(self.model, batch, states)[valid]
            answers = SequenceAnswers(batch.starts, status, log_value, states, None, reasons)
        else:
            gpu = self._limits if on_gpu else None
            with told:
                posteriors = self._smoother.answer(batch, valid, self._allowed, self._threads, log_value, gpu)
            answers = SequenceAnswers(batch.starts, status, log_value, None, posteriors, reasons)
        # Zeros are true zeros in all formats, so -inf means impossible.
        for n in valid[log_value[valid] == -np.inf].tolist():
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

    def _decode(
        self, batch: SequenceBatch, valid: npt.NDArray[np.int64], states: npt.NDArray[Any], on_gpu: bool
    ) -> None:
        if not len(valid):
            return
        # Log-likelihoods of sequences take as much as the rows.
        share = 1 if batch.likelihoods is None else 2
        together, company, threads = TOGETHER, COMPANY, 1
        if on_gpu:
            machine: Decoder = self._gpu
            together, company = self._gpu.together, self._gpu.company
            room = TrellisMemory(self._gpu.allowed // share, self._allowed, self._files)
        else:
            room = TrellisMemory(max(0, self._allowed - self._numbers.nbytes) // share, 0, self._files)
            # Threads share the ticks of few sequences, and take groups of many: those need no barrier at each tick.
            machine = CpuDecoder(self._numbers, self._threads)
            if len(valid) >= 2 * self._threads:
                machine, threads = CpuDecoder(self._numbers), self._threads
                room = TrellisMemory(room.here // threads, 0, room.disk // threads)
                # As many groups for each thread, of whole tiles of four.
                groups = threads * -(-len(valid) // (TOGETHER * threads))
                together = -(-len(valid) // groups // 4) * 4

        def put_path(steps: Lockstep, _: int) -> None:
            path = decode(machine, batch, steps, room, self._folder)
            states[steps.steps(batch.starts, 0, steps.ticks - 1)] = path

        groups_of_sequences = fitting(batch, valid, together, company, machine.row_bytes, room)
        in_threads(put_path, list(groups_of_sequences), threads)

    def _on_gpu(self, steps: int) -> bool:
        if self.options.device != "auto":
            return self.options.device == "gpu"
        if steps * self.model.entries.size < DEVICE_TERMS or not has_gpu():
            return False
        try:
            return self._smoother.on_gpu(self._limits) if self.kind == "posteriors" else self._gpu is not None
        except (BudgetError, DeviceError) as error:
            # With "auto" the CPU does it as well: the user did not ask for a GPU.
            logger.warning("not on the GPU: %s", error)
            return False

    def _refuse_other_kind(self, batch: SequenceBatch) -> None:
        if batch.symbols is not None and self.model.emission is None:
            raise EvidenceError("the model has no emissions: its sequences have to bring log-likelihoods")


def refuse_long(
    model: HiddenMarkovModel, lengths: npt.NDArray[np.int64], options: ComputeOptions, on_gpu: bool
) -> None:
    """Raise BudgetError where the longest of some sequences is forecast to take longer than allowed."""
    figures = shipped_figures()
    transition = 1 / figures.gpu_rates.transitions if on_gpu else figures.walks.transition
    seconds = int(lengths.max(initial=0)) * model.entries.size * transition
    if seconds > (allowed := row_seconds(options.time_limit)):
        raise too_long(seconds, allowed, f"a sequence of {int(lengths.max()):,} steps", "cut it into shorter ones")


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
    # Terms of impossible steps are -inf, and so is their sum.
    terms += _emitted(model, batch, states)
    sums = np.zeros(len(batch))
    if len(firsts):
        # Sums of whole numbers are exact, and those of what is left are small.
        whole = np.rint(terms, where=terms > -np.inf, out=np.zeros(len(terms)))
        sums[batch.lengths > 0] = np.add.reduceat(whole, firsts) + np.add.reduceat(terms - whole, firsts)
    return sums


def _emitted(model: HiddenMarkovModel, batch: SequenceBatch, states: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    if batch.symbols is None:
        assert batch.likelihoods is not None
        emitted: npt.NDArray[np.float64] = batch.likelihoods[np.arange(len(states)), states]
        return emitted
    assert model.emission is not None
    observed = batch.symbols >= 0
    logs = logarithms(model.emission[states, np.where(observed, batch.symbols, 0)])
    return np.where(observed, logs, 0.0)
