"""Networks from drafts: tables that are checked together are what they would be one by one."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from junctor.generate import random_network
from junctor.model import network as networks
from junctor.model.errors import ModelError, Place
from junctor.model.network import DraftTable, DraftVariable, Kind, Network, Reading, build_network

Drafts = tuple[list[DraftVariable], list[DraftTable]]
NAMES = "abcdefgh"
# Entries that are wrong, or that make their row miss 1 by a little.
ODD = (float("nan"), float("inf"), -0.1, 1e300, 0.0, 0.5 + 1e-6, 0.5 + 1.9999999e-6, 0.5 + 2e-6, 0.5 + 3e-6, 0.5 + 1e-3)


@st.composite
def drafts(draw: st.DrawFn, kind: Kind) -> Drafts:
    """Draw a draft in which some tables, now and then, have something wrong with them."""
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=len(NAMES)))
    variables = [
        DraftVariable(name, [str(i) for i in range(size)], Place("n", i))
        for i, (name, size) in enumerate(zip(NAMES, sizes, strict=False))
    ]
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    tables = []
    for child in draw(st.permutations(range(len(sizes)))):
        parents = draw(st.lists(st.integers(0, len(sizes) - 1), max_size=3, unique=True))
        scope = [v for v in parents if v < child or draw(st.integers(0, 30)) == 0] + [child]
        values = rng.random([sizes[v] for v in scope])
        values /= values.sum(axis=-1, keepdims=True)
        if draw(st.integers(0, 9)) == 0:
            values *= draw(st.sampled_from([0.0, 1 + 1e-6, 1 + 3e-6]))
        if draw(st.integers(0, 4)) == 0:
            values.flat[draw(st.integers(0, values.size - 1))] = draw(st.sampled_from(ODD))
        if draw(st.integers(0, 19)) == 0:
            values = values.ravel()[1:]
        names = [NAMES[v] for v in scope]
        if draw(st.integers(0, 19)) == 0:
            names[0] = draw(st.sampled_from(["z", names[-1]]))
        tables.append(DraftTable(names, values, Place("n", 100 + child)))
    return variables, tables


def outcome(kind: Kind, draft: Drafts) -> object:
    try:
        network = build_network("n", kind, *draft)
    except ModelError as error:
        return str(error)
    assert all(not factor.table.flags.writeable for factor in network.factors)
    return network.digest


@given(data=st.data(), kind=st.sampled_from(["bayes", "markov"]))
def test_tables_together_are_the_tables_one_by_one(data: st.DataObject, kind: Kind) -> None:
    draft = data.draw(drafts(kind))
    together = outcome(kind, draft)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(networks, "SMALL_TABLE", -1)
        assert outcome(kind, draft) == together


def test_variables_with_equal_states_share_them() -> None:
    place = Place("n")
    variables = [DraftVariable(name, ["no", "yes"], place) for name in "ab"]
    tables = [DraftTable([name], [0.5, 0.5], place) for name in "ab"]
    first, second = build_network("n", "bayes", variables, tables).variables
    assert first.states is second.states


def _counts(rows: list[list[float]], **options: bool) -> Network:
    reading = Reading(**options)
    drafts = [DraftVariable(name, ["no", "yes"], Place("f")) for name in "ab"]
    tables = [DraftTable("a", [3, 1], Place("f", 5)), DraftTable("ab", rows, Place("f", 6))]
    return build_network("n", "bayes", drafts, tables, reading=reading)


def test_tables_of_counts_are_refused_with_the_option_that_takes_them() -> None:
    with pytest.raises(ModelError, match=r"sums to 4, expected 1 .*counts or percentages are taken with --normalize"):
        _counts([[1, 3], [30, 70]])
    network = _counts([[1, 3], [30, 70]], normalize=True)
    assert network.factors[0].table.tolist() == [0.75, 0.25]
    assert network.factors[1].table.tolist() == [[0.25, 0.75], [0.3, 0.7]]


@pytest.mark.parametrize("row", [[0.02, 0.99], [0.02, 0.97]])
def test_a_sum_that_is_as_far_off_as_allowed_is_divided_out(row: list[float]) -> None:
    drafts = [DraftVariable("a", ["no", "yes"], Place("f"))]
    network = build_network("n", "bayes", drafts, [DraftTable("a", row, Place("f", 5))])
    assert network.factors[0].table.tolist() == [number / sum(row) for number in row]
    with pytest.raises(ModelError, match=r"sums to 1.011, expected 1 \(up to 0.01 off is divided out"):
        build_network("n", "bayes", drafts, [DraftTable("a", [0.021, 0.99], Place("f", 5))])


@pytest.mark.parametrize("largest", [1.7e308, sys.float_info.max])
def test_counts_whose_sum_is_no_double(largest: float) -> None:
    table = _counts([[1e308, largest], [1, 3]], normalize=True).factors[1].table
    expected = [float(Fraction(n) / (Fraction(1e308) + Fraction(largest))) for n in (1e308, largest)]
    np.testing.assert_allclose(table, [expected, [0.25, 0.75]], rtol=1e-15)
    # A row of zeros is still one, beside such a row.
    with pytest.raises(ModelError, match=r"the row at a=yes sums to 0, expected 1"):
        _counts([[1e308, largest], [0, 0]], normalize=True)


def test_a_row_without_counts_has_no_probabilities() -> None:
    with pytest.raises(ModelError, match=r"the row at a=yes sums to 0, expected 1") as caught:
        _counts([[1, 3], [0, 0]], normalize=True)
    assert "--normalize" not in str(caught.value)


def test_negative_roundings_count_as_zero_and_are_noted() -> None:
    drafts = [DraftVariable("a", ["no", "yes"], Place("f"))]
    reading = Reading()
    network = build_network("n", "bayes", drafts, [DraftTable("a", [1.0, -1.19e-7], Place("f", 5))], reading=reading)
    assert network.factors[0].table.tolist() == [1.0, 0.0]
    assert reading.notes == ["f:5: table of 'a': negative numbers down to -1.19e-07 were taken as roundings of 0"]
    with pytest.raises(ModelError, match="found -1e-06 at a=yes, expected a finite number that is not negative"):
        build_network("n", "bayes", drafts, [DraftTable("a", [1.0, -1e-6], Place("f", 5))])


@given(st.lists(st.lists(st.integers(0, 10**9), min_size=2, max_size=2).filter(any), min_size=2, max_size=2))
def test_normalized_rows_are_shares_of_their_sums(rows: list[list[int]]) -> None:
    table = _counts([[float(n) for n in row] for row in rows], normalize=True).factors[1].table
    for shares, row in zip(table.tolist(), rows, strict=True):
        # A row that sums to 1 is taken as written.
        assert shares == [n / sum(row) for n in row]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_tables_of_copies_cannot_be_written(copied: Callable[[Network], Network]) -> None:
    network = random_network(3, seed=1)
    digest, other = network.digest, copied(network)
    assert other.digest == digest
    for one, factor in zip(network.factors, other.factors, strict=True):
        assert (factor.scope, factor.table.tolist()) == (one.scope, one.table.tolist())
        with pytest.raises(ValueError, match="read-only"):
            factor.table[...] = 0.5


def test_a_notebook_shows_a_network_with_all_texts_escaped() -> None:
    drafts = [DraftVariable("<b>a", ["<script>x</script>", "&"], Place("here"))]
    drafts += [DraftVariable(f"x{i}", [f"s{j}" for j in range(100)], Place("here")) for i in range(30)]
    shown = build_network('<img src="x">', "markov", drafts, [])._repr_html_()
    assert "<img" not in shown
    assert "<script" not in shown
    assert "<b>" not in shown
    assert "&lt;b&gt;a" in shown
    assert "&lt;script&gt;x&lt;/script&gt;, &amp;" in shown
    assert "<p>and 6 more</p>" in shown
    # Most of it is the picture.
    assert len(shown) < 30_000
