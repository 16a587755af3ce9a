"""`python tests/fuzz [PATTERN] [--mutants N | --total N | --seconds S]`: read damaged files, as many as wished."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

# This folder's modules belong to the package; those beside it are what the tests share.
sys.path[0] = str(Path(__file__).parents[1])

from fuzz.harness import fuzz  # noqa: E402


def main() -> int:
    """Print what each kind of file did, one line of JSON a kind; return 1 for a failure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pattern", nargs="?", default="*", help="kinds of files, such as 'evidence-*'")
    parser.add_argument("--mutants", type=int, default=200, help="of each kind")
    parser.add_argument("--total", type=int, help="of all kinds together, in place of a number for each")
    parser.add_argument("--seconds", type=float, help="for each kind, in place of a number of mutants")
    parser.add_argument("--seed", type=int, default=0, help="of the first mutant")
    parser.add_argument("--keep", type=Path, help="folder for the files of failures")
    parser.add_argument("--processes", type=int, default=1, help="kinds that are read side by side")
    asked = parser.parse_args()
    started, mutants, failures = time.monotonic(), 0, 0
    for result in fuzz(**vars(asked)):
        mutants, failures = mutants + result["mutants"], failures + len(result["failures"])
        print(json.dumps(result), flush=True)
    seconds = time.monotonic() - started
    rate = f"{mutants / seconds:.0f} a second"
    print(f"{mutants:,} mutants, {failures} failures, {seconds:.0f} s, {rate}", file=sys.stderr)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
