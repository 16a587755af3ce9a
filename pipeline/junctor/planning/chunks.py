"""Plans for tables that exceed a memory: each message in chunks, consecutive messages in one pass over the chunks.

A *pass* is a run of steps with some *chunk variables* held constant: a task for each of their configurations brings in
what of its operands agrees with that configuration, does the steps, and takes out what others need. What only the pass
itself needs never leaves the working memory. A chunk variable that the last step sums out makes tasks whose results
are added up; all other chunk variables are in the results. So nothing is computed twice.

A stored table is cut over all variables that a pass holds constant which makes or reads it, so that every task finds
its part as whole pieces.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, groupby
from operator import itemgetter, mul
from typing import Literal, NamedTuple

from junctor.planning.plan import Plan, Reduce

Where = Literal["working", "memory", "disk"]

# Steps of a pass: more gain little, and planning would take longer.
MOST_STEPS = 48
# A step joins a pass of more than so many entries only if that spares a share of them: it gets all of the pass's chunk
# variables and no others, and may have to be dealt anew over several GPUs for the sake of next to nothing. Nor does
# anything join behind a step that sums chunk variables out, as marginals of a joint do.
LARGE_PASS, SPARED_SHARE = 1 << 24, 1 / 32
# Passes that further steps may join: those of the branches of a tree that are open.
MOST_OPEN = 16


@dataclass(frozen=True, slots=True)
class ChunkPass:
    """Steps of a plan done together, a task for each configuration of the chunk variables.

    steps: reductions in order.
    fixed: chunk variables, those that the last step sums out behind the others, so that tasks that are added up follow
    each other.
    summed: chunk variables that the last step sums out.
    loads, stores: tables that come in and go out.
    """

    steps: tuple[Reduce, ...]
    fixed: tuple[int, ...]
    summed: tuple[int, ...]
    loads: tuple[int, ...]
    stores: tuple[int, ...]

    @property
    def out(self) -> int:
        """The table of the last step."""
        return self.steps[-1].out


class PassRecord(NamedTuple):
    """What a pass follows from.

    steps: numbers among the reductions of the plan.
    fixed: its chunk variables.
    """

    steps: tuple[int, ...]
    fixed: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class ChunkPlan:
    """Passes, and how the tables between them are cut; all counts are of one case.

    passes: in the order in which they begin.
    cuts: stored table -> its chunk variables, outermost first.
    on_disk: tables kept in files.
    working: the most entries that a task holds at once.
    spans: for each pass when it begins and ends, in any unit, where some go side by side on GPUs; none where each
        begins when the one before ends.
    """

    plan: Plan
    passes: tuple[ChunkPass, ...]
    cuts: Mapping[int, tuple[int, ...]]
    on_disk: frozenset[int]
    working: int
    spans: tuple[tuple[float, float], ...] = ()

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return sum(self.plan.shape.entries(pass_.fixed) for pass_ in self.passes)

    @cached_property
    def loaded(self) -> int:
        """Entries that are brought into the working memory."""
        return sum(loaded_entries(self.plan, pass_) for pass_ in self.passes)

    @cached_property
    def stored(self) -> int:
        """Entries that are taken out of the working memory."""
        return sum(self.plan.tables[table].entries for pass_ in self.passes for table in pass_.stores)

    @cached_property
    def beside(self) -> tuple[int, ...]:
        """For each pass the last one that begins before it ends, itself where no other does."""
        begins = [begin for begin, _ in self.spans]
        # Passes come in the order in which they begin.
        return tuple(bisect.bisect_left(begins, end) - 1 for _, end in self.spans) or tuple(range(len(self.passes)))

    @cached_property
    def needs(self) -> tuple[frozenset[int], ...]:
        """For each pass those that make what it reads."""
        made = {table: n for n, pass_ in enumerate(self.passes) for table in pass_.stores}
        return tuple(frozenset(made[table] for table in pass_.loads if table in made) for pass_ in self.passes)

    def lifetimes(self) -> dict[int, tuple[int, int]]:
        """Return the first and the last pass of every stored table; -1 for those that are there at the beginning.

        The last one is that before which all that read the table have ended, where passes go side by side.
        """
        return _lifetimes(self.passes, self.beside)

    def peak(self, on_disk: bool) -> int:
        """Return the most entries of stored tables at once, of those in memory or of those on disk."""
        alive = {t: life for t, life in self.lifetimes().items() if (t in self.on_disk) == on_disk}
        return max(alive_entries(self.plan, alive, len(self.passes)))

    def layout(self, table: int) -> tuple[int, ...]:
        """Return the scope of a table as it is kept: chunk variables first, so that pieces are contiguous."""
        cuts = self.cuts.get(table, ())
        return (*cuts, *(v for v in self.plan.tables[table].scope if v not in cuts))

    def axes(self, table: int, pass_: ChunkPass) -> tuple[int, ...]:
        """Return the axes of a table's part in a task of a pass."""
        return tuple(v for v in self.layout(table) if v not in pass_.fixed)

    def ordered(self, step: Reduce) -> tuple[int, ...]:
        """Return the operands of a step in the order in which they combine, the smallest first."""
        return tuple(sorted(step.operands, key=lambda table: self.plan.tables[table].entries))

    def piece(self, table: int) -> int:
        """Return the entries of a piece of a stored table: what is contiguous where it is kept."""
        return self.plan.tables[table].entries // self.plan.shape.entries(self.cuts.get(table, ()))


