from __future__ import annotations

import gc

import numpy as np
import pyarrow as pa
import pytest
from junctor.engine.engine import Engine
from junctor.evidence.batch import EvidenceBatch
from junctor.generate import random_network, sample
from junctor.model.query import Query
from junctor.runtime.arrow import list_array
from junctor.runtime.buffer_pool import THREAD_BYTES, BufferPool, fresh, mapped


@pytest.mark.parametrize("size", [0, 1, 4097, 3 * THREAD_BYTES + 5])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_mapped_pages_can_be_written(size: int, threads: int) -> None:
    memory = mapped(size, threads)
    assert (memory.dtype, memory.shape) == (np.uint8, (size,))
    memory[:] = 7
    assert memory.sum(dtype=np.int64) == 7 * size
    view = memory[size // 2 :]
    del memory
    gc.collect()
    assert view.tolist()[-1:] == [7][:size]


def test_a_lack_of_memory_for_pages_is_one() -> None:
    with pytest.raises(MemoryError, match="bytes"):
        mapped(1 << 62, 1)


def test_memory_comes_back_when_nobody_reads_it_any_more() -> None:
    lender = BufferPool()
    first = lender.lend(4096, fresh, spare=4096)
    address = first.ctypes.data
    assert lender.lend(4096, fresh, spare=4096).ctypes.data != address
    del first
    assert lender.lend(4096, fresh, spare=4096).ctypes.data == address


def test_memory_is_not_lent_again_while_a_view_of_a_view_is_there() -> None:
    lender = BufferPool()
    memory = lender.lend(4096, fresh, spare=4096)
    address = memory.ctypes.data
    view = memory.view(np.float64).reshape(-1, 4)[3:5].T
    column = list_array(memory.view(np.float32)[:64].reshape(8, 8))
    del memory
    gc.collect()
    assert lender.lend(4096, fresh, spare=4096).ctypes.data != address
    del view
    gc.collect()
    assert lender.lend(4096, fresh, spare=4096).ctypes.data != address
    table = pa.table({"column": column})
    del column
    assert lender.lend(4096, fresh, spare=4096).ctypes.data != address
    del table
    gc.collect()
    assert lender.lend(4096, fresh, spare=4096).ctypes.data == address


def test_a_shorter_batch_is_lent_a_part_of_the_same_memory() -> None:
    lender, made = BufferPool(), list[int]()

    def allocate(size: int) -> np.ndarray:
        made.append(size)
        return fresh(size)

    for size in (4096, 3000, 2048, 4096):
        assert lender.lend(size, allocate, spare=4096).size == size
    assert made == [4096]
    # No more than twice what is asked for.
    for size in (2000, 5000):
        assert lender.lend(size, allocate, spare=4096).size == size
    assert made == [4096, 2000, 5000]


def test_an_engine_writes_the_next_batch_where_answers_are_gone_and_nowhere_else() -> None:
    network = random_network(6, seed=1)
    states = sample(network, 40, seed=2)
    batches = [EvidenceBatch(20, {0: states[:20, 0], 3: states[:20, 3]}), EvidenceBatch(20, {1: states[20:, 1]})]
    engine = Engine(network, Query())
    expected = [Engine(network, Query()).answer(batch).posteriors for batch in batches]
    kept = engine.answer(batches[0]).posteriors[2]
    address = kept.ctypes.data
    second = engine.answer(batches[1])
    for v, posterior in second.posteriors.items():
        np.testing.assert_array_equal(posterior, expected[1][v])
    np.testing.assert_array_equal(kept, expected[0][2])
    del kept
    gc.collect()
    assert engine.answer(batches[0]).posteriors[2].ctypes.data == address


def test_no_more_stays_idle_than_is_spare() -> None:
    lender, made = BufferPool(), list[int]()

    def allocate(size: int) -> np.ndarray:
        made.append(size)
        return fresh(size)

    def new(pieces: int, spare: int) -> int:
        """How many of so many pieces, lent at the same time, nobody had before."""
        before, lent = len(made), [lender.lend(1000, allocate, spare) for _ in range(pieces)]
        lent.clear()
        return len(made) - before

    assert new(5, spare=0) == 5
    assert new(5, spare=10_000) == 0
    assert new(1, spare=2999) == 0
    assert new(4, spare=10_000) == 1  # two stayed beside the one that was back already
    assert new(1, spare=0) == 0
    assert new(2, spare=10_000) == 1


def test_another_size_or_another_maker_gives_up_what_was_there() -> None:
    lender, made = BufferPool(), list[int]()

    def other(size: int) -> np.ndarray:
        made.append(size)
        return np.full(size, 7, dtype=np.uint8)

    lender.lend(1000, fresh, spare=10_000)
    old = lender.lend(1000, fresh, spare=10_000)
    found = lender.lend(1000, other, spare=10_000)
    assert (found == 7).all()
    del old
    assert (lender.lend(1000, other, spare=10_000) == 7).all()
    assert len(made) == 2
    assert lender.lend(0, fresh, spare=0).size == 0
