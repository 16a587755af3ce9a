"""Launch parameters of our own kernels: what the model chooses on networks held out, against what else there is.

    uv run python benchmarks/launch_ours.py learn MEASURED.parquet --output prices.json     without each network in turn
    python benchmarks/launch_ours.py run cases.pickle prices.json                           on a GPU
    uv run python benchmarks/launch_ours.py planning cases.pickle                          what choosing takes, anywhere

For every plan of `costs.py prepare`: microseconds of a block with the parameters that the model chooses for each stage,
with prices learned from all other networks; by the rule that we had before; with every setting that is one for all
stages, of which the best of each plan and the one that is best for all plans together are shown; and with the setting
of each stage that is fastest when the stage runs alone.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import pickle
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import costs
import numpy as np
from common import need_gpu
from junctor.backends.gpu_items import items_of
from junctor.backends.gpu_plan import GpuBlocks
from junctor.backends.numpy import Program
from junctor.calibration.blocks import PLANNED_ROWS, CalibrationCase, KeptProgram, bring, fixed
from junctor.cost.dataset import device_of, read
from junctor.cost.features.gpu_stages import (
    FEW_SETTINGS,
    FEW_WORK,
    MANY_SETTINGS,
    MANY_WORK,
    CaseParallel,
    EntryParallel,
    LaunchTuner,
    StageWork,
    splits,
)
from junctor.cost.model import fitted_cost_model, local_cost_models
from junctor.planning.compile import compile_plan
from junctor_kernels.cpu.bytecode import ENTRIES
from junctor_kernels.tables.reference import SINGLE

# Threads that the rule wanted to have at work.
BUSY_THREADS = 1 << 18

NOT_USED: dict[bool, Any] = {True: EntryParallel(8, 1), False: CaseParallel(16, 128)}


def learn(path: Path, output: Path) -> None:
    device, measured = device_of(path), read(path)
    found = {}
    for name in sorted({row.network for row in measured}):
        prices = fitted_cost_model(device, [row for row in measured if row.network != name]).coefficients
        found[name] = {backend: each.work for backend, each in prices.items()}
    output.write_text(json.dumps(found))


class PerStage(LaunchTuner):
    """The settings of a list, one stage after the other."""

    def __init__(self, settings: Sequence[Any]) -> None:
        super().__init__(np.zeros(len(FEW_WORK)), np.zeros(len(MANY_WORK)))
        object.__setattr__(self, "_left", iter(settings))

    def for_few(self, stage: StageWork, cases: int) -> Any:
        return fixed(next(self._left), NOT_USED[False]).for_few(stage, cases)

    def for_many(self, stage: StageWork, chunks: int) -> Any:
        return fixed(NOT_USED[True], next(self._left)).for_many(stage, chunks)

    _left: Iterator[Any]


class Rule(LaunchTuner):
    """What we had before: as many threads as keep a device busy, the same terms for each thread of a stage."""

    def for_few(self, stage: StageWork, cases: int) -> Any:
        work = int((stage.steps[:, ENTRIES] * stage.longest).sum()) * cases
        terms = max(8, work // BUSY_THREADS)
        threads = int((stage.steps[:, ENTRIES] * splits(stage, terms)).sum()) * cases
        return fixed(EntryParallel(terms, 1 + threads // (256 * 4096)), NOT_USED[False]).for_few(stage, cases)

    def for_many(self, stage: StageWork, chunks: int) -> Any:
        return fixed(NOT_USED[True], CaseParallel(16, 128)).for_many(stage, chunks)


def one_for_all(few: bool) -> dict[Any, LaunchTuner]:
    settings = FEW_SETTINGS if few else MANY_SETTINGS
    return {each: fixed(each, NOT_USED[False]) if few else fixed(NOT_USED[True], each) for each in settings}


def best_of_stages(program: KeptProgram, few: bool) -> LaunchTuner:
    """Return for every stage the setting with which it is fastest when it runs alone."""
    best: dict[int, tuple[float, Any]] = {}
    for setting, launching in one_for_all(few).items():
        schedule = program.scheduled(launching)
        for n, stage in enumerate(schedule.stages):
            seconds = program.block_seconds(schedule._replace(stages=[stage]))
            best[n] = min(best.get(n, (np.inf, setting)), (seconds, setting))
    return PerStage([best[n][1] for n in sorted(best)])


def compared(case: CalibrationCase, device: Any, prices: Any, few: bool, rows: int, stages: bool) -> dict[Any, float]:
    """Return the seconds of a block with every way to choose; they take turns."""
    program = KeptProgram(Program(case.plan, case.network, SINGLE), rows, device, few, {})
    bring(case, program, SINGLE)
    chosen = LaunchTuner(np.array(prices["few-single"]), np.array(prices["many-single"]))
    ways: dict[Any, LaunchTuner] = {"model": chosen, "rule": Rule(chosen.few, chosen.many), **one_for_all(few)}
    if stages:
        ways["best of each stage"] = best_of_stages(program, few)
    ready = {name: program.scheduled(way) for name, way in ways.items()}
    times: dict[Any, list[float]] = {name: [] for name in ready}
    for _ in range(3):
        for name, schedule in ready.items():
            times[name].append(program.block_seconds(schedule))
    return {name: statistics.median(each) for name, each in times.items()}


def _work(task: tuple[CalibrationCase, Any, bool, int, bool]) -> tuple[str, int, dict[Any, float] | str]:
    case, prices, few, rows, stages = task
    try:
        return f"{case.name} {case.label}", rows, compared(case, costs.opened, prices, few, rows, stages)
    except Exception as error:
        return f"{case.name} {case.label}", rows, f"{type(error).__name__}: {error}"


def run(
    cases: Sequence[CalibrationCase], prices: Any, few: bool, rows: int, processes: int, limit: float, stages: bool
) -> None:
    fork = multiprocessing.get_context("fork")
    order = sorted((case for case in cases if case.name in prices), key=lambda case: -case.plan.case_operations)
    tasks = [(case, prices[case.name], few, rows, stages) for case in order]
    found: dict[str, dict[Any, float]] = {}
    with fork.Pool(processes, costs.begin, (fork.Lock(), time.time() + limit)) as pool:
        for name, _, seconds in pool.imap_unordered(_work, tasks):
            if isinstance(seconds, str):
                print(name, seconds, flush=True)
            else:
                found[name] = seconds
    _show(found, few, rows)


def _show(found: dict[str, dict[Any, float]], few: bool, rows: int) -> None:
    settings = list(one_for_all(few))
    log = {each: statistics.mean(np.log([times[each] for times in found.values()])) for each in settings}
    single = min(settings, key=log.__getitem__)
    print(f"\n{'few' if few else 'many'}, {rows} cases, us of a block; best setting for all plans together: {single}")
    print("plan | model | rule before | best setting for all | best setting of the plan | best of each stage")
    print("|".join(["---"] * 6))
    table = []
    for name in sorted(found):
        times = found[name]
        cells = [times["model"], times["rule"], times[single], min(times[each] for each in settings)]
        table.append([*cells, times.get("best of each stage", np.nan)])
        print(f"{name} | {' | '.join(f'{1e6 * cell:.1f}' for cell in table[-1])}")
    all_times = np.array(table)
    gains = np.exp(np.log(all_times / all_times[:, :1]).mean(axis=0))
    print(f"geometric mean against the model | {' | '.join(f'{gain:.3f}' for gain in gains)}")
    worst = (all_times[:, :1] / all_times).max(axis=0)
    print(f"the model at its worst against each | {' | '.join(f'{each:.3f}' for each in worst)}")


class Timed(LaunchTuner):
    """Chooses as the model does, and knows how long that took."""

    seconds = 0.0

    def for_few(self, stage: StageWork, cases: int) -> Any:
        return self._timed(super().for_few, stage, cases)

    def for_many(self, stage: StageWork, chunks: int) -> Any:
        return self._timed(super().for_many, stage, chunks)

    def _timed(self, choose: Callable[..., Any], *arguments: Any) -> Any:
        start = time.perf_counter()
        found = choose(*arguments)
        object.__setattr__(self, "seconds", self.seconds + time.perf_counter() - start)
        return found


class Dry(GpuBlocks):
    """Blocks of a GPU that need not be here, with the seconds that choosing takes."""

    def _schedule(self, plan: Any, stages: Any) -> Any:
        known = self.speeds.launch_tuner(SINGLE)
        self.timed = Timed(known.few, known.many)
        cases, chunks = (0, self.cases // self.chunk) if self.many else (self.cases, 0)
        return items_of(plan, stages, cases, chunks, self.timed)


def planning(cases: Sequence[CalibrationCase]) -> None:
    """Print what choosing launch parameters takes beside making a plan and bringing it into the form of the GPU."""
    speeds = next(each for each in local_cost_models().devices if each.device.is_gpu)
    print("plan | planning, ms | to the form of a GPU, ms | choosing, one case, ms | share | 4,096 cases, ms | share")
    print("|".join(["---"] * 7))
    shares, chosen, all_planned = [], 0.0, 0.0
    for case in cases:
        start = time.perf_counter()
        compile_plan(case.plan.shape, case.plan.pattern, None, False, PLANNED_ROWS)
        planned = time.perf_counter() - start
        cells = []
        for rows in (1, 4096):
            start = time.perf_counter()
            blocks = Dry(Program(case.plan, case.network, SINGLE), rows, 1 << 36, 1 << 34, speeds)
            lowered = time.perf_counter() - start
            shares.append(blocks.timed.seconds / (planned + lowered - blocks.timed.seconds))
            chosen, all_planned = chosen + blocks.timed.seconds, all_planned + planned + lowered - blocks.timed.seconds
            cells.append(f"{1e3 * blocks.timed.seconds:.1f} | {shares[-1]:.1%}")
        print(f"{case.name} {case.label} | {1e3 * planned:.0f} | {1e3 * lowered:.0f} | {' | '.join(cells)}", flush=True)
    print(f"median {np.median(shares):.1%}, nine of ten below {np.quantile(shares, 0.9):.1%}, ", end="")
    print(f"of all plans together {chosen / all_planned:.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    actions = parser.add_subparsers(dest="action", required=True)
    learns = actions.add_parser("learn")
    learns.add_argument("measured", type=Path)
    learns.add_argument("--output", type=Path, required=True)
    runs = actions.add_parser("run")
    runs.add_argument("cases", type=Path)
    runs.add_argument("prices", type=Path)
    runs.add_argument("--networks", nargs="+", help="only these")
    runs.add_argument("--kinds", nargs="+", default=["cut 0.2", "entering 0.2"], help="beginnings of labels")
    runs.add_argument("--rows", type=int, default=1)
    runs.add_argument("--many", action="store_true", help="threads over cases")
    runs.add_argument("--stages", action="store_true", help="the best setting of each stage as well")
    runs.add_argument("--processes", type=int, default=12)
    runs.add_argument("--limit", type=float, default=600.0)
    times = actions.add_parser("planning")
    times.add_argument("cases", type=Path)
    options = parser.parse_args()
    if options.action == "planning":
        return planning(pickle.loads(options.cases.read_bytes()))
    if options.action == "learn":
        return learn(options.measured, options.output)
    need_gpu("launch_ours.py run")
    cases = [
        case
        for case in pickle.loads(options.cases.read_bytes())
        if any(case.label.startswith(kind) for kind in options.kinds)
        and (not options.networks or case.name in options.networks)
    ]
    prices = json.loads(options.prices.read_text())
    return run(cases, prices, not options.many, options.rows, options.processes, options.limit, options.stages)


if __name__ == "__main__":
    main()