class TooSmallError(ValueError):
    """No way of cutting fits `where`: "working", "memory" or "disk"; `needed` at the least, where `allowed` are."""

    def __init__(self, where: Where, needed: int, allowed: int) -> None:
        super().__init__(f"{where}: {needed} needed, {allowed} allowed")
        self.where: Where = where
        self.needed, self.allowed = needed, allowed


def chunk_plan(
    plan: Plan, working: int, memory: int, disk: int, recorded: Sequence[PassRecord] | None = None
) -> ChunkPlan:
    """Cut a plan so that a task holds at most `working` entries.

    memory, disk: entries that stored tables may take in either.
    recorded: passes of an earlier cut of the same plan, None to look for some.
    Raises TooSmallError where that cannot be, ValueError for records of other passes.
    """
    passes = tuple(_passes(plan, working, memory + disk) if recorded is None else _recorded(plan, working, recorded))
    cuts = _cuts(plan, passes)
    on_disk = _spilled(plan, passes, memory)
    peaks = [parts.peak(parts.entries)[0] for parts in (_Parts(plan, pass_.steps, pass_.fixed) for pass_ in passes)]
    result = ChunkPlan(plan, passes, cuts, on_disk, max(peaks, default=0))
    if result.working > working:
        # Of a plan without passes: the memory is gone before tasks have any.
        raise TooSmallError("working", result.working, working)
    if on_disk and result.peak(on_disk=True) > disk:
        raise TooSmallError("disk", result.peak(on_disk=True), disk)
    if result.peak(on_disk=False) > memory:
        raise TooSmallError("memory", result.peak(on_disk=False), memory)
    return result


def records_of(chunks: ChunkPlan) -> tuple[PassRecord, ...]:
    """Return what `chunk_plan` makes the same passes of."""
    numbers = {step.out: n for n, step in enumerate(_reductions(chunks.plan))}
    return tuple(PassRecord(tuple(numbers[step.out] for step in each.steps), each.fixed) for each in chunks.passes)


def _reductions(plan: Plan) -> list[Reduce]:
    return [step for step in plan.steps if isinstance(step, Reduce)]


def _recorded(plan: Plan, working: int, records: Sequence[PassRecord]) -> list[ChunkPass]:
    """Return the passes of some records; raises ValueError for those that do other work than the plan."""
    steps, cutting = _reductions(plan), _Cutting(plan, working)
    if sorted(n for record in records for n in record.steps) != list(range(len(steps))):
        raise ValueError("not the steps of the plan")
    to_come, passes = {step.out for step in steps}, list[ChunkPass]()
    for record in records:
        made = cutting.recorded_pass([steps[n] for n in record.steps], record.fixed)
        if made is None or not to_come.isdisjoint(made.loads) or list(record.steps) != sorted(record.steps):
            raise ValueError("not a pass of the plan")
        to_come -= {step.out for step in made.steps}
        passes.append(made)
    return passes


