"""`python tests/routes record [FILE]` and `python tests/routes compare [FILE]`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

# This folder's modules belong to the package; those beside it are what the tests share.
sys.path[0] = str(Path(__file__).parents[1])

from routes.record import RECORD, differences, routes, write  # noqa: E402


def main() -> int:
    """Record all choices, or print those that differ from a record; return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python tests/routes", description=__doc__)
    parser.add_argument("what", nargs="?", choices=["record", "compare"], default="compare")
    parser.add_argument("file", nargs="?", type=Path, default=RECORD, help="that of the project if not given")
    parser.add_argument("--networks", default="*", metavar="PATTERN", help="only networks with such names")
    asked = parser.parse_args()
    # Whether code is compiled would say who answers rows.
    os.environ["JUNCTOR_CACHE"] = "off"
    found = routes(asked.networks)
    if asked.what == "record":
        write(found, asked.file)
        print(f"{len(found)} batches")
        return 0
    told = differences(found, asked.file, asked.networks)
    print(*told, f"{len(found)} batches, {len(told)} of them differ", sep="\n")
    return int(bool(told))


if __name__ == "__main__":
    sys.exit(main())
