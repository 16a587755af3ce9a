"""Importance functions: where they begin, and how fast they learn.

Likelihood weighting draws every node from its own table. Self-importance sampling (Shachter and Peot 1990) begins there
and draws from the mean of that table and of what the samples of each stage said. AIS-BN (Cheng and Druzdzel 2000, *An
Adaptive Importance Sampling Algorithm for Evidential Reasoning in Large Bayesian Networks*) begins with two heuristics
and takes over a share of what a stage said that gets smaller from stage to stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from junctor_kernels.sampling import cpu as sampling_cpu
from junctor_kernels.sampling.layout import MOST_STATES, STATES, Floats, Function
from junctor_kernels.sampling.philox import RandomStream
from junctor_kernels.sampling.thresholds import settle

from junctor.model.query import Sampler
from junctor.sampling.cases import CaseLayout, Evidence, layout_of
from junctor.sampling.tables import SampledNetwork, normalised

# Probabilities above zero that are smaller are lifted to this: states up to which, and how far. Few states as Cheng and
# Druzdzel do, more as Yuan and Druzdzel (2006): what is lifted is taken from likelier states.
SMALLEST = ((4, 0.04), (8, 0.001), (MOST_STATES, 0.0005))
# The first and the last learning rate, and the stages.
FIRST_RATE, LAST_RATE = 0.4, 0.14
STAGES = 10
# Samples without evidence that tell how likely an observation was; their stage, which no row has.
PRIOR_SAMPLES, PRIOR_STAGE = 1 << 16, 0xFFFF
# What a weight can gain at a node that is drawn with the smallest chance there is.
MOST_GAIN = 31 * float(np.log(2.0))


def rate(sampler: Sampler, stage: int) -> float:
    """Return the share of what the samples of a stage, counted from 0, said that the function takes over."""
    if sampler == "sis":
        return 1.0 / (stage + 2)
    return FIRST_RATE * float((LAST_RATE / FIRST_RATE) ** (stage / STAGES))


def first_function(network: SampledNetwork, sampler: Sampler, logs: bool) -> Function:
    """Return where learning begins for any evidence: thresholds, order, ratios and chances of all variables."""
    tables = network.tables
    begin = lifted if sampler == "ais-bn" else normalised
    chances = np.concatenate([begin(factor.table).ravel() for factor in network.network.factors])
    ratios = np.zeros_like(chances)
    function = Function(tables.thresholds.copy(), tables.order.copy(), network.values(logs), ratios, chances, logs)
    for v in network.order:
        settle_variable(network, function, v)
    return function


def own_function(layout: CaseLayout, start: Function) -> Function:
    """Return a function that may learn: `start` for variables that are weighed, their own tables for the others."""
    network, tables = layout.network, layout.network.tables
    thresholds, order = tables.thresholds.copy(), tables.order.copy()
    for v in layout.weighed:
        cuts = slice(network.cuts[v], network.cuts[v + 1])
        entries = slice(network.entries[v], network.entries[v + 1])
        thresholds[cuts], order[entries] = start.thresholds[cuts], start.order[entries]
    return Function(thresholds, order, start.values, start.ratios.copy(), start.chances.copy(), start.logs)


def make_uniform(network: SampledNetwork, function: Function, variables: Sequence[int]) -> None:
    """Draw variables uniformly from the states that are possible."""
    for v in variables:
        table = network.network.factors[v].table
        possible = (table > 0).astype(np.float64)
        span = slice(network.entries[v], network.entries[v + 1])
        function.chances[span] = (possible / possible.sum(axis=-1, keepdims=True)).ravel()
        settle_variable(network, function, v)


def parents_to_free(layout: CaseLayout, hard: Mapping[int, int], prior: Mapping[int, Floats]) -> list[int]:
    """Return the drawn parents of observations e of variables E that were unlikely: P(E = e) < 1 / (2 states of E)."""
    network = layout.network
    free = set[int]()
    for v in layout.observed:
        if prior[v][hard[v]] < 1.0 / (2.0 * len(prior[v])):
            free.update(p for p in network.parents(v) if p not in hard)
    return sorted(free)


def prior_of(network: SampledNetwork) -> dict[int, Floats]:
    """Return the marginals of all variables without evidence, from samples; the same for every seed and row."""
    layout = layout_of(network, Evidence(frozenset(), frozenset()), None)
    case = layout.case({}, {}, False)
    found = sampling_cpu.sums(case, network.function(False), RandomStream(0, 0, PRIOR_STAGE), 0, PRIOR_SAMPLES)
    ends = np.cumsum(case.nodes[:, STATES])[:-1]
    return dict(zip(layout.drawn, np.split(found.slots[:, 0] / found.total[0], ends), strict=True))


def lifted(table: Floats) -> Floats:
    """Return a table whose small probabilities are lifted as AIS-BN does."""
    return lifted_to(table, SMALLEST)


def lifted_to(table: Floats, smallest: Sequence[tuple[int, float]]) -> Floats:
    """Return a table whose small probabilities are lifted to a threshold, at the expense of the largest of each row.

    smallest: states up to which, and thresholds. Where the largest cannot bear it, rows are divided by their sums.
    Zeros stay zeros.
    """
    threshold = next(least for states, least in smallest if table.shape[-1] <= states)
    whole = normalised(table)
    result = np.where(whole > 0, np.maximum(whole, threshold), 0.0)
    excess = result.sum(axis=-1, keepdims=True) - 1.0
    top = whole.argmax(axis=-1)[..., None]
    left = np.take_along_axis(result, top, axis=-1) - excess
    np.put_along_axis(result, top, np.maximum(left, threshold), axis=-1)
    return normalised(result)


def needs_logs(layout: CaseLayout, least: float, most: float, limit: float) -> bool:
    """Tell whether a weight, or its square, may leave the range of doubles; least, most: of the evidence alone."""
    network = layout.network
    least += sum(network.least[v] for v in layout.weighed)
    most += MOST_GAIN * len(layout.weighed)
    return least < -limit or most > limit


def settle_variable(network: SampledNetwork, function: Function, variable: int) -> None:
    """Make thresholds, order and ratios of a variable from its chances."""
    card = network.network.cardinalities[variable]
    where = network.entries[variable], network.cuts[variable], card, network.rows(variable)
    with np.errstate(divide="ignore"):
        settle(network.tables.probabilities, function, *where, 1)
