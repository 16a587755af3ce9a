"""All strategies, by name. Main function: `way`."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from junctor.model.strategies import Strategy
from junctor.strategies.strategy import Way


@cache
def way(strategy: Strategy) -> Way:
    """Return how a strategy answers rows: the WAY of the module of its name."""
    # Imported when asked for: each loads code that the others do without.
    module = import_module(f"junctor.strategies.{strategy.value.replace('-', '_')}")
    found: Way = module.WAY
    return found
