"""What each format can carry: networks that are written and read again, and the table of it in the documentation."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.files import ROOT
from helpers.format_helpers import CONTENT, MAX_SECONDS, assert_same, by_name, odd_networks
from hypothesis import given
from hypothesis import strategies as st
from junctor.formats import WRITABLE, read_network, write_network
from junctor.formats.noisy import NoisyMax, tables_of
from junctor.formats.writing import parents_first
from junctor.model.errors import ModelError, Place
from junctor.model.network import DraftTable, DraftVariable, Network, build_network

HERE = Place("f")
TITLES = {
    "bif": "BIF",
    "xmlbif": "XMLBIF",
    "hugin": "Hugin",
    "xdsl": "XDSL",
    "netica": "Netica",
    "uai": "UAI",
    "parquet": "Parquet",
}
PLAIN = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,9}", fullmatch=True).filter(
    lambda name: name not in ("net", "class", "node", "utility", "decision", "function", "instance", "potential")
)


def _network(names: tuple[str, str], states: list[str], title: str = "n") -> Network:
    """A node and its child, the numbers of which have many digits."""
    parent, child = names
    rows = np.array([[0.1, 0.2, 0.7], [1 / 3, 1 / 3, 1 / 3], [5e-324, 1e-300, 1.0]])[:, : len(states)]
    rows = rows / rows.sum(axis=1, keepdims=True)
    return build_network(
        title,
        "bayes",
        [DraftVariable(name, states, HERE) for name in names],
        [DraftTable([parent], rows[0], HERE), DraftTable([parent, child], rows[: len(states)], HERE)],
    )


def _noisy() -> Network:
    names = [f"p{i}" for i in range(10)]
    parts = [np.array([[0.09 * i + 0.05, 0.95 - 0.09 * i], [0.0, 1.0]]) for i in range(10)]
    node = NoisyMax([*names, "c"], parts, np.array([0.1, 0.9]), False, HERE)
    hidden, tables = tables_of([node], [*names, "c"])
    drafts = [DraftVariable(name, ["t", "f"], HERE) for name in (*names, "c")]
    tables += [DraftTable([name], [0.5, 0.5], HERE) for name in names]
    return build_network("n", "bayes", drafts + hidden, tables, hidden=len(hidden))


def _reversed() -> Network:
    network = _network(("a", "b"), ["x", "y"])
    variables = [DraftVariable(v.name, v.states, HERE) for v in reversed(network.variables)]
    tables = [DraftTable(["a"], network.factors[0].table, HERE), DraftTable("ab", network.factors[1].table, HERE)]
    return build_network("n", "bayes", variables, tables)


FEATURES = {
    "numbers to the last bit": _network(("a", "b"), ["x", "y", "z"]),
    "names of letters, digits and `_`": _network(("smoke_1", "lung"), ["no", "yes"]),
    "names with spaces, of any script": _network(("état du cœur", "b c"), ["≥ 3", "< 3"]),
    'names with `"` or `\\`': _network(('a "b"', "c\\d"), ['"', "\\"]),
    "names with line breaks": _network(("a\nb", "c"), ["x\ny", "z"]),
    "states that are numbers": _network(("a", "b"), ["0", "1"]),
    "one-state variables": _network(("a", "b"), ["only"]),
    "a child before its parents": _reversed(),
    "the title": _network(("a", "b"), ["x", "y"], "Lung study, 2nd"),
    "Markov networks": build_network(
        "n", "markov", [DraftVariable("a", ["x", "y"], HERE)], [DraftTable("a", [3.0, 5.0], HERE)] * 2
    ),
    "noisy nodes of many parents": _noisy(),
}


def _carried(network: Network, format: str, folder: Path, is_title: bool) -> str:
    """Return what becomes of a network that is written and read again."""
    path = folder / f"other.{format}"
    try:
        warnings = write_network(network, path, format)
    except ModelError:
        return "refused"
    found = read_network(path, format)
    if is_title:
        return "yes" if found.name == network.name else "lost"
    if found.digest == network.digest:
        return "yes"
    if found.digest == network.expanded.digest:
        return "as tables"
    if by_name(found) == by_name(network):
        # Nothing is lost without a word.
        assert warnings
        return "parents first"
    assert warnings
    assert [factor.table.tobytes() for factor in found.factors] == [
        factor.table.tobytes() for factor in network.expanded.factors
    ]
    return "numbers only"


def test_the_table_of_the_documentation_is_what_round_trips_show(tmp_path: Path) -> None:
    rows = [["", *(TITLES[format] for format in WRITABLE)], ["---"] * (1 + len(WRITABLE))]
    for name, network in FEATURES.items():
        rows.append([name, *(_carried(network, format, tmp_path, name == "the title") for format in WRITABLE)])
    table = "\n".join(f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows)
    assert table in (ROOT / "docs" / "networks.md").read_text(), f"docs/networks.md has to have\n{table}"


@pytest.mark.parametrize("format", ["bif", "xmlbif", "hugin", "xdsl", "netica"])
@given(network=odd_networks(PLAIN))
def test_networks_with_plain_names_read_back(
    tmp_path_factory: pytest.TempPathFactory, format: str, network: Network
) -> None:
    path = tmp_path_factory.mktemp("written") / "n"
    try:
        write_network(network, path, format)
    except ModelError:
        assert network.kind == "markov" or format == "hugin"
        return
    found = read_network(path, format)
    order = parents_first(network) if format in ("xdsl", "netica") else range(len(network.variables))
    assert found.variables == tuple(network.variables[v] for v in order)
    if list(order) == list(range(len(network.variables))):
        assert_same(found, network)
    assert by_name(found) == by_name(network)


@pytest.mark.parametrize("format", ["bif", "xmlbif", "hugin", "xdsl", "netica"])
@given(network=odd_networks())
def test_networks_with_odd_names_read_back_or_are_refused(
    tmp_path_factory: pytest.TempPathFactory, format: str, network: Network
) -> None:
    path = tmp_path_factory.mktemp("written") / "n"
    try:
        write_network(network, path, format)
    except ModelError:
        return
    assert by_name(read_network(path, format)) == by_name(network)


@pytest.mark.parametrize("format", sorted(CONTENT.keys() - {"parquet"}))
def test_files_with_parts_left_out_doubled_or_swapped_give_a_network_or_our_error(tmp_path: Path, format: str) -> None:
    pieces = re.findall(rb"<[^>]*>|[^\s{}();<>]+|\s+|[{}();<>]", CONTENT[format])
    path = tmp_path / "n"
    read_well = 0
    for seed in range(300):
        rng, changed = random.Random(seed), list(pieces)
        for _ in range(rng.randint(1, 3)):
            first, second = rng.randrange(len(changed)), rng.randrange(len(changed))
            kind = rng.randrange(3)
            if kind == 0:
                del changed[first : first + rng.choice([1, 1, 5])]
            elif kind == 1:
                changed[second:second] = changed[first : first + rng.choice([1, 1, 20])]
            else:
                changed[first], changed[second] = changed[second], changed[first]
        path.write_bytes(b"".join(changed))
        began = time.process_time()
        try:
            read_network(path, format)
            read_well += 1
        except ModelError:
            pass
        assert time.process_time() - began < MAX_SECONDS, seed
    assert 0 < read_well < 300
