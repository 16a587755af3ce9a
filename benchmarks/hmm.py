"""Most probable paths of hidden Markov models: Lee and Enev's four versions, hmmlearn and ours, side by side.

    uv run --with hmmlearn python benchmarks/hmm.py cpu
    python benchmarks/hmm.py gpu

`cpu`: 200 sequences of models with 64 to 512 states beside hmmlearn, and the share of what additions and maxima on
registers reach; one sequence against states and against its length, beside hmmlearn and version 1. `gpu`: time a step
against states up to 6,000, all versions (their figures 6 and 8), time against the length of a sequence (Appendix 2),
many sequences at once, posteriors, and trellises that exceed the memory allowed. Every figure is checked: paths of
equal log probability. Random models, single precision.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
from common import need_gpu
from hmm_cases import median_of, random_batch, random_model, serial_seconds
from junctor.hmm.engine import SequenceEngine
from junctor.hmm.model import HiddenMarkovModel
from junctor.hmm.packing import SequenceBatch
from junctor.model.options import ComputeOptions
from junctor_kernels.cpu.jit import jit
from junctor_kernels.cpu.vectors import BYTES, add, larger, load, spread, store


@jit
def _peak(x: Any, turns: int) -> None:
    lanes = BYTES // x.itemsize
    a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = c0 = c1 = c2 = c3 = d0 = d1 = d2 = d3 = load(x, 0)
    y, z, u = load(x, lanes), load(x, 2 * lanes), load(x, 3 * lanes)
    for _ in range(turns):
        a0, a1, a2, a3 = larger(add(a0, y), z), larger(add(a1, y), z), larger(add(a2, y), z), larger(add(a3, y), z)
        b0, b1, b2, b3 = larger(add(b0, y), u), larger(add(b1, y), u), larger(add(b2, y), u), larger(add(b3, y), u)
        c0, c1, c2, c3 = larger(add(c0, z), y), larger(add(c1, z), y), larger(add(c2, z), y), larger(add(c3, z), y)
        d0, d1, d2, d3 = larger(add(d0, z), u), larger(add(d1, z), u), larger(add(d2, z), u), larger(add(d3, z), u)
    total = spread(x.dtype.type(0))
    for each in (a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3):
        total = add(total, each)
    store(x, 0, total)


def cpu_peak(dtype: Any = np.float32) -> float:
    """Additions with maxima that one core does in a CPU second, everything in registers."""
    x, turns = np.random.default_rng(0).random(128).astype(dtype), 2_000_000
    _peak(x, 10)
    begin = time.process_time()
    _peak(x, turns)
    return turns * 16 * (BYTES // np.dtype(dtype).itemsize) / (time.process_time() - begin)


def share_of_peak(model: HiddenMarkovModel, batch: SequenceBatch, precision: Any, dtype: Any) -> float:
    """What a whole call on one thread reaches of the peak, both taken in turn on a core that others may use."""
    engine, shares = SequenceEngine(model, precision=precision, options=ComputeOptions(threads=1, device="cpu")), []
    engine.answer(batch)
    terms = (len(batch.symbols) - len(batch)) * model.states**2
    for _ in range(7):
        peak, begin = cpu_peak(dtype), time.process_time()
        engine.answer(batch)
        shares.append(terms / (time.process_time() - begin) / peak)
    return statistics.median(shares)


def hmmlearn_paths(model: HiddenMarkovModel, batch: SequenceBatch) -> tuple[float, float, Any]:
    """Return seconds, the log probability of all sequences, and the states, by hmmlearn."""
    from hmmlearn.hmm import CategoricalHMM

    peer = CategoricalHMM(n_components=model.states)
    peer.startprob_, peer.transmat_, peer.emissionprob_ = model.start, model.transition, model.emission
    begin = time.perf_counter()
    value, states = peer.decode(batch.symbols[:, None], batch.lengths)
    return time.perf_counter() - begin, value, states


def many_sequences(states: list[int], sequences: int, steps: int, threads: int) -> None:
    peaks = (statistics.median(cpu_peak(dtype) for _ in range(5)) / 1e9 for dtype in (np.float32, np.float64))
    print("peak of one core: {:.1f} (single), {:.1f} (double) G terms a CPU second\n".format(*peaks))
    print(f"{sequences} sequences of {steps} steps, {threads} threads\n")
    print("| states | hmmlearn s | ours, single s | × | share of peak | ours, double s | × | share of peak |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    for size in states:
        model, batch = random_model(size), random_batch(sequences, steps)
        few = random_batch(max(2, sequences // 20), steps)
        peer, value, _ = hmmlearn_paths(model, few)
        peer *= sequences / len(few)
        cells = []
        for precision, dtype in (("single", np.float32), ("double", np.float64)):
            engine = SequenceEngine(model, precision=precision, options=ComputeOptions(threads=threads, device="cpu"))
            ours = engine.answer(few).log_value.sum()
            assert abs(ours - value) <= 1e-6 * abs(value), (ours, value)
            engine.answer(batch)
            seconds = median_of(lambda engine=engine, batch=batch: engine.answer(batch), 5)
            share = share_of_peak(model, batch, precision, dtype)
            cells.append(f"{seconds:.3f} | {peer / seconds:,.0f} | {share:.0%}")
        print(f"| {size:,} | {peer:.2f} | {' | '.join(cells)} |", flush=True)


def one_sequence(states: list[int], threads: int) -> None:
    """Their figures 6 and 8, as far as they are of CPUs: time a step against states."""
    print("\none sequence, single precision, ms a step\n")
    print(f"| states | version 1 | hmmlearn | ours, 1 thread | ours, {threads} threads | × version 1 | × hmmlearn |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for size in states:
        model, batch = random_model(size), random_batch(1, 60 if size > 2000 else 300)
        few = random_batch(1, 8 if size > 2000 else 60)
        serial = serial_seconds(model, few, len(few.symbols))
        peer, value, _ = hmmlearn_paths(model, few)
        ours = []
        for each in (1, threads):
            engine = SequenceEngine(model, precision="single", options=ComputeOptions(threads=each, device="cpu"))
            assert abs(engine.answer(few).log_value[0] - value) <= 1e-6 * abs(value)
            ours.append(median_of(lambda engine=engine, batch=batch: engine.answer(batch)) / len(batch.symbols))
            del engine
        peer /= len(few.symbols)
        cells = " | ".join(f"{1e3 * each:.4g}" for each in (serial, peer, *ours))
        print(f"| {size:,} | {cells} | {serial / min(ours):.0f} | {peer / min(ours):.0f} |", flush=True)


def lengths(size: int, threads: int) -> None:
    """Their Appendix 2: time against the length of a sequence."""
    print(f"\none sequence, {size:,} states, single precision, seconds\n\n| steps | version 1 | hmmlearn | ours |")
    print("|---:|---:|---:|---:|")
    model = random_model(size)
    engine = SequenceEngine(model, precision="single", options=ComputeOptions(threads=threads, device="cpu"))
    for steps in (100, 300, 1000, 3000):
        batch = random_batch(1, steps)
        engine.answer(batch)
        cells = serial_seconds(model, batch, steps, 1) * steps, hmmlearn_paths(model, batch)[0]
        print(
            f"| {steps:,} | {cells[0]:.3f} | {cells[1]:.3f} | {median_of(lambda b=batch: engine.answer(b)):.4f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    here = commands.add_parser("cpu")
    here.add_argument("--states", type=int, nargs="+", default=[64, 256, 512])
    here.add_argument("--sequences", type=int, default=200)
    here.add_argument("--steps", type=int, default=200)
    here.add_argument("--threads", type=int, default=2)
    here.add_argument("--parts", nargs="+", default=["many", "states", "length"])
    there = commands.add_parser("gpu")
    there.add_argument("--states", type=int, nargs="+", default=[512, 1000, 2000, 3000, 4000, 5000, 6000])
    there.add_argument("--parts", nargs="+", default=["states", "length", "many", "posteriors", "budget", "larger"])
    arguments = parser.parse_args()
    if arguments.command == "cpu":
        if "many" in arguments.parts:
            many_sequences(arguments.states, arguments.sequences, arguments.steps, arguments.threads)
        if "states" in arguments.parts:
            one_sequence([500, 1000, 2000, 4000, 6000], arguments.threads)
        if "length" in arguments.parts:
            lengths(1000, arguments.threads)
    else:
        need_gpu("hmm.py gpu")
        import hmm_gpu

        hmm_gpu.main(arguments.states, arguments.parts)


if __name__ == "__main__":
    main()
