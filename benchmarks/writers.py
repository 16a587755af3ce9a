"""Speed and size of files of answers: formats, layouts and compressions, on one thread and on several.

    uv run python benchmarks/writers.py NETWORK.bif [--rows 8192] [--precision single] [--threads 1 2] [--repeats 5]

Answers a table of evidence of one pattern, a fifth of the variables observed, and writes it as `junctor run` does: for
each number of threads as many files at a time. Prints gigabytes of posteriors a second, by the CPU seconds of one
thread and by the clock for all threads (best of the repeats), and the size of a file beside the posteriors in memory.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any, get_args

import junctor
import pyarrow as pa
from junctor import generate
from junctor.formats import read_network
from junctor.model.options import AnswerFiles, Compression, Layout, OutputFormat
from junctor.runs.answer_files import AnswerWriter


def answers(network: str, rows: int, precision: Any) -> pa.Table:
    model = read_network(network)
    batches = list(generate.evidence_batches(model, rows, observed=0.2, pattern="fixed", seed=0))
    return junctor.posteriors(model, pa.Table.from_batches(batches), precision=precision, device="cpu").combine_chunks()


def posterior_bytes(table: pa.Table) -> int:
    lists = [column for column in table.columns if pa.types.is_fixed_size_list(column.type)]
    return sum(len(column) * column.type.list_size * column.type.value_type.bit_width // 8 for column in lists)


def measure(table: pa.Table, files: AnswerFiles, threads: Sequence[int], repeats: int, folder: Path) -> list[float]:
    """Return the CPU seconds of a file, the seconds by the clock for each number of threads, and the bytes."""
    paths = [folder / f"part-{number}.{files.format}" for number in range(max(threads))]
    busy, clock = [], {count: [] for count in threads}
    for _ in range(repeats):
        started = time.process_time()
        AnswerWriter(files).write(table, paths[0])
        busy.append(time.process_time() - started)
        for count in threads:
            with ThreadPoolExecutor(count) as pool:
                started = time.perf_counter()
                list(pool.map(lambda path: AnswerWriter(files).write(table, path), paths[:count]))
                clock[count].append(time.perf_counter() - started)
    return [min(busy), *(min(clock[count]) / count for count in threads), paths[0].stat().st_size]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network")
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--precision", choices=("double", "single"), default="single")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    table = answers(options.network, options.rows, options.precision)
    size = posterior_bytes(table) / 1e9
    heads = ["format", "layout", "compression", "GB/s a CPU second", *(f"GB/s, {n} threads" for n in options.threads)]
    print(" | ".join([*heads, "MB", "of memory"]) + "\n" + "---|" * (len(heads) + 1) + "---")
    with tempfile.TemporaryDirectory() as folder:
        for way in product(get_args(OutputFormat), get_args(Layout), get_args(Compression)):
            *seconds, length = measure(table, AnswerFiles(*way), options.threads, options.repeats, Path(folder))
            rates = [f"{size / each:.2f}" for each in seconds]
            print(" | ".join([*way, *rates, f"{length / 1e6:,.1f}", f"{length / size / 1e9:.0%}"]), flush=True)


if __name__ == "__main__":
    main()
