"""The GPU kernels, compiled for the CPU, against the NumPy reference: formats, networks, few cases and many."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import emulation.blocks
import numpy as np
import pytest
from emulation.blocks import EmulatedDevice
from helpers.blocks import blocks_of, compare, questions
from helpers.engine_cases import in_log_space
from helpers.gpu_blocks import DEVICES, ON, cliques_of_every_shape, few_threads, opened, several  # noqa: F401
from hypothesis import given
from junctor.backends import numpy as reference
from junctor.backends import register_tiles as tiles
from junctor.backends.gpu import GpuProgram, _Place
from junctor.backends.numpy import BlockOutcome, EvidenceBlock, Program
from junctor.backends.plan_memory import ProgramCache
from junctor.calibration import blocks as tuning
from junctor.cost.features.gpu_stages import CaseParallel, EntryParallel
from junctor.cost.features.registry import BACKENDS
from junctor.engine.engine import Engine
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch
from junctor.generate import hmm, layered, sample
from junctor.model.answers import OK, Answers, Scores, posteriors_in
from junctor.model.network import Factor, Network, Variable
from junctor.model.options import ComputeOptions
from junctor.model.query import Precision, Query
from junctor.model.strategies import Strategy
from junctor.planning.budget import Budget
from junctor.planning.compile import compile_plan
from junctor.planning.shape import Pattern, shape_of
from junctor.strategies import number_ladder as blocks
from junctor_kernels.gpu import blocks as gpu
from junctor_kernels.gpu.device import KernelModule
from junctor_kernels.tables.reference import DOUBLE, LOG, SINGLE, Algebra
from junctor_kernels.tables.scores import score

FORMATS = pytest.mark.parametrize("algebra", [DOUBLE, SINGLE, LOG], ids=lambda algebra: algebra.name)


def check(
    network: Network,
    pattern: Pattern,
    block: EvidenceBlock,
    algebra: Algebra,
    cases: int,
    device: Callable[[], gpu.BlockDevice],
) -> None:
    program = Program(compile_plan(shape_of(network), pattern, None, False, rows=1), network, algebra)
    # What a device sums is stored as it is, without lifts.
    expected = Program(program.plan, network, algebra, lifted=False).run(block)
    on_gpu = GpuProgram(program, cases, opened(device), host=1 << 24)
    rows = np.random.default_rng(1).permutation(block.cases + 3)[: block.cases]
    for place, at in ((0, rows), (1, np.arange(block.cases) + 2), (0, np.sort(rows))):
        # Again, because memory keeps what the first run left.
        answers = unwritten(network, block.cases + 3, algebra, opened(device))
        outcome = on_gpu.answer(block, at, answers, place)
        found = {v: answers.posteriors[v][at].T for v, _ in program.plan.marginals}
        compare(replace(outcome, posteriors=found), expected, algebra)
        for v, states in block.states.items():
            np.testing.assert_array_equal(answers.posteriors[v][at], np.eye(network.cardinalities[v])[states])
        untouched = np.setdiff1d(np.arange(block.cases + 3), at)
        assert all((table[untouched] == -1).all() for table in answers.posteriors.values())


def unwritten(network: Network, rows: int, algebra: Algebra, device: gpu.BlockDevice) -> Answers:
    targets, sizes = tuple(range(len(network.variables))), network.cardinalities
    memory = device.host(rows * sum(sizes) * algebra.dtype.itemsize).view(algebra.dtype)
    memory[:] = -1
    posteriors = posteriors_in(memory, targets, sizes, rows)
    return Answers(targets, np.zeros(rows, dtype=np.int8), np.zeros(rows), posteriors, memory=memory)


@ON
@FORMATS
@pytest.mark.parametrize("many", [True, False])
@given(question=questions())
def test_any_network_and_evidence(
    device: Callable[[], gpu.BlockDevice], algebra: Algebra, many: bool, question: tuple[Network, EvidenceBatch, bool]
) -> None:
    network, batch, likelihoods = question
    pattern, block = blocks_of(network, batch, likelihoods)
    check(network, pattern, block, algebra, several(device) if many else batch.rows, device)


@ON
@FORMATS
@pytest.mark.parametrize(("states", "zeros"), [(2, 0.6), (3, 0.0), (5, 0.6)])
@pytest.mark.parametrize("cases", [1, 3, None])
def test_networks_with_cliques_of_every_shape(
    device: Callable[[], gpu.BlockDevice], algebra: Algebra, states: int, zeros: float, cases: int | None
) -> None:
    # In log space a device takes 256 cases at a time.
    cases = cases or min(200, several(device))
    check(*cliques_of_every_shape(states, zeros, cases), algebra, cases, device)


@ON
@pytest.mark.parametrize("parents", [1, 2])
def test_sums_of_logarithms_out_of_the_range_of_plain_numbers(
    device: Callable[[], gpu.BlockDevice], parents: int
) -> None:
    # Of a table of messages [a, b] some columns are tiny beside the largest entry, one is 0, and one beyond the range.
    rng = np.random.default_rng(3)
    sizes = (4, 6, 3, 5)
    variables = tuple(Variable(f"v{v}", tuple(map(str, range(size)))) for v, size in enumerate(sizes))
    wide = rng.random(sizes[:2]) * np.array([1, 1e-150, 1e-250, 1e-305, 0, 1.7e308])
    others = [Factor((1, 2), rng.random((6, 3))), Factor((0, 3), rng.random((4, 5)))]
    if parents == 2:
        others.append(Factor((1, 2, 3), rng.random((6, 3, 5)) * 10.0 ** rng.integers(-280, 0, (6, 3, 5))))
    network = Network("wide", variables, (Factor((0, 1), wide), *others))
    cases = several(device)
    weights = {v: rng.random((sizes[v], cases)) for v in (0, 2, 3)}
    weights[1] = np.where(rng.random((6, cases)) < 0.5, 0.0, 1.0)
    weights[1][2] = 1
    pattern, block = Pattern(frozenset(), frozenset(weights)), EvidenceBlock(cases, {}, weights)
    check(network, pattern, block, LOG, cases, device)


def on_device(device: Callable[..., gpu.BlockDevice], room: int) -> gpu.BlockDevice:
    return device(room) if device is EmulatedDevice else device(0, room)


def batch_of(network: Network, rows: int, missing: float) -> EvidenceBatch:
    rng = np.random.default_rng(3)
    states = sample(network, rows, seed=5)
    columns = {v: np.where(rng.random(rows) < missing, -1, states[:, v]) for v in (1, 4, 6, 9, 14)}
    return EvidenceBatch(rows, {v: column.astype(np.int32) for v, column in columns.items()})


@ON
@pytest.mark.parametrize("precision", ["single", "double", "log"])
@pytest.mark.parametrize("missing", [0.0, 0.1])
@pytest.mark.parametrize("room", [1 << 24, 1 << 18])
def test_the_engine_answers_as_on_the_cpu(
    device: Callable[..., gpu.BlockDevice],
    precision: Precision,
    missing: float,
    room: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Compiled code takes the states of half of the blocks.
    monkeypatch.setattr(reference, "COMPILED_CELLS", 4 * 64)
    monkeypatch.setattr(reference, "THREAD_CELLS", 100)
    network = layered(layers=4, width=4, states=3, parents=2, seed=2, zeros=0.2)
    batch = batch_of(network, 300, missing)
    query = Query(precision=precision)
    expected = Engine(network, query).answer(batch)
    found = Engine(network, query, gpu=on_device(device, room)).answer(batch)
    assert found.status.tolist() == expected.status.tolist()
    tolerance = 2e-6 if precision == "single" else 1e-12
    np.testing.assert_allclose(found.log_value, expected.log_value, atol=tolerance * 10)
    for v, posterior in expected.posteriors.items():
        np.testing.assert_allclose(found.posteriors[v], posterior, atol=tolerance)


@ON
def test_doubtful_rows_climb_to_double_on_the_device(
    device: Callable[[], gpu.BlockDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What two messages have in common is 1e-35 of either, where single precision has hardly any numbers left.
    network = hmm(2, [1, 1e-35], [[0.9, 0.1], [0.2, 0.8]], [[1, 1e-35], [0.5, 0.5]])
    batch = EvidenceBatch(40, {1: (np.arange(40) % 2).astype(np.int32)})
    on_device, used = ProgramCache.on_device, set[str]()

    def watched(self: ProgramCache, algebra: Algebra, rows: int) -> GpuProgram | None:
        used.add(algebra.name)
        return on_device(self, algebra, rows)

    monkeypatch.setattr(ProgramCache, "on_device", watched)
    answers = Engine(network, Query(precision="single"), gpu=opened(device)).answer(batch)
    assert used == {"single", "double"}
    expected = Engine(network, Query()).answer(batch)
    np.testing.assert_allclose(answers.log_value, expected.log_value, rtol=1e-6, atol=1e-6)
    assert answers.log_value[1] < -70


@ON
def test_every_format_is_on_the_device(device: Callable[[], gpu.BlockDevice], monkeypatch: pytest.MonkeyPatch) -> None:
    def interpreted(program: Program, block: EvidenceBlock) -> BlockOutcome:
        raise AssertionError(f"{block.cases} rows in NumPy, {program.algebra.name}")

    network = layered(layers=4, width=4, states=3, parents=2, seed=2, zeros=0.2)
    batch = batch_of(network, 40, 0.0)
    expected = in_log_space(network, batch)
    monkeypatch.setattr(reference, "LOSS_TOLERANCE", {"double": -1.0, "single": -1.0})
    monkeypatch.setattr(Program, "run", interpreted)
    answers = Engine(network, Query(precision="single"), gpu=opened(device)).answer(batch)
    np.testing.assert_allclose(answers.log_value, expected.log_value, rtol=1e-12)


@ON
def test_few_rows_are_spent_on_a_format_that_will_not_do(
    device: Callable[[], gpu.BlockDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = layered(layers=4, width=4, states=3, parents=2, seed=2)
    batch = batch_of(network, 300, 0.0)
    expected = Engine(network, Query(), gpu=opened(device)).answer(batch)
    monkeypatch.setattr(reference, "LOSS_TOLERANCE", {"double": 1.0, "single": -1.0})
    seen: dict[str, list[int]] = {"single": [], "double": []}
    run = _Place._run

    def watched(place: _Place, host: Any, evidence: Any, cases: int, answers: Any) -> Any:
        seen[place._program._program.algebra.name].append(cases)
        return run(place, host, evidence, cases, answers)

    monkeypatch.setattr(_Place, "_run", watched)
    engine = Engine(network, Query(precision="single"), gpu=opened(device))
    found = engine.answer(batch)
    assert seen["single"] == [blocks.PROBED_ROWS]
    assert sum(seen["double"]) > blocks.PROBED_ROWS
    np.testing.assert_allclose(found.log_value, expected.log_value, rtol=1e-12)
    # Once the first rows of a batch did well, those of the next one keep nobody waiting.
    monkeypatch.setattr(reference, "LOSS_TOLERANCE", {"double": 1.0, "single": 1.0})
    engine.answer(batch)
    seen["single"].clear()
    engine.answer(batch)
    assert seen["single"]
    assert blocks.PROBED_ROWS not in seen["single"]
    monkeypatch.setattr(reference, "LOSS_TOLERANCE", {"double": 1.0, "single": -1.0})
    late, early = engine.answer(batch), found
    assert late.log_value.tobytes() == early.log_value.tobytes()
    assert late.climbed == early.climbed
    seen["single"].clear()
    engine.answer(batch)
    assert seen["single"] == [blocks.PROBED_ROWS]


@ON
def test_blocks_do_not_wait_for_first_rows_that_failed(
    device: Callable[[], gpu.BlockDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = layered(layers=4, width=4, states=3, parents=2, seed=2)

    def failing(place: _Place, *of: Any) -> Any:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(_Place, "_run", failing)
    with pytest.raises(RuntimeError, match="the device is gone"):
        Engine(network, Query(precision="single"), gpu=opened(device)).answer(batch_of(network, 300, 0.1))


def gaps(network: Network, rows: int) -> EvidenceBatch:
    rng, states = np.random.default_rng(3), sample(network, rows, seed=5)
    seen = rng.random(states.shape) < 0.9
    columns = {v: np.where(seen[:, v], states[:, v], UNOBSERVED).astype(np.int32) for v in range(1, 16)}
    return EvidenceBatch(rows, columns, invalid={7: "wrong"})


@ON
def test_without_memory_that_the_device_can_write_to_the_cpu_takes_over(
    device: Callable[[], gpu.BlockDevice], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = layered(layers=4, width=4, states=3, parents=2, seed=2)
    batch = batch_of(network, 50, 0.0)
    short = opened(device)

    def refuse(size: int, *_: object) -> None:
        raise MemoryError(f"{size:,} bytes of pinned memory")

    monkeypatch.setattr(short, "host", refuse)
    found = Engine(network, Query(), gpu=short).answer(batch)
    assert "the CPU takes over a batch" in caplog.text
    np.testing.assert_array_equal(found.log_value, Engine(network, Query()).answer(batch).log_value)


@ON
def test_what_does_not_fit_goes_to_the_cpu_and_says_so(
    device: Callable[..., gpu.BlockDevice], caplog: pytest.LogCaptureFixture
) -> None:
    network = layered(layers=4, width=4, states=3, parents=2, seed=2)
    batch = batch_of(network, 50, 0.0)
    found = Engine(network, Query(), gpu=on_device(device, 4096)).answer(batch)
    expected = Engine(network, Query()).answer(batch)
    assert "the CPU takes over" in caplog.text
    np.testing.assert_array_equal(found.log_value, expected.log_value)


@ON
def test_a_gpu_that_was_full_is_asked_again_between_calls(
    device: Callable[[], gpu.BlockDevice], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    network = layered(layers=3, width=3, states=6, parents=2, seed=2)
    plan = compile_plan(shape_of(network), Pattern(frozenset([0]), frozenset()), None, False, rows=1)
    prepared, there = ProgramCache(network, plan, [SINGLE]), opened(device)
    prepared.use(prepared.memory.fit(Budget(1 << 30), 1 << 30, 150), there)

    def refuse(*_: object) -> None:
        raise MemoryError("64 bytes of device memory: out of memory")

    with monkeypatch.context() as others:
        others.setattr(there, "place", refuse)
        assert prepared.on_device(SINGLE, 150) is None
    # Not for each batch of a call: the answer would be the same, and is told once.
    assert prepared.on_device(SINGLE, 150) is None
    assert caplog.text.count("the CPU takes over") == 1
    prepared.rest(0)
    assert prepared.on_device(SINGLE, 150) is not None


@ON
def test_programs_depend_on_the_rows_of_a_batch_not_on_batches_before(device: Callable[[], gpu.BlockDevice]) -> None:
    network = layered(layers=3, width=3, states=6, parents=2, seed=2)
    plan = compile_plan(shape_of(network), Pattern(frozenset([0]), frozenset()), None, False, rows=1)

    def programs(*batches: int) -> list[tuple[int, list[float], list[list[gpu.BlockLaunch]]]]:
        prepared = ProgramCache(network, plan, [SINGLE])
        prepared.use(prepared.memory.fit(Budget(1 << 30), 1 << 30, max(batches)), opened(device))
        found = [prepared.on_device(SINGLE, rows) for rows in batches]
        return [(each.cases, each.work.tolist(), each.stages) for each in found if each is not None]

    assert programs(150, 9000, 1500)[1:] == programs(9000, 150, 1500)[::2]
    (near,), (other,) = programs(1500), programs(1100)
    assert near == other


@ON
def test_a_last_batch_takes_the_program_of_the_others(device: Callable[[], gpu.BlockDevice]) -> None:
    network = layered(layers=3, width=3, states=6, parents=2, seed=2)
    plan = compile_plan(shape_of(network), Pattern(frozenset([0]), frozenset()), None, False, rows=1)
    prepared, there = ProgramCache(network, plan, [SINGLE]), opened(device)
    sizes = prepared.memory.fit(Budget(1 << 30), 1 << 30, 1500)
    prepared.use(sizes, there, filled=(1500, 1500))
    whole, third = prepared.on_device(SINGLE, 1500), prepared.on_device(SINGLE, 500)
    prepared.use(sizes, there, filled=(7, 1500))
    # All of its rows, and about a third of them.
    assert prepared.on_device(SINGLE, 7) is whole
    assert prepared.on_device(SINGLE, 2) is third is not whole


@ON
def test_batches_of_any_size_at_the_end(device: Callable[[], gpu.BlockDevice]) -> None:
    network = layered(layers=4, width=4, states=3, parents=2, seed=2, zeros=0.2)
    plain, engine = Engine(network, Query()), Engine(network, Query(), gpu=opened(device), batch_rows=300)
    for rows, missing in ((300, 0.0), (1, 0.0), (299, 0.1), (2, 0.1)):
        batch = batch_of(network, rows, missing)
        expected, found = plain.answer(batch), engine.answer(batch)
        np.testing.assert_allclose(found.log_value, expected.log_value, atol=1e-11)
        for v in range(len(network.variables)):
            np.testing.assert_allclose(found.posteriors[v], expected.posteriors[v], atol=1e-12)


@ON
def test_memory_of_the_host_is_counted_and_given_back(device: Callable[[], gpu.BlockDevice]) -> None:
    network = layered(layers=3, width=3, states=6, parents=2, seed=2)
    plan = compile_plan(shape_of(network), Pattern(frozenset([0]), frozenset([4])), None, False, rows=1)
    prepared = ProgramCache(network, plan, [SINGLE])
    prepared.use(prepared.memory.fit(Budget(1 << 30), 1 << 30, 9000), opened(device))
    first, second = (prepared.on_device(SINGLE, rows) for rows in (150, 9000))
    assert first is not None
    assert second is not None
    # Likelihoods of six states in double precision, three blocks at a time.
    assert first.held > 3 * 150 * 6 * 8
    assert prepared.held == prepared.memory.fixed + first.held + second.held
    assert prepared.rest(first.held) == first.held
    assert prepared.held == prepared.memory.fixed + second.held
    assert prepared.on_device(SINGLE, 9000) is second
    prepared.rest(prepared.held)
    assert prepared.held == prepared.memory.fixed


@ON
@pytest.mark.parametrize(
    ("query", "rows", "compiled"),
    [
        (Query(), 1, {gpu.FEW_CASES, gpu.ANSWERS}),
        (Query(), 1000, {gpu.MANY_CASES, gpu.ANSWERS}),
        (Query(answers="scores"), 1, {gpu.FEW_CASES, gpu.SCORES}),
        (Query("mpe"), 1, {gpu.FEW_CASES, gpu.ANSWERS}),
        (Query("mpe"), 1000, {gpu.MANY_CASES, gpu.ANSWERS}),
    ],
)
def test_an_answer_asks_for_the_kernels_that_it_launches(
    device: Callable[[], gpu.BlockDevice],
    query: Query,
    rows: int,
    compiled: set[KernelModule],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: set[KernelModule] = set()
    library, function = emulation.blocks.library, KernelModule.function

    def emulated(algebra: str, kernels: KernelModule) -> Any:
        asked.add(kernels)
        return library(algebra, kernels)

    def on_device(kernels: KernelModule, *what: Any) -> Any:
        asked.add(kernels)
        return function(kernels, *what)

    monkeypatch.setattr(emulation.blocks, "library", emulated)
    monkeypatch.setattr(KernelModule, "function", on_device)
    network = layered(layers=4, width=4, states=3, parents=2, seed=2)
    batch = batch_of(network, rows, missing=0.0)
    options = ComputeOptions(threads=1, device="cpu", strategy=Strategy.GPU_BLOCKS)
    found = Engine(network, query, options, gpu=opened(device)).answer(batch)
    assert (found.status == OK).all()
    assert asked == compiled


@ON
def test_a_gpu_is_measured(device: Callable[[], gpu.BlockDevice], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("FEW_ROWS", (1,)), ("MANY_ROWS", (128,)), ("GPU_REPEATS", 1)):
        monkeypatch.setattr(tuning, name, value)
    for name, tried in (
        ("FEW_TRIED", (EntryParallel(8, 1), EntryParallel(1, 1))),
        ("MANY_TRIED", (CaseParallel(16, 128), CaseParallel(4, 4))),
    ):
        monkeypatch.setattr(tuning, name, tried)
    case = tuning.case_of("x", layered(2, 2, states=4, seed=1), 0.2, True, 1)
    rows = tuning.measure_gpu(case, opened(device), [SINGLE])
    assert [(row.backend, row.rows) for row in rows] == [("few-single", 1)] * 2 + [("many-single", 128)] * 2
    assert all(row.seconds > 0 and len(row.work) == len(BACKENDS[row.backend].work) for row in rows)
    assert rows[0].work != rows[1].work


@pytest.mark.slow
def test_the_benchmark_of_tiles_and_blocks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    blocks, costs = importlib.import_module("launch_blocks"), importlib.import_module("costs")
    monkeypatch.setattr(tiles, "tiles_that_pay", blocks.rule_before)
    monkeypatch.setattr(tuning, "MANY_TRIED", tuning.MANY_TRIED[:1])
    monkeypatch.setattr(tuning, "GPU_REPEATS", 1)
    ways = {name: blocks.WAYS[name] for name in ("rule before", "small")}
    for name, value in (("BLOCKS", (4,)), ("UNDER_WAY", (1,)), ("ROUNDS", 1), ("WAYS", ways)):
        monkeypatch.setattr(blocks, name, value)
    monkeypatch.setattr(costs, "opened", EmulatedDevice())
    monkeypatch.setattr(gpu, "CudaBlockDevice", EmulatedDevice)
    case = tuning.case_of("net", layered(2, 2, states=3, seed=1), 0.2, True, 1, rows=200)
    _, found = blocks.measure_tiles((case, 128))
    assert {row.backend: row.rows for row in found} == {"many-single": 128, "many-double": 128}
    assert len({row.work for row in found}) == 4
    blocks.show_tiles([row for row in found if row.backend == "many-single"])
    blocks.compare_blocks([case], [600])
    printed = capsys.readouterr().out
    assert "plan | rule before | small" in printed
    assert "| 600 |" in printed
    assert "geometric mean over 4" in printed


def assert_scores_of(posteriors: Answers, found: Scores, top: int | None) -> None:
    """Scores of the rows that have an answer are those that the reference makes of posteriors, to the last bit."""
    ok = posteriors.status == OK
    for n, v in enumerate(found.targets):
        table = np.ascontiguousarray(posteriors.posteriors[v][ok])
        best = np.empty((len(table), top or 1), dtype=np.int32)
        probabilities, entropies = np.empty(best.shape, dtype=table.dtype), np.empty(len(table), dtype=table.dtype)
        score(table, best, probabilities, entropies)
        assert found.best[n, ok].tobytes() == best.tobytes()
        assert found.probabilities[n, ok].tobytes() == probabilities.tobytes()
        assert found.entropies[n, ok].tobytes() == entropies.tobytes()


@ON
@pytest.mark.parametrize("precision", ["single", "double", "log"])
@pytest.mark.parametrize(("missing", "top"), [(0.0, None), (0.1, None), (0.1, 2), (0.0, 4)])
def test_scores_on_the_device_are_those_of_its_posteriors_to_the_last_bit(
    device: Callable[..., gpu.BlockDevice],
    precision: Precision,
    missing: float,
    top: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = layered(layers=4, width=4, states=3, parents=2, seed=2, zeros=0.2)
    batch = batch_of(network, 300, missing)
    names = [variable.name for variable in network.variables]
    chosen = tuple(f"{names[v]}={network.variables[v].states[state]}" for v, state in ((4, 1), (7, 2), (0, 0)))
    query = Query(precision=precision, answers="scores", top=top, probabilities=chosen)
    posteriors = Engine(network, Query(precision=precision), gpu=opened(device)).answer(batch)
    # On the CPU scores are made slice by slice; here nothing is left for that.
    monkeypatch.setattr(Engine, "_score_slices", lambda *_: pytest.fail("scores made on the host"))
    found = Engine(network, query, gpu=opened(device)).answer(batch)
    assert isinstance(found, Scores)
    assert found.status.tolist() == posteriors.status.tolist()
    assert found.log_value.tobytes() == posteriors.log_value.tobytes()
    ok = found.status == OK
    assert 0 < ok.sum() <= batch.rows
    assert_scores_of(posteriors, found, top)
    for n, (v, state) in enumerate(found.choices):
        assert found.chosen[n, ok].tobytes() == posteriors.posteriors[v][ok, state].tobytes()


@ON
@pytest.mark.parametrize("precision", ["single", "double"])
@pytest.mark.parametrize("top", [None, 1, 2, 3, 7, 9, 70])
def test_states_that_are_equal_up_to_rounding_have_the_order_of_the_network_on_the_device(
    device: Callable[..., gpu.BlockDevice], precision: Precision, top: int | None
) -> None:
    rng = np.random.default_rng(8)
    near = 1e-6 if precision == "single" else 1e-14
    variables, factors = [], []
    for v in range(12):
        size = int(rng.integers(1, 8))
        shares = rng.integers(0, 4, size) * (1 + near * rng.integers(0, 5, size)) + 1e-3 * (rng.random(size) < 0.2)
        shares[0] += not shares.any()
        variables.append(Variable(f"v{v}", tuple(f"s{state}" for state in range(size))))
        factors.append(Factor((v,), shares / shares.sum()))
    network = Network("ties", tuple(variables), tuple(factors))
    batch = EvidenceBatch(40, {0: rng.integers(-1, len(variables[0].states), 40, dtype=np.int32)})
    query = Query(precision=precision, answers="scores", top=top)
    posteriors = Engine(network, Query(precision=precision), gpu=opened(device)).answer(batch)
    found = Engine(network, query, gpu=opened(device)).answer(batch)
    assert isinstance(found, Scores)
    assert_scores_of(posteriors, found, top)


@ON
def test_scores_of_equal_rows_are_copies_of_those_of_the_device(device: Callable[..., gpu.BlockDevice]) -> None:
    network = layered(layers=4, width=4, states=3, parents=2, seed=2)
    once = batch_of(network, 40, 0.0)
    batch = EvidenceBatch(4000, {v: np.tile(states, 100) for v, states in once.states.items()})
    found = Engine(network, Query(answers="scores"), gpu=opened(device)).answer(batch)
    expected = Engine(network, Query(answers="scores")).answer(batch)
    assert isinstance(found, Scores)
    assert isinstance(expected, Scores)
    np.testing.assert_allclose(found.probabilities, expected.probabilities, atol=1e-12)
    np.testing.assert_allclose(found.entropies, expected.entropies, atol=1e-12)
    assert (found.entropies[:, :40] == found.entropies[:, 40:80]).all()


@ON
def test_rows_that_no_device_takes_are_scored_on_the_host(
    device: Callable[..., gpu.BlockDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = layered(layers=4, width=4, states=3, parents=2, seed=2)
    batch = batch_of(network, 60, 0.0)
    expected = Engine(network, Query(answers="scores")).answer(batch)
    monkeypatch.setattr(ProgramCache, "_made_for", lambda *_: None)
    found = Engine(network, Query(answers="scores"), gpu=opened(device)).answer(batch)
    assert isinstance(found, Scores)
    assert isinstance(expected, Scores)
    np.testing.assert_allclose(found.probabilities, expected.probabilities, atol=1e-12)
