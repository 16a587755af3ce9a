"""EPIS-BN: an importance function from loopy belief propagation (Yuan and Druzdzel 2003).

A variable is drawn from its table times what the evidence below says of it. Where no variable has two parents that is
the posterior itself; elsewhere it comes near, and takes no samples to learn.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from junctor_kernels import beliefs
from junctor_kernels.beliefs import Links
from junctor_kernels.sampling_layout import Floats, Function

from junctor.sampling.cases import Hard, Layout, Soft
from junctor.sampling.importance import lifted_to, settle_variable
from junctor.sampling.tables import SampledNetwork

# Sweeps through the network; more change nothing that could be measured, see docs/sampling.md.
SWEEPS = 2
# Chances above zero that are smaller are lifted to this: states up to which, and how far.
SMALLEST = ((4, 0.006), (8, 0.001), (256, 0.0005))


def epis_function(layout: Layout, hard: Hard, soft: Soft, logs: bool) -> Function:
    """Return the importance function of a row."""
    network = layout.network
    tables = network.tables
    below = evidence_below(network, sorted(layout.weighed | layout.evidence.observed), hard, soft)
    function = Function(
        tables.thresholds.copy(),
        tables.order.copy(),
        network.values(logs),
        np.zeros_like(tables.probabilities),
        np.zeros_like(tables.probabilities),
        logs,
    )
    for v in layout.weighed:
        chances = with_evidence(network.network.factors[v].table, below[v])
        function.chances[network.entries[v] : network.entries[v + 1]] = lifted_to(chances, SMALLEST).ravel()
        settle_variable(network, function, v)
    return function


def with_evidence(table: Floats, said: Floats) -> Floats:
    """Return a table times what is said of its child, rows of it that are left without anything as they were."""
    product = table * said
    total = product.sum(axis=-1, keepdims=True)
    chances: Floats = np.where(total > 0, product / np.where(total > 0, total, 1.0), table)
    return chances


def evidence_below(network: SampledNetwork, variables: list[int], hard: Hard, soft: Soft) -> Mapping[int, Floats]:
    """Return what evidence on and below each of some variables says of its states; all above them are among them."""
    wanted = set(variables)
    order = [v for v in network.order if v in wanted]
    links, starts = links_of(network, order)
    own = np.ones(links.numbers)
    for v in order:
        span = slice(starts[v], starts[v] + network.network.cardinalities[v])
        if v in hard:
            own[span] = 0.0
            own[starts[v] + hard[v]] = 1.0
        elif v in soft:
            own[span] = soft[v] / soft[v].max()
    found = beliefs.propagate(links, network.tables.probabilities, own, SWEEPS)
    return {v: found[starts[v] : starts[v] + network.network.cardinalities[v]] for v in order}


def links_of(network: SampledNetwork, order: list[int]) -> tuple[Links, dict[int, int]]:
    """Return the links between some variables, parents first, and where the numbers of each begin."""
    cards = network.network.cardinalities
    place = {v: n for n, v in enumerate(order)}
    children: list[list[int]] = [[] for _ in order]
    nodes, links, starts = list[list[int]](), list[tuple[int, int]](), dict[int, int]()
    numbers = messages = 0
    for v in order:
        starts[v], first = numbers, len(links)
        numbers += cards[v]
        for p in network.parents(v):
            children[place[p]].append(len(links))
            links.append((place[p], messages))
            messages += cards[p]
        nodes.append([network.entries[v], starts[v], cards[v], first, len(links) - first])
    ends = np.cumsum([0, *map(len, children)]).tolist()
    rows = [[*node, ends[n], len(children[n])] for n, node in enumerate(nodes)]
    flat = np.array([link for each in children for link in each], dtype=np.int64)
    found = Links(_integers(rows, 7), _integers(links, 2), flat, numbers, messages)
    return found, starts


def _integers(rows: object, columns: int) -> beliefs.Integers:
    return np.array(rows, dtype=np.int64).reshape(-1, columns)
