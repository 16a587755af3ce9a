"""What the writers of text formats share: refusals, plain names, and the order in which tools expect the nodes.

Main functions: `refuse_markov`, `identifier` and `parents_first`; called by `hugin`, `netica`, `xdsl` and `xmlbif`.
"""

from __future__ import annotations

import heapq
import re

from junctor.formats.numbers import shown
from junctor.model.errors import ModelError
from junctor.model.network import Network


def refuse_markov(network: Network, format: str) -> None:
    """Raise ModelError for a Markov network."""
    if network.kind != "bayes":
        raise ModelError(f"{format} holds Bayesian networks only: write a Markov network as UAI or Parquet")


def identifier(name: str, pattern: re.Pattern[str], tool: str, rule: str) -> str:
    """Return a name that a tool takes; raises ModelError for any other.

    name: of a variable or state.
    pattern: what the tool's names are like.
    tool, rule: the tool and its rule in errors.
    """
    if not pattern.fullmatch(name):
        raise ModelError(f"the name {shown(name)} is none in {tool} ({rule}): write BIF, XMLBIF or Parquet")
    return name


def parents_first(network: Network) -> list[int]:
    """Return the variables of a Bayesian network in their order as far as parents come before their children."""
    left = [len(factor.scope) - 1 for factor in network.factors]
    children: list[list[int]] = [[] for _ in left]
    for child, factor in enumerate(network.factors):
        for parent in factor.scope[:-1]:
            children[parent].append(child)
    # A heap: of all variables that may come next the first one does.
    ready = [v for v, count in enumerate(left) if not count]
    order = []
    while ready:
        order.append(heapq.heappop(ready))
        for child in children[order[-1]]:
            left[child] -= 1
            if not left[child]:
                heapq.heappush(ready, child)
    return order
