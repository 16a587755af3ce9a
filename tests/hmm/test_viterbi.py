"""Most probable paths and posteriors of sequences: kernels, reference, enumeration and answers of other programs."""

from __future__ import annotations

import gzip
import json
import math
import re
import tracemalloc
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from baselines import viterbi_versions
from helpers.hmm_models import batch_of, paths, random_batch, random_model, small_cases, sparse_of
from helpers.options import on_cpu
from hypothesis import example, given, settings
from hypothesis import strategies as st
from junctor.hmm import build_model, posteriors, viterbi
from junctor.hmm.blocks import TrellisMemory, fitting, plan_blocks
from junctor.hmm.decode import CpuDecoder, decode
from junctor.hmm.engine import SequenceEngine
from junctor.hmm.model import HiddenMarkovModel
from junctor.hmm.numbers import PathNumbers, in_format, log_transitions, logarithms
from junctor.hmm.packing import Lockstep, SequenceBatch, locksteps
from junctor.model.answers import IMPOSSIBLE, INVALID, OK
from junctor.model.errors import BudgetError
from junctor.model.query import Precision
from junctor_kernels.hmm import forward_backward
from junctor_kernels.hmm import viterbi as reference

FAR = TrellisMemory(1 << 40)


def lockstep(batch: SequenceBatch) -> Lockstep:
    (steps,) = locksteps(batch.lengths, np.arange(len(batch)), len(batch))
    return steps


def reference_path(model: HiddenMarkovModel, batch: SequenceBatch, steps: Lockstep, dtype: Any) -> Any:
    transition = model.transition.dense() if model.sparse else model.transition  # type: ignore[union-attr]
    full = in_format(logarithms(transition), dtype)
    assert log_transitions(model, dtype).dtype == full.dtype
    where = steps.steps(batch.starts, 0, steps.ticks - 1)
    emissions = np.concatenate([logarithms(model.emission.T), np.zeros((1, model.states))])  # type: ignore[union-attr]
    rows = in_format(emissions, dtype)[batch.symbols[where]]  # type: ignore[index]
    start = in_format(logarithms(model.start), dtype)
    return reference.trace(reference.trellis_of(start, full, rows, steps.counts), full, steps.counts)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("states", "lengths"), [(1, [1]), (3, [4, 2, 2, 1]), (70, [5] * 9), (600, [3, 3, 2])])
def test_compiled_paths_are_those_of_the_reference(sparse: bool, states: int, lengths: list[int]) -> None:
    for seed, zeros in enumerate((0.0, 0.5, 0.9)):
        model = random_model(states, 4, seed, zeros, sparse)
        batch = random_batch(model, lengths, seed)
        steps = lockstep(batch)
        for threads in (1, 3):
            machine = CpuDecoder(PathNumbers(model, np.float64), threads)
            found = decode(machine, batch, steps, FAR, Path())
            np.testing.assert_array_equal(found, reference_path(model, batch, steps, np.float64))


def test_single_precision_is_that_of_the_reference() -> None:
    model = random_model(70, 4, 3, 0.3)
    batch = random_batch(model, [9, 9, 4, 1])
    found = decode(CpuDecoder(PathNumbers(model, np.float32)), batch, lockstep(batch), FAR, Path())
    np.testing.assert_array_equal(found, reference_path(model, batch, lockstep(batch), np.float32))


@given(small_cases())
def test_paths_and_posteriors_are_those_of_enumeration(case: tuple[HiddenMarkovModel, list[list[int]]]) -> None:
    model, sequences = case
    batch = batch_of(sequences)
    found = SequenceEngine(model, options=on_cpu(threads=2)).answer(batch)
    smooth = SequenceEngine(model, "posteriors", options=on_cpu(threads=2)).answer(batch)
    assert found.states is not None
    assert smooth.posteriors is not None
    for n, symbols in enumerate(sequences):
        where = slice(batch.starts[n], batch.starts[n + 1])
        every = paths(model, symbols)
        total = math.fsum(p for p, _ in every)
        assert found.status[n] == smooth.status[n] == (OK if total else IMPOSSIBLE)
        if not total:
            assert found.reasons[n] == smooth.reasons[n] == "the sequence has probability 0"
            continue
        assert found.log_value[n] == pytest.approx(math.log(every[0][0]), abs=1e-12)
        ours = next(p for p, path in every if path == tuple(found.states[where]))
        assert ours == pytest.approx(every[0][0], rel=1e-12)
        assert smooth.log_value[n] == pytest.approx(math.log(total), abs=1e-12)
        for t in range(len(symbols)):
            wanted = [math.fsum(p for p, path in every if path[t] == i) / total for i in range(model.states)]
            np.testing.assert_allclose(smooth.posteriors[where][t], wanted, atol=1e-12)


