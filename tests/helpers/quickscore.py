"""Two-layer networks of noisy-OR and noisy-MAX nodes by inclusion and exclusion, in fractions: no chain, no table.

Heckerman, A tractable inference algorithm for diagnosing multiple diseases (UAI 1989), for nodes of several states: the
chance of a state is that of at most this one, less that of at most the one before, and each of these is a product over
the causes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

from junctor.formats.noisy import NoisyMax


def quickscore(
    priors: Mapping[str, Sequence[float]], nodes: Sequence[NoisyMax], observed: Mapping[str, int]
) -> tuple[Fraction, dict[str, list[Fraction]]]:
    """Return P(e), and the posteriors of the causes that are not observed.

    priors: cause -> chance of each state.
    nodes: of which the last state is the strongest.
    observed: cause or effect -> state.
    """
    seen = [node for node in nodes if node.scope[-1] in observed]
    totals = {cause: [Fraction(0)] * len(chances) for cause, chances in priors.items()}
    total = Fraction(0)
    for below in itertools.product(*([0, 1] if observed[node.scope[-1]] else [0] for node in seen)):
        levels = [observed[node.scope[-1]] - less for node, less in zip(seen, below, strict=True)]
        terms = {cause: _terms(cause, chances, seen, levels, observed) for cause, chances in priors.items()}
        value = Fraction((-1) ** sum(below)) * math.prod(map(sum, terms.values()), start=Fraction(1))
        value *= math.prod((_up_to(node.leak, level) for node, level in zip(seen, levels, strict=True)), start=1)
        total += value
        for cause, each in terms.items():
            for state, term in enumerate(each):
                totals[cause][state] += value * term / sum(each)
    return total, {cause: [each / total for each in found] for cause, found in totals.items() if cause not in observed}


def _terms(
    cause: str, chances: Sequence[float], nodes: Sequence[NoisyMax], levels: Sequence[int], observed: Mapping[str, int]
) -> list[Fraction]:
    """Return for each state of a cause its chance times that of no stronger effects than some levels."""
    found = []
    for state, chance in enumerate(chances):
        value = Fraction(chance) if observed.get(cause, state) == state else Fraction(0)
        for node, level in zip(nodes, levels, strict=True):
            if cause in node.scope:
                value *= _up_to(node.contributions[node.scope.index(cause)][state], level)
        found.append(value)
    return found


def _up_to(chances: Sequence[float], level: int) -> Fraction:
    """Return the chance of a level and those below; a distribution sums to one, to the last digit."""
    return Fraction(1) if level == len(chances) - 1 else sum(map(Fraction, chances[: level + 1]), start=Fraction(0))
