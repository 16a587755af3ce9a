"""The order of the passes of a cut plan when several may be in flight; `out_of_core.pass_runner` follows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice

from junctor.planning.chunks import ChunkPlan, alive_entries

# Passes that are looked at from the first on that has not begun.
LOOKED_AT = 64


class PassOrder:
    """Passes in the order of the plan; several may be open at once, as far as all that they read is there.

    A pass begins ahead of earlier ones only if stored tables still take no more than in the plan.
    """

    def __init__(self, chunks: ChunkPlan) -> None:
        plan, passes = chunks.plan, chunks.passes
        self._passes = passes
        self._needs = chunks.needs
        self._stores = [sum(plan.tables[table].entries for table in pass_.stores) for pass_ in passes]
        # A dict, because it keeps the order of the plan.
        self._left = dict.fromkeys(range(len(passes)))
        self._open: set[int] = set()
        self._done: set[int] = set()
        # Passes that make or read a table and are not done.
        self._users = Counter(table for pass_ in passes for table in {*pass_.loads, *pass_.stores})
        self._alive = alive_entries(plan, chunks.lifetimes(), len(passes))
        self._most = max(self._alive)

    def __bool__(self) -> bool:
        """Whether there is anything left to be done."""
        return bool(self._left or self._open)

    def begin(self, may: Callable[[int], bool]) -> int | None:
        """Return a pass that begins now, of those that `may`; None where there is none before others are done."""
        for n in islice(self._left, LOOKED_AT):
            if self._needs[n] <= self._done and may(n) and self._fits(n):
                del self._left[n]
                self._open.add(n)
                return n
        return None

    def _fits(self, n: int) -> bool:
        """Return True if there is room for what a pass makes until its turn comes in the plan."""
        # Before it all is done as in the plan, so only what is early counts.
        first = min(n, next(iter(self._left)), *self._open)
        early = [k for k in (*self._open, *self._done) if k > first] + [n]
        return all(
            self._alive[at] + sum(self._stores[k] for k in early if k > at) <= self._most for at in range(first, n)
        )

    def end(self, n: int) -> list[int]:
        """Note that a pass is done; returns the tables that no other one needs."""
        self._open.remove(n)
        self._done.add(n)
        tables = {*self._passes[n].loads, *self._passes[n].stores}
        # Of a table that no pass reads later nothing is left to wait for.
        self._users.subtract(tables)
        return sorted(table for table in tables if not self._users[table])
