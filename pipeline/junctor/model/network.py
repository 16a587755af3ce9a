"""Networks: variables with named states, and factors over them; immutable, and valid once they exist.

Main class: Network. Readers of all formats hand drafts to `build_network`, the one place where networks are checked.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from itertools import combinations
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from junctor.model.difference import Content, Difference, difference_between
from junctor.model.errors import ModelError, Place, nearest
from junctor.model.html import html_table

# Variables, and states of each, that a notebook shows; variables that it draws.
_SHOWN, _DRAWN = 25, 50

Kind = Literal["bayes", "markov"]

# A table that a file asks for may not have more entries than this (1 GiB of doubles): a short file can name a huge one.
MAX_TABLE_ENTRIES = 2**27
# NumPy's limit on the axes of an array; only tables over one-state variables reach it.
MAX_TABLE_VARIABLES = 64

# Tables of at most so many entries are checked many at a time.
SMALL_TABLE = 4096

# A row of a conditional table may miss 1 by this much, as in files with three printed digits, and is then divided by
# its sum; anything further off is refused as a mistake. A sum of 1.01 is off by more than 0.01 as a double.
ROW_SUM_TOLERANCE = 1e-2 + 1e-12
# Rows this close to 1 are taken as written: dividing would only move the last digits.
ROW_SUM_EXACT = 2e-6
# Negative entries of at most this size are roundings of tools that subtract, and count as zero.
NEGATIVE_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Variable:
    """A discrete variable: its name, and the names of its states in the order of table axes."""

    name: str
    states: tuple[str, ...]

    @property
    def cardinality(self) -> int:
        """Number of states."""
        return len(self.states)


@dataclass(frozen=True, eq=False, slots=True)
class Factor:
    """A non-negative table; in a Bayesian network its last variable is the child, and each row over it sums to 1.

    scope: indices of its variables in the network.
    table: float64, C order, read-only, one axis for each variable of `scope`.
    """

    scope: tuple[int, ...]
    table: npt.NDArray[np.float64]

    def __setstate__(self, state: tuple[tuple[int, ...], npt.NDArray[np.float64]]) -> None:
        # Tables of copies could be written otherwise, while digest and plans stay those of the original.
        scope, table = state
        table.setflags(write=False)
        object.__setattr__(self, "scope", scope)
        object.__setattr__(self, "table", table)


@dataclass(frozen=True, eq=False)
class Network:
    """A Bayesian or Markov network.

    name: title, for people.
    variables: in the order that indices refer to.
    factors: in a Bayesian network factor i is the conditional probability table of variable i.
    kind: "bayes" or "markov".
    hidden: how many variables at the end are auxiliary ones of noisy nodes: no evidence, question or answer names them.
    """

    name: str
    variables: tuple[Variable, ...]
    factors: tuple[Factor, ...]
    kind: Kind = "bayes"
    hidden: int = 0

    @cached_property
    def public(self) -> tuple[Variable, ...]:
        """The variables that are not auxiliary: those of the file, in its order."""
        return self.variables[: len(self.variables) - self.hidden]

    @cached_property
    def index(self) -> dict[str, int]:
        """Name to index, of the variables that are not auxiliary."""
        return {variable.name: i for i, variable in enumerate(self.public)}

    def parents(self, variable: int) -> tuple[int, ...]:
        """Return the parents of a variable of a Bayesian network; for a noisy node those of the file, in its order."""
        found: list[int] = []
        waiting = list(self.factors[variable].scope[:-1])
        while waiting:
            parent = waiting.pop(0)
            if parent < len(self.public):
                found.append(parent)
            else:
                waiting = [*self.factors[parent].scope[:-1], *waiting]
        return tuple(found)

    @cached_property
    def expanded(self) -> Network:
        """The network without auxiliary variables: noisy nodes have whole tables; raises ModelError for a huge one."""
        if not self.hidden:
            return self
        factors = [self._whole(variable) for variable in range(len(self.public))]
        return Network(self.name, self.public, tuple(factors), self.kind)

    @cached_property
    def above_zero(self) -> float:
        """Share of the entries of all factors."""
        tables = [factor.table for factor in self.factors]
        return sum(map(np.count_nonzero, tables)) / max(1, sum(table.size for table in tables))

    @cached_property
    def with_fewer_axes(self) -> Network:
        """The network without axes of tables along which nothing that is possible changes: the same distribution."""
        made: Network = import_module("junctor.model.simplify").with_fewer_axes(self)
        return made

    @cached_property
    def kept_states(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of the states of each variable that zeros leave possible; all where they leave nothing."""
        found: tuple[tuple[int, ...], ...] = import_module("junctor.model.simplify").kept_states(self)
        return found

    @cached_property
    def possible_states(self) -> tuple[tuple[int, ...], ...] | None:
        """Numbers of the possible states of each variable; None where tables of these have about as many entries."""
        found: tuple[tuple[int, ...], ...] | None = import_module("junctor.model.simplify").possible_states(self)
        return found

    def _whole(self, variable: int) -> Factor:
        """Return the table of a variable with auxiliary parents summed out."""
        links = [variable]
        while hidden := [parent for parent in self.factors[links[-1]].scope[:-1] if parent >= len(self.public)]:
            # Each auxiliary variable has one child, and a child at most one of them for a parent.
            links.append(hidden[0])
        factor = self.factors[links[-1]]
        if len(links) == 1:
            return factor
        scope = (*self.parents(variable), variable)
        table_size([self.cardinalities[v] for v in scope], f"the whole table of {self.variables[variable].name!r}")
        table = factor.table
        for link in reversed(links[:-1]):
            factor = self.factors[link]
            table = np.tensordot(table, factor.table, axes=(-1, 0))
        table.setflags(write=False)
        return Factor(scope, table)

    @cached_property
    def cardinalities(self) -> tuple[int, ...]:
        """Number of states of each variable."""
        return tuple(variable.cardinality for variable in self.variables)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over everything that an answer depends on; equal for equal networks whatever file they came from."""
        # The name of the network is left out: no answer depends on it.
        sha = hashlib.sha256(self.kind.encode())
        # Long networks have few different lists of states.
        listed = {states: repr(states) for states in {variable.states for variable in self.variables}}
        names = (f"({variable.name!r}, {listed[variable.states]})" for variable in self.variables)
        sha.update("".join(names).encode())
        for factor in self.factors:
            sha.update(repr(factor.scope).encode())
            sha.update(np.ascontiguousarray(factor.table).tobytes())
        if self.hidden:
            sha.update(f"hidden {self.hidden}".encode())
        return sha.hexdigest()

    def __eq__(self, other: object) -> bool:
        """Return True for a network with the same answers to all questions, in the same order of all that it has."""
        return self.digest == other.digest if isinstance(other, Network) else NotImplemented

    def __hash__(self) -> int:
        """Return a hash of the content."""
        return hash(self.digest)

    def diff(self, other: Network) -> Difference:
        """Return what differs in another network: variables, states and tables by names; False where nothing does.

        Noisy nodes are compared as whole tables; raises ModelError for one that is huge.
        """
        return difference_between(self._content(), other._content())

    def _content(self) -> Content:
        whole = self.expanded
        names = [tuple(whole.variables[v].name for v in factor.scope) for factor in whole.factors]
        tables = [(scope, factor.table) for scope, factor in zip(names, whole.factors, strict=True)]
        return Content(whole.kind, {each.name: each.states for each in whole.variables}, tables)

    def find(self, name: str) -> int:
        """Return the index of the variable `name`; raises ModelError with the nearest names where there is none."""
        # The search for similar names is slow, and only for people.
        try:
            return self.index[name]
        except KeyError:
            hint = nearest(name, self.index) or f": the network has {len(self.public)} variables"
            raise ModelError(f"no variable named {name!r}{hint}") from None

    def sample(self, rows: int, evidence: Any = None, **options: Any) -> Any:
        """Return drawn rows as an Arrow table: `case_id`, and a column of state names for each variable.

        rows: number of draws; with evidence, of each of its rows, whose case ids they have.
        evidence: as of `junctor.posteriors`, or the path of a file; rows are drawn exactly from P(variables | row).
        options: `observed`, share of cells that are kept (1.0); `seed` (0); `memory` of clique tables; `case_id`,
            `mapping`, `missing`, `ignore_extra` and `strict` as of `junctor.posteriors`.

        Rows of evidence that are invalid or impossible have no draws, and a warning says why. Raises EvidenceError and
        BudgetError.
        """
        # By its name, as commands and questions are: users look for it at the network, which knows nothing above it.
        return import_module("junctor.draws").sample_table(self, rows, evidence, options)

    def draw(self, evidence: Mapping[str, Any] | None = None) -> Any:
        """Return a picture with a bar for the probability of each state, which notebooks show; `save(path)` writes it.

        evidence: variable -> state, or a likelihood for each of its states, as a row of `junctor.posteriors`.
        Raises ModelError for unknown variables, EvidenceError for states that are unknown or impossible, and InputError
        for more variables than a picture has room for.
        """
        return import_module("junctor.drawing").drawing_of(self, evidence)

    def edges(self) -> tuple[tuple[int, int], ...]:
        """Return parent and child of each edge; of a Markov network the pairs of variables that share a factor."""
        count = len(self.public)
        if self.kind == "bayes":
            return tuple((parent, child) for child in range(count) for parent in self.parents(child))
        return tuple(sorted({pair for factor in self.factors for pair in combinations(sorted(factor.scope), 2)}))

    def __repr__(self) -> str:
        return f"Network({self.name!r}, {self.kind}, {len(self.public)} variables, {len(self.factors)} factors)"

    def _repr_html_(self) -> str:
        shown = self.public[:_SHOWN]
        # A few thousand states are not joined to be cut.
        rows = [(variable.name, variable.cardinality, ", ".join(variable.states[:_SHOWN])) for variable in shown]
        picture = ""
        if len(self.public) <= _DRAWN:
            from junctor.model.picture import Node, picture_of

            nodes = [Node(each.name, each.states) for each in self.public]
            picture = f'<div style="overflow:auto">{picture_of(nodes, self.edges(), self.kind == "bayes")}</div>'
        return picture + html_table(repr(self), ("variable", "states", "names"), rows, len(self.public) - len(rows))


@dataclass(frozen=True, slots=True)
class DraftVariable:
    """A variable as a reader took it from its file, unchecked; `place` is where it stands there."""

    name: str
    states: Sequence[str]
    place: Place


@dataclass(frozen=True, eq=False, slots=True)
class DraftTable:
    """A table as a reader took it from its file, unchecked.

    scope: names of its variables, the child last in a Bayesian network.
    values: entries, flat or in any shape, the last variable fastest.
    place: where it stands in the file.
    """

    scope: Sequence[str]
    values: npt.ArrayLike
    place: Place


@dataclass(frozen=True, slots=True)
class Reading:
    """How a file is read, and what came of it.

    normalize: divide every row of a conditional table by its sum, as in tables of counts or percentages.
    ignore_decisions: leave out decisions and utilities where no chance node depends on them.
    notes: what was changed or left out, for people; readers add to it.
    """

    normalize: bool = False
    ignore_decisions: bool = False
    notes: list[str] = field(default_factory=list)


def build_network(
    name: str,
    kind: Kind,
    variables: Sequence[DraftVariable],
    tables: Sequence[DraftTable],
    place: Place | None = None,
    reading: Reading | None = None,
    hidden: int = 0,
) -> Network:
    """Check a draft and return the network.

    name: title of the network.
    kind: "bayes" or "markov".
    variables: in the order of the network.
    tables: one for each variable of a Bayesian network, in any order; any number for a Markov network.
    place: the file, for errors that concern all of it.
    reading: None for the checks without options.
    hidden: how many variables at the end are auxiliary.
    Raises ModelError, with the place of the culprit, for duplicate or empty names, variables without states, unknown
    or repeated variables in a scope, tables of the wrong size, negative or non-finite entries, tables with nothing
    but zeros, and in Bayesian networks for missing or second tables, cycles and rows that do not sum to 1. Rows that
    miss 1 by up to `ROW_SUM_TOLERANCE` are divided by their sum unless they are within `ROW_SUM_EXACT`, with
    `reading.normalize` all of them. Negative entries above `-NEGATIVE_ROUNDING` become 0, and a note.
    """
    reading = reading or Reading()
    if not variables:
        raise ModelError("no variables found, expected at least one", place)
    known = _checked_variables(variables)
    # First definitions win here, since the second one is an error.
    index: dict[str, int] = {}
    for i, draft in enumerate(variables):
        if draft.name in index:
            raise ModelError(
                f"variable {draft.name!r} is defined twice (first at {variables[index[draft.name]].place})", draft.place
            )
        index[draft.name] = i
    factors = _checked_factors(tables, known, index, kind, reading)
    if kind == "bayes":
        factors = _one_table_a_variable(known, factors, variables, tables)
        network = Network(name, known, tuple(factors), kind, hidden)
        _refuse_other_chains(network, place)
        _refuse_cycles(network, [draft.place for draft in variables])
        return network
    return Network(name, known, tuple(factors), kind)


def table_size(shape: Sequence[int], what: str, place: Place | None = None) -> int:
    """Return the number of entries of a table before it is allocated; raises ModelError above MAX_TABLE_ENTRIES."""
    if len(shape) > MAX_TABLE_VARIABLES:
        raise ModelError(f"{what} has {len(shape):,} variables, allowed are {MAX_TABLE_VARIABLES}", place)
    entries = math.prod(shape)
    if entries > MAX_TABLE_ENTRIES:
        raise ModelError(f"{what} would have {entries:,} entries, allowed are {MAX_TABLE_ENTRIES:,}", place)
    return entries


def _checked_variables(drafts: Sequence[DraftVariable]) -> tuple[Variable, ...]:
    # Variables with equal states share one tuple, which is checked once: a million variables may be binary.
    checked: dict[tuple[str, ...], tuple[str, ...]] = {}
    variables = []
    for draft in drafts:
        states = tuple(draft.states)
        if states not in checked or not draft.name:
            checked[states] = _checked_variable(draft).states
        variables.append(Variable(draft.name, checked[states]))
    return tuple(variables)


def _checked_variable(draft: DraftVariable) -> Variable:
    if not draft.name:
        raise ModelError("a variable has an empty name", draft.place)
    if not draft.states:
        raise ModelError(f"variable {draft.name!r} has no states, expected at least one", draft.place)
    # A loop instead of a set of all: the message names the state.
    seen: set[str] = set()
    for state in draft.states:
        if state in seen:
            raise ModelError(f"variable {draft.name!r} has the state {state!r} twice", draft.place)
        seen.add(state)
    return Variable(draft.name, tuple(draft.states))


def _checked_factors(
    drafts: Sequence[DraftTable], variables: Sequence[Variable], index: dict[str, int], kind: Kind, reading: Reading
) -> list[Factor]:
    """Return the factors of all drafts, in their order; raises ModelError for the first that is wrong."""
    factors: list[Factor | None] = [None] * len(drafts)
    cardinalities = [variable.cardinality for variable in variables]
    # A long network has many small tables: those of one row length are checked together. What is unusual about a table
    # is left to the check of single ones, which can say what.
    groups: dict[int, list[_Usual]] = {}
    for number, draft in enumerate(drafts):
        usual = _usual(number, draft, cardinalities, index)
        if usual is not None:
            groups.setdefault(usual.shape[-1] if kind == "bayes" else 1, []).append(usual)
    for row, group in groups.items():
        values = np.concatenate([usual.values for usual in group])
        # Views of it can no longer be written to either.
        values.setflags(write=False)
        ends = np.cumsum([usual.values.size for usual in group])
        good = _good_tables(values.reshape(-1, row), ends // row, kind)
        for usual, end, is_good in zip(group, ends.tolist(), good.tolist(), strict=True):
            if is_good:
                table = values[end - usual.values.size : end].reshape(usual.shape)
                factors[usual.number] = Factor(usual.scope, table)
    return [
        _checked_factor(draft, variables, index, kind, reading) if factor is None else factor
        for draft, factor in zip(drafts, factors, strict=True)
    ]


class _Usual(NamedTuple):
    """A small table of known variables and of the right size: its number among the drafts, scope, shape and entries."""

    number: int
    scope: tuple[int, ...]
    shape: tuple[int, ...]
    values: npt.NDArray[np.float64]


def _usual(number: int, draft: DraftTable, cardinalities: Sequence[int], index: Mapping[str, int]) -> _Usual | None:
    try:
        scope = tuple(map(index.__getitem__, draft.scope))
        values = np.asarray(draft.values, dtype=np.float64).ravel()
    except (KeyError, ValueError, TypeError):
        return None
    shape = tuple(map(cardinalities.__getitem__, scope))
    if not scope or len(set(scope)) != len(scope) or not values.size == math.prod(shape) <= SMALL_TABLE:
        return None
    return _Usual(number, scope, shape, values)


def _good_tables(rows: npt.NDArray[np.float64], ends: npt.NDArray[np.int64], kind: Kind) -> npt.NDArray[np.bool_]:
    """Return which tables are taken as they are: nothing to refuse, and no row to divide.

    rows: float64 [rows, entries] of all tables.
    ends: int64 [tables], the row after the last of each.
    kind: "bayes" or "markov".
    """
    # Sums by another way of adding differ in the last digits: what is near the limit is left to the check of one table.
    with np.errstate(invalid="ignore", over="ignore"):
        good = ((rows >= 0) & (rows < np.inf)).all(axis=1)
        if kind == "bayes":
            good &= np.abs(rows.sum(axis=1) - 1.0) < 0.999 * ROW_SUM_EXACT
    starts = np.concatenate([[0], ends[:-1]])
    if kind == "bayes":
        return np.logical_and.reduceat(good, starts)
    return np.logical_and.reduceat(good, starts) & np.logical_or.reduceat(rows[:, 0] > 0, starts)


def _checked_factor(
    draft: DraftTable, variables: Sequence[Variable], index: dict[str, int], kind: Kind, reading: Reading
) -> Factor:
    what = f"table of {draft.scope[-1]!r}" if kind == "bayes" and draft.scope else f"table over {list(draft.scope)}"
    for name in draft.scope:
        if name not in index:
            raise ModelError(f"{what}: unknown variable {name!r}{nearest(name, index)}", draft.place)
    if len(set(draft.scope)) != len(draft.scope):
        raise ModelError(f"{what}: a variable stands twice in its scope {list(draft.scope)}", draft.place)
    scope = tuple(index[name] for name in draft.scope)
    shape = tuple(variables[i].cardinality for i in scope)
    expected = table_size(shape, what, draft.place)
    # A copy: readers may hand in views of buffers that they go on using.
    values = np.array(draft.values, dtype=np.float64).ravel()
    if values.size != expected:
        sizes = " x ".join(map(str, shape)) or "1"
        raise ModelError(f"{what}: found {values.size} entries, expected {expected} ({sizes})", draft.place)
    # The name of the table, its numbers and then its rows: the first message is about the cause, not a consequence.
    table = values.reshape(shape)
    _clear_roundings(table, what, draft, reading)
    _refuse_bad_numbers(table, what, draft, variables, scope, kind)
    if kind == "bayes":
        table = _with_rows_of_one(table, what, draft, variables, scope, reading)
    # Plans, kernels and the digest share the array without copies.
    table.setflags(write=False)
    return Factor(scope, table)


def _clear_roundings(table: npt.NDArray[np.float64], what: str, draft: DraftTable, reading: Reading) -> None:
    """Set to 0, in place, the negative entries that are roundings."""
    roundings = (table < 0) & (table > -NEGATIVE_ROUNDING)
    if roundings.any():
        least = float(table[roundings].min())
        table[roundings] = 0.0
        at = f"{draft.place}: " if draft.place.line is not None else ""
        reading.notes.append(f"{at}{what}: negative numbers down to {least!r} were taken as roundings of 0")


def _refuse_bad_numbers(
    table: npt.NDArray[np.float64],
    what: str,
    draft: DraftTable,
    variables: Sequence[Variable],
    scope: tuple[int, ...],
    kind: Kind,
) -> None:
    # NaN < 0 is false, so finiteness is a test of its own.
    bad = ~np.isfinite(table) | (table < 0)
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        where = _configuration(variables, scope, at)
        hint = ""
        if kind == "markov" and table[at] < 0:
            hint = " (of logarithms, or log potentials, write exp(x); of energies or costs exp(-x))"
        raise ModelError(
            f"{what}: found {float(table[at])!r}{where}, expected a finite number that is not negative{hint}",
            draft.place,
        )
    if not table.any():
        raise ModelError(f"{what}: all its entries are 0, so nothing is possible", draft.place)


def _with_rows_of_one(
    table: npt.NDArray[np.float64],
    what: str,
    draft: DraftTable,
    variables: Sequence[Variable],
    scope: tuple[int, ...],
    reading: Reading,
) -> npt.NDArray[np.float64]:
    if not scope:
        raise ModelError("a table of a Bayesian network names no variable", draft.place)
    with np.errstate(over="ignore"):
        sums = table.sum(axis=-1, keepdims=True)
    if reading.normalize and np.isinf(sums).any():
        # Counts near the largest double: their sum is none, that of their ratios to the largest count is one.
        largest = np.where(np.isinf(sums), table.max(axis=-1, keepdims=True), 1.0)
        table = table / largest
        sums = table.sum(axis=-1, keepdims=True)
    off = np.abs(sums - 1.0)
    # A row of zeros has no probabilities, whatever it is divided by.
    wrong = sums == 0 if reading.normalize else off > ROW_SUM_TOLERANCE
    if wrong.any():
        worst = np.where(wrong, off, -1.0)[..., 0]
        at = tuple(int(i) for i in np.unravel_index(int(worst.argmax()), sums.shape[:-1]))
        where = _configuration(variables, scope[:-1], at)
        total = float(sums[(*at, 0)])
        raise ModelError(
            f"{what}: the row{where} sums to {total:.9g}, expected 1 (up to {ROW_SUM_TOLERANCE:g} off is divided out"
            + _counts_hint(table, sums, reading)
            + ")",
            draft.place,
        )
    return np.where(off > ROW_SUM_EXACT, table / sums, table)


def _counts_hint(table: npt.NDArray[np.float64], sums: npt.NDArray[np.float64], reading: Reading) -> str:
    """Return what would take a table of counts or percentages, where something would."""
    if reading.normalize or not (sums > 0).all():
        return ""
    return "; counts or percentages are taken with --normalize, in Python normalize=True"


def _configuration(variables: Sequence[Variable], scope: Sequence[int], at: Sequence[int]) -> str:
    if not scope:
        return ""
    pairs = (f"{variables[i].name}={variables[i].states[state]}" for i, state in zip(scope, at, strict=True))
    return f" at {', '.join(pairs)}"


def _one_table_a_variable(
    variables: Sequence[Variable],
    factors: Sequence[Factor],
    drafts: Sequence[DraftVariable],
    tables: Sequence[DraftTable],
) -> list[Factor]:
    of_child: dict[int, int] = {}
    for i, factor in enumerate(factors):
        child = factor.scope[-1]
        if child in of_child:
            first = tables[of_child[child]].place
            raise ModelError(
                f"variable {variables[child].name!r} has a second table (first at {first})", tables[i].place
            )
        of_child[child] = i
    for i, variable in enumerate(variables):
        if i not in of_child:
            raise ModelError(f"variable {variable.name!r} has no table", drafts[i].place)
    # Everything above relies on factor i being the table of variable i, whatever the order of the file.
    return [factors[of_child[i]] for i in range(len(variables))]


def _refuse_other_chains(network: Network, place: Place | None) -> None:
    """Raise ModelError unless each auxiliary variable is the first parent of one child, and of no other."""
    if not network.hidden:
        return
    first = len(network.public)
    parents = [(at, v) for factor in network.factors for at, v in enumerate(factor.scope[:-1]) if v >= first]
    if sorted(parents) != [(0, v) for v in range(first, len(network.variables))]:
        raise ModelError("the auxiliary variables form no chains of noisy nodes", place)


def _refuse_cycles(network: Network, places: Sequence[Place]) -> None:
    variables, factors = network.variables, network.factors
    # Kahn's topological sort (1962): what is left over when no variable is without parents contains a cycle.
    if all(max(factor.scope) == i for i, factor in enumerate(factors)):
        # Parents before children, as in most long networks.
        return
    left = [len(factor.scope) - 1 for factor in factors]
    children: list[list[int]] = [[] for _ in factors]
    for child, factor in enumerate(factors):
        for parent in factor.scope[:-1]:
            children[parent].append(child)
    ready = [i for i, count in enumerate(left) if not count]
    for parent in ready:
        for child in children[parent]:
            left[child] -= 1
            if not left[child]:
                ready.append(child)
    if len(ready) < len(factors):
        done = set(ready)
        cycle = list(_walk_to_a_cycle({i: set(f.scope[:-1]) - done for i, f in enumerate(factors) if i not in done}))
        names = " <- ".join(variables[i].name for i in cycle if i < len(network.public))
        raise ModelError(f"the parents form a cycle: {names}", places[cycle[0]])


def _walk_to_a_cycle(waiting: dict[int, set[int]]) -> Iterator[int]:
    """Follow unresolved parents until a variable repeats; yield that cycle, its first variable again at the end."""
    # From the lowest index on, so that the same file gives the same message.
    path: list[int] = []
    here = min(waiting)
    while here not in path:
        path.append(here)
        here = min(waiting[here])
    yield from path[path.index(here) :]
    yield here
