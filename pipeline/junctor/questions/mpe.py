"""The most probable states of all variables together."""

from junctor.model.question import EXPLANATIONS, Question

QUESTION = Question(
    "mpe",
    "explanations",
    EXPLANATIONS,
    # A maximum is over the variables of the file alone: auxiliary ones have to be summed out before.
    network=lambda network, targets: network.expanded,
    log_column="log_probability",
    counted="states",
)
