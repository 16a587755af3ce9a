"""Figures of a machine: seconds a count of each kind of work that a choice weighs, one record for each backend.

Fields of a record are the features of its backend, so that a fit of measurements gives the record. What a machine was
not measured for has the figures of the package (`measured/devices.json`), which are read at first need.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints


class NumpyFigures(NamedTuple):
    """Plans in NumPy.

    operation, entry: seconds of an entry operation, and of an entry of a case's tables (maximum, minimum, scale).
    step: seconds a step of a block of cases.
    """

    operation: float
    entry: float
    step: float


class BlockFigures(NamedTuple):
    """Compiled code for plans.

    operation, uncached_operation: seconds an entry operation of blocks, and of one where tables exceed the cache.
    likelihood, copied_likelihood: seconds a cell that becomes a likelihood, and where Python copies columns.
    entries_step: seconds a step of contractions over entries, done in NumPy.
    """

    operation: float
    uncached_operation: float
    likelihood: float
    copied_likelihood: float
    entries_step: float


class TreeFigures(NamedTuple):
    """Rows with a tree of their own.

    operation, entry, table: seconds of an entry operation, an entry of messages and a table with its messages.
    maximum: seconds of an operation of an explanation.
    plan: seconds a table, to plan it and to find possible states.
    asked: seconds to ask for the work of a tree, beside its tables.
    start: the same beside that where a network has zeros; runs are forecast by it, no tree is chosen by it.
    far_entry: seconds an entry beyond the last cache, for the same.
    word: seconds an operation on a word of 64 cases, to find the impossible ones.
    """

    operation: float
    entry: float
    table: float
    maximum: float
    plan: float
    asked: float
    start: float
    far_entry: float
    word: float


class SharedTreeFigures(NamedTuple):
    """Rows that share a tree.

    operation, entry: seconds of a row for an entry operation that is not zero, and an entry of messages.
    mixed_operation, mixed_entry: the same where rows differ in what they observe: they are sorted, messages copied.
    start, table: seconds of a block of rows for such an operation, and for a table with its plan.
    row: seconds a table of each row where rows differ in what they observe; runs are forecast by it.
    """

    operation: float
    entry: float
    mixed_operation: float
    mixed_entry: float
    start: float
    table: float
    row: float


class PlanningFigures(NamedTuple):
    """What is done once for many rows.

    variable: seconds a variable that is left, to plan and bind for NumPy.
    table, entry: seconds a table of a plan and an entry of these, to plan, bind and lower it.
    lowering_step: seconds a step, to lower a plan that is bound.
    cutting_step: seconds a step, to cut a plan for a memory split and to count its work.
    mark: seconds a column of a pattern, to sort patterns by what they observe.
    """

    variable: float
    table: float
    entry: float
    lowering_step: float
    cutting_step: float
    mark: float


class LoadingFigures(NamedTuple):
    """Seconds until code is loaded.

    process: what every run needs: the interpreter, Arrow, compiled code.
    trees, blocks: compiled code of trees, and of plans.
    compiled: work in NumPy from which compiled code is loaded, which a machine may have to compile first.
    compiling: until code of trees is compiled, once on a machine.
    """

    process: float
    trees: float
    blocks: float
    compiled: float
    compiling: float


class Ratios(NamedTuple):
    """Times as long as sums of numbers in double precision.

    numpy_log, blocks_log: logarithms, in NumPy and in compiled blocks.
    blocks_maximum: maxima with their traceback, in compiled blocks.
    """

    numpy_log: float
    blocks_log: float
    blocks_maximum: float


class FileFigures(NamedTuple):
    """Evidence and answers.

    row: seconds a row beside arithmetic.
    cell: seconds a cell of evidence: read, encoded, kept, read again, counted.
    answer_byte, answer_column: seconds a byte of answers and a column of a part: laid out, compressed, written.
    """

    row: float
    cell: float
    answer_byte: float
    answer_column: float


class WalkFigures(NamedTuple):
    """Seconds a variable of a sample, and a transition of a hidden Markov model at a time step.

    bound_entry, bound_draw: of an entry of mini-buckets, with all passes, and of a variable of a sample from them.
    """

    draw: float
    transition: float
    bound_entry: float
    bound_draw: float


class CircuitFigures(NamedTuple):
    """Circuits.

    edge, far_edge: seconds of an edge of a row, up and down, where a block is in the last cache and where it is not.
    row: of a row with a circuit of its own.
    decision: of a decision of a search, all orders together.
    """

    edge: float
    far_edge: float
    row: float
    decision: float


class WorkerFigures(NamedTuple):
    """Rows over workers. task: seconds a task of client and scheduler."""

    task: float


class GpuHostFigures(NamedTuple):
    """What a GPU takes of its host, seconds unless said otherwise.

    start: until it is ready, with a process of its own. ready: that a run is longer, beside those of its rows.
    opening: until one beside the first answers rows in chunks.
    plan_table, plan_entry, likelihood: of a table and an entry, to plan and lower them, and of a cell.
    group: of a group of rows with its own plan, while nothing is computed.
    pinned_byte: of a byte of memory that is pinned.
    launch, copy: of the driver, for a launch and a copy from another GPU.
    chunk_launch, chunk_copy, chunk_pass: of tasks in chunks. stream_launch, stream_copy: of streamed clique tables.
    held: times as long as a row's host that rows beside it wait for Python's lock and the driver's.
    cores: cores beside it that answer rows with trees as one each would.
    gain: rows that it answers in the time of one on a core.
    """

    start: float
    ready: float
    opening: float
    plan_table: float
    plan_entry: float
    likelihood: float
    group: float
    pinned_byte: float
    launch: float
    copy: float
    chunk_launch: float
    chunk_copy: float
    chunk_pass: float
    stream_launch: float
    stream_copy: float
    held: float
    cores: float
    gain: float


class GpuRates(NamedTuple):
    """Rates of a GPU and its links, bytes a second unless said otherwise.

    bus, bus_both_ways: copies of pinned memory, one way, and both ways together.
    answers: what a kernel writes to the host while a block is computed.
    link, link_copy, link_rows: kernels on another GPU's memory, a copy of one run from there, copies of rows.
    copy: a plain copy, read and written. kernel: what contractions touch. loads: their loads a second.
    transitions: transitions of hidden Markov models times time steps, a second. edges: of circuits, times cases.
    """

    bus: float
    bus_both_ways: float
    answers: float
    link: float
    link_copy: float
    link_rows: float
    copy: float
    kernel: float
    loads: float
    transitions: float
    edges: float


@dataclass(frozen=True, slots=True)
class Figures:
    """All figures of a machine; a field is named as its backend."""

    numpy: NumpyFigures
    blocks: BlockFigures
    trees: TreeFigures
    shared_trees: SharedTreeFigures
    planning: PlanningFigures
    loading: LoadingFigures
    ratios: Ratios
    files: FileFigures
    walks: WalkFigures
    circuits: CircuitFigures
    workers: WorkerFigures
    gpu_host: GpuHostFigures
    gpu_rates: GpuRates


# Record of each backend; fields are features.
RECORDS: dict[str, Any] = {name.replace("_", " "): record for name, record in get_type_hints(Figures).items()}


def figures_of(known: Mapping[str, tuple[float, ...]]) -> Figures:
    """Return the figures of a machine; known: by backend, in the order of its record, where it is not the package's."""
    seconds = {**shipped_seconds(""), **known}
    return Figures(*(record(*seconds[backend]) for backend, record in RECORDS.items()))


@cache
def shipped_figures() -> Figures:
    """Return the figures of the package, those of the first device that has them."""
    return figures_of({})


@cache
def shipped_devices() -> tuple[dict[str, Any], ...]:
    """Return the devices of the package, each with its name, figures, the file of its measurements, and seconds."""
    content: list[dict[str, Any]] = json.loads((shipped() / "devices.json").read_text())
    return tuple(content)


def shipped() -> Path:
    """Return the folder of measurements that are part of the package."""
    return Path(__file__).parent / "measured"


def shipped_seconds(device: str) -> dict[str, tuple[float, ...]]:
    """Return the figures of a device by backend, those of the first device of the package where it has none."""
    own = [entry for entry in shipped_devices() if entry["name"] == device]
    return {
        backend: tuple(seconds[name] for name in RECORDS[backend]._fields)
        for entry in (*reversed(shipped_devices()), *own)
        for backend, seconds in entry["seconds"].items()
    }
