"""What circuits there may be: bounds that are known before a search, and those of one. Main class: SearchLimits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from junctor.model.network import Factor, Network

# States of a variable and axes of a table: bits of a word of compiled code. Entries of a factor: sums over larger ones
# are what trees are for.
MOST_STATES, MOST_AXES, MOST_ENTRIES = 64, 64, 1 << 20
# Share of entries above zero from which on a network has no zeros to speak of: nobody searches for its circuit unasked.
DENSE = 0.9

# Decisions of a search by one order.
MOST_DECISIONS = 400_000


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """Where a search ends without a circuit.

    decisions: of one order.
    edges: of a circuit in the making, products of two counted.
    bytes: of a search.
    """

    decisions: int = MOST_DECISIONS
    edges: int = 40_000_000
    bytes: int = 1 << 31

    @classmethod
    def within(cls, memory: int, decisions: int) -> SearchLimits:
        """Return limits of a search that takes half of the memory allowed at most."""
        return cls(decisions, bytes=min(cls().bytes, memory // 2))


def refused(network: Network, factors: Sequence[Factor]) -> str | None:
    """Return why a network has no circuit of some of its factors, whatever their numbers; None where it may have one.

    Compiled code is not loaded for it.
    """
    if max(network.cardinalities) > MOST_STATES:
        return f"a variable has {max(network.cardinalities):,} states, circuits allow {MOST_STATES}"
    if max((factor.table.size for factor in factors), default=0) > MOST_ENTRIES:
        return f"a table has more than {MOST_ENTRIES:,} entries, which circuits do not allow"
    if max((len(factor.scope) for factor in factors), default=0) > MOST_AXES:
        return f"a table has more than {MOST_AXES} variables, which circuits do not allow"
    return None
