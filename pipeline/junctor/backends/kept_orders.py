"""Elimination orders of long searches, from process to process. Main class: KeptOrders, set up by the router."""

from __future__ import annotations

import json
import math

from junctor.runtime.cache import Cache

KIND = "order"


class KeptOrders:
    """Orders in a cache: the result of a search by the digest of all that it depends on."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def find(self, key: str, members: frozenset[int]) -> tuple[tuple[int, ...], float] | None:
        """Return a permutation of `members` and the entries of its cliques, None where there is none."""
        return self._cache.read(KIND, key, lambda content: _parsed(content, members))

    def keep(self, key: str, variables: tuple[int, ...], entries: float) -> None:
        """Keep the order that a search found."""
        # Hexadecimal: the same float, to the bit.
        record = {"order": variables, "entries": entries.hex()}
        self._cache.write(KIND, key, json.dumps(record).encode())


def _parsed(content: bytes, members: frozenset[int]) -> tuple[tuple[int, ...], float]:
    record = json.loads(content)
    if not isinstance(record, dict) or record.keys() != {"order", "entries"}:
        raise ValueError("not an order")
    order, entries = record["order"], record["entries"]
    if not isinstance(order, list) or not all(type(v) is int for v in order) or not isinstance(entries, str):
        raise ValueError("not an order")
    total = float.fromhex(entries)
    # Any permutation gives right answers, nothing else does.
    if len(order) != len(members) or frozenset(order) != members or not 0 < total < math.inf:
        raise ValueError("not an order of these variables")
    return tuple(order), total
