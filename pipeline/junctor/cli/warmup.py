"""`junctor warmup`: compile all kernels now, for the build of an image or before the first run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from junctor.model.strategies import Strategy

if TYPE_CHECKING:
    from junctor.model.network import Network
    from junctor.model.query import Precision, Query, Sampler

Device = Literal["cpu", "gpu"]
# Rows of a batch, and of all batches as far as preparations go: so many are worth a plan in compiled code.
ROWS, TO_COME = 600, 1 << 22
# Less than the tables of the grid take: its rows go in chunks.
SMALL_MEMORY = 24 << 20


def warmup(device: Annotated[Device, typer.Option(help="What runs will use.")] = "cpu") -> None:
    """Compile all kernels for this machine, by answering small networks in all ways there are.

    Compiled code lies in `NUMBA_CACHE_DIR`, beside the installed package, or in the user's cache directory, whichever
    may be written first; runs load it from there, also where they may only read. Kernels of a GPU lie where CuPy keeps
    them (`CUPY_CACHE_DIR`). It takes some minutes, once for each kind of processor.
    """
    from junctor_kernels.cpu.compilation import compilation

    from junctor.runtime.devices import check_device

    check_device(device)
    # Its own lines say so.
    compilation.listener = None
    # Nor does Python run what is to be compiled.
    compilation.patience = 0.0
    started = time.monotonic()
    # Beside a GPU the cores answer what is not worth it.
    for kind in dict.fromkeys(("cpu", device)):
        for name, work in _ways(kind):
            typer.echo(f"  {name}" if kind == device else f"  {name}, on the cores", err=True)
            work()
    seconds = time.monotonic() - started
    typer.echo(f"{compilation.functions:,} functions compiled in {compilation.seconds:.0f} of {seconds:.0f} s")


def _ways(device: Device) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield what to do and its name."""
    from junctor import generate
    from junctor.model.query import Query
    from junctor.model.question import QueryKind

    # The grid is wide, so that a search for its order is worth it.
    network, grid = generate.random_network(60, (2, 3), seed=1), generate.grid(9, 9, 3, seed=1)
    impossible = generate.layered(5, 12, zeros=0.5, seed=1)
    if device == "gpu":
        yield "rows of a plan", _load
    precisions: tuple[Precision, ...] = "double", "single", "log"
    samplers: tuple[Sampler, ...] = "lw", "sis", "ais-bn", "epis-bn"
    for precision in precisions:
        for query in (Query(kind, precision=precision) for kind in get_args(QueryKind)):
            for share in (0.0, 0.05, 0.8):
                yield f"{query.kind}, {precision}, {share:.0%} missing", partial(_answer, network, query, device, share)
            yield f"{query.kind}, {precision}, a wide network", partial(_answer, grid, query, device, 0.0, 20)
            # On the CPU in any case: it contracts tables that no row changes for plans of a GPU, too.
            yield f"{query.kind}, {precision}, one row", partial(_answer, grid, query, "cpu", 0.0, 1, 1)
        query = Query(precision=precision)
        yield f"chunks, {precision}", partial(_answer, grid, query, device, 0.0, 1, 1, SMALL_MEMORY)
        yield f"hidden Markov models, {precision}", partial(_decode, precision, device)
        yield f"impossible rows, {precision}", partial(_answer, impossible, query, device, 0.1)
        yield f"numbers that underflow, {precision}", partial(_answer, _tiny(), query, device, 0.0)
        yield f"stored cliques, {precision}", partial(_keep_cliques, grid, precision)
    for asked in Query(), Query(precision="single"):
        # Of the second network rows underflow in either precision, and go on in logarithms.
        yield f"circuits, {asked.precision}", partial(_circuits, (impossible, _rare()), asked, device)
    yield "circuits, explanations", partial(_circuits, (impossible,), Query("mpe"), "cpu")
    yield "draws from circuits", partial(_draw, impossible)
    for sampler in samplers:
        yield f"sampling, {sampler}", partial(_sample, network, sampler, device)
    yield "contractions over entries", _contract
    yield "learning of networks", partial(_count, impossible, device)
    yield "learning of hidden Markov models", _learn
    yield "choice of trees", partial(_choose, network)
    if device == "gpu":
        yield "evidence of many rows", _look
    yield "a few rows", partial(_answer, network, Query(), "cpu", 0.8, 3, 3)
    yield "orders of long networks", _order


