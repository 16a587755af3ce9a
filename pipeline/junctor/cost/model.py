"""How fast devices are: prices fitted to measurements, the nearest device where one was not measured.

Prices settle choices (which patterns share a plan, few cases or many, launch parameters) that can change the last digit
of an answer. So a run that begins with measurements of the user's own keeps their prices in its directory, and goes on
with them; any other goes by those of its version of the package, whatever is measured meanwhile.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.tables.reference import Algebra

from junctor.cost.dataset import Measured, MeasuredDevice, backends_of, own_files, read, shipped_files
from junctor.cost.features.gpu_stages import FEW_WORK, MANY_WORK, LaunchTuner
from junctor.cost.fit import fit
from junctor.planning.plan import Plan

Floats = npt.NDArray[np.float64]

logger = logging.getLogger("junctor")


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Seconds of a unit of work.

    work: of a plan with its numbers. plan: of a plan alone, PLAN_WORK. row: of a pattern before it is planned, an entry
    operation and a table of the tree that the row engine makes of it, for each case.
    """

    work: tuple[float, ...]
    plan: tuple[float, ...]
    row: tuple[float, float]

    def of_work(self, counts: npt.ArrayLike) -> float:
        """Return the seconds of work with its numbers."""
        return float(np.dot(self.work, np.asarray(counts)))

    def of_plan(self, counts: Sequence[float]) -> float:
        """Return about the seconds of a plan, from PLAN_WORK; infinite where no number holds them."""
        return float(sum(price * count for price, count in zip(self.plan, counts, strict=True)))


@dataclass(frozen=True, slots=True)
class CostModel:
    """The prices of a device, by backend; those that are learned are learned when first asked for."""

    device: MeasuredDevice
    prices: Mapping[str, Coefficients]

    def launching(self, algebra: Algebra) -> LaunchTuner:
        """Return how launch parameters are chosen in a number format."""
        few, many = self.prices[f"few-{algebra.name}"], self.prices.get(f"many-{algebra.name}")
        nothing = np.zeros(len(MANY_WORK))
        return LaunchTuner(np.array(few.work[: len(FEW_WORK)]), np.array(many.work) if many else nothing)


@dataclass(frozen=True, slots=True)
class CostModels:
    """What is known of devices."""

    devices: tuple[CostModel, ...]

    def cpu(self, name: str) -> CostModel:
        """Return the speeds of a CPU, or of another one where there are none."""
        return _nearest(MeasuredDevice(name), (each for each in self.devices if not each.device.is_gpu))

    def gpu(self, device: MeasuredDevice) -> CostModel:
        """Return the speeds of a GPU, or of the one that is most like it."""
        return _nearest(device, (each for each in self.devices if each.device.is_gpu))

    def to_record(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        return {"devices": [_record(each) for each in self.devices]}


def _record(each: CostModel) -> dict[str, Any]:
    return {"device": asdict(each.device), "prices": {name: asdict(prices) for name, prices in each.prices.items()}}


def speeds_of(record: Mapping[str, Any]) -> CostModels:
    """Return the speeds that `CostModels.to_record` made a record of; raises KeyError or TypeError for another one."""

    def prices(each: Mapping[str, Any]) -> Coefficients:
        return Coefficients(tuple(each["work"]), tuple(each["plan"]), (each["row"][0], each["row"][1]))

    return CostModels(
        tuple(
            CostModel(MeasuredDevice(**each["device"]), {name: prices(found) for name, found in each["prices"].items()})
            for each in record["devices"]
        )
    )


def _nearest(device: MeasuredDevice, known: Iterable[CostModel], tell: bool = True) -> CostModel:
    """Return the speeds of the device itself, the user's own first, or of the one whose figures differ least."""
    found = min(known, key=lambda each: (each.device.name != device.name, _distance(each.device, device)))
    if tell and found.device.name != device.name:
        _say(device.name, found.device.name)
    return found


def _distance(one: MeasuredDevice, other: MeasuredDevice) -> float:
    shared = one.figures.keys() & other.figures.keys()
    return sum(abs(math.log(one.figures[name] / other.figures[name])) for name in shared)


@cache
def _say(name: str, other: str) -> None:
    logger.info("no measurements of %s: forecasts are those of %s; `junctor tune` measures it", name, other)


class FittedCoefficients(Mapping[str, Coefficients]):
    """Prices that fit measurements best, by backend; each is learned when it is asked for.

    beside: prices of another device. Where it has been measured more widely, its measurements count as well, as much
    faster or slower as those of both are.
    """

    def __init__(self, measured: Sequence[Measured] | Path, beside: FittedCoefficients | None = None) -> None:
        self._measured, self._beside = measured, beside
        self._known: dict[str, Coefficients] = {}

    @cached_property
    def _backends(self) -> frozenset[str]:
        if isinstance(self._measured, Path):
            return backends_of(self._measured)
        return frozenset(row.backend for row in self._measured)

    def _rows(self, backend: str) -> list[Measured]:
        if isinstance(self._measured, Path):
            return read(self._measured, backend)
        return [row for row in self._measured if row.backend == backend]

    def __getitem__(self, backend: str) -> Coefficients:
        if backend not in self._known:
            if self._beside is not None and backend not in self._backends:
                # Nothing like it was measured here.
                return self._beside[backend]
            if not (rows := self._rows(backend)):
                raise KeyError(backend)
            if self._beside is not None and backend in self._beside:
                rows = [*rows, *self._beside.scaled_to(backend, rows)]
            self._known[backend] = _prices(rows)
        return self._known[backend]

    def scaled_to(self, backend: str, rows: Sequence[Measured]) -> list[Measured]:
        """Return the measurements of a backend, as much faster or slower as some of another device are."""
        prices = self[backend]
        ratio = float(np.median([row.seconds / prices.of_work(row.work) for row in rows]))
        return [replace(row, seconds=ratio * row.seconds) for row in self._rows(backend)]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._backends | (self._beside or {}).keys()))

    def __len__(self) -> int:
        return len(list(iter(self)))


