"""Junctor: exact answers from discrete Bayesian and Markov networks for whole tables of evidence at once.

A pandas or Arrow table in, an Arrow table out:

    import junctor

    network = junctor.read_network("alarm.bif")
    table = junctor.posteriors(network, evidence)
"""

from __future__ import annotations

# At once: a thread that outlives the main one cannot import it any more.
import concurrent.futures.thread  # noqa: F401
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from junctor.api import Model, most_probable, posteriors
    from junctor.cliques.joint import joint_posteriors
    from junctor.formats import read_network, write_network
    from junctor.formats.libraries import from_pgmpy, from_pyagrum, to_pgmpy, to_pyagrum
    from junctor.learning.counts import expected_counts
    from junctor.learning.learn import learn
    from junctor.model.errors import (
        BudgetError,
        DeviceError,
        DiskError,
        EvidenceError,
        InputError,
        JunctorError,
        ModelError,
        RunError,
    )
    from junctor.model.network import Network
    from junctor.runs.answers import answer_batches, named_columns, read_answers

__all__ = [
    "BudgetError",
    "DeviceError",
    "DiskError",
    "EvidenceError",
    "InputError",
    "JunctorError",
    "Model",
    "ModelError",
    "Network",
    "RunError",
    "answer_batches",
    "expected_counts",
    "from_pgmpy",
    "from_pyagrum",
    "joint_posteriors",
    "learn",
    "most_probable",
    "named_columns",
    "posteriors",
    "read_answers",
    "read_network",
    "to_pgmpy",
    "to_pyagrum",
    "write_network",
]

# Imported at first use: the command line answers `--help` without NumPy and Arrow.
_HOME = {
    "Model": "junctor.api",
    "answer_batches": "junctor.runs.answers",
    "Network": "junctor.model.network",
    "expected_counts": "junctor.learning.counts",
    "from_pgmpy": "junctor.formats.libraries",
    "from_pyagrum": "junctor.formats.libraries",
    "joint_posteriors": "junctor.cliques.joint",
    "learn": "junctor.learning.learn",
    "most_probable": "junctor.api",
    "named_columns": "junctor.runs.answers",
    "posteriors": "junctor.api",
    "read_answers": "junctor.runs.answers",
    "read_network": "junctor.formats",
    "to_pgmpy": "junctor.formats.libraries",
    "to_pyagrum": "junctor.formats.libraries",
    "write_network": "junctor.formats",
}
# Parts of the package that users import by name.
_MODULES = ("generate", "hmm")


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("junctor")
    if name in _MODULES:
        return import_module(f"junctor.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME.get(name, "junctor.model.errors")), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES, "__version__"})
