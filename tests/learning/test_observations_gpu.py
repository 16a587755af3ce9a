"""Expected counts on a GPU against those of the CPU; without a GPU, the kernels compiled for the CPU."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import junctor
import numpy as np
import numpy.typing as npt
import pytest
from emulation.components import EmulatedCounts
from emulation.nvrtc import compiles
from helpers.expected_counts import sampled
from helpers.strategies import evidence_batches, networks
from hypothesis import given
from hypothesis import strategies as st
from junctor import generate
from junctor.evidence.batch import EvidenceBatch
from junctor.learning import counts, counts_gpu, learn, observations
from junctor.learning.observations import Observations, observe, values_of
from junctor.model.errors import BudgetError
from junctor.model.network import Factor, Network, Variable
from junctor.model.options import ComputeOptions
from junctor_kernels.row_trees import components as split
from junctor_kernels.row_trees import counts_gpu as kernels
from junctor_kernels.row_trees import pieces

Floats = npt.NDArray[np.float64]
Devices = Callable[[], Any]
DEVICES = [EmulatedCounts, pytest.param(kernels.CudaCounts, marks=pytest.mark.gpu)]


def on_gpu(
    network: Network,
    batches: Iterable[EvidenceBatch],
    weights: Iterable[Floats] | None = None,
    device: Any = None,
    memory: int | None = None,
    threads: int = 1,
    values: Floats | None = None,
) -> tuple[bytes, float, Observations]:
    """Return counts and log-likelihood of the network's own numbers by a device, an emulated one if not given."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counts_gpu, "open_device", lambda: device or EmulatedCounts())
        options = ComputeOptions(threads=threads, device="gpu", device_memory=memory)
        found = observe(network, batches, weights, options)
        expected = found.expect(values_of(network) if values is None else values)
    return expected.counts.tobytes(), expected.log_likelihood, found


def agree(
    network: Network,
    batches: list[EvidenceBatch],
    weights: list[Floats] | None = None,
    device: Any = None,
    values: Floats | None = None,
) -> Observations:
    """Compare a device with the CPU: log P bit by bit, counts up to their last digits."""
    values = values_of(network) if values is None else values
    counts, log_likelihood, found = on_gpu(network, batches, weights, device, values=values)
    on_cpu = observe(network, batches, weights)
    wanted = on_cpu.expect(values)
    np.testing.assert_allclose(np.frombuffer(counts), wanted.counts, rtol=1e-15, atol=0)
    assert log_likelihood == wanted.log_likelihood
    every = np.concatenate([values, found._likelihoods])
    logs = [each._propagation.count(every, len(values))[0] for each in (found, on_cpu)]
    np.testing.assert_array_equal(*logs)
    return found


def classes(features: int, states: int, latent: int, seed: int = 1) -> Network:
    """Return a latent class model: features that are independent given the class, which comes first."""
    random = np.random.default_rng(seed)
    variables = [Variable("class", tuple(map(str, range(latent))))]
    factors = [Factor((0,), random.dirichlet(np.ones(latent)))]
    for v in range(1, features + 1):
        variables.append(Variable(f"x{v}", tuple(map(str, range(states)))))
        factors.append(Factor((0, v), random.dirichlet(np.ones(states), size=latent)))
    return Network("classes", tuple(variables), tuple(factors))


def rows_of_classes(network: Network, rows: int, missing: float = 0.0) -> EvidenceBatch:
    """Return samples of a latent class model, in all of which the class is missing."""
    batch = sampled(network, rows, missing, 2)
    return EvidenceBatch(rows, {**batch.states, 0: np.full(rows, -1, np.int32)})


@pytest.mark.parametrize("device", DEVICES)
@given(st.data())
def test_any_network_and_evidence(device: Devices, data: st.DataObject) -> None:
    network = data.draw(networks(kind="bayes"))
    batches = [data.draw(evidence_batches(network, max_rows=5)) for _ in range(2)]
    drawn = st.sampled_from((1.0, 0.0, 2.0, 0.3))
    weights = [np.array(data.draw(st.lists(drawn, min_size=b.rows, max_size=b.rows))) for b in batches]
    agree(network, batches, weights, device())


@pytest.mark.parametrize("device", DEVICES)
def test_pieces_of_many_components(device: Devices) -> None:
    network = classes(6, 4, 5)
    found = agree(network, [rows_of_classes(network, 6000, 0.02)], None, device())
    gpu = found._propagation._gpu
    assert gpu is not None
    lists = gpu._blocks[0].counts
    # More pieces than entries, so some entries have several.
    assert lists["unit_count"] > 2 * lists["entry_count"]
    assert found.components > 4 * pieces.PIECE


