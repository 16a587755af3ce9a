"""Plans of patterns, their memory, and the devices that they are for: what every decision of a router asks.

Main class: Planner, of which `Grouping`, `ChunkRouting` and at last `Router` are made. The same arguments give the same
plans, whatever was planned before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from junctor_kernels.gpu.blocks import DEVICE_SHARE

from junctor.backends.joint_table import JointTable, has_joint_table
from junctor.backends.kept_orders import KeptOrders
from junctor.backends.kept_plans import KeptPlans
from junctor.backends.number_formats import chunk_ladder_of, ladder_of
from junctor.backends.plan_memory import PlanMemory
from junctor.cost.constants import GPU
from junctor.cost.dataset import MeasuredDevice
from junctor.cost.model import CostModel, CostModels, cpu_name, gpu_prices, local_cost_models
from junctor.model.answers import answer_bytes
from junctor.model.network import Network
from junctor.model.options import ComputeOptions
from junctor.model.query import Query, answered_names
from junctor.model.strategies import Strategy
from junctor.out_of_core.kept_cuts import KeptChunks
from junctor.planning.elimination import keep_orders_in
from junctor.planning.plan import Plan
from junctor.planning.shape import Pattern, Shape, shape_of
from junctor.runtime.cache import user_cache
from junctor.runtime.devices import gpu_at_hand, has_gpu
from junctor.runtime.gc_pause import collector_paused
from junctor.runtime.machine import allowed_memory, spill_folder, usable_cores
from junctor.strategies.plan_store import PlanKey, PlanStore, cached, rounded
from junctor.strategies.strategy import GpuRoom

if TYPE_CHECKING:
    from junctor_kernels.gpu.blocks import BlockDevice

    from junctor.backends.row_trees import RowEngine
    from junctor.backends.row_work import RowWork
    from junctor.out_of_core.cluster.workers import WorkerPool

# Plans, and works of patterns with trees, that are kept for the next batch, which asks for some hundreds of the latter.
KEPT_PLANS = 1024
KEPT_WORK = 512
# Threads of a batch: each takes Python's lock to begin and to end, which 64 wait for longer than they save over 32.
MOST_THREADS = 32


# Strategies that are of no use to a GPU.
_ON_CPUS = (Strategy.JOINT_TABLE, Strategy.ROW_TREES, Strategy.ENTRIES, Strategy.CPU_BLOCKS)


class Planner:
    """Plans patterns of one network and query.

    network, query: what is asked.
    options: what the process may use.
    costs: returns the cost models of devices; asked at first need.
    expected_rows: rows of all batches together, 0 where that is not known; it decides what is worth preparing.
    workers: that answer rows in chunks, alone or together.
    gpu: an opened GPU to use instead of the first that the process sees.
    store: plans of another planner of the same network and query.
    """

    def __init__(
        self,
        network: Network,
        query: Query,
        options: ComputeOptions,
        costs: Callable[[], CostModels] | None = None,
        expected_rows: int = 0,
        workers: WorkerPool | None = None,
        gpu: BlockDevice | None = None,
        store: PlanStore | None = None,
    ) -> None:
        self.network = network
        self.query = query
        self.options = options
        self.expected_rows = expected_rows
        # Whether batches come that nobody has told of, by the API: devices that are opened for one serve the others.
        self.is_lasting = False
        self.workers = workers
        self.gpu = gpu
        self.store = store or PlanStore()
        self._costs = costs
        self.allowed = allowed_memory(options)
        # Of rows in chunks, whose work is long; of all others, unless more are asked for.
        self.cores = options.threads or usable_cores()
        self.threads = options.threads or min(self.cores, MOST_THREADS)
        self.spill_dir: Path = spill_folder(options.spill_dir)
        self.targets = tuple(network.index[name] for name in answered_names(network, query))
        self.shape: Shape = shape_of(network)
        self.ladder = ladder_of(query)
        self.chunk_ladder = chunk_ladder_of(query)
        cache = user_cache()
        keep_orders_in(KeptOrders(cache) if cache.limit else None)
        self._kept_plans = KeptPlans(cache)
        self.kept_chunks = KeptChunks(cache)

    @property
    def advice(self) -> str:
        """What makes rows possible that take too long."""
        if self.query.kind == "mpe":
            return "give evidence on more variables"
        sampling = ", or sample such rows (--method auto)" if self.network.kind == "bayes" else ""
        return f"ask for fewer targets, give evidence on more variables{sampling}"

    def plan(self, pattern: Pattern, rows: int = 1) -> Plan:
        """Return the plan for `pattern`; the search for its order is longer the more rows will use it.

        What was planned before changes nothing: a run that goes on after an interruption makes the same plans.
        """
        key = self.key(pattern, rows)

        def compiled() -> Plan:
            targets = None if self.query.targets is None else self.targets
            # A search makes millions of small objects, none of which is garbage before its end.
            what = pattern, targets, self.query.kind == "mpe", key[1]
            with collector_paused():
                return self._kept_plans.plan(self.network, *what, lambda: _made(self.shape, *what))

        return cached(self.store.plans, key, KEPT_PLANS, compiled)

    def key(self, pattern: Pattern, rows: int) -> PlanKey:
        """Return the key of the plan for a pattern that so many rows will use."""
        # A search pays in proportion to what a row takes.
        return pattern, rounded(max(1, rows // GPU.gain) if self.takes_gpu else rows)

    def plan_memory(self, pattern: Pattern, rows: int = 1) -> PlanMemory:
        """Return the memory of the plan for `pattern`."""
        formats, itemsize = len(self.ladder), self.ladder[0].dtype.itemsize
        key, memories = self.key(pattern, rows), self.store.memories
        return cached(memories, key, KEPT_PLANS, lambda: PlanMemory(self.plan(pattern, rows), formats, itemsize))

    def _fits(self, pattern: Pattern, rows: int = 1) -> bool:
        return self.plan_memory(pattern, rows).fits(self.allowed, self.working)

    @property
    def costs(self) -> CostModel:
        """The cost model of the device that answers, or of the one that is most like it."""
        return self.gpu_costs if self.takes_gpu else self.cpu_costs

    @property
    def gpu_costs(self) -> CostModel:
        """The cost model of the GPU at hand, or of the one that is most like it."""
        at_hand = gpu_at_hand() if self.gpu is None else (self.gpu.name, self.gpu.figures)
        return self.cost_models.gpu(MeasuredDevice(*at_hand))

    @property
    def cpu_costs(self) -> CostModel:
        """The cost model of this machine's CPU, or of another one."""
        return self.cost_models.cpu(cpu_name())

    @cached_property
    def cost_models(self) -> CostModels:
        """The cost models of all devices that were measured."""
        return self._costs() if self._costs is not None else local_cost_models()

    @property
    def row_price(self) -> tuple[float, float]:
        """Seconds of an entry operation and of a table of the row engine's tree, for a row of a plan."""
        return self.costs.coefficients[self.gpu_backend if self.takes_gpu else "cpu"].row

    @property
    def gpu_backend(self) -> str:
        """The name in cost models of what answers many rows on a GPU."""
        return gpu_prices(self.ladder[0], True)

    @property
    def takes_gpu(self) -> bool:
        """True if there is a GPU that this process may use."""
        if self.options.strategy in _ON_CPUS:
            return self.asks_gpu
        return self.asks_gpu or (self.options.device == "auto" and has_gpu())

    def reason(self, strategy: Strategy, otherwise: str) -> str:
        """Return why a strategy is taken, for people; otherwise: where nobody asks for it."""
        return f"{strategy.value}: asked for" if strategy is self.options.strategy else otherwise

    @property
    def asks_gpu(self) -> bool:
        """True if a GPU was asked for, whatever the rows are worth."""
        return self.gpu is not None or self.options.device == "gpu"

    def gpu_room(self) -> GpuRoom:
        """Return the room of the GPU to use, which need not be here."""
        if self.gpu is not None:
            return GpuRoom.of(self.gpu)
        # By the figures of its kind: opening it to ask would take seconds, and `inspect` runs without one.
        room = self.options.device_memory or int(DEVICE_SHARE * self.gpu_costs.device.figures["memory"])
        return GpuRoom(room, True)

    @property
    def working(self) -> int | None:
        """Bytes that tables of a block or a task may take, where these are in this machine's memory."""
        return None if self.takes_gpu else self.options.device_memory

    @property
    def row_engine(self) -> RowEngine:
        """The engine for rows with a tree of their own."""
        # Shared by variants of an engine that differ in other options: it keeps trees of many patterns.
        key = self.allowed, self.threads
        if key not in self.store.row_engines:
            from junctor.backends.row_trees import RowEngine

            self.store.row_engines[key] = RowEngine(self.network, self.targets, *key, self.query.kind == "mpe")
        return self.store.row_engines[key]

    @cached_property
    def joint_table(self) -> JointTable | None:
        """The table of all states together, of a network that is small enough for one."""
        return JointTable(self.network, self.targets) if has_joint_table(self.network) else None

    # Kept, because every batch asks, and networks may have a hundred thousand variables.
    @cached_property
    def answer_bytes(self) -> Callable[[int], int]:
        """Bytes of the answers to so many rows while they are made."""
        return answer_bytes(self.network, self.query)

    @cached_property
    def _room(self) -> int:
        from junctor.backends.row_trees import room_bytes

        return room_bytes(self.network, 0)

    def work(self, pattern: Pattern) -> RowWork:
        """Return the work of a pattern's row tree; kept, because forecast, run and next batch ask for much the same."""
        works = self.store.works
        return cached(works, pattern, KEPT_WORK, lambda: self.row_engine.work(pattern.sliced, pattern.weighted))


def _made(shape: Shape, pattern: Pattern, targets: tuple[int, ...] | None, explain: bool, rows: int) -> Plan:
    # Imported here: plans that are kept, and rows without a plan, do not need it.
    from junctor.planning.compile import compile_plan

    return compile_plan(shape, pattern, targets, explain, rows)
