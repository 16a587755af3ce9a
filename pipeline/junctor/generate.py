"""Generated networks and evidence: grids, chains, trees, layered, dynamic and random networks, forward samples.

Called by the command line, tests and benchmarks. Results depend on the seed alone, not on the platform: tables come
from random integers and one division.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from junctor.model.arguments import real, texts, whole
from junctor.model.errors import EvidenceError, ModelError, Place
from junctor.model.network import DraftTable, DraftVariable, Kind, Network, build_network, table_size

if TYPE_CHECKING:
    import pyarrow as pa

# Which variables rows observe: the same set in all rows; that set with cells missing at random; a random set for each.
Pattern = Literal["fixed", "missing", "random"]
# Number of states of all variables, or bounds (inclusive) of a random number for each.
States = int | tuple[int, int]

CASE_ID = "case_id"
# Rows of a block. Each block has its own random stream, so that streamed blocks hold the same rows as one table.
BLOCK_ROWS = 65_536

# Numbers of the independent random streams of one seed.
_STRUCTURE, _SAMPLES, _CELLS = range(3)


def grid(rows: int, columns: int, states: States = 2, seed: int = 0) -> Network:
    """Return a Markov network on a grid: a random potential on every variable and on every pair of neighbours.

    rows, columns: size of the grid; variables are `x_ROW_COLUMN`, the treewidth is the smaller of both.
    states: number of states, or its bounds.
    seed: seed of the tables.
    """
    _at_least(1, rows=rows, columns=columns)
    # One stream in a fixed order: sizes first, then tables.
    rng = _stream(seed, _STRUCTURE)
    cells = [(row, column) for row in range(rows) for column in range(columns)]
    names = {cell: f"x_{cell[0]}_{cell[1]}" for cell in cells}
    scopes: list[tuple[str, ...]] = [(names[cell],) for cell in cells]
    for row, column in cells:
        # Right and down only, so that each pair comes once.
        neighbours = [(row, column + 1), (row + 1, column)]
        scopes += [(names[row, column], names[other]) for other in neighbours if other in names]
    cardinalities = dict(zip(names.values(), _cardinalities(states, len(cells), rng), strict=True))
    tables = [(scope, _random_potential([cardinalities[name] for name in scope], rng)) for scope in scopes]
    return _build(f"grid_{rows}x{columns}", "markov", cardinalities, tables)


def chain(length: int, states: States = 2, seed: int = 0) -> Network:
    """Return a Bayesian network x_0 -> x_1 -> ... of `length` variables with random tables (see `grid`)."""
    _at_least(1, length=length)
    parents: list[list[int]] = [[i - 1] if i else [] for i in range(length)]
    return _random_tables(f"chain_{length}", [f"x_{i}" for i in range(length)], parents, states, 0.0, seed)


def tree(variables: int, states: States = 2, seed: int = 0, window: int | None = None) -> Network:
    """Return a Bayesian network on a random tree: every variable but `x_0` has one parent among those before it.

    variables: number of variables `x_0`, `x_1`, ...
    states: number of states, or its bounds.
    seed: seed of structure and tables.
    window: the parent is among so many variables before the child, which makes deep trees; None for any of them.
    """
    _at_least(1, variables=variables, window=1 if window is None else window)
    rng = _stream(seed, _STRUCTURE)
    children = np.arange(1, variables)
    chosen = rng.integers(0 if window is None else np.maximum(0, children - window), children)
    parents: list[list[int]] = [[], *([parent] for parent in chosen.tolist())]
    return _random_tables(f"tree_{variables}", [f"x_{i}" for i in range(variables)], parents, states, 0.0, seed)


def dynamic(steps: int, width: int, states: States = 2, parents: int = 2, seed: int = 0) -> Network:
    """Return a dynamic Bayesian network unrolled over time: all steps but the first have the same tables.

    steps: number of time steps; variables are `x_STEP_POSITION`.
    width: variables of a step, which bounds the treewidth by twice as much.
    states: number of states of each position, or its bounds.
    parents: most parents of a variable beside itself one step before: variables before it in the same step.
    seed: seed of structure and tables.
    """
    _at_least(1, steps=steps, width=width)
    _at_least(0, parents=parents)
    rng = _stream(seed, _STRUCTURE)
    within = [_some_of(range(position), parents, rng) for position in range(width)]
    sizes = _cardinalities(states, width, rng)
    first = [_random_conditional([sizes[i] for i in (*near, v)], 0.0, rng) for v, near in enumerate(within)]
    later = [_random_conditional([sizes[i] for i in (v, *near, v)], 0.0, rng) for v, near in enumerate(within)]
    names = [[f"x_{step}_{position}" for position in range(width)] for step in range(steps)]
    tables = []
    for step, here in enumerate(names):
        for v, near in enumerate(within):
            before = (names[step - 1][v],) if step else ()
            tables.append(((*before, *(here[i] for i in near), here[v]), later[v] if step else first[v]))
    cardinalities = {name: size for here in names for name, size in zip(here, sizes, strict=True)}
    return _build(f"dynamic_{steps}x{width}", "bayes", cardinalities, tables)


def layered(
    layers: int, width: int, states: States = 2, parents: int = 2, seed: int = 0, reach: int = 1, zeros: float = 0.0
) -> Network:
    """Return a layered Bayesian network: `layers` x `width` variables `x_LAYER_POSITION` with random tables.

    layers, width: number of layers, and of variables in each.
    states: number of states, or its bounds.
    parents: most parents of a variable, all in the layer before it.
    seed: seed of structure and tables.
    reach: most positions between parent and child, so that the treewidth stays near `width`.
    zeros: share of table entries that are 0.
    """
    _at_least(1, layers=layers, width=width)
    _at_least(0, parents=parents, reach=reach)
    rng = _stream(seed, _STRUCTURE)
    chosen: list[list[int]] = []
    for layer in range(layers):
        for position in range(width):
            near = range(max(0, position - reach), min(width, position + reach + 1)) if layer else range(0)
            chosen.append([(layer - 1) * width + i for i in _some_of(near, parents, rng)])
    names = [f"x_{layer}_{position}" for layer in range(layers) for position in range(width)]
    return _random_tables(f"layered_{layers}x{width}", names, chosen, states, zeros, seed)


def random_network(
    variables: int, states: States = (2, 4), parents: int = 3, window: int = 6, seed: int = 0, zeros: float = 0.0
) -> Network:
    """Return a random Bayesian network of `variables` variables `x_0`, `x_1`, ... with random tables.

    variables: number of variables.
    states: number of states, or its bounds.
    parents: most parents of a variable.
    window: parents are among so many variables before it, which bounds the treewidth.
    seed: seed of structure and tables.
    zeros: share of table entries that are 0.
    """
    _at_least(1, variables=variables)
    _at_least(0, parents=parents, window=window)
    rng = _stream(seed, _STRUCTURE)
    chosen = [_some_of(range(max(0, i - window), i), int(rng.integers(0, parents + 1)), rng) for i in range(variables)]
    return _random_tables(f"random_{variables}", [f"x_{i}" for i in range(variables)], chosen, states, zeros, seed)


def hmm(
    steps: int,
    start: npt.ArrayLike,
    transition: npt.ArrayLike,
    emission: npt.ArrayLike,
    states: Sequence[str] | None = None,
    symbols: Sequence[str] | None = None,
) -> Network:
    """Return a hidden Markov model unrolled over `steps` steps: variables `state_1`, `symbol_1`, `state_2`, ...

    steps: number of time steps.
    start: [states], distribution of `state_1`.
    transition: [states, states], a row for each state at the step before.
    emission: [states, symbols].
    states, symbols: names; numbers if not given.
    Raises ModelError for shapes that do not fit each other.
    """
    _at_least(1, steps=steps)
    try:
        first, move, emit = (np.asarray(table, dtype=np.float64) for table in (start, transition, emission))
    except (TypeError, ValueError) as error:
        raise ModelError(f"tables of a hidden Markov model: not arrays of numbers ({error})") from None
    hidden = states if states is not None else [str(i) for i in range(first.size)]
    seen = symbols if symbols is not None else [str(i) for i in range(emit.shape[-1] if emit.ndim else 0)]
    for what, table, shape in (
        ("start", first, (len(hidden),)),
        ("transition", move, (len(hidden), len(hidden))),
        ("emission", emit, (len(hidden), len(seen))),
    ):
        if table.shape != shape:
            raise ModelError(f"{what} of a hidden Markov model: found the shape {table.shape}, expected {shape}")
    place = Place("hmm")
    variables, tables = [], []
    for step in range(1, steps + 1):
        state, symbol = f"state_{step}", f"symbol_{step}"
        variables += [DraftVariable(state, hidden, place), DraftVariable(symbol, seen, place)]
        # Tables are shared by all steps: build_network copies them, so that no step changes another.
        before = (
            DraftTable((f"state_{step - 1}", state), move, place) if step > 1 else DraftTable((state,), first, place)
        )
        tables += [before, DraftTable((state, symbol), emit, place)]
    return build_network(f"hmm_{steps}", "bayes", variables, tables)


def sample(network: Network, rows: int, seed: int = 0) -> npt.NDArray[np.int32]:
    """Return `rows` samples of a Bayesian network, int32 [rows, variables], by forward sampling.

    The first rows do not depend on how many are asked for. Raises ModelError for a Markov network.
    """
    if network.kind != "bayes":
        raise ModelError(
            f"{network.name!r} is a Markov network, which cannot be sampled forward: expected a Bayesian network"
        )
    _at_least(0, rows=rows)
    # Transposed, each variable is contiguous: samples are drawn and columns are built by variable.
    samples = np.empty((len(network.variables), rows), dtype=np.int32)
    for block, first in enumerate(range(0, rows, BLOCK_ROWS)):
        last = min(rows, first + BLOCK_ROWS)
        samples[:, first:last] = _sample_block(network, last - first, seed, block)
    return samples[: len(network.public)].T


def evidence_table(
    network: Network,
    samples: npt.NDArray[np.int32],
    observed: float | Sequence[str] = 0.2,
    pattern: Pattern = "fixed",
    seed: int = 0,
    missing: float = 0.05,
) -> pa.Table:
    """Return samples as an evidence table: `case_id` and a column of state names for each variable that is observed.

    network: the network of the samples.
    samples: int32 [rows, variables].
    observed: share of the variables, picked at random, or names of variables.
    pattern: `fixed` observes the same variables in every row, `missing` leaves out a share `missing` of those cells
        at random (null), `random` picks such a share of the variables anew for each row.
    seed: seed of the choices; fewer rows are a prefix of more.
    missing: share of cells for the pattern `missing`.
    Raises EvidenceError for values out of range and unknown names.
    """
    import pyarrow as pa

    _refuse_others(network, samples)
    blocks = (samples[first : first + BLOCK_ROWS].T for first in range(0, max(len(samples), 1), BLOCK_ROWS))
    return pa.Table.from_batches(record_batches(network, blocks, observed, pattern, seed, missing))


def evidence_batches(
    network: Network,
    rows: int,
    observed: float | Sequence[str] = 0.2,
    pattern: Pattern = "fixed",
    seed: int = 0,
    missing: float = 0.05,
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of `evidence_table(network, sample(network, rows, seed), ...)`, BLOCK_ROWS rows at a time.

    The parameters are those of `evidence_table`. States of a Markov network, which cannot be sampled forward, are
    independent and uniform instead: for timing, not for plausible evidence.
    """
    _at_least(0, rows=rows)
    draw = _sample_block if network.kind == "bayes" else _uniform_block
    starts = enumerate(range(0, max(rows, 1), BLOCK_ROWS))
    blocks = (draw(network, min(rows - first, BLOCK_ROWS), seed, block) for block, first in starts)
    yield from record_batches(network, blocks, observed, pattern, seed, missing)


