"""`python tests/fuzz [PATTERN] [--mutants N | --seconds S] [--seed N]`: read damaged files, for as long as wished."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

# This folder's modules belong to the package; those beside it are what the tests share.
sys.path[0] = str(Path(__file__).parents[1])

from fuzz.harness import fuzz  # noqa: E402


def main() -> int:
    """Print what each kind of file did, one line of JSON a kind; return 1 for a failure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pattern", nargs="?", default="*", help="kinds of files, such as 'evidence-*'")
    parser.add_argument("--mutants", type=int, default=200, help="of each kind")
    parser.add_argument("--seconds", type=float, help="for each kind, in place of a number of mutants")
    parser.add_argument("--seed", type=int, default=0, help="of the first mutant")
    parser.add_argument("--keep", type=Path, help="folder for the files of failures")
    asked = parser.parse_args()
    failed = False
    for result in fuzz(asked.pattern, asked.mutants, asked.seconds, asked.seed, asked.keep):
        failed |= bool(result["failures"])
        print(json.dumps(result), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