def learned(device: MeasuredDevice, measured: Sequence[Measured]) -> CostModel:
    """Return the prices that fit the measurements of a device best."""
    return CostModel(device, FittedCoefficients(measured))


def _prices(measured: Sequence[Measured]) -> Coefficients:
    seconds, groups = np.array([row.seconds for row in measured]), np.array([row.network for row in measured])
    work, plan = (np.array([getattr(row, name) for row in measured]) for name in ("work", "plan"))
    tree = np.array([np.multiply(row.tree, row.rows) for row in measured])
    # Where only few rows were measured, what a call takes would be taken for the price of a row.
    many = np.array([row.rows for row in measured]) >= np.median([row.rows for row in measured])
    operation, table = _rounded(fit(tree[many], seconds[many], groups[many]))
    of_work, of_plan = (_rounded(fit(each, seconds, groups)) for each in (work, plan))
    return Coefficients(of_work, of_plan, (operation, table))


def _rounded(prices: Floats) -> tuple[float, ...]:
    """Return prices to six digits: the same on machines whose linear algebra differs in the last ones."""
    return tuple(float(f"{price:.6g}") for price in prices)


@cache
def speeds_here(own: bool = True) -> CostModels:
    """Return what is known on this machine, the user's own measurements before those of the package."""
    shipped = CostModels(tuple(CostModel(device, FittedCoefficients(path)) for device, path in shipped_files()))
    known = own_files() if own else ()
    return CostModels((*(_own(device, path, shipped) for device, path in known), *shipped.devices))


def _own(device: MeasuredDevice, path: Path, shipped: CostModels) -> CostModel:
    """Return the speeds of a device that the user measured, beside those of the package that are nearest."""
    nearest = _nearest(device, (each for each in shipped.devices if each.device.is_gpu == device.is_gpu), tell=False)
    assert isinstance(nearest.prices, FittedCoefficients)
    return CostModel(device, FittedCoefficients(path, nearest.prices))


@cache
def cpu_name() -> str:
    """Return the name of this machine's CPU."""
    import platform

    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def plan_work(plan: Plan, steps: int, lanes: int, rows: int) -> tuple[float, ...]:
    """Return PLAN_WORK of a plan on `rows` cases, blocks of `lanes` cases."""
    lanes = max(1, lanes)
    blocks = -(-rows // lanes)
    entries = sum(table.entries for table in plan.tables if table.per_case)
    answers = sum(plan.shape.cardinalities)
    # Capped, because integers of any size do not fit a float.
    counts = (1, steps * blocks, plan.case_operations * blocks * lanes, entries * blocks * lanes, answers * rows)
    return tuple(float(min(count, 10**300)) for count in counts)