def record_batches(
    network: Network,
    blocks: Iterable[npt.NDArray[np.int32]],
    observed: float | Sequence[str],
    pattern: Pattern,
    seed: int,
    missing: float,
) -> Iterator[pa.RecordBatch]:
    """Yield blocks of samples, int32 [variables, rows], as the batches of an evidence table.

    The other parameters are those of `evidence_table`; the cells of a block depend on its number and its rows.
    """
    cells, first = _Cells(network, observed, pattern, missing, seed), 0
    for block, samples in enumerate(blocks):
        yield cells.record_batch(samples, block, first)
        first += samples.shape[1]


def _refuse_others(network: Network, samples: npt.NDArray[np.int32]) -> None:
    states = network.cardinalities[: len(network.public)]
    if not isinstance(samples, np.ndarray) or samples.dtype.kind not in "iu" or samples.shape[1:] != (len(states),):
        found = f"{samples.dtype} {samples.shape}" if isinstance(samples, np.ndarray) else type(samples).__name__
        raise EvidenceError(f"found samples {found}, expected an array of whole numbers [rows, {len(states)}]")
    if samples.size and (samples.min() < 0 or (samples.max(axis=0) >= states).any()):
        raise EvidenceError("found a sample that is no state of its variable, expected indices of states, from 0")