def _load() -> None:
    """Compile what a GPU has for rows of a plan, on all cores: a run would compile what its own plan launches."""
    from itertools import product

    from junctor_kernels.gpu.blocks import MODULES
    from junctor_kernels.gpu.device import CudaDevice, KernelModule

    from junctor.backends.number_formats import GPU_FORMATS
    from junctor.runtime.machine import usable_cores
    from junctor.runtime.threads import in_threads

    def load(task: tuple[KernelModule, str], _: int) -> None:
        kernels, algebra = task
        kernels.load(device, algebra)

    device = CudaDevice()
    in_threads(load, list(product(MODULES, GPU_FORMATS)), usable_cores())


def _answer(
    network: Network,
    query: Query,
    device: Device,
    missing: float,
    rows: int = ROWS,
    to_come: int = TO_COME,
    memory: int | None = None,
    strategy: Strategy | None = None,
) -> None:
    """Answer rows of uniform states, some of them impossible.

    missing: share of the cells of the rows without evidence.
    to_come: rows as far as preparations go.
    memory: bytes, None for those that are free.
    strategy: that all rows go, None for the fastest.
    """
    import numpy as np

    from junctor.engine.engine import Engine
    from junctor.evidence.batch import EvidenceBatch
    from junctor.model.options import ComputeOptions

    rng = np.random.default_rng(1)
    states = {}
    for variable in range(0, len(network.variables), 4):
        column = rng.integers(0, network.cardinalities[variable], rows, dtype=np.int32)
        column[rng.random(rows) < missing] = -1
        states[variable] = column
    options = ComputeOptions(memory=memory, threads=1, device=device, strategy=strategy)
    Engine(network, query, options, expected_rows=to_come).answer(EvidenceBatch(rows, states))


def _contract() -> None:
    """Contract a table in every algebra, as rows in chunks do."""
    import numpy as np
    from junctor_kernels.cpu import entries
    from junctor_kernels.tables.axes import contraction
    from junctor_kernels.tables.reference import ALGEBRAS

    what = contraction(range(8), range(8, 14), [range(14)], dict.fromkeys(range(14), 2))
    for algebra in ALGEBRAS.values():
        entries.reduce(what, [np.ones((1 << 14, 1), algebra.dtype)], algebra)


def _sample(network: Network, sampler: Sampler, device: Device) -> None:
    import junctor

    rows = [{"x_30": network.variables[30].states[0]}] * 2
    junctor.posteriors(network, rows, method="sampling", sampler=sampler, samples=20_000, device=device)


def _keep_cliques(network: Network, precision: Precision) -> None:
    from junctor.cliques.tree import StoredTree

    StoredTree(network, precision).propagate({})


def _circuits(networks: Sequence[Network], query: Query, device: Device) -> None:
    for network in networks:
        _answer(network, query, device, 0.1, strategy=Strategy.CIRCUIT)


def _draw(network: Network) -> None:
    import numpy as np

    from junctor.circuits.compile import compile_circuit
    from junctor.circuits.evaluate import CircuitProgram
    from junctor.circuits.limits import SearchLimits
    from junctor.evidence.batch import EvidenceBatch

    found = compile_circuit(network, {}, set(range(len(network.variables))), SearchLimits())
    assert not isinstance(found, str)
    row = CircuitProgram(network, found).draws(EvidenceBatch(1), 0)
    assert row is not None
    row.draw(np.zeros((1, row.choices)))


