"""Rows of a batch answered by a circuit, block by block, in doubles or, where these lose too much, in logarithms.

Main class: CircuitProgram.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from junctor_kernels.circuits import evaluate
from junctor_kernels.circuits.evaluate import CASES, CircuitAnswers, CircuitEvidence
from junctor_kernels.circuits.explain import explain_case
from junctor_kernels.circuits.gpu import Layers, layers_of

from junctor.backends.impossible_answers import leave_impossible
from junctor.circuits.compile import Circuit, first_indicators
from junctor.circuits.on_gpu import IN_FLIGHT, GpuCircuit, GpuTargets
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch, Rows
from junctor.model.answers import OK, Answers
from junctor.model.network import Network
from junctor.runtime.threads import in_threads

if TYPE_CHECKING:
    from junctor_kernels.gpu.blocks import BlockDevice

Floats = npt.NDArray[np.float64]
logger = logging.getLogger("junctor")

# Share of a root that may be lost where numbers are too small: posteriors keep twelve digits and more.
MOST_LOST = 1e-14
# The smallest positive double, and likelihoods, of which the largest is 1, that are small enough to lose digits.
SMALLEST, SMALL = 5e-324, 1e-250
# Rows of a task: their evidence is gathered at once.
TASK_ROWS = 1024


class CircuitProgram:
    """A circuit ready to answer rows; safe between threads.

    network: whose circuit it is.
    circuit: some states may be fixed in it, which all rows observe.
    """

    def __init__(self, network: Network, circuit: Circuit) -> None:
        self.network = network
        self.circuit = circuit
        starts = first_indicators(network)
        numbers = circuit.flat.indicators
        # A number that stands for no state is always 1.
        self._variables = np.searchsorted(starts, numbers, side="right").astype(np.int64) - 1
        self._numbers = (numbers - starts[self._variables]).astype(np.int32)
        self._places = np.full(int(starts[-1]), -1, dtype=np.int32)
        real = np.flatnonzero(numbers >= 0)
        self._places[numbers[real]] = real
        self._starts = starts
        self._fixed = dict(circuit.fixed)
        self._kept: tuple[tuple[object, ...], GpuCircuit] | None = None

    @cached_property
    def least(self) -> float:
        """The least root that loses no more than it may."""
        lost = float(evaluate.largest(self.circuit.flat, *evaluate.block_memory(self.circuit.flat)))
        return max(SMALLEST * lost / MOST_LOST, 1e-280) if math.isfinite(lost) else math.inf

    @property
    def nbytes(self) -> int:
        """Bytes of the circuit."""
        return sum(array.nbytes for array in self.circuit.flat)

    @property
    def block_bytes(self) -> int:
        """Bytes of the values and derivatives of a block."""
        return 16 * CASES * len(self.circuit.flat.is_sum)

    def answer(
        self, batch: EvidenceBatch, rows: Rows, answers: Answers, threads: int, device: BlockDevice | None = None
    ) -> None:
        """Write the answers to rows of a batch, all of which observe what is fixed.

        threads: that answer them, or what a GPU leaves.
        device: a GPU to use, if one is; where it has no room the cores answer.
        """
        if self.circuit.log == -math.inf:
            self._leave(rows, answers)
            return
        least = self.least
        if device is not None and math.isfinite(least):
            try:
                on_gpu = self._on_gpu(batch, len(rows), answers, device)
            except (MemoryError, OverflowError) as error:
                logger.warning("the CPU takes over rows of a circuit: %s", error)
            else:
                self._answer_on_gpu(on_gpu, batch, rows, answers, threads)
                return
        parts = [rows[start : start + TASK_ROWS] for start in range(0, len(rows), TASK_ROWS)]
        in_threads(lambda part, _: self._answer_part(batch, part, answers, least), parts, threads)

    def explain(self, batch: EvidenceBatch, rows: Rows, answers: Answers, threads: int) -> None:
        """Write the most probable states of rows of a batch, all of which observe what is fixed."""
        if self.circuit.log == -math.inf:
            self._leave(rows, answers)
            return
        logs = np.log(self.circuit.flat.weights)
        parts = [rows[start : start + TASK_ROWS] for start in range(0, len(rows), TASK_ROWS)]
        in_threads(lambda part, _: self._explain_part(batch, part, answers, logs), parts, threads)

    def _explain_part(self, batch: EvidenceBatch, rows: Rows, answers: Answers, weights: Floats) -> None:
        assert answers.explained is not None
        evidence, scales, _ = self._evidence(batch, rows)
        circuit, variables = self.circuit.flat, self._variables.astype(np.int32)
        values, waiting = np.zeros(len(circuit.is_sum)), np.zeros(len(circuit.children) + 1, dtype=np.int64)
        states, logs = np.zeros(len(self.network.variables), dtype=np.int32), np.zeros(len(rows))
        for v, state in self.circuit.fixed:
            states[v] = state
        for place, row in enumerate(rows.tolist()):
            logs[place] = explain_case(circuit, weights, evidence, place, variables, values, waiting, states)
            answers.explained[:, row] = states[list(answers.targets)]
        self._write(rows, logs, scales, answers)

    def _answer_part(self, batch: EvidenceBatch, rows: Rows, answers: Answers, least: float) -> None:
        evidence, scales, odd = self._evidence(batch, rows)
        found = self._answers(answers, len(rows))
        memory, circuit = evaluate.block_memory(self.circuit.flat), self.circuit.flat
        in_doubles = evidence._replace(likelihoods=np.exp(evidence.likelihoods))
        for start in range(0, len(rows), CASES) if math.isfinite(least) else ():
            evaluate.answer_block(circuit, in_doubles, found, rows, start, least, *memory)
        with np.errstate(divide="ignore"):
            logs = np.log(found.roots)
        for row in np.flatnonzero(odd | ~(found.roots >= least)).tolist():
            evaluate.answer_block_in_logs(circuit, evidence, found, rows, row, *memory)
            logs[row] = found.roots[row]
            if logs[row] > -math.inf:
                self._normalise(int(rows[row]), answers)
        self._write(rows, logs, scales, answers)

    def _answer_on_gpu(
        self, on_gpu: GpuCircuit, batch: EvidenceBatch, rows: Rows, answers: Answers, threads: int
    ) -> None:
        """Write answers by blocks of a GPU; those that numbers may be too small for, and odd ones, in logarithms."""

        def answer(part: Rows, place: int) -> Rows:
            evidence, scales, odd = self._evidence(batch, part)
            roots = on_gpu.answer(evidence._replace(likelihoods=np.exp(evidence.likelihoods)), part, answers, place)
            fine = ~odd & (roots >= self.least)
            self._write(part[fine], np.log(roots[fine]), scales[fine], answers)
            left: Rows = part[~fine]
            return left

        parts = [rows[start : start + on_gpu.cases] for start in range(0, len(rows), on_gpu.cases)]
        left = np.concatenate([rows[:0], *in_threads(answer, parts, IN_FLIGHT)])
        parts = [left[start : start + TASK_ROWS] for start in range(0, len(left), TASK_ROWS)]
        in_threads(lambda part, _: self._answer_part(batch, part, answers, math.inf), parts, threads)

    def _on_gpu(self, batch: EvidenceBatch, rows: int, answers: Answers, device: BlockDevice) -> GpuCircuit:
        """Return the circuit on a GPU, the one of the batch before if that will do; raises MemoryError."""
        soft = sum(self.network.cardinalities[v] for v in batch.likelihoods)
        evidence = len(batch.states.keys() - self._fixed.keys()), soft
        assert answers.memory is not None
        key = device, answers.targets, evidence
        if self._kept is None or self._kept[0] != key or self._kept[1].rows < rows:
            # Its memory goes first.
            self._kept = None
            circuit, dtype = self.circuit.flat, np.dtype(np.float64)
            made = GpuCircuit(circuit, self._layers, self._targets(answers.targets), evidence, dtype, rows, device)
            self._kept = key, made
        return self._kept[1]

    def _targets(self, targets: Sequence[int]) -> GpuTargets:
        """Return which posteriors a GPU writes: those of what is fixed are written apart."""
        sizes = np.array([self.network.cardinalities[v] for v in targets], dtype=np.int64)
        free = np.array([v not in self._fixed for v in targets], dtype=bool)
        here = np.where(free, sizes, 0)
        columns = np.stack([sizes, np.cumsum(sizes) - sizes, np.cumsum(here) - here], axis=1)[free]
        starts = [np.arange(self._starts[v], self._starts[v + 1]) for v in targets if v not in self._fixed]
        states = np.concatenate([np.zeros(0, dtype=np.int64), *starts])
        return GpuTargets(columns.astype(np.int32), self._places[states])

    @cached_property
    def _layers(self) -> Layers:
        return layers_of(self.circuit.flat)

    def _write(self, rows: Rows, logs: Floats, scales: Floats, answers: Answers) -> None:
        """Write status and log P(e) of rows, and the posteriors of what is fixed."""
        possible = logs > -math.inf
        fine = rows[possible]
        answers.status[fine], answers.log_value[fine] = OK, (logs + scales + self.circuit.log)[possible]
        for v in answers.posteriors:
            if v in self._fixed:
                answers.posteriors[v][fine] = np.arange(self.network.cardinalities[v]) == self._fixed[v]
        self._leave(rows[~possible], answers)

    def _normalise(self, row: int, answers: Answers) -> None:
        """Divide posteriors that come from logarithms by their sums: these lose digits where they are large."""
        for v in answers.targets:
            if v not in self._fixed:
                answers.posteriors[v][row] /= answers.posteriors[v][row].sum()

    def _leave(self, rows: Rows, answers: Answers) -> None:
        if rows.size:
            sizes = np.array([self.network.cardinalities[v] for v in answers.posteriors], dtype=np.int64)
            leave_impossible(rows, answers, sizes)

    def _answers(self, answers: Answers, rows: int) -> CircuitAnswers:
        """Return where posteriors go; those of what is fixed are written apart."""
        assert answers.memory is not None
        batch_rows, cards = len(answers.status), self.network.cardinalities
        sizes = np.array([cards[v] for v in answers.targets], dtype=np.int64)
        before = np.cumsum(sizes) - sizes
        targets = np.repeat(np.arange(len(sizes)), sizes)
        numbers = np.arange(int(sizes.sum())) - before[targets]
        free = np.array([v not in self._fixed for v in answers.targets], dtype=bool)[targets]
        firsts = self._starts[np.array(answers.targets, dtype=np.int64)][targets]
        return CircuitAnswers(
            self._places[firsts + numbers][free],
            (before[targets] * batch_rows + numbers)[free],
            sizes[targets][free],
            answers.memory,
            np.zeros(rows),
        )

    def _evidence(self, batch: EvidenceBatch, rows: Rows) -> tuple[CircuitEvidence, Floats, npt.NDArray[np.bool_]]:
        """Return evidence of rows, logarithms that likelihoods were divided by, and rows that doubles cannot hold."""
        observed = [v for v, column in batch.states.items() if v not in self._fixed]
        places = np.full(len(self.network.variables) + 1, -1, dtype=np.int32)
        places[observed] = np.arange(len(observed), dtype=np.int32)
        states = np.full((max(1, len(observed)), len(rows)), UNOBSERVED, dtype=np.int32)
        for place, v in enumerate(observed):
            states[place] = batch.states[v][rows]
        soft, likelihoods = np.full(len(self._places) + 1, -1, dtype=np.int32), list[Floats]()
        scales, odd = np.zeros(len(rows)), np.zeros(len(rows), dtype=bool)
        for v, likelihood in batch.likelihoods.items():
            where, values = likelihood.among(rows)
            if not where.size:
                continue
            with np.errstate(divide="ignore"):
                logs = np.log(values)
            top = logs.max(axis=1, keepdims=True)
            # Of nothing but zeros no scale is to be taken out.
            top[~np.isfinite(top)] = 0.0
            scales[where] += top[:, 0]
            odd[where] |= ((logs - top < math.log(SMALL)) & (values > 0)).any(axis=1)
            table = np.zeros((values.shape[1], len(rows)))
            table[:, where] = (logs - top).T
            first = int(self._starts[v])
            soft[first : first + len(table)] = sum(len(each) for each in likelihoods) + np.arange(len(table))
            likelihoods.append(table)
        tables = np.concatenate(likelihoods) if likelihoods else np.zeros((1, len(rows)))
        found = CircuitEvidence(
            np.where(self._variables < 0, -1, places[self._variables]).astype(np.int32),
            self._numbers,
            states,
            np.where(self._variables < 0, -1, soft[self.circuit.flat.indicators]).astype(np.int32),
            tables,
        )
        return found, scales, odd
