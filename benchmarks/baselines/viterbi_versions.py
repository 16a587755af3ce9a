"""The four versions of Lee and Enev's Viterbi algorithm, as they describe them, to be run and timed.

1 serial on a CPU (their Algorithm 1), 2 one GPU thread a state, 3 with the transition matrix transposed for coalesced
reads, 4 with the previous distribution cached in shared memory. One sequence at a time, logarithms in single precision,
back-pointers stored for every step. They are the baseline of `benchmarks/hmm.py`; runs use the kernels of `viterbi_cpu`
and `viterbi_gpu`.

The indices that they print say the reverse of their text. transition[prev * nStates + curr] of Algorithm 2 is read by
neighbouring threads at neighbouring places, transition[prev + nStates * curr] of Algorithms 3 and 4 far apart. Both
readings are here: versions by the text, and by the indices.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.cpu.jit import jit

THREADS = 256
# Kernels of versions 2 to 4, by the text and by the indices that are printed, and whether neighbouring threads read
# neighbouring numbers of their matrix, [from, to].
VERSIONS = {2: ("thread_for_state", False), 3: ("transposed", True), 4: ("cached", True)}
PRINTED = {2: ("transposed", True), 3: ("thread_for_state", False), 4: ("cached_as_printed", False)}

Floats = npt.NDArray[np.float32]
States = npt.NDArray[np.int32]


@jit
def serial(start: Any, into: Any, emissions: Any, symbols: Any, path: Any) -> float:
    """Version 1: write the most probable path of one sequence and return its log probability.

    start: [states]. into: [to, from], so that the inner loop reads neighbouring numbers. emissions: [symbols, states].
    symbols: [steps]. path: int32 [steps].
    """
    steps, states = len(symbols), len(start)
    back = np.empty((steps, states), np.int32)
    before, after = np.empty(states, np.float32), np.empty(states, np.float32)
    for j in range(states):
        before[j] = start[j] + emissions[symbols[0], j]
    for t in range(1, steps):
        for j in range(states):
            best, found = before[0] + into[j, 0], 0
            for i in range(1, states):
                total = before[i] + into[j, i]
                if total > best:
                    best, found = total, i
            after[j] = best + emissions[symbols[t], j]
            back[t, j] = found
        before, after = after, before
    state = 0
    for j in range(1, states):
        if before[j] > before[state]:
            state = j
    for t in range(steps - 1, -1, -1):
        path[t] = state
        if t > 0:
            state = back[t, state]
    return float(before[path[steps - 1]])


def lines_read(coalesced: bool, states: int, threads: int = 32, line: int = 128) -> int:
    """Return the lines of memory that threads with neighbouring states touch when they read a transition each.

    coalesced: whether the matrix is [from, to], or [to, from]. line: bytes.
    """
    places = 4 * np.arange(threads) * (1 if coalesced else states)
    return len(np.unique(places // line))


def source() -> str:
    """Return the CUDA C++ source of versions 2 to 4."""
    text = (Path(__file__).parent / "viterbi_versions.cu").read_text()
    return f"enum {{ THREADS = {THREADS} }};\n{text}"


class GpuVersion:
    """A kernel of `VERSIONS` or `PRINTED` for one sequence, on the current CUDA device; ImportError without CuPy.

    start: [states]. transition: [from, to]. emissions: [symbols, states]. symbols: [steps].
    """

    def __init__(
        self, version: tuple[str, bool], start: Floats, transition: Floats, emissions: Floats, symbols: Any
    ) -> None:
        import cupy

        name, coalesced = version
        self._kernel, self.cupy = _module().get_function(name), cupy
        self._matrix = cupy.asarray(np.ascontiguousarray(transition if coalesced else transition.T))
        self._emissions, self._symbols = cupy.asarray(np.ascontiguousarray(emissions)), symbols
        self.states, self.steps = len(start), len(symbols)
        self._rows = cupy.empty((2, self.states), np.float32)
        self._rows[0] = cupy.asarray(start) + self._emissions[int(symbols[0])]
        self._back = cupy.empty((self.steps, self.states), np.int32)
        self._first = self._rows[0].copy()

    def forward(self) -> None:
        """Enqueue all steps."""
        self._rows[0] = self._first
        blocks, states = -(-self.states // THREADS), np.int32(self.states)
        for t in range(1, self.steps):
            arguments = self._rows[(t - 1) % 2], self._matrix, self._emissions[int(self._symbols[t])]
            self._kernel((blocks,), (THREADS,), (*arguments, self._rows[t % 2], self._back[t], states))

    def path(self) -> tuple[float, States]:
        """Wait, and return the log probability and the most probable path, traced on the host as in the paper."""
        last, back = (self.cupy.asnumpy(each) for each in (self._rows[(self.steps - 1) % 2], self._back))
        path = np.empty(self.steps, np.int32)
        state = int(last.argmax())
        value = float(last[state])
        for t in range(self.steps - 1, -1, -1):
            path[t] = state
            state = int(back[t, state]) if t else state
        return value, path


@cache
def _module() -> Any:
    import cupy

    return cupy.RawModule(code=source(), options=("-std=c++17",))
