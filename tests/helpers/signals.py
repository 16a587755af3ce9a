"""Commands that are sent signals."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil

COMMAND = [sys.executable, "-c", "from junctor.cli import main; main()"]


def hear_ctrl_c() -> None:
    """For `preexec_fn`: let a child hear SIGINT also where a shell started the tests in the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def ctrl_c_is_heard() -> Iterator[None]:
    """Context manager: the same for this process."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def lines_until(process: subprocess.Popen[str], word: str) -> str:
    """Return what the process says on stderr up to the line with `word`, or up to its end."""
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if word in line:
            break
    return said


def children_of(process: subprocess.Popen[str] | psutil.Process) -> list[psutil.Process]:
    """Return all processes that it started."""
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def command_of(process: psutil.Process) -> str:
    """Return the words of its command line; none once it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def parent_of(process: psutil.Process) -> int | None:
    """Return the number of its parent process; None once it has ended."""
    try:
        return process.ppid()
    except psutil.NoSuchProcess:
        return None


@contextlib.contextmanager
def dask_cluster() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Context manager: the process of a Dask scheduler, whose two workers are its children, and its address."""
    script = (
        "import sys, dask\nfrom distributed import LocalCluster\n"
        "from junctor.runtime.local_cluster import UNWATCHED\n"
        "if __name__ == '__main__':\n"
        "    dask.config.set(UNWATCHED)\n"
        "    cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)\n"
        "    print(cluster.scheduler_address, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=-1, stdout=-1, stderr=-3, text=True) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()


def forks_of(process: subprocess.Popen[str] | psutil.Process) -> list[psutil.Process]:
    """Return the Dask workers of this machine that Junctor started in it."""
    children = children_of(process)
    # A fork has the command of its parent.
    servers = {child.pid for child in children if "forkserver" in command_of(child)}
    return [child for child in children if parent_of(child) in servers]


def workers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return the Dask workers that it started; not the tracker of multiprocessing, nor a server."""
    return forks_of(process) or [child for child in children_of(process) if "spawn_main" in command_of(child)]
