"""Steps of which some sensors are observed: against all symbols that agree with what is seen, by enumeration."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from helpers.hmm_models import seen_in_part, sensor_model
from hypothesis import example, given
from hypothesis import strategies as st
from junctor import hmm
from junctor.hmm import build_model, learn, posteriors, viterbi
from junctor.hmm.counts import SequenceCounter
from junctor.hmm.observations import observed
from junctor.hmm.results import read_sequences, write_sequences
from junctor.hmm.run import SequenceJob
from junctor.hmm.sequences import encode_sequences
from junctor.model.errors import ModelError
from junctor.model.options import ComputeOptions
from junctor.runs.run import run
from pyarrow import parquet

MACHINE = """network machine {}
variable Wear_0 { type discrete [ 2 ] { ok, bad }; }
variable Wear_1 { type discrete [ 2 ] { ok, bad }; }
variable Noise_1 { type discrete [ 2 ] { quiet, loud }; }
variable Heat_1 { type discrete [ 2 ] { cool, hot }; }
probability ( Wear_0 ) { table 0.75, 0.25; }
probability ( Wear_1 | Wear_0 ) { (ok) 0.5, 0.5; (bad) 0, 1; }
probability ( Noise_1 | Wear_1 ) { (ok) 0.75, 0.25; (bad) 0.5, 0.5; }
probability ( Heat_1 | Wear_1 ) { (ok) 0.5, 0.5; (bad) 0.25, 0.75; }
"""

# Of two sensors the states, None for unobserved.
Step = tuple[int | None, int | None]


def steps_of(sizes: tuple[int, int]) -> st.SearchStrategy[Step]:
    u, v = (st.one_of(st.none(), st.integers(0, size - 1)) for size in sizes)
    return st.tuples(u, v)


def text_of(step: Step) -> str:
    return ",".join("" if state is None else f"{name}{state}" for name, state in zip("uv", step, strict=True))


def agreeing(step: Step, sizes: tuple[int, int]) -> list[int] | None:
    """The symbols that a step may be; None where nothing is observed."""
    if step == (None, None):
        return None
    places = [range(size) if state is None else [state] for state, size in zip(step, sizes, strict=True)]
    return [u * sizes[1] + v for u, v in product(*places)]


@given(
    st.integers(0, 999),
    st.lists(st.lists(steps_of((2, 3)), min_size=1, max_size=3), min_size=1, max_size=3),
    st.sampled_from([0.0, 0.4]),
)
@example(0, [[(0, None), (None, None), (None, 2)], [(1, 1)]], 0.0)
def test_answers_of_enumeration(seed: int, sequences: list[list[Step]], zeros: float) -> None:
    model = sensor_model(seed, zeros=zeros)
    texts = [[text_of(step) for step in steps] for steps in sequences]
    symbols = [[agreeing(step, (2, 3)) for step in steps] for steps in sequences]
    paths = viterbi(model, texts, device="cpu").to_pylist()
    smooth = posteriors(model, texts, device="cpu").to_pylist()
    for steps, path, found in zip(symbols, paths, smooth, strict=True):
        (total,) = seen_in_part(model, [steps])[3]
        each = [
            (seen_in_part(model, [steps], [list(states)])[3][0], states)
            for states in product(range(2), repeat=len(steps))
        ]
        assert (found["status"] == "ok") == (path["status"] == "ok") == (total > 0)
        if total == 0:
            continue
        assert found["log_likelihood"] == pytest.approx(math.log(total), abs=1e-12)
        assert path["log_probability"] == pytest.approx(math.log(max(each)[0]), abs=1e-12)
        wanted = [[sum(p for p, s in each if s[t] == i) / total for i in range(2)] for t in range(len(steps))]
        np.testing.assert_allclose(found["posterior"], wanted, atol=1e-12)


@given(
    st.integers(0, 999),
    st.lists(st.lists(steps_of((2, 2)), min_size=1, max_size=3), min_size=1, max_size=3),
    st.sampled_from([0.0, 0.4]),
)
@example(0, [[(0, None), (None, None), (None, 1)], [(1, 1)]], 0.4)
def test_expected_counts_of_enumeration(seed: int, sequences: list[list[Step]], zeros: float) -> None:
    model, weights = sensor_model(seed, (2, 2), zeros=zeros), [1.0, 2.5, 0.25][: len(sequences)]
    batch = encode_sequences([[text_of(step) for step in steps] for steps in sequences], model).batch
    found = SequenceCounter(batch, np.array(weights), ComputeOptions(threads=1, device="cpu")).count(model)
    symbols = [[agreeing(step, (2, 2)) for step in steps] for steps in sequences]
    start, transition, emission, totals = seen_in_part(model, symbols, None, weights)
    np.testing.assert_allclose(found.start, start, rtol=1e-12)
    np.testing.assert_allclose(found.transition, transition, rtol=1e-12)
    np.testing.assert_allclose(found.emission, emission, rtol=1e-12)  # type: ignore[arg-type]
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(found.log_value, np.log(totals), atol=1e-12)


def test_a_fit_climbs_and_counts_symbols() -> None:
    model = sensor_model(1, (2, 2))
    texts = [["u0,", "u1,v0", ",v1"], [",v0", "u0,v0"], ["u1,"]] * 4
    found = learn(model, texts, acceleration="none", max_iterations=6, tolerance=0, errors=True)
    objective = [each.log_posterior for each in found.fit.trace]
    assert objective == sorted(objective)
    assert found.model.sensors == model.sensors
    assert found.missing == 0
    assert found.parameters is not None
    # Every step has a symbol, seen or not.
    counts = [row["count"] for row in found.parameters.to_pylist() if row["variable"] == "emission"]
    assert sum(counts) == pytest.approx(24)


def test_parts_of_a_symbol_in_words() -> None:
    model = sensor_model(0)
    texts = ["u1,v2", " u1 , v2 ", "1,2", "u0,", "u0,?", ",v1", "NA,v1", ",", None, "u0,v9", "u0,v1,"]
    batch = encode_sequences([[text] for text in texts], model).batch
    assert batch.symbols is not None
    assert batch.symbols.tolist()[:9] == [5, 5, 5, 6, 6, 7, 7, -1, -1]
    assert batch.partial is not None
    assert batch.partial.tolist() == [[0, -1], [-1, 1]]
    assert batch.invalid is not None
    assert batch.invalid[9] == "step 0: unknown v state 'v9'; v states are v0, v1, v2"
    assert batch.invalid[10].startswith("step 0: unknown symbol 'u0,v1,'")


def test_a_two_slice_network_with_a_sensor_missing(tmp_path: Path) -> None:
    (tmp_path / "machine.bif").write_text(MACHINE)
    model = hmm.read_model(tmp_path / "machine.bif")
    assert model.sensors == (("Noise_1", ("quiet", "loud")), ("Heat_1", ("cool", "hot")))
    (row,) = posteriors(tmp_path / "machine.bif", [["loud,hot", "loud,"]], device="cpu").to_pylist()
    # ok, ok: .75 * .125 * .5 * .25; ok, bad: .75 * .125 * .5 * .5; bad, bad: .25 * .375 * .5.
    weights = [0.75 * 0.125 * 0.5 * 0.25, 0.75 * 0.125 * 0.5 * 0.5, 0.25 * 0.375 * 0.5]
    assert row["log_likelihood"] == pytest.approx(math.log(sum(weights)), abs=1e-13)
    assert row["posterior"][1] == pytest.approx([weights[0] / sum(weights), 1 - weights[0] / sum(weights)], abs=1e-13)


@pytest.mark.parametrize("query", ["viterbi", "posteriors"])
def test_partitions_of_a_run_keep_what_is_seen_in_part(tmp_path: Path, query: Any) -> None:
    (tmp_path / "machine.bif").write_text(MACHINE)
    words = [["loud,", "quiet,hot"], [",hot"], ["quiet,", ",cool", "loud,hot"], ["loud,hot"]]
    parquet.write_table(pa.table({"words": words}), tmp_path / "words.parquet", row_group_size=1)
    job = SequenceJob(
        str(tmp_path / "machine.bif"), str(tmp_path / "words.parquet"), str(tmp_path / "out"), query, partition_rows=2
    )
    assert run(job).statuses["ok"] == 4
    answers = parquet.read_table(tmp_path / "out" / query)
    ask = viterbi if query == "viterbi" else posteriors
    wanted = ask(tmp_path / "machine.bif", words, device="cpu")
    for name in wanted.column_names:
        assert answers.column(name).to_pylist() == wanted.column(name).to_pylist()
    part = encode_sequences(words, hmm.read_model(tmp_path / "machine.bif"))
    write_sequences(part, tmp_path / "part.parquet")
    again = read_sequences(tmp_path / "part.parquet").batch
    np.testing.assert_array_equal(again.partial, part.batch.partial)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["m.json", "m.parquet"])
def test_sensors_are_kept_in_files(tmp_path: Path, name: str) -> None:
    model = sensor_model(0)
    hmm.write_model(model, tmp_path / name)
    found = hmm.read_model(tmp_path / name)
    assert (found.sensors, found.digest) == (model.sensors, model.digest)
    assert replace(model, sensors=()).digest != model.digest


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sensors": {"a": ["x", "y"]}}, r"sensors of \[2\] states have 2 symbols, the model has 4"),
        ({"sensors": {"a": ["x", "x"], "b": ["x", "y"]}}, "found the state of 'a' name 'x'"),
        ({"sensors": {"": ["x", "y"], "b": ["x", "y"]}}, "found the sensor name ''"),
        ({"symbols": list("abcd"), "sensors": {"a": ["x", "y"], "b": ["x", "y"]}}, "are not those of the sensors'"),
    ],
)
def test_bad_sensors_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build_model([1.0], [[1.0]], [[0.25] * 4], **changes)


def test_whole_symbols_need_no_others() -> None:
    model = sensor_model(0)
    assert observed(encode_sequences([["u0,v0", None]], model).batch, model) is None
