"""Messages through index mapping tables: kernels against NumPy, a whole tree against enumeration, launch parameters."""

from __future__ import annotations

import ctypes
import importlib
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import common
import numpy as np
import pytest
from baselines import index_mapping as mapping
from baselines.index_mapping import Setting, all_settings, index_mapping
from common import DATA
from emulation.build import built
from emulation.nvrtc import compiles
from helpers.oracle import joint_table
from hypothesis import given
from hypothesis import strategies as st
from junctor.cliques.host import kernels_for, natural_table
from junctor.generate import grid, hmm, layered
from junctor.planning.cliques import plan_stored
from junctor.planning.shape import shape_of
from junctor_kernels.tables.reference import SINGLE
from mapped_tree import Size

LAUNCH = """
extern "C" void reduce(int blocks, int threads, const real *clique, const int *mapping, real *separator,
                       real *ratio, int entries, int terms, int together) {
    for_all(blocks, 1, threads, [&] { reduce_mapped(clique, mapping, separator, ratio, entries, terms, together); });
}
extern "C" void scatter(int blocks, int threads, real *clique, const int *mapping, const real *ratio, int entries,
                        int terms, int together) {
    for_all(blocks, 1, threads, [&] { scatter_mapped(clique, mapping, ratio, entries, terms, together); });
}
"""


@cache
def library(dtype: np.dtype[Any]) -> ctypes.CDLL:
    """The kernels, compiled for the CPU."""
    return built(mapping.source(dtype), LAUNCH)


def emulated(name: str, where: Any, setting: Setting, *arrays: Any) -> None:
    entries, terms = where.shape
    addresses = [ctypes.c_void_p(array.ctypes.data) for array in arrays]
    sizes = [ctypes.c_int(number) for number in (entries, terms, setting.together)]
    function = getattr(library(arrays[0].dtype), name)
    function(ctypes.c_int(setting.blocks(entries)), ctypes.c_int(setting.threads), *addresses, *sizes)


