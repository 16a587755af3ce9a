"""What routers of one network and query share: plans, and what is known of patterns. Main class: PlanStore."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar

from junctor.backends.plan_memory import PlanMemory
from junctor.model.errors import BudgetError
from junctor.planning.plan import Plan
from junctor.planning.shape import Pattern

if TYPE_CHECKING:
    from junctor.backends.row_trees import RowEngine
    from junctor.backends.row_work import RowWork
    from junctor.out_of_core.memory_splits import ChunkRoute

Key = TypeVar("Key")
Value = TypeVar("Value")
# A plan is made for a pattern and a rounded count of rows.
PlanKey = tuple[Pattern, int]


@dataclass(eq=False, slots=True)
class PlanStore:
    """What routers of one network and query share: plans, their memory, and what is known of patterns.

    lock: of whoever plans or looks something up; a thread may choose groups while another one answers.
    """

    plans: dict[PlanKey, Plan] = field(default_factory=dict)
    memories: dict[PlanKey, PlanMemory] = field(default_factory=dict)
    chunk_routes: dict[tuple[object, ...], ChunkRoute | BudgetError] = field(default_factory=dict)
    searched: dict[tuple[object, ...], ChunkRoute] = field(default_factory=dict)
    row_engines: dict[tuple[int, int], RowEngine] = field(default_factory=dict)
    works: dict[Pattern, RowWork] = field(default_factory=dict)
    lock: AbstractContextManager[Any] = field(default_factory=RLock)


def cached(cache: dict[Key, Value], key: Key, most: int, make: Callable[[], Value]) -> Value:
    """Return what a cache has for a key, or make it; the oldest entry of a full cache is dropped."""
    if key not in cache:
        if len(cache) >= most:
            cache.pop(next(iter(cache)))
        cache[key] = make()
    return cache[key]


def rounded(rows: int) -> int:
    """Return a count of rows in steps of four times, so that similar counts make the same plan."""
    return 1 << 2 * ((rows - 1).bit_length() // 2)
