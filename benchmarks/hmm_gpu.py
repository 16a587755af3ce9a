"""The GPU half of `hmm.py`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from baselines.viterbi_versions import PRINTED, VERSIONS, GpuVersion
from hmm_cases import median_of, random_batch, random_model, serial_seconds
from junctor.hmm.blocks import TickBlock, TrellisMemory, plan_blocks
from junctor.hmm.decode import decode
from junctor.hmm.decode_gpu import GpuDecoder
from junctor.hmm.engine import SequenceEngine, log_probabilities
from junctor.hmm.model import HiddenMarkovModel
from junctor.hmm.packing import Lockstep, SequenceBatch, locksteps
from junctor.hmm.smooth_gpu import GpuSmoother, SequencePass
from junctor.model.options import ComputeOptions

FAR = TrellisMemory(1 << 40)
# Of a version of Lee and Enev.
READINGS = {"": VERSIONS, " as printed": PRINTED}
CEILINGS = r"""
extern "C" __global__ void read_all(const float4 *from, long long count, float *out) {
    float total = 0;
#pragma unroll 8
    for (long long i = blockIdx.x * 1024ll + threadIdx.x; i < count; i += gridDim.x * 1024ll) {
        const float4 x = __ldg(from + i);
        total += x.x + x.y + x.z + x.w;
    }
    if (total == 12345.0f) *out = total;
}
extern "C" __global__ void __launch_bounds__(256, 2) add_and_max(float *out, float y, float z, int turns) {
    float total[8][8], one[8], other[8];
#pragma unroll
    for (int r = 0; r < 8; r++) {
        one[r] = y * r + threadIdx.x, other[r] = z * r - threadIdx.x;
#pragma unroll
        for (int c = 0; c < 8; c++) total[r][c] = -1e30f;
    }
#pragma unroll 4
    for (int n = 0; n < turns; n++) {
#pragma unroll
        for (int r = 0; r < 8; r++)
#pragma unroll
            for (int c = 0; c < 8; c++) total[r][c] = fmaxf(total[r][c], one[r] + other[c]);
#pragma unroll
        for (int r = 0; r < 8; r++) one[r] += y;
    }
    float sum = 0;
#pragma unroll
    for (int r = 0; r < 8; r++)
#pragma unroll
        for (int c = 0; c < 8; c++) sum += total[r][c];
    if (sum == 12345.0f) *out = sum;
}
"""


def seconds_of(work: Any) -> float:
    import cupy

    def waited() -> None:
        work()
        cupy.cuda.runtime.deviceSynchronize()

    waited()
    return median_of(waited, 7)


def ceilings() -> tuple[float, float]:
    """Return bytes a second that are read, and additions with maxima a second."""
    import cupy

    module, out = cupy.RawModule(code=CEILINGS), cupy.zeros(1, np.float32)
    read, peak = module.get_function("read_all"), module.get_function("add_and_max")
    memory, processors = cupy.zeros(1 << 28, np.float32), cupy.cuda.Device().attributes["MultiProcessorCount"]
    bandwidth = memory.nbytes / seconds_of(lambda: read((2 * processors,), (1024,), (memory, np.int64(1 << 26), out)))
    turns, blocks = 20_000, 2 * processors
    work = (out, np.float32(-0.5), np.float32(-1.0), np.int32(turns))
    return bandwidth, turns * 64 * 256 * blocks / seconds_of(lambda: peak((blocks,), (256,), work))


def all_of(batch: SequenceBatch) -> Lockstep:
    (steps,) = locksteps(batch.lengths, np.arange(len(batch)), len(batch))
    return steps


def step_seconds(machine: GpuDecoder, batch: SequenceBatch, times: int = 5) -> tuple[float, float]:
    """Return seconds a step forwards and on the way back."""
    steps = all_of(batch)
    block, path = TickBlock(0, steps.ticks - 1, "here"), np.zeros(steps.rows, np.int32)
    memory = machine.room(steps.rows)
    machine.advance(memory, batch, steps, block)
    forward = median_of(lambda: machine.advance(memory, batch, steps, block), times)
    back = median_of(lambda: machine.trace(memory, steps, block, path), times)
    return forward / (steps.ticks - 1), back / (steps.ticks - 1)


def version_seconds(version: tuple[str, bool], model: HiddenMarkovModel, batch: SequenceBatch) -> tuple[float, float]:
    """Return seconds a step of a version of the paper, and the log probability of its path."""
    with np.errstate(divide="ignore"):
        logs = [np.log(each).astype(np.float32) for each in (model.start, model.transition, model.emission.T)]
    run = GpuVersion(version, *logs, batch.symbols)
    seconds = seconds_of(run.forward) / (run.steps - 1)
    _, path = run.path()
    return seconds, float(log_probabilities(model, batch, path)[0])


def states_table(sizes: list[int], bandwidth: float) -> None:
    print("\none sequence, microseconds a step (version 1: the serial one, on one core of the GPU's host)\n")
    print("| states | version 1 | 2 | 3 | 4 | ours | back | × version 1 | matrix once | ours / that |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for size in sizes:
        model, batch = random_model(size), random_batch(1, 300)
        machine = GpuDecoder(model, np.float32)
        ours, back = step_seconds(machine, batch)
        path = decode(machine, batch, all_of(batch), FAR, Path())
        value = log_probabilities(model, batch, path)[0]
        del machine
        serial = serial_seconds(model, batch, 8 if size > 2000 else 60)
        short = random_batch(1, 60)
        reference = (
            SequenceEngine(model, precision="single", options=ComputeOptions(device="gpu")).answer(short).log_value[0]
        )
        cells = []
        for number, version in VERSIONS.items():
            seconds, found = version_seconds(version, model, short)
            assert abs(found - reference) <= 1e-4 * abs(reference), (number, found, reference)
            cells.append(f"{1e6 * seconds:,.0f}")
        assert value > -np.inf
        once = size * size * 4 / bandwidth
        print(
            f"| {size:,} | {1e6 * serial:,.0f} | {' | '.join(cells)} | {1e6 * ours:.1f} | {1e6 * back:.1f} | "
            f"{serial / ours:,.0f} | {1e6 * once:.1f} | {ours / once:.2f} |",
            flush=True,
        )


def versions_table(sizes: Sequence[int], numbers: Sequence[int]) -> None:
    """Print microseconds a step of versions by the text and by the printed indices, and what each gains."""
    ways = {f"{number}{word}": of[number] for number in numbers for word, of in READINGS.items()}
    print("| states | 1 | " + " | ".join(ways) + " | each beside the one before, 1 beside the last: by the text |")
    print("|---:|" + "---:|" * (len(ways) + 2))
    for size in sizes:
        model, batch = random_model(size), random_batch(1, 60)
        found = {name: version_seconds(version, model, batch) for name, version in ways.items()}
        values = [value for _, value in found.values()]
        assert max(values) - min(values) <= 1e-4 * abs(values[0]), found
        seconds = {name: each for name, (each, _) in found.items()}
        chain = [serial_seconds(model, batch, 8 if size > 2000 else 60), *(seconds[str(number)] for number in numbers)]
        gains = [before / after for before, after in pairwise(chain)] + [chain[0] / chain[-1]]
        cells = [f"{1e6 * each:,.1f}" for each in (chain[0], *seconds.values())]
        print(f"| {size:,} | {' | '.join(cells)} | {', '.join(f'{gain:.1f}' for gain in gains)} |", flush=True)


def length_table() -> None:
    size = 1000
    model = random_model(size)
    serial = serial_seconds(model, random_batch(1, 60), 60)
    print(f"\none sequence, {size:,} states, seconds; version 1 from {1e6 * serial:,.0f} microseconds a step\n")
    print("| steps | version 1 | 4 | ours, whole call |\n|---:|---:|---:|---:|")
    engine = SequenceEngine(model, precision="single", options=ComputeOptions(device="gpu"))
    fourth = version_seconds(VERSIONS[4], model, random_batch(1, 500))[0]
    for steps in (100, 1000, 10_000, 100_000):
        batch = random_batch(1, steps)
        engine.answer(batch)
        seconds = median_of(lambda batch=batch: engine.answer(batch))
        print(f"| {steps:,} | {serial * steps:.3f} | {fourth * steps:.3f} | {seconds:.4f} |", flush=True)


def many_table(peak: float) -> None:
    print("\nmany sequences\n\n| states | sequences | ms a tick | back | share of peak | × version 1 | double ms |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for size, numbers in ((6000, (2, 4, 8, 16, 32, 64, 128, 256, 512)), (2000, (256, 1024)), (512, (256, 4096))):
        model = random_model(size)
        machine = GpuDecoder(model, np.float32)
        serial = serial_seconds(model, random_batch(1, 8), 8 if size > 2000 else 60)
        for number in numbers:
            forward, back = step_seconds(machine, random_batch(number, 200 if number <= 8 else 12), 3)
            terms = number * size**2
            print(
                f"| {size:,} | {number} | {1e3 * forward:.3f} | {1e3 * back:.3f} | {terms / forward / peak:.0%} | "
                f"{serial * number / forward:,.0f} | ",
                end="",
                flush=True,
            )
            print("|" if number != 256 else f"{double_ms(model, number):.2f} |", flush=True)
        del machine


def double_ms(model: HiddenMarkovModel, sequences: int) -> float:
    machine = GpuDecoder(model, np.float64)
    return 1e3 * step_seconds(machine, random_batch(sequences, 6), 1)[0]


def smooth_seconds(smoother: GpuSmoother, batch: SequenceBatch, times: int = 3) -> tuple[float, float]:
    """Return seconds a step forwards and back, posteriors on the device."""
    steps = all_of(batch)
    block = TickBlock(0, steps.ticks - 1, "here")
    passing = SequencePass(smoother, batch, steps, np.empty((0, smoother.states), smoother.dtype))
    memory = passing.room(steps.rows)

    def back() -> float:
        passing.advance(memory, batch, steps, block)
        begin = time.perf_counter()
        totals = passing.go_back(memory, block)
        seconds = time.perf_counter() - begin
        assert (totals > 0).all()
        return seconds

    passing.advance(memory, batch, steps, block)
    forward = median_of(lambda: passing.advance(memory, batch, steps, block), times)
    back()
    return forward / (steps.ticks - 1), statistics.median(back() for _ in range(times)) / (steps.ticks - 1)


def posteriors_table(sizes: list[int], bandwidth: float) -> None:
    print("\nposteriors; the matrix once: forwards and back each read it, or a transposed one, once a step\n")
    print("| states | sequences | forwards, ms a step | back | matrix once | terms a second, forwards | back |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for size in sizes:
        smoother = GpuSmoother(random_model(size), np.float32, None)
        for number in (1, 2, 4, 8, 64, 256):
            both = smooth_seconds(smoother, random_batch(number, 100 if number <= 8 else 12))
            rates = " | ".join(f"{number * size**2 / seconds / 1e12:.2f} T" for seconds in both)
            cells = " | ".join(f"{1e3 * seconds:.4f}" for seconds in (*both, size * size * 4 / bandwidth))
            print(f"| {size:,} | {number} | {cells} | {rates} |", flush=True)
        del smoother


def budget_table() -> None:
    print("\na trellis in blocks\n")
    print("| states | sequences | steps | trellis GiB | allowed MiB | blocks | seconds | same paths |")
    print("|---:|---:|---:|---:|---:|---|---:|---|")
    for size, sequences, steps in ((6000, 1, 20_000), (1000, 1, 500_000)):
        model, batch = random_model(size), random_batch(sequences, steps)
        machine, whole = GpuDecoder(model, np.float32), None
        total = steps * machine.row_bytes
        for here, host in ((total, 0), (total // 8, total), (max(total // 30, 1 << 26), 0)):
            path = budget_row(machine, batch, TrellisMemory(here, host))
            assert whole is None or np.array_equal(path, whole)
            whole = path
            print(" yes |", flush=True)


def larger_than_the_device() -> None:
    model, batch = random_model(6000), random_batch(512, 7000)
    machine = GpuDecoder(model, np.float32)
    path = budget_row(machine, batch, TrellisMemory(40 << 30)).reshape(7000, 512)
    for n in (0, 511):
        alone = SequenceBatch(np.array([0, 7000]), batch.symbols[7000 * n : 7000 * (n + 1)])
        assert np.array_equal(decode(machine, alone, all_of(alone), FAR, Path()), path[:, n])
    print(" yes, two of them |", flush=True)


def budget_row(machine: GpuDecoder, batch: SequenceBatch, room: TrellisMemory) -> Any:
    steps = all_of(batch)
    begin = time.perf_counter()
    path = decode(machine, batch, steps, room, Path())
    seconds = time.perf_counter() - begin
    blocks = plan_blocks(steps.starts, machine.row_bytes, room)
    cells = f"{room.here / 2**20:,.0f} | {len(blocks)}, {blocks[0].place} | {seconds:.2f} |"
    total = steps.rows * machine.row_bytes / 2**30
    print(f"| {machine.states:,} | {len(batch)} | {steps.ticks:,} | {total:.2f} | {cells}", end="", flush=True)
    return path


def main(sizes: list[int], parts: list[str]) -> None:
    bandwidth, peak = ceilings()
    print(f"read: {bandwidth / 1e12:.2f} TB/s; additions with maxima: {peak / 1e12:.2f} T/s")
    if "states" in parts:
        states_table(sizes, bandwidth)
    if "many" in parts:
        many_table(peak)
    if "posteriors" in parts:
        posteriors_table([size for size in sizes if size % 1000 == 0 and size != 5000], bandwidth)
    if "length" in parts:
        length_table()
    if "budget" in parts:
        budget_table()
    if "larger" in parts:
        larger_than_the_device()