@st.composite
def messages(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    scope = draw(st.permutations(range(len(sizes))))
    return sizes, list(scope), draw(st.lists(st.sampled_from(scope), unique=True))


@given(drawn=messages())
def test_a_mapping_is_where_summing_over_axes_looks(drawn: tuple[list[int], list[int], list[int]]) -> None:
    sizes, scope, separator = drawn
    table = np.random.default_rng(1).random([sizes[v] for v in scope])
    wanted = np.einsum(table, scope, separator).ravel()
    where = index_mapping(scope, separator, sizes)
    assert sorted(where.ravel().tolist()) == list(range(table.size))
    separator, ratio = np.ones((2, len(where)))
    mapping.reduce_mapped(table.ravel(), where, separator, ratio)
    np.testing.assert_allclose(separator, wanted)
    np.testing.assert_array_equal(separator, ratio)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(drawn=messages(), number=st.integers(0, 10**6))
def test_kernels_agree_with_numpy(dtype: Any, drawn: tuple[list[int], list[int], list[int]], number: int) -> None:
    sizes, scope, separator = drawn
    choices = all_settings([32, 64])
    setting, rng = choices[number % len(choices)], np.random.default_rng(number)
    where = index_mapping(scope, separator, sizes)
    clique = rng.random(where.size).astype(dtype)
    separator = (rng.random(len(where)) * (rng.random(len(where)) < 0.8)).astype(dtype)
    expected, ratio, found = separator.copy(), np.full(len(where), np.nan, dtype), np.full(len(where), np.nan, dtype)
    emulated("reduce", where, setting, clique, where, separator, ratio)
    mapping.reduce_mapped(clique, where, expected, found)
    tolerance = 1e-5 if dtype is np.float32 else 1e-13
    np.testing.assert_allclose(separator, expected, rtol=tolerance)
    np.testing.assert_allclose(ratio, found, rtol=tolerance)
    wanted = clique.copy()
    mapping.scatter_mapped(wanted, where, ratio)
    emulated("scatter", where, setting, clique, where, ratio)
    np.testing.assert_array_equal(clique, wanted)


def test_settings_cover_the_grid_and_every_entry() -> None:
    found = all_settings([64, 256])
    assert len(found) == 7 + 9
    assert all(setting.entries * setting.together == setting.threads for setting in found)
    assert Setting(256, 16).blocks(33) == 3
    assert mapping.zero_threshold(7) == (256, 16)
    assert mapping.one_threshold(90) == (256, 4)
    assert mapping.one_threshold(91) == (256, 128)


def test_equations_five_and_six_by_hand() -> None:
    # 100 entries in blocks of 16: 7 blocks, 2 rounds of 4. 1,000 entries: 63 additions each of 16 threads, 5 halvings.
    assert mapping.reduction_time(100, 1000, Setting(256, 16), blocks_at_once=4) == 2 * 63 * 5
    assert mapping.scattering_time(100, 1000, Setting(256, 16), blocks_at_once=4) == 2 * 63
    # One thread an entry: log2 1 + 1 = 1.
    assert mapping.reduction_time(5, 40, Setting(64, 1), blocks_at_once=1) == 40
    assert mapping.reduction_time(5, 40, Setting(2, 1), blocks_at_once=1) == 3 * 40
    assert mapping.reduction_time(5, 40, Setting(64, 64), blocks_at_once=5) == 7
    # 320 blocks of one entry are one round: with all 512 threads 63 additions and 10 halvings, the least there is.
    launch, size = importlib.import_module("launch"), Size(320, 32_000)
    assert launch.equation("reduce", size, Setting(512, 512)) == 630
    assert launch.by_equations("reduce", size) == Setting(512, 512)
    assert launch.by_steps("reduce", size).together < 512


def test_the_analytical_model_trades_terms_for_rounds() -> None:
    steps = [mapping.reduction_steps(1, 1024, Setting(256, 1 << n), at_once=1 << 18) for n in range(9)]
    assert steps == sorted(steps, reverse=True)
    assert mapping.reduction_steps(1 << 18, 8, Setting(256, 8), at_once=1 << 18) == 8 * (1 + 3)
    assert mapping.scattering_steps(1 << 18, 8, Setting(256, 1), at_once=1 << 18) == 8


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_kernels_compile(architecture: str) -> None:
    compiles(mapping.source(np.dtype(np.float32)), architecture)


def test_a_tree_of_such_messages_is_calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    mapped_tree = importlib.import_module("mapped_tree")
    network = layered(layers=3, width=3, states=3, parents=2, seed=2, zeros=0.3)
    plan = plan_stored(shape_of(network))
    tree = mapped_tree.MappedTree(plan, network, np.dtype(np.float64), np)
    for operation, (where, *arrays) in tree.arguments():
        passes = {"reduce": mapping.reduce_mapped, "scatter": mapping.scatter_mapped}
        passes[operation.name](arrays[0], where, *arrays[1:])
    joint = joint_table(network, {}, {})
    joint = np.ldexp(joint.mantissa, joint.power.astype(np.int32))
    for clique, table in zip(plan.cliques, tree.tables, strict=True):
        others = tuple(v for v in range(len(network.variables)) if v not in clique.natural)
        np.testing.assert_allclose(table / table.sum(), joint.sum(axis=others).ravel(), atol=1e-14)
    gpu, single = Plain(np.dtype(np.float64)), lambda name, size: Setting(64, 4)
    assert tree.worst_sum(gpu, single) < 1e-12
    tree.initial[0] *= 1.001
    assert tree.worst_sum(gpu, single) > 1e-4


def test_a_long_tree_stays_within_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    mapped_tree = importlib.import_module("mapped_tree")
    start, *rows = np.split(np.random.default_rng(1).dirichlet(np.full(9, 50.0), 19), (1, 10))
    network = hmm(300, start[0], *rows)
    plan = plan_stored(shape_of(network))
    made = [natural_table(plan, network, i, SINGLE, kernels_for(SINGLE, 0)) for i in range(len(plan.cliques))]
    # Tables that are scaled to about one, as ours are, would not.
    assert sum(each.exponent for each in made) < np.finfo(np.float32).minexp
    tree = mapped_tree.MappedTree(plan, network, np.dtype(np.float32), np)
    assert tree.worst_sum(Plain(np.dtype(np.float32)), lambda name, size: Setting(64, 4)) < 1e-4
    with pytest.raises(ValueError, match="Bayesian"):
        mapped_tree.MappedTree(plan_stored(shape_of(grid(2, 2))), grid(2, 2), np.dtype(np.float32), np)


class Plain:
    """A GPU that is none: kernels of the reference, seconds of the clock."""

    name = "no GPU"

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self.cupy = SimpleNamespace(
            array=np.array,
            ones=np.ones,
            empty=np.empty,
            zeros=np.zeros,
            arange=np.arange,
            random=SimpleNamespace(random=lambda size, dtype: np.random.default_rng(1).random(size, dtype)),
            cuda=SimpleNamespace(runtime=SimpleNamespace(deviceSynchronize=lambda: None)),
        )

    def launch(self, name: str, setting: Setting, where: Any, *arrays: Any) -> None:
        assert setting.threads % setting.together == 0
        {"reduce": mapping.reduce_mapped, "scatter": mapping.scatter_mapped}[name](arrays[0], where, *arrays[1:])

    def seconds(self, enqueue: Any, repeats: int) -> float:
        enqueue()
        return 1e-3


def test_the_table_of_whole_propagations(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    launch = importlib.import_module("launch")
    network = layered(layers=4, width=3, states=3, parents=2, seed=2)
    plan = plan_stored(shape_of(network))
    rows = [(*size, 64, 2) for _, size in launch.sizes_of(plan)[1:]]
    ways = dict.fromkeys(("reduce", "scatter"), rows)
    monkeypatch.setattr(launch, "Gpu", Plain)
    monkeypatch.setattr(launch, "times_of_ours", lambda plan, network, cpu: (0.5, 7.0))
    record = {"device": "x", "chosen": {"net": {"some model": ways}}, "best": ways, "single": [64, 4]}
    launch.run([("net", network, plan)], record, cpu=True, rounds=2, plot=tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").read_text().count("net") >= 1
    printed = capsys.readouterr().out
    (line,) = (line for line in printed.splitlines() if line.startswith("net |"))
    cells = [cell.strip() for cell in line.split("|")]
    assert cells[2:9] == ["1.000"] * 7
    assert cells[9:12] == ["7.0", "0.500", "+100%"]
    assert float(cells[12]) < 1e-5
    assert "some model | 1.000" in printed
    monkeypatch.setattr(launch, "MOST_OFF", 0.0)
    with pytest.raises(ArithmeticError, match="net: after a propagation"):
        launch.run([("net", network, plan)], record, cpu=False, rounds=1)


def test_what_the_paper_measures_on_a_gpu_is_measured_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("sklearn")
    launch, paper, models = (importlib.import_module(name) for name in ("launch", "launch_paper", "launch_models"))
    monkeypatch.setattr(launch, "Gpu", Plain)
    monkeypatch.setattr(paper, "Gpu", Plain)
    monkeypatch.setattr(launch, "times_of_ours", lambda plan, network, cpu: (0.5, 7.0))
    monkeypatch.setattr(paper, "EXAMPLES", (Size(3, 24),))
    few = {name: models.MODELS[name] for name in ("SVR", "Lasso, lambda min")}
    monkeypatch.setattr(models, "MODELS", few)
    networks = (DATA / "asia.bif", DATA / "student.bif")
    asked = common.Asked(networks, small=True, gpu=True, folder=tmp_path)
    for item in (paper.table_three_of, paper.figures_four_to_six, paper.figure_two, paper.table_four_of):
        item(asked)
    monkeypatch.setattr(paper, "measure", None)
    drawn: list[Path] = []
    monkeypatch.setattr(importlib.import_module("launch_plot"), "draw", lambda *of: drawn.append(of[-1]))
    paper.figure_seven(asked)
    assert drawn == [tmp_path / "zheng-figure7.svg", tmp_path / "figure7.svg"]
    printed = capsys.readouterr().out
    assert "reduce | SVR |" in printed
    assert "24 entries of the clique, 3 of the separator; microseconds" in printed
    # A surface has 34 settings, of which the first fastest has a star: measured and by each model, then by equation 5.
    assert printed.count("*") == 3 + 2
    # Of sums of messages, then of propagations.
    assert printed.count("\nstudent | ") == 1 + 2