def test_ties_go_to_the_smaller_state() -> None:
    # All paths are equally probable; then all that end in states 1 and 2.
    flat = np.full((3, 3), 1 / 3)
    for sparse in (False, True):
        model = build_model(flat[0], sparse_of(flat) if sparse else flat, [[1, 0], [0.5, 0.5], [0.5, 0.5]])
        found = SequenceEngine(model).answer(batch_of([[-1, -1, -1], [-1, 1, -1], [1]])).states
        assert found is not None
        assert found.tolist() == [0, 0, 0, 0, 1, 0, 1]


def test_answers_do_not_depend_on_threads_company_or_blocks(tmp_path: Path) -> None:
    model = random_model(20, 4, 5, 0.3)
    batch = random_batch(model, np.random.default_rng(0).integers(1, 40, 30))
    wanted = SequenceEngine(model).answer(batch)
    row = CpuDecoder(PathNumbers(model, np.float64)).row_bytes
    rest = PathNumbers(model, np.float64).nbytes
    for threads, rows, disk in [(2, 10_000, 0), (1, 60, 0), (1, 60, 30 * row), (2, 200, 1 << 30), (64, 4000, 0)]:
        options = on_cpu(rest + rows * row, threads, spill_dir=tmp_path, spill_bytes=disk)
        engine = SequenceEngine(model, options=options)
        found = engine.answer(batch)
        np.testing.assert_array_equal(found.states, wanted.states)  # type: ignore[arg-type]
        np.testing.assert_array_equal(found.log_value, wanted.log_value)
    alone = [
        SequenceEngine(model).answer(batch_of([each])).log_value[0]
        for each in np.split(batch.symbols, batch.starts[1:-1])
    ]  # type: ignore[arg-type, call-overload]
    np.testing.assert_array_equal(alone, wanted.log_value)
    several, one = (SequenceEngine(model, "posteriors", options=on_cpu(threads=n)).answer(batch) for n in (3, 1))
    np.testing.assert_array_equal(several.posteriors, one.posteriors)  # type: ignore[arg-type]


def test_threads_that_share_a_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    from junctor.hmm import decode as module

    model = random_model(200, 4, 6)
    batch = random_batch(model, [12])
    wanted = SequenceEngine(model, options=on_cpu()).answer(batch).states
    monkeypatch.setattr(module, "SHARED_TERMS", 1)
    np.testing.assert_array_equal(SequenceEngine(model, options=on_cpu(threads=3)).answer(batch).states, wanted)  # type: ignore[arg-type]


@settings(max_examples=50)
@example([1, 1], 1, 0, 0)
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=6), st.integers(1, 400), st.integers(0, 99), st.integers(0, 99)
)
def test_blocks_cover_all_ticks_within_the_room(lengths: list[int], rows: int, host: int, disk: int) -> None:
    steps = locksteps(np.array(lengths), np.arange(len(lengths)), len(lengths))[0]
    starts = steps.starts
    try:
        blocks = plan_blocks(starts, 8, TrellisMemory(rows * 8, host * 8, disk * 8))
    except BudgetError:
        # Four times the root of the square is what always suffices.
        assert rows < 4 * math.ceil(math.sqrt(int(starts[-1]) * len(lengths))) + 4 * len(lengths)
        return
    assert (blocks[0].first, blocks[-1].last) == (0, steps.ticks - 1)
    assert all(one.last == two.first for one, two in pairwise(blocks))
    assert blocks[-1].place == "here"
    size = {block: int(starts[block.last + 1] - starts[block.first]) for block in blocks}
    firsts = sum(int(steps.counts[block.first]) for block in blocks if block.place == "again")
    assert max(size.values()) + firsts <= rows
    for place, room in (("host", host), ("disk", disk)):
        assert sum(size[block] for block in blocks if block.place == place) <= room