def _passes(plan: Plan, working: int, stored: int) -> list[ChunkPass]:
    """Return passes, each behind those that it needs; raises TooSmallError.

    stored: entries that stored tables may take.
    """
    passes = _OpenPasses(plan, working, stored)
    for step in _reductions(plan):
        passes.add(step)
    return passes.close_all()


@dataclass(eq=False, slots=True)
class _OpenPass:
    """A pass that steps may join.

    found: the pass so far, and the entries that it moves.
    tables: that its steps make, and that it brings in of what others make.
    needs: passes that make some of these.
    is_read: whether others read what it makes. Then it needs nothing new from elsewhere: no two passes need each other,
        and nobody waits longer for what is there.
    """

    found: tuple[ChunkPass, int]
    tables: set[int] = field(default_factory=set)
    needs: list[_OpenPass] = field(default_factory=list)
    is_read: bool = False

    def may_take(self, made: AbstractSet[int]) -> bool:
        """Return True if a step may join; made: its operands that steps make."""
        return not made.isdisjoint(self.tables) and (not self.is_read or made <= self.tables)


class _OpenPasses:
    """Passes in the making: a step joins one that has an operand where that moves fewer entries than its own pass."""

    def __init__(self, plan: Plan, working: int, stored: int) -> None:
        self._plan, self._working, self._stored = plan, working, stored
        self._cutting, self._preferred = _Cutting(plan, working), set[int]()
        self._made_by: dict[int, _OpenPass] = {}
        self._open: list[_OpenPass] = []
        self._closed: list[ChunkPass] = []

    def add(self, step: Reduce) -> None:
        """Put a step into the pass where it spares most; raises TooSmallError where it fits nowhere."""
        makers = {table: self._made_by[table] for table in step.operands if table in self._made_by}
        into = self._best_for(step, makers)
        for table, maker in makers.items():
            if table not in into.tables:
                maker.is_read = True
                into.needs.append(maker)
        into.tables |= {*makers, step.out}
        self._made_by[step.out] = into
        pass_, _ = into.found
        self._cutting.held.update(dict.fromkeys(pass_.stores, pass_.fixed))
        if len(self._open) > MOST_OPEN:
            self._close(self._open[0])

    def _best_for(self, step: Reduce, makers: Mapping[int, _OpenPass]) -> _OpenPass:
        """Return the pass with a step in it; makers: of its operands that steps make."""
        alone = self._cutting.fixed_pass([step], self._preferred)
        if alone is None:
            raise TooSmallError("working", _least_working(self._plan, step), self._working)
        into, best, gain = _OpenPass(alone), alone, 0
        # Of equals the one that makes the first operand.
        for other in dict.fromkeys((*makers.values(), *self._open)):
            pass_, moved = other.found
            if other in self._open and other.may_take(makers.keys()) and len(pass_.steps) < MOST_STEPS:
                joined = self._cutting.fixed_pass([*pass_.steps, step], self._preferred)
                spared = moved + alone[1] - joined[1] if joined else 0
                worth = spared > gain and (moved <= LARGE_PASS or spared >= SPARED_SHARE * moved)
                if joined and worth and self._fits(joined[0]):
                    into, best, gain = other, joined, spared
        into.found = best
        if not gain:
            self._open.append(into)
        return into

    def _fits(self, pass_: ChunkPass) -> bool:
        """Return True if all that a pass loads and stores may be there at once."""
        return sum(self._plan.tables[table].entries for table in (*pass_.loads, *pass_.stores)) <= self._stored

    def _close(self, open_: _OpenPass) -> None:
        for needed in open_.needs:
            if needed in self._open:
                self._close(needed)
        self._open.remove(open_)
        pass_, _ = open_.found
        self._preferred.update(pass_.fixed)
        self._closed.append(pass_)

    def close_all(self) -> list[ChunkPass]:
        """Return all passes; no step joins one any more."""
        while self._open:
            self._close(self._open[0])
        return self._closed


def _reads(plan: Plan) -> Counter[int]:
    """Return for every table how many reductions read it, results once more."""
    reads = Counter(table for step in _reductions(plan) for table in step.operands)
    return reads + Counter((*plan.totals, *(table for _, table in plan.marginals)))