class _Cells:
    """The choice of observed cells of an evidence table, and its record batches."""

    def __init__(
        self, network: Network, observed: float | Sequence[str], pattern: Pattern, missing: float, seed: int
    ) -> None:
        if pattern not in ("fixed", "missing", "random"):
            raise EvidenceError(f"found the pattern {pattern!r}, expected 'fixed', 'missing' or 'random'")
        if not 0.0 <= real("missing", missing) <= 1.0:
            raise EvidenceError(f"found missing={missing!r}, expected a share from 0 to 1")
        if pattern == "random" and not isinstance(observed, Real):
            raise EvidenceError("the pattern 'random' picks the variables itself: found names, expected a share")
        if CASE_ID in network.index:
            raise EvidenceError(f"the network has a variable named {CASE_ID!r}, the name of the column of case numbers")
        self.network = network
        self.pattern = pattern
        self.missing = missing
        self.seed = seed
        chosen = _observed_variables(network, observed, seed)
        self.count = len(chosen)
        self.columns = list(range(len(network.public))) if pattern == "random" and chosen else chosen

    def record_batch(self, samples: npt.NDArray[np.int32], block: int, first_case: int) -> pa.RecordBatch:
        """Return samples, int32 [variables, rows], of one block as a record batch."""
        import pyarrow as pa

        rows = samples.shape[1]
        # Dictionary arrays: state names are stored once.
        hidden = self._hidden(rows, block)
        arrays = [pa.array(np.arange(first_case, first_case + rows))]
        for i, variable in enumerate(self.columns):
            codes = pa.array(samples[variable], mask=None if hidden is None else hidden[i])
            arrays.append(pa.DictionaryArray.from_arrays(codes, list(self.network.variables[variable].states)))
        names = [CASE_ID] + [self.network.variables[variable].name for variable in self.columns]
        return pa.record_batch(arrays, names=names)

    def _hidden(self, rows: int, block: int) -> npt.NDArray[np.bool_] | None:
        """Return which cells are null, bool [columns, rows], or None for no cell."""
        if self.pattern == "fixed" or not self.columns:
            return None
        # [rows, columns], so that fewer rows are a prefix of more; transposed afterwards.
        chance = _stream(self.seed, _CELLS, block).random((rows, len(self.columns)))
        if self.pattern == "missing":
            return np.ascontiguousarray(self.missing > chance.T)
        # The `count` smallest numbers of a row are a random set of that size.
        limit = np.partition(chance, self.count - 1, axis=1)[:, self.count - 1]
        return np.ascontiguousarray(limit < chance.T)


