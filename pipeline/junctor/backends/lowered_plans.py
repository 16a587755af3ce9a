"""Lowered plans, kept in the user's cache: lowering takes longer than a thousand rows of a large network.

Main function: `lowered`, called by `backends.cpu` and the GPU backend; main class: LoweredPlan.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import Any
from zipfile import BadZipFile

import numpy as np
from junctor_kernels.cpu.bytecode import Bytecode
from junctor_kernels.tables.axes import Contraction, Strides

from junctor.backends import register_tiles as tiles
from junctor.backends.lowering import Lowering, NumberTables
from junctor.backends.numpy import Program
from junctor.runtime.cache import user_cache

# Shorter plans are lowered in a tenth of a second or less.
KEPT_STEPS = 500
KIND = "lowered"

# Arrays of a bytecode that depend on the plan and on zeros alone; the others are numbers.
_STRUCTURE = (
    *("steps", "parents", "operands", "offsets", "span", "terms", "results", "observed"),
    *("trace", "traced", "variables"),
)


@dataclass(frozen=True, eq=False, slots=True)
class LoweredPlan:
    """What a lowering leaves: the bytecode, where its numbers come from, and rows of the memory of a block.

    Fields but `code` are those of `Lowering`.
    """

    code: Bytecode
    numbers: NumberTables
    slots: dict[int, int]
    likelihoods: dict[int, int]
    likelihood_rows: int
    posteriors: dict[int, int]
    posterior_rows: int
    arena_rows: int

    @classmethod
    def of(cls, made: Lowering) -> LoweredPlan:
        """Return what remains of a lowering."""
        evidence = made.likelihoods, made.likelihood_rows
        return cls(
            made.code(), made.numbers, made.slots, *evidence, made.posteriors, made.posterior_rows, made.arena_rows
        )


def lowered(
    program: Program,
    cases: int,
    state_rows: dict[int, int],
    shapes: tiles.Shapes = tiles.CPU_SHAPES,
    places: tuple[dict[int, int], int] | None = None,
) -> LoweredPlan:
    """Return the lowered plan of a program, from the user's cache where it is there; arguments as of `Lowering`."""

    def made() -> LoweredPlan:
        return LoweredPlan.of(Lowering(program, cases, state_rows, shapes, places))

    if len(program.plan.steps) < KEPT_STEPS:
        return made()
    # All that a lowering depends on: which entries are zero does on the network and on the number format.
    what = program.network.digest, program.plan.digest, program.algebra.name
    key = repr((*what, cases, state_rows, shapes, places))
    return user_cache().kept(KIND, key, lambda content: _parsed(content, program), made, _to_bytes)


def _to_bytes(plan: LoweredPlan) -> bytes:
    """Return the bytes of a lowered plan without its numbers."""
    shared = [(_record(product), of) for product, of in plan.numbers.shared]
    record = {
        "numbers": {"sliced": plan.numbers.sliced, "shared": shared, "tables": plan.numbers.tables},
        "dicts": {name: list(getattr(plan, name).items()) for name in ("slots", "likelihoods", "posteriors")},
        "rows": {name: getattr(plan, name) for name in ("likelihood_rows", "posterior_rows", "arena_rows")},
    }
    arrays = {name: getattr(plan.code, name) for name in _STRUCTURE}
    file = io.BytesIO()
    np.savez(file, record=np.frombuffer(json.dumps(record).encode(), np.uint8), **arrays)
    return file.getvalue()


def _parsed(content: bytes, program: Program) -> LoweredPlan:
    """Return a lowered plan with the numbers of a program; raises ValueError for other bytes."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        record = json.loads(arrays.pop("record").tobytes())
        numbers = NumberTables()
        numbers.sliced, numbers.tables = record["numbers"]["sliced"], record["numbers"]["tables"]
        numbers.shared = [(_contraction(product), tuple(of)) for product, of in record["numbers"]["shared"]]
        nothing = np.zeros(0)
        code = Bytecode(**arrays, growth=nothing, columns=nothing, facts=nothing, shared=nothing, tiny=0.0)
        rows: dict[str, Any] = {name: dict(items) for name, items in record["dicts"].items()}
        return LoweredPlan(numbers.code(code, program), numbers, **rows, **record["rows"])
    except (KeyError, TypeError, IndexError, OSError, EOFError, BadZipFile) as error:
        raise ValueError(f"no lowered plan: {error}") from error


def _record(what: Contraction | None) -> object:
    if what is None:
        return None
    return what.kept, what.eliminated, [(strides.kept, strides.eliminated) for strides in what.operands]


def _contraction(record: Any) -> Contraction | None:
    if record is None:
        return None
    kept, eliminated, operands = record
    strides = tuple(Strides(tuple(there), tuple(gone)) for there, gone in operands)
    return Contraction(tuple(kept), tuple(eliminated), strides)
