"""Expected counts on a GPU: a group of sequences at a time, bit by bit those of the CPU.

Main class: GpuCounter, for `SequenceCounter`. Forward and backward rows of a group stay on the device, and become the
operands of products of matrices there; only sums come to the host, when all groups are done.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from junctor_kernels.gpu.device import address_of
from junctor_kernels.hmm import counts_gpu
from junctor_kernels.hmm.counts_cpu import SequenceSums
from junctor_kernels.hmm.counts_gpu import PROGRAM
from junctor_kernels.hmm.device import SIDE, SequenceLaunch

from junctor.hmm.blocks import TickBlock
from junctor.hmm.emissions import emission_indices
from junctor.hmm.model import HiddenMarkovModel, SparseMatrix
from junctor.hmm.packing import Lockstep, SequenceBatch
from junctor.hmm.smooth_gpu import GpuSmoother, SequencePass
from junctor.model.errors import BudgetError
from junctor.planning.budget import exact_bytes

Array = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]
# Rows in memory for a row of a group: forward, operands before and behind, posterior, emissions of its own.
ROWS = 5
# Blocks of a launch at the most.
BLOCKS = 1 << 16


class GpuCounter(GpuSmoother):
    """A model, and sums over groups of sequences, on a GPU in double precision.

    Raises BudgetError if they do not fit.
    """

    # memory: bytes of the device, None for a share of the free ones.
    def __init__(self, model: HiddenMarkovModel, memory: int | None, device: Any) -> None:
        super().__init__(model, np.float64, memory, device=device)
        pairs = len(model.entries) if model.sparse else self.stride**2
        self._symbols = model.symbols
        of_sums = 16 * (pairs + (model.symbols + 2) * self.stride)
        self.allowed -= of_sums
        if self.allowed < self.row_bytes:
            raise _too_large(self.needed + of_sums, self.needed + of_sums + self.allowed)
        self._pair_sums = device.put(np.zeros(2 * pairs))
        self._step_sums: Any = None
        self._entries: dict[str, Any] = {}
        if isinstance(model.transition, SparseMatrix):
            rows, columns = model.transition.rows, model.transition.columns
            self._entries = {"entry_rows": device.put(rows.astype(np.int32)), "entry_columns": device.put(columns)}

    def total(
        self, batch: SequenceBatch, weights: Array, groups: list[Lockstep], log_value: Array
    ) -> tuple[SequenceSums, Integers]:
        """Return the sums over groups, and the sequences that lost a number, ascending.

        batch: of the sequences.
        weights: float64 [sequences].
        groups: of sequences in lockstep.
        log_value: written.
        Raises BudgetError if a group does not fit.
        """
        bins = 1 + (0 if batch.symbols is None else self._symbols + 1)
        self._step_sums = self.device.put(np.zeros(2 * bins * self.stride))
        lost = [self._add(batch, weights, steps, log_value) for steps in groups]
        pairs, found = (self.device.get(array, np.empty(len(array))) for array in (self._pair_sums, self._step_sums))
        steps = found.reshape(2, bins, self.stride)
        sums = SequenceSums(steps[:, -1].reshape(-1), pairs, steps[:, :-1].reshape(-1))
        return sums, np.sort(np.concatenate(lost))

    def _add(self, batch: SequenceBatch, weights: Array, steps: Lockstep, log_value: Array) -> Integers:
        """Add the counts of a group, without sequences that lose a number or are impossible; return the former."""
        needed = (ROWS * steps.rows + (steps.ticks + 6) * len(steps.sequences)) * self.row_bytes + 64 * steps.rows
        if needed > self.allowed:
            raise _too_large(self.needed + needed, self.needed + self.allowed)
        counting = CountingPass(self, batch, steps)
        lost = counting.run(weights[steps.sequences], log_value)
        kept = ~lost & (log_value[steps.sequences] > -np.inf)
        if kept.all():
            counting.add(self._pair_sums, self._step_sums, self._entries)
            return steps.sequences[:0]
        again = steps.sequences[lost]
        if not kept.any():
            return again
        del counting
        rest = Lockstep(steps.sequences[kept], steps.lengths[kept])
        return np.concatenate([again, self._add(batch, weights, rest, log_value)])


class RowPlan(NamedTuple):
    """What becomes of the rows of a group, in the order of the CPU: from the last tick back, then by sequence.

    tick, slot: int32 [rows], of each row.
    before, behind: int32 [rows], number of the pair of steps that begins and ends with a row, -1 for none.
    order: int32, rows of each bin, one after the other.
    begins: int64 [bins + 1].
    """

    tick: npt.NDArray[np.int32]
    slot: npt.NDArray[np.int32]
    before: npt.NDArray[np.int32]
    behind: npt.NDArray[np.int32]
    order: npt.NDArray[np.int32]
    begins: Integers

    @property
    def pairs(self) -> int:
        """Number of pairs of steps."""
        return int((self.before >= 0).sum())


def plan_rows(steps: Lockstep, which: npt.NDArray[np.int32], symbols: int) -> RowPlan:
    """Return the plan of a group.

    steps: sequences in lockstep.
    which: int32 [rows], bin of each row.
    symbols: number of these bins, 0 where they are not asked for; one more is that of first steps.
    """
    tick = np.repeat(np.arange(steps.ticks), steps.counts)
    slot = np.arange(steps.rows) - steps.starts[tick]
    back = np.lexsort((slot, -tick))
    goes_on = steps.lengths[slot] > tick + 1
    before = np.full(steps.rows, -1)
    before[back[goes_on[back]]] = np.arange(goes_on.sum())
    behind = np.full(steps.rows, -1)
    behind[steps.starts[tick[goes_on] + 1] + slot[goes_on]] = before[goes_on]
    order, counts = np.arange(len(steps.sequences)), np.zeros(0, np.int64)
    if symbols:
        counts = np.bincount(which, minlength=symbols)
        order = np.concatenate([back[np.argsort(which[back], kind="stable")], order])
    begins = np.cumsum([0, *counts, len(steps.sequences)])
    small = [np.asarray(each, np.int32) for each in (tick, slot, before, behind, order)]
    return RowPlan(small[0], small[1], small[2], small[3], small[4], begins.astype(np.int64))


class CountingPass(SequencePass):
    """Forward and backward pass of a group, all of whose rows stay on the device."""

    def __init__(self, owner: GpuCounter, batch: SequenceBatch, steps: Lockstep) -> None:
        super().__init__(owner, batch, steps, np.empty(0))
        # More than two levels are one for each tick.
        self._levels = 2, max(3, steps.ticks)
        self._sums = self._sums[0], self.room(self._levels[1] * len(steps.sequences))
        self._block = TickBlock(0, steps.ticks - 1, "here")
        where = steps.steps(batch.starts, 0, steps.ticks - 1)
        which = emission_indices(batch, where, len(owner.numbers.emissions) - 1)
        self._plan = plan_rows(steps, which, 0 if batch.symbols is None else len(owner.numbers.emissions))
        self._counting: dict[str, Any] = {}
        self._told: dict[str, int] = {}

    def run(self, weights: Array, log_value: Array) -> npt.NDArray[np.bool_]:
        """Make the operands, and write log P of each sequence; return which of them lost a number, bool [sequences]."""
        device, plan, put = self.device, self._plan, self.device.put
        memory = self.room(self.steps.rows)
        self.advance(memory, self.batch, self.steps, self._block)
        fields, kept = self._launch_back(memory, self._block)
        names = ("tick", "slot", "before", "behind", "order", "begins")
        self._counting = {name: put(getattr(plan, name)) for name in names}
        self._counting |= {"trellis": memory, "sums": self._sums[1], "weights": put(np.ascontiguousarray(weights))}
        self._counting |= {"left": self.room(plan.pairs), "right": self.room(plan.pairs)}
        self._counting |= {"gains": self.room(self.steps.rows), "totals": device.empty(self.steps.rows, np.float64)}
        self._told = {name: fields[name] for name in ("emissions", "which", "states", "stride", "most")}
        self._told |= {"rows": self.steps.rows, "pairs": plan.pairs, "bins": len(plan.begins) - 1, "entry_count": 0}
        self._told |= dict.fromkeys(("pair_sums", "step_sums", "entry_rows", "entry_columns"), 0)
        self._launch("operands", -(-self.steps.rows // (counts_gpu.THREADS // 32)))
        totals: Array = device.get(self._counting["totals"], np.empty(self.steps.rows))
        self._note(totals, self._block)
        del kept
        return self.finish(log_value)

    def add(self, pair_sums: Any, step_sums: Any, entries: dict[str, Any]) -> None:
        """Add the counts of the group to sums of the device; `entries`: states of those of a sparse matrix."""
        self._counting |= {"pair_sums": pair_sums, "step_sums": step_sums, **entries}
        if self._plan.pairs and entries:
            self._told["entry_count"] = len(pair_sums) // 2
            self._launch("entries", -(-self._told["entry_count"] // (counts_gpu.THREADS // 32)))
        elif self._plan.pairs:
            self._launch("many_pairs", (-(-self.stride // (4 * SIDE))) ** 2)
        self._launch("steps", -(-len(step_sums) // 2 // counts_gpu.THREADS))
        # Operands live as long as the launches that read them.
        self.device.synchronize()

    def _launch(self, kernel: str, blocks: int) -> None:
        fields = self._told | {name: address_of(array) for name, array in self._counting.items()}
        self.device.launch(PROGRAM, SequenceLaunch(kernel, 0, 0), fields, max(1, min(blocks, BLOCKS)))


def _too_large(needed: int, allowed: int) -> BudgetError:
    return BudgetError(
        f"expected counts need {exact_bytes(needed)} of the GPU, allowed are {exact_bytes(max(0, allowed))}: raise "
        "--device-memory, or use --device cpu"
    )