def _observed_variables(network: Network, observed: float | Sequence[str], seed: int) -> list[int]:
    if not isinstance(observed, Real):
        return sorted({network.find(name) for name in texts("observed", observed)})
    observed = real("observed", observed)
    if not 0.0 <= observed <= 1.0:
        raise EvidenceError(f"found observed={observed!r}, expected a share from 0 to 1 or names of variables")
    count = round(observed * len(network.public))
    return sorted(int(i) for i in _stream(seed, _CELLS).permutation(len(network.public))[:count])


def _sample_block(network: Network, rows: int, seed: int, block: int) -> npt.NDArray[np.int32]:
    """Return int32 [variables, rows]; each variable has its own random stream, so fewer rows are a prefix of more."""
    samples = np.empty((len(network.variables), rows), dtype=np.int32)
    for variable in parents_first(network):
        *parents, _ = network.factors[variable].scope
        table = network.factors[variable].table
        cumulative = table.cumsum(axis=-1)
        # Divided by its total the last sum is exactly 1, so that rounding never draws trailing states of probability 0.
        cumulative = (cumulative / cumulative[..., -1:]).reshape(-1, table.shape[-1])
        # Row of the table: the configuration of the parents as one number, the last parent fastest.
        row = np.zeros(rows, dtype=np.int64)
        for parent in parents:
            row = row * network.cardinalities[parent] + samples[parent]
        chance = _stream(seed, _SAMPLES, block, variable).random(rows)
        # Inversion: the state is the number of bounds at or below the random number.
        state = np.zeros(rows, dtype=np.int32)
        for bound in cumulative.T[:-1]:
            state += chance >= bound[row]
        samples[variable] = state
    return samples


