"""Circuits on a GPU, whose kernels are compiled for the CPU without one, against circuits on cores."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from emulation.blocks import EmulatedDevice
from helpers.circuit_cases import compiled, rare, switched
from helpers.engine_cases import check_posteriors
from helpers.gpu_blocks import ON, few_threads, opened  # noqa: F401
from helpers.strategies import evidence_batches, networks
from hypothesis import given
from hypothesis import strategies as st
from junctor.circuits import on_gpu
from junctor.circuits.evaluate import CircuitProgram
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch
from junctor.generate import sample
from junctor.model.answers import IMPOSSIBLE, OK, Answers, unanswered
from junctor.model.network import Network
from junctor.model.query import Precision, Query
from junctor.strategies.circuit import fixed_states
from junctor_kernels.gpu.blocks import BlockDevice


def blank(network: Network, batch: EvidenceBatch, device: BlockDevice, precision: Precision = "double") -> Answers:
    targets, sizes = tuple(range(len(network.public))), network.cardinalities
    size = 8 if precision == "double" else 4
    memory = device.host(size * batch.rows * sum(sizes[: len(targets)]))
    return unanswered(Query(precision=precision), targets, sizes, batch.rows, {}, memory)


def on_device(
    network: Network,
    batch: EvidenceBatch,
    device: BlockDevice,
    fixed: Mapping[int, int],
    precision: Precision = "double",
) -> Answers:
    answers = blank(network, batch, device, precision)
    program = CircuitProgram(network, compiled(network, fixed))
    program.answer(batch, np.arange(batch.rows), answers, 1, device)
    return answers


@ON
@given(network=networks(max_variables=6, max_joint=512), data=st.data())
def test_posteriors_equal_enumeration(device: Callable[[], BlockDevice], network: Network, data: st.DataObject) -> None:
    batch = data.draw(evidence_batches(network, max_rows=6, invalid=False))
    check_posteriors(network, batch, on_device(network, batch, opened(device), {}), 1e-12)


@ON
@given(seed=st.integers(0, 10_000), data=st.data())
def test_zeros_and_columns_that_all_rows_observe_alike(
    device: Callable[[], BlockDevice], seed: int, data: st.DataObject
) -> None:
    network = switched(7, seed)
    batch = data.draw(evidence_batches(network, min_rows=1, invalid=False))
    fixed = fixed_states(np.arange(batch.rows), batch)
    check_posteriors(network, batch, on_device(network, batch, opened(device), fixed), 1e-12)


@ON
@pytest.mark.parametrize(("precision", "tolerance"), [("double", 1e-12), ("single", 1e-5)])
@pytest.mark.parametrize("room", [1 << 26, 700_000])
def test_blocks_of_some_rows(
    device: Callable[..., BlockDevice],
    room: int,
    precision: Precision,
    tolerance: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Several blocks, of which a small room makes more; the same bytes in any block, and other rows are left alone."""
    monkeypatch.setattr(on_gpu, "FULL_CASES", 100)
    network = switched(12, 5)
    states = sample(network, 1000, seed=1)
    states[np.random.default_rng(1).random(states.shape) < 0.6] = UNOBSERVED
    states[::7, 0] = 2
    batch = EvidenceBatch(1000, {v: np.ascontiguousarray(states[:, v]) for v in range(12)})
    rows = np.sort(np.random.default_rng(2).permutation(1000)[:900])
    program, here = CircuitProgram(network, compiled(network, {})), opened_with(device, room)
    found, again, expected = (blank(network, batch, here, precision) for _ in range(3))
    for answers in (found, again, expected):
        assert answers.memory is not None
        answers.memory[:] = -1
    program.answer(batch, rows, found, 1, here)
    program.answer(batch, rows[:333], again, 1, here)
    program.answer(batch, rows[333:], again, 1, here)
    program.answer(batch, rows, expected, 1)
    assert {OK, IMPOSSIBLE} == set(found.status[rows].tolist())
    assert (found.status == expected.status).all()
    np.testing.assert_allclose(found.log_value[rows], expected.log_value[rows], rtol=tolerance)
    assert found.memory is not None
    assert again.memory is not None
    assert expected.memory is not None
    assert found.memory.tobytes() == again.memory.tobytes()
    np.testing.assert_allclose(found.memory, expected.memory, rtol=0, atol=tolerance)
    assert {gpu.cases < 900 for _, gpu in program._kept.values()} == {True}


def opened_with(device: Callable[..., BlockDevice], room: int) -> BlockDevice:
    return EmulatedDevice(room) if device is EmulatedDevice else device(0, room)


@ON
def test_a_device_without_room_leaves_rows_to_the_cores(device: Callable[..., BlockDevice]) -> None:
    network, batch = switched(7, 1), EvidenceBatch(3)
    check_posteriors(network, batch, on_device(network, batch, opened_with(device, 10_000), {}), 1e-12)


@ON
@pytest.mark.parametrize("precision", ["double", "single"])
def test_numbers_too_small_for_a_format_go_on_in_the_next(
    device: Callable[[], BlockDevice], precision: Precision
) -> None:
    network = rare()
    states = np.zeros(3, np.int32)
    states[1] = UNOBSERVED
    for observed in (30, 150):
        batch = EvidenceBatch(3, dict.fromkeys(range(observed), states))
        answers = on_device(network, batch, opened(device), {}, precision)
        tiny, tolerance = observed * np.log(1e-4), 1e-5 if precision == "single" else 1e-12
        np.testing.assert_allclose(answers.log_value, [tiny, 0, tiny], rtol=1e-12, atol=tolerance)
        np.testing.assert_allclose(answers.posteriors[7], [[1, 0], [1e-4, 1 - 1e-4], [1, 0]], rtol=tolerance)
