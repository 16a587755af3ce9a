from __future__ import annotations

import math
import re
from itertools import product
from pathlib import Path

import junctor
import numpy as np
import pytest
from helpers.format_helpers import assert_same, error_of, fuzz, odd_networks
from hypothesis import given
from junctor.formats import fg, read_network
from junctor.formats.files import decode
from junctor.model.errors import ModelError
from junctor.model.network import Network

# The block that libDAI's documentation explains: x4 is fastest, then x8, then x7; the fifth entry is left out.
BLOCK = "3\n4 8 7\n3 2 2\n11\n0 0.1\n1 3.5\n2 2.8\n3 6.3\n4 8.4\n6 7.4\n7 2.4\n8 8.9\n9 1.3\n10 1.6\n11 2.6\n"
TABLE = [[[0.1, 7.4], [6.3, 1.3]], [[3.5, 2.4], [8.4, 1.6]], [[2.8, 8.9], [0.0, 2.6]]]
TWO = f"# by hand\n2\n\n{BLOCK}\n1\n7 # one\n2\n# two\n1\n1 .5\n"


def test_the_first_variable_of_a_factor_varies_fastest() -> None:
    network = fg.read(f"1\n\n{BLOCK}", "f.fg")
    assert (network.kind, network.name) == ("markov", "f")
    # By their labels, as libDAI has them.
    assert [variable.name for variable in network.variables] == ["4", "7", "8"]
    assert network.variables[0].states == ("0", "1", "2")
    assert network.factors[0].scope == (0, 2, 1)
    np.testing.assert_array_equal(network.factors[0].table, TABLE)


def test_answers_are_those_of_the_factor() -> None:
    network = fg.read("1\n\n2\n0 1\n2 2\n3\n0 0.1\n1 3.5\n2 2.8\n", "f.fg")
    (row,) = junctor.posteriors(network, [{}]).to_pylist()
    assert math.exp(row["log_evidence"]) == pytest.approx(6.4, rel=1e-12)
    assert row["0"] == pytest.approx([2.9 / 6.4, 3.5 / 6.4], rel=1e-12)
    assert row["1"] == pytest.approx([3.6 / 6.4, 2.8 / 6.4], rel=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        TWO.replace("\n", "\r\n"),
        TWO.replace("\n\n", "\n"),
        re.sub(r"\s+", "\n\t", re.sub("#.*", "", TWO)),
        "\ufeff" + TWO,
        TWO.rstrip(),
    ],
)
def test_layout_does_not_matter(text: str) -> None:
    network = fg.read(decode(text.encode(), "f.fg"), "f.fg")
    assert_same(network, fg.read(TWO, "f.fg"))
    assert [factor.scope for factor in network.factors] == [(0, 2, 1), (1,)]
    np.testing.assert_array_equal(network.factors[1].table, [0.0, 0.5])


