"""Propagation in chunks on a GPU against the same plan on the CPU; without a GPU, on a stand-in for one."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import strategies
from helpers.chunk_plans import ENDLESS, least_working
from hypothesis import given, settings
from hypothesis import strategies as st
from junctor.backends.evidence_blocks import block_of
from junctor.backends.numpy import EvidenceBlock
from junctor.cost.figures import shipped_figures
from junctor.evidence.batch import EvidenceBatch, SoftEvidence
from junctor.evidence.patterns import patterns_of
from junctor.formats import read_network
from junctor.generate import grid
from junctor.model.network import Factor, Network, Variable
from junctor.out_of_core.gpu import devices as chunk_gpus
from junctor.out_of_core.gpu import launches as chunk_launches
from junctor.out_of_core.gpu import run as chunked_gpu
from junctor.out_of_core.gpu import slots as chunk_slots
from junctor.out_of_core.gpu.copies import RowsCopy
from junctor.out_of_core.gpu.devices import DeviceGroup
from junctor.out_of_core.gpu.launches import StepLaunch
from junctor.out_of_core.gpu.run import ChunkedGpuProgram
from junctor.out_of_core.memory_splits import OFFSET_BYTES
from junctor.out_of_core.program import ChunkedProgram
from junctor.placement import fusion as groups
from junctor.placement import placement as chunk_places
from junctor.placement import residency as residents
from junctor.placement.pass_spans import side_by_side
from junctor.placement.placement import outer_variables, pinned_offsets, reuse_barriers, slot_bytes
from junctor.placement.residency import choose_residency
from junctor.placement.sharding import Sharding, agreement, shard_passes
from junctor.planning.chunk_search import candidates
from junctor.planning.chunks import ChunkPlan, chunk_plan, configurations, loaded_entries
from junctor.planning.compile import Problem, compile_plan
from junctor.planning.shape import Pattern, shape_of
from junctor.runtime.devices import open_gpu, open_other_gpus
from junctor_kernels.gpu import entries as entries_gpu
from junctor_kernels.gpu.blocks import CudaBlockDevice
from junctor_kernels.gpu.chains import MOST_STAGES
from junctor_kernels.tables import reference
from junctor_kernels.tables.reference import Algebra

ROOM = 1 << 28
Devices = Callable[[int], list[Any]]
ALL = pytest.mark.parametrize("algebra", reference.ALGEBRAS.values(), ids=lambda each: each.name)
BOTH = pytest.mark.parametrize("algebra", [reference.SINGLE, reference.DOUBLE], ids=lambda each: each.name)


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def devices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Devices]:
    """Return so many GPUs; where there are too few real ones, the first has more than one room."""
    # Small exchanges as well.
    monkeypatch.setattr(chunk_launches, "AHEAD_BYTES", 1 << 8)
    if request.param == "cuda":
        rooms = (CudaBlockDevice(0, ROOM) for _ in itertools.count())
        yield lambda count: list(
            itertools.islice(itertools.chain([open_gpu(ROOM)], open_other_gpus(ROOM), rooms), count)
        )
        return
    from emulation import cupy_memory as emulated_cupy

    emulated_cupy.stand_in(monkeypatch)
    yield lambda count: [emulated_cupy.Device(ROOM, n) for n in range(count)]


def cut(network: Network, working: int) -> ChunkPlan:
    plan = compile_plan(shape_of(network), Pattern(frozenset(), frozenset()), rows=1)
    return chunk_plan(plan, working, 1 << 40, 0)


def steep(network: Network) -> Network:
    """Return it with numbers of many magnitudes, the first one of a table not the largest."""
    tables = [replace(each, table=each.table**9) for each in network.factors]
    return replace(network, factors=tuple(tables))


def check(
    network: Network, chunks: ChunkPlan, algebra: Algebra, found_on: list[Any], for_tables: int | None = None
) -> DeviceGroup:
    """Compare with the CPU; for_tables: the bytes that each device has beside slots."""
    block = EvidenceBlock(1, {}, {})
    wanted = ChunkedProgram(chunks, network, algebra).run(block)
    slot = slot_bytes(chunks, algebra.dtype.itemsize)
    for device in found_on if for_tables is not None else []:
        device.room = OFFSET_BYTES + chunk_slots.SLOTS * slot + for_tables
    gpu = DeviceGroup(chunks, algebra, *found_on)
    found = ChunkedGpuProgram(chunks, network, algebra, gpu).run(block)
    again = ChunkedGpuProgram(chunks, network, algebra, gpu).run(block)
    tolerance = 1e-5 if algebra.dtype == np.float32 else 1e-12
    np.testing.assert_allclose(found.log_value, wanted.log_value, rtol=tolerance, atol=tolerance)
    assert found.doubtful == wanted.doubtful
    for variable, posterior in wanted.posteriors.items():
        np.testing.assert_allclose(found.posteriors[variable], posterior, atol=tolerance)
        # Whatever slots came first, the numbers are the same.
        np.testing.assert_array_equal(found.posteriors[variable], again.posteriors[variable])
    if not gpu.resident and not gpu.leaves:
        assert sum(slot.loaded for slot in gpu.slots) >= 2 * chunks.loaded * algebra.dtype.itemsize
        assert sum(slot.stored for slot in gpu.slots) >= 2 * chunks.stored * algebra.dtype.itemsize
    return gpu


@ALL
@pytest.mark.parametrize("working", [16, 1 << 10])
def test_small_grids(devices: Devices, working: int, algebra: Algebra) -> None:
    network = grid(3, 4, seed=1)
    check(network, cut(network, working), algebra, devices(1))


@pytest.fixture
def small_panels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small tables are cut into panels as large ones are."""
    kept = entries_gpu.launches_of, chunk_slots._with_table, chunk_slots.fits_in_place
    for each in kept:
        each.cache_clear()
    monkeypatch.setattr(entries_gpu, "LARGE_ENTRIES", 1 << 5)
    monkeypatch.setattr(entries_gpu, "LARGE_PANEL", 1 << 2)
    monkeypatch.setattr(entries_gpu, "FAR_PANEL", 1 << 3)
    yield
    for each in kept:
        each.cache_clear()


