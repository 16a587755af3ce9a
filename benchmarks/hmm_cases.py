"""What both halves of `hmm.py` measure with: random models and sequences, a clock, version 1 of the paper."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from baselines import viterbi_versions
from junctor.hmm.model import HiddenMarkovModel, build_model
from junctor.hmm.packing import SequenceBatch

SYMBOLS = 32


def random_model(states: int, seed: int = 0) -> HiddenMarkovModel:
    rng = np.random.default_rng(seed)
    rows = rng.random((states, states), np.float32).astype(np.float64) ** 8
    rows /= rows.sum(axis=1, keepdims=True)
    emission = rng.random((states, SYMBOLS)) ** 4
    return build_model(np.full(states, 1 / states), rows, emission / emission.sum(axis=1, keepdims=True))


def random_batch(sequences: int, steps: int, seed: int = 1) -> SequenceBatch:
    symbols = np.random.default_rng(seed).integers(0, SYMBOLS, sequences * steps).astype(np.int32)
    return SequenceBatch(np.arange(sequences + 1, dtype=np.int64) * steps, symbols)


def median_of(work: Callable[[], Any], times: int = 3) -> float:
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def serial_seconds(
    model: HiddenMarkovModel, batch: SequenceBatch, steps: int, times: int = 3, order: Literal["C", "F"] = "C"
) -> float:
    """Seconds a step of the serial version, from the first steps of the first sequence.

    order: of the matrix: transitions to a state lie side by side (C), or those from a state, as the paper prints it.
    """
    with np.errstate(divide="ignore"):
        start, into = np.log(model.start).astype(np.float32), np.log(model.transition.T).astype(np.float32)
        emissions = np.log(model.emission.T).astype(np.float32).copy()
    few, into = into[:2, :2].copy(order), into.copy(order)
    path = np.empty(steps, np.int32)
    # Compiled.
    viterbi_versions.serial(start[:2], few, emissions[:, :2].copy(), batch.symbols[:2], path)
    seconds = median_of(lambda: viterbi_versions.serial(start, into, emissions, batch.symbols[:steps], path), times)
    return seconds / (steps - 1)
