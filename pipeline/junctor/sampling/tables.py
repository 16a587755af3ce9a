"""The tables of a network as samplers read them. Main class: SampledNetwork, shared by all rows and devices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from junctor_kernels.sampling.layout import MOST_STATES, Floats, Function, Tables
from junctor_kernels.sampling.thresholds import build_thresholds

from junctor.generate import parents_first
from junctor.model.errors import ModelError
from junctor.model.network import Network
from junctor.model.query import Sampler


@dataclass(frozen=True, eq=False)
class SampledNetwork:
    """A Bayesian network prepared for sampling.

    network: the network.
    tables: its tables as flat arrays.
    entries: offset of the entries of each variable, and their total.
    cuts: offset of the thresholds of each variable, and their total.
    order: variables, parents before children.
    """

    network: Network
    tables: Tables
    entries: tuple[int, ...]
    cuts: tuple[int, ...]
    order: tuple[int, ...]

    def parents(self, variable: int) -> tuple[int, ...]:
        """Return the parents of a variable, in the order of its table."""
        return self.network.factors[variable].scope[:-1]

    def rows(self, variable: int) -> int:
        """Return the rows of a variable's table."""
        return (self.entries[variable + 1] - self.entries[variable]) // self.network.cardinalities[variable]

    def values(self, logs: bool) -> Floats:
        """Return the probabilities of all entries, or their logarithms."""
        return self._logarithms if logs else self.tables.probabilities

    @cached_property
    def _logarithms(self) -> Floats:
        with np.errstate(divide="ignore"):
            return np.log(self.tables.probabilities)

    @cached_property
    def least(self) -> tuple[float, ...]:
        """Natural log of the smallest probability above zero of each variable."""
        return tuple(float(np.log(f.table[f.table > 0].min())) for f in self.network.factors)

    def function(self, logs: bool) -> Function:
        """Return the function that draws every node from its own table; read-only, since its arrays are shared."""
        nothing = np.zeros(0)
        return Function(
            self.tables.thresholds, self.tables.order, self.values(logs), nothing, nothing, logs, self.tables
        )


def sampled_network(network: Network) -> SampledNetwork:
    """Return a network ready for sampling; raises ModelError for Markov networks and variables of too many states."""
    # First: kernels have no checks.
    refuse(network, None)
    sizes = [factor.table.size for factor in network.factors]
    cards = network.cardinalities
    entries = np.cumsum([0, *sizes]).tolist()
    cuts = np.cumsum([0, *(n // c * (c - 1) for n, c in zip(sizes, cards, strict=True))]).tolist()
    probabilities = np.concatenate([factor.table.ravel() for factor in network.factors])
    # A row of n states has n - 1 thresholds.
    thresholds, order = np.zeros(cuts[-1], dtype=np.uint32), np.zeros(entries[-1], dtype=np.uint8)
    # Rows may miss 1 by rounding; thresholds need exact sums, the weights keep the probabilities as given.
    chances = np.concatenate([normalised(factor.table).ravel() for factor in network.factors])
    tables = Tables(probabilities, thresholds, order)
    function = Function(thresholds, order, probabilities, np.zeros(entries[-1]), chances, False, tables)
    for v, card in enumerate(cards):
        build_thresholds(probabilities, function, entries[v], cuts[v], card, sizes[v] // card, 0)
    return SampledNetwork(network, tables, tuple(entries), tuple(cuts), parents_first(network))


def refuse(network: Network, sampler: Sampler | None) -> None:
    """Raise ModelError for a network that a sampler other than `wmb` cannot sample; sampler: None for any of them."""
    if network.kind != "bayes":
        raise ModelError(
            f"{network.name or 'the network'} is a Markov network: {sampler or 'this sampler'} draws variables from "
            "the tables of a directed network, given their parents; use --sampler wmb, or --method exact"
        )
    for variable in network.variables:
        if variable.cardinality > MOST_STATES:
            raise ModelError(
                f"variable {variable.name!r} has {variable.cardinality:,} states, sampling takes at most {MOST_STATES}"
            )
    # Kernels count entries in int32.
    if math.fsum(factor.table.size for factor in network.factors) >= 2**31:
        raise ModelError("the tables have 2^31 entries or more, which sampling does not take")


def normalised(table: Floats) -> Floats:
    """Return a table whose rows sum to 1."""
    whole: Floats = table / table.sum(axis=-1, keepdims=True)
    return whole
