"""Cost models: the forecast of seconds from counts of work, device by device.

`local_cost_models` has those of this machine, `CostModel.seconds` the forecast; backends, engine and command line ask.
Forecasts decide choices (which patterns share a plan, few cases or many, launch parameters) that can change the last
digit of an answer. So a run that begins with measurements of the user's own keeps their coefficients in its directory;
any other goes by those of its version of the package, whatever is measured meanwhile.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from junctor_kernels.tables.reference import MAX_LOG, Algebra

from junctor.cost.dataset import Measured, MeasuredDevice, own_files, shipped_files
from junctor.cost.features.gpu_stages import FEW_WORK, MANY_WORK, LaunchTuner
from junctor.cost.features.registry import BACKENDS, ordered
from junctor.cost.figures import RECORDS, Figures, figures_of, shipped_seconds
from junctor.cost.fit import Coefficients, FittedCoefficients

# Bytes of the last cache of a CPU that was measured without it.
USUAL_CACHE = 32.0 * 2**20

logger = logging.getLogger("junctor")


@dataclass(frozen=True)
class CostModel:
    """The cost model of a device: its coefficients by backend, fitted when first asked for."""

    device: MeasuredDevice
    coefficients: Mapping[str, Coefficients]

    @cached_property
    def figures(self) -> Figures:
        """What choices weigh, those of the package where nothing was measured."""
        fitted = {backend: self.coefficients[backend].work for backend in RECORDS if backend in self.coefficients}
        return figures_of(fitted)

    @property
    def cache(self) -> float:
        """Bytes of the last cache of a CPU, those of a usual one where they are not known."""
        return self.device.figures.get("cache", USUAL_CACHE)

    def seconds(self, backend: str, counts: Mapping[str, float]) -> float:
        """Return the forecast of a backend from counts of a plan with its numbers, or of a plan alone.

        backend: its name in the registry; raises KeyError where nothing was measured of it.
        counts: by feature, all of one group of the registry; raises ValueError for others.
        """
        coefficients, features = self.coefficients[backend], BACKENDS[backend]
        if counts.keys() == set(features.plan):
            return coefficients.of_plan(ordered(features.plan, counts))
        return coefficients.of_work(ordered(features.work, counts))

    def launch_tuner(self, algebra: Algebra) -> LaunchTuner:
        """Return the choice of launch parameters in a number format."""
        few, many = self.coefficients[gpu_prices(algebra, False)], self.coefficients.get(gpu_prices(algebra, True))
        nothing = np.zeros(len(MANY_WORK))
        return LaunchTuner(np.array(few.work[: len(FEW_WORK)]), np.array(many.work) if many else nothing)


def gpu_prices(algebra: Algebra, many: bool) -> str:
    """Return the name of the kernels on a GPU for many or few cases in an algebra."""
    # Maxima take about as long as sums of numbers of the same size: what they read is the same.
    return f"{'many' if many else 'few'}-{'double' if algebra is MAX_LOG else algebra.name}"


@dataclass(frozen=True, slots=True)
class CostModels:
    """The cost models of all devices that were measured, the user's own first."""

    devices: tuple[CostModel, ...]

    def cpu(self, name: str) -> CostModel:
        """Return the cost model of a CPU, or of another one where it has none."""
        return _nearest(MeasuredDevice(name), (model for model in self.devices if not model.device.is_gpu))

    def gpu(self, device: MeasuredDevice) -> CostModel:
        """Return the cost model of a GPU, or of the one that is most like it."""
        return _nearest(device, (model for model in self.devices if model.device.is_gpu))

    def to_record(self) -> dict[str, Any]:
        """Return a record that JSON can hold."""
        models = [(asdict(model.device), model.coefficients.items()) for model in self.devices]
        return {"devices": [{"device": device, "prices": {k: asdict(v) for k, v in fits}} for device, fits in models]}


def cost_models_from_record(record: Mapping[str, Any]) -> CostModels:
    """Return the cost models of a record that `CostModels.to_record` made; raises KeyError or TypeError for others."""

    def coefficients(fields: Mapping[str, Any]) -> Coefficients:
        return Coefficients(tuple(fields["work"]), tuple(fields["plan"]), (fields["row"][0], fields["row"][1]))

    def model(fields: Mapping[str, Any]) -> CostModel:
        by_backend = {name: coefficients(vectors) for name, vectors in fields["prices"].items()}
        return CostModel(MeasuredDevice(**fields["device"]), by_backend)

    return CostModels(tuple(model(fields) for fields in record["devices"]))


def _nearest(device: MeasuredDevice, models: Iterable[CostModel], quiet: bool = False) -> CostModel:
    """Return the cost model of the device itself, the user's own first, or of the one whose figures differ least."""
    nearest = min(models, key=lambda model: (model.device.name != device.name, _distance(model.device, device)))
    if not quiet and nearest.device.name != device.name:
        _log_substitute(device.name, nearest.device.name)
    return nearest


def _distance(one: MeasuredDevice, other: MeasuredDevice) -> float:
    shared = one.figures.keys() & other.figures.keys()
    return sum(abs(math.log(one.figures[name] / other.figures[name])) for name in shared)


@cache
def _log_substitute(name: str, other: str) -> None:
    logger.info("no measurements of %s: forecasts are those of %s; `junctor tune` measures it", name, other)


def fitted_cost_model(device: MeasuredDevice, measured: Sequence[Measured]) -> CostModel:
    """Return the cost model that fits the measurements of a device best."""
    return CostModel(device, FittedCoefficients(measured))


@cache
def local_cost_models(own: bool = True) -> CostModels:
    """Return the cost models of this machine, the user's own measurements before those of the package."""
    shipped = CostModels(tuple(_shipped(device, path) for device, path in shipped_files()))
    files = own_files() if own else ()
    return CostModels((*(_own(device, path, shipped) for device, path in files), *shipped.devices))


def _shipped(device: MeasuredDevice, path: Path) -> CostModel:
    known = {name: Coefficients(work, (), (0.0, 0.0)) for name, work in shipped_seconds(device.name).items()}
    return CostModel(device, FittedCoefficients(path, known=known))


def _own(device: MeasuredDevice, path: Path, shipped: CostModels) -> CostModel:
    """Return the cost model of a device that the user measured, based on the nearest one of the package."""
    alike = (model for model in shipped.devices if model.device.is_gpu == device.is_gpu)
    base = _nearest(device, alike, quiet=True).coefficients
    assert isinstance(base, FittedCoefficients)
    return CostModel(device, FittedCoefficients(path, base))


@cache
def cpu_name() -> str:
    """Return the name of this machine's CPU."""
    import platform

    # As far as the first processor: the list of all takes milliseconds.
    with suppress(OSError), open("/proc/cpuinfo") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    # Last: it starts a process.
    return platform.processor() or platform.machine()
