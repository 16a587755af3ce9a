"""Stored clique tables: calibrate them once for a case, then ask about any variables that share a clique.

The Hugin architecture of Bistaffa, Farinelli and Bombieri (2014), next to the engine for tables of evidence, which
stores no clique. It is the right one where calibrated clique tables are wanted: joint posteriors within a clique need
no further propagation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.gpu.stored import CliqueDevice
from junctor_kernels.tables.reference import Algebra

from junctor.backends.number_formats import LADDERS
from junctor.cliques.calibrated import CalibratedCliques
from junctor.cliques.device import ResidentExecutor
from junctor.cliques.host import (
    CliqueExecutor,
    CliqueOutcome,
    HostExecutor,
    Initial,
    initial_table,
    kernels_for,
    natural_table,
    projected_bytes,
)
from junctor.cliques.on_gpu import allowed_bytes, opened_device, room_at_hand
from junctor.cliques.parts import Trace, part_seconds
from junctor.cliques.streamed import StreamedExecutor, StreamLayout
from junctor.cliques.streaming_choice import fastest_layout
from junctor.cost.model import cpu_name, local_cost_models
from junctor.cost.stored import gpu_gain, stored_forecast
from junctor.evidence.batch import UNOBSERVED
from junctor.evidence.columns import checked_likelihood
from junctor.evidence.states import UNKNOWN, StateCells, plain_cell
from junctor.model.answers import NO_PROBABILITY
from junctor.model.errors import BudgetError, EvidenceError, JunctorError
from junctor.model.network import Network, Variable
from junctor.model.options import ONE_THREAD, ComputeOptions, PipelineName
from junctor.model.query import Precision, one_of
from junctor.planning.budget import Budget, parse_bytes, too_long
from junctor.planning.cliques import StoredPlan, plan_stored
from junctor.planning.shape import shape_of
from junctor.runtime.machine import allowed_memory, usable_cores

# As a cell of an evidence table: a state by its name or number, or a likelihood of every state.
Said = str | bool | float | None | Sequence[float] | npt.NDArray[np.float64]
Evidence = Mapping[str, Said]


class StoredTree:
    """A network's junction tree with stored clique tables.

    network: whose tables they are.
    precision: numbers to compute with.
    options: memory, device and device memory for the tables; those that exceed a device are streamed through it.
    cases: how many there will be, for the search of a good tree and the choice of a device.
    pipeline: of that streaming, None for what takes least by forecast.
    in_flight: chunks in flight at a time, None likewise.
    chunk: bytes (or "4MiB") of a chunk, None likewise.
    gpu: an opened device to use instead.
    timed: whether `CalibratedCliques.part_seconds` is to be asked; kernels of a GPU are launched one by one then.
    advice: the next move where tables do not fit the memory.
    plan: of the network, where it was made before.

    Raises DeviceError, EvidenceError for names that are not known; and BudgetError, for a device at the first
    propagation, before any table is made.
    """

    def __init__(
        self,
        network: Network,
        precision: Precision = "double",
        options: ComputeOptions = ONE_THREAD,
        *,
        cases: int = 1,
        pipeline: PipelineName | None = None,
        in_flight: int | None = None,
        chunk: int | str | None = None,
        gpu: CliqueDevice | None = None,
        timed: bool = False,
        advice: str = "allow more memory, or ask for posteriors without stored cliques",
        plan: StoredPlan | None = None,
    ) -> None:
        one_of("precision", precision, Precision)
        if pipeline is not None:
            one_of("pipeline", pipeline, PipelineName)
        if in_flight is not None and in_flight < 1:
            raise EvidenceError(f"found {in_flight} chunks in flight, expected 1 or more")
        self.network = network
        # Of whole tables: a family is in a clique.
        self.plan = plan_stored(shape_of(network), cases) if plan is None else plan
        self._ladder = LADDERS[precision]
        self._budget = Budget(allowed_memory(options))
        self._advice = advice
        self._options = options
        # The tables of this machine are checked now, those of a GPU when it says what is free.
        self._device = gpu or opened_device(options, lambda: gpu_is_worth(self.plan, self._ladder[0], options, cases))
        self._trace: Trace | None = [] if timed else None
        self._pipeline = pipeline
        self._in_flight = in_flight
        self._chunk = None if chunk is None else parse_bytes(str(chunk))
        self._executor: tuple[Algebra, CliqueExecutor] | None = None
        # Whether the initial tables outlive a case: not where they became its calibrated ones.
        self._reusable = True
        self._case = 0
        if self._device is None:
            self._check(self._ladder[0], 1)
            if options.time_limit is not None:
                # Tables fit the memory, so that none of them takes a day.
                self._refuse_long(options.time_limit)

    @property
    def executor(self) -> CliqueExecutor | None:
        """What holds the tables: on the host, on a device or streamed through it; None before the first case."""
        return self._executor[1] if self._executor else None

    @property
    def place(self) -> str:
        """Where the tables are, in words; nowhere before the first case."""
        if isinstance(self.executor, StreamedExecutor):
            return self.executor.place
        return "nowhere" if self.executor is None else "in memory" if self._device is None else "on the GPU"

    def propagate(self, evidence: Evidence) -> CalibratedCliques:
        """Calibrate all tables for one case.

        evidence: for each observed variable a state or a likelihood of every state, as in a cell of an evidence table.

        Where a product loses digits, the next wider format does the work again, in the end logarithms, on the CPU.
        The result reads the tables of this tree until the next call; `save` keeps them. Raises ModelError,
        EvidenceError and BudgetError.
        """
        likelihoods = likelihoods_of(self.network, evidence)
        self._case += 1
        for algebra in self._ladder:
            # Nobody else keeps the executor: its tables are gone before those of the next format are made.
            outcome = self._opened(algebra).propagate(likelihoods)
            if not outcome.lost:
                break
        reason = NO_PROBABILITY
        if outcome.log_evidence == -math.inf:
            # Imported where evidence is impossible: with it comes compiled code.
            from junctor.backends.contradictions import reason_of

            reason = reason_of(self.network, likelihoods, self._budget.free - self.projected(algebra, 1))
        return self._result(algebra, outcome, reason)

    def _refuse_long(self, allowed: float) -> None:
        costs = local_cost_models().cpu(cpu_name())
        seconds = stored_forecast(self.plan, frozenset(), self._ladder[0], costs)
        # Small tables have no forecast.
        if seconds is not None and seconds.making + seconds.case > allowed:
            raise too_long(seconds.making + seconds.case, allowed, "the calibration", "give evidence to `junctor run`")

    def projected(self, algebra: Algebra, copies: int) -> int:
        """Return the bytes that `copies` of all tables take on this machine, with messages and the work on them."""
        return projected_bytes(self.plan, algebra, copies)

    def _opened(self, algebra: Algebra) -> CliqueExecutor:
        """Return the executor of a format; the tables of one are in memory at a time."""
        if self._executor is not None and self._executor[0] is algebra and self._reusable:
            return self._executor[1]
        self._executor = None
        device = self._device
        executor = self._on_host(algebra) if device is None else self._on_device(algebra, device)
        self._executor = (algebra, executor)
        return executor

    def _on_host(self, algebra: Algebra) -> CliqueExecutor:
        kernels, in_place = kernels_for(algebra, self.plan.total_entries()), self._must_be_in_place(algebra)
        numbers, trace = range(len(self.plan.cliques)), self._trace
        initial = [initial_table(self.plan, self.network, i, algebra, kernels, trace) for i in numbers]
        return HostExecutor(self.plan, initial, algebra, kernels, in_place, trace=trace)

    def _on_device(self, algebra: Algebra, device: CliqueDevice) -> CliqueExecutor:
        """Return the tables on the device where they fit, else streamed through it."""
        kernels = kernels_for(algebra, self.plan.total_entries())
        allowed = allowed_bytes(self._options, device)
        plan, network = self.plan, self.network
        # One table at a time passes through the host, and separators lie there: no copies of all.
        self._check(algebra, 0)
        self._reusable = True

        def natural(i: int) -> Initial:
            return natural_table(plan, network, i, algebra, kernels)

        try:
            return ResidentExecutor(plan, natural, algebra, device, allowed, self._trace)
        except BudgetError:
            in_place = self._must_be_in_place(algebra)
            layout, pipeline = self.streaming(algebra, allowed, device)

        def pinned(i: int) -> Initial:
            initial = initial_table(plan, network, i, algebra, kernels, self._trace)
            # Only pinned memory is copied while kernels run.
            host = device.host(len(initial.table), initial.table.dtype)
            host[:] = initial.table
            return initial._replace(table=host)

        tables = [pinned(i) for i in range(len(plan.cliques))]
        return StreamedExecutor(plan, tables, algebra, device, layout, pipeline, in_place, self._trace)

    def streaming(self, algebra: Algebra, allowed: int, device: CliqueDevice) -> tuple[StreamLayout, PipelineName]:
        """Return the fastest way through a device that fits the bytes allowed."""
        entries = None if self._chunk is None else max(1, self._chunk // algebra.dtype.itemsize)
        return fastest_layout(self.plan, algebra, allowed, device, self._pipeline, self._in_flight, entries)

    def _must_be_in_place(self, algebra: Algebra) -> bool:
        """Return True if only one copy of the tables fits; the next case then has to make them again."""
        self._check(algebra, 1)
        self._reusable = self.projected(algebra, 2) <= self._budget.free
        return not self._reusable

    def _check(self, algebra: Algebra, copies: int) -> None:
        needed = self.projected(algebra, copies)
        if needed > self._budget.free:
            raise self._budget.refuse(needed, f"storing {len(self.plan.cliques)} cliques", self._advice)

    def _result(self, algebra: Algebra, outcome: CliqueOutcome, reason: str) -> CalibratedCliques:
        case = self._case

        # A result of an earlier case must not answer with the tables of this one.
        def tables() -> CliqueExecutor:
            if self._case != case or self._executor is None:
                raise JunctorError("the tables of this case were replaced by those of a later one; save them before")
            return self._executor[1]

        scopes = tuple(clique.layout for clique in self.plan.cliques)
        return CalibratedCliques(
            self.network.variables,
            scopes,
            lambda i: tables().table(i),
            lambda i, wanted: tables().sums(i, wanted),
            algebra,
            outcome.log_evidence,
            reason,
            lambda: part_seconds(self._trace or [], self._device),
            lambda: self.place,
        )


def gpu_is_worth(plan: StoredPlan, algebra: Algebra, options: ComputeOptions, cases: int = 1) -> bool:
    """Return True if tables take less time on a GPU, which is opened for them, or exceed the memory of this machine."""
    costs, room = local_cost_models().cpu(cpu_name()), room_at_hand(options)
    too_large = projected_bytes(plan, algebra, 1) > allowed_memory(options)
    return too_large or gpu_gain(plan, algebra, costs, usable_cores(), cases, room) > 0


def likelihoods_of(network: Network, evidence: Evidence) -> dict[int, npt.NDArray[np.float64]]:
    """Return the likelihood of every state of each variable with evidence; raises ModelError and EvidenceError."""
    # What is like a mapping, such as a series of pandas, will do.
    if not hasattr(evidence, "items"):
        raise EvidenceError(f"found evidence {evidence!r}, expected a mapping of names, such as {{'smoke': 'yes'}}")
    found = {}
    for name, said in evidence.items():
        variable = network.find(name)
        likelihood = _likelihood(network.variables[variable], said)
        if likelihood is not None:
            found[variable] = likelihood
    return found


def _likelihood(variable: Variable, said: Any) -> npt.NDArray[np.float64] | None:
    """Return the likelihood of the states of a variable, None where it is unobserved; as in evidence tables."""
    expected = f"expected {len(variable.states)} numbers, one for each state"
    try:
        values = np.asarray(plain_cell(said))
    except ValueError:
        raise EvidenceError(f"evidence on {variable.name!r}: found {said}, {expected}") from None
    if values.ndim == 0:
        cells, cell = StateCells(variable), values.item()
        code = cells.code(cell)
        if code == UNKNOWN:
            raise EvidenceError(f"evidence on {variable.name!r}: {cells.reason(cell)}")
        return None if code == UNOBSERVED else np.eye(len(variable.states))[code]
    if values.dtype.kind not in "iuf" or values.shape != (len(variable.states),):
        raise EvidenceError(f"evidence on {variable.name!r}: found {said}, {expected}")
    likelihood = values.astype(np.float64)
    for _, reason in checked_likelihood(np.zeros(1, dtype=np.int64), likelihood[None])[1]:
        raise EvidenceError(f"evidence on {variable.name!r}: {reason}")
    return likelihood
