"""Compilation in a second process of what a run needs later: `python -m junctor_kernels.row_trees.ahead DTYPE`.

Main functions: `start`, called where rows are going to be answered in compiled code, and `main`, in that process.
`begin` starts another module in that way.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing import parent_process
from typing import Any

import numpy as np
from numba import typeof

from junctor_kernels.cpu import plan as blocks
from junctor_kernels.cpu.bytecode import BlockWorkspace, Bytecode, Cases
from junctor_kernels.orders.sparse import NOT_LISTED, SparseGraph
from junctor_kernels.row_trees import lane_layout as layout
from junctor_kernels.row_trees import plan as rowplan
from junctor_kernels.row_trees import queue as row_queue

# The process that was started, if any: one is enough, and it is kept until this one ends.
_started: list[subprocess.Popen[bytes]] = []
# Numbers for whose plans nothing is missing: to look again would take longer than some calls.
_complete: set[str] = set()


def calls(dtype: str) -> list[tuple[Any, tuple[Any, ...]]]:
    """Return functions, with arguments of the types of their calls, in the order in which they are needed.

    Not those that are needed first, nor those that share parts with them: they would be compiled twice.

    dtype: of the plans, float32 or float64.
    """

    def ints(axes: int) -> Any:
        return np.zeros((1,) * axes, dtype=np.int64)

    def floats(axes: int) -> Any:
        return np.zeros((1,) * axes)

    def numbers(axes: int) -> Any:
        return np.zeros((1,) * axes, dtype=dtype)

    code = Bytecode(
        *(ints(2), ints(2), ints(2), ints(1), ints(1), np.zeros(1, np.int32), ints(2), floats(1), ints(2)),
        *(numbers(1), floats(2), numbers(1), 0.0, ints(2), ints(2), ints(2)),
    )
    lanes = numbers(2)
    bits = lanes.view(f"i{lanes.itemsize}")
    work = BlockWorkspace(
        *(ints(1), ints(2), floats(2), numbers(1), floats(3), np.zeros(1, np.bool_)),
        *(lanes, bits, numbers(2), floats(2)),
    )
    cases = Cases(
        *(ints(1), ints(1), ints(1), ints(2), floats(2), ints(2), ints(2), floats(2), floats(2)),
        *(ints(2), ints(1), floats(1), np.zeros(1, np.float32), np.zeros((1, 1), np.int32), 0),
    )
    graph = SparseGraph(ints(1), np.zeros(1, np.int32), NOT_LISTED)
    factors = rowplan.Factors(*(ints(1),) * 5, floats(1), 0, graph, ints(1), floats(1))
    memory = rowplan.tree(graph, 1), layout.lanes_for(1, 1, 1), ints(1)
    waiting = row_queue.Queue(*(ints(1), ints(1), 1, 1, ints(1), ints(1)), *(ints(2), floats(2), ints(1)))
    asked = row_queue.Asked(np.zeros(1, np.bool_), ints(1), 1, ints(1), ints(2))
    piece = row_queue.piece_for(1, 1, 1, 1, 0, False)
    results = row_queue.Results(
        *(floats(1), ints(1), floats(1), np.zeros(1, np.float32), np.zeros((1, 1), dtype=np.int32))
    )
    return [
        (blocks.propagate, (code, work, cases)),
        (row_queue.answer_shared, (factors, waiting, asked, memory, piece, 1, 1, 1, ints(1), results)),
    ]


def start(dtype: str) -> None:
    """Start the process if something is missing on disk, once; it ends with this one.

    Workers leave it to the process that started them: there are many of them.

    dtype: as of `calls`.
    """
    if _started or dtype in _complete or parent_process() is not None:
        return
    if any(_is_missing(function, _types(arguments)) for function, arguments in calls(dtype)):
        begin(__name__, dtype)
    else:
        _complete.add(dtype)


def begin(module: str, *arguments: str) -> None:
    """Start a module that compiles in a second process, unless there is one; it ends with this one.

    module: calls `end_with_parent` first.
    """
    if _started or parent_process() is not None:
        return
    with suppress(OSError):
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Its end is that of this process, also by Ctrl-C.
            start_new_session=True,
        )
        _started.append(process)
        atexit.register(_stop, process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _types(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(map(typeof, arguments))


def _is_missing(function: Any, types: tuple[Any, ...]) -> bool:
    cache = function._cache
    # Where no folder may be written nothing would come of it.
    return cache.cache_path is not None and not cache.has(types, function.targetctx)


def main(dtype: str) -> None:
    """Compile what is missing, without what other processes are at, until standard input ends."""
    end_with_parent()
    for function, arguments in calls(dtype):
        types = _types(arguments)
        if _is_missing(function, types) and not function._cache.is_under_way:
            function.compile(types)


def end_with_parent() -> None:
    """Let this process end when standard input does."""
    threading.Thread(target=_wait_and_end, daemon=True).start()


def _wait_and_end() -> None:
    # Unbuffered: nothing is held while this process ends by itself.
    os.read(sys.stdin.fileno(), 1)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
