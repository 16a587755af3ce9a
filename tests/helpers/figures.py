"""Figures of a machine that is faster or slower at something, so that choices fall another way."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest
from junctor.backends import plan_memory
from junctor.cost.figures import Figures, shipped_figures
from junctor.cost.model import CostModel


def figures(**changes: dict[str, float]) -> Figures:
    """Return the figures of the package with some changed; changes: by backend, then by field."""
    known = shipped_figures()
    return replace(known, **{name: getattr(known, name)._replace(**fields) for name, fields in changes.items()})


def set_figures(patch: pytest.MonkeyPatch, *modules: ModuleType, **changes: dict[str, float]) -> None:
    """Let all cost models have changed figures, and modules that ask for those of the package; as `figures`."""
    changed = figures(**changes)
    patch.setattr(CostModel, "figures", property(lambda _: changed))
    for module in (plan_memory, *modules):
        patch.setattr(module, "shipped_figures", lambda: changed)


def compiled_at_once(patch: pytest.MonkeyPatch, blocks: bool = True) -> None:
    """Load compiled code whatever it takes; blocks: lower plans whatever that takes, too."""
    planning = {"planning": {"lowering_step": 0.0}} if blocks else {}
    set_figures(patch, loading={"compiled": -1.0}, **planning)