def _uniform_block(network: Network, rows: int, seed: int, block: int) -> npt.NDArray[np.int32]:
    """Return int32 [variables, rows] of independent uniform states."""
    rng = _stream(seed, _SAMPLES, block)
    bounds = np.array(network.cardinalities)[:, None]
    return rng.integers(0, bounds, size=(len(bounds), rows), dtype=np.int32)


def parents_first(network: Network) -> tuple[int, ...]:
    """Return the variables of a Bayesian network by the longest path from one without parents."""
    depth: dict[int, int] = {}
    for root in range(len(network.variables)):
        # Depth first with an explicit stack: chains of ten thousand variables exceed Python's recursion limit.
        stack = [root]
        while stack:
            waiting = [p for p in network.factors[stack[-1]].scope[:-1] if p not in depth]
            if waiting:
                stack.extend(waiting)
                continue
            v = stack.pop()
            depth[v] = 1 + max((depth[p] for p in network.factors[v].scope[:-1]), default=-1)
    return tuple(sorted(depth, key=lambda v: (depth[v], v)))


def _stream(seed: int, *key: int) -> np.random.Generator:
    """Return the random stream `key` of a seed; streams with different keys are independent."""
    _at_least(0, seed=seed)
    return np.random.default_rng([seed, *key])


def _some_of(candidates: range, count: int, rng: np.random.Generator) -> list[int]:
    picked = rng.permutation(len(candidates))[: min(count, len(candidates))]
    return sorted(candidates[int(i)] for i in picked)


def _cardinalities(states: States, count: int, rng: np.random.Generator) -> list[int]:
    bounds = states if isinstance(states, tuple | list) else (states, states)
    least, most = (whole("states", bound, ModelError) for bound in (bounds if len(bounds) == 2 else (0, 0)))
    if not 1 <= least <= most:
        raise ModelError(f"found states={states!r}, expected a number of states or (least, most), from 1 on")
    return [int(drawn) for drawn in rng.integers(least, most + 1, size=count)]