def _tiny() -> Network:
    """Return a network whose rows climb to log space: products of its entries underflow."""
    return _made(lambda names: [(pair, [1e-300, 1.0, 1.0, 1e-300]) for pair in pairwise(names)])


def _rare() -> Network:
    """Return a network whose rows circuits answer in logarithms."""
    return _made(lambda names: [((name,), [1e-60, 1.0]) for name in names])


def _made(tables: Callable[[list[str]], list[tuple[tuple[str, ...], list[float]]]]) -> Network:
    from junctor.model.errors import Place
    from junctor.model.network import DraftTable, DraftVariable, build_network

    here, names = Place("warmup"), [f"x_{i}" for i in range(60)]
    variables = [DraftVariable(name, ("a", "b"), here) for name in names]
    drafts = [DraftTable(scope, entries, here) for scope, entries in tables(names)]
    return build_network("tiny", "markov", variables, drafts)


def _decode(precision: Precision, device: Device) -> None:
    import numpy as np

    from junctor import hmm

    rng = np.random.default_rng(1)
    for states, zeros in ((6, 0.0), (40, 0.9)):
        move = np.where(rng.random((states, states)) < zeros, 0.0, rng.random((states, states))) + np.eye(states)
        emit = rng.random((states, 4))
        model = hmm.build_model(
            np.full(states, 1 / states), move / move.sum(1, keepdims=True), emit / emit.sum(1, keepdims=True)
        )
        sequences = [rng.integers(0, 4, length).tolist() for length in (5, 40, 3_000)]
        hmm.viterbi(model, sequences, precision, device=device)
        hmm.posteriors(model, sequences, precision, device=device)


def _count(network: Network, device: Device) -> None:
    """Count families of rows of uniform states, some of them impossible."""
    import numpy as np

    from junctor.evidence.batch import EvidenceBatch
    from junctor.learning.observations import observe, values_of
    from junctor.model.options import ComputeOptions

    rng = np.random.default_rng(1)
    states = {v: rng.integers(-1, count, ROWS, dtype=np.int32) for v, count in enumerate(network.cardinalities)}
    options = ComputeOptions(threads=1, device=device)
    observe(network, [EvidenceBatch(ROWS, states)], options=options).expect(values_of(network))


def _choose(network: Network) -> None:
    from junctor.backends.row_trees import RowEngine

    RowEngine(network, range(len(network.variables)), 1 << 28).savings((), {0: 0.5})


def _look() -> None:
    """Look at more rows than `_answer` has, as for a GPU, and take their states."""
    import numpy as np

    from junctor.backends.evidence_blocks import block_of
    from junctor.evidence.batch import EvidenceBatch
    from junctor.evidence.patterns import LEAST_STEP, MOST_PATTERNS, sampled_patterns
    from junctor.planning.shape import Pattern

    rows = LEAST_STEP * MOST_PATTERNS
    columns = {v: np.zeros(rows, dtype=np.int32) for v in range(4)}
    batch = EvidenceBatch(rows, columns)
    sampled_patterns(batch)
    block = block_of(batch, np.arange(rows), Pattern(frozenset(), frozenset(columns)), (1,) * 4)
    block.copy_to(np.empty((4, rows), dtype=np.int16), {v: v for v in columns}, np.empty((4, rows)), {})


def _learn() -> None:
    from junctor import hmm

    # What the first sequence multiplies leaves the range of double precision: it is counted in logarithms.
    model = hmm.build_model([0.5, 0.5], [[1.0, 0.0], [0.0, 1.0]], [[1e-5, 1e-5, 1 - 2e-5], [0.5, 0.5, 0.0]])
    hmm.learn(model, [[0, 1] * 40 + [2], [0, 1]], max_iterations=1)


def _order() -> None:
    from junctor_kernels.orders.sparse import eliminations

    from junctor.planning.elimination import CRITERIA

    eliminate = eliminations([[1, 3], [0, 2], [1, 3], [0, 2]], [2, 2, 3, 2])
    for criterion in CRITERIA:
        eliminate(criterion, 60.0)
