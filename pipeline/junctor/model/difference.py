"""What differs between two networks. Main function: `difference_between`, called by `Network.diff`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from junctor.model.errors import counted

# Names, and tables, that text shows.
_SHOWN = 10


_Table = npt.NDArray[np.float64]


class Content(NamedTuple):
    """What two networks are compared by.

    states: of each variable, by its name.
    tables: names of their variables, the child last in a Bayesian network, and entries.
    """

    kind: str
    states: Mapping[str, tuple[str, ...]]
    tables: Sequence[tuple[tuple[str, ...], _Table]]


@dataclass(frozen=True, slots=True)
class TableChange:
    """The entry of a table that changed most.

    scope: variables of the table, the child last in a Bayesian network.
    states: of these, at the entry.
    before, after: the entry in either network.
    """

    scope: tuple[str, ...]
    states: tuple[str, ...]
    before: float
    after: float

    @property
    def change(self) -> float:
        """How far the entry moved."""
        return abs(self.after - self.before)

    def __str__(self) -> str:
        given = [f"{name}={state}" for name, state in zip(self.scope, self.states, strict=True)]
        return f"{given[-1]}{' given ' if given[:-1] else ''}{', '.join(given[:-1])}: {self.before:g}, {self.after:g}"


@dataclass(frozen=True)
class Difference:
    """What differs between two networks; False where all is the same.

    kinds: of both.
    missing, added: variables of the first network alone, and of the second.
    states: variable -> its states in both, where these are others.
    reordered: variables whose states, and networks whose variables, are in another order; answers are as before.
    tables_missing, tables_added: scopes of tables of the first network alone, and of the second, the child last in a
        Bayesian network.
    changes: of tables over the same variables, the largest change first. Potentials are compared after they were
        divided by their sum, several over the same variables by their product.
    """

    kinds: tuple[str, str]
    missing: tuple[str, ...]
    added: tuple[str, ...]
    states: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
    reordered: tuple[str, ...]
    tables_missing: tuple[tuple[str, ...], ...]
    tables_added: tuple[tuple[str, ...], ...]
    changes: tuple[TableChange, ...]

    def __bool__(self) -> bool:
        """Return True if anything differs."""
        return bool(self.lines)

    @property
    def same_variables(self) -> bool:
        """Whether both are about the same variables with the same states, in any order."""
        return not (self.missing or self.added or self.states)

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """What differs, in words."""
        found = []
        if self.kinds[0] != self.kinds[1]:
            found.append(f"a {self.kinds[0]} network and a {self.kinds[1]} network")
        for what, names in (("only in the first", self.missing), ("only in the second", self.added)):
            if names:
                found.append(f"variables {what}: {_listed(names)}")
        for name, (before, after) in self.states.items():
            found.append(f"states of {name}: {_listed(before)}; {_listed(after)}")
        if self.reordered:
            found.append(f"in another order: {_listed(self.reordered)}")
        for what, scopes in (("only in the first", self.tables_missing), ("only in the second", self.tables_added)):
            if scopes:
                found.append(f"tables {what}: {_listed([_told(scope) for scope in scopes], '; ')}")
        if self.changes:
            found.append(f"{counted(len(self.changes), 'table')} with other entries, the largest changes:")
            found += [f"  {change}" for change in self.changes[:_SHOWN]]
        return tuple(found)

    def __str__(self) -> str:
        return "\n".join(self.lines) or "no difference"


def _listed(words: Sequence[str], between: str = ", ") -> str:
    more = f"{between}and {len(words) - _SHOWN:,} more" if len(words) > _SHOWN else ""
    return f"{between.join(words[:_SHOWN])}{more}"


def _told(scope: tuple[str, ...]) -> str:
    return f"{scope[-1]} given {', '.join(scope[:-1])}" if scope[:-1] else "".join(scope) or "a constant"


def difference_between(before: Content, after: Content) -> Difference:
    """Return what differs between two networks, by names."""
    both = [name for name in before.states if name in after.states]
    states = {name: (before.states[name], after.states[name]) for name in both}
    others = {name: pair for name, pair in states.items() if sorted(pair[0]) != sorted(pair[1])}
    reordered = [name for name, (one, other) in states.items() if name not in others and one != other]
    if both != [name for name in after.states if name in before.states]:
        reordered.append("the variables")
    # Potentials are no probabilities: nothing to compare them with.
    ours, theirs = (_tables(before), _tables(after)) if before.kind == after.kind else ({}, {})
    changes = []
    for scope, (names, table) in ours.items():
        if scope in theirs and not others.keys() & scope:
            change = _largest(
                names, table, aligned(theirs[scope][1], theirs[scope][0], after.states, names, before.states), before
            )
            changes += [change] if change.change else []
    return Difference(
        (before.kind, after.kind),
        tuple(name for name in before.states if name not in after.states),
        tuple(name for name in after.states if name not in before.states),
        others,
        tuple(reordered),
        tuple(names for scope, (names, _) in ours.items() if scope not in theirs),
        tuple(names for scope, (names, _) in theirs.items() if scope not in ours),
        tuple(sorted(changes, key=lambda change: -change.change)),
    )


def _tables(network: Content) -> dict[frozenset[str], tuple[tuple[str, ...], _Table]]:
    """Return the tables of a network by their variables, those of a Bayesian network by their child as well."""
    found: dict[frozenset[str], tuple[tuple[str, ...], _Table]] = {}
    if network.kind == "bayes":
        # A table of b given a is another one than that of a given b; no name begins like this.
        return {frozenset((*names, f"\0{names[-1]}")): (names, table) for names, table in network.tables}
    for names, table in network.tables:
        first, product = found.setdefault(frozenset(names), (names, np.ones(table.shape)))
        scaled = table / (table.max() or 1.0)
        found[frozenset(names)] = first, product * np.transpose(scaled, [names.index(name) for name in first])
    return {key: (names, table / (table.sum() or 1.0)) for key, (names, table) in found.items()}


def aligned(
    table: _Table,
    scope: Sequence[str],
    states: Mapping[str, Sequence[str]],
    names: Sequence[str],
    wanted: Mapping[str, Sequence[str]],
) -> _Table:
    """Return a table with its axes and their states in another order.

    scope, states: names of its axes, and the states of each.
    names, wanted: the same, as they are to be.
    """
    table = np.transpose(table, [scope.index(name) for name in names])
    for axis, name in enumerate(names):
        place = {state: n for n, state in enumerate(states[name])}
        table = np.take(table, [place[state] for state in wanted[name]], axis)
    return table


def _largest(names: tuple[str, ...], before: _Table, after: _Table, network: Content) -> TableChange:
    at = np.unravel_index(int(np.abs(after - before).argmax()), before.shape)
    states = tuple(network.states[name][n] for name, n in zip(names, at, strict=True))
    return TableChange(names, states, float(before[at]), float(after[at]))
