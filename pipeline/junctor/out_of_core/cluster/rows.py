"""Rows in chunks, or slices of them, that a worker answers whole, by the code of one process.

Each is a task of the scheduler. The worker uses its CPU, its own GPU, or leads: then it uses several GPUs of its
machine, and the workers whose own they are have nothing to do. Only plan, evidence and answer travel. A row is a pure
function of plan and evidence, so the row of a worker that dies is answered again by another one, with the same bytes
whatever GPUs that has.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.tables.reference import Algebra

from junctor.backends.numpy import BlockOutcome, EvidenceBlock
from junctor.model.errors import JunctorError, RunError
from junctor.model.network import Network
from junctor.out_of_core.cluster import machine_gpus
from junctor.out_of_core.memory_splits import ChunkRoute
from junctor.out_of_core.programs import SingleCaseProgram, program_of
from junctor.runtime.dask_cluster import RETRIES, WorkersLostError, next_finished, result_of
from junctor.runtime.devices import check_device, visible_gpus, when_gpu_is_needed
from junctor.runtime.threads import short_gil_switches

if TYPE_CHECKING:
    from distributed import Client, Future

# Rows that a worker has where it uses its own GPU: while it answers one, the next one arrives. Not where one leads:
# Dask would send what waits there to a worker that has nothing to do, which would need the same GPUs.
ROWS_AHEAD = 2


@dataclass(frozen=True, eq=False, slots=True)
class SentPlan:
    """What a worker needs for rows of a plan; key: tells it from others."""

    key: str
    chunking: ChunkRoute
    network: Network
    algebra: Algebra


@dataclass(frozen=True, eq=False, slots=True)
class RowOutcome:
    """What a row has found, its tables in one array: Dask takes 20 ms for as many as a large network has variables.

    of: without its tables.
    shapes: of the posteriors, by variable.
    entries: of all of them, one after the other.
    """

    of: BlockOutcome
    shapes: dict[int, tuple[int, ...]]
    entries: npt.NDArray[Any]

    @classmethod
    def packed(cls, outcome: BlockOutcome) -> RowOutcome:
        """Return what a propagation has found, to be sent."""
        tables = outcome.posteriors
        entries = np.concatenate([table.reshape(-1) for table in tables.values()]) if tables else np.zeros(0)
        return cls(replace(outcome, posteriors={}), {v: table.shape for v, table in tables.items()}, entries)

    def unpacked(self) -> BlockOutcome:
        """Return it as it was."""
        tables, begin = dict[int, npt.NDArray[Any]](), 0
        for variable, shape in self.shapes.items():
            end = begin + math.prod(shape)
            tables[variable], begin = self.entries[begin:end].reshape(shape), end
        return replace(self.of, posteriors=tables)


@dataclass(frozen=True, slots=True)
class _KeptProgram:
    key: str
    gpus: tuple[str, ...]
    program: SingleCaseProgram


# Held by the thread that answers a row. Its program stays for the next row, until another one or process needs memory.
_at_row = threading.Lock()
_kept: _KeptProgram | None = None


def answer_row(plan: SentPlan, gpus: Sequence[str], block: EvidenceBlock) -> RowOutcome | JunctorError:
    """Propagate one case on this machine; the errors of a user are returned, since Dask would try again.

    gpus: names. In place of a single one, or where it does not see them all, this process uses its own GPU.
    """
    try:
        if not plan.chunking.limits.on_gpu:
            with _at_row:
                return RowOutcome.packed(_program(plan, ()).run(block))
        check_device("gpu")
        seen = visible_gpus()
        here = tuple(gpus) if len(gpus) > 1 and set(gpus) <= set(seen) else seen[:1]
        # In this order: who waits for its turn gives its memory back meanwhile.
        with machine_gpus.turn_on(here), _at_row, short_gil_switches():
            outcome = _program(plan, here).run(block)
        return RowOutcome.packed(outcome)
    except JunctorError as error:
        return error


def _program(plan: SentPlan, gpus: tuple[str, ...]) -> SingleCaseProgram:
    """Return the program of a plan on some GPUs, made by the first row that needs it."""
    global _kept
    if _kept is None or (_kept.key, _kept.gpus) != (plan.key, gpus):
        # Its memory first.
        _kept = None
        machine_gpus.held.clear()
        devices = machine_gpus.open_gpus(gpus, plan.chunking.limits.task) if gpus else ()
        program = program_of(plan.chunking, plan.network, plan.algebra, *devices)
        _kept = _KeptProgram(plan.key, gpus, program)
        machine_gpus.held.update(gpus)
    return _kept.program


def forget_program(keys: Collection[str] | None = None) -> None:
    """Release the program of this process, unless a row is at it; keys: of plans, None for any."""
    global _kept
    if _at_row.acquire(blocking=False):
        if _kept is not None and (keys is None or _kept.key in keys):
            _kept = None
            machine_gpus.held.clear()
        _at_row.release()


when_gpu_is_needed(forget_program)


def same(plan: SentPlan) -> SentPlan:
    """Return a plan: a task, so that it goes once to each worker, and again where those that had it died."""
    return plan


class RowProgram:
    """A plan whose rows a worker answers, with some GPUs of its machine; for any number of threads.

    client: of the cluster.
    plan: a `SentPlan` of the cluster.
    worker: address of the one whose own GPU is the first of them.
    gpus: names.
    """

    def __init__(self, client: Client, plan: Future, worker: str, gpus: tuple[str, ...]) -> None:
        self._client, self._plan = client, plan
        self._worker, self._gpus = worker, gpus

    def run(self, block: EvidenceBlock) -> BlockOutcome:
        """Propagate one case; raises RunError where workers die of it, and what the worker raises."""
        finished: queue.SimpleQueue[Future] = queue.SimpleQueue()
        # Another worker where this one is lost.
        future = self._client.submit(
            answer_row,
            self._plan,
            self._gpus,
            block.alone(),
            pure=False,
            retries=RETRIES,
            workers=[self._worker],
            allow_other_workers=True,
        )
        try:
            future.add_done_callback(finished.put)
            next_finished(self._client, finished)
            outcome: RowOutcome = result_of(future, "a row in chunks")
            return outcome.unpacked()
        except WorkersLostError as lost:
            at = f" of {lost.task}, more than once" if lost.task is not None else ", and no other came"
            raise RunError(
                f"the workers of the cluster died{at}: it may need more memory than there is; try a smaller --memory"
            ) from lost
        finally:
            # A row that nobody waits for any more is not begun.
            with suppress(RuntimeError):
                future.release()
