"""Networks from drafts: tables that are checked together are what they would be one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from junctor.model import network as networks
from junctor.model.errors import ModelError, Place
from junctor.model.network import DraftTable, DraftVariable, Kind, build_network

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
