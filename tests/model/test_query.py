"""Queries: names and patterns of targets, chosen states, and what contradicts itself."""

from __future__ import annotations

import pytest
from junctor.model.errors import EvidenceError, Place
from junctor.model.network import DraftTable, DraftVariable, Network, build_network
from junctor.model.query import MOST_TOP, Query, answered_names, as_posteriors, chosen_states, target_names

HERE = Place("test")


def network_of(*names: str, states: tuple[str, ...] = ("no", "yes")) -> Network:
    variables = [DraftVariable(name, list(states), HERE) for name in names]
    tables = [DraftTable([name], [1.0] * len(states), HERE) for name in names]
    return build_network("independent", "markov", variables, tables)


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (("DIAG_*",), ["DIAG_1", "DIAG_2"]),
        (("DIAG_2", "DIAG_*"), ["DIAG_2", "DIAG_1"]),
        (("*_1", "DIAG_*", "*_1"), ["DIAG_1", "X_1", "DIAG_2"]),
        (("DIAG_[2-9]",), ["DIAG_2"]),
        (("?_1",), ["X_1"]),
        # A name that is there is that name, whatever it looks like.
        (("A*",), ["A*"]),
        (("A[1]",), ["A[1]"]),
        (("A*", "A?"), ["A*"]),
        (("A[*]",), ["A*"]),
        (None, ["DIAG_1", "DIAG_2", "X_1", "A*", "A[1]", "AB=C"]),
    ],
)
def test_patterns_of_targets(targets: tuple[str, ...] | None, expected: list[str]) -> None:
    network = network_of("DIAG_1", "DIAG_2", "X_1", "A*", "A[1]", "AB=C")
    assert list(target_names(network, Query(targets=targets))) == expected


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (("DIAG_3",), "unknown target 'DIAG_3', did you mean 'DIAG_2' or 'DIAG_1'"),
        (("diag_*",), r"target pattern 'diag_\*' matches no variable"),
        (("DIAG_1", "DIAG_1"), "'DIAG_1' is named twice"),
        (("DIAG_*", "DIAG_1", "DIAG_1"), "'DIAG_1' is named twice"),
        ((), "no targets"),
    ],
)
def test_targets_that_are_refused(targets: tuple[str, ...], message: str) -> None:
    with pytest.raises(EvidenceError, match=message):
        target_names(network_of("DIAG_1", "DIAG_2"), Query(targets=targets))


def asking(*probabilities: str, targets: tuple[str, ...] | None = None) -> Query:
    return Query(targets=targets, answers="scores", probabilities=probabilities)


def test_chosen_states() -> None:
    network = network_of("a", "b=c", "b", states=("no", "c=x", "="))
    assert chosen_states(network, asking("a=c=x", "a==", "b=c=no")) == (("a", 1), ("a", 2), ("b=c", 0))
    assert answered_names(network, asking("b=no", "b=c=no", targets=("b", "a"))) == ("b", "a", "b=c")
    assert as_posteriors(network, asking("a=no", targets=("b",))) == Query(targets=("b", "a"))
    assert as_posteriors(network, asking("a=no")) == Query()


@pytest.mark.parametrize(
    ("probability", "message"),
    [
        ("lung", "expected VARIABLE=STATE"),
        ("lungs=yes", "unknown variable 'lungs', did you mean 'lung'"),
        ("lung=Yes", "unknown state 'Yes' of 'lung', did you mean 'yes'"),
        ("lung=", "unknown state '' of 'lung'"),
        ("lung=a=yes", "may be of 'lung' or of 'lung=a'"),
    ],
)
def test_probabilities_that_are_refused(probability: str, message: str) -> None:
    network = network_of("lung", "lung=a", states=("no", "yes", "a=yes"))
    with pytest.raises(EvidenceError, match=message):
        chosen_states(network, asking(probability))
    with pytest.raises(EvidenceError, match="named twice"):
        chosen_states(network, asking("lung=yes", "lung=yes"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "mpe", "answers": "scores"}, "scores are of posteriors"),
        ({"kind": "mpe", "top": 2}, "explanations have no scores: leave out --top"),
        ({"answers": "score"}, "expected 'posteriors' or 'scores'"),
        ({"top": 2}, "leave out --top, or use .* --answers scores"),
        ({"probabilities": ("a=b",)}, "leave out --probability, or use .* --answers scores"),
        ({"answers": "scores", "top": 0}, "found top 0"),
        ({"answers": "scores", "top": True}, "found top True"),
        ({"answers": "scores", "top": 1.5}, "found top 1.5"),
        ({"answers": "scores", "top": MOST_TOP + 1}, "from 1 to 1,024"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, object], message: str) -> None:
    with pytest.raises(EvidenceError, match=message):
        Query(**options)  # type: ignore[arg-type]
