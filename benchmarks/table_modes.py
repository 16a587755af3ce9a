"""Measurements beside the table: single calls, threads, rows of probability 0, long networks. Called by `tables.py`.

Each function prints lines as they come, a table and targets, and returns the exit status.
"""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import in_a_child
from table_cells import TOLERANCE, measured
from table_children import batch_times, call_times, find_impossible, long_times
from table_report import Record, markdown, number, shown, target
from table_run import Measurement

Found = dict[str, Any]
# Patterns that a process has seen before, and that it has not; ways to ask.
CALLS = {"seen": "fixed", "unseen": "varied"}
WAYS = ("posteriors", "Model")
# Of a fresh interpreter.
FRESH = ("imports", "first call", "second call")
# Kinds with impossible rows.
NOISY = ("noisy", "random")
# Seconds of a batch on one thread, and rows that such a batch has at most.
BATCH_SECONDS, MOST_ROWS = 20.0, 400_000
LENGTHS = (1000, 10_000, 100_000, 1_000_000)
# Variables times rows of a generated network at most.
MOST_CELLS = 10**8
# Most seconds of long networks by name and rows.
LONG_TARGETS = {("chain:100000", 1): 2.0, ("chain:100000", 1000): 20.0, ("relational_2", 1): 2.0}


def calls(run: Measurement) -> int:
    """Print milliseconds of calls of one row in a warm process, ours and pyAgrum's."""
    lines, shares, wrong = [], [], 0
    for path in run.options.networks:
        fresh = run.note("first", {"network": path.name.split(".")[0]} | first_call(str(path)))
        for pattern, kind in CALLS.items():
            ((_, file),) = run.evidence(path, [kind], 2000)
            truth = run.peer(path, kind, file)
            found: Found = {"network": fresh["network"], "kind": kind, "rows": 10**6}
            asked_for = (str(path), file, run.options.seconds / 12, truth)
            *_, times = in_a_child(call_times, *asked_for, silence=10 * run.options.seconds)
            found |= times
            run.note("calls", found)
            peer, best = Record(run.record).peer_ms(found), min(found[way] for way in WAYS if way in found)
            apart = found.get("posterior_difference", math.nan)
            wrong += apart > TOLERANCE["double"]
            shares.append((best / peer, best, fresh["network"], pattern))
            words = [number(found.get(key, math.nan)) for way in WAYS for key in (f"{way}, first", way)]
            words = [fresh["network"], pattern, number(peer), *words, number(peer / best), f"{apart:.0e}"]
            lines.append([*words, *(f"{fresh[key]:.2f}" for key in FRESH)])
            print(*lines[-1], flush=True)
    heads = ["network", "pattern", "pyAgrum, ms a call", "`posteriors`, first", "others", "`Model`, first", "others"]
    heads += ["×", "difference", *(f"fresh process: {key}, s" for key in FRESH)]
    print("\n" + markdown(heads, lines, 2) + "\n")
    known = [share for share in shares if not math.isnan(share[0])]
    if known:
        share, _, *name = max(known)
        print(target(share <= 1, "calls of one row at most pyAgrum's time", f"{share:.3g} ({', '.join(name)})"))
    for _, best, network, pattern in shares:
        if network == "asia":
            print(target(best < 0.3, f"asia, {pattern}: a call under 0.3 ms", number(best)))
    print(target(not wrong, "answers agree with pyAgrum's", f"{wrong} batches of calls differ"))
    return 1 if wrong else 0


def first_call(path: str) -> Found:
    """Return seconds of imports with the reading of a network, and of the first two calls, in a fresh interpreter."""
    code = (
        "import sys, time; times = [time.perf_counter()]\n"
        "import junctor; network = junctor.read_network(sys.argv[1]); times.append(time.perf_counter())\n"
        "name = network.variables[0].name; evidence = [{name: network.variables[0].states[0]}]\n"
        "for _ in range(2): junctor.posteriors(network, evidence); times.append(time.perf_counter())\n"
        "print(*(after - before for before, after in zip(times, times[1:])))"
    )
    done = subprocess.run([sys.executable, "-c", code, path], check=True, capture_output=True, text=True)
    return dict(zip(FRESH, map(float, done.stdout.split()), strict=True))


def scaling(run: Measurement) -> int:
    """Print how much faster calls with tables that take about 20 s on one thread are on more."""
    threads = run.options.threads
    lines, found = [], []
    for path, precision in itertools.product(run.options.networks, run.options.precision):
        for kind in run.options.kinds:
            rows = batch_rows(run, path, kind, precision)
            ((_, file),) = run.evidence(path, [kind], rows)
            asked = run.cell(path, file, kind, rows, precision)
            cells = []
            for count in threads:
                *_, times = in_a_child(batch_times, replace(asked, threads=count), silence=60 * BATCH_SECONDS)
                cells.append(run.note("scaling", asked.name | {"threads": count} | times))
            ratios = [cells[0]["seconds"] / cell["seconds"] for cell in cells]
            name = f"{asked.network}, {kind}, {precision}"
            # Rows of small networks that take so long are more than memory holds.
            if cells[0]["seconds"] > BATCH_SECONDS / 2:
                found += [(ratio, count, name) for ratio, count in zip(ratios, threads, strict=True)]
            lines.append(
                [asked.network, kind, precision, f"{rows:,}", f"{cells[0]['seconds']:.1f}", *map(number, ratios)]
            )
            print(*lines[-1], flush=True)
    heads = ["network", "kind", "precision", "rows", f"seconds, {threads[0]}", *(f"× on {count}" for count in threads)]
    print("\n" + markdown(heads, lines, 3) + "\n")
    for count, least in ((16, 10), (64, 30)):
        known = [each for each in found if each[1] == count]
        if known and threads[0] == 1:
            ratio, _, name = min(known)
            print(target(ratio >= least, f"{count} threads at least {least} x one", f"{ratio:.3g} ({name})"))
    return 0


