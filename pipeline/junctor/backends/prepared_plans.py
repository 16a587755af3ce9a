"""What stays of plans from process to process: the plan, the numbers that it is bound to, how it is lowered.

Main functions: `kept_plan`, called by facts, `kept_numbers`, which programs are handed, and `lowered`, called by
the compiled backends; main class: Section, the one reader of all of them, and of plans in chunks.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from junctor_kernels.tables.axes import Contraction, Strides
from junctor_kernels.tables.reference import Algebra

from junctor.backends.bound_numbers import BoundNumbers, FactorColumns, cut_scope, radices_of
from junctor.backends.numpy import Program
from junctor.backends.scaled_table import Floats, ScaledTable, Table, floor_of
from junctor.cost.model import cpu_name
from junctor.planning import plan as steps
from junctor.planning.elimination import SEARCHED
from junctor.planning.plan import Free, Likelihood, Plan, Potential, Reduce, Slice, Step
from junctor.planning.shape import Pattern, Shape
from junctor.runtime.cache import user_cache

if TYPE_CHECKING:
    from junctor.backends.lowering import LoweredPlan
    from junctor.backends.register_tiles import Shapes

Content = TypeVar("Content")
# NumPy arrays by name.
Arrays = dict[str, Any]
# Parts of keys: another way to plan (or to search for an order), or other numbers, another one.
PLANNING, BINDING = 5, 4
# Plans of smaller networks are made in a few milliseconds, and there may be many of fewer rows, but not where each row
# takes so many operations, or an order was searched for. Of networks of more variables the key takes longer than some
# rows.
LEAST_VARIABLES, LEAST_ROWS, LEAST_OPERATIONS, MOST_VARIABLES = 100, 1024, 1e8, 2000
# Shorter plans are bound and lowered in a tenth of a second or less; more bytes of numbers take too much of the cache.
KEPT_STEPS, MOST_BYTES = 500, 1 << 25
# Of a shared table, one number each.
FACTS = ("exponent", "lost", "open", "least")
# Arrays of a bytecode that depend on the plan and on zeros alone; the others are numbers.
STRUCTURE = (
    *("steps", "parents", "operands", "offsets", "span", "terms", "results", "observed"),
    *("trace", "traced", "variables"),
)
_KINDS: tuple[type[Step], ...] = (Potential, Slice, Likelihood, Reduce, Free)


@dataclass(frozen=True, slots=True)
class Section(Generic[Content]):
    """A kind of entries in the user's cache: an .npz of a record of JSON and arrays.

    kind: of the entries.
    pack: content -> its record and its arrays.
    unpack: record, arrays and what the content is for -> content; any exception means that they hold none.
    """

    kind: str
    pack: Callable[[Content], tuple[Any, Arrays]]
    unpack: Callable[..., Content]

    def to_bytes(self, content: Content) -> bytes:
        """Return the bytes of an entry."""
        (record, arrays), file = self.pack(content), io.BytesIO()
        text = json.dumps(record, separators=(",", ":"))
        np.savez(file, record=np.frombuffer(text.encode(), np.uint8), **arrays)
        return file.getvalue()

    def read(self, entry: bytes, *about: Any) -> Content:
        """Return the content of an entry, checked against what it is for (`about`)."""
        with np.load(io.BytesIO(entry), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        return self.unpack(json.loads(arrays.pop("record").tobytes()), arrays, *about)

    def find(self, key: object, *about: Any) -> Content | None:
        """Return what is kept under a key, None where there is nothing."""
        return user_cache().read(self.kind, repr(key), lambda entry: self.read(entry, *about))

    def keep(self, key: object, content: Content) -> None:
        """Keep a content under all that it depends on."""
        user_cache().write(self.kind, repr(key), self.to_bytes(content))

    def kept(
        self,
        key: object,
        about: tuple[Any, ...],
        make: Callable[[], Content],
        is_worth: Callable[[Content], bool] = lambda _: True,
    ) -> Content:
        """Return what is kept under a key, or what is made, kept where that is worth it."""
        return user_cache().kept(
            self.kind, repr(key), lambda entry: self.read(entry, *about), make, self.to_bytes, is_worth
        )


def kept_plan(
    shape: Shape,
    pattern: Pattern,
    targets: tuple[int, ...] | None,
    explain: bool,
    rows: int,
    make: Callable[[], Plan],
) -> Plan:
    """Return a plan, made unless it is kept; networks of one shape share it.

    make: compiles the plan.
    All others: as of `compile_plan`.
    """
    variables = len(shape.cardinalities)
    if rows < LEAST_ROWS and not LEAST_VARIABLES <= variables <= MOST_VARIABLES:
        return make()

    def is_worth(plan: Plan) -> bool:
        is_of_many = rows >= LEAST_ROWS and variables >= LEAST_VARIABLES
        return is_of_many or plan.criterion == SEARCHED or plan.operations >= LEAST_OPERATIONS

    key = PLANNING, shape, sorted(pattern.sliced), sorted(pattern.weighted), targets, explain, rows
    return PLAN.kept(key, (shape, pattern), make, is_worth)


def kept_numbers(program: Program, make: Callable[[], BoundNumbers]) -> BoundNumbers:
    """Return the numbers of a program, computed unless they are kept."""
    plan, algebra = program.plan, program.algebra
    if len(plan.steps) < KEPT_STEPS or 8 * plan.shared_entries() > MOST_BYTES:
        return make()
    # Compiled code adds in another order. Processors differ in last bits, and machines may share a home.
    key = BINDING, program.network.digest, plan.digest, algebra.name, bool(program.threads), cpu_name()
    return NUMBERS.kept(key, (plan, algebra), make)


def lowered(
    program: Program,
    cases: int,
    state_rows: dict[int, int],
    shapes: Shapes | None = None,
    places: tuple[dict[int, int], int] | None = None,
) -> LoweredPlan:
    """Return the lowered plan of a program, lowered unless it is kept; arguments as of `Lowering`."""
    # Imported where plans are lowered.
    from junctor.backends.lowering import LoweredPlan, Lowering
    from junctor.backends.register_tiles import CPU_SHAPES

    what = cases, state_rows, CPU_SHAPES if shapes is None else shapes, places

    def make() -> LoweredPlan:
        return LoweredPlan.of(Lowering(program, *what))

    if len(program.plan.steps) < KEPT_STEPS:
        return make()
    # All that a lowering depends on: which entries are zero does on the network and on the number format.
    key = program.network.digest, program.plan.digest, program.algebra.name, what
    return LOWERED.kept(key, (program,), make)


def _pack_plan(plan: Plan) -> tuple[Any, Arrays]:
    """Return a plan without its shape and pattern."""
    tables = [astuple(table) for table in plan.tables]
    done = [(_KINDS.index(type(step)), *astuple(step)) for step in plan.steps]
    numbers = plan.totals, plan.edges, plan.constants, plan.traceback, plan.clique_entries
    return (tables, done, plan.marginals, *numbers, plan.criterion), {}


def _unpack_plan(record: Any, _: Arrays, shape: Shape, pattern: Pattern) -> Plan:
    tables, done, *others, criterion = record
    made = tuple(steps.Table(tuple(scope), entries, per_case) for scope, entries, per_case in tables)
    done = tuple(_KINDS[kind](*map(_as_tuple, fields)) for kind, *fields in done)
    rest: list[Any] = [*(tuple(map(_as_tuple, each)) for each in others), criterion]
    plan = Plan(shape, pattern, made, done, *rest)
    _check(plan)
    return plan


def _as_tuple(field: Any) -> Any:
    return tuple(field) if isinstance(field, list) else field


def _check(plan: Plan) -> None:
    """Raise ValueError for numbers that are none of the plan's tables, of its factors or of its variables."""
    tables, factors, variables = set[int](), set(plan.constants), {v for table in plan.tables for v in table.scope}
    for step in plan.steps:
        match step:
            case Reduce(out, operands, eliminated):
                tables.update((out, *operands))
                variables.update(eliminated)
            case Potential(out, members):
                tables.add(out)
                factors.update(members)
            case Slice(out, factor):
                tables.add(out)
                factors.add(factor)
            case Likelihood(out, variable):
                tables.add(out)
                variables.add(variable)
            case Free(table):
                tables.add(table)
    tables.update(plan.totals, (table for _, table in plan.marginals), chain.from_iterable(plan.edges))
    variables.update(v for v, _ in plan.marginals)
    shape = plan.shape
    bounds = (tables, plan.tables), (factors, shape.scopes), (variables, shape.cardinalities)
    if not all(numbers <= set(range(len(those))) for numbers, those in bounds):
        raise ValueError("a number of nothing")


