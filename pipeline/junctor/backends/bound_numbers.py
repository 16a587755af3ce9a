"""Numbers that a plan is bound to, kept in the user's cache: to compute them takes longer than a thousand rows.

Main function: `bound`, called by `backends.numpy`; main class: BoundNumbers.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
from junctor_kernels.tables.reference import Algebra

from junctor.backends.scaled_table import Floats, ScaledTable, Table, floor_of
from junctor.cost.model import cpu_name
from junctor.model.network import Network
from junctor.planning.plan import Plan, Potential, Reduce
from junctor.runtime.cache import user_cache

KIND = "bound"
# Part of the key: other numbers, another one.
BINDING = 3
# Plans of fewer steps are bound in a few hundredths of a second, and more bytes take too much of the cache.
KEPT_STEPS, MOST_BYTES = 500, 1 << 25
# Of a shared table, one number each.
_FACTS = ("exponent", "lost", "open", "least")


@dataclass(frozen=True, eq=False, slots=True)
class FactorColumns:
    """A factor as a matrix, scaled column by column; a case reads the column of its observed states.

    Where all variables of a factor are observed, its entries are in double precision.

    table: [configurations of free variables, configurations of observed ones].
    exponent, least: float64 [columns], as in ScaledTable.
    observed: observed variables of the factor.
    radices: stride of each of them in the number of a column.
    """

    table: Table
    exponent: Floats
    least: Floats
    observed: tuple[int, ...]
    radices: tuple[int, ...]

    def at(self, states: Mapping[int, npt.NDArray[np.integer]], cases: int) -> npt.NDArray[np.int64]:
        """Return the column of every case; states: observed variable -> integers [cases]."""
        column = np.zeros(cases, dtype=np.int64)
        for variable, radix in zip(self.observed, self.radices, strict=True):
            column += np.multiply(states[variable], radix, dtype=np.int64)
        return column


@dataclass(frozen=True, eq=False, slots=True)
class BoundNumbers:
    """What a program has of a network.

    shared: table -> its numbers, of all tables that cases share.
    columns: of sliced factors, in the order of their steps, then of the constants.
    growth: float64 [reductions], growth of losses.
    """

    shared: dict[int, ScaledTable]
    columns: list[FactorColumns]
    growth: Floats


def bound(
    plan: Plan, network: Network, algebra: Algebra, compiled: bool, make: Callable[[], BoundNumbers]
) -> BoundNumbers:
    """Return the numbers of a plan, from the user's cache where they are there.

    plan, network, algebra: of the program.
    compiled: whether large contractions are made in compiled code, which adds in another order.
    make: computes them.
    """
    if len(plan.steps) < KEPT_STEPS or 8 * plan.shared_entries() > MOST_BYTES:
        return make()
    # Processors differ in last bits, and machines may share a home.
    key = BINDING, network.digest, plan.digest, algebra.name, compiled, cpu_name()
    return user_cache().kept(KIND, repr(key), lambda content: _parsed(content, plan, algebra), make, _to_bytes)


def _to_bytes(numbers: BoundNumbers) -> bytes:
    shared, columns = numbers.shared.values(), numbers.columns
    arrays: dict[str, Any] = {
        "tables": _joined(value.table for value in shared),
        "facts": np.array([[getattr(value, name)[0] for name in _FACTS] for value in shared]).reshape(-1, len(_FACTS)),
        "columns": _joined(value.table for value in columns),
        "exponents": _joined(value.exponent for value in columns),
        "leasts": _joined(value.least for value in columns),
        "growth": numbers.growth,
    }
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _joined(arrays: Iterable[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.concatenate([np.zeros(0, np.float32), *(array.reshape(-1) for array in arrays)])


def _parsed(content: bytes, plan: Plan, algebra: Algebra) -> BoundNumbers:
    """Return the numbers of a plan; raises ValueError for other bytes."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        names = [number for number, _ in _shared_tables(plan)]
        sizes = [(entries, 1) for _, entries in _shared_tables(plan)]
        cuts = [cut_scope(plan, factor) for factor in plan.sliced_factors()]
        shapes = [(plan.shape.entries(free), plan.shape.entries(observed)) for free, observed in cuts]
        facts = arrays["facts"].astype(np.float64, copy=False)
        growth = arrays["growth"].astype(np.float64, copy=False)
        reductions = sum(isinstance(step, Reduce) for step in plan.steps)
        if facts.shape != (len(names), len(_FACTS)) or growth.shape != (reductions,):
            raise ValueError("no numbers of this plan")
        tables = _parts(arrays["tables"].astype(algebra.dtype, copy=False), sizes)
        shared = {name: _table(table, fact) for name, table, fact in zip(names, tables, facts, strict=True)}
        lines = [(columns,) for _, columns in shapes]
        # The constants are the last ones.
        kinds = [algebra.dtype] * (len(cuts) - len(plan.constants)) + [np.dtype(np.float64)] * len(plan.constants)
        parts = _parts(arrays["columns"], shapes)
        columns = zip(
            (part.astype(kind, copy=False) for part, kind in zip(parts, kinds, strict=True)),
            _parts(arrays["exponents"].astype(np.float64, copy=False), lines),
            _parts(arrays["leasts"].astype(np.float64, copy=False), lines),
            (observed for _, observed in cuts),
            (radices_of(plan, observed) for _, observed in cuts),
            strict=True,
        )
        return BoundNumbers(shared, [FactorColumns(*each) for each in columns], growth)
    except (KeyError, TypeError, OSError, EOFError, BadZipFile) as error:
        raise ValueError(f"no numbers: {error}") from error


def _table(table: Table, facts: Floats) -> ScaledTable:
    exponent, lost, still_open, least = (facts[i : i + 1] for i in range(len(_FACTS)))
    return ScaledTable(table, exponent, lost, still_open, least, floor_of(least), not (lost.any() or still_open.any()))


def _parts(numbers: npt.NDArray[Any], shapes: Sequence[tuple[int, ...]]) -> list[npt.NDArray[Any]]:
    """Return arrays of some shapes that lie one after the other; raises ValueError for another number of numbers."""
    ends = np.cumsum([0, *map(math.prod, shapes)]).tolist()
    if numbers.shape != (ends[-1],):
        raise ValueError("no numbers of this plan")
    return [numbers[ends[i] : ends[i + 1]].reshape(shape) for i, shape in enumerate(shapes)]


def _shared_tables(plan: Plan) -> list[tuple[int, int]]:
    """Return number and entries of the tables that cases share, in the order of their steps."""
    made = (step.out for step in plan.steps if isinstance(step, Potential | Reduce))
    return [(table, plan.tables[table].entries) for table in made if not plan.tables[table].per_case]


def cut_scope(plan: Plan, factor: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the free and the observed variables of a factor."""
    scope, sliced = plan.shape.scopes[factor], plan.pattern.sliced
    return tuple([v for v in scope if v not in sliced]), tuple([v for v in scope if v in sliced])


def radices_of(plan: Plan, observed: tuple[int, ...]) -> tuple[int, ...]:
    """Return the stride of each observed variable of a factor in the number of its column."""
    return tuple([plan.shape.entries(observed[i + 1 :]) for i in range(len(observed))])
