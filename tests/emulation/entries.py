"""Contractions of one case: their GPU kernels compiled for the CPU."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.gpu import entries as entries_gpu
from junctor_kernels.gpu.entries import SIGN, EntryLaunch, launches_of, record
from junctor_kernels.tables import reference
from junctor_kernels.tables.reference import Algebra

from emulation.build import built

HERE = Path(__file__).parent
ALGEBRAS = reference.ALGEBRAS


def library(algebra: str) -> ctypes.CDLL:
    return compiled(entries_gpu.source(algebra))


@cache
def compiled(source: str) -> ctypes.CDLL:
    """The kernels of a source, compiled for the CPU."""
    before, after = (HERE / "entries.h").read_text(), (HERE / "entries_launch.h").read_text()
    return built(before, source, after)


def emulated(
    launch: EntryLaunch,
    tables: list[Any],
    out: Any,
    algebra: str,
    scale: float | None = None,
    lead: Any = None,
    adds: bool = False,
) -> Any:
    """Run a launch; returns the extremes as the kernel leaves them. scale: neutral if not given."""
    extremes = np.zeros(2, dtype=f"u{ALGEBRAS[algebra].dtype.itemsize}")
    scale = ALGEBRAS[algebra].one if scale is None else scale
    operands = [
        (
            *(each.ctypes.data for each in (table, o.panels, o.places, o.far, o.near)),
            entries_gpu.bits_of(scale),
            lead.ctypes.data if lead is not None else 0,
            lead is not None and len(lead) > 2,
        )
        for table, o in zip([*tables, out] if launch.has_result else tables, launch.offsets, strict=True)
    ]
    words = record(launch, out.ctypes.data, extremes.ctypes.data, adds, operands)
    if launch.begins is not None:
        words[entries_gpu.OUT_PANELS] = launch.begins.ctypes.data
    library(algebra).launch(
        launch.name.encode(), ctypes.c_void_p(words.ctypes.data), launch.blocks, entries_gpu.THREADS
    )
    return extremes


def reduced(what: Any, tables: list[Any], algebra: str) -> tuple[Any, Any]:
    """Contract as the GPU does; returns the table and the extremes of it."""
    dtype = ALGEBRAS[algebra].dtype
    extremes = None
    for launch in launches_of(what):
        out = np.full(launch.entries, np.nan, dtype)
        extremes = emulated(launch, tables, out, algebra)
        tables = [out]
    return tables[0], extremes


def ranks_of(entries: npt.NDArray[Any], algebra: Algebra) -> npt.NDArray[Any]:
    """Return the words that kernels compare instead of entries, in their order."""
    words = np.ascontiguousarray(entries).view(f"u{algebra.dtype.itemsize}")
    return np.where(words >> 63 != 0, ~words, words | SIGN) if algebra.logs else words
