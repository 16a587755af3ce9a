"""Compilation of kernels: the Numba options that all of them share, and a few LLVM instructions as functions."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from llvmlite.binding import parse_bitcode
from numba import types
from numba.core import cgutils, environment, errors
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    InTreeCacheLocator,
    NullCache,
    UserProvidedCacheLocator,
)
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys
from numba.extending import intrinsic

from junctor_kernels.cpu.compilation import compilation
from junctor_kernels.cpu.interpreted import OF_JIT, Interpreted, stand_in
from junctor_kernels.cpu.sources import stamp_of
from junctor_kernels.cpu.turns import Turn


class _Readable:
    """Mixin of locators: a folder that may be read, whoever writes there."""

    def ensure_cache_path(self) -> None:
        path = self.get_cache_path()  # type: ignore[attr-defined]
        if not os.path.isdir(path):
            raise FileNotFoundError(path)


class _Named(_Readable, UserProvidedCacheLocator):  # type: ignore[misc]
    """The folder of `NUMBA_CACHE_DIR`."""


class _InTree(_Readable, InTreeCacheLocator):  # type: ignore[misc]
    """The folder beside the module."""


class _Loaded(JITCodeLibrary):  # type: ignore[misc]
    """Machine code from disk, and what callers are compiled from: that is parsed where one is, most of the loading."""

    _shared_module: Any

    def __init__(self, codegen: Any, state: tuple[str, str, tuple[bytes, bytes]], wrapper: str) -> None:
        name, _, (code, self._bitcode) = state
        super().__init__(codegen, name)
        self.enable_object_caching()
        self._set_compiled_object(code)
        self._finalize_final_module()
        if wrapper.encode() in code:
            # What Python calls is all that is asked for by name; Numba would list the names in the bitcode.
            codegen._engine._defined_symbols.add(wrapper)
        else:
            self._get_module_for_linking()

    def _get_module_for_linking(self) -> Any:
        if self._shared_module is None:
            self._shared_module = parse_bitcode(self._bitcode)
            self._codegen._engine._load_defined_symbols(self._shared_module)
        return self._shared_module


class _Files(CompileResultCacheImpl):  # type: ignore[misc]
    def rebuild(self, context: Any, payload: Any) -> Any:
        codegen, wrapper = context.codegen(), payload[1].llvm_cpython_wrapper_name
        codegen.unserialize_library = lambda state: _Loaded(codegen, state, wrapper)
        try:
            return super().rebuild(context, payload)
        finally:
            del codegen.unserialize_library


class _ReadOnlyFiles(_Files):
    _locator_classes = (_Named, _InTree)


def _environment(module: str, constants: list[Any], name: str) -> Any:
    """Return the environment of a function in compiled code, without the module of what was compiled into it."""
    found = environment.lookup_environment(name)
    if found is None:
        there = sys.modules.get(module)
        # Only code with Python objects looks anything up there.
        found = environment.Environment({"__name__": module} if there is None else there.__dict__)
        found.consts[:], found.env_name = constants, name
        environment.Environment._memo[name] = found
    return found


class _Loader(FunctionCache):  # type: ignore[misc]
    """Compiled code of a function on disk, loaded without the compiler."""

    _impl_class = _Files

    # Numba first loads the rules by which it types and compiles each built-in, a third of a second. Code that is linked
    # needs none of them, only the functions that count references, where it makes arrays.
    def __init__(self, function: Any) -> None:
        super().__init__(function)
        # Numba would look at the function's own file alone, and run what was compiled into it from others before they
        # were corrected.
        with suppress(OSError):
            self._cache_file._source_stamp = stamp_of(function.__code__.co_filename)
        load = self._cache_file._load_index

        def load_index() -> Any:
            # Numba unpickles before it compares versions: an index of other sources may name types that are gone.
            try:
                return load()
            except OSError:
                raise
            except Exception:
                return {}

        read = self._cache_file._load_data

        def load_data(name: str) -> Any:
            with open(self._cache_file._data_path(name), "rb") as file:
                # Their names: what makes no arrays does without, for a thirtieth of a second.
                if b"NRT_" in file.read():
                    rtsys.initialize(cpu_target.target_context)
            return read(name)

        self._cache_file._load_index, self._cache_file._load_data = load_index, load_data

    def load_overload(self, signature: Any, context: Any) -> Any:
        # Numba's own lock, so that no other thread loads in between.
        with global_compiler_lock:
            # A maximum of NumPy's would come with all of SciPy's linear algebra, a quarter of a second.
            rebuild, environment._rebuild_env = environment._rebuild_env, _environment
            try:
                with self._guard_against_spurious_io_errors():
                    return self._load_overload(signature, context)
            except Exception:
                # Damaged: it is compiled and saved anew.
                return None
            finally:
                environment._rebuild_env = rebuild

    def has(self, signature: Any, context: Any) -> bool:
        """Return True if there is code for a signature, which may be damaged."""
        return self._index_key(signature, context.codegen()) in self._cache_file._load_index()

    @property
    def has_any(self) -> bool:
        """Whether there is code for any signature on this kind of processor, which may be damaged."""
        here = cpu_target.target_context.codegen().magic_tuple()
        return any(key[1] == here for key in self._cache_file._load_index())

    @property
    def turn(self) -> Turn:
        """The turn of this process at compiling the function."""
        return Turn(os.path.join(self.cache_path, f"{self._impl.filename_base}.lock"))


class _ReadOnlyLoader(_Loader):
    """The same for a folder that this user may not write to: an image is built by another one."""

    _impl_class = _ReadOnlyFiles


class _Cache(NullCache):  # type: ignore[misc]
    """The same, opened at the first call: most functions are only called by others, and linked into these."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._turn: Turn | None = None
        self._begun = self._compiles = False

    @cached_property
    def _files(self) -> _Loader | None:
        try:
            return _Loader(self._function)
        except RuntimeError:
            # No writable cache directory, neither next to the module nor in the user's home.
            return None

    @cached_property
    def _installed(self) -> _Loader | None:
        """Compiled code where this user may not write, None without any."""
        try:
            files = _ReadOnlyLoader(self._function)
        except RuntimeError:
            return None
        return None if files.cache_path == self.cache_path else files

    @property
    def cache_path(self) -> Any:
        return None if self._files is None else self._files.cache_path

    def has(self, signature: Any, context: Any) -> bool:
        """Return True if there is code for a signature, which may be damaged."""
        return any(files.has(signature, context) for files in (self._files, self._installed) if files is not None)

    @property
    def has_any(self) -> bool:
        """Whether there is code for any signature, which may be damaged."""
        return any(files.has_any for files in (self._files, self._installed) if files is not None)

    @property
    def is_under_way(self) -> bool:
        """Whether another process compiles the function."""
        if self._files is None:
            return False
        turn = self._files.turn
        is_free = turn.take(0.0)
        turn.end()
        return not is_free

    def load_overload(self, signature: Any, context: Any) -> Any:
        for files in (self._files, self._installed):
            if files is not None and (found := files.load_overload(signature, context)) is not None:
                return found
        compilation.begin()
        self._begun, found = True, None
        if self._files is not None:
            self._turn = self._files.turn
            self._turn.take()
            # Another process may have compiled it meanwhile.
            found = self._files.load_overload(signature, context)
        # If not, Numba compiles now, and saves what it has compiled.
        self._compiles = found is None
        return found

    def save_overload(self, signature: Any, result: Any) -> None:
        if self._files is not None:
            self._files.save_overload(signature, result)

    def end(self) -> None:
        """End what the last load began, if anything."""
        if self._turn is not None:
            self._turn.end()
        if self._begun:
            compilation.end(self._compiles)
        self._turn, self._begun, self._compiles = None, False, False

    def flush(self) -> None:
        if self._files is not None:
            self._files.flush()


