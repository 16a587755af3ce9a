"""The fit: seconds as a sum of counts of work, each with its own coefficient, fitted to measurements.

What a plan does is counted in some features (`features.registry`). Their coefficients are the non-negative numbers that
fit measured seconds best: so they mean something, and plans of sizes that were never measured get sensible forecasts.
Fitted when first asked for, by `FittedCoefficients`, and kept for the next process: a fit takes 0.02 to 0.06 s.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from junctor.cost.dataset import Measured, backends_of, read
from junctor.cost.features.registry import BACKENDS
from junctor.runtime.cache import user_cache

Floats = npt.NDArray[np.float64]

KIND = "fit"
# Part of the key: another way to fit, another number.
FITTING = 1
# Rounds of fitting: the first for relative errors, the others for those of logarithms, on which outliers weigh less.
ROUNDS = 6
# Error of a logarithm from which on a measurement weighs less.
OUTLIER = 0.25
# What keeps features apart that are nearly multiples of each other; columns have a length of one.
RIDGE = 1e-10
# Error of a forecast, as a factor, that the fit limits it to between its rounds.
MOST_OFF = 3.0


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Seconds a count of each feature of a backend, one vector for each group of a `FeatureSet`.

    work: of a plan with its numbers.
    plan: of a plan alone.
    row: of the row engine's tree for a pattern, for each row.
    """

    work: tuple[float, ...]
    plan: tuple[float, ...]
    row: tuple[float, float]

    def of_work(self, counts: npt.ArrayLike) -> float:
        """Return the seconds of a plan with its numbers, counts in the order of its features."""
        return float(np.dot(self.work, np.asarray(counts)))

    def of_plan(self, counts: Sequence[float]) -> float:
        """Return about the seconds of a plan alone, counts in the order of PLAN_WORK; infinite beyond all numbers."""
        return float(sum(seconds * count for seconds, count in zip(self.plan, counts, strict=True)))


class FittedCoefficients(Mapping[str, Coefficients]):
    """Coefficients that fit measurements best, by backend; each is fitted when it is asked for.

    measured: measurements, or their file.
    base: of another device. Where that one was measured more widely, its measurements count as well, scaled by the
        ratio of both devices.
    known: coefficients that are fitted already.
    """

    def __init__(
        self,
        measured: Sequence[Measured] | Path,
        base: FittedCoefficients | None = None,
        known: Mapping[str, Coefficients] | None = None,
    ) -> None:
        self._measured = measured
        self._base = base
        self._known = known or {}
        self._fitted: dict[str, Coefficients] = {}

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
        if backend in self._known:
            return self._known[backend]
        if backend not in self._fitted:
            if self._base is not None and backend not in self._backends:
                # Nothing like it was measured here.
                return self._base[backend]
            self._fitted[backend] = self._fit(backend) if self._digest is None else self._kept(backend)
        return self._fitted[backend]

    def _fit(self, backend: str) -> Coefficients:
        if not (rows := self._rows(backend)):
            raise KeyError(backend)
        if self._base is None or backend not in self._base:
            return coefficients_of(rows)
        fitted = coefficients_of([*rows, *self._base.scaled_to(backend, rows)])
        return replace(fitted, work=_completed(fitted.work, self._base[backend].work, rows))

    def _kept(self, backend: str) -> Coefficients:
        """Return what an earlier process fitted to the same files, or a fit that is kept."""
        key = repr((FITTING, self._digest, backend))
        return user_cache().kept(
            KIND, key, lambda content: _parsed(content, backend), lambda: self._fit(backend), _to_bytes
        )

    @cached_property
    def _digest(self) -> str | None:
        """SHA-256 of the files of all measurements that fits depend on, None where these are of no file."""
        if not isinstance(self._measured, Path):
            return None
        sha = hashlib.sha256(self._measured.read_bytes())
        if self._base is not None:
            if self._base._digest is None:
                return None
            sha.update(self._base._digest.encode())
            sha.update(repr(sorted(self._base._known.items())).encode())
        return sha.hexdigest()

    def scaled_to(self, backend: str, rows: Sequence[Measured]) -> list[Measured]:
        """Return the measurements of a backend, scaled to a device by some of its measurements."""
        coefficients = self[backend]
        ratio = float(np.median([row.seconds / coefficients.of_work(row.work) for row in rows]))
        return [replace(row, seconds=ratio * row.seconds) for row in self._rows(backend)]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._backends | self._known.keys() | (self._base or {}).keys()))

    def __len__(self) -> int:
        return len(list(iter(self)))


def _completed(fitted: tuple[float, ...], base: tuple[float, ...], rows: Sequence[Measured]) -> tuple[float, ...]:
    """Return coefficients, those of counts that no measurement has scaled from another device by all others."""
    own, other = np.array(fitted), np.array(base)
    is_known = np.array([row.work for row in rows]).max(axis=0) > 0
    both = is_known & (own > 0) & (other > 0)
    ratio = np.median(own[both] / other[both]) if both.any() else 1.0
    return _rounded(np.where(is_known, own, ratio * other))