def _pack_numbers(numbers: BoundNumbers) -> tuple[Any, Arrays]:
    shared, columns = numbers.shared.values(), numbers.columns
    arrays: Arrays = {
        "tables": _joined(value.table for value in shared),
        "facts": np.array([[getattr(value, name)[0] for name in FACTS] for value in shared]).reshape(-1, len(FACTS)),
        "columns": _joined(value.table for value in columns),
        "exponents": _joined(value.exponent for value in columns),
        "leasts": _joined(value.least for value in columns),
        "growth": numbers.growth,
    }
    return None, arrays


def _joined(arrays: Iterable[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.concatenate([np.zeros(0, np.float32), *(array.reshape(-1) for array in arrays)])


def _unpack_numbers(_: Any, arrays: Arrays, plan: Plan, algebra: Algebra) -> BoundNumbers:
    made = (step.out for step in plan.steps if isinstance(step, Potential | Reduce))
    names = [table for table in made if not plan.tables[table].per_case]
    cuts = [cut_scope(plan, factor) for factor in plan.sliced_factors()]
    shapes = [(plan.shape.entries(free), plan.shape.entries(observed)) for free, observed in cuts]
    lines = [(columns,) for _, columns in shapes]
    facts, growth, exponents, leasts = (
        arrays[name].astype(np.float64, copy=False) for name in ("facts", "growth", "exponents", "leasts")
    )
    if facts.shape != (len(names), len(FACTS)) or growth.shape != (sum(isinstance(s, Reduce) for s in plan.steps),):
        raise ValueError("no numbers of this plan")
    tables = _parts(arrays["tables"].astype(algebra.dtype, copy=False), [(plan.tables[n].entries, 1) for n in names])
    # The constants are the last ones.
    kinds = [algebra.dtype] * (len(cuts) - len(plan.constants)) + [np.dtype(np.float64)] * len(plan.constants)
    columns = zip(
        (part.astype(kind, copy=False) for part, kind in zip(_parts(arrays["columns"], shapes), kinds, strict=True)),
        _parts(exponents, lines),
        _parts(leasts, lines),
        (observed for _, observed in cuts),
        (radices_of(plan, observed) for _, observed in cuts),
        strict=True,
    )
    shared = {name: _table(table, fact) for name, table, fact in zip(names, tables, facts, strict=True)}
    return BoundNumbers(shared, [FactorColumns(*each) for each in columns], growth)


def _table(table: Table, facts: Floats) -> ScaledTable:
    exponent, lost, still_open, least = (facts[i : i + 1] for i in range(len(FACTS)))
    return ScaledTable(table, exponent, lost, still_open, least, floor_of(least), not (lost.any() or still_open.any()))


def _parts(numbers: npt.NDArray[Any], shapes: Sequence[tuple[int, ...]]) -> list[npt.NDArray[Any]]:
    """Return arrays of some shapes that lie one after the other; raises ValueError for another number of numbers."""
    ends = np.cumsum([0, *map(math.prod, shapes)]).tolist()
    if numbers.shape != (ends[-1],):
        raise ValueError("no numbers of this plan")
    return [numbers[ends[i] : ends[i + 1]].reshape(shape) for i, shape in enumerate(shapes)]


def _pack_lowered(plan: LoweredPlan) -> tuple[Any, Arrays]:
    """Return a lowered plan without its numbers."""
    shared = [(product and astuple(product)[:3], of) for product, of in plan.numbers.shared]
    places = [list(each.items()) for each in (plan.slots, plan.likelihoods, plan.posteriors)]
    rows = plan.likelihood_rows, plan.posterior_rows, plan.arena_rows
    record = plan.numbers.sliced, shared, plan.numbers.tables, places, rows
    return record, {name: getattr(plan.code, name) for name in STRUCTURE}


def _unpack_lowered(record: Any, arrays: Arrays, program: Program) -> LoweredPlan:
    """Return a lowered plan with the numbers of a program."""
    from junctor_kernels.cpu.bytecode import Bytecode

    from junctor.backends.lowering import LoweredPlan, NumberTables

    numbers, nothing = NumberTables(), np.zeros(0)
    numbers.sliced, shared, numbers.tables, places, rows = record
    numbers.shared = [(product and _contraction(*product), tuple(of)) for product, of in shared]
    code = Bytecode(**arrays, growth=nothing, columns=nothing, facts=nothing, shared=nothing, tiny=0.0)
    slots, likelihoods, posteriors = map(dict, places)
    likelihood_rows, posterior_rows, arena_rows = rows
    evidence = likelihoods, likelihood_rows
    return LoweredPlan(numbers.code(code, program), numbers, slots, *evidence, posteriors, posterior_rows, arena_rows)


def _contraction(kept: Sequence[int], eliminated: Sequence[int], operands: Sequence[Any]) -> Contraction:
    strides = tuple(Strides(tuple(there), tuple(gone)) for there, gone in operands)
    return Contraction(tuple(kept), tuple(eliminated), strides)


PLAN = Section("plan", _pack_plan, _unpack_plan)
NUMBERS = Section("bound", _pack_numbers, _unpack_numbers)
LOWERED = Section("lowered", _pack_lowered, _unpack_lowered)
