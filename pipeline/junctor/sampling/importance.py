"""Importance functions: their initial values and learning rates; called by `sampling.sampler`.

Likelihood weighting draws every node from its own table. Self-importance sampling (Shachter and Peot 1990) begins there
and averages with the samples of each stage. AIS-BN (Cheng and Druzdzel, An adaptive importance sampling algorithm for
evidential reasoning in large Bayesian networks, 2000) begins with two heuristics and a falling learning rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from junctor_kernels.sampling import cpu as sampling_cpu
from junctor_kernels.sampling.layout import MOST_STATES, OWN_PART, STATES, Floats, Function
from junctor_kernels.sampling.philox import RandomStream
from junctor_kernels.sampling.thresholds import build_thresholds

from junctor.model.query import Sampler
from junctor.sampling.cases import CaseLayout, layout_of
from junctor.sampling.rows import Evidence
from junctor.sampling.tables import SampledNetwork, normalised

# (most states, threshold): smaller probabilities above zero are lifted to the threshold. For few states as in Cheng and
# Druzdzel (2000), for more as in Yuan and Druzdzel (2006): the difference is taken from likelier states.
SMALLEST = ((4, 0.04), (8, 0.001), (MOST_STATES, 0.0005))
# The same for EPIS-BN (Yuan and Druzdzel 2006), and for whatever is learned.
SMALLEST_LATER = ((4, 0.006), (8, 0.001), (MOST_STATES, 0.0005))
# First and last learning rate (Cheng and Druzdzel 2000).
FIRST_RATE = 0.4
LAST_RATE = 0.14
# Stages of learning.
STAGES = 10
# Samples without evidence for the prior probabilities of observations.
PRIOR_SAMPLES = 1 << 16
# Their stage in the random stream, which no row has.
PRIOR_STAGE = 0xFFFF
# Bound on the factor of a weight at a node: chances are at least OWN_PART of the probabilities before rows that were
# lifted are divided by their sums, below 1.4, and rounded to units of 2^-31; or 1 / states where they are uniform.
MOST_GAIN = 32.0


def rate(sampler: Sampler, stage: int) -> float:
    """Return the learning rate of a stage (from 0): the share of its samples in the new importance function."""
    if sampler == "sis":
        # Running mean of the table and of all stages so far.
        return 1.0 / (stage + 2)
    return FIRST_RATE * float((LAST_RATE / FIRST_RATE) ** (stage / STAGES))


def first_function(network: SampledNetwork, sampler: Sampler, logs: bool) -> Function:
    """Return the initial function of learning, for any evidence.

    network: the tables.
    sampler: "ais-bn" lifts small probabilities more than "sis".
    logs: whether values and ratios are logarithms.
    """
    tables = network.tables
    smallest = SMALLEST if sampler == "ais-bn" else SMALLEST_LATER
    chances = np.concatenate([lifted(factor.table, smallest).ravel() for factor in network.network.factors])
    ratios = np.zeros_like(chances)
    drawn = tables.thresholds.copy(), tables.order.copy()
    function = Function(*drawn, network.values(logs), ratios, chances, logs, tables)
    for v in network.order:
        build_variable_thresholds(network, function, v)
    return function


def own_function(layout: CaseLayout, start: Function) -> Function:
    """Return a copy of a function for one row: `start` for weighed variables, their own tables for the others."""
    network, tables = layout.network, layout.network.tables
    thresholds, order = tables.thresholds.copy(), tables.order.copy()
    for v in layout.weighed:
        cuts = slice(network.cuts[v], network.cuts[v + 1])
        entries = slice(network.entries[v], network.entries[v + 1])
        # Nodes without evidence below gain nothing from learning.
        thresholds[cuts], order[entries] = start.thresholds[cuts], start.order[entries]
    return start._replace(thresholds=thresholds, order=order, ratios=start.ratios.copy(), chances=start.chances.copy())


def make_uniform(network: SampledNetwork, function: Function, variables: Sequence[int]) -> None:
    """Draw variables uniformly from their possible states (first heuristic of AIS-BN); changes `function`."""
    for v in variables:
        table = network.network.factors[v].table
        # Impossible states must stay impossible: their weight would be zero.
        possible = (table > 0).astype(np.float64)
        span = slice(network.entries[v], network.entries[v + 1])
        function.chances[span] = (possible / possible.sum(axis=-1, keepdims=True)).ravel()
        build_variable_thresholds(network, function, v)


def parents_to_free(layout: CaseLayout, hard: Mapping[int, int], prior: Mapping[int, Floats]) -> list[int]:
    """Return the drawn parents of unlikely observations: P(E = e) < 1 / (2 * number of states of E).

    layout: of the pattern.
    hard: observed variable -> state.
    prior: variable -> its marginal without evidence.
    """
    network = layout.network
    free = set[int]()
    for v in layout.observed:
        if prior[v][hard[v]] < 1.0 / (2.0 * len(prior[v])):
            free.update(p for p in network.parents(v) if p not in hard)
    return sorted(free)


def prior_of(network: SampledNetwork) -> dict[int, Floats]:
    """Return the marginals of all variables without evidence, from samples."""
    layout = layout_of(network, Evidence(frozenset(), frozenset()), None)
    case = layout.case({}, {}, False)
    # A fixed stream: the same for every seed and row.
    sums = sampling_cpu.sums(case, network.function(False), RandomStream(0, 0, PRIOR_STAGE), 0, PRIOR_SAMPLES, 0.0)
    ends = np.cumsum(case.nodes[:, STATES])[:-1]
    return dict(zip(layout.drawn, np.split(sums.slots[:, 0] / sums.total[0], ends), strict=True))


def lifted(chances: Floats, smallest: Sequence[tuple[int, float]] = SMALLEST, table: Floats | None = None) -> Floats:
    """Return chances of which small ones are lifted to a threshold, and to OWN_PART of the probability.

    chances: float64, the states of a row last.
    smallest: (most states, threshold) pairs; if not given, those of AIS-BN (its second heuristic).
    table: the probabilities, if they are not the chances; states of probability 0 stay at 0.
    """
    # The largest chance of a row pays; where it would fall below its threshold, the row is divided by its sum.
    whole, table = normalised(chances), normalised(chances if table is None else table)
    least = np.maximum(least_of(chances.shape[-1], smallest), OWN_PART * table)
    result = np.where(table > 0, np.maximum(whole, least), 0.0)
    excess = result.sum(axis=-1, keepdims=True) - 1.0
    top = whole.argmax(axis=-1)[..., None]
    left = np.take_along_axis(result, top, axis=-1) - excess
    np.put_along_axis(result, top, np.maximum(left, np.take_along_axis(least, top, axis=-1)), axis=-1)
    return normalised(result)


def least_of(states: int, smallest: Sequence[tuple[int, float]] = SMALLEST_LATER) -> float:
    """Return the threshold that small chances of a variable with so many states are lifted to."""
    return next(least for most, least in smallest if states <= most)


def needs_logs(layout: CaseLayout, least: float, limit: float) -> bool:
    """Return True if the square of a weight, or of some of its factors, may leave the range of doubles.

    layout: of the pattern.
    least: bound on the logarithm of the weight from evidence alone, whose factors are at most 1.
    limit: on its absolute value.
    """
    network = layout.network
    least += sum(network.least[v] for v in layout.weighed)
    most = sum(math.log(max(MOST_GAIN, network.network.cardinalities[v])) for v in layout.weighed)
    return least < -limit or most > limit


def build_variable_thresholds(network: SampledNetwork, function: Function, variable: int) -> None:
    """Write thresholds, order and ratios of a variable from its chances."""
    card = network.network.cardinalities[variable]
    where = network.entries[variable], network.cuts[variable], card, network.rows(variable)
    with np.errstate(divide="ignore"):
        build_thresholds(network.tables.probabilities, function, *where, 1)
