"""Hidden Markov models: paths, posteriors and parameters from whole batches of sequences.

Sequences in, an Arrow table out:

    from junctor import hmm

    model = hmm.read_model("weather.json")
    table = hmm.viterbi(model, [["walk", "shop", "clean"], ["walk"]])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from junctor.hmm.api import posteriors, viterbi
    from junctor.hmm.formats import read_model, write_model
    from junctor.hmm.learned import LearnedModel
    from junctor.hmm.learning import learn
    from junctor.hmm.model import HiddenMarkovModel, SparseMatrix, build_model
    from junctor.hmm.slices import from_slices

_HOME = {
    "HiddenMarkovModel": "model",
    "LearnedModel": "learned",
    "SparseMatrix": "model",
    "build_model": "model",
    "from_slices": "slices",
    "learn": "learning",
    "posteriors": "api",
    "read_model": "formats",
    "viterbi": "api",
    "write_model": "formats",
}
__all__ = [
    "HiddenMarkovModel",
    "LearnedModel",
    "SparseMatrix",
    "build_model",
    "from_slices",
    "learn",
    "posteriors",
    "read_model",
    "viterbi",
    "write_model",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"junctor.hmm.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
