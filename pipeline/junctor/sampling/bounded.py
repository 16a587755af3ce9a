"""Rows of evidence by samples from weighted mini-buckets: estimates with intervals that hold with a stated probability.

Main class: BoundedEngine, which answers rows of Bayesian and Markov networks in place of `sampling.engine` where the
sampler is `wmb`. It computes on the CPU, in NumPy.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce

import numpy as np
from junctor_kernels.sampling.layout import Floats, Sums, add

from junctor.cost.figures import shipped_figures
from junctor.evidence.batch import EvidenceBatch, Rows
from junctor.model.answers import IMPOSSIBLE, MISSED, NO_PROBABILITY, UNRELIABLE, SampledAnswers
from junctor.model.errors import BudgetError, counted
from junctor.model.network import Network
from junctor.model.options import ONE_THREAD, ComputeOptions
from junctor.model.query import Query, target_names
from junctor.planning.budget import exact_bytes
from junctor.planning.elimination import best_order, moral_graph
from junctor.runtime.kept_results import method_cache
from junctor.runtime.machine import allowed_memory, usable_cores
from junctor.runtime.threads import in_threads
from junctor.sampling.answer_buffer import AnswerBuffer, EstimateSlots, places_of
from junctor.sampling.estimate import FIRST_SAMPLES, Estimate, Intervals, estimate_of, pieces_of, until
from junctor.sampling.intervals import log_bounds, posterior_intervals
from junctor.sampling.mini_buckets import BucketPlan, Scope, plan_buckets
from junctor.sampling.proposal import BoundedProposal, proposal_of, sums_of
from junctor.sampling.rows import (
    DEFAULT_SAMPLES,
    KEPT_LAYOUTS,
    Evidence,
    Hard,
    Soft,
    evidence_of,
    with_parents,
)
from junctor.sampling.wmb import BoundedElimination, tightened, weighted_of

# Entries of all tables of a row where nobody says, and bytes that each of them takes: tables, those of the best bound
# so far, conditionals, beliefs, and what a pass makes of the largest.
TABLE_ENTRIES, ENTRY_BYTES = 1 << 20, 64
# Samples that a thread draws at a time, bytes of a sample for each variable, and for each state of the one being drawn.
PIECE, VARIABLE_BYTES, STATE_BYTES = 1 << 12, 2, 128
# What rounding may have done to a bound, for each variable and each unit of its logarithm.
ROUNDING = 1e-12
# Samples after which a row ends whatever the width of its intervals.
MOST_SAMPLES = 1 << 22

logger = logging.getLogger("junctor")


@dataclass(frozen=True, eq=False, slots=True)
class BoundedLayout:
    """What rows of a pattern share.

    plan: its mini-buckets.
    factors: of the network, those that have a part in the answers.
    soft: variables with likelihoods, ascending, whose factors come after these.
    scopes: of all of these, the variables that are not known.
    slots: positions of the estimates in the answers.
    """

    plan: BucketPlan
    factors: tuple[int, ...]
    soft: tuple[int, ...]
    scopes: tuple[Scope, ...]
    slots: EstimateSlots


class BoundedEngine:
    """Answers batches of evidence on one network by samples from weighted mini-buckets.

    network: Bayesian or Markov.
    query: for posteriors, and how they are sampled.
    options: what the process may use.

    A row's answer depends on network, evidence, targets, sampling options and the seed; neither on its number nor on
    the other rows of the batch, threads or memory. Raises EvidenceError for unknown targets, BudgetError where the
    tables do not fit.
    """

    def __init__(self, network: Network, query: Query, options: ComputeOptions = ONE_THREAD) -> None:
        self.network = network
        self.query = query
        self.threads = options.threads or usable_cores()
        self.targets = tuple(network.index[name] for name in target_names(network, query))
        self.allowed = allowed_memory(options)
        self._layout = method_cache(KEPT_LAYOUTS, self._layout_of)
        if self.least > self.allowed:
            raise BudgetError(
                f"mini-buckets of {network.name or 'the network'} take {exact_bytes(self.least)} while a row is "
                f"sampled, allowed are {exact_bytes(self.allowed)}: allow more with --memory, or fewer entries with "
                "--table-entries"
            )
        if options.device == "gpu":
            logger.warning("the sampler wmb computes on the CPU, whatever the device")

    @property
    def entries(self) -> int:
        """Entries that all tables of a row together are to have at most."""
        return self.query.sampling.table_entries or TABLE_ENTRIES

    @property
    def least(self) -> int:
        """Bytes that one row at a time needs, with one thread."""
        return self._table_bytes + self._draw_bytes

    @cached_property
    def _table_bytes(self) -> int:
        # Each factor by itself, and its messages, of which each is half as large or less, is the least there is.
        own = 2 * sum(factor.table.size for factor in self.network.factors)
        return ENTRY_BYTES * max(self.entries, own)

    @cached_property
    def _draw_bytes(self) -> int:
        """Bytes of a thread that draws."""
        states = STATE_BYTES * max(self.network.cardinalities)
        return PIECE * (VARIABLE_BYTES * len(self.network.variables) + states)

    def seconds(self, rows: int) -> float:
        """Return about what so many different rows take on one core; for an error what the first samples take."""
        entries = self.plan({}, {}).entries
        samples = FIRST_SAMPLES if self.query.sampling.error is not None else self._samples
        walks = shipped_figures().walks
        return rows * (entries * walks.bound_entry + samples * len(self.network.variables) * walks.bound_draw)

    def answer(self, batch: EvidenceBatch, rows: Rows, answers: SampledAnswers, first_row: int) -> None:
        """Write the answers to some rows of a batch; rows with the same evidence are answered once.

        batch: some rows of the run.
        rows: int64, of the batch, ascending.
        answers: to all of its rows.
        first_row: number of the first row of the batch, on which nothing depends here.
        """
        sheet = AnswerBuffer(self.network.cardinalities, answers, rows)
        # By their evidence: hard, soft, and the rows that have it.
        same: dict[bytes, tuple[Hard, Soft, list[int]]] = {}
        for row, (hard, soft) in zip(rows.tolist(), evidence_of(batch, rows), strict=True):
            same.setdefault(bytes_of(hard, soft), (hard, soft, []))[2].append(row)
        at_once = max(1, min(self.threads, self.allowed // self.least, len(same)))
        # Those that draw samples of a row have memory each.
        room = (self.allowed // at_once - self._table_bytes) // self._draw_bytes
        threads = max(1, min(self.threads // at_once, room))

        def work(evidence: tuple[Hard, Soft, list[int]], _: int) -> None:
            hard, soft, equal = evidence
            write = self._written(sheet, hard, soft, threads)
            for row in equal:
                write(row)

        in_threads(work, list(same.values()), at_once)
        gaps = answers.log_bounds[2, rows] - answers.log_value[rows]
        if np.isfinite(gaps).any():
            told = np.nanmedian(gaps), np.nanmax(gaps), counted(len(same), "different row")
            logger.info(
                "upper bounds are %.2g above the estimates of log P(e) in the middle, %.2g at most, of %s", *told
            )
        short = int((answers.status[rows] == UNRELIABLE).sum())
        if short:
            logger.warning("too few effective samples in %s: see the reasons", counted(short, "row"))

    def plan(self, hard: Hard, soft: Soft) -> BucketPlan:
        """Return the mini-buckets of a row."""
        return self._layout(_pattern(hard, soft)).plan

    def estimate(self, hard: Hard, soft: Soft, threads: int = 1) -> tuple[float, Estimate | None]:
        """Return the log of the upper bound, and the estimate of one row, None where no sample agrees with it."""
        return self._estimate(self._layout(_pattern(hard, soft)), hard, soft, threads)

    def facts(self) -> dict[str, float]:
        """Return the sizes of the mini-buckets of a row without evidence, and the log of its upper bound."""
        layout = self._layout(_pattern({}, {}))
        plan = layout.plan
        bound, _ = self._bounded(layout, {}, {})
        return {"variables": len(plan.buckets), "split": plan.split, "entries": plan.entries, "bound": bound}

    def _written(self, sheet: AnswerBuffer, hard: Hard, soft: Soft, threads: int) -> Callable[[int], None]:
        """Answer a row; returns what writes it as the answer to a row of the batch."""
        layout = self._layout(_pattern(hard, soft))
        bound, estimate = self._estimate(layout, hard, soft, threads)
        # Of a table whose elimination is not exact as well: what is at most 0 is 0.
        if bound == -math.inf:
            return lambda row: sheet.answers.leave(row, IMPOSSIBLE, NO_PROBABILITY)
        if estimate is None:
            reason = f"none of the samples agrees with the evidence; the log of its probability is at most {bound:g}"
            return lambda row: sheet.answers.leave(row, MISSED, reason)
        found, known = estimate, {v: hard.get(v, 0) for _, v in layout.slots.observed}
        return lambda row: sheet.write(row, layout.slots, known, found)

    def _estimate(self, layout: BoundedLayout, hard: Hard, soft: Soft, threads: int) -> tuple[float, Estimate | None]:
        bound, found = self._bounded(layout, hard, soft)
        if bound == -math.inf:
            return bound, None
        proposal = proposal_of(layout.plan, found, self.network.cardinalities)
        draw = partial(self._draw, proposal, seed_of(hard, soft), threads)
        read = partial(self._read, layout, proposal, bound)
        if self.query.sampling.error is None:
            doubt = 1.0 - self.query.sampling.confidence
            return bound, read(draw(0, self._samples), doubt)
        return bound, self._until(layout, draw, read)

    def _bounded(self, layout: BoundedLayout, hard: Hard, soft: Soft) -> tuple[float, BoundedElimination]:
        """Return the log of the upper bound of a row and the elimination that has it."""
        cards = self.network.cardinalities
        logs, certain = self._logs(layout, hard, soft)
        found = tightened(layout.plan, weighted_of(layout.plan, layout.scopes, logs, cards))
        return found.bound + certain, found

    def _logs(self, layout: BoundedLayout, hard: Hard, soft: Soft) -> tuple[list[Floats], float]:
        """Return the logarithms of all factors, without what is known, and the sum of those without variables."""
        cards = self.network.cardinalities
        factors = [self.network.factors[f] for f in layout.factors]
        tables = [(factor.scope, factor.table) for factor in factors] + [((v,), soft[v]) for v in layout.soft]
        logs, certain = list[Floats](), 0.0
        for scope, table in tables:
            known = tuple(hard.get(v, slice(None) if cards[v] > 1 else 0) for v in scope)
            with np.errstate(divide="ignore"):
                logs.append(np.log(np.asarray(table[known])))
            certain += float(logs[-1]) if logs[-1].ndim == 0 else 0.0
        return logs, certain

    def _draw(self, proposal: BoundedProposal, evidence: int, threads: int, first: int, count: int) -> Sums:
        """Return the sums over samples; evidence: of `seed_of`; first: number of the first one, a multiple of PIECE."""
        key = np.array([self.query.sampling.seed, evidence], dtype=np.uint64)

        def draw(piece: tuple[int, int], _: int) -> Sums:
            start, size = piece
            # A stream of its own for each piece: threads change no number.
            stream = np.random.Generator(np.random.Philox(key=key, counter=[0, 0, start // PIECE, 0]))
            states, logs = proposal.draw(size, lambda: stream.random(size))
            return sums_of(states, logs, proposal.cards)

        # In the order of the pieces: sums of floats depend on it.
        return reduce(add, in_threads(draw, pieces_of(first, count, PIECE), threads))

    def _read(
        self, layout: BoundedLayout, proposal: BoundedProposal, bound: float, sums: Sums, doubt: float
    ) -> Estimate | None:
        """Return the estimate of sums over samples, whose intervals hold but for a probability `doubt` of each."""
        is_exact = not layout.plan.split
        starts = np.cumsum([0, *proposal.cards[:-1]]).tolist() if proposal.cards else []
        estimate = estimate_of([sums], starts, bound, round(sums.drawn), exact=is_exact)
        if estimate is None:
            return None
        rounding = ROUNDING * (len(proposal.variables) + abs(bound))
        # Without a split all weights are the bound.
        ends = (bound - rounding, bound + rounding) if is_exact else log_bounds(sums, bound + rounding, doubt)
        return replace(estimate, intervals=Intervals(*posterior_intervals(sums, doubt), (*ends, bound + rounding)))

    def _until(
        self,
        layout: BoundedLayout,
        draw: Callable[[int, int], Sums],
        read: Callable[[Sums, float], Estimate | None],
    ) -> Estimate | None:
        """Draw samples until all intervals are as narrow as the error asked for."""
        error = self.query.sampling.error
        assert error is not None

        def found(sums: Sums) -> Estimate | None:
            # The interval of each check may fail: together they do with the probability of the first, d/2 + d/6 + ...
            check = round(math.log2(sums.drawn / FIRST_SAMPLES)) + 1
            return read(sums, (1.0 - self.query.sampling.confidence) / (check * (check + 1)))

        def errors(sums: Sums) -> tuple[float, float]:
            estimate = found(sums)
            if estimate is None or estimate.intervals is None:
                return math.inf, 0.0
            return float(estimate.intervals.half[layout.slots.places].max(initial=0.0)), estimate.effective

        sums, reached = until(error, draw, errors, MOST_SAMPLES)
        estimate = found(sums)
        return None if estimate is None else replace(estimate, reached=reached)

    @property
    def _samples(self) -> int:
        return self.query.sampling.samples or DEFAULT_SAMPLES

    def _layout_of(self, evidence: Evidence) -> BoundedLayout:
        network, cards = self.network, self.network.cardinalities
        factors = tuple(self._needed(evidence))
        soft = tuple(sorted(evidence.soft))
        unknown = {v for v, card in enumerate(cards) if card > 1 and v not in evidence.observed}
        scopes = tuple(
            tuple(v for v in scope if v in unknown)
            for scope in [*(network.factors[f].scope for f in factors), *((v,) for v in soft)]
        )
        # Variables of a Bayesian network whose tables are left out are barren.
        drawn = unknown & set(factors) if network.kind == "bayes" else unknown
        order = best_order(moral_graph(len(cards), scopes), frozenset(drawn), cards, 0).variables
        plan = plan_buckets(scopes, cards, order, self.entries)
        places = places_of(self.targets, [plan.minis[bucket[0]].scope[0] for bucket in reversed(plan.buckets)], cards)
        return BoundedLayout(plan, factors, soft, scopes, places)

    def _needed(self, evidence: Evidence) -> Sequence[int]:
        """Return the factors that have a part in the answers: barren variables of a Bayesian network sum to 1."""
        everything = range(len(self.network.factors))
        if self.network.kind == "markov" or self.query.targets is None:
            return everything
        wanted = evidence.observed | evidence.soft | frozenset(self.targets)
        return sorted(with_parents(self.network, wanted))


def bytes_of(hard: Hard, soft: Soft) -> bytes:
    """Return the evidence of a row as bytes, equal where all of it is."""
    likelihoods = (b"%d:" % v + np.ascontiguousarray(soft[v], dtype=np.float64).tobytes() for v in sorted(soft))
    return repr(sorted(hard.items())).encode() + b"".join(likelihoods)


def seed_of(hard: Hard, soft: Soft) -> int:
    """Return a number of 64 bits for the evidence of a row, on which its random numbers depend."""
    return int.from_bytes(hashlib.blake2b(bytes_of(hard, soft), digest_size=8).digest(), "little")


def _pattern(hard: Hard, soft: Soft) -> Evidence:
    return Evidence(frozenset(hard), frozenset(soft))
