"""Compilation of kernels: the Numba options that all of them share, and a few LLVM instructions as functions."""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def jit(function: Any, fastmath: Any = False, inline: bool = False) -> Any:
    """Return a function compiled without the interpreter lock, cached on disk where possible.

    function: Python function in Numba's subset.
    fastmath: Numba's flags for liberties with IEEE arithmetic; none by default.
    inline: whether it is inlined into its callers, so that arguments and results stay in registers.
    """
    # error_model "numpy": division by zero gives inf or nan as in the reference, and loops stay free of branches.
    options = {"nogil": True, "error_model": "numpy", "fastmath": fastmath, "forceinline": inline}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:
        # No writable cache directory, neither next to the module nor in the user's home.
        return numba.njit(**options)(function)


def inlined(function: Any) -> Any:
    """Return a function compiled to be inlined into its callers."""
    return jit(function, inline=True)


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