def test_the_peak_stays_within_the_memory() -> None:
    model, steps = random_model(20, 4, 5), 50_000
    batch = random_batch(model, [steps])
    SequenceEngine(model).answer(random_batch(model, [3]))
    machine = CpuDecoder(PathNumbers(model, np.float64))
    memory = machine.numbers.nbytes + (1 << 20)
    assert steps * machine.row_bytes > 12 << 20
    tracemalloc.start()
    SequenceEngine(model, options=on_cpu(memory, spill_bytes=0)).answer(batch)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Beside the rows: what is known of each step, and its state.
    assert peak < memory + 120 * steps


def test_a_trellis_that_fits_nowhere_is_refused() -> None:
    batch = random_batch(random_model(2, 2), [1000])
    with pytest.raises(BudgetError, match=r"1,000 steps for 1 sequences needs .*, allowed are 80 B \(80 bytes\)"):
        list(fitting(batch, np.arange(1), 4, 2, 8, TrellisMemory(80)))


def test_long_sequences_in_single_precision() -> None:
    model = random_model(8, 5, 9)
    batch = random_batch(model, [300_000])
    single, double = (SequenceEngine(model, precision=p).answer(batch) for p in ("single", "double"))  # type: ignore[arg-type]
    assert single.log_value[0] == pytest.approx(double.log_value[0], rel=1e-6)
    assert double.log_value[0] < -1e5


def test_underflow_is_not_impossible() -> None:
    # Staying in state 0 gets less likely by a factor of 1e-5 a step than being in state 1, but only 0 explains the end.
    model = build_model([0.5, 0.5], [[1, 0], [0, 1]], [[1e-5, 1e-5, 1 - 2e-5], [0.5, 0.5, 0]])
    sequence = [0, 1] * 100 + [2]
    wanted = math.log(0.5) + 200 * math.log(1e-5) + math.log(1 - 2e-5)
    for precision in ("double", "log"):
        found = SequenceEngine(model, "posteriors", precision).answer(batch_of([sequence, [2, 0], [0]]))  # type: ignore[arg-type]
        assert found.posteriors is not None
        assert found.status.tolist() == [OK, OK, OK]
        assert found.log_value[0] == pytest.approx(wanted, rel=1e-12)
        np.testing.assert_allclose(found.posteriors[:201], [[1.0, 0.0]] * 201)
        assert found.log_value[2] == pytest.approx(math.log(0.5 * 0.50001))
    assert SequenceEngine(model).answer(batch_of([sequence])).log_value[0] == pytest.approx(wanted, rel=1e-12)
    assert SequenceEngine(model, "posteriors").answer(batch_of([[0, 2, 1] * 30])).status.tolist() == [OK]
    never = build_model([0, 1], [[1, 0], [0, 1]], [[1e-5, 1 - 1e-5], [1, 0]])
    assert SequenceEngine(never, "posteriors").answer(batch_of([[0] * 300 + [1]])).status.tolist() == [IMPOSSIBLE]


def test_probabilities_below_the_format_are_not_zero() -> None:
    tiny = 1e-310
    model = build_model([tiny, 1], [[1, 0], [0, 1]], [[0, 1], [1, 0]])
    found = SequenceEngine(model, "posteriors").answer(batch_of([[1]]))
    assert (found.status[0], found.log_value[0]) == (OK, pytest.approx(math.log(tiny)))


