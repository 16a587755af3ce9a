"""Calibrated clique tables: joint posteriors of variables that share a clique, now or later from files."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.gpu.stored import CliqueDevice
from junctor_kernels.tables.reference import DOUBLE, LOG, SINGLE, Algebra

from junctor.cliques.host import Initial, table_sums
from junctor.cliques.on_gpu import allowed_bytes, opened_device
from junctor.cliques.parts import Part, Trace, part_seconds
from junctor.cliques.streamed import StreamedExecutor
from junctor.cliques.streaming_choice import fastest_layout
from junctor.cost.model import cpu_name, local_cost_models
from junctor.cost.stored import asking_gain
from junctor.model.answers import NO_PROBABILITY
from junctor.model.errors import EvidenceError, InputError, ModelError, Place, nearest
from junctor.model.network import Variable
from junctor.model.options import ONE_THREAD, ComputeOptions, PipelineName
from junctor.planning.cliques import table_plan
from junctor.runtime.files import refused
from junctor.runtime.machine import usable_cores
from junctor.runtime.remote import local_path

FORMAT_VERSION = 1
_INDEX = "cliques.json"
_ALGEBRAS = {algebra.name: algebra for algebra in (SINGLE, DOUBLE, LOG)}


@dataclass(frozen=True, eq=False)
class CalibratedCliques:
    """The calibrated clique tables of one case.

    variables: of the network.
    scopes: variables of each clique (indices into `variables`), the order of its table's axes.
    table: returns the flat table of a clique; it is P(clique, e) up to a factor of its own.
    sums: returns its sums for some of its variables, flat, in the order given.
    algebra: of those numbers.
    log_evidence: the natural log of P(e), -inf for impossible evidence.
    reason: why the evidence is impossible, if it is.
    part_seconds: returns the seconds of preprocessing, transfers, reduction and scattering so far, if they were taken.
    place: returns where the tables are, or were summed, in words.
    """

    variables: tuple[Variable, ...]
    scopes: tuple[tuple[int, ...], ...]
    table: Callable[[int], npt.NDArray[Any]]
    sums: Callable[[int, Sequence[int]], npt.NDArray[Any]]
    algebra: Algebra
    log_evidence: float
    reason: str = NO_PROBABILITY
    part_seconds: Callable[[], dict[Part, float]] = dict
    place: Callable[[], str] = str

    def posterior(self, *names: str) -> npt.NDArray[np.float64]:
        """Return P(names | e), one axis a variable in the order given; no further propagation.

        Raises ModelError for unknown names, EvidenceError for names that no clique holds together and where the
        evidence is impossible.
        """
        wanted = tuple(self._find(name) for name in names)
        if len(set(wanted)) != len(wanted):
            raise EvidenceError(f"found a variable twice in {list(names)}, expected each once")
        if self.log_evidence == -math.inf:
            raise EvidenceError(f"{self.reason}, so nothing has a posterior")
        # In double precision whatever the tables, so that shares sum to 1.
        masses = self.sums(self._smallest(wanted), wanted).astype(np.float64)
        # Logarithms are shifted first, so that the largest is 1 and nothing overflows.
        if not self.algebra.tiny:
            masses = np.exp(masses - masses.max())
        shares: npt.NDArray[np.float64] = masses / masses.sum()
        return shares.reshape([self.variables[v].cardinality for v in wanted])

    def log_probability(self, *names: str) -> npt.NDArray[np.float64]:
        """Return the natural log of P(names, e), as `posterior`."""
        with np.errstate(divide="ignore"):
            return np.log(self.posterior(*names)) + self.log_evidence

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write all tables into a folder, one .npy file a clique, and an index.

        The index is written last: a folder that has one is whole.
        """
        home = local_path(folder)
        home.mkdir(parents=True, exist_ok=True)
        # Gone first: tables of two cases must not pass for those of one.
        (home / _INDEX).unlink(missing_ok=True)
        for i in range(len(self.scopes)):
            np.save(home / f"clique-{i}.npy", self.table(i))
        index = {
            "format_version": FORMAT_VERSION,
            "numbers": self.algebra.name,
            "log_evidence": None if self.log_evidence == -math.inf else self.log_evidence,
            "reason": self.reason,
            "variables": {variable.name: variable.states for variable in self.variables},
            "cliques": self.scopes,
        }
        aside = home / f".{_INDEX}"
        aside.write_text(json.dumps(index))
        # Renaming is atomic: there is never half an index.
        aside.rename(home / _INDEX)

    def _find(self, name: str) -> int:
        names = [variable.name for variable in self.variables]
        if name not in names:
            raise ModelError(f"no variable named {name!r}{nearest(name, names)}")
        return names.index(name)

    def _smallest(self, wanted: Sequence[int]) -> int:
        holding = [i for i, scope in enumerate(self.scopes) if set(wanted) <= set(scope)]
        if not holding:
            names = ", ".join(repr(self.variables[v].name) for v in wanted)
            raise EvidenceError(f"no clique holds {names} together; ask about variables that share a clique")
        # The smallest: its table takes least to be read and summed.
        size = {i: math.prod(self.variables[v].cardinality for v in self.scopes[i]) for i in holding}
        return min(holding, key=lambda i: (size[i], i))


