"""Most probable paths on a GPU, bit by bit those of the CPU; without a GPU, the kernels compiled for the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_viterbi import EmulatedViterbi
from hmm_models import random_batch, random_model
from junctor.errors import BudgetError
from junctor.hmm.blocks import Room
from junctor.hmm.decode import CpuMachine, decode
from junctor.hmm.decode_gpu import GpuMachine
from junctor.hmm.engine import SequenceEngine
from junctor.hmm.model import HiddenMarkovModel
from junctor.hmm.numbers import PathNumbers
from junctor.hmm.packing import SequenceBatch, locksteps
from junctor_kernels import viterbi_gpu
from junctor_kernels.viterbi_gpu import Launch, launches, shared_bytes
from test_gpu_source import ARCHITECTURES, compiles

LENGTHS = [7, 7, 6, 5, 5, 5, 3, 2, 1]


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device_of(request: pytest.FixtureRequest) -> Any:
    return EmulatedViterbi if request.param == "emulated" else viterbi_gpu.ViterbiDevice


def agree(model: HiddenMarkovModel, batch: SequenceBatch, device: Any, room: Room | None = None) -> GpuMachine:
    """Compare rows and paths of a device with those of the CPU; returns the machine."""
    numbers = PathNumbers(model, device.dtype)
    (steps,) = locksteps(batch.lengths, np.arange(len(batch)), len(batch))
    wanted = decode(CpuMachine(numbers), batch, steps, Room(1 << 40), Path())
    machine = GpuMachine(model, device.dtype, device=device)
    found = decode(machine, batch, steps, room or Room(1 << 40), Path("/tmp"))
    np.testing.assert_array_equal(found, wanted)
    if room is None:
        memory = numbers.stride * steps.rows
        here, there = np.empty(memory, device.dtype), machine.room(0)
        cpu = CpuMachine(numbers)
        from junctor.hmm.blocks import Block

        cpu.advance(here, batch, steps, Block(0, steps.ticks - 1, "here"))
        rows = machine.save(there, 0, steps.rows)
        np.testing.assert_array_equal(rows[:, : model.states], cpu.save(here, 0, steps.rows)[:, : model.states])
    return machine


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("states", "zeros"), [(5, 0.3), (70, 0.0), (130, 0.9)])
def test_rows_and_paths_are_those_of_the_cpu(device_of: Any, dtype: Any, states: int, zeros: float) -> None:
    model = random_model(states, 4, states, zeros)
    agree(model, random_batch(model, LENGTHS), device_of(dtype))


@pytest.mark.parametrize("sequences", [1, 2, 3, 8, 9, 17, 40])
def test_every_number_of_sequences(device_of: Any, sequences: int) -> None:
    model = random_model(70, 4, 1)
    agree(model, random_batch(model, [3] * sequences), device_of(np.float32))


@pytest.mark.parametrize("zeros", [0.5, 0.95])
def test_sparse_matrices(device_of: Any, zeros: float) -> None:
    model = random_model(70, 4, 2, zeros, sparse=True)
    agree(model, random_batch(model, LENGTHS), device_of(np.float32))


def test_blocks_in_every_place(device_of: Any, tmp_path: Path) -> None:
    model = random_model(40, 4, 3)
    batch = random_batch(model, [40, 39, 39, 20, 1])
    row = viterbi_gpu.stride_of(40) * 4
    for host, disk in [(0, 0), (20 * row, 0), (0, 20 * row), (20 * row, 20 * row), (1 << 30, 0)]:
        agree(model, batch, device_of(np.float32), Room(60 * row, host, disk))


def test_log_likelihoods_given_directly(device_of: Any) -> None:
    model = random_model(33, 4, 4)
    rng = np.random.default_rng(5)
    lengths = np.array([6, 4, 4])
    logs = np.where(rng.random((14, 33)) < 0.3, -np.inf, rng.normal(size=(14, 33)))
    batch = SequenceBatch(np.cumsum([0, *lengths]).astype(np.int64), None, logs)
    agree(model, batch, device_of(np.float32))


def test_impossible_sequences(device_of: Any) -> None:
    model = random_model(6, 3, 6, 0.9)
    agree(model, random_batch(model, [9] * 4, 7), device_of(np.float64))


@pytest.mark.gpu
def test_the_engine_uses_the_gpu() -> None:
    model = random_model(300, 5, 8)
    batch = random_batch(model, [50, 20, 20, 1, 7])
    here, there = (SequenceEngine(model, device=device).answer(batch) for device in ("cpu", "gpu"))
    np.testing.assert_array_equal(here.states, there.states)
    np.testing.assert_array_equal(here.log_value, there.log_value)


def test_launches_follow_the_number_of_rows() -> None:
    counts = np.array([300, 300, 100, 70, 40, 9, 8, 3, 1, 1])
    found = list(launches(counts, 6000, None, 4, 132, 227 << 10))
    assert [(each.kernel, each.first, each.last) for each in found] == [
        ("many_8", 0, 3),
        ("many_8", 3, 4),
        ("many_4", 4, 5),
        ("many_2", 5, 6),
        ("few_8", 6, 7),
        ("few_4", 7, 8),
        ("few_1", 8, 9),
    ]


def test_a_row_that_exceeds_shared_memory_takes_the_product() -> None:
    (launch,) = launches(np.array([1, 1]), 60_000, None, 4, 132, 227 << 10)
    assert launch.kernel == "many_2"
    assert shared_bytes(Launch("few_1", 0, 1, 1), 6000, 132, 4) < 48 << 10


def test_a_model_that_exceeds_the_device_is_refused() -> None:
    model = random_model(70, 4, 1)
    with pytest.raises(BudgetError, match="use --device cpu"):
        GpuMachine(model, np.float32, 1000, EmulatedViterbi(np.float32))


@pytest.mark.parametrize(("architecture", "dtype"), [*((a, "<f4") for a in ARCHITECTURES), ("sm_90", "<f8")])
def test_the_kernels_compile(architecture: str, dtype: str) -> None:
    compiles(viterbi_gpu.source(np.dtype(dtype)), architecture)


def test_the_source_has_every_field_in_order() -> None:
    import re

    text = viterbi_gpu.source(np.float32)
    body = text[text.index("struct Work {") : text.index("__device__ long long count")]
    assert tuple(re.findall(r"(\w+)\s*[,;]", body)) == viterbi_gpu.FIELDS
