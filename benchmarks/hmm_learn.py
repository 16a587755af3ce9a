"""An iteration of Baum-Welch: hmmlearn, by scaling and by logarithms, and ours, side by side.

    uv run --with hmmlearn python benchmarks/hmm_learn.py

Random dense models, sequences of equal length. The likelihoods of the first iteration are compared. On a machine that
others use, CPU seconds of one thread say more than the clock; of several times the smallest counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from hmm_cases import SYMBOLS, random_batch, random_model
from junctor.hmm.counts import SequenceCounter
from junctor.hmm.model import HiddenMarkovModel
from junctor.hmm.packing import SequenceBatch
from junctor.model.options import ComputeOptions


def least(work: Callable[[], Any], clock: Callable[[], float], times: int) -> float:
    """Return the smallest of several measurements, in seconds."""
    seconds = []
    for _ in range(times):
        begin = clock()
        work()
        seconds.append(clock() - begin)
    return min(seconds)


def hmmlearn_seconds(
    model: HiddenMarkovModel, batch: SequenceBatch, implementation: str, times: int
) -> tuple[float, float]:
    """Return the CPU seconds of an iteration, and its log-likelihood."""
    from hmmlearn.hmm import CategoricalHMM

    found = []

    def iterate() -> None:
        peer = CategoricalHMM(
            model.states, implementation=implementation, n_iter=1, init_params="", n_features=SYMBOLS, tol=-np.inf
        )
        # Its fit writes to them.
        peer.startprob_, peer.transmat_ = model.start.copy(), np.array(model.transition)
        peer.emissionprob_ = np.array(model.emission)
        peer.fit(batch.symbols[:, None], batch.lengths)
        found.append(peer.monitor_.history[-1])

    return least(iterate, time.process_time, times), found[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, nargs="+", default=[8, 64, 256, 512])
    parser.add_argument("--sequences", type=int, default=200)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--times", type=int, default=7)
    arguments = parser.parse_args()
    print(f"{arguments.sequences} sequences of {arguments.steps} steps, seconds an iteration\n")
    print("| states | hmmlearn, scaling, CPU | hmmlearn, log, CPU | ours, 1 thread, CPU | × scaling | × log ", end="")
    print(f"| ours, {arguments.threads} threads, clock | × scaling | × log | G multiply-adds a CPU second |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for size in arguments.states:
        model, batch = random_model(size), random_batch(arguments.sequences, arguments.steps)
        # It takes each sequence alone: a few of them, scaled up.
        count = max(2, min(arguments.sequences, 8192 // size))
        few, times = random_batch(count, arguments.steps), 1 if size > 256 else 3
        scaling, value = hmmlearn_seconds(model, few, "scaling", times)
        logs, _ = hmmlearn_seconds(model, few, "log", 1)
        scaling, logs = (seconds * arguments.sequences / count for seconds in (scaling, logs))
        ours = SequenceCounter(few, np.ones(count)).count(model).log_value.sum()
        assert abs(ours - value) <= 1e-9 * abs(value), (ours, value)
        one, several = (
            SequenceCounter(batch, np.ones(len(batch)), ComputeOptions(threads=threads, device="cpu"))
            for threads in (1, arguments.threads)
        )
        alone = least(lambda: one.count(model), time.process_time, arguments.times)  # noqa: B023
        clock = least(lambda: several.count(model), time.perf_counter, arguments.times)  # noqa: B023
        rate = 3 * (len(batch.symbols) - len(batch)) * size**2 / alone / 1e9
        cells = f"{scaling:.3g} | {logs:.3g} | {alone:.3g} | {scaling / alone:.0f} | {logs / alone:.0f}"
        print(
            f"| {size} | {cells} | {clock:.3g} | {scaling / clock:.0f} | {logs / clock:.0f} | {rate:.1f} |", flush=True
        )


if __name__ == "__main__":
    main()
