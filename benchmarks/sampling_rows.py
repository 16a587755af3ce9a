"""EPIS-BN's messages, and tables of many rows with few samples each, on the CPU and a GPU.

    uv run python benchmarks/sampling_rows.py messages cases [--device gpu]
    uv run python benchmarks/sampling_rows.py rows cases [--device gpu] [--samples 10000] [--rows 1000]
    uv run python benchmarks/sampling_rows.py host cases [--rows 1000]      Python's part of a row on a GPU

`cases` is what `benchmarks/sampling.py prepare` wrote.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch
from junctor.sampling.epis import SWEEPS, beliefs_of, epis_function
from junctor.sampling.gpu import GpuSampling
from junctor.sampling.sampler import SamplingRequest
from junctor_kernels.sampling import loopy as beliefs
from sampling import SAMPLERS, Prepared, chosen, engine_for, on_device

# Times that a batch is answered.
TIMES = 3


def messages(options: argparse.Namespace) -> None:
    """Milliseconds of messages alone and of a whole importance function: of one core, on a GPU by its events."""
    print("network | nodes | levels | entries | messages ms | GB/s | function ms")
    print("|".join(["---"] * 7))
    for each in chosen(options):
        engine = engine_for(each, "epis-bn", options)
        hard = each.cases["unlikely"][0]
        layout = engine._layout(evidence_pattern(hard))
        case, pattern = layout.case(hard, {}, True), beliefs_of(layout)
        links, own = pattern.of(case)
        tables = engine.sampled.tables.probabilities
        entries = int((case.spans[pattern.nodes].astype(np.int64) * case.nodes[pattern.nodes, 2]).sum())
        if options.device == "gpu":
            row: Any = engine.gpu.row(SamplingRequest(layout, case, "epis-bn", (), False, beliefs=pattern))
            alone = on_device(row, lambda row=row, pattern=pattern: row.tell(pattern), 9)
            whole = on_device(row, lambda row=row, pattern=pattern: row.believe(pattern), 9)
        else:
            alone = median(lambda links=links, own=own, t=tables: beliefs.propagate(links, t, own, SWEEPS))
            whole = median(lambda e=engine, p=pattern, c=case: epis_function(e.sampled, p, c, False))
        # A pass down and a pass up over every table.
        rate = 8 * entries * 2 * SWEEPS / alone / 1e6
        levels = len(links.levels) - 2
        print(f"{each.name} | {len(pattern.nodes)} | {levels} | {entries:,} | {alone:.3f} | {rate:.1f} | {whole:.3f}")


def evidence_pattern(hard: dict[int, int]) -> Any:
    from junctor.sampling.rows import Evidence

    return Evidence(frozenset(hard), frozenset())


def median(work: Callable[[], Any], repeats: int = 9) -> float:
    work()
    taken = []
    for _ in range(repeats):
        # Of this process, whatever else the machine does.
        start = time.process_time()
        work()
        taken.append(1e3 * (time.process_time() - start))
    return statistics.median(taken)


def rows(options: argparse.Namespace) -> None:
    """Rows a second of whole batches, medians."""
    print("network | sampler | samples | rows/s | ms a row")
    print("|".join(["---"] * 5))
    for each in chosen(options):
        batch = batch_of(each, options.rows)
        for sampler in options.samplers:
            engine = engine_for(each, sampler, options, samples=options.samples, stages="all")
            seconds: list[float] = []
            for _ in range(TIMES + 1):
                start = time.perf_counter()
                engine.answer(batch)
                seconds.append(time.perf_counter() - start)
            rate = options.rows / statistics.median(seconds[1:])
            print(f"{each.name} | {sampler} | {options.samples:,} | {rate:,.0f} | {1e3 / rate:.2f}", flush=True)


def host(options: argparse.Namespace) -> None:
    """Milliseconds of a core that a row takes in Python, on a device that does nothing."""
    options.device = "gpu"
    print("network | sampler | ms a row")
    print("---|---|---")
    for each in chosen(options):
        batch = batch_of(each, options.rows)
        for sampler in options.samplers:
            engine: Any = engine_for(each, sampler, options, samples=options.samples, stages="all")
            engine.__dict__["gpu"] = GpuSampling(engine.sampled, Nowhere(), engine.cpu)
            print(
                f"{each.name} | {sampler} | {median(partial(engine.answer, batch), 5) / options.rows:.3f}", flush=True
            )


class Nowhere:
    """A device whose arrays are all ones, whatever is launched; as large as an H100."""

    processors, most_shared = 132, 227 << 10

    def put(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.array(array)

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        return np.ones(shape, dtype)

    def address(self, array: npt.NDArray[Any]) -> int:
        return int(array.ctypes.data)

    def get(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.ones(array.shape, array.dtype)

    def nothing(self, *_: Any, **__: Any) -> None: ...

    copy = clear = launch = propagate = nothing


def batch_of(each: Prepared, rows: int) -> EvidenceBatch:
    """Return the likely cases again and again: as many patterns as cases."""
    cases = [each.cases["likely"][row % len(each.cases["likely"])] for row in range(rows)]
    return EvidenceBatch(
        rows, {v: np.array([case.get(v, UNOBSERVED) for case in cases], np.int32) for v in sorted(set().union(*cases))}
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("messages", "rows", "host"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--networks", nargs="+", default=[])
    parser.add_argument("--samplers", nargs="+", default=list(SAMPLERS), choices=SAMPLERS)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=1_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    {"messages": messages, "rows": rows, "host": host}[options.action](options)


if __name__ == "__main__":
    main()
