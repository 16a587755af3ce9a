"""All strategies, by name. Main function: `way`."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from junctor.model.strategies import Strategy
from junctor.strategies.strategy import Way

# Module and class; those whose groups are answered together come last, when programs have taken their memory.
_WAYS = {
    Strategy.IMPOSSIBLE: ("impossible", "ImpossibleRows"),
    Strategy.JOINT_TABLE: ("joint_table", "JointTableRows"),
    Strategy.ENTRIES: ("entries", "EntriesRows"),
    Strategy.CPU_BLOCKS: ("cpu_blocks", "BlocksRows"),
    Strategy.GPU_BLOCKS: ("gpu_blocks", "GpuRows"),
    Strategy.CHUNKS: ("chunks", "ChunkRows"),
    Strategy.ROW_TREES: ("row_trees", "TreeRows"),
}
# In the order in which their rows are answered.
ORDER = {strategy: place for place, strategy in enumerate(_WAYS)}


@cache
def way(strategy: Strategy) -> Way:
    """Return how a strategy answers rows."""
    # Imported when asked for: each loads code that the others do without.
    module, name = _WAYS[strategy]
    found: Way = getattr(import_module(f"junctor.strategies.{module}"), name)()
    return found
