"""Stored tables of a propagation on the workers of a Dask cluster: which part is where."""

from __future__ import annotations

import math
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from junctor.out_of_core.cluster import tasks
from junctor.out_of_core.cluster.tasks import Array, PartOrigin
from junctor.planning.chunks import ChunkPlan
from junctor.runtime.dask_cluster import RETRIES, result_of

if TYPE_CHECKING:
    from distributed import Client, Future

# Memory files that wait on a worker for what others read next take at most so many times what a task does.
KEPT_TASKS = 4


@dataclass(frozen=True, eq=False, slots=True)
class RemotePart:
    """A part of a table on a worker, as a task made it; `bytes` of it."""

    source: PartOrigin
    future: Future
    worker: str
    bytes: int


class RemoteTables:
    """The stored tables of one propagation on the workers of a cluster, in the parts that tasks made.

    room: bytes that each worker has for them, as long as another one has more.
    bytes: worker -> bytes on it.
    transferred: bytes that were read on other workers than the one where they are.
    machines: worker -> what it has in common with others of one machine.
    """

    def __init__(self, client: Client, chunks: ChunkPlan, itemsize: int, room: float = math.inf) -> None:
        self.client = client
        self.chunks = chunks
        self.itemsize = itemsize
        self.room = room
        # No other propagation of the cluster has the same keys.
        self._name = uuid.uuid4().hex
        # What tasks in flight read of a worker, at the most.
        self._kept = KEPT_TASKS * chunks.working * itemsize
        # Table -> states that the task held constant -> what it made.
        self.parts: dict[int, dict[tuple[int, ...], RemotePart]] = {}
        self.bytes: Counter[str] = Counter()
        self.transferred = 0
        self.machines: dict[str, object] = {}

    def look_around(self) -> None:
        """See which workers are on one machine; those that come later count as if they were on others."""
        self.machines = self.client.run(tasks.machine, on_error="ignore")

    def kept_for(self, owner: str, reader: str) -> int | None:
        """Return the bytes of memory files that a worker may keep for what another one reads, None if that has none."""
        machine = self.machines.get(owner)
        return self._kept if machine is not None and machine == self.machines.get(reader) else None

    def submit(
        self,
        what: str,
        at: Sequence[int | str],
        function: Any,
        *of: Any,
        worker: str | None = None,
        first: bool = False,
    ) -> Future:
        """Start a function on some worker, or on a certain one as long as that is there; `first`: before others."""
        where = {"workers": [worker], "allow_other_workers": True} if worker else {}
        # The same key for the same task: Dask computes it again under that name when a worker is lost.
        key = (f"chunk-{what}-{self._name}", *at)
        return self.client.submit(function, *of, key=key, retries=RETRIES, priority=int(first), **where)

    def keep(self, part: RemotePart) -> None:
        """Note where a part of a stored table is."""
        self.parts.setdefault(part.source.table, {})[tuple(part.source.states.values())] = part
        self.bytes[part.worker] += part.bytes

    def drop(self, table: int) -> None:
        """Forget a table; the workers give it back."""
        for part in self.parts.pop(table).values():
            self.bytes[part.worker] -= part.bytes

    def fetch(self, table: int) -> Array:
        """Return a whole table, as a `ChunkStore` keeps it."""
        parts = self.parts[table].values()
        entries = [result_of(part.future, f"table {table}") for part in parts]
        slices = [(part.source, part.source.slice_of(values, {})) for part, values in zip(parts, entries, strict=True)]
        return tasks.join(slices, {}).reshape(-1)

    def agreeing(self, table: int, states: Mapping[int, int]) -> list[RemotePart]:
        """Return the parts of a table in which something agrees with `states`."""
        parts, sizes = self.parts[table], self.chunks.plan.shape.cardinalities
        # All parts of a table hold the same variables constant: one pass made them.
        constant = next(iter(parts.values())).source.states
        return [parts[key] for key in product(*((states[v],) if v in states else range(sizes[v]) for v in constant))]