class _Cutting:
    """Chooses the chunk variables of passes.

    working: entries that a task may hold.
    held: stored table -> chunk variables of the pass that makes it.
    """

    def __init__(self, plan: Plan, working: int) -> None:
        self._plan, self._working, self._reads = plan, working, _reads(plan)
        self.held: dict[int, tuple[int, ...]] = {}
        # By the table that a step makes.
        self._variables = {step.out: _variables(plan, step) for step in _reductions(plan)}

    def fixed_pass(self, steps: Sequence[Reduce], preferred: AbstractSet[int]) -> tuple[ChunkPass, int] | None:
        """Return the pass of some steps that fits, and the entries that it moves; None where nothing fits.

        Its chunk variables are those that move the least. Between equals those go first that others hold constant, so
        that pieces stay large, and of these the ones that most of what it reads was made with, so that this stays on
        its GPU.
        preferred: variables that others hold constant.
        """
        plan = self._plan
        loads, stores, allowed = self._around(steps)
        made_with = Counter[int]()
        for table in loads:
            made_with.update(dict.fromkeys(self.held.get(table, ()), plan.tables[table].entries))
        chosen: list[int] = []
        parts = _Parts(plan, steps)
        while True:
            peak, at = parts.peak(parts.entries)
            if peak <= self._working:
                fixed, summed = _ordered(chosen, steps[-1])
                loaded = _loaded(plan, fixed, {table: parts.entries[table] for table in loads})
                moved = loaded + sum(plan.tables[table].entries for table in stores)
                return ChunkPass(tuple(steps), fixed, summed, loads, stores), moved
            candidates = (self._variables[at.out] & allowed).difference(chosen)
            entries = {table: parts.entries[table] for table in loads}
            coming = _loaded_with(plan, chosen, steps[-1], entries, candidates)
            keys = sorted(((coming[v], v not in preferred, -made_with[v]), v) for v in candidates)
            # Peaks decide between equals only, and take longest.
            equals = ([v for _, v in tied] for _, tied in groupby(keys, key=itemgetter(0)))
            best = next((v for tied in equals if (v := parts.lowest(tied, peak)) is not None), None)
            if best is None:
                return None
            chosen.append(best)
            parts.hold(best)

    def recorded_pass(self, steps: Sequence[Reduce], fixed: tuple[int, ...]) -> ChunkPass | None:
        """Return the pass of some steps with given chunk variables; None where that cannot be."""
        loads, stores, allowed = self._around(steps)
        ordered, summed = _ordered(fixed, steps[-1])
        if ordered != fixed or len(set(fixed)) < len(fixed) or not allowed.issuperset(fixed):
            return None
        parts = _Parts(self._plan, steps, fixed)
        if parts.peak(parts.entries)[0] > self._working:
            return None
        return ChunkPass(tuple(steps), fixed, summed, loads, stores)

    def _around(self, steps: Sequence[Reduce]) -> tuple[tuple[int, ...], tuple[int, ...], set[int]]:
        """Return the tables that a pass of some steps loads, those that it stores, and its possible chunk variables."""
        made = {step.out for step in steps}
        inside = Counter(table for step in steps for table in step.operands)
        loads = tuple(table for table in inside if table not in made)
        stores = tuple(step.out for step in steps if self._reads[step.out] > inside[step.out])
        # What a step does not depend on would make it be done more than once.
        allowed = set.intersection(*(self._variables[step.out] for step in steps))
        return loads, stores, allowed - {v for step in steps[:-1] for v in step.eliminated}


