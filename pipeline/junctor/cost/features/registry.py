"""The registry of features: for each backend the counts that have coefficients, in their order.

Datasets, fits, cost models and calibrations go by `BACKENDS`; a new backend is a line and a module of this folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from junctor.cost.features.cpu_blocks import CPU_WORK
from junctor.cost.features.gpu_stages import FEW_WORK, MANY_WORK
from junctor.cost.features.names import CHUNK_WORK, GPU_CHUNK_WORK, STORED_WORK
from junctor.cost.features.plans import PLAN_WORK, TREE_WORK
from junctor.cost.figures import RECORDS


@dataclass(frozen=True, slots=True)
class FeatureSet:
    """Names of the counts of a backend, in groups that are fitted each by itself.

    work: of a plan with its numbers.
    plan: of a plan alone.
    tree: of the row engine's tree for a pattern, a row.
    """

    work: tuple[str, ...]
    plan: tuple[str, ...] = PLAN_WORK
    tree: tuple[str, ...] = TREE_WORK


# Blocks in compiled code; contractions over entries and NumPy, with numbers and with logarithms; few cases and many on
# a GPU; rows in chunks, by compiled contractions, by NumPy and on a GPU; stored clique tables on a CPU; figures
# that choices weigh beside these.
BACKENDS: dict[str, FeatureSet] = {
    "cpu": FeatureSet(CPU_WORK),
    **{f"{kind}-{name}": FeatureSet(PLAN_WORK) for kind in ("entries", "plain") for name in ("double", "log")},
    **{f"few-{name}": FeatureSet(FEW_WORK) for name in ("single", "double", "log")},
    **{f"many-{name}": FeatureSet(MANY_WORK) for name in ("single", "double", "log")},
    **{f"chunks-{name}": FeatureSet(CHUNK_WORK) for name in ("single", "double", "log")},
    **{f"chunks-plain-{name}": FeatureSet(CHUNK_WORK) for name in ("single", "double", "log")},
    **{f"chunks-gpu-{name}": FeatureSet(GPU_CHUNK_WORK) for name in ("single", "double")},
    **{f"stored-{name}": FeatureSet(STORED_WORK) for name in ("single", "double")},
    **{name: FeatureSet(record._fields) for name, record in RECORDS.items()},
}


def ordered(names: tuple[str, ...], counts: Mapping[str, float]) -> tuple[float, ...]:
    """Return counts in the order of their names; raises ValueError for others than these."""
    if counts.keys() != set(names):
        raise ValueError(f"counts of {', '.join(counts)} where those of {', '.join(names)} are wanted")
    return tuple(counts[name] for name in names)
