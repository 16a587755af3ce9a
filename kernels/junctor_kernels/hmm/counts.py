"""Expected counts of hidden Markov models: the NumPy reference, in logarithms throughout.

Main function: `counts_of`, the E-step of Baum and Welch (Rabiner, A tutorial on hidden Markov models, 1989).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from junctor_kernels.hmm.forward_backward import log_sum

Array = npt.NDArray[Any]


def counts_of(start: Array, transition: Array, emissions: Array) -> tuple[float, Array, Array]:
    """Return log P(sequence), the posteriors [steps, states], and expected transitions [states, states] of a sequence.

    start: [states], logarithms.
    transition: [states, states], logarithms.
    emissions: [steps, states], logarithms.
    Rabiner 1989, equations 19 to 27 and 37; for an impossible sequence only the first result may be read.
    """
    forward, backward = emissions.copy(), np.zeros_like(emissions)
    forward[0] += start
    for t in range(1, len(emissions)):
        forward[t] += log_sum(forward[t - 1][:, None] + transition, axis=0)
    for t in range(len(emissions) - 1, 0, -1):
        backward[t - 1] = log_sum(transition + emissions[t] + backward[t], axis=1)
    total = float(log_sum(forward[-1], axis=0))
    pairs = np.zeros_like(transition)
    if total > -np.inf:
        for t in range(1, len(emissions)):
            pairs += np.exp(forward[t - 1][:, None] + transition + (emissions[t] + backward[t])[None] - total)
    return total, np.exp(forward + backward - max(total, np.finfo(float).min)), pairs
