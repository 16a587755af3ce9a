"""Tables of evidence as users have them beside pyAgrum on the same rows: kinds x networks x precisions x rows.

    uv run --with pyagrum==3.3.1 python benchmarks/tables.py FOLDER_OR_NETWORK ... [--kinds missing ...] [--rows 2000]

All posteriors of all variables, all costs included: each cell has a new engine in a process of its own. Only imports
and the loading of compiled code are aside, and printed. pyAgrum answers the first of the same rows, one thread, the
best of its two exact engines with evidence in place or fresh; answers are compared (exit status 1 where they differ).

Kinds, a fifth of the variables observed: `fixed` (the same in every row), `missing` (5 % of these cells empty), `holes`
(30 %), `varied` (every row its own set), `noisy` (5 % of the cells of `fixed` set to a random state), `random` (all).

With `--query mpe` explanations instead, without pyAgrum, which has none.

Other measurements instead of the table:

    --calls              one row a call in a warm process, patterns seen before and not
    --threads 1 2 4 16   calls with tables that take about 20 s on one thread, on more
    --impossible         rows of probability 0 against others
    --long               chains and trees of up to a million variables, and UAI files with their evidence, one row
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import tempfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import table_modes
from common import network_files
from junctor.runtime.machine import usable_cores
from table_cells import KINDS, TOLERANCE, measured
from table_report import Record, comparison, disagrees, number, shown, text
from table_run import Measurement

# Of a folder that has them; else all of its networks.
NETWORKS = "asia alarm hailfinder win95pts hepar2 andes pigs water mildew barley diabetes munin1 munin2 munin3 munin4"
NETWORKS += " munin link pathfinder"
OURS = Path(__file__).parent.parent / "data"
ROWS = (20, 2000, 200_000)
# Rows that are made at least: pyAgrum's mean is over more than a few.
LEAST_ROWS = 1000


def fill_table(run: Measurement) -> None:
    """Measure all cells, and print each."""
    options = run.options
    for path in options.networks:
        for kind, file in run.evidence(path, options.kinds, max(LEAST_ROWS, *options.rows)):
            truth = run.peer(path, kind, file)
            for rows, precision, device in itertools.product(options.rows, options.precision, options.device):
                asked = replace(run.cell(path, file, kind, rows, precision, truth), device=device)
                if any(asked.name.items() <= each.items() for each in run.record["cells"]):
                    continue
                cell = run.note("cells", measured(asked))
                record = Record(run.record)
                words = [cell["network"], kind, f"{rows:,}", precision, device, shown(cell), "ms,"]
                words += ["pyAgrum", number(record.peer_ms(cell)), "ms", f"(loading {cell['loading']:.1f} s)"]
                print(*words, cell.get("error", ""), *(["**DIFFERS**"] * disagrees(cell)), flush=True)


def print_table(run: Measurement) -> int:
    """Print tables, summaries, targets and the comparison; 1 where answers differ or cells failed."""
    options, record = run.options, Record(run.record, run.options.clock)
    loading = [cell["loading"] for cell in record.cells if not math.isnan(cell["loading"])]
    print(f"\n{text(record)}\n")
    print(f"Imports and loading of compiled code, in no figure: {min(loading, default=math.nan):.1f} s a process.")
    if options.compare:
        print("\n" + comparison(record, Record(json.loads(options.compare.read_text()), options.clock)))
    wrong = [cell for cell in record.cells if disagrees(cell) or "error" in cell]
    for cell in wrong:
        print("**WRONG**", json.dumps(cell), file=sys.stderr)
    return 1 if wrong else 0


def main() -> int:
    """Run one of the measurements."""
    options = parsed()
    with tempfile.TemporaryDirectory() as folder:
        run = Measurement(options, Path(folder))
        if options.long:
            return table_modes.long(run)
        if options.calls:
            return table_modes.calls(run)
        if options.impossible:
            return table_modes.impossible(run)
        if len(options.threads) > 1:
            return table_modes.scaling(run)
        fill_table(run)
        return print_table(run)


def parsed() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("networks", nargs="*", type=Path, help="network files, or folders of BIF files (default: the project's)")
    add("--kinds", nargs="+", choices=KINDS, default=KINDS)
    add("--rows", nargs="+", type=int, default=ROWS)
    add("--precision", nargs="*", choices=tuple(TOLERANCE), default=tuple(TOLERANCE), help="none: pyAgrum alone")
    add("--query", choices=("posteriors", "mpe"), default="posteriors", help="mpe: explanations")
    add("--calls", action="store_true", help="measure single calls instead")
    add("--impossible", action="store_true", help="measure rows of probability 0 against others instead")
    add("--long", action="store_true", help="measure long networks instead, and the UAI files given")
    add("--lengths", nargs="+", type=int, default=table_modes.LENGTHS, help="of generated chains and trees")
    add("--device", nargs="+", choices=("cpu", "gpu"), default=("cpu",))
    add("--threads", nargs="+", type=int, default=(usable_cores(),), help="several: how we scale with them")
    add("--seconds", type=float, default=60.0, help="most for a cell, or for one piece of its rows")
    add("--peer-seconds", type=float, default=5.0, help="for pyAgrum on each network and kind, 0 without it")
    add("--peer", type=Path, help="folder for times and answers of pyAgrum, which are taken from there")
    add("--clock", choices=("wall", "cpu"), default="wall", help="of the tables; cpu: seconds of all threads together")
    add("--seed", type=int, default=1)
    add("--json", type=Path, help="where the record goes")
    add("--resume", action="store_true", help="leave out cells that --json has")
    add("--compare", type=Path, help="an earlier record to compare times with")
    options = parser.parse_args()
    if options.resume and not options.json:
        parser.error("--resume needs --json")
    if options.query == "mpe" or not find_spec("pyagrum"):
        options.peer_seconds = 0.0
    options.networks = chosen_files(options.networks or [OURS] * (not options.long))
    return options


def chosen_files(paths: list[Path]) -> list[Path]:
    """Return the network files: those named, and of a folder those of `NETWORKS` that it holds, or all of them."""
    files = []
    for path in paths:
        found = network_files([path])
        known = [file for name in NETWORKS.split() for file in found if file.name.split(".")[0] == name]
        files += known if path.is_dir() and len(known) > 1 else found
    return files


if __name__ == "__main__":
    raise SystemExit(main())