def _random_tables(
    title: str, names: Sequence[str], parents: Sequence[Sequence[int]], states: States, zeros: float, seed: int
) -> Network:
    """Fill a structure (the parents of each variable) with random conditional tables."""
    if not 0.0 <= real("zeros", zeros, ModelError) < 1.0:
        raise ModelError(f"found zeros={zeros!r}, expected a share from 0 to below 1")
    rng = _stream(seed, _STRUCTURE, 1)
    sizes = _cardinalities(states, len(names), rng)
    scopes = [(*chosen, child) for child, chosen in enumerate(parents)]
    shapes = [tuple(map(sizes.__getitem__, scope)) for scope in scopes]
    # Without zeros all entries are one draw: a long network has many tables, and the same numbers either way.
    conditionals = [_random_conditional(shape, zeros, rng) for shape in shapes] if zeros else _conditionals(shapes, rng)
    listed = [tuple(map(names.__getitem__, scope)) for scope in scopes]
    cardinalities = dict(zip(names, sizes, strict=True))
    return _build(title, "bayes", cardinalities, list(zip(listed, conditionals, strict=True)))


def _conditionals(shapes: Sequence[tuple[int, ...]], rng: np.random.Generator) -> Iterator[npt.NDArray[np.float64]]:
    """Yield a random table of each shape, as `_random_conditional`."""
    ends = np.cumsum([table_size(shape, "a generated table") for shape in shapes])
    drawn = rng.integers(1, 2**16, size=int(ends[-1]))
    weights = drawn * drawn * drawn
    # Rows of all tables, one after the other, each as long as its child has states.
    sizes = np.array([shape[-1] for shape in shapes])
    lengths = np.repeat(sizes, np.diff(ends, prepend=0) // sizes)
    sums = np.add.reduceat(weights, np.cumsum(lengths) - lengths)
    values = weights / np.repeat(sums, lengths)
    for shape, end in zip(shapes, ends.tolist(), strict=True):
        yield values[end - math.prod(shape) : end].reshape(shape)


def _random_conditional(shape: Sequence[int], zeros: float, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Return rows that sum to 1, most of them clearly in favour of one state, as in elicited tables."""
    table_size(shape, "a generated table")
    # From 1 on: no row is all zeros, and no state impossible unless `zeros` asks for it.
    drawn = rng.integers(1, 2**16, size=shape)
    # Cubes of 16-bit integers fit int64, so that they are the same on all platforms.
    weights = drawn * drawn * drawn
    if zeros:
        # The largest weight of a row stays, so that no row is all zeros.
        keep = drawn == drawn.max(axis=-1, keepdims=True)
        weights = np.where(keep | (rng.random(shape) >= zeros), weights, 0)
    # The one division: all before it is integers.
    rows: npt.NDArray[np.float64] = weights / weights.sum(axis=-1, keepdims=True)
    return rows


def _random_potential(shape: Sequence[int], rng: np.random.Generator) -> npt.NDArray[np.float64]:
    table_size(shape, "a generated table")
    return rng.integers(1, 1001, size=shape) / 1000


def _build(
    title: str,
    kind: Kind,
    cardinalities: dict[str, int],
    tables: Sequence[tuple[Sequence[str], npt.NDArray[np.float64]]],
) -> Network:
    place = Place(title)
    states = {count: tuple(map(str, range(count))) for count in set(cardinalities.values())}
    variables = [DraftVariable(name, states[count], place) for name, count in cardinalities.items()]
    return build_network(title, kind, variables, [DraftTable(scope, values, place) for scope, values in tables])


def _at_least(least: int, **sizes: int) -> None:
    for what, size in sizes.items():
        if whole(what, size, ModelError) < least:
            raise ModelError(f"found {what}={size}, expected at least {least}")
