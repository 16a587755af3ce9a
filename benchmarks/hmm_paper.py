"""Figures and claims of Lee and Enev (Parallel Viterbi on a GPU): what `papers.py` shows of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from baselines import viterbi_versions
from baselines.viterbi_versions import PRINTED, VERSIONS, lines_read
from common import Asked
from hmm_cases import median_of, random_batch, random_model, serial_seconds
from junctor.hmm.engine import SequenceEngine, log_probabilities
from junctor.model.options import ComputeOptions

STATES = (512, 1000, 2000, 3000, 4000, 5000, 6000)
CLAIMS = "theirs: 2 is 8 times as fast as 1, 3 is 7 times as fast as 2, 4 is 5.6 times as fast as 3, 300 times as 1"


def sizes_of(asked: Asked) -> Sequence[int]:
    """Return numbers of states: theirs, where a CPU does not take minutes."""
    return (64, 128) if asked.small else STATES if asked.gpu else STATES[:4]


def on_a_cpu(sizes: Sequence[int]) -> None:
    """Print milliseconds a step against states, on one thread: version 1 with the matrix in both orders, and ours."""
    print("one sequence, single precision, ms a step on one thread of a CPU")
    print("states | version 1, [to, from] | version 1 as printed, [from, to] | ours | version 1 / ours")
    print("|".join(["---"] * 5))
    for size in sizes:
        model, steps = random_model(size), 16 if size > 1000 else 60
        batch = random_batch(1, steps)
        engine = SequenceEngine(model, precision="single", options=ComputeOptions(device="cpu", threads=1))
        engine.answer(batch)
        seconds = [serial_seconds(model, batch, steps, order=order) for order in ("C", "F")]
        seconds.append(median_of(partial(engine.answer, batch)) / (steps - 1))
        cells = " | ".join(f"{1e3 * each:.4g}" for each in seconds)
        print(f"{size:,} | {cells} | {seconds[0] / seconds[2]:.0f}", flush=True)


def figure_six(asked: Asked) -> None:
    on_a_cpu(sizes_of(asked))
    if asked.gpu:
        import hmm_gpu

        hmm_gpu.versions_table(sizes_of(asked), (2,))


def figure_eight(asked: Asked) -> None:
    on_a_cpu(sizes_of(asked))
    print(CLAIMS)
    if asked.gpu:
        import hmm_gpu

        hmm_gpu.versions_table(sizes_of(asked), tuple(VERSIONS))


def appendix_two(asked: Asked) -> None:
    """Print seconds against the length of a sequence: of version 1 and ours on a CPU and, with a GPU, of version 4."""
    size, longest = (100, 80) if asked.small else (1000, 800)
    model = random_model(size)
    engine = SequenceEngine(model, precision="single", options=ComputeOptions(device="cpu"))
    print(f"one sequence, {size:,} states, single precision, seconds on a CPU\nsteps | version 1 | ours\n---|---|---")
    for steps in (longest // 8, longest // 4, longest // 2, longest):
        batch = random_batch(1, steps)
        engine.answer(batch)
        serial = serial_seconds(model, batch, steps, 1) * steps
        print(f"{steps:,} | {serial:.4f} | {median_of(partial(engine.answer, batch)):.4f}", flush=True)
    if asked.gpu:
        import hmm_gpu

        hmm_gpu.length_table()


def readings(asked: Asked) -> None:
    """Print the lines of memory that a warp touches for a transition each: by their text and by their indices."""
    del asked
    print("lines of 128 bytes that 32 threads with neighbouring states touch for a transition each; 6,000 states")
    print("version | by the text | by the printed indices\n---|---|---")
    for number in VERSIONS:
        print(f"{number} | " + " | ".join(str(lines_read(of[number][1], 6000)) for of in (VERSIONS, PRINTED)))


def paths(asked: Asked) -> None:
    """Print whether version 1 and ours find a best path of random models, on a CPU."""
    sizes = (5, 40) if asked.small else (5, 40, 300)
    print("states | steps | log probability: version 1 | ours | the path of version 1\n---|---|---|---|---")
    for size in sizes:
        model, batch = random_model(size), random_batch(1, 50)
        with np.errstate(divide="ignore"):
            logs = [np.log(each).astype(np.float32) for each in (model.start, model.transition.T, model.emission.T)]
        path = np.empty(50, np.int32)
        value = viterbi_versions.serial(*(np.ascontiguousarray(each) for each in logs), batch.symbols, path)
        answer = SequenceEngine(model, options=ComputeOptions(device="cpu")).answer(batch)
        exact = log_probabilities(model, batch, path)[0]
        print(f"{size} | 50 | {value:.4f} | {answer.log_value[0]:.4f} | {exact:.4f}")