def batch_rows(run: Measurement, path: Path, kind: str, precision: str) -> int:
    """Return how many rows take one thread about 20 s, judged by batches that grow."""
    rows = 2000
    while True:
        ((_, file),) = run.evidence(path, [kind], rows)
        found = measured(replace(run.cell(path, file, kind, rows, precision), threads=1))
        if found["over"] or rows == MOST_ROWS or found["seconds"] > BATCH_SECONDS / 2:
            return rows
        # Planning is a part that does not grow: the first guesses are too low, and none is too high.
        rows = min(MOST_ROWS, int(rows * BATCH_SECONDS / found["seconds"]))


def impossible(run: Measurement) -> int:
    """Print the time of rows of probability 0 in parts of that of as many others, no two of them equal."""
    lines, worst, wrong = [], [], 0
    rows = max(run.options.rows)
    for path in run.options.networks:
        files = dict(run.evidence(path, ["fixed", *NOISY], 4 * rows))
        for kind in (kind for kind in NOISY if kind in run.options.kinds):
            output, others, seconds = run.folder / "zero.npy", run.folder / "others.npy", run.options.seconds
            asked_for = (str(path), files[kind], files["fixed"], seconds, rows, output, others)
            *_, found = in_a_child(find_impossible, *asked_for, silence=10 * seconds)
            wrong += found["other_status"]
            count = found["rows"]
            if not count:
                continue
            for precision in run.options.precision:
                asked = run.cell(path, output, kind, count, precision)
                cells = [measured(asked), measured(replace(asked, evidence=others))]
                run.note("impossible", {"impossible": cells[0], "possible": cells[1]} | found)
                worst.append((cells[0]["ms"] / cells[1]["ms"], f"{asked.network}, {kind}, {precision}"))
                lines.append([asked.network, kind, precision, f"{count:,}", *map(shown, cells), number(worst[-1][0])])
                print(*lines[-1], flush=True)
    heads = ["network", "kind", "precision", "rows", "impossible, ms a row", "possible", "ratio"]
    print("\n" + markdown(heads, lines, 3) + "\n")
    if worst:
        ratio, name = max(worst)
        print(target(ratio <= 1.5, "impossible rows at most 1.5 x the time of possible ones", f"{ratio:.3g} ({name})"))
    print(target(not wrong, "rows are impossible where they are in log space", f"{wrong} differ"))
    return 1 if wrong else 0


def long(run: Measurement) -> int:
    """Print seconds and memory of long networks, generated ones and the files given."""
    options, lines, ends = run.options, [], []
    generated = itertools.product(("chain", "tree"), options.lengths, (1, 1000))
    cases = [(f"{shape}:{length}", rows) for shape, length, rows in generated if length * rows <= MOST_CELLS]
    for name, rows in [*cases, *((str(path), 1) for path in options.networks)]:
        found: Found = {"network": Path(name).name.split(".")[0], "rows": rows}
        try:
            for said in in_a_child(long_times, name, rows, options.threads[0], silence=options.seconds):
                found |= said
        except (TimeoutError, RuntimeError) as error:
            found["error"] = str(error).strip().splitlines()[-1]
        run.note("long", found)
        seconds = found.get("seconds", math.inf)
        words = [found["network"], f"{found.get('variables', 0):,}", f"{rows:,}", number(found.get("made", math.nan))]
        words.append(number(seconds) if "seconds" in found else f"over {options.seconds:.0f}")
        words += [f"{found.get('bytes', 0) >> 20:,}", f"{found.get('log', math.nan):.6f}"]
        lines.append([*words, f"{found.get('log_difference', math.nan):.0e}"])
        print(*lines[-1], found.get("error", ""), flush=True)
        if most := LONG_TARGETS.get((found["network"], rows)):
            ends.append(target(seconds <= most, f"{found['network']}, {rows:,} rows: {most:.0f} s", number(seconds)))
    heads = ["network", "variables", "rows", "made or read, s", "answered, s", "memory, MiB", "log P(e)", "difference"]
    print("\n" + markdown(heads, lines) + "\n", *ends, sep="\n")
    wrong = [line for line in lines if line[-1] != "nan" and float(line[-1]) > TOLERANCE["double"]]
    print(target(not wrong, "log P(e) of chains is that of steps in NumPy", f"{len(wrong)} differ"))
    return 1 if wrong else 0
