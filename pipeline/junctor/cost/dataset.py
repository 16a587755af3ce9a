"""The dataset: measured plans with their features and seconds, as Parquet files, shipped or of this machine.

A file is of one device. The package has some; `junctor tune` writes others into the user's cache directory, which go
first.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from junctor.cost.features.plans import PLAN_WORK
from junctor.cost.features.registry import BACKENDS
from junctor.cost.figures import shipped, shipped_devices
from junctor.runtime.files import written_atomically
from junctor.runtime.machine import measured_files

Floats = npt.NDArray[np.float64]

FORMAT_VERSION = 1
# Counts and seconds below it can be squared and added up.
MOST = 1e60
logger = logging.getLogger("junctor")


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement: a plan on `rows` cases, its features in the order of the registry, and seconds.

    backend: its name in the registry.
    network, label: what was measured, for people; rows of a network are held out together.
    rows: cases.
    seconds: of all of them.
    work, plan, tree: counts, as `FeatureSet` names them; those of a tree are of one row.
    """

    backend: str
    network: str
    label: str
    rows: int
    seconds: float
    work: tuple[float, ...]
    plan: tuple[float, ...]
    tree: tuple[float, float]


@dataclass(frozen=True, slots=True)
class MeasuredDevice:
    """A measured device; figures: numbers by which devices are compared, of a CPU the bytes of its last cache."""

    name: str
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def is_gpu(self) -> bool:
        """True for a GPU: those have multiprocessors."""
        return "multiprocessors" in self.figures


def write(device: MeasuredDevice, date: str, rows: Sequence[Measured], path: Path) -> None:
    """Write measurements of a device, whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {name: [getattr(row, name) for row in rows] for name in Measured.__slots__}
    facts = {
        "format_version": FORMAT_VERSION,
        "date": date,
        "device": asdict(device),
        "counts": _counts({row.backend for row in rows}),
    }
    table = pa.table(columns).replace_schema_metadata({"junctor": json.dumps(facts)})
    with written_atomically(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def device_of(path: Path) -> MeasuredDevice:
    """Return the device of a file; raises ValueError where it has no measurements, or other features."""
    return _facts(path)[0]


def backends_of(path: Path) -> frozenset[str]:
    """Return the backends of a file; raises ValueError as `device_of`."""
    return _facts(path)[1]


def _facts(path: Path) -> tuple[MeasuredDevice, frozenset[str]]:
    import pyarrow.parquet as pq

    try:
        facts = json.loads((pq.read_schema(path).metadata or {})[b"junctor"])
        version, counts, device = facts["format_version"], facts["counts"], MeasuredDevice(**facts["device"])
        backends = frozenset(counts.keys() - {"plan"})
        figures = device.figures.values()
        if not isinstance(device.name, str) or not all(_is_number(figure) and figure > 0 for figure in figures):
            raise ValueError("not a device")
    except Exception as error:
        # Of any type: Arrow has no common one.
        raise ValueError(f"{path}: not measurements ({type(error).__name__}: {error})") from error
    if version != FORMAT_VERSION or counts != _counts(backends):
        raise ValueError(f"{path}: measurements of another version of junctor")
    return device, backends


def read(path: Path, backend: str | None = None) -> list[Measured]:
    """Return the measurements of a file, or those of a backend; raises ValueError as `device_of`."""
    import pyarrow.parquet as pq

    _facts(path)
    try:
        # Neither `read_table` nor `pa.array`: both load pandas where it is installed, for a quarter of a second.
        with pq.ParquetFile(path) as file:
            table, vectors = file.read(), ("work", "plan", "tree")
        table.validate(full=True)
        wanted = [i for i, name in enumerate(table["backend"].to_pylist()) if backend in (None, name)] or [0]
        # Nor `take`: Arrow loads all of its functions for one, a twentieth of a second.
        rows = table.slice(wanted[0], wanted[-1] + 1 - wanted[0]).to_pylist()
        rows = [row for row in rows if backend in (None, row["backend"])]
        return [Measured(**{**row, **{name: tuple(row[name]) for name in vectors}}) for row in rows]
    except Exception as error:
        # Of any type: Arrow has no common one.
        raise ValueError(f"{path}: damaged ({type(error).__name__}: {error})") from error


def check(path: Path) -> MeasuredDevice:
    """Return the device of a file, all of whose numbers can be fitted; raises ValueError for any other."""
    device, backends = _facts(path)
    rows = read(path)
    for row in rows:
        if not isinstance(row.backend, str):
            raise ValueError(f"{path}: damaged (a measurement of {row.backend!r})")
        lengths = len(BACKENDS[row.backend].work) if row.backend in BACKENDS else -1, len(PLAN_WORK), 2
        vectors = row.work, row.plan, row.tree
        if not isinstance(row.network, str) or tuple(map(len, vectors)) != lengths or row.backend not in backends:
            raise ValueError(f"{path}: damaged (a measurement of {row.backend!r} on {row.network!r})")
        if not all(_is_number(number) for number in chain((row.rows, row.seconds), *vectors)) or row.seconds <= 0:
            raise ValueError(f"{path}: damaged (found numbers that cannot have been measured)")
    if backends != {row.backend for row in rows}:
        raise ValueError(f"{path}: damaged (backends without measurements)")
    return device


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < MOST


def _counts(backends: Iterable[str]) -> dict[str, list[str]]:
    counts = {name: list(BACKENDS[name].work) if name in BACKENDS else [] for name in sorted(backends)}
    return counts | {"plan": list(PLAN_WORK)}


def shipped_files() -> Iterator[tuple[MeasuredDevice, Path]]:
    """Yield the measurements of the package; no file of them is read."""
    for entry in shipped_devices():
        yield MeasuredDevice(entry["name"], entry["figures"]), shipped() / entry["file"]


def own_files() -> Iterator[tuple[MeasuredDevice, Path]]:
    """Yield the user's own measurements; a file that cannot be read is named and left out."""
    for path in measured_files():
        try:
            yield check(path), path
        except ValueError as error:
            logger.warning("%s: run junctor tune again", error)


def file_name(device: MeasuredDevice) -> str:
    """Return the name of a device's file."""
    return "-".join("".join(c if c.isalnum() else " " for c in device.name.lower()).split()) + ".parquet"
