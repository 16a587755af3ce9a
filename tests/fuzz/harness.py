"""Reads mutants within limits of time and memory, each kind of file in a process of its own. Main function: `fuzz`."""

from __future__ import annotations

import faulthandler
import importlib
import json
import logging
import math
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from random import Random
from typing import Any

from junctor.model.errors import JunctorError

from fuzz.kinds import KINDS, Kind

# Of one mutant; seconds of cores, which others may have.
SECONDS, BYTES = 10, 2**30
# Failures of a kind that are reported; those after them are as a rule the same.
REPORTED = 20


class TooSlow(BaseException):
    """A mutant takes too long; no Exception, so that no reader takes it for damage."""


def fuzz(
    pattern: str = "*",
    mutants: int = 200,
    seconds: float | None = None,
    seed: int = 0,
    keep: Path | None = None,
    total: int | None = None,
    processes: int = 1,
) -> Iterator[dict[str, Any]]:
    """Yield what each kind did: its mutants, those refused, and failures with their seeds.

    pattern: of names of kinds.
    mutants: of each kind.
    seconds: for each kind, in place of a number of mutants.
    seed: of the first mutant; the others follow.
    keep: folder for the files of failures, None to keep none.
    total: mutants of all kinds together, in place of a number for each.
    processes: kinds that are read side by side.
    """
    # Once, before children that would each take a second for it.
    for module in ("numba", "pandas", "pyarrow.dataset"):
        importlib.import_module(module)
    kinds = {name: kind for name, kind in KINDS.items() if fnmatch(name, pattern)}
    if total is not None:
        mutants = math.ceil(total / max(1.0, sum(kind.share for kind in kinds.values())))
    asked = [_Asked(name, kind, math.ceil(mutants * kind.share), seconds, seed, keep) for name, kind in kinds.items()]
    # Threads that only wait: a child is forked for each kind.
    with ThreadPoolExecutor(processes) as pool:
        yield from pool.map(_read_kind, asked)


@dataclass(frozen=True)
class _Asked:
    """Mutants of a kind; see `fuzz`."""

    name: str
    kind: Kind
    mutants: int
    seconds: float | None
    seed: int
    keep: Path | None


def _read_kind(asked: _Asked) -> dict[str, Any]:
    """Read mutants in a child, and after a crash in another one that goes on behind it."""
    result = {"kind": asked.name, "mutants": 0, "refused": 0, "failures": [], "at": asked.seed, "seconds": 0.0}
    while not _is_done(asked, result):
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, "report.json")
            report.write_text(json.dumps(result))
            child = os.fork()
            if not child:
                _run_child(asked, Path(folder))
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            result = json.loads(report.read_text())
            if code:
                # The seed that it was at: a crash of the process.
                _note(asked, result, Path(folder, "copy"), f"exit code {code}")
                if result["mutants"] == 0 or len(result["failures"]) >= REPORTED:
                    break
    return result


def _is_done(asked: _Asked, result: dict[str, Any]) -> bool:
    if asked.seconds is None:
        return bool(result["mutants"] >= asked.mutants)
    return bool(result["seconds"] >= asked.seconds)


def _note(asked: _Asked, result: dict[str, Any], copy: Path, said: str) -> None:
    """Add a failure, and keep its files if that is asked for."""
    if len(result["failures"]) < REPORTED:
        result["failures"].append({"seed": result["at"], "error": said})
    if asked.keep is not None and copy.exists():
        shutil.copytree(copy, asked.keep / f"{asked.name}-{result['at']}", dirs_exist_ok=True)


def _run_child(asked: _Asked, folder: Path) -> None:
    code = 1
    try:
        faulthandler.enable()
        logging.disable(logging.CRITICAL)
        _read_mutants(asked, folder)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        # Without the end of the interpreter, which is that of the parent.
        os._exit(code)


def _read_mutants(asked: _Asked, folder: Path) -> None:
    whole, damaged, copy, report = (folder / name for name in ("whole", "damaged", "copy", "report.json"))
    whole.mkdir()
    kind, name = asked.kind, asked.name
    kind.make(whole)
    # The files themselves are read first: what reading compiles and loads is none of the mutants' time and memory.
    shutil.copytree(whole, damaged)
    kind.read(damaged)
    _limit_memory()
    result = json.loads(report.read_text())
    before, started = result["seconds"], time.monotonic()
    while not _is_done(asked, result):
        result["at"] = asked.seed + result["mutants"]
        result["mutants"] += 1
        report.write_text(json.dumps(result))
        _damage(whole, damaged, kind, Random(f"{name} {result['at']}"))
        # A copy, in case the reader changes or removes files.
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(damaged, copy)
        try:
            with _in_time(SECONDS):
                kind.read(damaged)
        except JunctorError:
            result["refused"] += 1
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            said = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"[:300]
            _note(asked, result, copy, said)
        result["seconds"] = round(before + time.monotonic() - started, 2)
    report.write_text(json.dumps(result))


def _damage(whole: Path, damaged: Path, kind: Kind, random: Random) -> None:
    """Copy the files and change one of them."""
    shutil.rmtree(damaged, ignore_errors=True)
    shutil.copytree(whole, damaged)
    files = sorted(path for pattern in kind.damaged for path in damaged.glob(pattern) if path.is_file())
    path = random.choice(files)
    # Now and then a file is missing, or another one of the same kind.
    if len(files) > 1 and random.random() < 0.02:
        path.write_bytes(random.choice(files).read_bytes())
    elif random.random() < 0.02:
        path.unlink()
    else:
        path.write_bytes(kind.mutate(path.name, path.read_bytes(), random))


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


@contextmanager
def _in_time(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TooSlow(f"more than {seconds} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    # Compiled code that hangs takes no signals of Python, and what waits for ever no time: the process ends with all
    # stacks on stderr.
    faulthandler.dump_traceback_later(6 * seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
