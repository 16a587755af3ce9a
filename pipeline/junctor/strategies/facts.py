"""What is known before rows are answered: network, question, options, prices of devices, plans of patterns.

Main class: Facts. The same arguments give the same plans, whatever was planned before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar

from junctor_kernels.gpu.blocks import room_of

from junctor.backends.joint_table import JointTable, has_joint_table
from junctor.backends.number_formats import chunk_ladder_of, ladder_of
from junctor.backends.plan_memory import PlanMemory
from junctor.backends.prepared_plans import kept_plan
from junctor.cost.dataset import MeasuredDevice
from junctor.cost.figures import Figures, GpuHostFigures
from junctor.cost.model import CostModel, CostModels, cpu_name, gpu_prices, local_cost_models
from junctor.evidence.batch import EvidenceBatch
from junctor.evidence.patterns import PatternGroup, spread
from junctor.model.answers import answer_bytes
from junctor.model.errors import BudgetError
from junctor.model.network import Network
from junctor.model.options import ComputeOptions
from junctor.model.query import Query, answered_names, sampler_of
from junctor.model.simplify import with_links
from junctor.model.strategies import Strategy
from junctor.planning.budget import FOREVER
from junctor.planning.plan import Plan
from junctor.planning.shape import Pattern, Shape, shape_of
from junctor.runtime.cache import user_cache
from junctor.runtime.devices import gpu_at_hand, has_gpu
from junctor.runtime.gc_pause import collector_paused
from junctor.runtime.machine import allowed_memory, spill_folder, usable_cores
from junctor.strategies.exact_budget import ExactBudget, exact_budget
from junctor.strategies.gpu_room import GpuRoom

if TYPE_CHECKING:
    from junctor_kernels.gpu.blocks import BlockDevice

    from junctor.backends.row_trees import RowEngine
    from junctor.backends.row_work import RowWork
    from junctor.circuits.parts import CircuitParts
    from junctor.out_of_core.cluster.workers import WorkerPool
    from junctor.out_of_core.memory_splits import ChunkRoute
    from junctor.runtime.remote import AnyPath
    from junctor.sampling.bounded import BoundedEngine
    from junctor.sampling.engine import SamplingEngine

Key = TypeVar("Key")
Value = TypeVar("Value")
# A plan is made for a pattern and a rounded count of rows.
PlanKey = tuple[Pattern, int]

# Plans, and works of patterns with trees, that are kept for the next batch, which asks for some hundreds of the latter.
KEPT_PLANS = 1024
KEPT_WORK = 512
# Rows of a group that stand for the others with trees of their own.
SAMPLED = 8
# Threads of a batch: each takes Python's lock to begin and to end, which 64 wait for longer than they save over 32.
MOST_THREADS = 32


# Entries of cliques of possible states, for each of all states, up to which plans are made of these: messages of links
# are more operands.
MOST_POSSIBLE = 1 / 2

# Strategies that may use a GPU; all others are of no use to one.
ON_DEVICES = (Strategy.GPU_BLOCKS, Strategy.CHUNKS, Strategy.SAMPLES, Strategy.CIRCUIT)
# Entries of messages for each entry of a factor, about: a plan, which takes time, would tell.
MESSAGES_OF_FACTORS = 15
# Rows in all that are few: calls of so few come again and again, and what is loaded once serves all of them.
FEW_ROWS = 64


@dataclass(eq=False, slots=True)
class PlanStore:
    """What facts of one network and query share: plans, their memory, and what is known of patterns.

    circuits: by what is fixed, observed and asked for: decisions that a search was allowed, and what it found.
    possible: possible states of each variable, none where plans are made with all; None before anybody asks.
    compiling: seconds until code of trees is compiled, 0 where it is there, None before anybody asks.
    budget: of exact answers where rows beyond it are sampled, None before anybody asks.
    budget_file: where the first who comes writes it.
    lock: of whoever plans or looks something up; a thread may choose groups while another one answers.
    """

    plans: dict[PlanKey, Plan] = field(default_factory=dict)
    memories: dict[PlanKey, PlanMemory] = field(default_factory=dict)
    chunk_routes: dict[tuple[object, ...], ChunkRoute | BudgetError] = field(default_factory=dict)
    searched: dict[tuple[object, ...], ChunkRoute] = field(default_factory=dict)
    row_engines: dict[tuple[int, int], RowEngine] = field(default_factory=dict)
    works: dict[Pattern, RowWork] = field(default_factory=dict)
    circuits: dict[tuple[object, ...], tuple[int, CircuitParts | str]] = field(default_factory=dict)
    possible: Sequence[tuple[int, ...]] | None = None
    compiling: float | None = None
    budget: ExactBudget | None = None
    budget_file: AnyPath | None = None
    lock: AbstractContextManager[Any] = field(default_factory=RLock)


def cached(cache: dict[Key, Value], key: Key, most: int, make: Callable[[], Value]) -> Value:
    """Return what a cache has for a key, or make it; the oldest entry of a full cache is dropped."""
    if key not in cache:
        if len(cache) >= most:
            cache.pop(next(iter(cache)))
        cache[key] = make()
    return cache[key]


def rounded(rows: int) -> int:
    """Return a count of rows in steps of four times, so that similar counts make the same plan."""
    return 1 << 2 * ((rows - 1).bit_length() // 2)


class Facts:
    """What is known of one network and query, and plans of its patterns.

    network, query: what is asked.
    options: what the process may use.
    costs: returns the cost models of devices; asked at first need.
    expected_rows: rows of all batches together, 0 where that is not known; it decides what is worth preparing.
    workers: that answer rows in chunks, alone or together.
    gpu: an opened GPU to use instead of the first that the process sees.
    store: plans of other facts of the same network and query.
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
        # Groups of a few rows, by their number and that of all rows to come.
        self.few: dict[tuple[int, int], Sequence[PatternGroup] | None] = {}
        self.allowed = allowed_memory(options)
        # Rows that would take too long are found before others are answered, and sampled.
        self.time_limit = options.time_limit if query.method == "exact" else FOREVER
        self.sampler = lru_cache(partial(_sampler, network, query, replace(options, memory=self.allowed)))
        # Of rows in chunks, whose work is long; of all others, unless more are asked for.
        self.cores = options.threads or usable_cores()
        self.threads = options.threads or min(self.cores, MOST_THREADS)
        self.spill_dir: Path = spill_folder(options.spill_dir)
        self.targets = tuple(network.index[name] for name in answered_names(network, query))
        self.shape: Shape = shape_of(network)
        # Whether rows get the states of a maximum.
        self.explains = query.question.explains
        self.ladder = ladder_of(query)
        self.chunk_ladder = chunk_ladder_of(query)

    @property
    def advice(self) -> str:
        """What makes rows possible that take too long."""
        question = self.query.question
        fewer = "ask for fewer targets, " if question.needs.reads == "targets" else ""
        sampled = ", or sample such rows (--method auto)" if question.is_sampled else ""
        return f"{fewer}give evidence on more variables{sampled}"

    def plan(self, pattern: Pattern, rows: int = 1) -> Plan:
        """Return the plan for `pattern`; the search for its order is longer the more rows will use it.

        What was planned before changes nothing: a run that goes on after an interruption makes the same plans.
        """
        key = self.key(pattern, rows)

        def compiled() -> Plan:
            shape, targets = self.problem(pattern)
            # A search makes millions of small objects, none of which is garbage before its end.
            what = shape, pattern, targets, self.explains, key[1]
            with collector_paused():
                return kept_plan(*what, lambda: _made(*what))

        return cached(self.store.plans, key, KEPT_PLANS, compiled)

    def problem(self, pattern: Pattern) -> tuple[Shape, tuple[int, ...] | None]:
        """Return of what a plan for `pattern` is made: a shape, and the targets, None for all variables."""
        network = self.plan_network(pattern)
        targets = None if self.query.targets is None and network is self.network else self.targets
        return self.shape if network is self.network else shape_of(network), targets

    def plan_network(self, pattern: Pattern) -> Network:
        """Return the network that has the numbers of a plan for `pattern`: without impossible states, if these count.

        Trees find by themselves which states are possible, as circuits do.
        """
        if self.store.possible is None:
            # States of a maximum would need links as well, and are traced by plans of several patterns.
            self.store.possible = () if self.explains else _possible_states(self.network, self.shape)
        if not self.store.possible:
            return self.network
        return with_links(self.network, self.store.possible, pattern.sliced, pattern.weighted.union(self.targets))

    def key(self, pattern: Pattern, rows: int) -> PlanKey:
        """Return the key of the plan for a pattern that so many rows will use."""
        # A search pays in proportion to what a row takes.
        return pattern, rounded(max(1, rows // int(self.gpu_host.gain)) if self.takes_gpu else rows)

    def plan_memory(self, pattern: Pattern, rows: int = 1) -> PlanMemory:
        """Return the memory of the plan for `pattern`."""
        formats, itemsize = len(self.ladder), self.ladder[0].dtype.itemsize
        key, memories = self.key(pattern, rows), self.store.memories

        def made() -> PlanMemory:
            return PlanMemory(self.plan(pattern, rows), formats, itemsize, self.figures)

        return cached(memories, key, KEPT_PLANS, made)

    def fits(self, pattern: Pattern, rows: int = 1) -> bool:
        """Return True if a plan for `pattern` fits the memory, one case at a time."""
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
    def figures(self) -> Figures:
        """What choices weigh: figures of this machine's CPU, or of another one."""
        return self.cpu_costs.figures

    @property
    def compiling(self) -> float:
        """Seconds until code of trees is compiled, 0 where it is there, or nothing that is kept changes a choice.

        All batches of a run are told the same; calls are asked for again until code is there, which the next ones use.
        """
        known = self.store.compiling
        if known is None or (known and self.is_lasting):
            is_there = user_cache().is_off or _is_compiled()
            known = self.store.compiling = 0.0 if is_there else self.figures.loading.compiling
        return known

    @cached_property
    def gpu_host(self) -> GpuHostFigures:
        """What the GPU at hand takes of its host."""
        return self.gpu_costs.figures.gpu_host

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

    # Kept, because every batch asks.
    @cached_property
    def takes_gpu(self) -> bool:
        """True if there is a GPU that this process may use."""
        if self.forced is not None and self.forced not in ON_DEVICES:
            return self.asks_gpu
        return self.asks_gpu or (self.options.device == "auto" and has_gpu())

    @property
    def forced(self) -> Strategy | None:
        """The strategy that is asked for, whatever rows would take in another way."""
        return self.options.strategy

    def reason(self, strategy: Strategy, otherwise: str) -> str:
        """Return why a strategy is taken, for people; otherwise: where nobody asks for it."""
        return f"{strategy.value}: asked for" if strategy is self.forced else otherwise

    @property
    def without_gpu(self) -> Facts:
        """The same of the CPUs alone; what is known of plans and patterns is in one place."""
        if not self.takes_gpu:
            return self
        facts = self._without_gpu
        # They may have been told since.
        facts.expected_rows, facts.is_lasting = self.expected_rows, self.is_lasting
        return facts

    @cached_property
    def _without_gpu(self) -> Facts:
        found = self._with_options(replace(self.options, device="cpu"), self.workers)
        # Samples may be worth a GPU that exact answers are not.
        found.sampler = self.sampler
        return found

    @cached_property
    def within_budget(self) -> Facts:
        """The same of one thread of a CPU with the budget of exact answers: rows that it refuses are sampled."""
        with self.store.lock:
            budget = self.store.budget
            if budget is None:
                options = replace(self.options, memory=self.allowed)
                budget = self.store.budget = exact_budget(options, self.store.budget_file)
        found = self._with_options(budget.options(), None)
        found.time_limit = budget.seconds
        return found

    def _with_options(self, options: ComputeOptions, workers: WorkerPool | None) -> Facts:
        costs = lambda: self.cost_models  # noqa: E731
        return Facts(self.network, self.query, options, costs, self.expected_rows, workers, store=self.store)

    @property
    def asks_gpu(self) -> bool:
        """True if a GPU was asked for, whatever the rows are worth."""
        return self.gpu is not None or self.options.device == "gpu"

    def gpu_room(self) -> GpuRoom:
        """Return the room of the GPU to use, which need not be here."""
        if self.gpu is not None:
            return GpuRoom.of(self.gpu)
        # By the figures of its kind: opening it to ask would take seconds, and `inspect` runs without one.
        return GpuRoom(room_of(self.gpu_costs.device.figures["memory"], self.options.device_memory), True)

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

            self.store.row_engines[key] = RowEngine(self.network, self.targets, *key, self.explains)
        return self.store.row_engines[key]

    @cached_property
    def has_joint_table(self) -> bool:
        """True if the network is small enough for a table of all states together."""
        return has_joint_table(self.network)

    @cached_property
    def joint_table(self) -> JointTable | None:
        """The table of all states together, of a network that is small enough for one."""
        return JointTable(self.network, self.targets) if self.has_joint_table else None

    # Kept, because every batch asks, and networks may have a hundred thousand variables.
    @cached_property
    def answer_bytes(self) -> Callable[[int], int]:
        """Bytes of the answers to so many rows while they are made."""
        return answer_bytes(self.network, self.query)

    @cached_property
    def tree_bytes(self) -> int:
        """Bytes of a thread that answers rows by trees, without messages."""
        from junctor.backends.row_trees import room_bytes

        return room_bytes(self.network, 0)

    def tree_entries(self, batch: EvidenceBatch) -> int:
        """Return the entries that messages of a row's tree may have beside the answers to a batch."""
        allowed = self.beside_answers(batch) - self.tree_bytes
        return (allowed if self.working is None else min(allowed, self.working)) // 8

    def beside_answers(self, batch: EvidenceBatch) -> int:
        """Return the bytes beside the answers to a batch."""
        return self.allowed - self.answer_bytes(batch.rows)

    @cached_property
    def whole(self) -> RowWork:
        """The work of a row that has likelihoods everywhere: no row has more."""
        return self.work(Pattern(frozenset(), frozenset(range(len(self.network.variables)))))

    @property
    def planning(self) -> float:
        """Seconds of a plan for NumPy, which takes a while for each variable, however few the rows."""
        return len(self.network.variables) * self.figures.planning.variable

    @cached_property
    def entries(self) -> int:
        """Entries of all factors."""
        return sum(factor.table.size for factor in self.network.factors)

    def is_heavy(self, rows: int) -> bool:
        """Return True if so many rows take NumPy longer than compiled code takes to load; told without a plan."""
        figures = self.figures
        return rows * MESSAGES_OF_FACTORS * self.entries * figures.numpy.entry > figures.loading.trees

    def are_few(self, batch: EvidenceBatch) -> bool:
        """Return True if all rows to come are known to be few."""
        return 0 < self.expected_rows <= FEW_ROWS and batch.rows <= self.expected_rows and not self.asks_gpu

    @cached_property
    def joint_seconds(self) -> float:
        """The seconds of a row on the joint table."""
        assert self.joint_table is not None
        return self.joint_table.operations * self.figures.numpy.operation

    def to_come(self, batch: EvidenceBatch, rows: int) -> int:
        """Return how many rows like these `rows` of a batch are to come in all batches."""
        return max(rows, rows * self.expected_rows // batch.rows)

    def uses(self, group: PatternGroup, batch: EvidenceBatch) -> int:
        """Return for how many rows the plan of a group is made.

        Rows of one pattern come again with the next batches, and so does a group of all rows, whatever they observe.
        Another group of several is made of what this batch happens to hold, and the next one may well choose other
        loose columns.
        """
        again = group.patterns == 1 or len(group.rows) == batch.answered_count
        return self.to_come(batch, len(group.rows)) if again else len(group.rows)

    def seconds_alone(self, group: PatternGroup, batch: EvidenceBatch) -> float:
        """Return the seconds of a row of a group with a tree of its own; infinite where that is too large."""
        return self.row_engine.seconds_alone(self.works_alone(group, batch), self.figures)

    def works_alone(self, group: PatternGroup, batch: EvidenceBatch) -> list[RowWork]:
        """Return the work of some rows of a group with a tree for each."""
        from junctor.evidence.compiled_cells import evidence_cells

        return self.row_engine.works_alone(evidence_cells(batch), spread(group.rows, SAMPLED))

    def work(self, pattern: Pattern) -> RowWork:
        """Return the work of a pattern's row tree; kept, because forecast, run and next batch ask for much the same."""
        works = self.store.works
        return cached(works, pattern, KEPT_WORK, lambda: self.row_engine.work(pattern.sliced, pattern.weighted))


def _is_compiled() -> bool:
    # Imported here: Numba takes a second to load, and small networks do without.
    from junctor_kernels.row_trees.queue import is_compiled

    return is_compiled()


def _sampler(network: Network, query: Query, options: ComputeOptions) -> SamplingEngine | BoundedEngine:
    # Imported here: exact answers do without compiled code of samples.
    if sampler_of(network, query) == "wmb":
        from junctor.sampling.bounded import BoundedEngine

        return BoundedEngine(network, query, options)
    from junctor.sampling.engine import SamplingEngine

    return SamplingEngine(network, query, options)


def _possible_states(network: Network, shape: Shape) -> Sequence[tuple[int, ...]]:
    """Return the possible states of each variable; none where their cliques are not much smaller, without evidence."""
    kept = network.possible_states
    if kept is None:
        return ()
    # Imported here, as below: most networks have few impossible states.
    from junctor.planning.elimination import CRITERIA, GreedyElimination, moral_graph

    count, narrow = len(kept), tuple(map(len, kept))
    what = moral_graph(count, shape.scopes), frozenset(range(count))
    # The quickest criterion: others take seconds for a thousand variables of large cliques.
    orders = (GreedyElimination(*what, sizes).by(CRITERIA[0]) for sizes in (shape.cardinalities, narrow))
    whole, left = (order.entries for order in orders)
    return kept if left <= MOST_POSSIBLE * whole else ()


def _made(shape: Shape, pattern: Pattern, targets: tuple[int, ...] | None, explain: bool, rows: int) -> Plan:
    # Imported here: plans that are kept, and rows without a plan, do not need it.
    from junctor.planning.compile import compile_plan

    return compile_plan(shape, pattern, targets, explain, rows)
