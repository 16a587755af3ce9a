"""Processes that compile the functions of a small module, and such that are at it until they are killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MODULE = """
import sys, time
from junctor_kernels.cpu import jit
from junctor_kernels.cpu.compilation import compilation

@jit.loops
def inner(x):
    return 2 * x

@jit.loops
def outer(x):
    return inner(x) + 1

@jit.loops
def wrong(x):
    return inner(x).nothing

# Long enough that all of them are at it.
save = jit._Cache.save_overload
def slowly(*args):
    time.sleep(0.5)
    save(*args)
jit._Cache.save_overload = slowly
"""
HOLD = "import sys\nfrom junctor_kernels.cpu.turns import Turn\nprint(Turn(sys.argv[1]).take(0.0), flush=True)\ninput()"


def start(folder: Path, code: str, *args: str) -> subprocess.Popen[str]:
    module = folder / "module.py"
    # Once: a process that is starting would read a file that is being written anew, and find nothing in it.
    if not module.exists():
        module.write_text(MODULE)
    path = os.pathsep.join([str(folder), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "NUMBA_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, "-c", code, *args]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> list[str]:
    said, _ = process.communicate(timeout=100)
    assert process.returncode == 0
    return said.split()


@contextmanager
def held(folder: Path, lock: Path) -> Iterator[subprocess.Popen[str]]:
    """Context manager: a process that has the turn until it is killed."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    process = start(folder, HOLD, str(lock))
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    try:
        yield process
    finally:
        process.kill()
        process.wait()