def _ordered(chosen: Sequence[int], last: Reduce) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the chunk variables with those that the last step sums out at the end, and those."""
    summed = tuple(v for v in chosen if v in last.eliminated)
    return (*(v for v in chosen if v not in summed), *summed), summed


def _variables(plan: Plan, step: Reduce) -> set[int]:
    return {v for table in (*step.operands, step.out) for v in plan.tables[table].scope}


class _Parts:
    """Entries of the parts of all tables of some steps, while variables are held constant one after the other."""

    def __init__(self, plan: Plan, steps: Sequence[Reduce], fixed: Iterable[int] = ()) -> None:
        self._sizes, self._steps = plan.shape.cardinalities, steps
        uses = [(table, n) for n, step in enumerate(steps) for table in (*step.operands, step.out)]
        first, last = dict(reversed(uses)), dict(uses)
        self._alive = [[t for t in first if first[t] <= n <= last[t]] for n in range(len(steps))]
        self._scopes = {table: frozenset(plan.tables[table].scope) for table in first}
        # Variable -> a bit for every table that has it.
        self._places: dict[int, int] = {}
        for n, scope in enumerate(self._scopes.values()):
            for v in scope:
                self._places[v] = self._places.get(v, 0) | 1 << n
        self._summed = False
        self.entries = {table: plan.tables[table].entries for table in first}
        for v in fixed:
            self.hold(v)

    def hold(self, v: int) -> None:
        """Hold a variable constant."""
        self.entries = self.with_constant(v)
        self._summed = self._summed or v in self._steps[-1].eliminated

    def with_constant(self, v: int) -> dict[int, int]:
        """Return the entries that there would be."""
        size, scopes = self._sizes[v], self._scopes
        return {table: count // size if v in scopes[table] else count for table, count in self.entries.items()}

    def peak(self, entries: Mapping[int, int], also: int = -1) -> tuple[int, Reduce]:
        """Return the most entries that a task holds at once, and the step where it does."""
        totals = [sum([entries[table] for table in tables]) for tables in self._alive]
        most = max(totals)
        last = self._steps[-1]
        # Beside a task there is the sum of the tasks before it where those are added up.
        added = entries[last.out] if self._summed or also in last.eliminated else 0
        return most + added, self._steps[totals.index(most)]

    def lowest(self, variables: Iterable[int], peak: int) -> int | None:
        """Return the variable that, held constant, leaves the lowest peak, if that is lower than this one."""
        alike: dict[tuple[int, int], int] = {}
        for v in sorted(variables):
            # Variables of as many states that the same tables have leave the same peak.
            alike.setdefault((self._places[v], self._sizes[v]), v)
        lower, v = min((self.peak(self.with_constant(v), v)[0], v) for v in alike.values())
        return v if lower < peak else None


def part(plan: Plan, table: int, fixed: Iterable[int]) -> int:
    """Return the entries of a table that agree with a configuration of `fixed`."""
    constant = fixed if isinstance(fixed, frozenset) else frozenset(fixed)
    return plan.shape.entries(v for v in plan.tables[table].scope if v not in constant)


def _least_working(plan: Plan, step: Reduce) -> int:
    """Return what a step needs with all variables held constant: an entry of every table, and one of a sum."""
    return len({*step.operands, step.out}) + bool(step.eliminated)


def _loaded(plan: Plan, fixed: Sequence[int], parts: Mapping[int, int]) -> int:
    """Return the entries that come in; parts: table -> entries of a part, which stays while next tasks need it too."""
    times = list(accumulate((plan.shape.cardinalities[v] for v in fixed), mul, initial=1))
    total = 0
    for table, entries in parts.items():
        scope = plan.tables[table].scope
        slower = next((i for i in range(len(fixed), 0, -1) if fixed[i - 1] in scope), 0)
        total += entries * times[slower]
    return total


def _loaded_with(
    plan: Plan, chosen: Sequence[int], last: Reduce, parts: Mapping[int, int], variables: Iterable[int]
) -> dict[int, int]:
    """Return for each of some variables the entries that come in if it is held constant beside those chosen.

    last: step whose sums go to the end of the loops, as `_ordered` has them.
    parts: table -> entries of a part, with the chosen ones held constant.
    """
    sizes = plan.shape.cardinalities
    fixed, summed = _ordered(chosen, last)
    times = list(accumulate((sizes[v] for v in fixed), mul, initial=1))
    outer = len(fixed) - len(summed)
    total, inner, more = 0, 0, dict.fromkeys(variables, 0)
    for table, entries in parts.items():
        scope = plan.tables[table].scope
        slower = next((i for i in range(len(fixed), 0, -1) if fixed[i - 1] in scope), 0)
        total += entries * times[slower]
        if slower > outer:
            inner += entries * times[slower]
        for v in more.keys() & scope:
            # Its loop is the innermost one of those that sum, or of those around them.
            if v in last.eliminated:
                more[v] += entries * (times[-1] - times[slower])
            elif slower > outer:
                # Parts shrink as often as they come in more often, which all that sums does.
                more[v] -= entries * times[slower] * (sizes[v] - 1)
            else:
                more[v] += entries * (times[outer] - times[slower])
    return {v: total + each + (0 if v in last.eliminated else inner * (sizes[v] - 1)) for v, each in more.items()}


def loaded_entries(plan: Plan, pass_: ChunkPass, tables: Iterable[int] | None = None) -> int:
    """Return the entries that a pass brings in, of all tables that it reads or of some."""
    loads = pass_.loads if tables is None else tables
    return _loaded(plan, pass_.fixed, {table: part(plan, table, pass_.fixed) for table in loads})


def _cuts(plan: Plan, passes: Sequence[ChunkPass]) -> dict[int, tuple[int, ...]]:
    """Return the chunk variables of every stored table: first those that the pass holds constant which makes it.

    Then come those of the first reader, and so on: what a task makes is one run of pieces, what it reads is runs that
    are equally far apart, as a rule.
    """
    held: dict[int, list[frozenset[int]]] = {}
    for pass_ in passes:
        for table in dict.fromkeys((*pass_.loads, *pass_.stores)):
            held.setdefault(table, []).append(frozenset(pass_.fixed))
    cuts: dict[int, tuple[int, ...]] = {}
    for table, fixed in held.items():
        cut = frozenset().union(*fixed).intersection(plan.tables[table].scope)
        # Sorted as the scope is where passes hold the same of them.
        in_order = [v for v in plan.tables[table].scope if v in cut]
        cuts[table] = tuple(sorted(in_order, key=lambda v: [v not in constant for constant in fixed]))
    return cuts


def _lifetimes(passes: Sequence[ChunkPass], lasts: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return the lifetimes of stored tables; lasts: for each pass the last one that begins before it ends."""
    lives: dict[int, tuple[int, int]] = {}
    for n, (pass_, last) in enumerate(zip(passes, lasts, strict=True)):
        for table in pass_.stores:
            lives[table] = (n, last)
        for table in pass_.loads:
            first, before = lives.get(table, (-1, -1))
            # A pass that begins later may end before.
            lives[table] = (first, max(before, last))
    return lives


