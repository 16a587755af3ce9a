"""log P(e) is exact but for the rounding of its factors: hundreds of scales that cancel add nothing, anywhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from helpers.chunk_plans import cut_for
from helpers.engine_cases import blank
from helpers.gpu_blocks import ON, few_threads, opened  # noqa: F401
from helpers.options import on_cpu
from junctor.backends.cpu import CompiledProgram
from junctor.backends.gpu import GpuProgram
from junctor.backends.joint_table import JointTable
from junctor.backends.numpy import EvidenceBlock, Program
from junctor.backends.row_trees import RowEngine, TreeRows
from junctor.cliques.joint import joint_posteriors
from junctor.engine.engine import Engine
from junctor.evidence.batch import EvidenceBatch, SoftEvidence
from junctor.model.answers import Answers, posteriors_in
from junctor.model.network import Factor, Network, Variable
from junctor.model.query import Precision, Query
from junctor.model.strategies import Strategy
from junctor.planning.compile import compile_plan
from junctor.planning.shape import Pattern, shape_of
from junctor_kernels.gpu import blocks as gpu
from junctor_kernels.tables.reference import DOUBLE, LOG, MAX_LOG, SINGLE, Algebra

# Relative, to log P(e) of about 1; in single precision each message is rounded.
TOLERANCE = {"double": 1e-13, "log": 1e-13, "max": 1e-13, "single": 1e-5}
CHAIN, PAIRS, CASES = 200, 240, 4
# So many of the pairs are observed, which makes them constants, and a variable of the chain.
CONSTANTS, MIDDLE = 40, CHAIN // 2
ALGEBRAS = pytest.mark.parametrize("algebra", [DOUBLE, SINGLE, LOG], ids=lambda algebra: algebra.name)
Sum = Callable[[Iterable[Fraction]], Fraction]


@cache
def question() -> tuple[Network, EvidenceBatch]:
    """A chain and hundreds of pairs, whose factors are large in the first half and small in the second one."""
    rng = np.random.default_rng(6)
    links = [(v, v + 1) for v in range(CHAIN - 1)]
    links += [(CHAIN + 2 * n, CHAIN + 2 * n + 1) for n in range(PAIRS)]
    signs = [1 if n < CHAIN // 2 or n > len(links) - PAIRS // 2 else -1 for n in range(len(links))]
    tables = [np.ldexp(rng.integers(1, 16, (2, 2)) / 16, 8 * sign) for sign in signs]
    variables = tuple(Variable(f"x{v}", ("0", "1")) for v in range(CHAIN + 2 * PAIRS))
    observed = (*range(CHAIN, CHAIN + 2 * CONSTANTS), MIDDLE)
    batch = EvidenceBatch(CASES, {v: rng.integers(0, 2, CASES).astype(np.int32) for v in observed})
    network = Network("scales", variables, tuple(map(Factor, links, tables)), "markov")
    # Some of the chain takes what is left, so that P(e) of the first row is about 1 / 11.
    left = round(log_of(exact(network, batch, 0) * 11) / math.log(2))
    for n in range(CHAIN - 60, CHAIN - 1):
        tables[n] = np.ldexp(tables[n], -(left // 59) - (n - CHAIN + 60 < left % 59))
    return Network("scales", variables, tuple(map(Factor, links, tables)), "markov"), batch


def exact(network: Network, batch: EvidenceBatch, row: int, join: Sum = sum) -> Fraction:
    """Return P(e), or the largest of P(assignment, e) with maxima, in rational numbers; links are of neighbours."""
    tables = {factor.scope[0]: factor.table.tolist() for factor in network.factors}
    vector = [Fraction(1)]
    for v in range(len(network.variables)):
        states = [int(batch.states[v][row])] if v in batch.states else [0, 1]
        if v - 1 in tables:
            table = tables[v - 1]
            made = [join(vector[a] * Fraction(table[a][b]) for a in range(2)) for b in range(2)]
        else:
            made = [join(vector)] * 2
        vector = [made[b] if b in states else Fraction(0) for b in range(2)]
    return join(vector)


def log_of(number: Fraction) -> float:
    power = number.numerator.bit_length() - number.denominator.bit_length()
    return math.log(number / Fraction(2) ** power) + power * math.log(2)


@cache
def expected(join: Sum = sum) -> list[float]:
    network, batch = question()
    return [log_of(exact(network, batch, row, join)) for row in range(CASES)]


def test_the_sum_of_scales_is_far_larger_than_what_is_left() -> None:
    network, _ = question()
    sizes = [abs(math.log(factor.table.max())) for factor in network.factors]
    assert sum(sizes) > 1000
    assert -4 < expected()[0] < -1


def check(log_values: Any, algebra: str, join: Sum = sum) -> None:
    np.testing.assert_allclose(log_values, expected(join), rtol=TOLERANCE[algebra])


def bound(algebra: Algebra, lifted: bool = True) -> tuple[Program, EvidenceBlock]:
    network, batch = question()
    plan = compile_plan(shape_of(network), Pattern(frozenset(batch.states), frozenset()), None, algebra is MAX_LOG, 1)
    return Program(plan, network, algebra, lifted=lifted), EvidenceBlock(CASES, batch.states, {})


@ALGEBRAS
def test_a_plan_in_numpy_and_in_compiled_code(algebra: Algebra) -> None:
    program, block = bound(algebra)
    outcomes = program.run(block), CompiledProgram(program, 32).run(block)
    for outcome in outcomes:
        check(outcome.log_value, algebra.name)
    np.testing.assert_array_equal(*(outcome.doubtful for outcome in outcomes))


def test_explanations_of_a_plan() -> None:
    program, block = bound(MAX_LOG)
    for outcome in (program.explain(block), CompiledProgram(program, 32).run(block)):
        check(outcome.log_value, "max", max)


@ON
@ALGEBRAS
@pytest.mark.parametrize("cases", [1, pytest.param(128, marks=pytest.mark.slow)])
def test_a_plan_on_a_gpu(device: Callable[[], gpu.BlockDevice], algebra: Algebra, cases: int) -> None:
    program, block = bound(algebra, lifted=False)
    rows, place = np.arange(CASES), 0
    on_gpu = GpuProgram(program, max(CASES, cases), opened(device), host=1 << 24)
    answers = blank_on(program.network, algebra, opened(device))
    check(on_gpu.answer(block, rows, answers, place).log_value, algebra.name)


def blank_on(network: Network, algebra: Algebra, device: gpu.BlockDevice) -> Any:

    targets, sizes = tuple(range(len(network.variables))), network.cardinalities
    memory = device.host(CASES * sum(sizes) * algebra.dtype.itemsize).view(algebra.dtype)
    posteriors = posteriors_in(memory, targets, sizes, CASES)
    return Answers(targets, np.zeros(CASES, dtype=np.int8), np.zeros(CASES), posteriors, memory=memory)


@pytest.mark.parametrize("shared", [True, False])
def test_trees_of_rows(shared: bool) -> None:
    network, batch = question()
    answers = blank(network, batch)
    engine = RowEngine(network, range(len(network.variables)), 1 << 26)
    assert not engine.answer_groups(batch, [TreeRows(np.arange(CASES), shared)], answers).size
    check(answers.log_value, "double")


def test_explanations_of_trees() -> None:
    network, batch = question()
    answers = Engine(network, Query(kind="mpe"), on_cpu()).answer(batch)
    check(answers.log_value, "max", max)


@pytest.mark.parametrize("precision", ["double", "single", "log"])
def test_rows_in_chunks(precision: Precision) -> None:
    network, batch = question()
    with cut_for(100):
        query = Query(precision=precision, targets=("x0",))
        answers = Engine(network, query, on_cpu(strategy=Strategy.CHUNKS)).answer(batch)
    assert answers.ways.keys() == {"chunks"}
    check(answers.log_value, precision)


@pytest.mark.parametrize("precision", ["double", "single", "log"])
@pytest.mark.parametrize("architecture", ["messages", "stored"])
def test_joint_posteriors(precision: Precision, architecture: Any) -> None:
    network, batch = question()
    for row in range(CASES):
        given = {f"x{v}": str(states[row]) for v, states in batch.states.items()}
        found = joint_posteriors(network, [["x0", "x1"]], given, precision, architecture=architecture)
        assert found.log_evidence == pytest.approx(expected()[row], rel=TOLERANCE[precision])


def test_a_joint_table_near_one() -> None:
    """The exponents of likelihoods and the logarithm of a small sum would cancel."""
    factor, most = Factor((0,), np.array([0.25, 0.75])), 1 + 2.0**-20
    network = Network("one", (Variable("x", ("0", "1")),), (factor,), "bayes")
    soft = SoftEvidence(np.array([0]), np.array([[most, most]]))
    answers = blank(network, batch := EvidenceBatch(1, {}, {0: soft}))
    assert not JointTable(network, [0]).answer(batch, np.array([0]), answers).size
    assert answers.log_value[0] == pytest.approx(math.log1p(2.0**-20), rel=1e-13)
