"""Which rows of a batch are answered together, and by which strategy: one decision, in one place.

Main functions: `choose`, which compares prices, `route_of`, which looks at sizes, and `estimate`, at seconds. Nothing
here propagates, allocates or opens a device. The same batch and options get the same routes: an interrupted run has to
repeat itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from junctor_kernels.tables.reference import LOG

from junctor.cost.features.plans import plain_seconds
from junctor.cost.policy import CORES
from junctor.engine.plan_groups import PatternChoice, PatternPricer, compiled_prices, plain_prices, row_tree_seconds
from junctor.evidence.batch import EvidenceBatch, Rows
from junctor.evidence.deduplicate import MOST_ANSWERED_GPU, find_equal_rows
from junctor.evidence.patterns import (
    NOBODY_LOOKED,
    Mask,
    PatternGroup,
    Patterns,
    patterns_of,
    sampled_patterns,
    serving_all,
)
from junctor.model.errors import BudgetError, InputError
from junctor.model.strategies import EXACT, Chosen, NotChosen, Rejected, Strategy
from junctor.planning.budget import Budget, row_seconds, too_long
from junctor.planning.shape import Pattern
from junctor.strategies.chunk_cuts import ChunkCuts
from junctor.strategies.facts import FEW_ROWS, MESSAGES_OF_FACTORS, ON_DEVICES, Facts
from junctor.strategies.plan_rows import MOST_OPERATIONS, once_seconds, unprepared
from junctor.strategies.registry import way
from junctor.strategies.strategy import Allowance, Offer, Route

if TYPE_CHECKING:
    from junctor.cost.figures import Figures

# Fewest rows of a pattern of which the impossible ones are found before the others are answered.
LEAST_DECIDED = 256
# Strategies of plans in one piece.
PLANNED = (Strategy.ENTRIES, Strategy.CPU_BLOCKS, Strategy.GPU_BLOCKS)
# Those of cores that have to be compiled, and loaded.
COMPILED = (Strategy.ROW_TREES, Strategy.CPU_BLOCKS)
# Share of the time allowed up to which the coarsest forecast of a row will do.
SURE_SHARE = 0.1
# What is told of exact answers where nobody asks for them.
NOT_ASKED_FOR = tuple(Rejected(each, "samples are asked for") for each in EXACT if each is not Strategy.IMPOSSIBLE)


@dataclass(frozen=True, eq=False, slots=True)
class Choice:
    """How the rows of a batch go.

    batch: with its equal rows, where few enough are left that their answers are copied; rows that are sampled while
        others are not count as invalid there.
    groups: of the rows that are answered, each with its strategy.
    facts: that the groups were chosen by: of the CPUs alone where a GPU is not worth its while.
    on_gpu: whether a GPU answers some of them.
    """

    batch: EvidenceBatch
    groups: Sequence[PatternGroup]
    facts: Facts
    on_gpu: bool


def choose(batch: EvidenceBatch, facts: Facts) -> Choice:
    """Return which rows of a batch are answered together and by what, where that takes least by prices.

    Raises InputError where a strategy is asked for that answers no rows of this kind.
    """
    return _exactly(batch, facts) if facts.query.method == "exact" else _with_samples(batch, facts)


def _with_samples(batch: EvidenceBatch, facts: Facts) -> Choice:
    """Return the choice where rows may be sampled: all of them, or those whose exact answers exceed the budget."""
    if facts.query.method == "sampling":
        rows = batch.valid
        group = PatternGroup(NOBODY_LOOKED, rows, 0, Strategy.SAMPLES, rejected=NOT_ASKED_FOR)
        return Choice(batch, [group] if rows.size else [], facts, False)
    sampled = list(_beyond_budget(batch, facts.within_budget))
    beyond = np.concatenate([np.zeros(0, dtype=np.int64), *(group.rows for group in sampled)])
    choice = _exactly(_passing_over(batch, beyond), facts)
    return replace(choice, groups=[*choice.groups, *sampled])


def _beyond_budget(batch: EvidenceBatch, facts: Facts) -> Iterator[PatternGroup]:
    """Yield the rows of a batch that are refused; facts: within the budget of exact answers."""
    choice = _exactly(batch, facts)
    for route in _forecast(choice):
        if route.refused is not None:
            yield _sampled(route, choice.batch.served(route.group.rows))
        elif route.group.by_trees:
            yield from _trees_beyond_budget(route.group, choice.batch, facts)


def _trees_beyond_budget(group: PatternGroup, batch: EvidenceBatch, facts: Facts) -> Iterator[PatternGroup]:
    """Yield those of the rows with a tree of their own whose tree is too large, and whose plan is as well."""
    for exact in patterns_of(batch).exact(group.rows):
        if facts.row_engine.work(exact.pattern.sliced, exact.pattern.weighted)[1] > facts.row_engine.entries:
            # A batch of these rows alone has one group.
            alone = _exactly(_passing_over(batch, np.setdiff1d(batch.valid, exact.rows)), facts)
            refused = [route for route in _forecast(alone) if route.refused is not None]
            yield from (_sampled(route, batch.served(exact.rows)) for route in refused)


def _forecast(choice: Choice) -> list[Route]:
    """Return the routes of a choice, those with most work first."""
    facts, batch = choice.facts, choice.batch
    room = Allowance(Budget(facts.allowed, facts.answer_bytes(batch.rows)), None, {})
    routes = [estimate(facts, route_of(group, batch, facts, room), batch) for group in choice.groups]
    return sorted(routes, key=lambda route: -route.operations)


def _sampled(route: Route, rows: Rows) -> PatternGroup:
    """Return the group of rows whose exact answers are refused."""
    refused = Rejected(route.strategy, str(route.refused), route.seconds)
    others = [each for each in route.group.rejected if each.strategy is not route.strategy]
    return replace(route.group, rows=rows, strategy=Strategy.SAMPLES, copies=0, rejected=(refused, *others))


def _passing_over(batch: EvidenceBatch, rows: Rows) -> EvidenceBatch:
    """Return a batch without some of its rows; the others keep their numbers."""
    if not rows.size:
        return batch
    return replace(batch, invalid=dict.fromkeys(rows.tolist(), "answered elsewhere") | batch.invalid, equal=None)


def _exactly(batch: EvidenceBatch, facts: Facts) -> Choice:
    """Return the choice among exact answers."""
    found = find_equal_rows(batch, facts.network.cardinalities, threads=facts.threads)
    if facts.forced is not None:
        asked = _forced(found, facts)
        on_gpu = _uses_gpu(asked, found, facts)
        return _with_copies(asked, found, facts if on_gpu else facts.without_gpu, on_gpu)
    if (few := _as_a_whole(found, facts)) is not None:
        return _with_copies(few, found, facts.without_gpu, False)
    if (plain := _before_compiling(found, facts)) is not None:
        return _with_copies(plain, found, facts.without_gpu, False)
    if (mixed := _with_circuits(found, facts)) is not None:
        on_gpu = _uses_gpu(mixed, found, facts)
        return _with_copies(mixed, found, facts if on_gpu else facts.without_gpu, on_gpu)
    if facts.takes_gpu:
        equal = found
        if batch.equal is None and found.answered_count > MOST_ANSWERED_GPU * len(batch.valid):
            equal = batch
        groups = _OnGpu(equal, facts).groups()
        if groups is not None:
            return _with_copies(groups, equal, facts, True)
    facts = facts.without_gpu
    return _with_copies(_on_cores(found, facts), found, facts, False)


def _with_circuits(batch: EvidenceBatch, facts: Facts) -> Sequence[PatternGroup] | None:
    """Return groups of which circuits answer some, and cores the others; None where circuits answer none."""
    # Imported here: small networks do without what it loads.
    from junctor.engine.circuit_choice import circuit_groups, without

    groups = circuit_groups(batch, facts)
    if not groups:
        return None
    others = without(batch.answered, groups)
    if not others.size:
        return groups
    rest = _passing_over(batch, np.concatenate([group.rows for group in groups]))
    return [*groups, *_on_cores(rest, facts.without_gpu)]


def _uses_gpu(groups: Sequence[PatternGroup], batch: EvidenceBatch, facts: Facts) -> bool:
    """Return True if a GPU answers rows that are in groups with circuits, or for a strategy that is asked for."""
    if not any(group.strategy is Strategy.CIRCUIT for group in groups):
        return facts.takes_gpu
    from junctor.engine.circuit_choice import gpu_answers

    return gpu_answers(groups, batch, facts)


def route_of(
    group: PatternGroup, batch: EvidenceBatch, facts: Facts, room: Allowance, uses: int | None = None
) -> Route:
    """Return how a group of rows of a batch is answered within some room: as chosen, or by the next that fits.

    uses: rows that the plan is made for, if not those of the run that are like these.
    """
    strategy = group.strategy
    assert strategy is not None
    if not has_plan(strategy):
        return way(strategy).prepare(group, 1, batch, facts, room)
    uses = facts.uses(group, batch) if uses is None else uses
    refused = None
    for name in _that_may_fit(strategy, group.pattern, uses, facts, room):
        try:
            return way(name).prepare(group, uses, batch, facts, room)
        except BudgetError as error:
            refused = refused or error
    assert refused is not None
    return replace(unprepared(Strategy.ENTRIES, group, uses, facts, room), refused=refused)


def has_plan(strategy: Strategy) -> bool:
    """Return True if a strategy runs a plan, whose size decides what becomes of it."""
    return strategy in PLANNED or strategy is Strategy.CHUNKS


def by_plan(group: PatternGroup, batch: EvidenceBatch, facts: Facts) -> PatternGroup:
    """Return a group with the strategy that runs its plan in the least time."""
    forced = facts.forced
    if forced is not None and has_plan(forced):
        return replace(group, strategy=forced, shared=False)
    if facts.takes_gpu:
        return replace(group, strategy=Strategy.GPU_BLOCKS, shared=False)
    if not facts.fits(group.pattern, facts.uses(group, batch)):
        # Which of the two it would be is of no interest.
        return replace(group, strategy=Strategy.ENTRIES, shared=False)
    from junctor.strategies import cpu_blocks, entries

    uses = facts.uses(group, batch)
    seconds = {each.name: each.with_plan(group, batch, facts).seconds(uses) for each in (entries.WAY, cpu_blocks.WAY)}
    best, other = sorted(seconds, key=seconds.__getitem__)
    told = Rejected(other, "takes longer with this plan", seconds[other])
    return replace(group, strategy=best, shared=False, price=seconds[best], rejected=(*group.rejected, told))


def _that_may_fit(strategy: Strategy, pattern: Pattern, uses: int, facts: Facts, room: Allowance) -> Iterator[Strategy]:
    """Yield strategies for a plan, the one to try first first: chunks where rows have to or pay."""
    forced = facts.forced
    if forced is not None and has_plan(forced):
        yield strategy
    elif ChunkCuts(facts).in_chunks(pattern, uses, room.budget.free, room.gpu):
        yield Strategy.CHUNKS
    else:
        yield strategy
        if strategy is Strategy.CPU_BLOCKS:
            yield Strategy.ENTRIES


def estimate(facts: Facts, route: Route, batch: EvidenceBatch, bound: int = 0) -> Route:
    """Return a route with its forecast: seconds of one core, or of a GPU where one is used, and counts of work.

    It is refused where a row takes longer than allowed.
    """
    if route.refused is not None:
        # Refused rows get the seconds of NumPy: they show how far out of reach they are.
        return replace(route, seconds=min(route.operations, MOST_OPERATIONS) * facts.figures.numpy.operation)
    priced, allowed = way(route.strategy).forecast(route, batch, facts, bound), row_seconds(facts.time_limit)
    # Rows whose tree is too large get a plan, which is asked for then.
    if not math.isfinite(priced.seconds) or (seconds := _row_seconds(priced, facts.figures)) <= allowed:
        return priced
    return replace(priced, refused=too_long(seconds, allowed, "a row", facts.advice))


def _row_seconds(route: Route, figures: Figures) -> float:
    """Return the forecast of a row, by the threads that share it; the first one does what all others share."""
    seconds, plan = route.seconds, route.plan
    once = 0.0 if plan is None or route.chunks is not None else once_seconds(plan, figures)
    together = route.threads if route.shares_row else 1
    return (once + (seconds - once) / max(1, len(route.group.rows))) / together


def may_take_long(route: Route, facts: Facts) -> bool:
    """Return True if a row may take longer than allowed, before it is forecast."""
    if route.chunks is not None:
        return True
    if route.plan is None:
        # Messages of trees fit the memory, so that none takes a day.
        return facts.time_limit is not None
    seconds = plain_seconds(route.plan, facts.figures, 1) + once_seconds(route.plan, facts.figures)
    return facts.figures.ratios.numpy_log * seconds > SURE_SHARE * row_seconds(facts.time_limit)


def told_of(route: Route, batch: EvidenceBatch, facts: Facts) -> Chosen:
    """Return what was chosen for the rows of a route, and what was not and why."""
    group, told = route.group, {each.strategy: each for each in route.group.rejected}
    # Of rows that are sampled, the choice has said it.
    names = () if route.strategy is Strategy.SAMPLES else EXACT if facts.query.method == "exact" else Strategy
    for name in names:
        if name not in told and name not in (route.strategy, Strategy.IMPOSSIBLE):
            offer = refusal(name, facts) or _offer_beside(route, name, batch, facts)
            if isinstance(offer, Offer) and not group.patterns:
                told[name] = Rejected(name, "takes longer to prepare", facts.planning)
            elif isinstance(offer, Offer) and facts.forced is not None:
                told[name] = Rejected(name, "not asked for", offer.price.seconds(facts.uses(group, batch)))
            elif isinstance(offer, Offer):
                told[name] = Rejected(name, "takes longer", offer.price.seconds(facts.uses(group, batch)))
            else:
                told[name] = Rejected(name, offer)
    told.pop(route.strategy, None)
    others = (NotChosen(each.strategy.value, each.reason, _finite(each.seconds)) for each in told.values())
    seconds = _finite(group.price), _finite(route.seconds)
    return Chosen(route.rows, route.strategy.value, route.reason, *seconds, tuple(others))


def _offer_beside(route: Route, name: Strategy, batch: EvidenceBatch, facts: Facts) -> Offer | str:
    """Return what another strategy offers for the rows of a route, or why it does not."""
    if route.strategy is Strategy.CHUNKS and facts.forced is None and name is not Strategy.JOINT_TABLE:
        # Prices of a plan know no memory, and to ask for them loads compiled code.
        return "its plan exceeds the memory"
    return way(name).offer(route.group, batch, facts)


def _finite(seconds: float) -> float | None:
    # JSON knows no infinity, and no price is nan.
    return seconds if math.isfinite(seconds) else None


def _with_copies(groups: Sequence[PatternGroup], batch: EvidenceBatch, facts: Facts, on_gpu: bool) -> Choice:
    """Return the choice with the rows of each group that get copies of its answers."""
    if batch.equal is None:
        return Choice(batch, groups, facts, on_gpu)
    if len(groups) == 1:
        # All rows, for which nobody has to count.
        (group,) = groups
        copies = batch.rows - len(batch.invalid) - len(group.rows)
        return Choice(batch, [replace(group, copies=copies)], facts, on_gpu)
    sharing = batch.equal.sharing()
    copied = [replace(each, copies=int(sharing[each.rows].sum()) - len(each.rows)) for each in groups]
    return Choice(batch, copied, facts, on_gpu)


def _forced(batch: EvidenceBatch, facts: Facts) -> Sequence[PatternGroup]:
    """Return the rows of a batch in groups for the strategy that is asked for, whatever they would take in another way.

    Rows whose trees are too large, or whose numbers need a wider format, get a plan as always.
    """
    strategy = facts.forced
    assert strategy is not None
    if (why := refusal(strategy, facts)) is not None:
        raise InputError(f"strategy {strategy.value}: {why}; leave the choice to junctor, or take another one")
    if strategy in (Strategy.JOINT_TABLE, Strategy.CIRCUIT):
        return [PatternGroup(NOBODY_LOOKED, batch.answered, 0, strategy)] if batch.answered.size else []
    patterns = patterns_of(batch, facts.threads)
    if not patterns.rows.size:
        return []
    if strategy is not Strategy.ROW_TREES:
        return [replace(group, strategy=strategy) for group in patterns.exact(patterns.rows)]
    from junctor.backends.row_work import LANES

    # Explanations share no trees.
    if facts.explains or len(patterns.rows) < LANES or not _has_room_for_shared(batch, facts):
        return [patterns.together()]
    if len(patterns.counts) > 1:
        return _tree_groups(patterns, batch, facts)
    (group,) = patterns.exact(patterns.rows)
    return [replace(group, strategy=strategy, shared=True)]


def refusal(strategy: Strategy, facts: Facts) -> str | None:
    """Return why a strategy cannot be asked for, on this network and machine; None where it can."""
    if facts.asks_gpu and strategy not in (*ON_DEVICES, Strategy.IMPOSSIBLE):
        return "it runs on CPUs, and a GPU is asked for"
    return lacking(strategy, facts) or way(strategy).refuses(facts)


def lacking(strategy: Strategy, facts: Facts) -> str | None:
    """Return that a strategy has no answers to the question; None where it has."""
    question = facts.query.question
    if question.needs in way(strategy).supports:
        return None
    return f"{question.plural} have no {strategy.value.replace('-', ' ')}"


def _offer(strategy: Strategy, group: PatternGroup, batch: EvidenceBatch, facts: Facts) -> Offer | str:
    """Return what rows of a group would take in a strategy, or why they are not answered so."""
    return lacking(strategy, facts) or way(strategy).offer(group, batch, facts)


def _as_a_whole(batch: EvidenceBatch, facts: Facts) -> Sequence[PatternGroup] | None:
    """Return all rows as one group where nobody has to look at their patterns; None where that may pay."""
    if batch.invalid or batch.equal is not None or batch.rows > FEW_ROWS:
        return _whole(batch, facts)[0]
    # Kept, because calls of a few rows take no longer than their choice.
    key = batch.rows, facts.expected_rows
    if key not in facts.few:
        groups, is_usual = _whole(batch, facts)
        if not is_usual:
            return groups
        facts.few[key] = groups
    return facts.few[key]


def _whole(batch: EvidenceBatch, facts: Facts) -> tuple[Sequence[PatternGroup] | None, bool]:
    """Return the same: rows on the joint table, or few rows with a tree for each; and whether evidence matters not."""
    if facts.asks_gpu:
        return None, True
    rows = batch.answered
    if not rows.size:
        return [], False
    group = PatternGroup(NOBODY_LOOKED, rows)
    offer = _offer(Strategy.JOINT_TABLE, group, batch, facts)
    if isinstance(offer, Offer):
        seconds = offer.price.seconds(facts.to_come(batch, len(rows)))
        # Beyond, what loads compiled code may be worth it.
        if seconds <= facts.figures.loading.trees or facts.are_few(batch) or seconds <= facts.compiling:
            group = PatternGroup(
                NOBODY_LOOKED, rows, 0, Strategy.JOINT_TABLE, price=seconds, rejected=_before_loading(facts)
            )
            return [group], True
    if not facts.are_few(batch) or (facts.explains and facts.has_joint_table):
        # Of small networks a plan in NumPy explains them, before compiled code is loaded.
        return None, True
    # Until that code is there, others are looked at.
    return (None, False) if facts.compiling else _few_on_trees(batch, facts)


def _before_compiling(batch: EvidenceBatch, facts: Facts) -> Sequence[PatternGroup] | None:
    """Return groups with plans in NumPy where code of trees is to be compiled and that takes longer; otherwise None."""
    if not batch.answered_count:
        return None
    few, loading = facts.are_few(batch), facts.figures.loading
    # Calls of few rows come again.
    limit, rows = loading.trees if few else loading.compiling, facts.to_come(batch, batch.answered_count)
    least = facts.planning + rows * MESSAGES_OF_FACTORS * facts.entries * facts.figures.numpy.entry
    # What uses a GPU prepares more than trees; whether they are there is asked last, which loads Numba.
    if (facts.takes_gpu and not few) or least > limit or not facts.compiling:
        return None
    facts = facts.without_gpu
    patterns = patterns_of(batch, facts.threads)
    if len(patterns.counts) > 1:
        # Not a number where nothing fits in one piece.
        choice = PatternChoice(patterns, plain_prices(facts), rows=patterns.rows.size)
        groups, row = choice.groups(), choice.seconds / patterns.rows.size
    else:
        groups = [_of_one(patterns)]
        row = plain_seconds(facts.plan(groups[0].pattern, rows), facts.figures, rows)
    seconds = facts.planning + rows * row * (facts.figures.ratios.numpy_log if facts.ladder[0] is LOG else 1)
    if not seconds < limit:
        return None
    told = tuple(Rejected(each, "its code is not compiled yet", facts.compiling) for each in COMPILED)
    return [replace(each, strategy=Strategy.ENTRIES, shared=False, rejected=told) for each in groups]


def _before_loading(facts: Facts) -> tuple[Rejected, ...]:
    """Return what few rows of a small network are not worth."""
    told, seconds = "its code takes longer to load than the rows take", facts.figures.loading.trees
    return tuple(Rejected(each, told, seconds) for each in COMPILED)


def _few_on_trees(batch: EvidenceBatch, facts: Facts) -> tuple[Sequence[PatternGroup] | None, bool]:
    """Return a few rows with a tree for each, None where these are large; and whether evidence matters not."""
    most, rows = facts.tree_entries(batch), facts.expected_rows
    # Usual networks have no large trees, whatever the evidence, and nobody looks at patterns.
    whole = facts.whole
    # What chooses better trees takes about as long as these take to load.
    light = facts.figures.loading.trees / facts.figures.trees.operation
    is_light = rows * whole.operations <= light and whole.entries <= most
    if not is_light:
        patterns = patterns_of(batch, facts.threads)
        works = [facts.work(Pattern(patterns.observed(p), patterns.soft(p))) for p in range(len(patterns.counts))]
        counts = patterns.counts.tolist()
        operations = sum(count * work.operations for count, work in zip(counts, works, strict=True))
        share = patterns.rows.size / rows
        if operations > share * light or any(work.entries > most for work in works):
            return None, False
    told = (Rejected(Strategy.ENTRIES, "calls of few rows come again, and a plan takes longer", facts.planning),)
    return [PatternGroup(NOBODY_LOOKED, batch.answered, 0, Strategy.ROW_TREES, rejected=told)], is_light


class _OnGpu:
    """Groups of rows that a GPU answers.

    batch: evidence.
    facts: of a machine with a GPU.
    """

    def __init__(self, batch: EvidenceBatch, facts: Facts) -> None:
        self._batch = batch
        self._facts = facts

    def groups(self) -> Sequence[PatternGroup] | None:
        """Return the groups, with trees of the cores beside the GPU; None where the cores alone take less."""
        batch, facts = self._batch, self._facts
        if (whole := self._together()) is not None:
            return whole[0]
        patterns = patterns_of(batch, facts.threads)
        if not patterns.rows.size:
            return []
        if len(patterns.counts) > 1:
            groups = self._choice(patterns, patterns.rows.size).groups()
        else:
            groups = [_of_one(patterns)]
        if not (facts.asks_gpu or self._is_worth_it(groups)):
            return None
        groups = _that_fit(groups, batch, facts) if len(patterns.counts) > 1 else groups
        return [each if each.by_trees else replace(each, strategy=Strategy.GPU_BLOCKS) for each in groups]

    def _together(self) -> tuple[Sequence[PatternGroup] | None] | None:
        """Return all rows as one group where hardly two observe the same and no pattern is worth a plan of its own.

        Some of the rows tell, because to tell all of them apart takes as long as a GPU takes to answer them.
        """
        batch, facts = self._batch, self._facts
        some = None if facts.are_few(batch) else sampled_patterns(batch, facts.threads)
        if some is None:
            return None
        rows = batch.answered
        groups = self._choice(some, rows.size).groups()
        if len(groups) > 1:
            return None
        group = PatternGroup(serving_all(batch, some, facts.threads), rows, rows.size, groups[0].strategy)
        if not group.by_trees:
            if not (facts.asks_gpu or self._is_worth_it([group])):
                return (None,)
            # Asked last whether a plan fits: its search takes seconds.
            if not facts.fits(group.pattern, facts.uses(group, batch)):
                return None
            group = replace(group, strategy=Strategy.GPU_BLOCKS)
        return ([group],)

    def _choice(self, patterns: Patterns, valid: int) -> PatternChoice:
        """Return the cheapest plans by patterns; valid: rows of the batch that are not invalid."""
        facts = self._facts
        if facts.planning < facts.figures.loading.trees and not facts.is_heavy(facts.to_come(self._batch, valid)):
            choice = PatternChoice(patterns, plain_prices(facts), rows=valid)
            # Not a number where nothing fits in one piece: each pattern gets a plan of its own, in chunks.
            if not choice.seconds * facts.to_come(self._batch, valid) > facts.figures.loading.compiled * valid:
                return choice
        # All cores answer those with trees, of which plans on a GPU need one.
        per_row = row_tree_seconds(facts, patterns, self._batch) / facts.gpu_host.cores
        return PatternChoice(patterns, self._prices(per_row), search=True, rows=valid)

    def _prices(self, per_row: float) -> PatternPricer:
        host = self._facts.gpu_host
        return compiled_prices(self._facts, per_row, host.likelihood, (host.plan_table, host.plan_entry))

    def _is_worth_it(self, groups: Sequence[PatternGroup]) -> bool:
        """Return True if a GPU, and all that prepares it for some groups, takes less time than the cores would."""
        facts, batch = self._facts, self._batch
        here, there, plain = 0.0, 0.0, 0.0
        # Threads share rows.
        threads = min(facts.threads, batch.rows)
        # Trees of the cores beside a GPU answer the others.
        for group in (group for group in groups if not group.by_trees and group.rows.size):
            rows, work, numpy = facts.to_come(batch, group.rows.size), facts.work(group.pattern), facts.figures.numpy
            plain += rows * (work.operations * numpy.operation + work.entries * numpy.entry)
            offer = _offer(Strategy.GPU_BLOCKS, group, batch, facts)
            there += offer.price.seconds(rows) if isinstance(offer, Offer) else math.inf
            here += rows * _seconds_on_cores(group, batch, facts.without_gpu, rows)
        # What is too large for cores, and for prices, may go in chunks: both devices are compared where these are made.
        if math.isinf(here):
            return True
        # A GPU takes about as long to come into play as compiled code does, which trees beside it load as well.
        is_light = plain <= facts.figures.loading.compiled and not any(group.by_trees for group in groups)
        return not is_light and there < here / math.pow(threads, CORES)


def _seconds_on_cores(group: PatternGroup, batch: EvidenceBatch, facts: Facts, rows: int) -> float:
    """Return the seconds of a row of a group, of so many, on one core, whatever is loaded there."""
    trees = _offer(Strategy.ROW_TREES, group, batch, facts)
    alone = trees.price.row if isinstance(trees, Offer) else math.inf
    if group.patterns > 1:
        return alone
    blocks = _offer(Strategy.CPU_BLOCKS, group, batch, facts)
    planned = blocks.price.row + blocks.price.once / rows if isinstance(blocks, Offer) else math.inf
    return min(alone, planned)


def _on_cores(batch: EvidenceBatch, facts: Facts) -> Sequence[PatternGroup]:
    """Return the groups of rows that the cores answer."""
    patterns = patterns_of(batch, facts.threads)
    if not patterns.rows.size:
        return []
    rows = facts.to_come(batch, patterns.rows.size)
    # Few rows whose trees are too large, or their number would be known to be few.
    are_few = len(patterns.counts) > 1 and rows <= FEW_ROWS and not facts.is_heavy(rows)
    if facts.explains or are_few or not _has_room_for_shared(batch, facts):
        return _planned_groups(patterns, batch, facts)
    if len(patterns.counts) > 1:
        _load_trees(facts)
        groups = _tree_groups(patterns, batch, facts)
        priced = [each if not each.shared or each.patterns > 1 else _cheapest(each, batch, facts) for each in groups]
        return _that_fit(priced, batch, facts)
    group = _of_one(patterns)
    plain = _offer(Strategy.ENTRIES, group, batch, facts)
    if (
        isinstance(plain, Offer)
        and (seconds := plain.price.seconds(facts.uses(group, batch))) < facts.figures.loading.trees
    ):
        return [replace(group, strategy=Strategy.ENTRIES, price=seconds, rejected=_before_loading(facts))]
    _load_trees(facts)
    return [_cheapest(each, batch, facts) for each in _without_impossible(group, batch, facts)]


def _cheapest(group: PatternGroup, batch: EvidenceBatch, facts: Facts) -> PatternGroup:
    """Return a group of one pattern with the strategy whose price is the lowest, and what the others offered."""
    if group.strategy is Strategy.IMPOSSIBLE:
        return group
    uses, told = facts.uses(group, batch), list[Rejected]()
    offers: dict[Strategy, tuple[float, PatternGroup]] = {}
    # Entries last: their offer alone makes a plan.
    for name in sorted(EXACT, key=lambda name: name is Strategy.ENTRIES):
        if name is Strategy.ENTRIES and offers:
            planning = facts.work(group.pattern).tables * facts.figures.planning.table
            if planning >= min(seconds for seconds, _ in offers.values()):
                told.append(Rejected(name, "takes longer to plan", planning))
                continue
        offer = _offer(name, group, batch, facts)
        if isinstance(offer, Offer):
            # Code of trees, and what comes with it, is loaded: it told their prices.
            offers[name] = replace(offer.price, load=0.0).seconds(uses), offer.group
        else:
            told.append(Rejected(name, offer))
    if not offers:
        return replace(group, strategy=Strategy.ENTRIES, shared=False, rejected=tuple(told))
    best = min(offers, key=lambda name: offers[name][0])
    if best is Strategy.CPU_BLOCKS and Strategy.ROW_TREES in offers:
        best = _by_cache(group, batch, facts, offers)
    others = [Rejected(name, "takes longer", seconds) for name, (seconds, _) in offers.items() if name is not best]
    seconds, taken = offers[best]
    taken = replace(taken, strategy=best, price=seconds, rejected=(*told, *others))
    return by_plan(taken, batch, facts) if best in PLANNED else taken


def _by_cache(
    group: PatternGroup, batch: EvidenceBatch, facts: Facts, offers: dict[Strategy, tuple[float, PatternGroup]]
) -> Strategy:
    """Return whether a plan is the cheapest once it is known how large its messages are: only the plan itself tells."""
    from junctor.strategies import cpu_blocks

    alone = facts.seconds_alone(group, batch)
    if alone >= (row := cpu_blocks.WAY.uncached(group, batch, facts)):
        return Strategy.CPU_BLOCKS
    uses = facts.uses(group, batch)
    offers[Strategy.CPU_BLOCKS] = uses * row, group
    offers[Strategy.ROW_TREES] = uses * alone, replace(group, strategy=Strategy.ROW_TREES, shared=False)
    return Strategy.ROW_TREES


def _load_trees(facts: Facts) -> None:
    """Begin to load what answers rows that share trees, beside the choice of their groups."""
    if facts.threads > 1:
        from junctor_kernels.row_trees import ahead

        ahead.start("float32" if facts.query.precision == "single" else "float64")


def _tree_groups(patterns: Patterns, batch: EvidenceBatch, facts: Facts) -> list[PatternGroup]:
    # Imported where trees are chosen: compiled code comes with it.
    from junctor.engine.tree_groups import TreeChoice

    return TreeChoice(batch, patterns, facts.row_engine, facts.figures).groups()


def _without_impossible(group: PatternGroup, batch: EvidenceBatch, facts: Facts) -> list[PatternGroup]:
    """Return a group of one pattern without its impossible rows, and these, where some rows seem to be."""
    # Impossible rows have no tables, nor have those of which everything is known.
    if all(work.tables for work in facts.works_alone(group, batch)):
        return [group]
    impossible = _impossible(group, batch, facts)
    if impossible is None:
        return [group]
    none = replace(group, rows=group.rows[impossible], strategy=Strategy.IMPOSSIBLE)
    others = replace(group, rows=group.rows[~impossible])
    return [none, others] if others.rows.size else [none]


def _impossible(group: PatternGroup, batch: EvidenceBatch, facts: Facts) -> Mask | None:
    """Return which rows of one pattern are impossible, None where these are none or not worth looking at.

    They are decided 64 at a time, in a fraction of the time of their trees.
    """
    if len(group.rows) < LEAST_DECIDED:
        return None
    # Imported where some rows are: with it comes compiled code.
    from junctor_kernels.row_trees.together import BLOCK_BYTES

    from junctor.backends.impossibility import Limits, impossible_rows

    limits = Limits(min(BLOCK_BYTES, facts.beside_answers(batch) // 4), facts.threads)
    impossible = impossible_rows(facts.network, batch, group.rows, limits)
    return impossible if impossible.any() else None


def _planned_groups(patterns: Patterns, batch: EvidenceBatch, facts: Facts) -> Sequence[PatternGroup]:
    """Return groups with plans, and rows with trees of their own: explanations, and sums where memory is short."""
    if len(patterns.counts) == 1 and not facts.explains:
        return [by_plan(_of_one(patterns), batch, facts)]
    groups = _that_fit(_plan_choice(patterns, batch, facts).groups(), batch, facts)
    return [each if each.by_trees else by_plan(each, batch, facts) for each in groups]


def _plan_choice(patterns: Patterns, batch: EvidenceBatch, facts: Facts) -> PatternChoice:
    """Return the cheapest plans by patterns: by prices in NumPy or, with enough work, by compiled ones."""
    valid, explains, figures = patterns.rows.size, facts.explains, facts.figures
    loading = figures.loading
    rows = facts.to_come(batch, valid)
    # To plan may take longer than trees; the plan of a single pattern answers its equal rows once, in NumPy.
    is_light = not facts.is_heavy(rows) or (explains and len(patterns.counts) == 1)
    if is_light and (facts.planning < facts.figures.loading.trees or not explains):
        choice = PatternChoice(patterns, plain_prices(facts), rows=valid)
        # Not a number where nothing fits in one piece: each pattern gets a plan of its own, in chunks.
        if not choice.seconds * rows > (loading.trees if explains else loading.compiled) * valid:
            return choice
    # Enough work for better prices, and trees, to pay for being loaded.
    per_row = row_tree_seconds(facts, patterns, batch)
    blocks = figures.blocks
    prices = compiled_prices(facts, per_row, blocks.copied_likelihood if explains else blocks.likelihood)
    if explains:
        # Compiled code for plans takes longer to load than trees, and a few rows are not worth it.
        row, share, maximum = prices.row, loading.blocks / rows, figures.ratios.blocks_maximum
        prices = replace(prices, row=lambda pattern: maximum * row(pattern) + share)
    return PatternChoice(patterns, prices, search=True, rows=valid)


def _that_fit(groups: Sequence[PatternGroup], batch: EvidenceBatch, facts: Facts) -> list[PatternGroup]:
    """Return the groups with those replaced whose common plan does not fit the memory, where something else may."""
    result: list[PatternGroup] = []
    for group in groups:
        # A group of one pattern has no coarser plan to replace: it goes in chunks, or is refused.
        if group.by_trees or group.patterns == 1 or facts.fits(group.pattern, facts.uses(group, batch)):
            result.append(group)
        else:
            result.append(replace(group, strategy=Strategy.ROW_TREES, shared=False))
    return result


def _has_room_for_shared(batch: EvidenceBatch, facts: Facts) -> bool:
    """Return True if there is memory for rows that share trees, beside the answers to a batch."""
    from junctor_kernels.row_trees.together import BLOCK_BYTES

    # Twice: posteriors of a call, cells of evidence, and maps of rows come with the messages.
    needed = 2 * facts.threads * (BLOCK_BYTES + facts.tree_bytes)
    return needed <= facts.beside_answers(batch) and (facts.working is None or needed <= facts.working)


def _of_one(patterns: Patterns) -> PatternGroup:
    """Return the rows of the only pattern of a batch."""
    return PatternGroup(Pattern(patterns.observed(0), patterns.soft(0)), patterns.rows)