@BOTH
@pytest.mark.usefixtures("small_panels")
@pytest.mark.parametrize("count", [1, 2])
def test_entries_of_a_thread_that_lie_apart(
    devices: Devices, count: int, algebra: Algebra, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = set[str]()
    kernel = chunk_slots.DeviceSlots.kernel
    monkeypatch.setattr(chunk_slots.DeviceSlots, "kernel", lambda slots, name: names.add(name) or kernel(slots, name))
    # Without chains, which do most of a grid otherwise.
    monkeypatch.setattr(groups, "chain_of", lambda *of: None)
    network = grid(5, 5, seed=2)
    check(network, cut(network, 1 << 9), algebra, devices(count))
    assert any(name.startswith("reduce_apart") for name in names)


@ALL
@settings(max_examples=8)
@given(data=st.data(), working=st.sampled_from([0, 3, 50]), lean=st.booleans())
def test_networks_with_anything_in_them(
    devices: Devices, algebra: Algebra, data: st.DataObject, working: int, lean: bool
) -> None:
    """Mixed cardinalities, zeros, ties, evidence and likelihoods, in the smallest chunks."""
    network = data.draw(strategies.networks(max_variables=6, max_joint=256))
    batch = data.draw(strategies.evidence_batches(network, max_rows=1, min_rows=1, invalid=False))
    check_row(network, batch, algebra, devices, working, lean)


@ALL
def test_a_first_task_far_below_the_others(devices: Devices, algebra: Algebra) -> None:
    """Its power of two takes the others beyond any format."""
    variables = Variable("a", ("0", "1")), Variable("b", ("0", "1", "2"))
    network = Network("far", variables, (Factor((0, 1), np.array([[1, 1, 1e-300], [1, 1, 1e20]])),), "markov")
    for working in (0, 3):
        for row in ([0.0, 0.0, 1.0], [1e-40, 7.0, 0.2]):
            batch = EvidenceBatch(1, {}, {1: SoftEvidence(np.array([0]), np.array([row]))})
            check_row(network, batch, algebra, devices, working)


def check_row(
    network: Network, batch: EvidenceBatch, algebra: Algebra, devices: Devices, working: int, lean: bool = False
) -> None:
    """Compare a row with the CPU; working: entries beyond the smallest chunks."""
    (group,) = patterns_of(batch).exact(np.arange(1))
    plan = compile_plan(shape_of(network), group.pattern, rows=1, lean=lean)
    chunks = chunk_plan(plan, least_working(plan) + working, ENDLESS, 0)
    block = block_of(batch, np.arange(1), group.pattern, network.cardinalities)
    wanted = ChunkedProgram(chunks, network, algebra).run(block)
    gpu = DeviceGroup(chunks, algebra, *devices(1))
    found = ChunkedGpuProgram(chunks, network, algebra, gpu).run(block)
    if found.doubtful or wanted.doubtful:
        # The next number format answers.
        assert not algebra.logs
        return
    tolerance = 1e-5 if algebra.dtype == np.float32 else 1e-12
    np.testing.assert_allclose(found.log_value, wanted.log_value, rtol=tolerance, atol=tolerance)
    for variable, posterior in wanted.posteriors.items():
        np.testing.assert_allclose(found.posteriors[variable], posterior, atol=tolerance)


@ALL
@pytest.mark.parametrize("spread", [0, 1 << 26])
def test_tasks_that_are_added_up(
    devices: Devices, spread: int, algebra: Algebra, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_places, "SPREAD_BYTES", spread)
    network = grid(3, 4, seed=2)
    chunks = cut(network, 16)
    assert any(each.summed for each in chunks.passes)
    check(network, chunks, algebra, devices(1))


@pytest.mark.parametrize("count", [1, 3])
def test_joints_of_both_messages_in_one_pass(devices: Devices, count: int) -> None:
    network = steep(grid(8, 8, seed=4))
    problem = Problem(shape_of(network), Pattern(frozenset(), frozenset()))
    plan = next(each.plan for each in candidates(problem, 1) if each.lean and each.order.criterion == "sweep")
    chunks = chunk_plan(plan, 1 << 7, 1 << 40, 0)
    joints = [[s.out for s in each.steps if s.phase == "marginal" and len(s.operands) > 1] for each in chunks.passes]
    assert any(len(outs) > 1 for outs, each in zip(joints, chunks.passes, strict=True) if each.fixed)
    check(network, chunks, reference.SINGLE, devices(count))


@ALL
def test_several_devices(devices: Devices, algebra: Algebra) -> None:
    network = steep(grid(3, 4, seed=3))
    chunks = cut(network, 16)
    gpu = check(network, chunks, algebra, devices(2))
    if len(gpu.devices) > 1:
        assert {slot.device for slot in gpu.slots if slot.loaded} == set(gpu.devices)


@pytest.mark.parametrize("seed", [0, 2, 4, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 3, 5))])
def test_whatever_stream_comes_first(devices: Devices, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the tables stay on the devices, pieces are copied from where they are, and little is staged."""
    monkeypatch.setattr(residents, "RESIDENT_PIECE", 1)
    monkeypatch.setattr(chunk_places, "SPREAD_BYTES", 1 << seed * 2)
    monkeypatch.setattr(chunked_gpu, "RUN_BYTES", 1 << seed)
    monkeypatch.setattr(chunk_gpus, "STAGING_BYTES", 1 << 12 + seed)
    if "cupy" in sys.modules and hasattr(sys.modules["cupy"], "chance"):
        sys.modules["cupy"].chance.seed(seed)
    network = steep(grid(3 + seed % 2, 4, seed=seed))
    check(network, cut(network, 16), reference.DOUBLE, devices((1, 1, 2, 2, 3, 4)[seed]), (seed + 1) << 11)


@BOTH
@pytest.mark.parametrize(
    ("states", "count"),
    [
        (2, 1),
        (2, 4),
        ((2, 3), 3),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ((3, 1), ((2, 4), 1), (3, 2))),
    ],
)
def test_where_tables_lie_changes_no_number(
    devices: Devices, states: Any, count: int, algebra: Algebra, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residents, "RESIDENT_PIECE", 1)
    network = steep(grid(3, 4, states=states, seed=1))
    chunks = cut(network, 64)
    found = []
    for room in (0, 1 << 12, 1 << 20) if count == 1 else (1 << 12, 1 << 20):
        gpu = check(network, chunks, algebra, devices(count), room)
        assert bool(gpu.leaves) == (room == 1 << 20)
        assert bool(gpu.resident) == bool(room)
        found.append(ChunkedGpuProgram(chunks, network, algebra, gpu).run(EvidenceBlock(1, {}, {})))
    if count > 1:
        gpu = check(network, chunks, algebra, devices(1), 0)
        found.append(ChunkedGpuProgram(chunks, network, algebra, gpu).run(EvidenceBlock(1, {}, {})))
    for other in found[1:]:
        assert other.log_value == found[0].log_value
        for variable, posterior in other.posteriors.items():
            np.testing.assert_array_equal(posterior, found[0].posteriors[variable])


@BOTH
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("room", [0, pytest.param(1 << 12, marks=pytest.mark.slow), 1 << 20])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_passes_side_by_side_change_no_number(
    devices: Devices, seed: int, room: int, count: int, algebra: Algebra, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residents, "RESIDENT_PIECE", 1)
    monkeypatch.setattr(chunk_places, "SPREAD_BYTES", seed << 4)
    network, block = steep(grid(4, 5, seed=seed)), EvidenceBlock(1, {}, {})
    chunks = cut(network, 16)
    beside = side_by_side(chunks, np.random.default_rng(seed).uniform(0.1, 9, len(chunks.passes)).tolist())
    assert beside.beside != tuple(range(len(chunks.passes)))
    found = []
    for each in (chunks, beside):
        gpu = check(network, each, algebra, devices(count), room)
        assert bool(gpu.resident) == bool(room)
        found.append(ChunkedGpuProgram(each, network, algebra, gpu).run(block))
    assert found[0].log_value == found[1].log_value
    for variable, posterior in found[0].posteriors.items():
        np.testing.assert_array_equal(posterior, found[1].posteriors[variable])


def test_offsets_that_fill_their_room_end_passes_that_have_begun(
    devices: Devices, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, block = grid(4, 5, seed=3), EvidenceBlock(1, {}, {})
    chunks = cut(network, 16)
    beside = side_by_side(chunks, [1.0] * len(chunks.passes))
    wanted = ChunkedProgram(chunks, network, reference.DOUBLE).run(block)
    gpu = DeviceGroup(beside, reference.DOUBLE, *devices(2))
    # So little that offsets are released all the time.
    monkeypatch.setattr(chunk_slots, "OFFSET_BYTES", 1 << 12)
    program = ChunkedGpuProgram(beside, network, reference.DOUBLE, gpu)
    found = program.run(block)
    assert min(device.generation for device in gpu.devices) > 1
    for variable, posterior in wanted.posteriors.items():
        np.testing.assert_allclose(found.posteriors[variable], posterior, atol=1e-12)


def test_rows_of_pieces_from_where_they_are(devices: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_gpu, "RUN_BYTES", 1)
    network = grid(3, 4, seed=4)
    check(network, cut(network, 16), reference.DOUBLE, devices(1))


@BOTH
@pytest.mark.parametrize("count", [1, 2, 4])
def test_tables_stay_on_the_devices(
    devices: Devices, count: int, algebra: Algebra, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residents, "RESIDENT_PIECE", 1)
    network = grid(3, 4, seed=5)
    chunks = cut(network, 16)
    gpu = check(network, chunks, algebra, devices(count))
    assert len(gpu.resident) > len(chunks.passes) / 2
    used = [stay.sharding.used for stay in gpu.resident.values()]
    assert frozenset().union(*used) == set(range(len(gpu.devices)))


@BOTH
@pytest.mark.parametrize(
    ("states", "working", "count"), [(2, 32, 3), pytest.param((2, 3), 48, 4, marks=pytest.mark.slow)]
)
def test_exchanges_bring_the_same_bytes_in_a_launch_as_in_copies(
    devices: Devices, states: Any, working: int, count: int, algebra: Algebra, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residents, "RESIDENT_PIECE", 1)
    network, block = steep(grid(4, 5, states=states, seed=8)), EvidenceBlock(1, {}, {})
    chunks, found = cut(network, working), []
    for launched in (True, False):
        monkeypatch.setattr(chunk_launches, "is_launched", lambda rows, nbytes, launched=launched: launched)
        program = ChunkedGpuProgram(chunks, network, algebra, DeviceGroup(chunks, algebra, *devices(count)))
        found.append(program.run(block))
        exchanges = list(program.launches._exchanges.values())
        # Small pieces of mixed cardinalities are no whole vectors: these are copied in both cases.
        as_launches = [each for each in exchanges if each.launch]
        assert exchanges
        assert bool(as_launches) == launched
        # From several devices at once.
        assert not launched or max(int(each.launch.words[3]) for each in as_launches if each.launch) > 1
    assert found[0].log_value == found[1].log_value
    for variable, posterior in found[0].posteriors.items():
        np.testing.assert_array_equal(posterior, found[1].posteriors[variable])


@BOTH
def test_small_results_are_made_on_the_host(
    devices: Devices, algebra: Algebra, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, block = steep(grid(3, 4, seed=9)), EvidenceBlock(1, {}, {})
    chunks, found, made = cut(network, 64), [], []
    for most in (chunk_gpus.CARRIED_BYTES, 0):
        monkeypatch.setattr(chunk_gpus, "CARRIED_BYTES", most)
        gpu = DeviceGroup(chunks, algebra, *devices(1))
        program = ChunkedGpuProgram(chunks, network, algebra, gpu)
        found.append(program.run(block))
        made.append(
            {table for kept in program.launches._kept.values() for table in kept.in_place} - gpu.resident.keys()
        )
    results = {table for _, table in chunks.plan.marginals}
    # Of passes whose tasks hold nothing constant; the others are added up.
    assert made[0] & results
    assert not made[1] & results
    assert found[0].log_value == found[1].log_value
    for variable, posterior in found[0].posteriors.items():
        np.testing.assert_array_equal(posterior, found[1].posteriors[variable])


def test_few_large_runs_are_left_to_copies() -> None:
    def rows(count: int, width: int, apart: int = 1) -> list[RowsCopy]:
        return [RowsCopy(0, width, 0, 2 * width, width, apart)] * count

    # Of one run the time of the call counts, and then that links are a little faster for copies.
    assert chunk_launches.is_launched(rows(1, 1 << 20), 1 << 20)
    assert not chunk_launches.is_launched(rows(1, 1 << 28), 1 << 28)
    # Several come one after the other, from devices that others read from at that time, too.
    assert chunk_launches.is_launched(rows(1, 1 << 16, apart=1 << 12), 1 << 28)
    assert chunk_launches.is_launched(rows(64, 1 << 22), 1 << 28)


@pytest.mark.parametrize(
    ("working", "room", "count", "algebra"),
    [
        (2048, 1 << 15, 2, reference.DOUBLE),
        (3072, 1 << 20, 1, reference.SINGLE),
        (2048, 1 << 15, 1, reference.LOG),
        (2048, 1 << 15, 1, reference.MAX_SINGLE),
    ],
)
def test_chains_are_their_steps(
    devices: Devices, working: int, room: int, count: int, algebra: Algebra, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residents, "RESIDENT_PIECE", 1)
    monkeypatch.setattr(groups, "FACTOR_SHARE", 1)
    network, nothing = grid(10, 10, seed=7), Pattern(frozenset(), frozenset())
    every = candidates(Problem(shape_of(network), nothing), 1)
    plans = [each.plan for each in every if each.order.criterion == "sweep"]
    found = []
    itemsize = algebra.dtype.itemsize
    for stages in (MOST_STAGES[itemsize], 1):
        monkeypatch.setitem(MOST_STAGES, itemsize, stages)
        chunks = chunk_plan(plans[0], working, 1 << 40, 0)
        chains = [
            group.steps for each in chunks.passes for group in groups.fused_steps(chunks, each, itemsize) if group.chain
        ]
        assert (len(chains) >= 20) == (stages > 1)
        slot, found_on = slot_bytes(chunks, algebra.dtype.itemsize), devices(count)
        for device in found_on:
            device.room = OFFSET_BYTES + chunk_slots.SLOTS * slot + room
        gpu = DeviceGroup(chunks, algebra, *found_on)
        found.append(ChunkedGpuProgram(chunks, network, algebra, gpu).run(EvidenceBlock(1, {}, {})))
    found.append(ChunkedProgram(chunks, network, algebra).run(EvidenceBlock(1, {}, {})))
    rounding = {"rtol": 1e3 * float(np.finfo(algebra.dtype).eps)}
    for other in found[1:]:
        np.testing.assert_allclose(found[0].log_value, other.log_value, **rounding)
        for variable, posterior in found[0].posteriors.items():
            np.testing.assert_allclose(posterior, other.posteriors[variable], **rounding)


@pytest.mark.parametrize(
    ("working", "room", "count", "run_bytes"),
    [
        pytest.param(16, 1 << 10, 1, 1, marks=pytest.mark.slow),
        (16, 1 << 11, 3, 1 << 16),
        (32, 1 << 9, 1, 1 << 16),
        (32, 1 << 11, 3, 1),
        (32, 1 << 11, 2, 1),
    ],
)
def test_tables_come_back_for_several_readers(
    devices: Devices, working: int, room: int, count: int, run_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residents, "RESIDENT_PIECE", 1)
    monkeypatch.setattr(chunk_places, "SPREAD_BYTES", 1 << 4)
    monkeypatch.setattr(chunked_gpu, "RUN_BYTES", run_bytes)
    network = steep(grid(6, 6, seed=6))
    chunks = cut(network, working)
    gpu = check(network, chunks, reference.DOUBLE, devices(count), room)
    brought = [(table, stay.since) for table, stay in gpu.resident.items() if stay.brought]
    assert brought
    in_place = [gpu.in_place(one, *each) is not None for one in gpu.devices for each in brought]
    assert all(in_place) == (working == 32)


@pytest.mark.parametrize("gpus", [1, 2, 3, 4])
@pytest.mark.parametrize("room", [0, 1 << 10, 1 << 12, 1 << 20])
@pytest.mark.parametrize("beside", [False, True])
def test_what_lies_at_the_same_place_is_not_there_at_the_same_time(
    beside: bool, room: int, gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residents, "RESIDENT_PIECE", 1)
    monkeypatch.setattr(chunk_places, "SPREAD_BYTES", 0)
    chunks = cut(grid(6, 6, seed=1), 48)
    if beside:
        chunks = side_by_side(chunks, np.random.default_rng(0).uniform(0.1, 9, len(chunks.passes)).tolist())
    lives = chunks.lifetimes()
    results = {*chunks.plan.totals, *(table for _, table in chunks.plan.marginals)}
    dealt = shard_passes(chunks, [outer_variables(chunks, each, 8) for each in chunks.passes], gpus)
    rates = shipped_figures().gpu_rates
    resident = choose_residency(chunks, 8, room, dealt, bus=rates.bus, device=rates.copy)
    pinned, size = pinned_offsets(chunks, 8, resident)
    before = reuse_barriers(chunks, 8, resident, pinned)
    assert resident.keys() | pinned.keys() == lives.keys()
    brought = {table for table, stay in resident.items() if stay.brought}
    assert resident.keys() & pinned.keys() == brought
    assert not resident.keys() & results
    assert bool(resident) == bool(room)
    assert brought or gpus > 1 or room in (0, 1 << 20)
    shares = {
        table: chunks.plan.tables[table].entries * 8 * stay.sharding.most // stay.sharding.count
        for table, stay in resident.items()
    }
    stays = {table: (stay.since, lives[table][1]) for table, stay in resident.items()}
    until = {table: chunks.beside[stays[table][0]] if table in brought else lives[table][1] for table in pinned}
    on_host = {table: (lives[table][0], last) for table, last in until.items()}
    sizes = {table: chunks.plan.tables[table].entries * 8 for table in pinned}
    memories = [(pinned, sizes, on_host, before.pinned, size)]
    for gpu in range(gpus):
        there = {table: stay.offset for table, stay in resident.items() if gpu in stay.sharding.used}
        memories.append((there, shares, stays, before.resident, room))
    for places, taken, alive, done, limit in memories:
        ends = {table: at + taken[table] for table, at in places.items()}
        assert max(ends.values(), default=0) <= limit
        for one, other in itertools.combinations(places, 2):
            together = alive[one][0] <= alive[other][1] and alive[other][0] <= alive[one][1]
            overlap = places[one] < ends[other] and places[other] < ends[one]
            assert not (together and overlap)
            first, then = sorted((one, other), key=lambda table: alive[table])
            assert not overlap or alive[first][1] <= done[then] < alive[then][0]
    for table in brought:
        reader = resident[table].since
        assert lives[table][0] < reader < lives[table][1]
        assert table in chunks.passes[reader].loads
        # No two tasks bring the same part.
        assert loaded_entries(chunks.plan, chunks.passes[reader], [table]) == chunks.plan.tables[table].entries


@given(st.integers(1, 9), st.lists(st.integers(2, 4), max_size=4), st.data())
def test_configurations_are_dealt_in_even_blocks(gpus: int, sizes: list[int], data: st.DataObject) -> None:
    deal = Sharding(gpus, tuple(range(len(sizes))), tuple(sizes), data.draw(st.integers(0, gpus - 1)))
    whole = [dict(zip(deal.by, states, strict=True)) for states in configurations(deal.sizes)]
    assert [deal.number(states) for states in whole] == list(range(deal.count))
    blocks = {gpu: [deal.number(states) for states in whole if deal.gpu(states) == gpu] for gpu in range(gpus)}
    assert {gpu for gpu, block in blocks.items() if block} == deal.used
    for gpu in deal.used:
        assert blocks[gpu] == list(range(deal.begin(gpu), deal.begin(gpu) + len(blocks[gpu])))
    assert max(map(len, blocks.values())) == deal.most
    assert len(deal.used) == min(gpus, deal.count)


@pytest.mark.parametrize("gpus", [2, 3, 4])
def test_neighbouring_passes_are_dealt_alike(gpus: int) -> None:
    """As long as they hold the same variables constant nothing moves; every pass keeps as many GPUs busy as it can."""
    chunks = cut(grid(6, 6, seed=1), 64)
    outer = [outer_variables(chunks, each, 8) for each in chunks.passes]
    dealt = shard_passes(chunks, outer, gpus)
    for each, variables, deal in zip(chunks.passes, outer, dealt.passes, strict=True):
        assert set(deal.by) <= set(variables)
        assert len(deal.used) == min(gpus, chunks.plan.shape.entries(variables))
        assert all(dealt.tables[table] == deal for table in each.stores)
    stored = [(t, n) for n, each in enumerate(chunks.passes) for t in each.loads if t in dealt.tables]
    stay = sum(chunks.plan.tables[t].entries * agreement(dealt.tables[t], dealt.passes[n]) for t, n in stored)
    # By chance one entry in so many stays.
    assert stay > 1.1 / gpus * sum(chunks.plan.tables[t].entries for t, _ in stored)


def test_a_task_that_fails_ends_the_pass(devices: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    network = grid(3, 4, seed=1)
    chunks = cut(network, 16)
    gpu = DeviceGroup(chunks, reference.DOUBLE, *devices(1))
    done: list[int] = []

    def fail(*_: Any) -> None:
        done.append(1)
        if len(done) > 5:
            raise MemoryError("for this test")

    with monkeypatch.context() as patch:
        patch.setattr(StepLaunch, "enqueue", fail)
        with pytest.raises(MemoryError, match="for this test"):
            ChunkedGpuProgram(chunks, network, reference.DOUBLE, gpu).run(EvidenceBlock(1, {}, {}))
    # Nothing is left behind that the next propagation would stumble over.
    wanted = ChunkedProgram(chunks, network, reference.DOUBLE).run(EvidenceBlock(1, {}, {}))
    found = ChunkedGpuProgram(chunks, network, reference.DOUBLE, gpu).run(EvidenceBlock(1, {}, {}))
    np.testing.assert_allclose(found.log_value, wanted.log_value)


def test_too_small_a_device_is_refused(devices: Devices) -> None:
    chunks = cut(grid(3, 4, seed=1), 16)
    (device,) = devices(1)
    device.room, room = slot_bytes(chunks, 8), device.room
    try:
        with pytest.raises(MemoryError, match="a task takes"):
            DeviceGroup(chunks, reference.DOUBLE, device)
    finally:
        device.room = room


@pytest.mark.gpu
@ALL
@pytest.mark.parametrize("working", [1 << 6, 1 << 10, 1 << 16])
def test_grids(working: int, algebra: Algebra) -> None:
    network = grid(8, 8, seed=1)
    check(network, cut(network, working), algebra, [open_gpu(ROOM)])


@pytest.mark.gpu
@ALL
@pytest.mark.parametrize("name", ["alarm", "water", "mildew", "pigs"])
def test_networks(shared: Path, name: str, algebra: Algebra) -> None:
    (path,) = (shared / "networks/bnlearn").glob(f"{name}.bif*")
    network = read_network(path)
    check(network, cut(network, 1 << 13), algebra, [open_gpu(ROOM)])
