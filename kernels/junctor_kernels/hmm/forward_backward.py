"""Log-likelihoods and state posteriors of hidden Markov models: the NumPy reference, in logarithms throughout.

Main function: `posteriors_of`, the forward-backward algorithm (Rabiner, A tutorial on hidden Markov models, 1989).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def log_sum(values: Array, axis: int) -> Array:
    """Return the logarithm of the sum of exponentials along an axis; -inf where there are only zeros."""
    largest = values.max(axis=axis, keepdims=True)
    # Where all terms are -inf, subtracting the largest would give nan.
    safe = np.where(largest == -np.inf, 0.0, largest)
    with np.errstate(divide="ignore"):
        total: Array = np.log(np.exp(values - safe).sum(axis=axis)) + np.squeeze(safe, axis=axis)
    return total


def posteriors_of(start: Array, transition: Array, emissions: Array) -> tuple[float, Array]:
    """Return log P(sequence) and the posteriors [steps, states] of one sequence (Rabiner 1989, equations 19 to 27).

    start: [states], logarithms.
    transition: [states, states], logarithms.
    emissions: [steps, states], logarithms.
    For an impossible sequence the first result is -inf, and the second must not be read.
    """
    # Logarithms throughout: nothing underflows, and no scaling has to be undone.
    forward, backward = emissions.copy(), np.zeros_like(emissions)
    forward[0] += start
    for t in range(1, len(emissions)):
        forward[t] += log_sum(forward[t - 1][:, None] + transition, axis=0)
    for t in range(len(emissions) - 1, 0, -1):
        backward[t - 1] = log_sum(transition + emissions[t] + backward[t], axis=1)
    total = float(log_sum(forward[-1], axis=0))
    if total == -np.inf:
        return total, forward
    return total, np.exp(forward + backward - total)
