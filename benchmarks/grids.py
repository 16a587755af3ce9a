"""Markov random fields on grids, one case, all marginals, in log space: time by stage, CPU and GPU, with exact counts.

    python benchmarks/grids.py                                   plan and measure here; with the GPU where there is one
    python benchmarks/grids.py --plans FILE --on nothing         plan only, for a machine without Numba
    python benchmarks/grids.py --plans FILE --on gpu             measure what was planned there

Binary variables, random potentials, a likelihood on every variable: nothing is computed beforehand. Stages as in
figure 8 of Satish and Sundaram (Graphical Model Inference using GPUs): preparation (plan and tables), collect,
distribute, marginals. Counts are of entries, exactly: a *term* is an entry of a clique as a message walks through it
(the logarithm of a sum of exponentials of sums, equations 5 and 6). It takes an exponential and, as operations, an
addition for each further operand, a comparison for the largest, a subtraction and an addition; an entry of a message
takes a logarithm and an addition. Accesses are the entries of operands that terms read, and the entries written.
"""

from __future__ import annotations

import argparse
import math
import os
import pickle
import statistics
import time
from collections import Counter
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from junctor.backends.gpu import GpuProgram
from junctor.backends.numpy import EvidenceBlock, Program
from junctor.backends.plan_memory import PlanMemory
from junctor.generate import grid
from junctor.model.answers import Answers, posteriors_in
from junctor.model.errors import BudgetError
from junctor.model.network import Network
from junctor.planning.budget import Budget
from junctor.planning.compile import compile_plan
from junctor.planning.levels import stages_of
from junctor.planning.plan import Plan, Reduce
from junctor.planning.shape import Pattern, shape_of
from junctor.runtime.machine import available_memory
from junctor_kernels.tables.reference import DOUBLE, LOG, Algebra

SIZES = (8, 10, 12, 14, 16, 20, 25, 30)
ALGEBRAS = {"log": LOG, "double": DOUBLE}
# Rows that the order of a plan is searched for: seconds for the largest of these grids.
PLANNED_ROWS = 256
# From so many variables on in a clique the search is left out: a greedy order says what it needs as well.
SEARCHED_SIZE = 20
STAGES = ("collect", "distribute", "marginal")
# What a message or a total counts as.
STAGE_OF = {"collect": "collect", "product": "collect", "total": "collect", "distribute": "distribute"}
HOST_BYTES = 1 << 32

Planned = tuple[int, Network, Plan, float]


def planned(size: int, columns: int | None = None) -> Planned:
    network = grid(size, columns or size, seed=1)
    start = time.perf_counter()
    pattern = Pattern(frozenset(), frozenset(range(len(network.variables))))
    plan = compile_plan(shape_of(network), pattern, None, False, PLANNED_ROWS if size <= SEARCHED_SIZE else 1)
    return size, network, plan, time.perf_counter() - start


def block_for(network: Network) -> EvidenceBlock:
    return EvidenceBlock(1, {}, {v: np.ones((states, 1)) for v, states in enumerate(network.cardinalities)})


def stage_of(step: Reduce) -> str:
    return STAGE_OF.get(step.phase, "marginal")


def counts(plan: Plan) -> dict[str, int]:
    """Return operations and accesses of log space, as the head of this file defines them."""
    terms = operations = exponentials = logarithms = accesses = 0
    for step in plan.reductions(per_case=True):
        entries = plan.tables[step.out].entries
        walked, operands = entries * plan.shape.entries(step.eliminated), len(step.operands)
        terms += walked
        operations += walked * (operands + 2) + entries
        exponentials += walked
        logarithms += entries
        accesses += walked * operands + entries
    return {
        "terms": terms,
        "operations": operations,
        "exponentials": exponentials,
        "logarithms": logarithms,
        "accesses": accesses,
    }


class Timed(Program):
    """A program that keeps the seconds of its stages."""

    def __init__(self, *of: Any) -> None:
        self.seconds: Counter[str] = Counter()
        super().__init__(*of)

    def _reduce(self, step: Reduce, *rest: Any) -> Any:
        start = seconds(self.threads)
        value = super()._reduce(step, *rest)
        self.seconds[stage_of(step)] += seconds(self.threads) - start
        return value


def seconds(threads: int) -> float:
    """Return the time: that of a core where there is one thread, whatever else the machine does."""
    return time.process_time() if threads == 1 else time.perf_counter()


def on_cpu(case: Planned, algebra: Algebra, threads: int, repeats: int) -> list[float]:
    """Return milliseconds of the preparation, of each stage and of all propagation: medians."""
    _, network, plan, planning = case
    memory = PlanMemory(plan, 1)
    memory.fit(Budget(available_memory(), 0), available_memory(), 1, to_come=1, threads=threads)
    start = time.perf_counter()
    program = Timed(plan, network, algebra, threads)
    ready = planning + time.perf_counter() - start
    rows = []
    for _ in range(repeats + 1):
        program.seconds = Counter()
        start = seconds(threads)
        program.run(block_for(network))
        whole = seconds(threads) - start
        rows.append([*(program.seconds[stage] for stage in STAGES), whole])
    found = [1e3 * ready, *(1e3 * statistics.median(column) for column in zip(*rows[1:], strict=True))]
    return [*found, found[-1]]