class _Draft(JITCodeLibrary):  # type: ignore[misc]
    """Code of a function that only compiled code calls: optimised and made machine code as a part of its callers."""

    @property
    def codegen(self) -> Any:
        return self

    def set_env(self, _name: str, _env: Any) -> None:
        """Leave out the place of Python objects: there is no machine code that would look them up."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


class _Compiler(Compiler):  # type: ignore[misc]
    """Compiler that refuses what the options of a function do not allow."""

    def compile_extra(self, function: Any) -> Any:
        result = super().compile_extra(function)
        # The caller would give back a reference that nobody took.
        if not self.state.flags.nrt and _has_arrays(result.signature.return_type):
            raise TypeError(f"{function.__qualname__} returns an array: it has to be compiled with `arrays`")
        return result


def _has_arrays(kind: Any) -> bool:
    return isinstance(kind, types.Array) or (isinstance(kind, types.BaseTuple) and any(map(_has_arrays, kind.types)))


class _PartCompiler(_Compiler):
    """Compiler of functions that only compiled code calls."""

    # Numba would optimise each function, and each of its callers with a copy of it in it, at every depth of calls.
    def compile_extra(self, function: Any) -> Any:
        self.state.library = _Draft(self.state.targetctx.codegen(), function.__qualname__)
        return super().compile_extra(function)


class _NoColours:
    """What stands for the colours of errors where Colorama is not installed."""

    _markup: Any = None


_colours: Any = getattr(errors, "HighlightColorScheme", _NoColours)


def _plain(_scheme: Any, text: Any, *_style: Any) -> Any:
    """Return the text of an error as it is."""
    return text


def _ended(compiler: Callable[[Any], Any], cache: _Cache) -> Callable[[Any], Any]:
    """Return a dispatcher's `compile` that ends what it begins, also where it fails."""

    def compile_and_end(signature: Any) -> Any:
        # Numba's own lock, so that no other thread begins in between.
        with global_compiler_lock:
            # To infer types, Numba makes thousands of errors that nobody sees; bold type takes a tenth of all its time,
            # and wraps standard output meanwhile.
            bold, _colours._markup = _colours._markup, _plain
            try:
                return compiler(signature)
            finally:
                _colours._markup = bold
                cache.end()

    return compile_and_end


