"""The probability that two targets of as many states are in the same one, by number."""

import numpy as np
from junctor.model.errors import EvidenceError
from junctor.model.network import Factor, Network, Variable
from junctor.model.question import Question


def with_equality(network: Network, targets: tuple[str, ...] | None) -> Network:
    """Return a network with one more variable, which tells whether its two parents are equal."""
    scope = tuple(network.index[name] for name in targets or ())
    sizes = [network.cardinalities[v] for v in scope]
    if len(sizes) != 2 or sizes[0] != sizes[1]:
        raise EvidenceError("expected two targets of as many states")
    table = np.stack([1 - np.eye(sizes[0]), np.eye(sizes[0])], axis=-1)
    variables = (*network.variables, Variable("alike", ("no", "yes")))
    factors = (*network.factors, Factor((*scope, len(network.variables)), table))
    return Network(network.name, variables, factors, network.kind)


QUESTION = Question("alike", "alike ones", network=with_equality, added=("alike",))