class Gpu:
    """A GPU, and how long it takes for a block: every stage by itself, and the whole as one graph."""

    def __init__(self) -> None:
        from junctor_kernels.gpu.blocks import CudaBlockDevice

        self.device = CudaBlockDevice()
        self.name = self.device.name

    def milliseconds(self, start: Any, repeats: int) -> float:
        times = []
        for _ in range(repeats + 2):
            begin, end = self.device.event(timing=True), self.device.event(timing=True)
            begin.record(self.device._work)
            start()
            end.record(self.device._work)
            end.synchronize()
            times.append(1e3 * self.device.elapsed(begin, end))
        return statistics.median(times[2:])

    def measure(self, case: Planned, algebra: Algebra, repeats: int) -> tuple[list[float], float]:
        """Return milliseconds as `on_cpu` does, and the largest difference of a posterior from NumPy in log space."""
        _, network, plan, seconds = case
        start = time.perf_counter()
        program = GpuProgram(Program(plan, network, algebra), 1, self.device, HOST_BYTES)
        ready = seconds + time.perf_counter() - start
        answered, different = self.answered(program, network, plan, repeats)
        work = program._places[0].work
        whole = self.milliseconds(program._places[0].replay.start, repeats)
        # Setting arrays to zero and the like is no part of any stage.
        nothing = self.milliseconds(self.device.replay(work._replace(stages=[])).start, repeats)
        stages = Counter[str]()
        for share, stage in zip_longest(shares(plan), program.stages, fillvalue={"marginal": 1.0}):
            spent = self.milliseconds(self.device.replay(work._replace(stages=[stage])).start, repeats) - nothing
            for name, part in share.items():
                stages[name] += max(0.0, spent) * part
        return [1e3 * ready, *(stages[stage] for stage in STAGES), whole, answered], different

    def answered(self, program: GpuProgram, network: Network, plan: Plan, repeats: int) -> tuple[float, float]:
        """Return milliseconds from evidence in this process to answers in it, and the difference of those."""
        targets, sizes = tuple(range(len(network.variables))), network.cardinalities
        dtype = program._program.algebra.dtype
        memory = self.device.host(dtype.itemsize * sum(sizes)).view(dtype)
        posteriors = posteriors_in(memory, targets, sizes, 1)
        answers = Answers(targets, np.zeros(1, dtype=np.int8), np.zeros(1), posteriors, memory=memory)
        times = []
        for _ in range(repeats + 2):
            start = time.perf_counter()
            program.answer(block_for(network), np.zeros(1, dtype=np.int64), answers)
            times.append(1e3 * (time.perf_counter() - start))
        expected = Program(plan, network, LOG).run(block_for(network)).posteriors
        different = max(float(np.abs(posteriors[v] - expected[v].T).max()) for v in targets)
        return statistics.median(times[2:]), different


def shares(plan: Plan) -> list[dict[str, float]]:
    """Return for each stage of the GPU what share of its entry operations belongs to which stage of the algorithm."""
    made = stages_of(plan)
    work: list[Counter[str]] = [Counter() for _ in range(made.count)]
    for step in plan.reductions(per_case=True):
        work[made.made[step.out]][stage_of(step)] += plan.work(step)
    # Evidence goes with the messages that it begins, what is left with the posteriors.
    none = [{"collect": 1.0}, *[{"marginal": 1.0}] * (made.count - 1)]
    return [
        {name: part / each.total() for name, part in each.items()} if each else otherwise
        for each, otherwise in zip(work, none, strict=True)
    ]


def row(case: Planned, where: str, algebra: str, found: list[float], more: str = "") -> str:
    size, _, plan, _ = case
    total = counts(plan)
    largest = math.log2(max(table.entries for table in plan.tables))
    numbers = " | ".join(f"{number:.2f}" for number in found)
    rate = total["terms"] / found[-2] / 1e6
    count = f"{total['terms']:.3g} | {total['operations']:.3g} | {total['exponentials']:.3g} | {total['accesses']:.3g}"
    return f"{size} x {size} | 2^{largest:.0f} | {count} | {where} | {algebra} | {numbers} | {rate:.2f} | {more}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--plans", type=Path, help="file of plans: read where it exists, else written")
    parser.add_argument("--on", nargs="*", choices=["cpu", "gpu", "nothing"], default=["cpu", "gpu"])
    parser.add_argument("--precision", nargs="+", choices=sorted(ALGEBRAS), default=["log", "double"])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    if options.plans and options.plans.exists():
        cases = [case for case in pickle.loads(options.plans.read_bytes()) if case[0] in options.sizes]
    else:
        cases = [planned(size) for size in options.sizes]
        if options.plans:
            options.plans.parent.mkdir(parents=True, exist_ok=True)
            options.plans.write_bytes(pickle.dumps(cases))
    for case in cases:
        print(f"{case[0]} x {case[0]}: planned in {case[3]:.2f} s, {counts(case[2])}", flush=True)
    measure(cases, options)


def measure(cases: list[Planned], options: argparse.Namespace) -> None:
    print(
        "\ngrid | table | terms | operations | exponentials | accesses | on | precision | preparation ms | collect | "
        "distribute | marginals | all | with evidence and answers | 10^9 terms/s | difference"
    )
    print("|".join(["---"] * 16))
    gpu = opened() if "gpu" in options.on else None
    for case in cases:
        for name in options.precision:
            if "cpu" in options.on:
                try:
                    found = on_cpu(case, ALGEBRAS[name], options.threads, options.repeats)
                    print(row(case, f"{options.threads} cores", name, found), flush=True)
                except BudgetError as error:
                    print(f"{case[0]} x {case[0]}: {error}", flush=True)
            if gpu:
                try:
                    found, different = gpu.measure(case, ALGEBRAS[name], options.repeats)
                    print(row(case, gpu.name, name, found, f"{different:.1e}"), flush=True)
                except (MemoryError, OverflowError) as error:
                    print(f"{case[0]} x {case[0]}: {error}", flush=True)


def opened() -> Gpu | None:
    try:
        return Gpu()
    except Exception as error:
        print(f"no GPU: {error}")
        return None


if __name__ == "__main__":
    main()
