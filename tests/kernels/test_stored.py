"""What is done to chunks of stored tables: orders of variables, boxes, and the kernels of every backend."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from emulation.nvrtc import compiles
from emulation.stored import EmulatedStored
from hypothesis import example, given
from hypothesis import strategies as st
from junctor.cliques.host import in_layout
from junctor.planning.cliques import StoredClique
from junctor_kernels.cpu import stored as stored_cpu
from junctor_kernels.gpu import stored as stored_gpu
from junctor_kernels.gpu import stored_tasks
from junctor_kernels.gpu.stored import upload_batch
from junctor_kernels.gpu.stored_tasks import SeparatorTable, TaskBatch, swaps_back
from junctor_kernels.tables import stored
from junctor_kernels.tables.permutation import permute, permuted, swapped
from junctor_kernels.tables.reference import DOUBLE, LOG, SINGLE, Algebra
from junctor_kernels.tables.swaps import backwards, swaps_to_front
from junctor_kernels.tables.views import View, boxes, place, view, whole

DEVICES = [
    pytest.param(
        EmulatedStored,
        marks=pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to compile the kernels for the CPU"),
        id="emulated",
    ),
    pytest.param(stored_gpu.CudaCliqueDevice, marks=pytest.mark.gpu, id="cuda"),
]
ON = pytest.mark.parametrize("device", DEVICES)


@pytest.fixture(autouse=True, scope="module")
def _few_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Threads of a block are fibers where the CPU stands for a GPU: have few, and let small tables need several."""
    patch = pytest.MonkeyPatch()
    if not request.config.getoption("--gpu"):
        patch.setattr(stored_tasks, "THREADS", 64)
        patch.setattr(stored_tasks, "TILE", 256)
        patch.setattr(stored_tasks, "BLOCKS", 8)
    yield
    patch.undo()


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    """Sizes of variables, the layout of a table over them, and a separator: some of them, in any order."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    layout = draw(st.permutations(range(len(sizes))))
    separator = draw(st.lists(st.sampled_from(range(len(sizes))), unique=True, max_size=len(sizes)))
    return sizes, list(layout), separator


def test_an_entry_moves_swap_by_swap() -> None:
    # Variables of 2, 3 and 3 states; entry 11 has the digits 1, 0, 2. The first swap makes them 0, 1, 2, which is entry
    # 5; the second one 0, 2, 1, which is entry 5 again.
    swaps, layout = swaps_to_front([0, 1, 2], [1, 2], [2, 3, 3])
    assert layout == [1, 2, 0]
    assert [swapped(11, swaps[0]), permuted(11, swaps)] == [5, 5]
    # Four variables: 11 is 0, 1, 1, 2 in 2, 3, 2, 3 states; then 2, 1, 1, 0 in 3, 3, 2, 2, which is 2 * 12 + 4 + 2 =
    # 30; then 2, 1, 1, 0 in 3, 2, 3, 2, which is 2 * 12 + 6 + 2 = 32.
    swaps, layout = swaps_to_front([0, 1, 2, 3], [3, 2], [2, 3, 2, 3])
    assert layout == [3, 2, 1, 0]
    assert [swapped(11, swaps[0]), permuted(11, swaps)] == [30, 32]


@given(tables())
def test_swaps_are_a_transposition(drawn: tuple[list[int], list[int], list[int]]) -> None:
    sizes, layout, front = drawn
    swaps, after = swaps_to_front(layout, front, sizes)
    assert after[: len(front)] == front
    assert len(swaps) <= len(front)
    shape = [sizes[v] for v in layout]
    table = np.arange(math.prod(shape), dtype=np.float64)
    expected = table.reshape(shape).transpose([layout.index(v) for v in after]).reshape(-1)
    assert np.array_equal(permute(table, swaps), expected)
    assert np.array_equal(permute(permute(table, swaps), backwards(swaps)), table)
    # What is transposed on a CPU.
    node = StoredClique(tuple(layout), tuple(swaps), tuple(after), tuple(front), None, (), (), ())
    assert np.array_equal(in_layout(table, node, sizes), expected)


@given(tables(), st.integers(1, 60))
@example(([2, 3], [0, 1], [1]), 1)
def test_boxes_cover_a_table_in_order(drawn: tuple[list[int], list[int], list[int]], most: int) -> None:
    sizes, layout, separator = drawn
    shape = [sizes[v] for v in layout]
    at = 0
    entries = math.prod(shape)
    digits = dict(zip(layout, np.unravel_index(np.arange(entries), shape), strict=True))
    expected = np.zeros(entries, dtype=np.int64)
    for v in separator:
        expected = expected * sizes[v] + digits[v]
    for box in boxes(shape, most):
        start, count = place(shape, box)
        assert start == at
        assert 1 <= count <= most
        assert np.array_equal(offsets(view(layout, box, separator, sizes)), expected[start : start + count])
        at += count
    assert at == entries


def offsets(walk: View) -> Any:
    """Where each entry of a chunk leads, entry by entry."""
    found = []
    for k in range(walk.entries):
        at = walk.base
        for axis in walk.axes:
            at += k % axis.size * axis.step
            k //= axis.size
        found.append(at)
    return np.array(found)


def numbers(rng: np.random.Generator, entries: int, algebra: Algebra) -> Any:
    """Numbers with zeros among them."""
    drawn = rng.uniform(0, 1, entries) * (rng.uniform(size=entries) < 0.8)
    if algebra is LOG:
        with np.errstate(divide="ignore"):
            return np.log(drawn)
    return drawn.astype(algebra.dtype)


@given(tables(), st.integers(1, 60), st.sampled_from([SINGLE, DOUBLE, LOG]), st.integers(0, 99))
def test_the_reference_multiplies_and_sums(
    drawn: tuple[list[int], list[int], list[int]], most: int, algebra: Algebra, seed: int
) -> None:
    sizes, layout, separator = drawn
    rng = np.random.default_rng(seed)
    shape, count = [sizes[v] for v in layout], math.prod(sizes[v] for v in separator)
    table, values = numbers(rng, math.prod(shape), algebra), numbers(rng, count, algebra)
    sums, before = np.full(count, algebra.zero, dtype=algebra.dtype), table.copy()
    for box in boxes(shape, most):
        start, entries = place(shape, box)
        chunk = table[start : start + entries]
        along = view(layout, box, separator, sizes)
        stored.scatter(chunk, along, values, algebra)
        stored.reduce(chunk, along, sums, algebra)
    where = offsets(view(layout, whole(shape), separator, sizes))
    linear = [np.exp(each) if algebra is LOG else each.astype(np.float64) for each in (before, values, sums)]
    expected = linear[0] * linear[1][where]
    found = np.exp(table) if algebra is LOG else table
    np.testing.assert_allclose(found, expected, rtol=1e-6 if algebra is SINGLE else 1e-13)
    np.testing.assert_allclose(
        linear[2], np.bincount(where, expected, count), rtol=1e-6 if algebra is SINGLE else 1e-12
    )


def test_nothing_changed_by_nothing_is_nothing() -> None:
    for algebra in (SINGLE, DOUBLE, LOG):
        new, old = (numbers(np.random.default_rng(seed), 40, algebra) for seed in (1, 2))
        new[:3], old[:3] = algebra.zero, algebra.zero
        change = stored.ratio(new, old, algebra)
        assert (change[old == algebra.zero] == algebra.zero).all()
        assert not np.isnan(change).any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_product_that_lost_digits_is_told(dtype: Any) -> None:
    tiny = float(np.finfo(dtype).tiny)
    along = view([0], whole([4]), [0], [4])
    algebra = SINGLE if dtype is np.float32 else DOUBLE
    for scatter in (lambda *given: stored.scatter(*given, algebra), stored_cpu.scatter):
        values = np.array([1, 0.5, 0, 1], dtype=dtype)
        assert not scatter(np.array([1, 2 * tiny, tiny, 0], dtype=dtype), along, values)
        assert scatter(np.array([1, tiny, tiny, 0], dtype=dtype), along, values)


@given(tables(), st.booleans(), st.integers(0, 99))
def test_compiled_kernels_do_the_same(drawn: tuple[list[int], list[int], list[int]], single: bool, seed: int) -> None:
    sizes, layout, separator = drawn
    algebra, rng = SINGLE if single else DOUBLE, np.random.default_rng(seed)
    shape, count = [sizes[v] for v in layout], math.prod(sizes[v] for v in separator)
    table, values = numbers(rng, math.prod(shape), algebra), numbers(rng, count, algebra)
    along, other = view(layout, whole(shape), separator, sizes), table.copy()
    lost = stored.scatter(table, along, values, algebra)
    assert stored_cpu.scatter(other, along, values) == lost
    assert np.array_equal(table, other)
    sums, others = (np.zeros(count, dtype=algebra.dtype) for _ in range(2))
    stored.reduce(table, along, sums, algebra)
    stored_cpu.reduce(other, along, others)
    np.testing.assert_allclose(others, sums, rtol=1e-6 if single else 1e-13)


def test_compiled_sums_do_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    table = np.random.default_rng(1).uniform(size=3 * 70_000)
    for layout, shape in (([0, 1], [3, 70_000]), ([1, 0], [70_000, 3])):
        found = []
        for threads in (1, 3):
            monkeypatch.setattr(stored_cpu, "shared_pool", lambda count=threads: (ThreadPoolExecutor(count), count))
            sums, copy = np.zeros(3), table.copy()
            along = view(layout, whole(shape), [0], [3, 70_000])
            stored_cpu.reduce(table, along, sums)
            stored_cpu.scatter(copy, along, sums)
            found.append((sums.tobytes(), copy.tobytes()))
        assert found[0] == found[1]
        np.testing.assert_allclose(sums, table.reshape(shape).sum(axis=layout.index(1)), rtol=1e-13)


class OnDevice:
    """Memory of a device with names, for tests of single kernels."""

    def __init__(self, device: Callable[[], Any], algebra: Algebra) -> None:
        self.device, self.algebra, self.dtype = device(), algebra, algebra.dtype
        self.stream, self.kept = self.device.stream(), list[Any]()

    def put(self, array: Any) -> int:
        array = np.ascontiguousarray(array)
        # Tables are read 16 bytes at a time, also at their ends.
        block = self.device.allocate(array.nbytes + 16)
        host = self.device.host(len(array), array.dtype)
        host[:] = array
        self.device.upload(host, block.ptr, self.stream)
        self.kept += [block, host]
        return int(block.ptr)

    def get(self, address: int, count: int, dtype: Any = None) -> Any:
        host = self.device.host(count, dtype or self.dtype)
        self.device.download(address, host, self.stream)
        self.device.synchronize(self.device.record(self.stream))
        return host

    def run(self, batch: TaskBatch) -> bool:
        batch.close()
        lost = self.put(np.zeros(1, dtype=np.int32))
        launches, placed, host = upload_batch(
            self.device, batch, self.put(np.zeros(batch.size(), np.uint8)), self.stream
        )
        for launch in launches:
            self.device.launch(self.algebra.name, launch, placed, lost, self.stream)
        self.kept.append(host)
        return bool(self.get(lost, 1, np.int32)[0])


def neutral(algebra: Algebra) -> Any:
    """The largest entry of a message that needs no scale: 0.5, or the bits of the rank of the logarithm 0."""
    return np.array([0.5 if algebra.tiny else -0.0], dtype=algebra.dtype)


# Shapes, and the separator of each: runs of 1 and more, shorter and longer than a tile, that are no multiple of 16
# bytes; separators anywhere, of few entries and many; more than one axis of a factor.
SHAPES: list[tuple[Sequence[int], Sequence[int]]] = [
    ([7], [0]),
    ([7], []),
    ([33, 1], [0]),
    ([50, 3], [0]),
    ([5, 7, 11], [0, 1]),
    ([5, 7, 11], [1, 0]),
    ([3, 130], [0]),
    ([2, 257], [0]),
    ([3, 1001], [0]),
    ([2, 5000], [0]),
    ([12_345], []),
    ([3, 1001], [1]),
    ([1001, 3], [1]),
    ([2, 40, 3, 20], [1, 3]),
    ([20, 2, 300], [2]),
    ([4, 3, 2, 5, 3, 2], [4, 2, 0]),
    ([900, 2, 2], [2]),
]


@ON
@pytest.mark.parametrize("algebra", [SINGLE, DOUBLE, LOG], ids=lambda algebra: algebra.name)
@pytest.mark.parametrize(("shape", "separator"), SHAPES, ids=str)
def test_gpu_kernels_do_the_same(
    device: Callable[[], Any], algebra: Algebra, shape: Sequence[int], separator: Sequence[int]
) -> None:
    dtype, rng, layout = algebra.dtype, np.random.default_rng(1), range(len(shape))
    entries, count = math.prod(shape), math.prod(shape[v] for v in separator)
    table, values = numbers(rng, entries, algebra), numbers(rng, count, algebra)
    # The largest entry is in [0.5, 1), its logarithm about 0: nothing to scale.
    values[-1] = 0.75 if algebra.tiny else -0.25
    along = view(layout, whole(shape), separator, shape)
    expected, sums = table.copy(), np.ones(count, dtype=dtype)
    stored.scatter(expected, along, values, algebra)
    stored.reduce(expected, along, sums, algebra)
    on, batch = OnDevice(device, algebra), TaskBatch(dtype)
    source, target = on.put(table), on.put(np.zeros_like(table))
    message = SeparatorTable(on.put(values), on.put(neutral(algebra)))
    summed, parts = on.put(np.ones(count, dtype=dtype)), on.put(np.zeros(4 * entries + 4096, dtype=dtype))
    if along.run():
        batch.scatter((source, target), entries, [(along, message)], (along, summed), True, parts)
    else:
        batch.scatter((source, target), entries, [(along, message)], None, True, parts)
        batch.gather(target, along, summed, True, parts)
    assert not on.run(batch)
    assert np.array_equal(on.get(target, entries), expected)
    tolerance = 2e-6 if algebra is SINGLE else 1e-13
    np.testing.assert_allclose(on.get(summed, count), sums, rtol=tolerance)
    # In place and without sums, and sums of what nothing is multiplied with; written over what was there.
    again = TaskBatch(dtype)
    again.scatter((source, source), entries, [(along, message)], None, False, parts)
    again.gather(target, along, summed, False, parts)
    on.run(again)
    assert np.array_equal(on.get(source, entries), expected)
    sums[:] = algebra.zero
    stored.reduce(expected, along, sums, algebra)
    np.testing.assert_allclose(on.get(summed, count), sums, rtol=tolerance, atol=tolerance)


@ON
def test_a_gpu_tells_of_lost_digits_and_divides_nothing_by_nothing(device: Callable[[], Any]) -> None:
    on, tiny = OnDevice(device, SINGLE), float(np.finfo(np.float32).tiny)
    along = view([0], whole([5]), [0], [5])
    values = np.array([0.5, 0.5, 0.5, 0, 0.5], dtype=np.float32)
    message = SeparatorTable(on.put(values), on.put(np.full(1, 0.5, dtype=np.float32)))
    for least, lost in ((2 * tiny, False), (tiny, True)):
        batch = TaskBatch(np.float32)
        table = on.put(np.array([1, least, 0, tiny, 1], dtype=np.float32))
        batch.scatter((table, table), 5, [(along, message)], None, False, 0)
        assert on.run(batch) is lost
    new, largest = on.put(np.array([2, 0, 0, 4, 1], dtype=np.float32)), on.put(np.zeros(1, dtype=np.float32))
    batch = TaskBatch(np.float32)
    # Largest entry 0.5: what went the other way is taken as it is.
    batch.settle(SeparatorTable(new, largest), 5, message)
    assert not on.run(batch)
    assert on.get(new, 5).tolist() == [4, 0, 0, 0, 2]
    assert on.get(largest, 1).tolist() == [4]


@ON
def test_a_gpu_divides_logarithms_and_ranks_the_largest(device: Callable[[], Any]) -> None:
    never, on, batch = -math.inf, OnDevice(device, LOG), TaskBatch(np.float64)
    values, sent = np.array([-1, -2, never, -3, -900]), np.array([5, never, never, -995, -400])
    new, largest = on.put(sent), on.put(np.zeros(1, dtype=np.uint64))
    batch.settle(SeparatorTable(new, largest), 5, SeparatorTable(on.put(values), on.put(neutral(LOG))))
    # Nothing but impossible entries: they rank below all others, and are scaled by nothing.
    nothing = SeparatorTable(on.put(np.full(3, never)), on.put(np.zeros(1, dtype=np.uint64)))
    batch.settle(nothing, 3)
    assert not on.run(batch)
    assert on.get(new, 5).tolist() == [6, never, never, -992, 500]
    assert on.get(largest, 1, np.uint64).tolist() == [1 << 63 | int(np.float64(500).view(np.uint64))]
    again, along = TaskBatch(np.float64), view([0], whole([3]), [0], [3])
    table = on.put(np.array([1.0, never, 2.0]))
    again.scatter((table, table), 3, [(along, nothing)], None, False, 0)
    on.run(again)
    assert on.get(table, 3).tolist() == [never, never, never]


@ON
@given(tables())
def test_a_gpu_permutes(device: Callable[[], Any], drawn: tuple[list[int], list[int], list[int]]) -> None:
    sizes, layout, front = drawn
    swaps, _ = swaps_to_front(layout, front, sizes)
    table = np.arange(math.prod(sizes), dtype=np.float32)
    on, batch = OnDevice(device, SINGLE), TaskBatch(np.float32)
    target = on.put(np.zeros_like(table))
    batch.permute(on.put(table), target, len(table), on.put(swaps_back(swaps)), len(swaps))
    on.run(batch)
    assert np.array_equal(on.get(target, len(table)), permute(table, swaps))


@pytest.mark.parametrize(
    ("architecture", "algebra"),
    [("sm_80", "single"), ("sm_90", "double"), ("sm_100", "single"), ("sm_90", "log")],
)
def test_kernels_compile(architecture: str, algebra: str) -> None:
    compiles(stored_gpu.source(algebra), architecture)


@given(st.integers(1, 1 << 30), st.integers(1, 1 << 12), st.sampled_from([2, 4]))
@example(1 << 30, 1, 4)
def test_every_part_of_a_run_has_a_place(run: int, count: int, width: int) -> None:
    entries = min(run * count, 1 << 30) // run * run
    how = stored_tasks.runs(run, entries, width)
    assert how.span % width == 0
    for s in {0, entries // run // 2, entries // run - 1}:
        touched = ((s + 1) * run - 1) // how.span - s * run // how.span + 1
        assert touched <= how.pieces
    if how.lanes:
        assert how.span <= stored_tasks.TILE
        assert stored_tasks.THREADS % how.lanes == 0
