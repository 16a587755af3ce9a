"""Kernels run by Python itself while there is no compiled code of them: small work takes less than compiling it.

Main class: `Interpreted`, which `jit.gradual` puts in place of a kernel. It runs a copy of the kernel in which every
compiled function is the Python function that it is compiled from; what stands for intrinsics is at the end.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from functools import cache
from threading import RLock
from types import CellType, FunctionType, ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from junctor_kernels.cpu.compilation import compilation

Vector = npt.NDArray[Any]

# Entries of all arrays that a kernel is given, up to which Python may run it: a bound on its work.
MOST_ENTRIES = 1 << 17
# Of the environment, and what turns it off.
CACHE, OFF = "JUNCTOR_CACHE", ("0", "off", "no")
PACKAGE = __name__.partition(".")[0]


class Interpreted:
    """A compiled function that Python runs as long as there is no code of it, and the work is small.

    compiled: of `jit`.
    """

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        self.__doc__ = compiled.__doc__

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiled, name)

    def __call__(self, *args: Any) -> Any:
        """Run the kernel, by Python or compiled."""
        if not self._is_worth_it(args):
            return self._compiled(*args)
        started = time.monotonic()
        try:
            # Whole numbers wrap around, and a division by zero gives inf or nan, as compiled.
            with np.errstate(all="ignore"):
                result = as_python(self._compiled.py_func)(*args)
            # Compiled functions return numbers of Python's.
            return result.item() if isinstance(result, np.generic) else result
        finally:
            compilation.patience -= time.monotonic() - started

    def _is_worth_it(self, args: tuple[Any, ...]) -> bool:
        if self._compiled.overloads or compilation.patience <= 0:
            return False
        # Without a cache, nothing that is kept changes an answer.
        if os.environ.get(CACHE, "").strip().lower() in OFF or _entries(args) > MOST_ENTRIES:
            return False
        return not self._compiled._cache.has_any


def _entries(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.size
    return sum(map(_entries, value)) if isinstance(value, tuple) else 0


def as_python(function: FunctionType) -> Callable[..., Any]:
    """Return a copy of a function for which all that is compiled is Python; the same at every call."""
    # Another thread would meet modules of which half is copied.
    with _lock:
        return _copy(function)


@cache
def _copy(function: FunctionType) -> Callable[..., Any]:
    names = _globals(function.__globals__["__name__"], function.__globals__)
    cells = tuple(CellType(_plain(cell.cell_contents)) for cell in function.__closure__ or ())
    return FunctionType(function.__code__, names, function.__name__, function.__defaults__, cells)


_lock = RLock()
_modules: dict[str, ModuleType] = {}


def _globals(name: str, names: dict[str, Any]) -> dict[str, Any]:
    """Return the global names of a module with Python in place of what is compiled."""
    if name not in _modules:
        # There before it is filled: modules may name one another.
        _modules[name] = ModuleType(name)
        _modules[name].__dict__.update({key: _plain(value) for key, value in names.items()})
    return _modules[name].__dict__


def _plain(value: Any) -> Any:
    if isinstance(value, ModuleType) and value.__name__.startswith(PACKAGE):
        _globals(value.__name__, value.__dict__)
        return _modules[value.__name__]
    if isinstance(value, Interpreted) or hasattr(value, "targetctx"):
        return _copy(value.py_func)
    return _stand_ins.get(id(value), value)


# Python functions, by what intrinsic they stand for.
_stand_ins: dict[int, Callable[..., Any]] = {}


def stand_in(names: dict[str, Any], functions: dict[str, Callable[..., Any]]) -> None:
    """Let Python run functions where a module names intrinsics.

    names: global names of the module.
    functions: by such a name.
    """
    _stand_ins.update({id(names[name]): function for name, function in functions.items()})


def _next_number(address: int) -> int:
    place = ctypes.c_int64.from_address(int(address))
    place.value += 1
    return place.value - 1


def _load(array: Vector, at: Any, lanes: int = 8) -> Vector:
    found = np.zeros(lanes, dtype=array.dtype)
    some = array[int(at) : int(at) + lanes]
    found[: len(some)] = some
    return found


def _store(array: Vector, at: Any, vector: Vector) -> None:
    array[int(at) : int(at) + len(vector)] = vector


def _store_first(array: Vector, at: Any, vector: Vector, count: Any) -> None:
    _store(array, at, vector[: max(0, int(count))])


def _store_apart(array: Vector, at: Any, step: Any, vector: Vector) -> None:
    for number, value in enumerate(vector):
        array[int(at) + number * int(step)] = value


def _first_lanes(vector: Vector, count: Any) -> Vector:
    return np.where(np.arange(len(vector)) < int(count), vector, 0)


def _permuted(vector: Vector, word: Any) -> Vector:
    return vector[[int(word) >> 8 * lane & 7 for lane in range(8)]]


def _least_above_zero(least: Vector, other: Vector) -> Vector:
    candidate = np.where(other > 0, other, np.inf)
    return np.where(candidate < least, candidate, least)


OF_COLUMNS: dict[str, Callable[..., Any]] = {
    "state_at": lambda address: ctypes.c_int32.from_address(int(address)).value,
}
OF_JIT: dict[str, Callable[..., Any]] = {
    "lowest_bit": lambda word: (int(word) & -int(word)).bit_length() - 1,
    "next_number": _next_number,
    "as_float": lambda word: np.uint64(word).view(np.float64),
    "as_bits": lambda number: np.float64(number).view(np.uint64),
}
OF_VECTORS: dict[str, Callable[..., Any]] = {
    "load4": lambda array, at: _load(array, at, 4),
    "load8": _load,
    "spread4": lambda number: np.full(4, number),
    "spread8": lambda number: np.full(8, number),
    "store": _store,
    "store_first": _store_first,
    "store_apart": _store_apart,
    "first_lanes": _first_lanes,
    "permuted": _permuted,
    "halves_sum": lambda vector: vector[: len(vector) // 2] + vector[len(vector) // 2 :],
    "pair_sums": lambda *rows: np.array([(row[0] + row[1]) + (row[2] + row[3]) for row in rows]),
    "lane": lambda vector, number: vector[int(number)],
    "add": lambda one, other: one + other,
    "multiply": lambda one, other: one * other,
    "multiply_add": lambda one, other, total: one * other + total,
    "share_of": lambda one, other: np.divide(one, other, out=np.zeros_like(one), where=other > 0),
    "larger": lambda one, other: np.where(one > other, one, other),
    "least_above_zero": _least_above_zero,
    "highest": lambda vector: vector.max(),
    "lowest": lambda vector: vector.min(),
}
