"""The state of a fit in a file beside its output, so that an interrupted one goes on. Main class: Checkpoint."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass
from typing import Any

import numpy as np

from junctor.learning.em import Fit, FitState, Iteration
from junctor.model.errors import RefusedError, RunError
from junctor.runtime.files import io_errors_for, refused, written_atomically
from junctor.runtime.remote import AnyPath

logger = logging.getLogger("junctor")

FORMAT_VERSION = 1
# Files are synced: not more often than that, or small fits would take most of their time for it.
LEAST_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Restart:
    """What came of one start: iterations, log-likelihood, log-likelihood + log prior, and whether it converged.

    objective: log-likelihood + log prior after each iteration, the start included.
    """

    iterations: int
    log_likelihood: float
    log_posterior: float
    converged: bool
    objective: tuple[float, ...]

    @classmethod
    def of(cls, found: Fit) -> Restart:
        """Return what came of a start whose fit has ended."""
        objective = tuple(each.log_posterior for each in found.trace)
        return cls(found.trace[-1].number, found.log_likelihood, found.log_posterior, found.converged, objective)

    def to_record(self) -> dict[str, Any]:
        """Return all but the objectives, which are as many as iterations, for JSON."""
        record = asdict(self)
        del record["objective"]
        return record


@dataclass(frozen=True, eq=False, slots=True)
class LearnState:
    """Starts that are done, the best of their fits, and the loop of the current one."""

    restarts: tuple[Restart, ...]
    best: Fit | None
    current: FitState | None


def checkpoint_path(output: AnyPath) -> AnyPath:
    """Return the path of the state of a fit beside its output: `fit.bif.checkpoint` beside `fit.bif`."""
    return output.with_name(f"{output.name}.checkpoint")


class Checkpoint:
    """A file with the state of a fit.

    path: of the file.
    identity: what the fit depends on; values of JSON.
    overwrite: whether the state of another fit, or a damaged file, is given up.
    Raises RunError for the state of another fit, and for a damaged file.
    """

    def __init__(self, path: AnyPath, identity: Mapping[str, Any], overwrite: bool = False) -> None:
        self.path = path
        self._identity = {"format_version": FORMAT_VERSION, **json.loads(json.dumps(identity))}
        self._written = 0.0
        try:
            self.state = self._read()
        except RefusedError:
            raise
        except RunError:
            if not overwrite:
                raise
            self.state = None

    def keep(self, state: LearnState) -> None:
        """Write the state, unless that was done a moment ago."""
        now = time.monotonic()
        if self._written and now - self._written < LEAST_SECONDS:
            return
        with written_atomically(self.path) as temporary:
            temporary.write_bytes(_packed(self._identity, state))
        self._written = time.monotonic()

    def remove(self) -> None:
        """Remove the file; without the right to delete it stays, with a warning: the fit is written."""
        try:
            self.path.unlink(missing_ok=True)
        except PermissionError as error:
            logger.warning("%s: left there, because the right to delete is missing (%s)", self.path, error.strerror)

    def _read(self) -> LearnState | None:
        with io_errors_for(self.path):
            try:
                data = self.path.read_bytes()
            except FileNotFoundError:
                return None
        with refused(lambda said: RunError(f"{self.path}: damaged ({said}): start afresh with --overwrite")):
            identity, state = _unpacked(data)
        if identity != self._identity:
            keys = {*identity, *self._identity}
            differing = sorted(key for key in keys if identity.get(key) != self._identity.get(key))
            raise RunError(
                f"{self.path}: an interrupted fit with other {', '.join(differing)}: finish it with its own "
                "command, or start afresh with --overwrite"
            )
        return state


def _packed(identity: Mapping[str, Any], state: LearnState) -> bytes:
    about: dict[str, Any] = {"identity": identity, "restarts": [asdict(each) for each in state.restarts]}
    arrays = {}
    if state.best is not None:
        about["best"] = {"converged": state.best.converged, "reason": state.best.reason}
        arrays["best"], arrays["best_trace"] = state.best.parameters, _of_trace(state.best.trace)
    if state.current is not None:
        current = state.current
        about["current"] = {"bound": current.bound, "steps": len(current.steps)}
        arrays |= {"parameters": current.parameters, "plain": current.plain, "trace": _of_trace(current.trace)}
        arrays |= {f"step{number}": step for number, step in enumerate(current.steps)}
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    content = file.getvalue()
    return hashlib.sha256(content).digest() + content


def _unpacked(data: bytes) -> tuple[dict[str, Any], LearnState]:
    digest, content = data[:32], data[32:]
    if hashlib.sha256(content).digest() != digest:
        raise ValueError("its checksum is wrong")
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        about = json.loads(arrays["about"].tobytes())
        best, current = None, None
        if "best" in about:
            best = Fit(arrays["best"], _trace_of(arrays["best_trace"]), **about["best"])
        if "current" in about:
            steps = tuple(arrays[f"step{number}"] for number in range(about["current"]["steps"]))
            bound, trace = about["current"]["bound"], _trace_of(arrays["trace"])
            current = FitState(arrays["parameters"], arrays["plain"], steps, bound, trace)
    restarts = tuple(Restart(**each | {"objective": tuple(each["objective"])}) for each in about["restarts"])
    return about["identity"], LearnState(restarts, best, current)


def _of_trace(trace: tuple[Iteration, ...]) -> Any:
    return np.array([astuple(iteration) for iteration in trace])


def _trace_of(values: Any) -> tuple[Iteration, ...]:
    return tuple(Iteration(int(number), *rest) for number, *rest in values.tolist())
