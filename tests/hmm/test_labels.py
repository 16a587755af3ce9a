"""Fits to sequences whose states are known, at all steps or some: against counting, and enumeration of paths."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from helpers.command_line import junctor_cli
from helpers.hmm_models import random_model, seen_in_part, sparse_of
from hypothesis import example, given
from hypothesis import strategies as st
from junctor.hmm import build_model, learn, read_model, write_model
from junctor.hmm.counts import SequenceCounter
from junctor.hmm.model import HiddenMarkovModel, SparseMatrix
from junctor.hmm.sequences import encode_sequences
from junctor.model.errors import EvidenceError
from junctor.model.options import ComputeOptions
from pyarrow import parquet

HERE = ComputeOptions(threads=1, device="cpu")
# Symbols and labels of a sequence, None for what is not known.
Case = list[list[tuple[int | None, int | None]]]


def uniform() -> HiddenMarkovModel:
    return build_model([0.5, 0.5], [[0.5, 0.5]] * 2, [[0.5, 0.5]] * 2, ["p", "q"], ["a", "b"])


def dense(model: HiddenMarkovModel) -> Any:
    return model.transition.dense() if isinstance(model.transition, SparseMatrix) else model.transition


WORDS, LABELS = [["a", "b", "b"], ["a", "a"]], [["p", "q", "q"], ["p", "p"]]


@pytest.mark.parametrize("start", ["model", "random", "uniform"])
def test_known_states_are_counted(start: Any, caplog: pytest.LogCaptureFixture) -> None:
    found = learn(uniform(), WORDS, labels=LABELS, start=start)
    assert found.model.start.tolist() == [1, 0]
    assert dense(found.model).tolist() == [[0.5, 0.5], [0, 1]]
    assert found.model.emission.tolist() == [[1, 0], [0, 1]]  # type: ignore[union-attr]
    assert found.log_likelihood == pytest.approx(2 * math.log(0.5), abs=1e-15)
    assert found.fit.converged
    assert (found.labelled, found.steps, found.to_record()["labelled"]) == (5, 5, 5)
    # Labels tell the states apart.
    assert not caplog.text


def test_pseudo_counts_and_weights_of_known_states() -> None:
    prior: Any = {"start": 0.5, "transition": 1, "emission": 2}
    found = learn(uniform(), WORDS, labels=LABELS, prior=prior, weights=[1, 2]).model
    np.testing.assert_allclose(found.start, [3.5 / 4, 0.5 / 4], rtol=1e-15)
    np.testing.assert_allclose(dense(found), [[3 / 5, 2 / 5], [1 / 3, 2 / 3]], rtol=1e-15)
    np.testing.assert_allclose(found.emission, [[7 / 9, 2 / 9], [2 / 6, 4 / 6]], rtol=1e-15)  # type: ignore[arg-type]
    fixed = learn(uniform(), WORDS, labels=LABELS, fix=["transition", "start"], tie=["p=q"]).model
    assert dense(fixed).tolist() == [[0.5, 0.5]] * 2
    np.testing.assert_allclose(fixed.emission, [[3 / 5, 2 / 5]] * 2, rtol=1e-15)  # type: ignore[arg-type]


@st.composite
def labelled_cases(draw: st.DrawFn) -> tuple[HiddenMarkovModel, Case]:
    model = random_model(3, 2, draw(st.integers(0, 999)), draw(st.sampled_from([0.0, 0.4])), sparse=draw(st.booleans()))
    unknown = draw(st.sampled_from([st.none(), st.nothing()]))
    step = st.tuples(st.one_of(st.none(), st.integers(0, 1)), st.one_of(unknown, st.integers(0, 2)))
    return model, draw(st.lists(st.lists(step, min_size=1, max_size=4), min_size=1, max_size=4))


@given(labelled_cases())
@example((random_model(3, 2, 0), [[(0, None), (None, 1), (1, None)], [(1, 2), (0, 0)], [(None, None)]]))
def test_counts_of_enumeration(case: tuple[HiddenMarkovModel, Case]) -> None:
    model, sequences = case
    symbols = [[symbol for symbol, _ in steps] for steps in sequences]
    labels = [[label for _, label in steps] for steps in sequences]
    weights = [1.0, 0.5, 3.0, 0.0][: len(sequences)]
    batch = encode_sequences(symbols, model, labels).batch
    found = SequenceCounter(batch, np.array(weights), HERE).count(model)
    each = [[None if symbol is None else [symbol] for symbol in steps] for steps in symbols]
    start, transition, emission, totals = seen_in_part(model, each, labels, weights)
    entries = transition[model.transition.rows, model.transition.columns] if model.sparse else transition  # type: ignore[union-attr]
    np.testing.assert_allclose(found.start, start, rtol=1e-12)
    np.testing.assert_allclose(found.transition, entries, rtol=1e-12)
    np.testing.assert_allclose(found.emission, emission, rtol=1e-12)  # type: ignore[arg-type]
    for value, total, weight in zip(found.log_value, totals, weights, strict=True):
        wanted = (math.log(total) if total else -math.inf) if weight else 0.0
        assert value == wanted or value == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("labels", [[["p", "q"], ["q"]], [["p", None], [None]]])
def test_labels_of_log_likelihoods(labels: Any) -> None:
    bare = random_model(2, 3, 1)
    model = build_model(bare.start, bare.transition, None, ["p", "q"])
    logs = np.log([[[0.25, 0.5], [0.5, 0.125]], [[0.75, 0.5], [0.5, 0.5]]]).tolist()
    logs = [logs[0], logs[1][:1]]
    found = learn(model, logs, labels=labels, acceleration="none", max_iterations=1, tolerance=0)
    # As symbols of a model: a column for each of the likelihoods.
    symbols = build_model(
        bare.start, bare.transition, [[0.25, 0.5, 0.25], [0.5, 0.125, 0.375]], ["p", "q"], ["a", "b", "c"]
    )
    shared = encode_sequences([["a", "b"]], symbols, labels[:1]).batch
    wanted = SequenceCounter(shared, np.ones(1), HERE).count(symbols)
    counts = SequenceCounter(encode_sequences(logs[:1], model, labels[:1]).batch, np.ones(1), HERE).count(model)
    np.testing.assert_allclose(counts.transition, wanted.transition, rtol=1e-12)
    np.testing.assert_allclose(counts.log_value, wanted.log_value, rtol=1e-12)
    assert counts.emission is None
    assert found.statuses["ok"] == 2


def test_some_labels_decide_which_state_is_which() -> None:
    rng = np.random.default_rng(0)
    words = rng.choice(["a", "b"], (40, 6)).tolist()
    labels: list[Any] = [["q"] + [None] * 5 if row[0] == "a" else None for row in words]
    found = learn(uniform(), words, labels=labels, max_iterations=20)
    objective = [each.log_posterior for each in found.fit.trace]
    assert all(after >= before - 1e-9 for before, after in pairwise(objective))
    assert found.labelled == sum(row[0] == "a" for row in words)


ZEROS: Any = ([1, 0], [[0.5, 0.5], [0, 1]], [[1, 0], [0.5, 0.5]], ["p", "q"], ["a", "b"])


@pytest.mark.parametrize(
    ("labels", "cause"),
    [
        (["q", "q", "q"], "step 0: no sequence starts in 'q'"),
        (["p", "p", None], "step 1: 'p' does not emit what is observed"),
        ([None, "q", "p"], "step 2: no transition leads from 'q' to 'p'"),
        ([None, None, "p"], "step 2: no path leads to 'p'"),
    ],
)
@pytest.mark.parametrize("sparse", [False, True])
def test_labels_that_zeros_rule_out(labels: Any, cause: str, sparse: bool) -> None:
    start, transition, *rest = ZEROS
    model = build_model(start, sparse_of(np.array(transition)) if sparse else transition, *rest)
    words = [["a", "b", "a"]] * 2
    with pytest.raises(
        EvidenceError, match=rf"sequence 2 is impossible by zeros of the model \({cause}\): --impossible"
    ):
        learn(model, words, labels=[None, labels])
    with pytest.raises(
        EvidenceError, match=rf"\(1, 2\) by zeros of the model \(the first: {cause}\): --impossible skip"
    ):
        learn(model, words, labels=[labels, labels])
    found = learn(model, words, labels=[None, labels], impossible="skip")
    assert found.statuses == {"ok": 1, "impossible": 1, "invalid": 0, "held_out": 0}
    assert found.reasons == {1: f"the sequence has probability 0 with its labels: {cause}"}
    if not sparse:
        assert learn(model, words, labels=[None, labels], impossible="smooth").statuses["ok"] == 2
    # Labels of others are not to blame.
    found = learn(model, [["b"], ["a"]], labels=[None, ["p"]], impossible="skip")
    assert found.reasons == {0: "the sequence has probability 0"}


def test_bad_labels_are_refused() -> None:
    labels: list[Any] = [["p", "x"], ["p"], None, ["q", None]]
    found = learn(uniform(), [["a", "b"]] * 4, labels=labels)
    assert found.statuses == {"ok": 2, "impossible": 0, "invalid": 2, "held_out": 0}
    assert found.reasons == {
        0: "step 1: label: unknown state 'x'; states are p, q",
        1: "found 1 labels, expected 2, one for each step",
    }
    for wrong, message in (
        ([["p"]], "found labels of 1 sequences, expected 2"),
        (["p", "q"], "found labels of type string, expected lists"),
        ("state", "found the text 'state', which names a column of a table alone"),
        (5, "labels cannot be read"),
        ([["p"], [1]], "labels cannot be read: sequence 1, step 0: found 1, expected text"),
    ):
        with pytest.raises(EvidenceError, match=message):
            learn(uniform(), [["a"], ["b"]], labels=wrong)


def test_labels_of_a_table() -> None:
    wanted = learn(uniform(), WORDS, labels=LABELS).model.digest
    columns = {"words": WORDS, "tags": [[0, 1, 1], [0, 0]]}
    for table in (columns, pd.DataFrame(columns), pa.table(columns)):
        assert learn(uniform(), table, labels="tags").model.digest == wanted
        with pytest.raises(EvidenceError, match="no list column 'tag' of labels, did you mean 'tags'"):
            learn(uniform(), table, labels="tag")


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(uniform(), "model.json")
    words, labels = [*WORDS, ["b"]], [*LABELS, ["r"]]
    Path("in").mkdir()
    for n, part in enumerate((slice(0, 1), slice(1, 3))):
        parquet.write_table(pa.table({"tags": labels[part], "words": words[part]}), f"in/{n}.parquet", row_group_size=1)
    found = junctor_cli("learn-chain", "model.json", "in", "-o", "fitted.json", "--labels", "tags")
    assert found.exit_code == 0, found.output
    assert "sequences: 2 ok, 1 invalid\nlabels: of 5 of 5 steps\n" in found.stdout
    assert "left out: sequence 3: step 0: label: unknown state 'r'; states are p, q" in found.stderr
    assert read_model("fitted.json").digest == learn(uniform(), WORDS, labels=LABELS).model.digest
    found = junctor_cli("learn-chain", "model.json", "in", "-o", "fitted.json", "--labels", "words", "--column", "tags")
    assert found.exit_code == EvidenceError.exit_code
