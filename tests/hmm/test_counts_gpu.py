"""Expected counts on a GPU, bit by bit those of the CPU; without a GPU, the kernels compiled for the CPU."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from emulation.chains import SIDE, EmulatedViterbi
from emulation.nvrtc import compiles
from helpers.hmm_models import batch_of, random_batch, random_model, sensor_model, small_cases, sparse_of
from hypothesis import given, settings
from junctor.hmm import build_model, counts
from junctor.hmm.counts import SequenceCounter, SequenceCounts
from junctor.hmm.counts_gpu import GpuCounter, plan_rows
from junctor.hmm.model import HiddenMarkovModel
from junctor.hmm.numbers import logarithms
from junctor.hmm.packing import Lockstep, SequenceBatch
from junctor.hmm.sequences import encode_sequences
from junctor.model.errors import BudgetError
from junctor.model.options import ComputeOptions
from junctor_kernels.hmm import counts_gpu
from junctor_kernels.hmm import device as hmm_gpu
from junctor_kernels.hmm.counts_cpu import RUN
from junctor_kernels.hmm.device import ChainDevice

NAMES = ("start", "transition", "emission", "log_value")


def agree(model: HiddenMarkovModel, batch: SequenceBatch, weights: Any = None, device: Any = None) -> SequenceCounts:
    """Compare a device with the CPU, bit by bit."""
    weights = np.random.default_rng(0).random(len(batch)) if weights is None else np.array(weights, float)
    wanted = SequenceCounter(batch, weights).count(model)
    counter = SequenceCounter(batch, weights, ComputeOptions(threads=1, device="gpu"))
    # In place of the first device of the process.
    counter.__dict__["_device"] = EmulatedViterbi(np.float64) if device is None else device
    if (others := counter._with_symbols(model)) is not None:
        others[1].__dict__["_device"] = counter.__dict__["_device"]
    found = counter.count(model)
    for name in NAMES:
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), err_msg=name)
    return found


# The emulation has a fiber for every thread of the device: small cases.
@pytest.mark.parametrize(
    ("states", "zeros", "lengths", "kernels"),
    [
        (70, 0.2, [3] * 5 + [2] * 4 + [1], {"forward_many_2", "backward_few_8", "operands", "many_pairs", "steps"}),
        (5, 0.0, [1, 1], {"operands", "steps"}),
        (9, 0.3, [3] * 40, {"forward_many_4", "many_pairs"}),
        (530, 0.1, [3, 2, 1], {"forward_few_2", "backward_few_1", "many_pairs"}),
    ],
)
def test_kernels_compiled_for_the_cpu(states: int, zeros: float, lengths: list[int], kernels: set[str]) -> None:
    model, device = random_model(states, 4, states, zeros), EmulatedViterbi(np.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hmm_gpu, "SIDE", SIDE)
        agree(model, random_batch(model, lengths), None, device)
    assert set(device.kernels) >= kernels


@pytest.mark.parametrize("zeros", [0.5, 0.95])
def test_sparse_kernels_compiled_for_the_cpu(zeros: float) -> None:
    model, device = random_model(20, 4, 2, zeros, sparse=True), EmulatedViterbi(np.float64)
    agree(model, random_batch(model, [12, 9, 4, 4, 1]), None, device)
    assert "entries" in device.kernels


@pytest.mark.parametrize("sparse", [False, True])
def test_sums_of_several_runs(sparse: bool) -> None:
    model = random_model(6, 3, 2, 0.3, sparse)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hmm_gpu, "SIDE", SIDE)
        agree(model, random_batch(model, [RUN // 2 + 3] * 3 + [2, 2]))


@settings(max_examples=5)
@given(small_cases())
def test_counts_of_the_cpu(case: tuple[HiddenMarkovModel, list[list[int]]]) -> None:
    model, sequences = case
    agree(model, batch_of(sequences))


def test_log_likelihoods_and_impossible_sequences() -> None:
    model, rng = random_model(33, 4, 4, 0.6), np.random.default_rng(5)
    logs = np.where(rng.random((14, 33)) < 0.5, -np.inf, rng.normal(size=(14, 33)))
    logs[3] = -np.inf
    found = agree(model, SequenceBatch(np.array([0, 6, 10, 14]), None, logs))
    assert found.log_value[0] == -np.inf


def test_steps_that_are_seen_in_part_and_labels() -> None:
    model, device = sensor_model(3, (2, 2), 3), EmulatedViterbi(np.float64)
    batch = encode_sequences(
        [["u0,", "u1,v1", None], [",v1", "u0,v0"], ["u1,v0"]], model, [["p", None, "q"], None, ["r"]]
    )
    agree(model, batch.batch, None, device)
    assert "steps" in device.kernels


def test_what_is_lost_climbs() -> None:
    # As on the CPU: the first sequence leaves the range of double precision, the others of its group do not.
    for transition in ([[1, 0], [0, 1]], sparse_of(np.eye(2))):
        model = build_model([0.5, 0.5], transition, [[1e-5, 1e-5, 1 - 2e-5], [0.5, 0.5, 0]])
        found = agree(model, batch_of([[0, 1] * 40 + [2], [0, 1], [2, 0]]))
        assert np.isfinite(found.log_value).all()


def test_the_peak_stays_within_the_memory() -> None:
    model, device = random_model(70, 4, 1, 0.8), EmulatedViterbi(np.float64)
    batch, weights, memory = random_batch(model, [12, 10, 10, 6, 4, 4]), np.ones(6), 620_000
    steps = Lockstep(np.arange(6), batch.lengths)
    counter = GpuCounter(model, memory, device)
    counter.total(batch, weights, [steps], np.zeros(6))
    assert memory // 2 < device.peak <= memory
    with pytest.raises(BudgetError, match="raise --device-memory"):
        GpuCounter(model, memory // 2, EmulatedViterbi(np.float64)).total(batch, weights, [steps], np.zeros(6))
    with pytest.raises(BudgetError, match="raise --device-memory"):
        GpuCounter(model, 100_000, EmulatedViterbi(np.float64))


def test_a_gpu_is_taken_where_it_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model, device = random_model(20, 4, 1), EmulatedViterbi(np.float64)
    batch = random_batch(model, [3, 2])
    wanted = SequenceCounter(batch, np.ones(2)).count(model)
    monkeypatch.setattr(counts, "has_gpu", lambda: True)
    # Too little work, no room, and both enough.
    for terms, memory, is_used in ((1 << 36, None, False), (1, 1000, False), (1, None, True)):
        monkeypatch.setattr(counts, "DEVICE_TERMS", terms)
        counter = SequenceCounter(batch, np.ones(2), ComputeOptions(threads=1, device_memory=memory))
        counter.__dict__["_device"] = device
        found = counter.count(model)
        for name in NAMES:
            np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
        assert bool(device.kernels) == is_used


def test_a_plan_of_rows() -> None:
    steps = Lockstep(np.array([4, 7]), np.array([3, 2]))
    plan = plan_rows(steps, np.array([0, 1, 1, 0, 1], np.int32), 2)
    assert plan.tick.tolist() == [0, 0, 1, 1, 2]
    assert plan.slot.tolist() == [0, 1, 0, 1, 0]
    # From the last tick back, by sequence.
    assert plan.before.tolist() == [1, 2, 0, -1, -1]
    assert plan.behind.tolist() == [-1, -1, 1, 2, 0]
    assert plan.order.tolist() == [3, 0, 4, 2, 1, 0, 1]
    assert plan.begins.tolist() == [0, 2, 5, 7]
    assert plan.pairs == 3


@pytest.mark.parametrize("architecture", ["sm_80", pytest.param("sm_100", marks=pytest.mark.slow)])
def test_the_kernels_compile(architecture: str) -> None:
    compiles(counts_gpu.source(np.dtype(np.float64)), architecture)


def test_the_source_has_every_field_in_order() -> None:
    text = counts_gpu.source(np.float64)
    body = text[text.index("struct Work {") : text.index("};", text.index("struct Work {"))]
    assert tuple(re.findall(r"(\w+)\s*[,;]", body)) == counts_gpu.FIELDS


@pytest.mark.gpu
@pytest.mark.parametrize("sequences", [1, 3, 8, 9, 32, 100])
@pytest.mark.parametrize(
    ("states", "zeros", "sparse"), [(5, 0.3, False), (70, 0.0, False), (700, 0.5, False), (700, 0.99, True)]
)
def test_counts_are_those_of_the_cpu(states: int, zeros: float, sparse: bool, sequences: int) -> None:
    model = random_model(states, 4, states, zeros, sparse)
    agree(model, random_batch(model, [20] * sequences + [7, 7, 1]), None, ChainDevice(np.float64))


@pytest.mark.gpu
def test_log_likelihoods_given_directly() -> None:
    model, rng = random_model(33, 4, 4), np.random.default_rng(5)
    logs = np.where(rng.random((14, 33)) < 0.3, -np.inf, rng.normal(size=(14, 33)))
    agree(model, SequenceBatch(np.array([0, 6, 10, 14]), None, logs), None, ChainDevice(np.float64))


@pytest.mark.gpu
def test_numbers_that_vanish_are_seen() -> None:
    model = build_model([0.5, 0.5], [[1, 0], [0, 1]], [[1e-5, 1e-5, 1 - 2e-5], [0.5, 0.5, 0]])
    agree(model, batch_of([[0, 1] * 100 + [2], [0, 1] * 10 + [2], [0] * 6, [2, 0], [0]]), None, ChainDevice(np.float64))


def test_emissions_of_the_cpu_without_symbols() -> None:
    bare = random_model(4, 3, 1)
    batch = random_batch(bare, [5, 3])
    logs = np.concatenate([logarithms(bare.emission.T), np.zeros((1, 4))])[batch.symbols]  # type: ignore[union-attr]
    assert agree(build_model(bare.start, bare.transition), SequenceBatch(batch.starts, None, logs)).emission is None