def test_factors_of_no_variable_are_constants() -> None:
    network = fg.read("2\n\n0\n\n\n1\n0 2.5\n\n1\n3\n2\n2\n1 1\n0 3\n", "f.fg")
    assert [factor.scope for factor in network.factors] == [(), (0,)]
    assert network.factors[0].table == 2.5
    assert network.factors[1].table.tolist() == [3.0, 1.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f.fg:1:1: found the end of the file, expected the number of factors"),
        ("0\n", "f.fg: no variables found, expected at least one"),
        ("2\n\n1\n0\n2\n1\n0 1\n", "f.fg:7:4: found the end of the file, expected the number of variables of a factor"),
        ("9\n\n1\n0\n2\n1\n0 1\n", "f.fg:1:1: the number of factors is 9, but only 6 more numbers follow"),
        ("1\n\n1\na\n", "f.fg:4:1: found 'a', expected a number"),
        ("1\n\n1\n-1\n2\n0\n", "f.fg:4:1: found '-1', expected a variable of a factor, a whole number"),
        ("1\n\n1\n0\n0\n0\n", "f.fg:5:1: variable 0 has 0 states, expected at least one"),
        ("2\n\n1\n0\n2\n1\n0 1\n\n1\n0\n3\n1\n0 1\n", "f.fg:11:1: variable 0 has 3 states here, but 2 in a factor bef"),
        ("1\n\n2\n0 0\n2 2\n1\n0 1\n", "f.fg:3:1: table over ['0', '0']: a variable stands twice in its scope"),
        ("1\n\n1\n0\n2\n1\n2 1\n", "f.fg:7:1: the factor over 0: found an entry at 2, expected a place from 0 to 1"),
        ("1\n\n1\n0\n2\n1\n0.5 1\n", "f.fg:7:1: the factor over 0: found an entry at 0.5, expected a place from 0"),
        ("1\n\n1\n0\n2\n1\n-1 1\n", "f.fg:7:1: the factor over 0: found an entry at -1, expected a place from 0 to"),
        ("1\n\n1\n0\n2\n2\n1 3\n1 4\n", "f.fg:8:1: the factor over 0: found a second entry for the place 1, expected"),
        ("1\n\n1\n0\n2\n2\n0 1\n", "f.fg:7:4: found 2 of the 4 entries of the factor over 0, each with its place, bef"),
        ("1\n\n1\n0\n2\n1\n0 1\n7\n", "f.fg:8:1: '7' after the last table, expected the end of the file"),
        ("1\n\n1\n0\n2\n0\n", "f.fg:3:1: table over ['0']: all its entries are 0"),
        ("1\n\n1\n0\n2\n1\n1 inf\n", "f.fg:3:1: table over ['0']: found inf at 0=1, expected a finite number"),
        ("1\n\n1\n0\n2\n1\n1 -0.7\n", "f.fg:3:1: table over ['0']: found -0.7 at 0=1, expected a finite number that"),
    ],
)
def test_errors_say_what_and_where(text: str, message: str) -> None:
    assert error_of(lambda: fg.read(text, "f.fg")).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\n\n1\n0\n1000000000\n1\n0 1\n", "has 1,000,000,000 states, far more than the file has numbers"),
        (f"1\n\n26\n{' '.join(map(str, range(26)))}\n{'2 ' * 26}\n1\n0 1\n", "but only 1 are written out"),
        (f"1\n\n40\n{' '.join(map(str, range(40)))}\n{'2 ' * 40}\n1\n0 1\n", "allowed are 134,217,728"),
        ("1\n\n1\n0\n2\n99999999999\n0 1\n", "found 2 of the 199,999,999,998 entries"),
    ],
)
def test_a_short_file_cannot_ask_for_much(text: str, message: str) -> None:
    assert message in error_of(lambda: fg.read(text, "f.fg"))


def written(network: Network) -> str:
    """The network in libDAI's format, entry by entry."""
    blocks = [str(len(network.factors))]
    for factor in network.factors:
        shape = factor.table.shape
        entries = []
        for place, states in enumerate(product(*map(range, reversed(shape)))):
            if value := float(factor.table[tuple(reversed(states))]):
                entries.append(f"{place} {value!r}")
        lines = (len(shape), " ".join(map(str, factor.scope)), " ".join(map(str, shape)), len(entries), *entries)
        blocks.append("\n".join(map(str, lines)))
    return "\n\n".join(blocks) + "\n"


@given(odd_networks())
def test_factors_are_read_as_written(network: Network) -> None:
    named = sorted({v for factor in network.factors for v in factor.scope})
    if not named:
        return
    found = fg.read(written(network), "f.fg")
    assert [variable.name for variable in found.variables] == [str(v) for v in named]
    assert [variable.cardinality for variable in found.variables] == [network.cardinalities[v] for v in named]
    for ours, theirs in zip(found.factors, network.factors, strict=True):
        assert [named[v] for v in ours.scope] == list(theirs.scope)
        np.testing.assert_array_equal(ours.table, theirs.table)


def test_mutated_files_give_a_network_or_our_error() -> None:
    seeds = [TWO.encode(), f"1\n\n{BLOCK}".encode(), b"1\n\n1\n0\n2\n2\n0 1\n1 2\n"]
    read_well, refused = fuzz(lambda data: fg.read(decode(data, "f"), "f"), seeds, 300)
    assert read_well > 10
    assert refused > 100


@pytest.mark.parametrize("value", ["-1.2", "-inf"])
def test_negative_entries_may_be_logarithms(value: str, tmp_path: Path) -> None:
    path = tmp_path / "x.uai"
    path.write_text(f"MARKOV\n2\n2 2\n1\n2 0 1\n4\n{value} -0.1 0 -3\n")
    assert error_of(lambda: read_network(path)).endswith(
        "expected a finite number that is not negative (of logarithms, or log potentials, write exp(x); of energies or "
        "costs exp(-x))"
    )
    path.write_text("BAYES 1 2 1 1 0 2 -0.5 1.5")
    with pytest.raises(ModelError, match=r"that is not negative$"):
        read_network(path)