@pytest.mark.parametrize("terms", [1, 500, 5_000])
def test_blocks_change_rounding_alone(terms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    network = generate.random_network(10, seed=3)
    batch = sampled(network, 120, 0.4, 5)
    monkeypatch.setattr(counts_gpu, "BLOCK_TERMS", terms)
    found = agree(network, [batch])
    gpu = found._propagation._gpu
    assert gpu is not None
    assert len(gpu._blocks) > 1
    firsts = [block.first for block in gpu._blocks]
    assert firsts[0] == 0 < min(after - before for before, after in pairwise([*firsts, len(gpu._order)]))


@pytest.mark.parametrize("device", DEVICES)
def test_memory_and_threads_change_nothing(device: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    network = classes(5, 3, 4)
    batch = rows_of_classes(network, 900, 0.1)
    monkeypatch.setattr(counts_gpu, "BLOCK_TERMS", 2_000)
    counts, log_likelihood, found = on_gpu(network, [batch], None, device(), 1 << 26)
    gpu = found._propagation._gpu
    assert gpu is not None
    sizes = [len(block.memory) for block in gpu._blocks]
    arrays = (gpu._values, gpu._sums, gpu._totals, gpu._rows, gpu._unit_sums)
    least = sum(array.nbytes for array in arrays) + max(sizes)
    away = set()
    # From the least memory to that of all blocks.
    for memory, threads in ((least, 1), (least + sum(sizes) // 2, 2), (least + sum(sizes), 3)):
        again = on_gpu(network, [batch], None, device(), memory, threads)
        assert (again[0], again[1]) == (counts, log_likelihood)
        assert again[2]._propagation._gpu is not None
        away.add(sum(block.is_away for block in again[2]._propagation._gpu._blocks))
    assert len(away) == 3
    assert {0, len(sizes)} <= away
    with pytest.raises(BudgetError, match="raise --device-memory"):
        on_gpu(network, [batch], None, device(), least - 1)


def test_the_peak_stays_within_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    network, device, memory = classes(5, 3, 4), EmulatedCounts(), 30_000
    monkeypatch.setattr(counts_gpu, "BLOCK_TERMS", 2_000)
    on_gpu(network, [rows_of_classes(network, 900)], None, device, memory)
    assert memory // 2 < device.peak <= memory
    # Without a limit, a share of what is free.
    on_gpu(network, [rows_of_classes(network, 900)], None, EmulatedCounts(memory))
    with pytest.raises(BudgetError, match=r"expected counts need .* of the GPU"):
        on_gpu(network, [rows_of_classes(network, 900)], None, EmulatedCounts(4_000))


def test_lists_that_take_too_much_of_the_host_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    network = classes(5, 3, 4)
    found = observe(network, [rows_of_classes(network, 900)], options=ComputeOptions(threads=1, device="gpu"))
    monkeypatch.setattr(counts_gpu, "open_device", EmulatedCounts)
    # Less than is free when the rows are split.
    monkeypatch.setattr(counts_gpu, "allowed_memory", lambda _: 10_000)
    with pytest.raises(BudgetError, match="lists of components"):
        found.expect(values_of(network))


@pytest.mark.parametrize("device", DEVICES)
def test_what_underflows_is_left_to_the_cpu(device: Devices) -> None:
    network = classes(40, 2, 3)
    tiny = [Factor(factor.scope, np.array([[1 - 1e-9, 1e-9]] * 3)) for factor in network.factors[1:]]
    network = Network("tiny", network.variables, (network.factors[0], *tiny))
    states = {v: np.array([v % 2, 1, 0], np.int32) for v in range(1, 41)}
    found = agree(network, [EvidenceBatch(3, states)], None, device())
    gpu = found._propagation._gpu
    assert gpu is not None
    results = np.zeros(found.components), np.zeros(found.components, np.uint8)
    _, left = gpu.count(values_of(network), results, lambda: None)
    # The second row is below 1e-300.
    assert left.tolist() == [1]
    assert results[0][[0, 2]].all()


@pytest.mark.parametrize("device", DEVICES)
def test_many_states_of_many_components(device: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    network = classes(6, 4, 10)
    batch = rows_of_classes(network, 4000, 0.1)
    wanted = observe(network, [batch]).expect(values_of(network))
    monkeypatch.setattr(observations, "ENUMERATED", 8)
    counts, log_likelihood, found = on_gpu(network, [batch], None, device())
    gpu = found._propagation._gpu
    assert gpu is not None
    # A pattern of 10 states has that many components, most of those of 160 have fewer.
    assert len(gpu.rest)
    assert len(gpu._order)
    np.testing.assert_allclose(np.frombuffer(counts), wanted.counts, rtol=1e-13)
    assert log_likelihood == pytest.approx(wanted.log_likelihood, rel=1e-14)


def test_patterns_that_a_gpu_takes() -> None:
    network = classes(3, 4, 20)
    everything = [rows_of_classes(network, 50), EvidenceBatch(1, {})]
    gpu = on_gpu(network, everything)[2]._propagation._gpu
    assert gpu is not None
    store = observe(network, everything)._store
    # 20 states in every row, and 1280 in one.
    assert len(gpu._order) == store.counts[split.COMPONENTS] - 1
    assert gpu.rest.tolist() == [store.counts[split.COMPONENTS] - 1]


@pytest.mark.parametrize("device", DEVICES)
def test_other_numbers_than_those_of_the_network(device: Devices) -> None:
    network = classes(5, 3, 4)
    batch = rows_of_classes(network, 200, 0.1)
    for seed in (2, 3):
        agree(network, [batch], None, device(), values_of(classes(5, 3, 4, seed)))


def test_numbers_above_one_are_left_to_the_cpu() -> None:
    network, device = classes(5, 3, 4), EmulatedCounts()
    agree(network, [rows_of_classes(network, 50)], None, device, 2 * values_of(network))
    assert not device.launches


def test_calls_at_the_same_time() -> None:
    network = classes(5, 3, 4)
    batch = rows_of_classes(network, 300, 0.2)
    others = [values_of(classes(5, 3, 4, seed)) for seed in range(6)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counts_gpu, "open_device", EmulatedCounts)
        found = observe(network, [batch], options=ComputeOptions(threads=2, device="gpu"))
        one_by_one = [found.expect(values).counts.tobytes() for values in others]
        with ThreadPoolExecutor(3) as pool:
            at_once = list(pool.map(lambda values: found.expect(values).counts.tobytes(), others))
    assert at_once == one_by_one


def test_a_gpu_is_taken_where_it_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    network, device = classes(5, 3, 4), EmulatedCounts()
    monkeypatch.setattr(counts_gpu, "has_gpu", lambda: True)
    monkeypatch.setattr(counts_gpu, "open_device", lambda: device)
    # Too little work, no room, fewer components than states, and enough of all.
    for terms, memory, rows, is_used in ((1 << 30, None, 60, 0), (1, 1000, 60, 0), (1, None, 3, 0), (1, None, 60, 1)):
        batch = rows_of_classes(network, rows)
        wanted = observe(network, [batch]).expect(values_of(network))
        monkeypatch.setattr(counts_gpu, "DEVICE_TERMS", terms)
        found = observe(network, [batch], options=ComputeOptions(threads=1, device_memory=memory))
        expected = found.expect(values_of(network))
        np.testing.assert_allclose(expected.counts, wanted.counts, rtol=1e-15)
        assert bool(device.launches) == is_used


def test_an_interrupted_call_changes_nothing_for_the_next_one() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    network = classes(5, 3, 4)
    counts, log_likelihood, found = on_gpu(network, [rows_of_classes(network, 60)])
    gpu = found._propagation._gpu
    assert gpu is not None
    results = np.zeros(found.components), np.zeros(found.components, np.uint8)
    with pytest.raises(KeyboardInterrupt):
        gpu.count(values_of(classes(5, 3, 4, 2)), results, interrupt)
    again = found.expect(values_of(network))
    assert (again.counts.tobytes(), again.log_likelihood) == (counts, log_likelihood)


def test_nothing_to_count_needs_no_device() -> None:
    network = generate.random_network(5, seed=1)
    for batch in (sampled(network, 20, 0.0, 1), EvidenceBatch(0)):
        found = observe(network, [batch], options=ComputeOptions(threads=1, device="gpu"))
        assert math.isfinite(found.expect(values_of(network)).log_likelihood)


def test_a_full_device_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(EmulatedCounts):
        def empty(self, shape: int, dtype: npt.DTypeLike) -> Any:
            raise MemoryError("17 bytes of device memory")

    network = classes(5, 3, 4)
    with pytest.raises(BudgetError, match=r"too little free memory .17 bytes"):
        on_gpu(network, [rows_of_classes(network, 20)], None, Full())


def test_a_fit_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    network, device = classes(4, 3, 3), EmulatedCounts()
    batch = rows_of_classes(network, 200, 0.1)
    table = {
        variable.name: [None if s < 0 else variable.states[s] for s in batch.states[v].tolist()]
        for v, variable in enumerate(network.variables)
    }
    monkeypatch.setattr(counts_gpu, "open_device", lambda: device)
    # They would find no GPU.
    for module in (learn, counts):
        monkeypatch.setattr(module, "check_device", lambda _: None)
    options: dict[str, Any] = {"max_iterations": 5, "tolerance": 0.0, "holdout": 0.1}
    found, wanted = (junctor.learn(network, table, device=name, **options) for name in ("gpu", "cpu"))
    assert device.launches
    for one, other in zip(found.network.factors, wanted.network.factors, strict=True):
        np.testing.assert_allclose(one.table, other.table, rtol=1e-12)
    expected = [junctor.expected_counts(network, table, device=name)["count"] for name in ("gpu", "cpu")]
    np.testing.assert_allclose(*expected, rtol=1e-15)


@pytest.mark.parametrize("architecture", ["sm_80", pytest.param("sm_100", marks=pytest.mark.slow)])
def test_the_kernels_compile(architecture: str) -> None:
    compiles(kernels.source(), architecture)


def test_the_source_has_every_field_in_order() -> None:
    text = kernels.source()
    body = text[text.index("struct Block {") : text.index("};", text.index("struct Block {"))]
    assert tuple(re.findall(r"(\w+)\s*[,;]", body)) == kernels.FIELDS