@pytest.mark.slow
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("precision", ["single", "double", "log"])
def test_posteriors_in_every_format(sparse: bool, precision: Any) -> None:
    for states, zeros in [(1, 0.0), (64, 0.2), (65, 0.8), (600, 0.5)]:
        model = random_model(states, 4, states, zeros, sparse)
        batch = random_batch(model, [6, 5, 5, 1])
        found = SequenceEngine(model, "posteriors", precision).answer(batch)
        dense = model.transition.dense() if model.sparse else model.transition  # type: ignore[union-attr]
        for n in range(4):
            symbols = batch.symbols[batch.starts[n] : batch.starts[n + 1]]  # type: ignore[index]
            rows = np.concatenate([logarithms(model.emission.T), np.zeros((1, states))])[symbols]  # type: ignore[union-attr]
            total, wanted = forward_backward.posteriors_of(logarithms(model.start), logarithms(dense), rows)
            if total == -np.inf:
                assert found.status[n] == IMPOSSIBLE
                continue
            assert found.log_value[n] == pytest.approx(total, abs=1e-4 if precision == "single" else 1e-11)
            ours = found.posteriors[batch.starts[n] : batch.starts[n + 1]]  # type: ignore[index]
            np.testing.assert_allclose(ours, wanted, atol=1e-5 if precision == "single" else 1e-12)


def exact_likelihood(model: HiddenMarkovModel, symbols: list[int]) -> float:
    """Return log P of a sequence, from rational numbers and one logarithm."""
    start, transition, emission = (
        [[Fraction(x) for x in row] for row in np.atleast_2d(table).tolist()]
        for table in (model.start, model.transition, model.emission)
    )
    row = [x * emission[i][symbols[0]] for i, x in enumerate(start[0])]
    for symbol in symbols[1:]:
        sums = [sum(x * transition[i][j] for i, x in enumerate(row)) for j in range(len(row))]
        row = [x * emission[j][symbol] for j, x in enumerate(sums)]
    total = sum(row)
    power = total.numerator.bit_length() - total.denominator.bit_length()
    return math.log(total / Fraction(2) ** power) + power * math.log(2)


@pytest.mark.parametrize("precision", ["double", "single", "log"])
def test_long_sequences_have_exact_likelihoods(precision: Any) -> None:
    model = build_model([0.25, 0.75], [[0.875, 0.125], [0.0625, 0.9375]], [[0.5, 0.25, 0.25], [0.125, 0.125, 0.75]])
    symbols = np.random.default_rng(3).integers(0, 3, 3000).tolist()
    found = posteriors(model, [symbols], precision=precision)["log_likelihood"][0].as_py()
    assert found == pytest.approx(exact_likelihood(model, symbols), rel=1e-9 if precision == "single" else 1e-13)


@pytest.mark.parametrize("precision", ["double", "log"])
def test_log_likelihoods_that_cancel_leave_the_exact_rest(precision: Any) -> None:
    """Factors of steps that multiply to 1, whatever they are."""
    rng = np.random.default_rng(4)
    factors = rng.uniform(-1e4, 1e4, 3000)
    factors = rng.permutation(np.concatenate([factors, -factors]))
    steps = np.stack([factors, np.full(len(factors), -np.inf)], axis=1)
    model = build_model([0.25, 0.75], [[1.0, 0.0], [0.0, 1.0]])
    likelihood = posteriors(model, [steps], precision=precision)["log_likelihood"][0].as_py()
    probability = viterbi(model, [steps], precision=precision)["log_probability"][0].as_py()
    assert [likelihood, probability] == pytest.approx([math.log(0.25)] * 2, rel=1e-13)


def test_posteriors_that_exceed_the_memory_are_refused() -> None:
    model = random_model(50, 3)
    with pytest.raises(BudgetError, match=r"posteriors of 500 steps need .* raise --memory"):
        SequenceEngine(model, "posteriors", options=on_cpu(300_000)).answer(random_batch(model, [500]))


@pytest.mark.parametrize("precision", ["single", "double"])
def test_posteriors_take_the_memory_that_they_say_whatever_the_threads(precision: Precision) -> None:
    model = random_model(50, 3)
    batch = random_batch(model, [500])
    with pytest.raises(BudgetError) as refused:
        SequenceEngine(model, "posteriors", precision, options=on_cpu(1000)).answer(batch)
    (needed,) = re.findall(r"need ([\d.]+) KiB", str(refused.value))
    enough = 1 << 12
    wanted = SequenceEngine(model, "posteriors", precision).answer(batch)
    for threads in (1, 16):
        options = on_cpu(int(float(needed) * 1024) + enough, threads)
        engine = SequenceEngine(model, "posteriors", precision, options)
        np.testing.assert_array_equal(engine.answer(batch).posteriors, wanted.posteriors)


