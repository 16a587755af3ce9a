"""`python tests/digests record [FILE]` and `python tests/digests compare [FILE]`."""

from __future__ import annotations

import sys
from pathlib import Path

# This folder's modules belong to the package; those beside it are what the tests share.
sys.path[0] = str(Path(__file__).parents[1])

from digests.command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
