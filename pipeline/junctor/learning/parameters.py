"""The parameters of a network as one flat array, and back: tables, and contributions to noisy nodes.

Main class: NetworkParameters. Where a noisy node is a chain of auxiliary variables (decision 0035), its parameters are
those of causal independence [Diez 1993], not the tables of the chain, which repeat them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import combinations

import numpy as np
import numpy.typing as npt

from junctor.learning.expectation import Floats
from junctor.model.errors import ModelError, nearest
from junctor.model.network import Factor, Network
from junctor.model.query import WILDCARDS

# Roundings of a file's tables that a chain of a noisy node may show.
CHAIN_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class ParameterBlock:
    """The parameters behind one factor: its table, or a contribution [states of the parent, states] to a noisy node.

    owner: the variable that the factor belongs to; of an auxiliary variable the noisy node.
    span: where its parameters lie.
    shape: the child's states are the last axis.
    is_fixed: whether they stay as they are; the factor of a fixed one is left alone.
    is_contribution: whether they are no table; strongest_last then tells the order of the states.
    """

    owner: int
    span: slice
    shape: tuple[int, ...]
    is_fixed: bool
    is_contribution: bool = False
    strongest_last: bool = False


@dataclass(frozen=True, eq=False)
class NetworkParameters:
    """What of a network is fitted, and how; raises ModelError for what cannot be.

    network: Bayesian.
    fixed: indices of variables whose tables stay as they are.
    tied: groups of indices of variables that share one table.
    """

    network: Network
    fixed: frozenset[int] = frozenset()
    tied: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if self.network.kind != "bayes":
            raise ModelError(
                "a Markov network has no conditional tables to learn: its potentials have no closed form from counts"
            )
        self._refuse_wrong_ties()

    @cached_property
    def blocks(self) -> tuple[ParameterBlock, ...]:
        """Blocks of all factors, in their order."""
        owners = self._owners
        blocks: list[ParameterBlock] = []
        for number, factor in enumerate(self.network.factors):
            first, is_fixed = (blocks[-1].span.stop if blocks else 0), owners[number] in self.fixed
            shape = factor.table.shape
            is_contribution = not is_fixed and factor.scope[0] >= len(self.network.public) and len(shape) > 1
            last = is_contribution and self._strongest_last(number)
            shape = shape[1:] if is_contribution else shape
            span = slice(first, first + int(np.prod(shape)))
            blocks.append(ParameterBlock(owners[number], span, shape, is_fixed, is_contribution, last))
        return tuple(blocks)

    @cached_property
    def size(self) -> int:
        """Number of parameters."""
        return int(self.blocks[-1].span.stop)

    @cached_property
    def distributions(self) -> npt.NDArray[np.int64]:
        """Where each distribution begins, int64."""
        starts = [np.arange(block.span.start, block.span.stop, block.shape[-1]) for block in self.blocks]
        return np.concatenate(starts).astype(np.int64)

    @cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Entries of each distribution, int64."""
        return np.diff(self.distributions, append=self.size)

    @cached_property
    def is_fixed(self) -> npt.NDArray[np.bool_]:
        """Which parameters stay as they are."""
        return np.repeat([block.is_fixed for block in self.blocks], [_size(block.span) for block in self.blocks])

    @cached_property
    def values(self) -> Floats:
        """The parameters of the network; those of tied variables are the table of the first of them."""
        values = np.empty(self.size)
        for block, factor in zip(self.blocks, self.network.factors, strict=True):
            table = contribution_in(factor.table, block.strongest_last) if block.is_contribution else factor.table
            values[block.span] = table.ravel()
        for first, *others in self.tied:
            for other in others:
                values[self.blocks[other].span] = values[self.blocks[first].span]
        return values

    @cached_property
    def support(self) -> npt.NDArray[np.bool_]:
        """Which parameters are no structural zeros."""
        return self.values > 0

    def tables(self, parameters: Floats) -> Floats:
        """Return the entries of all factors, raveled and concatenated."""
        if self._is_plain:
            return parameters
        tables = []
        for block in self.blocks:
            own = parameters[block.span]
            if block.is_contribution:
                own = chain_table(own.reshape(block.shape), block.strongest_last).ravel()
            tables.append(own)
        return np.concatenate(tables)

    def counts(self, entries: Floats, parameters: Floats) -> Floats:
        """Return the expected counts of the parameters.

        entries: expected counts of the entries of all factors.
        parameters: under which they are expected.
        """
        if self._is_plain:
            return entries
        counts, first = np.empty(self.size), 0
        for block, factor in zip(self.blocks, self.network.factors, strict=True):
            own = entries[first : first + factor.table.size]
            first += factor.table.size
            if block.is_contribution:
                contribution = parameters[block.span].reshape(block.shape)
                own = contribution_counts(own.reshape(factor.table.shape), contribution, block.strongest_last).ravel()
            counts[block.span] = own
        return counts

    def pooled(self, counts: Floats) -> Floats:
        """Return the counts, those of tied variables added up."""
        if not self.tied:
            return counts
        counts = counts.copy()
        for group in self.tied:
            total = np.sum([counts[self.blocks[variable].span] for variable in group], axis=0)
            for variable in group:
                counts[self.blocks[variable].span] = total
        return counts

    def network_of(self, parameters: Floats) -> Network:
        """Return the network with other parameters."""
        factors, entries, first = [], self.tables(parameters), 0
        for block, factor in zip(self.blocks, self.network.factors, strict=True):
            table = entries[first : first + factor.table.size].reshape(factor.table.shape).copy()
            first += factor.table.size
            table.setflags(write=False)
            factors.append(factor if block.is_fixed else Factor(factor.scope, table))
        return replace(self.network, factors=tuple(factors))

    @cached_property
    def _is_plain(self) -> bool:
        return not any(block.is_contribution for block in self.blocks)

    @cached_property
    def _owners(self) -> list[int]:
        """The variable that each factor belongs to."""
        owners = list(range(len(self.network.factors)))
        # An auxiliary variable has one child, and is its first parent.
        child_of = {
            factor.scope[0]: child for child, factor in enumerate(self.network.factors) if len(factor.scope) > 1
        }
        for hidden in range(len(self.network.public), len(owners)):
            at = hidden
            while at >= len(self.network.public):
                at = child_of[at]
            owners[hidden] = at
        return owners

    def _strongest_last(self, number: int) -> bool:
        """Return the order of the states of a factor of a chain; raises ModelError where it is none of a noisy node."""
        table = self.network.factors[number].table
        for last in (False, True) if table.ndim == 3 else ():
            if np.allclose(chain_table(contribution_in(table, last), last), table, rtol=0, atol=CHAIN_TOLERANCE):
                return last
        name = self.network.variables[self._owners[number]].name
        raise ModelError(
            f"the auxiliary variables of {name!r} are no chain of a noisy-MAX node: such a node cannot be learned; "
            f"keep it as it is (--fix {name})"
        )

    def _refuse_wrong_ties(self) -> None:
        variables, factors = self.network.variables, self.network.factors
        for group in self.tied:
            for first, other in combinations(group, 2):
                names = f"{variables[first].name!r} and {variables[other].name!r}"
                shapes = factors[first].table.shape, factors[other].table.shape
                states = variables[first].states, variables[other].states
                if {first, other} & self.fixed:
                    raise ModelError(f"{names} are tied, and one of them is fixed: fix both, or none")
                if any(v >= len(self.network.public) for each in (first, other) for v in factors[each].scope):
                    raise ModelError(f"{names} cannot be tied: noisy nodes have no table to share")
                if shapes[0] != shapes[1]:
                    found = " and ".join(" x ".join(map(str, shape)) for shape in shapes)
                    raise ModelError(f"{names} cannot be tied: their tables have {found} entries, parents first")
                if states[0] != states[1] and sorted(states[0]) == sorted(states[1]):
                    raise ModelError(f"{names} cannot be tied: they have the same states in different orders")


