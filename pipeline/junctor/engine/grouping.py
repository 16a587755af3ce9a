"""Which rows of a batch are answered together: by a plan, on a tree that they share, or on trees of their own.

Main class: Grouping, a part of `Router`. On GPUs and without compiled code groups are those of `patterns`, on CPUs
those of `tree_choice`; a few rows go one by one, as those of `few_rows`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

from junctor_kernels.row_trees.together import BLOCK_BYTES
from junctor_kernels.tables import reference

from junctor.backends.plan_memory import LANE_BYTES
from junctor.backends.row_work import LANES, RowWork, alone_seconds, shared_seconds
from junctor.cost.constants import CPU, GPU
from junctor.cost.features.plans import plain_seconds
from junctor.engine.few_rows import FEW_ROWS, are_few, take_own_trees
from junctor.engine.forced import forced_groups
from junctor.engine.plan_groups import (
    PatternChoice,
    PatternPricer,
    Work,
    compiled_prices,
    plain_prices,
    row_tree_seconds,
)
from junctor.engine.tree_groups import SAMPLED, TreeChoice
from junctor.evidence.batch import EvidenceBatch
from junctor.evidence.compiled_cells import evidence_cells
from junctor.evidence.patterns import (
    Mask,
    PatternGroup,
    Patterns,
    patterns_of,
    sampled_patterns,
    serving_all,
    serving_few,
    spread,
)
from junctor.model.strategies import Strategy
from junctor.planning.shape import Pattern
from junctor.runtime.kept_results import keeping
from junctor.strategies.facts import KEPT_PLANS, Planner

# Fewest rows of a pattern of which the impossible ones are found before the others are answered.
LEAST_DECIDED = 256
# Seconds of work in NumPy from which compiled code is loaded; tests replace it.
COMPILED_SECONDS = CPU.compiled_work
# Seconds that NumPy takes at least, from which rows of one pattern may go to trees, and rows of several patterns that
# are few enough for plans.
TREE_SECONDS = 0.01
# Seconds that the loading of trees takes, about.
LOADING_SECONDS = 0.15
# Tables of a tree from which on rows never get a plan: those are made in Python, and lowered in more than linear time.
MOST_PLANNED_TABLES = 50_000


class Grouping(Planner):
    """Groups the rows of batches, and says what the rows to come are worth preparing."""

    def groups(self, batch: EvidenceBatch) -> list[PatternGroup]:
        """Return the rows that share a plan, and those with a tree of their own; of rows that are answered."""
        groups = self._groups(batch)
        if batch.equal is None:
            return groups
        if len(groups) == 1:
            # All rows, for which nobody has to count.
            (group,) = groups
            return [replace(group, copies=batch.rows - len(batch.invalid) - len(group.rows))]
        sharing = batch.equal.sharing()
        return [replace(group, copies=int(sharing[group.rows].sum()) - len(group.rows)) for group in groups]

    def _groups(self, batch: EvidenceBatch) -> list[PatternGroup]:
        if self.options.strategy is not None:
            shares = self._has_room_for_shared(batch)
            return forced_groups(self, self.options.strategy, patterns_of(batch, self.threads), batch, shares)
        if (few := self._on_joint_table(batch)) is not None:
            return [few] if few.rows.size else []
        if self.takes_gpu and (together := self._together(batch)) is not None:
            return together
        patterns = patterns_of(batch, self.threads)
        if self._goes_row_by_row(patterns, batch):
            return [patterns.together()] if patterns.rows.size else []
        if self._shares_trees(patterns, batch):
            return self._tree_groups(patterns, batch)
        if len(patterns.counts) > 1 or (self._explains_by_trees and patterns.rows.size):
            groups = self._choice(patterns, batch, patterns.rows.size).groups()
            return groups if self.is_left_to_cores(groups, batch) else self._fitting(groups, patterns, batch)
        if not len(patterns.counts):
            return []
        return [_of_one(patterns)]

    def _together(self, batch: EvidenceBatch) -> list[PatternGroup] | None:
        """Return all rows as one group where hardly two observe the same and no pattern is worth a plan of its own.

        Some of the rows tell, because to tell all of them apart takes as long as a GPU takes to answer them.
        """
        some = None if self._are_few(batch) else sampled_patterns(batch, self.threads)
        if some is None:
            return None
        rows = batch.answered
        groups = self._choice(some, batch, rows.size).groups()
        pattern = serving_all(batch, some, self.threads)
        group = PatternGroup(pattern, rows, rows.size, groups[0].strategy)
        if len(groups) > 1:
            return None
        if group.by_trees or self.is_left_to_cores([group], batch):
            # Not asked whether a plan fits: its search takes seconds where it is worth less than trees.
            return [group]
        return [group] if self._fits(pattern, self.uses(group, batch)) else None

    def _compiled_prices(self, per_row: float) -> PatternPricer:
        """Return prices from trees; per_row: seconds of a row with a tree of its own."""
        on_gpu = GPU.likelihood, (GPU.plan_table, GPU.plan_entry)
        cell, planned = on_gpu if self.takes_gpu else (CPU.likelihood, None)
        if self._explains_by_trees:
            cell = CPU.copied_likelihood
        return compiled_prices(self.work, self.allowed, per_row, self.row_price, cell, planned)

    def _choice(self, patterns: Patterns, batch: EvidenceBatch, valid: int) -> PatternChoice:
        """Return the cheapest answers to rows by their patterns; valid: rows of the batch that are not invalid."""
        rows, choice = self.to_come(batch, valid), None
        explains = self._explains_by_trees
        is_light = not self._is_heavy(rows)
        if explains:
            # To plan may take longer than trees; the plan of a single pattern answers its equal rows once, in NumPy.
            is_light = (is_light or len(patterns.counts) == 1) and self._planning < LOADING_SECONDS
        if is_light:
            # Without compiled code.
            prices = plain_prices(self.plan, len(self.network.variables), self._fits)
            choice = PatternChoice(patterns, prices, rows=valid)
        if choice is None or choice.seconds * rows > (LOADING_SECONDS if explains else COMPILED_SECONDS) * valid:
            # Enough work for better prices, and the row engine, to pay for being loaded.
            per_row = row_tree_seconds(self.row_engine, patterns, batch)
            # All cores answer them, of which plans on a GPU need one.
            prices = self._compiled_prices(per_row / GPU.cores if self.takes_gpu else per_row)
            if explains:
                # Compiled code for plans takes longer to load than trees, and a few rows are not worth it.
                row, loading = prices.row, CPU.compiled_saving / rows
                prices = replace(prices, row=lambda pattern: CPU.maximum * row(pattern) + loading)
            choice = PatternChoice(patterns, prices, search=True, rows=valid)
        return choice

    @property
    def _explains_by_trees(self) -> bool:
        """True if explanations on the CPU may come from trees of rows."""
        return self.query.kind == "mpe" and not self.takes_gpu

    @property
    def _planning(self) -> float:
        """Seconds of a plan, which takes a while for each variable, however few the rows."""
        return len(self.network.variables) * CPU.numpy_variable

    def _shares_trees(self, patterns: Patterns, batch: EvidenceBatch) -> bool:
        """Return True if rows may share trees made in compiled code: sums on CPUs, with enough work and memory."""
        # Rows with explanations share plans only.
        if self.query.kind == "mpe" or self.takes_gpu or not patterns.rows.size:
            return False
        if len(patterns.counts) == 1:
            if self._is_light(_of_one(patterns), batch):
                return False
        elif (rows := self.to_come(batch, patterns.rows.size)) <= FEW_ROWS and not self._is_heavy(rows):
            return False
        return self._has_room_for_shared(batch)

    def _has_room_for_shared(self, batch: EvidenceBatch) -> bool:
        """Return True if there is memory for rows that share trees, beside the answers to a batch."""
        answers = self.answer_bytes(batch.rows)
        # Twice: posteriors of a call, cells of evidence, and maps of rows come with the messages.
        needed = 2 * self.threads * (BLOCK_BYTES + self._room)
        return needed <= self.allowed - answers and (self.working is None or needed <= self.working)

    def _is_heavy(self, rows: int) -> bool:
        """Return True if so many rows take NumPy longer than the loading of trees; without a plan, which takes time."""
        # Each entry of a factor counts once.
        return rows * self._entries * CPU.numpy_entry > TREE_SECONDS

    def _is_light(self, group: PatternGroup, batch: EvidenceBatch) -> bool:
        """Return True if NumPy plans and answers rows of one pattern before trees would be loaded."""
        uses = self.uses(group, batch)
        if self._is_heavy(uses) or self._planning >= LOADING_SECONDS:
            return False
        row, once = self._plain_seconds(group.pattern, uses)
        # It is planned by now, and trees would come in addition.
        return once + uses * row < LOADING_SECONDS

    def _tree_groups(self, patterns: Patterns, batch: EvidenceBatch) -> list[PatternGroup]:
        """Return groups of rows with trees, and with plans where these are worth it."""
        if self.threads > 1:
            from junctor_kernels.row_trees import ahead

            ahead.start("float32" if self.query.precision == "single" else "float64")
        if len(patterns.counts) > 1:
            groups = TreeChoice(batch, patterns, self.row_engine).groups()
        else:
            groups = [replace(_of_one(patterns), strategy=Strategy.ROW_TREES, shared=True)]
        chosen: list[PatternGroup] = []
        for group in groups:
            chosen += self._with_plan(group, batch, len(group.rows) == patterns.rows.size)
        return self._fitting(chosen, patterns, batch)

    def _with_plan(self, group: PatternGroup, batch: EvidenceBatch, whole: bool) -> list[PatternGroup]:
        """Return a group with a plan instead of a tree where its rows are worth one, and its impossible rows apart.

        whole: whether all rows that may be possible are in it.
        """
        if not group.shared or group.patterns > 1:
            return [group]
        if whole and batch.equal is not None and self._is_light(group, batch):
            # Without compiled code, which several patterns have loaded already.
            return [_with_strategy(group, None)]
        work = self.work(group.pattern)
        row, rows = self._shared_seconds(group), self.uses(group, batch)
        plan, alone = self._planned_seconds(work, rows), alone_seconds(work)
        if whole:
            # Of rows whose states are known: those that evidence leaves impossible are in no tree of a row.
            works = self._works_alone(group, batch)
            alone = self.row_engine.seconds_alone(works)
            # Impossible rows have no tables, nor have those of which everything is known.
            impossible = self._impossible(group, batch) if not all(each.tables for each in works) else None
            if impossible is not None:
                others = replace(group, rows=group.rows[~impossible])
                none = _with_strategy(replace(group, rows=group.rows[impossible]), Strategy.IMPOSSIBLE)
                return [none, *(self._with_plan(others, batch, True) if others.rows.size else ())]
        # Too few do not fill the lanes of a vector.
        if len(group.rows) < LANES or alone < row:
            group, row = _with_strategy(group, Strategy.ROW_TREES), alone
        if math.isinf(work.operations):
            return [group if alone < math.inf else _with_strategy(group, None)]
        if plan >= row:
            return [group]
        # Only the plan itself tells how large its messages are.
        own = alone < self._uncached_seconds(group.pattern, rows)
        return [_with_strategy(group, Strategy.ROW_TREES if own else None)]

    def _shared_seconds(self, group: PatternGroup) -> float:
        """Return the seconds of a row of one pattern on a tree that its group shares."""
        rows = len(group.rows)
        return float(shared_seconds(self.work(group.pattern), rows, False, self.row_engine.above_zero)) / rows

    def _planned_seconds(self, work: RowWork, rows: int) -> float:
        """Return the seconds of a row of a plan in compiled blocks, with its share of what the plan takes to make.

        work: of its tree.
        rows: of the plan.
        """
        if work.tables > MOST_PLANNED_TABLES:
            return math.inf
        once = work.tables * CPU.compiling_table + work.entries * CPU.compiling_entry + CPU.compiled_saving
        operation, table = self.cpu_costs.coefficients["cpu"].row
        row = work.operations * operation + work.tables * table
        return (CPU.compiled_log if self.ladder[0] is reference.LOG else 1) * row + once / rows

    def is_left_to_cores(self, groups: Sequence[PatternGroup], batch: EvidenceBatch) -> bool:
        """Return True if some groups of a batch are not worth the GPU that is there: nothing is planned for them."""
        if self.options.strategy is not None or self.asks_gpu:
            return False
        return self.takes_gpu and not self.is_faster_on_gpu(groups, batch)

    def is_faster_on_gpu(self, groups: Sequence[PatternGroup], batch: EvidenceBatch) -> bool:
        """Return True if a GPU, and all that prepares it for some groups, takes less time than the cores would."""
        here, there, prices = 0.0, 0.0, self._compiled_prices(math.inf)
        # Threads share rows.
        threads = min(self.threads, batch.rows)
        # Trees of the cores beside a GPU answer the others.
        for group in (group for group in groups if group.by_plan and group.rows.size):
            rows = self.to_come(batch, group.rows.size)
            there += GPU.group + prices.once(group.pattern) + rows * prices.row(group.pattern)
            here += rows * self._seconds_on_cores(group, batch, rows)
        # What is too large for cores, and for prices, may go in chunks: both devices are compared where these are made.
        return math.isinf(here) or there < here / math.pow(threads, CPU.cores)

    def _seconds_on_cores(self, group: PatternGroup, batch: EvidenceBatch, rows: int) -> float:
        """Return the seconds of a row of a group, of so many, on one core."""
        alone = self.row_engine.seconds_alone(self._works_alone(group, batch))
        if group.patterns > 1:
            return alone
        planned = self._planned_seconds(self.work(group.pattern), rows)
        if self.query.kind == "mpe":
            return min(alone, CPU.maximum * planned)
        return min(alone, planned, self._shared_seconds(group))

    def _uncached_seconds(self, pattern: Pattern, uses: int) -> float:
        """Return the seconds of a row of a plan whose messages leave the cache, 0 for other plans."""
        if self.plan_memory(pattern, uses).usual_entries * LANE_BYTES <= CPU.cached_bytes:
            return 0.0
        operations = min(self.plan(pattern, uses).case_operations, 10**30) * self.row_engine.above_zero
        return operations * CPU.uncached_operation

    def _works_alone(self, group: PatternGroup, batch: EvidenceBatch) -> list[RowWork]:
        """Return the work of some rows of a group with a tree for each."""
        return self.row_engine.works_alone(evidence_cells(batch), spread(group.rows, SAMPLED))

    def _impossible(self, group: PatternGroup, batch: EvidenceBatch) -> Mask | None:
        """Return which rows of one pattern are impossible, None where these are none or not worth looking at.

        They are decided 64 at a time, in a fraction of the time of their trees.
        """
        if len(group.rows) < LEAST_DECIDED:
            return None
        # Imported where some rows are: with it comes compiled code.
        from junctor.backends.impossibility import Limits, impossible_rows

        limits = Limits(min(BLOCK_BYTES, self._beside_answers(batch) // 4), self.threads)
        impossible = impossible_rows(self.network, batch, group.rows, limits)
        return impossible if impossible.any() else None

    def _are_few(self, batch: EvidenceBatch) -> bool:
        """Return True if all rows to come are known to be few."""
        few = are_few(self.network, self.query, self.options.device, self.expected_rows)
        return few and self.gpu is None and batch.rows <= self.expected_rows

    def _goes_row_by_row(self, patterns: Patterns, batch: EvidenceBatch) -> bool:
        """Return True if rows of a batch are few and their trees are small."""
        if not self._are_few(batch):
            return False
        allowed, fixed = self._beside_answers(batch), self._room
        if self.working is not None:
            allowed = min(allowed, self.working + fixed)
        return take_own_trees(lambda: patterns, self.expected_rows, self._whole, self.work, (allowed - fixed) // 8)

    def _on_joint_table(self, batch: EvidenceBatch) -> PatternGroup | None:
        """Return all rows as one group where there is a joint table, and rows are few, or few of them differ."""
        table, is_few = self.joint_table, self._are_few(batch)
        if table is None or table.nbytes > self._beside_answers(batch):
            return None
        rows = batch.answered
        if not is_few:
            few = are_few(self.network, self.query, self.options.device, FEW_ROWS)
            if self.asks_gpu or not few or batch.equal is None or len(rows) > FEW_ROWS:
                return None
        pattern, patterns = serving_few(batch, len(self.network.variables))
        return PatternGroup(pattern, rows, patterns, Strategy.JOINT_TABLE)

    def _beside_answers(self, batch: EvidenceBatch) -> int:
        return self.allowed - self.answer_bytes(batch.rows)

    def _fitting(self, groups: list[PatternGroup], patterns: Patterns, batch: EvidenceBatch) -> list[PatternGroup]:
        """Return the groups with those replaced whose common plan does not fit the memory, where something else may."""
        result: list[PatternGroup] = []
        for group in groups:
            # A group of one pattern has no coarser plan to replace: it goes in chunks, or is refused.
            if group.by_trees or group.patterns == 1 or self._fits(group.pattern, self.uses(group, batch)):
                result.append(group)
            else:
                result.append(_with_strategy(group, Strategy.ROW_TREES))
        return result

    def to_come(self, batch: EvidenceBatch, rows: int) -> int:
        """Return how many rows like these `rows` of a batch are to come in all batches."""
        return max(rows, rows * self.expected_rows // batch.rows)

    def uses(self, group: PatternGroup, batch: EvidenceBatch) -> int:
        """Return for how many rows the plan of a group is made.

        Rows of one pattern come again with the next batches, and so does a group of all rows, whatever they observe.
        Another group of several is made of what this batch happens to hold, and the next one may well choose other
        loose columns.
        """
        again = group.patterns == 1 or len(group.rows) == batch.answered_count
        return self.to_come(batch, len(group.rows)) if again else len(group.rows)

    def loads_compiled(self, groups: Sequence[PatternGroup], batch: EvidenceBatch) -> bool:
        """Return True if the rows to come are worth loading the compiled backend for."""
        if (forced := self.options.strategy) is not None and forced is not Strategy.ENTRIES:
            return forced is not Strategy.JOINT_TABLE
        if any(group.by_trees for group in groups):
            # A few rows load what they need by themselves, and no GPU.
            return not (self._are_few(batch) and all(group.alone for group in groups))
        seconds = 0.0
        for group in groups:
            if group.strategy is Strategy.JOINT_TABLE:
                return False
            row, once = self._plain_seconds(group.pattern, self.uses(group, batch))
            seconds += once + self.to_come(batch, len(group.rows)) * row
        return seconds * (CPU.numpy_log if self.ladder[0] is reference.LOG else 1) > COMPILED_SECONDS

    @cached_property
    def _plain_seconds(self) -> Callable[[Pattern, int], tuple[float, float]]:
        # Kept, because the next batch asks again.
        return keeping(KEPT_PLANS, self._seconds_in_numpy)

    def _seconds_in_numpy(self, pattern: Pattern, uses: int) -> tuple[float, float]:
        """Return what a row of a plan takes in NumPy, and what all rows share."""
        plan = self.plan(pattern, uses)
        return plain_seconds(plan), min(plan.shared_operations, 10**30) * CPU.numpy_operation

    @cached_property
    def _entries(self) -> int:
        return sum(factor.table.size for factor in self.network.factors)

    @cached_property
    def _whole(self) -> Work:
        return self.row_engine.work((), range(len(self.network.variables)))


def _with_strategy(group: PatternGroup, strategy: Strategy | None) -> PatternGroup:
    """Return a group whose rows share no tree."""
    return replace(group, strategy=strategy, shared=False)


def _of_one(patterns: Patterns) -> PatternGroup:
    """Return the rows of the only pattern of a batch."""
    return PatternGroup(Pattern(patterns.observed(0), patterns.soft(0)), patterns.rows)
