"""Bins for numbers whose states have an order: at their quantiles, or where they tell most about a target.

Main functions: `in_order`, `quantile_edges` and `informative_edges`; called by `propose`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

# Words of degree, the lowest first; words of a group are one degree.
_SCALES = (
    (
        ("none", "no", "absent", "zero"),
        ("minimal",),
        ("mild", "slight"),
        ("moderate",),
        ("severe", "strong"),
        ("extreme",),
    ),
    (
        ("verylow", "lowest"),
        ("low", "lower", "l"),
        ("medium", "normal", "average", "moderate", "mid", "middle", "intermediate", "m", "n"),
        ("high", "higher", "h"),
        ("veryhigh", "highest"),
    ),
    (
        ("tiny", "verysmall"),
        ("small", "little"),
        ("medium", "average", "middle"),
        ("large", "big"),
        ("huge", "verylarge"),
    ),
    (("verypoor", "bad"), ("poor",), ("fair", "average"), ("good",), ("verygood",), ("excellent",)),
    (
        ("baby", "infant"),
        ("child",),
        ("adolescent", "teenager"),
        ("young", "youth"),
        ("adult", "middleaged"),
        ("senior", "old"),
    ),
    (("slow",), ("medium", "normal", "average"), ("fast",)),
    (("short",), ("medium", "normal", "average"), ("long", "tall")),
    (("weak",), ("medium", "normal", "average"), ("strong",)),
    (("few",), ("some", "several"), ("many",)),
    (("cold",), ("cool",), ("mild", "normal"), ("warm",), ("hot",)),
    (("decreased",), ("normal", "unchanged"), ("increased",)),
    (("never",), ("rarely",), ("sometimes",), ("often",), ("always",)),
)
_NUMBERED = re.compile(r"(\D*)(\d+)")
# Places among which edges are chosen by what they tell, at most.
MOST_PLACES = 64


def in_order(states: Sequence[str]) -> list[str] | None:
    """Return states from the lowest to the highest, None where their names have no order.

    They have one where all are words of degree (low, normal, high) or one word with numbers (level1, level2).
    """
    folded = [re.sub(r"[\W_]+", "", state.casefold()) for state in states]
    if len(states) < 2:
        return None
    for scale in _SCALES:
        degrees = {word: degree for degree, words in enumerate(scale) for word in words}
        if all(word in degrees for word in folded):
            found = [degrees[word] for word in folded]
            return _sorted(states, found)
    numbered = [_NUMBERED.fullmatch(word) for word in folded]
    matches = [match for match in numbered if match is not None and match[1]]
    if len(matches) == len(states) and len({match[1] for match in matches}) == 1:
        return _sorted(states, [int(match[2]) for match in matches])
    return None


def _sorted(states: Sequence[str], degrees: Sequence[int]) -> list[str] | None:
    if len(set(degrees)) < len(degrees):
        return None
    return [state for _, state in sorted(zip(degrees, states, strict=True))]


def quantile_edges(counts: Mapping[float, int], bins: int) -> list[float] | None:
    """Return edges between which about as many numbers lie, infinite at both ends; None for too few different ones.

    counts: how often each number occurs.
    """
    numbers, below = _cumulated(counts)
    if len(numbers) < bins:
        return None
    edges: list[float] = []
    first = 1
    for n in range(1, bins):
        # The number at which the share below is nearest, of those that leave one for every bin.
        last = len(numbers) - (bins - n)
        wanted = below[-1] * n / bins
        at = first + int(np.abs(below[first : last + 1] - wanted).argmin())
        edges.append(_between(numbers[at - 1], numbers[at]))
        first = at + 1
    return [-math.inf, *edges, math.inf]


def informative_edges(pairs: Mapping[tuple[float, str], int], bins: int) -> list[float] | None:
    """Return the edges whose bins have most mutual information with a target, infinite at both ends; None as above.

    Edges are among 63 quantiles, and the best of these by dynamic programming.
    pairs: how often each number occurs together with each state of the target.
    """
    totals: dict[float, int] = {}
    for (number, _), count in pairs.items():
        totals[number] = totals.get(number, 0) + count
    places = quantile_edges(totals, min(MOST_PLACES, len(totals)))
    if places is None or len(totals) < bins:
        return None
    targets = sorted({target for _, target in pairs})
    table = np.zeros((len(places) - 1, len(targets)))
    for (number, target), count in pairs.items():
        table[np.searchsorted(places, number, side="right") - 1, targets.index(target)] += count
    cumulated = np.vstack([np.zeros(len(targets)), np.cumsum(table, axis=0)])
    cuts = _best_cuts(cumulated, bins)
    return [-math.inf, *(places[cut] for cut in cuts), math.inf]


def _best_cuts(cumulated: npt.NDArray[np.float64], bins: int) -> list[int]:
    """Return the places of the cuts that leave the bins with most information; cumulated: [places + 1, targets]."""
    size = len(cumulated)
    gain = np.full((size, size), -np.inf)
    for start in range(size):
        inside = cumulated[start + 1 :] - cumulated[start]
        total = inside.sum(axis=1, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            gain[start, start + 1 :] = np.where(inside > 0, inside * np.log(inside / total), 0.0).sum(axis=1)
    best, chosen = gain[0].copy(), []
    for _ in range(bins - 1):
        sums = best[:, None] + gain
        chosen.append(sums.argmax(axis=0))
        best = sums.max(axis=0)
    cuts, at = list[int](), size - 1
    for back in reversed(chosen):
        at = int(back[at])
        cuts.append(at)
    return cuts[::-1]


def _cumulated(counts: Mapping[float, int]) -> tuple[list[float], npt.NDArray[np.int64]]:
    """Return the different numbers in order, and how many lie below each, with all of them at the end."""
    numbers = sorted(counts)
    return numbers, np.cumsum([0, *(counts[number] for number in numbers)])


def _between(low: float, high: float) -> float:
    """Return the number of fewest digits above one and not above another: bins are closed on the left."""
    for digits in range(1, 17):
        middle = float(f"{(low + high) / 2:.{digits}g}")
        if low < middle <= high:
            return middle
    return high
