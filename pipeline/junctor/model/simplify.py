"""A network without the states and axes that its zeros and equal entries make idle: narrower, with the same answers.

Main functions: `simplified`; `with_fewer_axes`, which leaves all states; and `with_links`, whose variables of evidence
and answers have all states as well. A state that the other tables leave without support in one table has probability
zero, whatever the evidence (arc consistency of table supports, to a fixpoint: Mackworth, Consistency in networks of
relations, 1977); a table that is the same along an axis does not depend on its variable.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from junctor.model.network import Factor, Kind, Network, Variable

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

# Tables of more entries are taken as they are: to look at them takes as long as to read them.
MOST_ENTRIES = 1 << 22
# Share of the entries of all tables that go with impossible states, from which on they are worth a look at cliques.
LEAST_GONE = 0.15


@dataclass(frozen=True, eq=False, slots=True)
class Simplified:
    """A narrower network, and what its states are.

    network: the same variables, factors and hidden ones in the same order, with fewer states and narrower scopes; it is
        the network itself where nothing is idle. In a Bayesian network factor i is still the table of variable i, its
        last axis the child's, and rows sum to one. No factor loses its last axis, and none is multiplied into another.
    kept: the states that are left of each variable, ascending numbers of the whole network; at least one.
    """

    network: Network
    kept: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class _Stack:
    """Tables of one shape, one above the other.

    factors: their numbers.
    scopes: int64 [tables, axes].
    tables: [tables, *shape].
    """

    factors: Ints
    scopes: Ints
    tables: Floats


def simplified(network: Network) -> Simplified:
    """Return a network without idle states and axes; the same one where there are none, or where nothing is possible.

    A Markov network whose tables contradict each other is left as it is: all its rows are impossible anyway.
    """
    kept, cards = network.kept_states, network.cardinalities
    narrowed = [v for v, states in enumerate(kept) if len(states) < cards[v]]
    factors = _narrowed(network.factors, kept, set(narrowed))
    factors = _without_idle_axes(factors, list(_stacks(factors)))
    if not narrowed and all(new is old for new, old in zip(factors, network.factors, strict=True)):
        return Simplified(network, kept)
    for factor in factors:
        factor.table.setflags(write=False)
    variables = list(network.variables)
    for v in narrowed:
        variables[v] = Variable(variables[v].name, tuple(variables[v].states[state] for state in kept[v]))
    made = Network(network.name, tuple(variables), tuple(factors), network.kind, network.hidden)
    return Simplified(made, kept)


def kept_states(network: Network) -> tuple[tuple[int, ...], ...]:
    """Return the states of each variable that its network leaves possible, ascending; all where nothing is."""
    cards = np.array(network.cardinalities, dtype=np.int64)
    states, bounds = _possible_states(list(_stacks(network.factors)), cards, network.kind), np.cumsum(cards)
    narrowed = np.flatnonzero(~np.logical_and.reduceat(states, bounds - cards)).tolist()
    whole = {card: tuple(range(card)) for card in set(network.cardinalities)}
    kept_all = tuple(map(whole.__getitem__, network.cardinalities))
    kept = list(kept_all)
    for v in narrowed:
        kept[v] = tuple(np.flatnonzero(states[bounds[v] - cards[v] : bounds[v]]).tolist())
    return tuple(kept) if all(kept) else kept_all


def with_fewer_axes(network: Network) -> Network:
    """Return a network with the same variables, states and joint distribution, whose tables have no idle axes.

    In a Bayesian network an axis is also idle where a table is the same for all possible states of a parent: its own
    table rules the other ones out. It is the network itself where there is none.
    """
    if network.kind == "markov":
        # Any table may be the one that rules a state out.
        factors = _without_idle_axes(list(network.factors), list(_stacks(network.factors)))
    else:
        found = simplified(network)
        pairs = zip(network.factors, found.network.factors, strict=True)
        factors = [_of_scope(old, new.scope, found.kept) for old, new in pairs]
    if all(new is old for new, old in zip(factors, network.factors, strict=True)):
        return network
    for factor in factors:
        factor.table.setflags(write=False)
    made = Network(network.name, network.variables, tuple(factors), network.kind, network.hidden)
    # An axis that changes nothing rules nothing out.
    made.__dict__["kept_states"] = network.kept_states
    return made


def possible_states(network: Network) -> tuple[tuple[int, ...], ...] | None:
    """Return the possible states of each variable; None where tables of these have about as many entries."""
    kept = network.kept_states
    entries = sum(factor.table.size for factor in network.factors)
    left = sum(math.prod([len(kept[v]) for v in factor.scope]) for factor in network.factors)
    return kept if left <= (1 - LEAST_GONE) * entries else None


def with_links(
    network: Network, kept: Sequence[tuple[int, ...]], observed: Collection[int], asked: Collection[int]
) -> Network:
    """Return a network without impossible states, in which evidence and answers are those of the whole one.

    A variable that is asked for has all its states. In the tables of others an auxiliary variable, with the possible
    states alone, takes its place: its table links one to the other.

    network: with all states.
    kept: possible states of each variable, ascending.
    observed: variables that keep all their states in all tables, from which they are cut out.
    asked: variables of likelihoods and answers.
    """
    count = len(network.variables)
    fewer = {v for v, card in enumerate(network.cardinalities) if len(kept[v]) < card}.difference(observed)
    linked = sorted(fewer.intersection(asked))
    place = dict(zip(linked, range(count, count + len(linked)), strict=True))
    narrow = _narrowed(network.factors, kept, fewer)
    moved = [Factor(tuple(place.get(v, v) for v in factor.scope), factor.table) for factor in narrow]
    links = [Factor((place[v], v), np.eye(network.cardinalities[v])[list(kept[v])]) for v in linked]
    if network.kind == "bayes":
        # Factor i stays the table of variable i.
        moved += [moved[v] for v in linked]
        for v, link in zip(linked, links, strict=True):
            moved[v] = link
    else:
        moved += links
    for factor in moved:
        factor.table.setflags(write=False)
    variables = list(network.variables)
    for v in fewer:
        variable = variables[v]
        possible = Variable(variable.name, tuple(variable.states[state] for state in kept[v]))
        if v in place:
            variables.append(possible)
        else:
            variables[v] = possible
    return Network(network.name, tuple(variables), tuple(moved), network.kind, network.hidden + len(linked))


def _of_scope(factor: Factor, scope: tuple[int, ...], kept: Sequence[tuple[int, ...]]) -> Factor:
    """Return a factor without the axes that a scope leaves out, each at a state that is kept."""
    if scope == factor.scope:
        return factor
    where = tuple(slice(None) if v in scope else kept[v][0] for v in factor.scope)
    return Factor(scope, np.ascontiguousarray(factor.table[where]))


def _stacks(factors: Sequence[Factor]) -> Iterator[_Stack]:
    """Yield the tables of more than no axes by their shapes, but for the largest ones."""
    numbers: dict[tuple[int, ...], list[int]] = {}
    for i, factor in enumerate(factors):
        numbers.setdefault(factor.table.shape, []).append(i)
    for shape, members in numbers.items():
        if shape and math.prod(shape) <= MOST_ENTRIES:
            scopes = np.array([factors[i].scope for i in members], dtype=np.int64)
            yield _Stack(np.array(members), scopes, np.array([factors[i].table for i in members]))


def _possible_states(stacks: Sequence[_Stack], cards: Ints, kind: Kind) -> Bools:
    """Return which states of all variables, one after the other, have support in every table."""
    starts = np.cumsum(cards) - cards
    states = np.ones(int(cards.sum()), dtype=bool)
    # Tables without zeros rule nothing out.
    supports = []
    for stack in stacks:
        if not stack.tables.all():
            some = ~stack.tables.reshape(len(stack.tables), -1).all(axis=1)
            supports.append((stack.scopes[some], stack.tables[some] > 0))
    for scopes, positive in supports:
        _rule_out(states, starts, scopes, positive, kind)
    before = np.ones_like(states)
    while (changed := np.logical_or.reduceat(before != states, starts)).any():
        before = states.copy()
        for scopes, positive in supports:
            some = changed[scopes].any(axis=1)
            if some.any():
                _rule_out(states, starts, scopes[some], _of_states(states, starts, scopes[some], positive[some]), kind)
    return states


def _of_states(states: Bools, starts: Ints, scopes: Ints, positive: Bools) -> Bools:
    """Return which entries of some tables are above zero and of possible states; arguments as of `_rule_out`."""
    for axis in range(scopes.shape[1]):
        left = states[_places(starts, scopes, positive, axis)]
        if not left.all():
            shape = [len(scopes), *(1 for _ in range(scopes.shape[1]))]
            shape[axis + 1] = -1
            positive = positive & left.reshape(shape)
    return positive


def _rule_out(states: Bools, starts: Ints, scopes: Ints, positive: Bools, kind: Kind) -> None:
    """Rule out states, in place, that have no support in some tables.

    states: of all variables, each from its start.
    scopes: int64 [tables, axes].
    positive: [tables, *shape], which entries count.
    """
    axes = scopes.shape[1]
    # Rows of a conditional probability table have support: it rules out states of its own variable alone.
    for axis in range(axes - 1 if kind == "bayes" else 0, axes):
        alive = positive.any(axis=tuple(other + 1 for other in range(axes) if other != axis))
        if not alive.all():
            states[_places(starts, scopes, positive, axis)[~alive]] = False


def _places(starts: Ints, scopes: Ints, positive: Bools, axis: int) -> Ints:
    """Return where the states of an axis of some tables are, int64 [tables, states]."""
    found: Ints = starts[scopes[:, axis]][:, None] + np.arange(positive.shape[axis + 1])
    return found


def _narrowed(factors: Sequence[Factor], kept: Sequence[tuple[int, ...]], narrowed: set[int]) -> list[Factor]:
    """Return factors of the kept states alone; the same ones where all of theirs are kept."""
    result = list(factors)
    for i, factor in enumerate(factors):
        for axis, v in enumerate(factor.scope):
            if v in narrowed:
                result[i] = Factor(factor.scope, result[i].table.take(kept[v], axis=axis))
    return result


def _without_idle_axes(factors: list[Factor], stacks: Sequence[_Stack]) -> list[Factor]:
    """Return factors without axes, but for the last one, along which a table is the same; the same ones without any."""
    result = list(factors)
    for stack in stacks:
        axes = stack.tables.ndim - 1
        # An axis is idle whichever others are.
        idle = [_is_idle(stack.tables, axis) for axis in range(1, axes)]
        for row in np.flatnonzero(np.logical_or.reduce(idle)) if idle else ():
            factor = factors[stack.factors[row]]
            gone = [axis for axis in range(axes - 1) if idle[axis][row]]
            where = tuple(0 if axis in gone else slice(None) for axis in range(axes))
            scope = tuple(v for axis, v in enumerate(factor.scope) if axis not in gone)
            result[stack.factors[row]] = Factor(scope, np.ascontiguousarray(factor.table[where]))
    return result


def _is_idle(tables: Floats, axis: int) -> Bools:
    """Return which tables of a stack are the same along an axis."""
    first = tables.take([0], axis=axis)
    same: Bools = (tables.take([-1], axis=axis) == first).all(axis=tuple(range(1, tables.ndim)))
    if same.any() and tables.shape[axis] > 2:
        some = np.flatnonzero(same)
        same[some] = (tables[some] == first[some]).all(axis=tuple(range(1, tables.ndim)))
    return same