def _nothing() -> None:
    pass


def jit(function: Any, fastmath: Any = False, inline: bool = False, arrays: bool = True, part: bool = False) -> Any:
    """Return a function compiled without the interpreter lock, cached on disk where possible.

    function: Python function in Numba's subset.
    fastmath: Numba's flags for liberties with IEEE arithmetic; none by default.
    inline: whether it is inlined into its callers, so that arguments and results stay in registers.
    arrays: whether it makes arrays, or returns any; otherwise it counts no references, and compiles faster.
    part: whether only compiled code calls it; then it is compiled as a part of its callers.
    """
    compiled = numba.njit(
        # Division by zero gives inf or nan as in the reference, and loops stay free of branches.
        error_model="numpy",
        nogil=True,
        fastmath=fastmath,
        forceinline=inline,
        no_cpython_wrapper=part,
        no_cfunc_wrapper=True,
        _nrt=arrays,
        pipeline_class=_PartCompiler if part else _Compiler,
    )(function)
    if part:
        compiled._cache = NullCache()
    else:
        compiled._cache = _Cache(function)
        compiled.compile = _ended(compiled.compile, compiled._cache)
        # Numba would ask all packages of the environment for types of theirs, which no kernel has.
        compiled._compilation_chain_init_hook = _nothing
    template = compiled.get_call_template
    # Numba would compile a function anew for every constant that it is called with.
    compiled.get_call_template = lambda args, kws: template([types.unliteral(arg) for arg in args], kws)
    return compiled


def loops(function: Any, fastmath: Any = False) -> Any:
    """Return a compiled function that makes and returns no arrays."""
    return jit(function, fastmath, arrays=False)


def gradual(compiled: Any) -> Any:
    """Return a compiled function that Python calls, and runs itself while there is no code of it and little work."""
    return Interpreted(compiled)


def part(function: Any, fastmath: Any = False) -> Any:
    """Return a function for compiled code alone, that makes and returns no arrays."""
    return jit(function, fastmath, arrays=False, part=True)


def part_with_arrays(function: Any) -> Any:
    """Return a function for compiled code alone, that makes or returns arrays."""
    return jit(function, part=True)


def inlined(function: Any) -> Any:
    """Return a function for compiled code alone, inlined into its callers, that makes and returns no arrays."""
    return jit(function, inline=True, arrays=False, part=True)


def _lowest_bit(_typing: Any, _word: Any) -> Any:
    """Return the position of the lowest set bit of a uint64, which must not be 0."""

    def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], cgutils.true_bit)

    return types.int64(types.uint64), code


lowest_bit: Any = intrinsic(_lowest_bit)


def _next_number(_typing: Any, _address: Any) -> Any:
    """Return the int64 at an address, which is one more then; threads that ask at once get different numbers."""

    def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", pointer, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(types.int64), code


next_number: Any = intrinsic(_next_number)


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
stand_in(globals(), OF_JIT)


@inlined
def inverse_power(exponent: int) -> float:
    """Return 2 ** -exponent, for exponents from -1022 to 1024: exact, also where that is below the normal numbers."""
    if exponent > 1022:
        return float(as_float(np.uint64(1) << np.uint64(1074 - exponent)))
    return float(as_float(np.uint64(1023 - exponent) << np.uint64(52)))