def alive_entries(plan: Plan, lives: Mapping[int, tuple[int, int]], passes: int) -> list[int]:
    """Return the entries alive at each pass, and 0 behind the last one; lives: table -> first and last pass."""
    change = [0] * (passes + 1)
    for table, (first, last) in lives.items():
        # What is there at the beginning has -1.
        change[max(first, 0)] += plan.tables[table].entries
        change[last + 1] -= plan.tables[table].entries
    return list(accumulate(change))


def _spilled(plan: Plan, passes: Sequence[ChunkPass], memory: int) -> frozenset[int]:
    """Return the tables that go to disk: those that stay longest for their traffic, until the others fit."""
    lives = _lifetimes(passes, range(len(passes)))
    made = {table for pass_ in passes for table in pass_.stores}
    # The large ones that wait longest: each costs one way to the disk and back however long it stays there.
    waiting = sorted(made, key=lambda t: (lives[t][0] - lives[t][1], -plan.tables[t].entries, t))
    waiting = [table for table in waiting if plan.tables[table].entries > 1]

    def fits(count: int) -> bool:
        spilled = frozenset(waiting[:count])
        kept = {t: life for t, life in lives.items() if t not in spilled}
        return max(alive_entries(plan, kept, len(passes))) <= memory

    # Each that goes makes room, so the first number that is enough can be bisected.
    count = bisect.bisect_left(range(len(waiting)), True, key=fits)
    return frozenset(waiting[:count])


def configurations(sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield all configurations in C order."""
    for n in range(math.prod(sizes)):
        states = []
        for size in reversed(sizes):
            n, state = divmod(n, size)
            states.append(state)
        yield tuple(reversed(states))