def named_variables(network: Network, names: Iterable[str], option: str) -> frozenset[int]:
    """Return the indices of variables by name or pattern of names; raises ModelError for what names none.

    network: of the variables.
    names: names, or patterns (`DIAG_*`).
    option: name of the option, for errors.
    """
    found: set[int] = set()
    for name in names:
        if name in network.index:
            found.add(network.index[name])
            continue
        matching = [] if WILDCARDS.isdisjoint(name) else [v for n, v in network.index.items() if fnmatchcase(n, name)]
        if not matching:
            raise ModelError(f"{option}: no variable is named {name!r}{nearest(name, network.index)}")
        found.update(matching)
    return frozenset(found)


def tied_variables(network: Network, ties: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return the groups of variables that share a table, from texts `A=B`; raises ModelError for anything else."""
    return tied_groups(network.index, ties, "variable")


def tied_groups(index: Mapping[str, int], ties: Sequence[str], what: str) -> tuple[tuple[int, ...], ...]:
    """Return the groups that texts `A=B` tie, ascending; raises ModelError for anything else.

    index: numbers by name.
    what: what names are of.
    """
    groups: list[set[int]] = []
    for text in ties:
        # Names may have equals signs themselves.
        splits = [(text[:at], text[at + 1 :]) for at, letter in enumerate(text) if letter == "="]
        pairs = [(a, b) for a, b in splits if a in index and b in index]
        if not splits or len(pairs) > 1:
            raise ModelError(f"--tie: found {text!r}, expected two {what}s as A=B")
        if not pairs:
            wrong = next(name for name in splits[0] if name not in index)
            raise ModelError(f"--tie: no {what} is named {wrong!r}{nearest(wrong, index)}")
        pair = {index[name] for name in pairs[0]}
        if len(pair) < 2:
            raise ModelError(f"--tie: found {text!r}, expected two different {what}s")
        touched = [group for group in groups if group & pair]
        groups = [group for group in groups if not group & pair] + [pair.union(*touched)]
    return tuple(sorted(tuple(sorted(group)) for group in groups))


def chain_table(contribution: Floats, strongest_last: bool) -> Floats:
    """Return the table [strongest so far, state of the parent, strongest with it] of a contribution [parent, states].

    strongest_last: whether the last state is the strongest, else the first.
    """
    own = contribution[:, ::-1] if strongest_last else contribution
    parents, states = own.shape
    table = np.zeros((states, parents, states))
    tail = _tails(own)
    for state in range(states):
        table[state, :, :state] = own[:, :state]
        table[state, :, state] = tail[:, state]
    return np.ascontiguousarray(table[::-1, :, ::-1] if strongest_last else table)


def contribution_in(table: Floats, strongest_last: bool) -> Floats:
    """Return the contribution in the table of a chain: what the weakest state becomes."""
    row: Floats = table[0 if strongest_last else -1]
    return row


def contribution_counts(counts: Floats, contribution: Floats, strongest_last: bool) -> Floats:
    """Return expected counts of a contribution [parent, states] to a noisy node.

    counts: of the table of the chain.
    contribution: under which they are expected.
    strongest_last: as for `chain_table`.
    """
    if strongest_last:
        counts, contribution = counts[::-1, :, ::-1], contribution[:, ::-1]
    result = np.zeros_like(contribution)
    tail = _tails(contribution)
    for state in range(contribution.shape[1]):
        # A stronger result is the contribution itself; else it was any that is not stronger.
        result[:, :state] += counts[state, :, :state]
        same = counts[state, :, state]
        shares = np.divide(same, tail[:, state], out=np.zeros_like(same), where=tail[:, state] > 0)
        result[:, state:] += shares[:, None] * contribution[:, state:]
    return np.ascontiguousarray(result[:, ::-1] if strongest_last else result)


def _tails(contribution: Floats) -> Floats:
    """Return the probability of each state or a weaker one, states from the strongest on."""
    tails: Floats = np.cumsum(contribution[:, ::-1], axis=1)[:, ::-1]
    return tails


def _size(span: slice) -> int:
    return int(span.stop - span.start)