class KeptTables:
    """Calibrated tables in the files of a folder, mapped, not read: a question needs one of them.

    home: the folder.
    sizes: states of every variable.
    scopes: variables of each table, the order of its axes.
    algebra: of their numbers.
    options, pipeline, in_flight: as for `StoredTree`; a table is summed where that is forecast to take less.
    """

    def __init__(
        self,
        home: Path,
        sizes: tuple[int, ...],
        scopes: tuple[tuple[int, ...], ...],
        algebra: Algebra,
        options: ComputeOptions,
        pipeline: PipelineName | None,
        in_flight: int | None,
    ) -> None:
        self._home = home
        self._sizes = sizes
        self._scopes = scopes
        self._algebra = algebra
        self._options = options
        self._streaming = pipeline, in_flight
        self._trace: Trace = []
        self._device: CliqueDevice | None = None
        self.place = "in files"

    def table(self, clique: int) -> npt.NDArray[Any]:
        """Return the table of a clique; raises InputError for anything else."""
        entries = math.prod(self._sizes[v] for v in self._scopes[clique])
        return _table_in(self._home / f"clique-{clique}.npy", entries, self._algebra)

    def sums(self, clique: int, wanted: Sequence[int]) -> npt.NDArray[Any]:
        """Return the sums of a table for some of its variables; raises DeviceError and BudgetError."""
        table, scope = self.table(clique), self._scopes[clique]
        plan, costs = table_plan(self._sizes, scope, tuple(wanted)), local_cost_models().cpu(cpu_name())
        device = opened_device(
            self._options, lambda: asking_gain(plan, wanted, self._algebra, costs, usable_cores()) > 0
        )
        if device is None:
            return table_sums(table, scope, wanted, self._sizes, self._algebra, self._trace)
        self._device = device
        layout, pipeline = fastest_layout(
            plan, self._algebra, allowed_bytes(self._options, device), device, *self._streaming
        )
        initial = [Initial(table, 0.0, False)]
        executor = StreamedExecutor(plan, initial, self._algebra, device, layout, pipeline, True, self._trace)
        self.place = executor.place
        return executor.summed()

    def part_seconds(self) -> dict[Part, float]:
        """Return the seconds of all sums so far."""
        return part_seconds(self._trace, self._device)


def load_cliques(
    folder: str | os.PathLike[str],
    options: ComputeOptions = ONE_THREAD,
    *,
    pipeline: PipelineName | None = None,
    in_flight: int | None = None,
) -> CalibratedCliques:
    """Open what `CalibratedCliques.save` wrote; tables are read from their files as they are needed.

    options: device and device memory for their sums.
    pipeline, in_flight: as for `StoredTree`.

    Raises InputError where there is nothing whole of this format; DeviceError and BudgetError come with a question.
    """
    home = local_path(folder)
    with refused(lambda said: InputError(f"found no calibrated cliques ({said})", Place(str(home / _INDEX)))):
        index = json.loads((home / _INDEX).read_text())
        if not isinstance(index, dict):
            raise ValueError("not an object")
    if index.get("format_version") != FORMAT_VERSION:
        version = index.get("format_version")
        raise InputError(f"found format version {version}, expected {FORMAT_VERSION}", Place(str(home / _INDEX)))
    with refused(lambda said: InputError(f"damaged: {said}", Place(str(home / _INDEX)))):
        variables = tuple(_variable(name, states) for name, states in index["variables"].items())
        scopes = tuple(_scope(scope, len(variables)) for scope in index["cliques"])
        algebra, log_evidence = _ALGEBRAS[index["numbers"]], index["log_evidence"]
        sizes = tuple(variable.cardinality for variable in variables)
        kept = KeptTables(home, sizes, scopes, algebra, options, pipeline, in_flight)
        return CalibratedCliques(
            variables,
            scopes,
            kept.table,
            kept.sums,
            algebra,
            -math.inf if log_evidence is None else float(log_evidence),
            # Indices of earlier versions have none.
            str(index.get("reason", NO_PROBABILITY)),
            kept.part_seconds,
            lambda: kept.place,
        )


def _variable(name: str, states: Any) -> Variable:
    if not states or not isinstance(states, list) or not all(isinstance(state, str) for state in states):
        raise ValueError(f"found the states {states!r} of {name!r}, expected names")
    return Variable(name, tuple(states))


def _scope(scope: Any, variables: int) -> tuple[int, ...]:
    # Indices beyond the variables would be read beyond tables.
    if not isinstance(scope, list) or not all(type(v) is int and 0 <= v < variables for v in scope):
        raise ValueError(f"found the clique {scope!r}, expected indices of variables")
    if len(set(scope)) != len(scope):
        raise ValueError(f"found the clique {scope!r}, expected different variables")
    return tuple(scope)


def _table_in(path: Path, entries: int, algebra: Algebra) -> npt.NDArray[Any]:
    """Return a table of numbers, mapped; raises InputError for anything else."""
    with refused(lambda said: InputError(f"found no table of numbers ({said})", Place(str(path)))):
        # Never objects: they would be pickled, and a pickle is code.
        table: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        if table.shape != (entries,) or table.dtype != algebra.dtype:
            raise ValueError(f"{table.dtype} {table.shape}, expected {np.dtype(algebra.dtype)} ({entries},)")
        return table
