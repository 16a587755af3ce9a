"""Compilation of network shape, evidence pattern and query to a plan of Shafer-Shenoy propagation (1990).

Main function: `compile_plan`, called by the engine and the forecast. Observed and barren variables go; the rest is
triangulated; a junction tree is built; messages are laid out towards the roots and back; marginals are read off the
smallest tables; every table is freed after its last use.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from junctor.planning.elimination import HOPELESS, EliminationOrder, good_orders, moral_graph
from junctor.planning.junction_tree import JunctionTree, SmallestCliques, binary_joins, junction_tree
from junctor.planning.paths import LEAST_ON_PATH, PathOperand, Paths, Products
from junctor.planning.plan import Free, Likelihood, Phase, Plan, Potential, Reduce, Slice, Step, Table
from junctor.planning.shape import Pattern, Shape

# Rows that a plan is made for where their number is not known.
DEFAULT_ROWS = 20_000
# Factors of a clique are multiplied once for all cases where their product has at most so many entries, or as many as
# one of them.
SMALL_POTENTIAL = 4096
# In cliques larger than HUGE_CLIQUE * SMALL_POTENTIAL entries potentials may have one entry for each HUGE_CLIQUE
# entries of the clique, at most LARGE_POTENTIAL: every entry of the clique reads each of them, so fewer and larger ones
# pay.
HUGE_CLIQUE = 1 << 16
LARGE_POTENTIAL = 1 << 20
# From so many variables on, marginals of one table are read off the joints of either half of them.
LEAST_HALVED = 6
# Where joints overlap: entries of the table for each one of a joint, and neighbours there that both have.
LEFT_OUT, NEIGHBOURS = 1 << 7, 1 << 5


@dataclass(frozen=True, slots=True)
class Problem:
    """The task of a plan.

    shape: cardinalities and scopes of the network.
    pattern: variables with evidence.
    targets: variables whose posteriors are computed, None for all.
    explain: whether the most probable explanation is computed instead of posteriors.
    drops_barren: whether variables that no target depends on are left out.
    lean: whether marginals are read off few tables, so that fewer messages are kept, and P(e) off a marginal; for plans
        that exceed the memory.
    """

    shape: Shape
    pattern: Pattern
    targets: frozenset[int] | None = None
    explain: bool = False
    drops_barren: bool = True
    lean: bool = False

    def relevant(self) -> frozenset[int]:
        """Return the variables that matter: in a Bayesian network ancestors of targets and evidence (Shachter 1986)."""
        everything = frozenset(range(len(self.shape.cardinalities)))
        if self.explain or self.targets is None or not self.shape.directed or not self.drops_barren:
            return everything
        ancestors: set[int] = set()
        waiting = [*self.targets, *self.pattern.sliced, *self.pattern.weighted]
        while waiting:
            v = waiting.pop()
            if v not in ancestors:
                ancestors.add(v)
                # Factor v is the table of v: its scope is v and its parents.
                waiting.extend(self.shape.scopes[v])
        return frozenset(ancestors)

    def free(self) -> frozenset[int]:
        """Return the relevant variables that are not sliced."""
        return self.relevant() - self.pattern.sliced

    def remaining(self, sliced: bool = False) -> dict[int, tuple[int, ...]]:
        """Return the relevant factors, each with its scope less the sliced variables, or with these too."""
        relevant, left_out = self.relevant(), frozenset[int]() if sliced else self.pattern.sliced
        return {
            i: scope if left_out.isdisjoint(scope) else tuple(v for v in scope if v not in left_out)
            for i, scope in enumerate(self.shape.scopes)
            if relevant.issuperset(scope)
        }

    def graph(self, sliced: bool = False) -> list[set[int]]:
        """Return the moral graph of what remains as neighbour sets; sliced: with what is observed."""
        return moral_graph(len(self.shape.cardinalities), self.remaining(sliced).values())


def compile_plan(
    shape: Shape,
    pattern: Pattern,
    targets: Iterable[int] | None = None,
    explain: bool = False,
    rows: int = DEFAULT_ROWS,
    lean: bool = False,
) -> Plan:
    """Return the plan for a pattern; the same arguments give the same plan.

    shape, pattern, targets, explain, lean: see `Problem`.
    rows: number of cases to come; the more, the longer the search for an elimination order may take.
    """
    problem = Problem(shape, pattern, None if targets is None else frozenset(targets), explain, lean=lean)
    return cheapest_plan(problem, rows)[1]


def cheapest_plan(problem: Problem, rows: int) -> tuple[EliminationOrder, Plan]:
    """Return the elimination order and the plan with the fewest operations; `rows`: number of cases to come."""
    made: dict[EliminationOrder, Plan] = {}

    def laid_out(order: EliminationOrder) -> Plan:
        # Cliques that nobody will hold are counted, and not worth the seconds that joins and paths take.
        held = order.entries <= HOPELESS
        return lay_out(problem, order, joins=held, paths=held)

    def lay(order: EliminationOrder) -> None:
        made[order] = laid_out(order)

    what = problem.graph(), problem.free(), problem.shape.cardinalities
    # A search takes longer than to lay out a greedy order, which mostly is among the good ones.
    orders = good_orders(*what, rows, meanwhile=lay)
    plans = [(order, made.get(order) or laid_out(order)) for order in orders]
    return min(plans, key=lambda pair: pair[1].case_operations) if len(plans) > 1 else plans[0]


def lay_out(problem: Problem, order: EliminationOrder, joins: bool = True, paths: bool = True) -> Plan:
    """Return the plan for an elimination order.

    problem: the task.
    order: an order of the free variables.
    joins: whether cliques of many neighbours are split into binary joins.
    paths: whether operands are contracted in pairs; both are off only to count their savings.
    """
    shape, pattern = problem.shape, problem.pattern
    remaining, free = problem.remaining(), problem.free()
    tree = junction_tree(order, shape)
    joined = binary_joins(tree, shape) if joins else tree
    wanted = free if problem.targets is None else free & problem.targets
    layout = _Layout(shape, pattern, joined, remaining, paths, problem.lean)
    layout.load()
    hosts = {} if problem.explain else layout.hosts(wanted)
    layout.collect(hosts)
    marginals = layout.distribute_and_read(hosts)
    return Plan(
        shape=shape,
        pattern=pattern,
        tables=tuple(layout.tables),
        # An explanation is traced back through the messages, so they all stay.
        steps=tuple(layout.steps if problem.explain else _with_frees(layout.steps, layout.tables)),
        marginals=tuple(sorted(marginals.items())),
        totals=tuple(layout.up[root] for root in joined.roots()),
        edges=layout.edges(),
        constants=tuple(i for i, scope in remaining.items() if not scope),
        traceback=tuple(reversed(layout.collected)) if problem.explain else (),
        clique_entries=tuple(shape.entries(clique.scope) for clique in tree.cliques),
        criterion=order.criterion,
    )


@dataclass
class _Layout:
    """Tables and steps of a plan in the making; `up` and `down`: messages of each clique to and from its parent."""

    shape: Shape
    pattern: Pattern
    tree: JunctionTree
    remaining: dict[int, tuple[int, ...]]
    takes_paths: bool = True
    lean: bool = False
    tables: list[Table] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    levels: dict[int, int] = field(default_factory=dict)
    inputs: list[list[int]] = field(default_factory=list)
    up: dict[int, int] = field(default_factory=dict)
    down: dict[int, int] = field(default_factory=dict)
    collected: list[int] = field(default_factory=list)
    products: Products = field(default_factory=Products)

    def __post_init__(self) -> None:
        self.inputs = [[] for _ in self.tree.cliques]
        self.children = self.tree.children()
        self.rank = self.tree.ranks()
        self.home = SmallestCliques(self.tree, self.shape)
        self.paths = Paths(self.shape, self.products)

    def load(self) -> None:
        """Assign every factor and likelihood to a clique and append the steps that load them."""
        shared: list[list[int]] = [[] for _ in self.tree.cliques]
        for factor, scope in self.remaining.items():
            if not scope:
                continue
            clique = self.home.of(scope)
            # Without observed variables a factor is the same for all cases.
            if len(scope) == len(self.shape.scopes[factor]):
                shared[clique].append(factor)
            else:
                out = self._table(scope, per_case=True)
                self.steps.append(Slice(out, factor))
                self.inputs[clique].append(out)
        for clique, factors in enumerate(shared):
            entries = self.shape.entries(self.tree.cliques[clique].scope)
            for group, members in _grouped(factors, self.remaining, self.shape, entries):
                out = self._table(self._sorted(members), per_case=False)
                self.steps.append(Potential(out, group))
                self.inputs[clique].append(out)
        for variable in sorted(self.pattern.weighted - self.pattern.sliced):
            if self.home.has(variable):
                out = self._table((variable,), per_case=True)
                self.steps.append(Likelihood(out, variable))
                self.inputs[self.home.of((variable,))].append(out)

    def collect(self, hosts: Iterable[int]) -> None:
        """Append the messages to the roots, children first; a root ends in a table without axes, a part of P(e).

        hosts: cliques that marginals are read off. In a lean plan the total of a root above one is read off a marginal,
        later: to sum the messages once more would bring them in once more.
        """
        above = self._needed(hosts) if self.lean else set[int]()
        for i, clique in enumerate(self.tree.cliques):
            if clique.parent is None and i in above:
                continue
            phase: Phase = "total" if clique.parent is None else "collect"
            self.up[i] = self._reduce(self._operands(i), clique.scope, clique.separator, phase)

    def _operands(self, clique: int, without: int | None = None) -> list[int]:
        """Return the inputs of a clique, the message down to it and those up from its children but one."""
        above = [self.down[clique]] if clique in self.down else []
        return [*self.inputs[clique], *above, *(self.up[child] for child in self.children[clique] if child != without)]

    def edges(self) -> tuple[tuple[int, int, int], ...]:
        """Return (message up, message down, total of the component) of every edge that carries messages both ways."""
        total: dict[int, int] = {}
        # Parents come after their children in the tree, so that the reverse order knows them first.
        for i in range(len(self.tree.cliques) - 1, -1, -1):
            parent = self.tree.cliques[i].parent
            total[i] = self.up[i] if parent is None else total[parent]
        return tuple((self.up[i], down, total[i]) for i, down in self.down.items())

    def hosts(self, wanted: Iterable[int]) -> dict[int, dict[bool, list[int]]]:
        """Choose where the marginals of `wanted` are read.

        Returns clique -> on its separator (product of both messages) or not -> variables.
        """
        return self._few_hosts(wanted) if self.lean else self._smallest_hosts(wanted)

    def distribute_and_read(self, hosts: Mapping[int, Mapping[bool, Sequence[int]]]) -> dict[int, int]:
        """Append the messages down to the cliques that marginals are read off, and return the table of each marginal.

        hosts: as of `hosts`.
        """
        # Marginals are read as soon as their table is complete, so that messages are freed early.
        needed = self._needed(hosts)
        marginals: dict[int, int] = {}
        roots: dict[int, int] = {}
        for i in range(len(self.tree.cliques) - 1, -1, -1):
            clique = self.tree.cliques[i]
            roots[i] = i if clique.parent is None else roots[clique.parent]
            if clique.parent is not None and i in needed:
                operands, scope = self._operands(clique.parent, without=i), self.tree.cliques[clique.parent].scope
                self.down[i] = self._reduce(operands, scope, clique.separator, "distribute")
            for on_separator, variables in hosts.get(i, {}).items():
                operands = [self.up[i], self.down[i]] if on_separator else self._operands(i)
                self._read(operands, clique.separator if on_separator else clique.scope, variables, marginals)
                if roots[i] not in self.up:
                    v = variables[0]
                    self.up[roots[i]] = self._reduce([marginals[v]], (v,), (), "total")
        return marginals

    def _smallest_hosts(self, wanted: Iterable[int]) -> dict[int, dict[bool, list[int]]]:
        """Choose for each variable the smallest separator or clique that contains it."""
        places: dict[int, tuple[int, int, bool]] = {}
        for host, scope in self._readable():
            place = (self.shape.entries(scope), *host)
            for v in scope:
                if v not in places or place < places[v]:
                    places[v] = place
        hosts: dict[int, dict[bool, list[int]]] = {}
        for v in sorted(wanted):
            _, i, on_separator = places[v]
            hosts.setdefault(i, {}).setdefault(on_separator, []).append(v)
        return hosts

    def _few_hosts(self, wanted: Iterable[int]) -> dict[int, dict[bool, list[int]]]:
        """Choose few small separators and cliques that cover all variables, greedily by entries for each variable."""
        members = {host: (self.shape.entries(scope), frozenset(scope)) for host, scope in self._readable() if scope}
        left = set(wanted)
        hosts: dict[int, dict[bool, list[int]]] = {}
        # The variables that a host adds only become fewer while others are chosen, so the first host of the heap with
        # an unchanged price is the best (lazy greedy set cover). Fractions keep the choice exact on all platforms.
        waiting = [(Fraction(entries, len(scope)), host) for host, (entries, scope) in members.items()]
        heapq.heapify(waiting)
        while left and waiting:
            price, host = heapq.heappop(waiting)
            entries, scope = members[host]
            if new := scope & left:
                if (now := Fraction(entries, len(new))) > price:
                    heapq.heappush(waiting, (now, host))
                    continue
                left -= new
                hosts.setdefault(host[0], {})[host[1]] = sorted(new)
        return hosts

    def _readable(self) -> Iterator[tuple[tuple[int, bool], tuple[int, ...]]]:
        """Yield the separators and cliques to read off: (clique, on its separator or not), and the variables."""
        for i, clique in enumerate(self.tree.cliques):
            if clique.parent is not None:
                yield (i, True), clique.separator
            yield (i, False), clique.scope

    def _needed(self, hosts: Iterable[int]) -> set[int]:
        """Return the cliques on the paths from the roots to `hosts`: only these get a message down."""
        needed: set[int] = set()
        for host in hosts:
            node: int | None = host
            while node is not None and node not in needed:
                needed.add(node)
                node = self.tree.cliques[node].parent
        return needed

    def _read(
        self, operands: Sequence[int], scope: Sequence[int], variables: Sequence[int], marginals: dict[int, int]
    ) -> None:
        """Append the marginals of a product of tables, through joint tables of several variables where these pay.

        operands: tables to multiply.
        scope: variables of the product.
        variables: to read.
        marginals: variable -> table, extended here.
        """
        # A joint of half the entries pays with two variables: one pass over the product instead of two.
        small = 2 * self.shape.entries(variables) <= self.shape.entries(scope)
        if len(variables) > 1 and len(operands) > 1 and small:
            parts = [(variables, variables)]
        elif len(variables) >= LEAST_HALVED:
            parts = self._overlapping(variables) if self.lean else self._halves(variables)
        else:
            for v in variables:
                marginals[v] = self._reduce(operands, scope, (v,), "marginal")
            return
        # Both joints first, so that a pass in chunks makes them of what it brings in once.
        joints = [self._reduce(operands, scope, kept, "marginal") for kept, _ in parts]
        for joint, (kept, read) in zip(joints, parts, strict=True):
            self._read([joint], kept, read, marginals)

    def _halves(self, variables: Sequence[int]) -> list[tuple[Sequence[int], Sequence[int]]]:
        """Return the variables that two joints keep, and those that are read off either."""
        middle = len(variables) // 2
        return [(half, half) for half in (variables[:middle], variables[middle:])]

    def _overlapping(self, variables: Sequence[int]) -> list[tuple[Sequence[int], Sequence[int]]]:
        """The same where each joint leaves out a few variables, and the other one has these.

        All others are in both. So are the first ones: messages into the cliques below were made, and go on, with some
        of them held constant, as a pass has to that makes both joints. And the last ones, since neighbours in all
        tables are read together.
        """
        first, most = list(self._sorted(variables)), len(variables) // 4
        last, *few = (self._few_last(first, entries, most) for entries in (NEIGHBOURS, LEFT_OUT, LEFT_OUT))
        both = [*first, *last]
        middle = len(both) // 2
        return [
            (self._sorted([*both, *left]), self._sorted([*half, *left]))
            for half, left in zip((both[:middle], both[middle:]), few, strict=True)
        ]

    def _few_last(self, variables: list[int], entries: int, most: int) -> list[int]:
        """Take variables with so many configurations off the end of a list, `most` of them at the most."""
        taken: list[int] = []
        while self.shape.entries(taken) < entries and len(taken) < most:
            taken.append(variables.pop())
        return taken

    def _reduce(self, operands: Sequence[int], scope: Sequence[int], kept: Sequence[int], phase: Phase) -> int:
        """Append the contraction of operands over a clique and return its table; pairs of them first where that pays.

        operands: tables to multiply.
        scope: variables of the clique.
        kept: variables of the result.
        phase: what the result is for.
        """
        if not self.takes_paths or len(operands) < LEAST_ON_PATH:
            return self._contract(operands, scope, kept, phase)
        waiting, left = list(operands), set(scope)
        candidates = [PathOperand(t, self.tables[t].scope, self.tables[t].per_case) for t in operands]
        for pair in self.paths.find(candidates, kept):
            # `other` comes after `one`, so it is taken out first.
            other, one = waiting.pop(pair.other), waiting.pop(pair.one)
            union = {*self.tables[one].scope, *self.tables[other].scope}
            left -= union - pair.kept
            waiting.append(self._product(one, other, union, pair.kept))
        return self._contract(waiting, left, kept, phase)

    def _product(self, one: int, other: int, union: Iterable[int], kept: frozenset[int]) -> int:
        # Several messages of a clique need the same product; it is computed once.
        table = self.products.find(one, other, kept)
        if table is None:
            table = self._contract((one, other), union, kept, "product")
            self.products.add(one, other, kept, table)
        return table

    def _contract(self, operands: Sequence[int], scope: Iterable[int], kept: Iterable[int], phase: Phase) -> int:
        tables = self.tables
        out = self._table(self._sorted(kept), per_case=True in [tables[t].per_case for t in operands])
        stays = tables[out].scope
        eliminated = self._sorted([v for v in scope if v not in stays])
        # Reductions of one level are independent: GPUs launch them together.
        level = 1 + max([self.levels.get(t, -1) for t in operands], default=-1)
        self.levels[out] = level
        self.steps.append(Reduce(out, tuple(operands), eliminated, phase, level))
        if phase in ("collect", "total", "product"):
            self.collected.append(len(self.steps) - 1)
        return out

    def _table(self, scope: tuple[int, ...], per_case: bool) -> int:
        self.tables.append(Table(scope, self.shape.entries(scope), per_case))
        return len(self.tables) - 1

    def _sorted(self, scope: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(scope, key=self.rank.__getitem__))


def _grouped(
    factors: Iterable[int], scopes: dict[int, tuple[int, ...]], shape: Shape, clique_entries: int
) -> list[tuple[tuple[int, ...], frozenset[int]]]:
    """Group the shared factors of a clique into potentials; returns the factors and the variables of each.

    factors: indices of the factors.
    scopes: remaining scope of every factor.
    shape: cardinalities.
    clique_entries: entries of the clique.
    """
    # First fit, largest factor first: a potential is small, or no larger than its largest factor.
    small = max(SMALL_POTENTIAL, min(clique_entries // HUGE_CLIQUE, LARGE_POTENTIAL))
    groups: list[tuple[list[int], frozenset[int], int]] = []
    for factor in sorted(factors, key=lambda f: -shape.entries(scopes[f])):
        scope = frozenset(scopes[factor])
        for g, (members, union, entries) in enumerate(groups):
            if scope <= union:
                members.append(factor)
                break
            if entries < small and (joined := shape.entries(union | scope)) <= small:
                groups[g] = ([*members, factor], union | scope, joined)
                break
        else:
            groups.append(([factor], scope, shape.entries(scope)))
    return [(tuple(members), union) for members, union, _ in groups]


def _with_frees(steps: Sequence[Step], tables: Sequence[Table]) -> list[Step]:
    """Return the steps with a Free after the last use of every per-case table; shared tables stay.

    A table that no step reads, a result, is copied out when it is made and freed right after.
    """
    last = [-1] * len(tables)
    for i, step in enumerate(steps):
        if isinstance(step, Reduce):
            for operand in step.operands:
                last[operand] = i
        elif isinstance(step, Free):
            continue
        last[step.out] = i
    freed: dict[int, list[int]] = {}
    for number, table in enumerate(tables):
        if table.per_case and last[number] >= 0:
            freed.setdefault(last[number], []).append(number)
    result: list[Step] = []
    for i, step in enumerate(steps):
        result.append(step)
        result.extend(map(Free, freed.get(i, ())))
    return result
