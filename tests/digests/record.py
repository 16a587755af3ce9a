"""Records of digests: on what platform they were made, and how two of them are compared."""

from __future__ import annotations

import json
import math
import platform
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from digests.outputs import Digest, distance

RECORD = Path(__file__).parent / "record.json"
Digests = Mapping[str, Digest]
# What the last bits of numbers depend on, beside the CPU.
PACKAGES = ("numpy", "numba", "llvmlite", "pyarrow")


@cache
def here() -> dict[str, Any]:
    """Return what the last bits of floating-point numbers depend on."""
    from llvmlite import binding

    # Private to NumPy: what it says in public are levels such as AVX512_ICL, not single features.
    from numpy._core._multiarray_umath import __cpu_features__ as features

    return {
        "machine": platform.machine(),
        "cpu": binding.get_host_cpu_name(),
        "cpu_features": binding.get_host_cpu_features().flatten(),
        "numpy_features": sorted(name for name, there in features.items() if there),
        "c_library": " ".join(platform.libc_ver()),
        # Of the kernels that stand in for those of a GPU.
        "compiler": _compiler(),
        **{name: version(name) for name in PACKAGES},
    }


def _compiler() -> str:
    if shutil.which("g++") is None:
        return "none"
    return subprocess.run(["g++", "-dumpfullversion"], capture_output=True, text=True, check=True).stdout.strip()


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a job gives beside what was recorded: outputs that differ, each with its largest difference.

    by_bytes: whether bytes had to be equal; else texts and integers had to be, and numbers close. apart: the largest
    difference of numbers that have other bytes.
    """

    differing: dict[str, float]
    by_bytes: bool
    apart: float

    @property
    def equal(self) -> bool:
        """Whether nothing has changed."""
        return not self.differing

    def __str__(self) -> str:
        how = "bytes" if self.by_bytes else "numbers within a tolerance, for the record is of another platform"
        each = ", ".join(f"{name} ({apart(by)})" for name, by in self.differing.items())
        return f"compared {how}; differing: {each or 'nothing'}"


def apart(by: float) -> str:
    return "not the same" if math.isinf(by) else f"{by:.1e}"


def compare(found: Digests, recorded: Digests, tolerance: float, by_bytes: bool) -> Comparison:
    """Compare what a job gives with what was recorded; tolerance: of numbers, where bytes need not be equal."""
    apart = {name: _difference(found.get(name), recorded.get(name)) for name in {**recorded, **found}}
    differing = {name: by for name, by in apart.items() if by is not None and (by_bytes or by > tolerance)}
    return Comparison(differing, by_bytes, max((by for by in apart.values() if by is not None), default=0.0))


def apart_by(one: Digest, other: Digest) -> float:
    """Return the largest difference of numbers of two outputs, infinite where anything else differs."""
    found = _difference(one, other)
    return 0.0 if found is None else found


def _difference(one: Digest | None, other: Digest | None) -> float | None:
    """Return the largest difference of numbers, infinite where anything else differs, None for equal bytes."""
    if one is None or other is None:
        return math.inf
    if one["bytes"] == other["bytes"]:
        return None
    if one.get("exact") is None or one.get("exact") != other.get("exact"):
        return math.inf
    return distance(one["numbers"], other["numbers"])


def read(path: Path = RECORD) -> dict[str, Any]:
    """Return a record: the platform, and the digests of each job."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def write(path: Path, jobs: Mapping[str, Digests]) -> None:
    """Write a record of this platform, jobs in the order of their names, a line for each output."""
    lines = ["{", f'"platform": {json.dumps(here(), indent=1)},', '"jobs": {']
    for number, name in enumerate(sorted(jobs)):
        outputs = [f" {json.dumps(output)}: {json.dumps(digest)}" for output, digest in jobs[name].items()]
        lines += [f"{json.dumps(name)}: {{", ",\n".join(outputs), "}," if number + 1 < len(jobs) else "}"]
    path.write_text("\n".join([*lines, "}", "}"]) + "\n")
