"""Rows of a batch answered by a circuit, block by block, and again in a wider format where numbers lose too much.

Main class: CircuitProgram.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from junctor_kernels.circuits import evaluate
from junctor_kernels.circuits.draws import most_sums, weigh_terms
from junctor_kernels.circuits.evaluate import CircuitAnswers, CircuitEvidence, Parents
from junctor_kernels.circuits.explain import explain_case
from junctor_kernels.circuits.gpu import Layers, layers_of
from junctor_kernels.circuits.nodes import FlatCircuit

from junctor.backends.impossible_answers import leave_impossible
from junctor.circuits.compile import Circuit, first_indicators
from junctor.circuits.draws import CircuitDraws
from junctor.circuits.on_gpu import IN_FLIGHT, GpuCircuit, GpuTargets, gpu_host_bytes
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch, Rows, span_of
from junctor.model.answers import OK, Answers
from junctor.model.network import Network
from junctor.runtime.threads import in_threads, stretches

if TYPE_CHECKING:
    from junctor_kernels.gpu.blocks import BlockDevice

Floats = npt.NDArray[np.float64]
logger = logging.getLogger("junctor")

SINGLE: np.dtype[Any] = np.dtype(np.float32)
DOUBLE: np.dtype[Any] = np.dtype(np.float64)
# Rows of a task at most, and its edges times rows, so that all cores have some: evidence is gathered at once. The first
# rows tell whether a format will do for the others.
TASK_ROWS, TASK_EDGES, PROBED_ROWS = 1024, 1 << 26, 64


class _Format(NamedTuple):
    """Limits of a number format.

    smallest: positive number, and the largest one.
    most_lost: share of a root that may be lost where numbers are too small: posteriors keep all digits but two.
    least: root at the least, whatever may be lost.
    small: likelihoods, of which the largest is 1, that are small enough to lose digits.
    """

    smallest: float
    largest: float
    most_lost: float
    least: float
    small: float


_FORMATS = {
    SINGLE: _Format(1.4e-45, 3e38, 1e-7, 1e-35, 1e-30),
    DOUBLE: _Format(5e-324, 1e308, 1e-14, 1e-280, 1e-250),
}


class BlockMemory:
    """Memory of the blocks of a thread, for one format at a time: of a large circuit it takes as long as a block."""

    def __init__(self) -> None:
        self._held: tuple[npt.NDArray[Any], ...] = ()

    def block(self, circuit: FlatCircuit, dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], ...]:
        """Return values and what nodes hand on, of the block before if that was of the same format."""
        if not self._held or self._held[0].dtype != dtype:
            # That of another one goes first.
            self._held = ()
            self._held = evaluate.block_memory(circuit, dtype)
        return self._held


class CircuitProgram:
    """A circuit ready to answer rows; safe between threads.

    network: whose circuit it is.
    circuit: some states may be fixed in it, which all rows observe.
    targets: whose posteriors it gives; None for all that a batch asks for.
    """

    def __init__(self, network: Network, circuit: Circuit, targets: Collection[int] | None = None) -> None:
        self.network = network
        self.circuit = circuit
        self._own_targets = None if targets is None else frozenset(targets)
        starts = first_indicators(network)
        numbers = circuit.flat.indicators
        # A number that stands for no state is always 1.
        self._variables = np.searchsorted(starts, numbers, side="right").astype(np.int32) - 1
        self._numbers = (numbers - starts[self._variables]).astype(np.int32)
        self._places = np.full(int(starts[-1]), -1, dtype=np.int32)
        real = np.flatnonzero(numbers >= 0)
        self._places[numbers[real]] = real
        self._starts = starts
        self._fixed = dict(circuit.fixed)
        self._flats: dict[np.dtype[Any], tuple[FlatCircuit, Parents]] = {}
        # Circuits on a GPU by format, and what they were made for.
        self._kept: dict[np.dtype[Any], tuple[tuple[object, ...], GpuCircuit]] = {}

    @cached_property
    def least(self) -> dict[np.dtype[Any], float]:
        """The least root that loses no more than it may, by format; inf where numbers may be too large for one."""
        flat, parents = self._flat(DOUBLE)
        bound = float(evaluate.largest(flat, parents, *evaluate.block_memory(flat)))
        # No value is larger than the bound, but what it is a sum of may be.
        most = max(bound, float(flat.weights.max(initial=0.0)))
        return {
            dtype: max(limits.smallest * bound / limits.most_lost, limits.least) if most < limits.largest else math.inf
            for dtype, limits in _FORMATS.items()
        }

    @cached_property
    def smallest(self) -> float:
        """The logarithm of a number that no root of a possible row is below, unless it has soft evidence."""
        return float(evaluate.smallest(self.circuit.flat, np.zeros(len(self.circuit.flat.is_sum))))

    def _flat(self, dtype: np.dtype[Any]) -> tuple[FlatCircuit, Parents]:
        """Return the circuit and its parents with weights in a format."""
        found = self._flats.get(dtype)
        if found is None:
            flat = self.circuit.flat
            flat = flat._replace(weights=flat.weights.astype(dtype, copy=False))
            found = self._flats[dtype] = flat, evaluate.parents_of(flat)
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of the circuit, with the parents of its nodes."""
        return sum(array.nbytes for arrays in self._flat(DOUBLE) for array in arrays)

    @property
    def block_bytes(self) -> int:
        """Bytes of the values and derivatives of a block."""
        return 2 * evaluate.LINE_BYTES * len(self.circuit.flat.is_sum)

    def gpu_host_bytes(self, batch: EvidenceBatch, rows: int) -> int:
        """Return the bytes of the host for rows on their way to a GPU."""
        return gpu_host_bytes(len(batch.states), rows) + 2 * self.nbytes

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
        if device is not None:
            for dtype in self._formats(answers):
                rows = self._answer_on_gpu(device, dtype, batch, rows, answers)
        memories = [BlockMemory() for _ in range(threads)]
        # Whole blocks of the first format.
        parts = self._tasks(rows, evaluate.cases_of((*self._formats(answers), DOUBLE)[0]))
        in_threads(lambda part, place: self._answer_part(batch, part, answers, memories[place]), parts, threads)

    def _tasks(self, rows: Rows, cases: int) -> list[Rows]:
        """Return the rows of each task, in blocks of so many cases."""
        most = min(TASK_ROWS, TASK_EDGES // max(1, self.circuit.edges))
        parts = stretches(-(-len(rows) // cases), 1, max(1, most // cases))
        return [rows[part.start * cases : part.stop * cases] for part in parts]

    def _formats(self, answers: Answers) -> list[np.dtype[Any]]:
        """Return the formats in which rows are answered, one after the other, before logarithms."""
        assert answers.memory is not None
        wanted = [SINGLE, DOUBLE] if answers.memory.dtype == SINGLE else [DOUBLE]
        return [dtype for dtype in wanted if math.isfinite(self.least[dtype])]

    def explain(self, batch: EvidenceBatch, rows: Rows, answers: Answers, threads: int) -> None:
        """Write the most probable states of rows of a batch, all of which observe what is fixed."""
        if self.circuit.log == -math.inf:
            self._leave(rows, answers)
            return
        logs = np.log(self.circuit.flat.weights)
        in_threads(lambda part, _: self._explain_part(batch, part, answers, logs), self._tasks(rows, 1), threads)

    def _explain_part(self, batch: EvidenceBatch, rows: Rows, answers: Answers, weights: Floats) -> None:
        assert answers.explained is not None
        evidence, scales, _ = self._evidence(batch, rows)
        circuit, variables = self.circuit.flat, self._variables
        values, waiting = np.zeros(len(circuit.is_sum)), np.zeros(len(circuit.children) + 1, dtype=np.int64)
        states, logs = np.zeros(len(self.network.variables), dtype=np.int32), np.zeros(len(rows))
        for v, state in self.circuit.fixed:
            states[v] = state
        for place, row in enumerate(rows.tolist()):
            logs[place] = explain_case(circuit, weights, evidence, place, variables, values, waiting, states)
            answers.explained[:, row] = states[list(answers.targets)]
        self._write(rows, logs, scales, answers)

    def retracted(self, batch: EvidenceBatch, rows: Rows, targets: Collection[int]) -> dict[int, Floats]:
        """Return log P(x, e without its evidence on X) of each target X, float64 [rows, states]; possible rows or not.

        targets: of what the circuit tells of; raises ValueError for another.
        Source: Darwiche, A differential approach to inference in Bayesian networks, 2003 (evidence retraction).
        """
        every, found = np.full((len(rows), len(self._places)), -math.inf), dict[int, Floats]()
        for v in targets:
            states = slice(self._starts[v], self._starts[v + 1])
            if self.circuit.log > -math.inf and (self._places[states] < 0).all():
                raise ValueError(f"the circuit tells nothing of {self.network.variables[v].name!r}")
            found[v] = every[:, states]
        if self.circuit.log == -math.inf:
            return found
        told = np.flatnonzero(self._places >= 0)
        evidence, scales, _ = self._evidence(batch, rows)
        values, slopes = np.zeros(len(self.circuit.flat.is_sum)), np.zeros(len(self.circuit.flat.is_sum))
        for place in range(len(rows)):
            evaluate.slopes_in_logs(self.circuit.flat, evidence, place, values, slopes)
            every[place, told] = slopes[self._places[told]] + scales[place] + self.circuit.log
        for v in batch.likelihoods.keys() & found.keys():
            where, likelihoods = batch.likelihoods[v].among(rows)
            # It is not divided by what its own likelihoods were.
            found[v][where] -= _scaled(likelihoods)[1]
        return found

    def draws(self, batch: EvidenceBatch, row: int) -> CircuitDraws | None:
        """Return what draws the states of a row, which observes what is fixed; None where it is impossible."""
        evidence, _, _ = self._evidence(batch, np.array([row]))
        circuit = self.circuit.flat
        bounds = np.zeros(len(circuit.children))
        root = weigh_terms(circuit, evidence, 0, np.zeros(len(circuit.is_sum)), bounds)
        if self.circuit.log + root == -math.inf:
            return None
        cells = circuit, evidence.numbers, self._variables, bounds
        return CircuitDraws(*cells, self._most_sums, len(self.network.variables), self.circuit.fixed)

    @cached_property
    def _most_sums(self) -> int:
        return int(most_sums(self.circuit.flat, np.zeros(len(self.circuit.flat.is_sum), dtype=np.int64)))

    def _answer_part(self, batch: EvidenceBatch, rows: Rows, answers: Answers, memory: BlockMemory) -> None:
        """Write answers to rows in one format after the other; what is left at last, in logarithms."""
        for dtype in self._formats(answers):
            # Most likely the others will not do where the first ones do not; nothing is faster than doubles beyond.
            probed = PROBED_ROWS if dtype == SINGLE else len(rows)
            first, others = self._answer_in(dtype, batch, rows[:probed], answers, memory), rows[probed:]
            if 2 * len(first) <= probed:
                others = self._answer_in(dtype, batch, others, answers, memory)
            rows = np.concatenate([first, others])
        if rows.size:
            self._answer_in_logs(batch, rows, answers)

    def _answer_in(
        self, dtype: np.dtype[Any], batch: EvidenceBatch, rows: Rows, answers: Answers, memory: BlockMemory
    ) -> Rows:
        """Write answers to rows in a format, and return those that are left."""
        if not rows.size:
            return rows
        evidence, scales, odd = self._evidence(batch, rows, dtype)
        found, flat, least = self._answers(answers, len(rows)), self._flat(dtype), self.least[dtype]
        values, slopes = memory.block(flat[0], dtype)
        for start in range(0, len(rows), evaluate.cases_of(dtype)):
            evaluate.answer_block(*flat, evidence, found, rows, start, least, values, slopes)
        return self._write_roots(found.roots, dtype, rows, scales, odd, _is_hard(evidence), answers)

    def _write_roots(
        self,
        roots: Floats,
        dtype: np.dtype[Any],
        rows: Rows,
        scales: Floats,
        odd: npt.NDArray[np.bool_],
        is_hard: bool,
        answers: Answers,
    ) -> Rows:
        """Write status and log P(e) of rows whose posteriors are there, and return those that are left.

        is_hard: whether all evidence is on states.
        """
        fine = ~odd & (roots >= self.least[dtype])
        self._write(rows[fine], np.log(roots[fine]), scales[fine], answers)
        left: Rows = rows[~fine]
        # Where no possible row has so small a root, these are not possible.
        if is_hard and self.smallest > math.log(2 * self.least[dtype]):
            self._leave(left, answers)
            return left[:0]
        return left

    def _answer_in_logs(self, batch: EvidenceBatch, rows: Rows, answers: Answers) -> None:
        evidence, scales, _ = self._evidence(batch, rows)
        found, circuit = self._answers(answers, len(rows)), self.circuit.flat
        memory = np.zeros(len(circuit.is_sum)), np.zeros(len(circuit.is_sum))
        for place in range(len(rows)):
            evaluate.answer_block_in_logs(circuit, evidence, found, rows, place, *memory)
        self._normalise(rows[found.roots > -math.inf], answers)
        self._write(rows, found.roots, scales, answers)

    def _answer_on_gpu(
        self, device: BlockDevice, dtype: np.dtype[Any], batch: EvidenceBatch, rows: Rows, answers: Answers
    ) -> Rows:
        """Write answers to rows in a format by blocks of a GPU, and return those that are left: all without room."""
        if not rows.size:
            return rows
        try:
            on_gpu = self._on_gpu(batch, len(rows), answers, dtype, device)
        except MemoryError as error:
            logger.warning("the CPU takes over rows of a circuit: %s", error)
            return rows

        def answer(part: Rows, place: int) -> Rows:
            evidence, scales, odd = self._evidence(batch, part, dtype, on_gpu.states(place, len(part)))
            roots = on_gpu.answer(evidence, part, answers, place)
            return self._write_roots(roots, dtype, part, scales, odd, _is_hard(evidence), answers)

        parts = [rows[start : start + on_gpu.cases] for start in range(0, len(rows), on_gpu.cases)]
        return np.concatenate(in_threads(answer, parts, IN_FLIGHT))

    def _on_gpu(
        self, batch: EvidenceBatch, rows: int, answers: Answers, dtype: np.dtype[Any], device: BlockDevice
    ) -> GpuCircuit:
        """Return the circuit on a GPU, the one of the batch before if that will do; raises MemoryError."""
        soft = sum(self.network.cardinalities[v] for v in batch.likelihoods)
        evidence = len(batch.states.keys() - self._fixed.keys()), soft
        key, (before, kept) = (device, answers.targets, evidence), self._kept.get(dtype, ((), None))
        if kept is None or before != key or kept.rows < rows:
            # Its memory goes first.
            self._kept.pop(dtype, None)
            targets = self._targets(answers.targets)
            kept = GpuCircuit(*self._flat(dtype), self._layers, targets, evidence, rows, device)
            self._kept[dtype] = key, kept
        return kept

    def _targets(self, targets: Sequence[int]) -> GpuTargets:
        """Return which posteriors a GPU writes: those of what is fixed are written apart."""
        sizes = np.array([self.network.cardinalities[v] for v in targets], dtype=np.int64)
        free = np.array([self._is_free(v) for v in targets], dtype=bool)
        here = np.where(free, sizes, 0)
        columns = np.stack([sizes, np.cumsum(sizes) - sizes, np.cumsum(here) - here], axis=1)[free]
        starts = [np.arange(self._starts[v], self._starts[v + 1]) for v in targets if self._is_free(v)]
        states = np.concatenate([np.zeros(0, dtype=np.int64), *starts])
        return GpuTargets(columns.astype(np.int32), self._places[states])

    @cached_property
    def _layers(self) -> Layers:
        return layers_of(*self._flat(DOUBLE))

    def _write(self, rows: Rows, logs: Floats, scales: Floats, answers: Answers) -> None:
        """Write status and log P(e) of rows, and the posteriors of what is fixed."""
        possible = logs > -math.inf
        fine = rows[possible]
        answers.status[fine], answers.log_value[fine] = OK, (logs + scales + self.circuit.log)[possible]
        for v in answers.posteriors:
            if v in self._fixed:
                answers.posteriors[v][fine] = np.arange(self.network.cardinalities[v]) == self._fixed[v]
        self._leave(rows[~possible], answers)

    def _normalise(self, rows: Rows, answers: Answers) -> None:
        """Divide posteriors that come from logarithms by their sums: these lose digits where they are large."""
        for v in answers.targets:
            if self._is_free(v):
                found = answers.posteriors[v][rows]
                answers.posteriors[v][rows] = found / found.sum(axis=1, keepdims=True)

    def _is_free(self, target: int) -> bool:
        """Return True for a target whose posteriors come from the circuit."""
        return target not in self._fixed and (self._own_targets is None or target in self._own_targets)

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
        free = np.array([self._is_free(v) for v in answers.targets], dtype=bool)[targets]
        firsts = self._starts[np.array(answers.targets, dtype=np.int64)][targets]
        return CircuitAnswers(
            self._places[firsts + numbers][free],
            (before[targets] * batch_rows + numbers)[free],
            sizes[targets][free],
            answers.memory,
            np.zeros(rows),
        )

    def _evidence(
        self,
        batch: EvidenceBatch,
        rows: Rows,
        dtype: np.dtype[Any] | None = None,
        states: npt.NDArray[Any] | None = None,
    ) -> tuple[CircuitEvidence, Floats, npt.NDArray[np.bool_]]:
        """Return evidence of rows, logarithms that likelihoods were divided by, and rows that a format cannot hold.

        dtype: the format; None for logarithms.
        states: memory for states; None for some of its own.
        """
        observed = [v for v, column in batch.states.items() if v not in self._fixed]
        places = np.full(len(self.network.variables) + 1, -1, dtype=np.int32)
        places[observed] = np.arange(len(observed), dtype=np.int32)
        if states is None:
            states = np.full((max(1, len(observed)), len(rows)), UNOBSERVED, dtype=np.int32)
        at = span_of(rows)
        for place, v in enumerate(observed):
            states[place] = batch.states[v][at]
        soft, likelihoods = np.full(len(self._places) + 1, -1, dtype=np.int32), list[Floats]()
        scales, odd = np.zeros(len(rows)), np.zeros(len(rows), dtype=bool)
        for v, likelihood in batch.likelihoods.items():
            where, values = likelihood.among(rows)
            if not where.size:
                continue
            logs, top = _scaled(values)
            scales[where] += top[:, 0]
            if dtype is not None:
                odd[where] |= ((logs < math.log(_FORMATS[dtype].small)) & (values > 0)).any(axis=1)
            table = np.zeros((values.shape[1], len(rows)))
            table[:, where] = logs.T
            first = int(self._starts[v])
            soft[first : first + len(table)] = sum(len(each) for each in likelihoods) + np.arange(len(table))
            likelihoods.append(table)
        tables = np.concatenate(likelihoods) if likelihoods else np.zeros((1, len(rows)))
        found = CircuitEvidence(
            np.where(self._variables < 0, -1, places[self._variables]).astype(np.int32),
            self._numbers,
            states,
            np.where(self._variables < 0, -1, soft[self.circuit.flat.indicators]).astype(np.int32),
            tables if dtype is None else np.exp(tables).astype(dtype, copy=False),
        )
        return found, scales, odd


def _scaled(likelihoods: Floats) -> tuple[Floats, Floats]:
    """Return logarithms of likelihoods divided by the largest of each row, and that of the largest, [rows, 1]."""
    with np.errstate(divide="ignore"):
        logs = np.log(likelihoods)
    top = logs.max(axis=1, keepdims=True)
    # Of nothing but zeros no scale is to be taken out.
    top[~np.isfinite(top)] = 0.0
    return logs - top, top


def _is_hard(evidence: CircuitEvidence) -> bool:
    """Return True if all evidence is on states."""
    return not (evidence.soft >= 0).any()