def test_statuses_and_columns() -> None:
    model = build_model(
        [0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]], ["well", "ill"], list("abc")
    )
    sequences = [["a", "b", "c"], [], None, ["a", "x"]]
    rows = viterbi(model, sequences).to_pylist()
    assert rows[0]["path"] == ["well", "well", "ill"]
    assert math.exp(rows[0]["log_probability"]) == pytest.approx(0.01512)
    assert [row["status"] for row in rows] == ["ok", "invalid", "invalid", "invalid"]
    assert [row["path"] for row in rows[1:]] == [None] * 3
    assert rows[1]["reason"] == "the sequence is empty"
    smooth = posteriors(model, sequences).to_pylist()
    assert smooth[0]["posterior"][0] == pytest.approx([0.87651598677, 0.12348401323])
    assert [row["log_likelihood"] for row in smooth[1:]] == [None] * 3
    assert SequenceEngine(model).answer(batch_of([[]])).status.tolist() == [INVALID]
    assert viterbi(model, []).num_rows == 0


def test_log_likelihoods_are_those_of_symbols() -> None:
    model = random_model(4, 3, 2, 0.3)
    batch = random_batch(model, [5, 3, 1])
    rows = np.concatenate([logarithms(model.emission.T), np.zeros((1, 4))])[batch.symbols]  # type: ignore[union-attr]
    direct = SequenceBatch(batch.starts, None, rows)
    silent = build_model(model.start, model.transition)
    for kind in ("viterbi", "posteriors"):
        wanted = SequenceEngine(model, kind).answer(batch)  # type: ignore[arg-type]
        found = SequenceEngine(silent, kind).answer(direct)  # type: ignore[arg-type]
        np.testing.assert_array_equal(found.status, wanted.status)
        np.testing.assert_allclose(found.log_value, wanted.log_value, rtol=1e-12)


@pytest.mark.parametrize("name", ["casino", "ud_ewt_pos"])
@pytest.mark.parametrize("precision", ["single", "double"])
def test_answers_of_hmmlearn(shared: Path, name: str, precision: Any) -> None:
    folder = shared / "hmm" / name
    if not folder.is_dir():
        pytest.skip("no hidden Markov models there")
    given_model = json.loads(gzip.decompress((folder / "model.json.gz").read_bytes()))
    answers = json.loads(gzip.decompress((folder / "oracle_hmmlearn.json.gz").read_bytes()))["sequences"]
    model = build_model(given_model["startprob"], given_model["transmat"], given_model["emissionprob"])
    batch = batch_of([each["obs"] for each in answers])
    found = SequenceEngine(model, precision=precision, options=on_cpu(threads=2)).answer(batch)
    np.testing.assert_allclose(found.log_value, [each["viterbi_logprob"] for each in answers], rtol=1e-12)
    assert found.states is not None
    assert found.states.tolist() == [state for each in answers for state in each["viterbi_path"]]
    if precision == "double":
        smooth = SequenceEngine(model, "posteriors", precision, options=on_cpu(threads=2)).answer(batch)
        np.testing.assert_allclose(smooth.log_value, [each["log_likelihood"] for each in answers], rtol=1e-12)
        wanted = np.array([row for each in answers for row in each["posterior"]])
        np.testing.assert_allclose(smooth.posteriors, wanted, atol=1e-11)  # type: ignore[arg-type]


def test_the_serial_version_finds_a_best_path() -> None:
    model = random_model(9, 4, 8)
    symbols = np.random.default_rng(1).integers(0, 4, 30).astype(np.int32)
    logs = [logarithms(each).astype(np.float32) for each in (model.start, model.transition, model.emission)]  # type: ignore[arg-type]
    path = np.zeros(30, np.int32)
    value = viterbi_versions.serial(logs[0], logs[1].T.copy(), logs[2].T.copy(), symbols, path)
    found = SequenceEngine(model).answer(batch_of([symbols]))
    assert value == pytest.approx(found.log_value[0], rel=1e-6)
    np.testing.assert_array_equal(path, found.states)  # type: ignore[arg-type]