def _to_bytes(coefficients: Coefficients) -> bytes:
    return json.dumps(astuple(coefficients)).encode()


def _parsed(content: bytes, backend: str) -> Coefficients:
    """Return the coefficients of a backend; raises ValueError for other bytes."""
    record, features = json.loads(content), BACKENDS[backend]
    if not isinstance(record, list) or not all(isinstance(vector, list) for vector in record):
        raise ValueError("not coefficients")
    if [len(vector) for vector in record] != [len(features.work), len(features.plan), len(features.tree)]:
        raise ValueError("not coefficients of this backend")
    if not all(type(seconds) is float and 0 <= seconds < math.inf for vector in record for seconds in vector):
        raise ValueError("not seconds")
    work, plan, (operation, table) = record
    return Coefficients(tuple(work), tuple(plan), (operation, table))


def coefficients_of(measured: Sequence[Measured]) -> Coefficients:
    """Return the coefficients that fit measurements of one backend best, each group of features by itself."""
    seconds, groups = np.array([row.seconds for row in measured]), np.array([row.network for row in measured])
    work, plan = (np.array([getattr(row, name) for row in measured]) for name in ("work", "plan"))
    tree = np.array([np.multiply(row.tree, row.rows) for row in measured])
    # Where few rows were measured, the seconds of a call would count as seconds of a row.
    many = np.array([row.rows for row in measured]) >= np.median([row.rows for row in measured])
    operation, table = _rounded(fit(tree[many], seconds[many], groups[many]))
    of_work, of_plan = (_rounded(fit(counts, seconds, groups)) for counts in (work, plan))
    return Coefficients(of_work, of_plan, (operation, table))


def _rounded(coefficients: Floats) -> tuple[float, ...]:
    """Return coefficients to six digits: the same on machines whose linear algebra differs in the last ones."""
    return tuple(float(f"{seconds:.6g}") for seconds in coefficients)


def fit(work: Floats, seconds: Floats, groups: npt.NDArray[Any]) -> Floats:
    """Return the coefficients [features] that fit measurements best, in seconds a count; none is negative.

    work: [n, features], counts.
    seconds: [n], measured.
    groups: [n], names; all measurements of a group (a network) weigh as much as those of any other.

    Deterministic.
    """
    _, number, members = np.unique(groups, return_inverse=True, return_counts=True)
    share = 1 / np.sqrt(members[number])
    forecast = seconds.copy()
    coefficients = np.zeros(work.shape[1])
    for _ in range(ROUNDS):
        off = np.log(forecast / seconds)
        weight = share * np.sqrt(np.minimum(1, OUTLIER / np.maximum(OUTLIER, np.abs(off))))
        # A Gauss-Newton step for the logarithms of the forecasts.
        coefficients = non_negative(work * (weight / forecast)[:, None], (1 - off) * weight)
        forecast = np.clip(work @ coefficients, seconds / MOST_OFF, seconds * MOST_OFF)
    return coefficients


def non_negative(a: Floats, b: Floats) -> Floats:
    """Return x >= 0 that minimises |a x - b| (Lawson and Hanson, *Solving Least Squares Problems*, chapter 23)."""
    length = np.linalg.norm(a, axis=0)
    a = a / np.where(length > 0, length, 1)
    gram, wanted = a.T @ a, a.T @ b
    x = np.zeros(a.shape[1])
    free = np.zeros(a.shape[1], dtype=np.bool_)
    for _ in range(3 * a.shape[1]):
        gradient = np.where(free | (length == 0), -np.inf, wanted - gram @ x)
        if gradient.max() <= 1e-10 * np.abs(wanted).max():
            break
        free[gradient.argmax()] = True
        x = _inside(gram, wanted, x, free)
    solution: Floats = x / np.where(length > 0, length, 1)
    return solution


def _inside(gram: Floats, wanted: Floats, x: Floats, free: npt.NDArray[np.bool_]) -> Floats:
    """Return the solution of the free unknowns; those that would become negative are fixed to zero on the way."""
    while True:
        best = np.zeros_like(x)
        best[free] = np.linalg.solve(gram[np.ix_(free, free)] + RIDGE * np.eye(free.sum()), wanted[free])
        below = free & (best <= 0)
        if not below.any():
            return best
        step = np.min(x[below] / (x[below] - best[below]))
        x = x + step * (best - x)
        bound = free & (x <= 1e-14)
        # At least one has to give way, or the loop would not end.
        bound[np.flatnonzero(below)[np.argmin(x[below])]] = True
        free[bound] = False
        x[bound] = 0
