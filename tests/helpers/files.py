"""Files that tests read."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
ASIA = str(ROOT / "data" / "asia.bif")
# Benchmark networks and reference answers, which are not part of the project.
SHARED = Path(os.environ.get("BENCHMARK_NETWORKS", ROOT.parent / "shared"))
