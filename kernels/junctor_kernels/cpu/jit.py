"""How kernels are compiled: one place for the options that all of them share (Numba)."""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def jit(function: Any, fastmath: Any = False, inside: bool = False) -> Any:
    """Return `function` compiled without the interpreter lock, kept on disk where there is a place for it.

    fastmath: the liberties that may be taken with IEEE arithmetic, as Numba takes them; none by default. inside: a
    part of whoever calls it, so that what it is given and returns stays in registers.
    """
    options = {"nogil": True, "error_model": "numpy", "fastmath": fastmath, "forceinline": inside}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:
        # Nowhere to keep compiled code: neither beside the module nor in the user's cache directory.
        return numba.njit(**options)(function)


def inside(function: Any) -> Any:
    """Return `function` compiled as a part of whoever calls it."""
    return jit(function, inside=True)


def _lowest_bit(_typing: Any, _word: Any) -> Any:
    """Return the position of the lowest set bit of a uint64, which must not be 0."""

    def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], cgutils.true_bit)

    return types.int64(types.uint64), code


lowest_bit: Any = intrinsic(_lowest_bit)


def _as_float(_typing: Any, _word: Any) -> Any:
    """Return the float64 whose bits are a uint64."""

    def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.uint64), code


def _as_bits(_typing: Any, _number: Any) -> Any:
    """Return the bits of a float64 as a uint64."""

    def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(64))

    return types.uint64(types.float64), code


as_float: Any = intrinsic(_as_float)
as_bits: Any = intrinsic(_as_bits)
