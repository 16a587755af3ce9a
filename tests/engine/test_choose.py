"""The choice: pure, by prices, by sizes where these do not fit, and what else there was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.options import on_cpu
from junctor.engine.choose import Choice, by_plan, choose, refusal, route_of
from junctor.engine.engine import Engine
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch
from junctor.evidence.patterns import PatternGroup, patterns_of
from junctor.generate import grid, layered, sample
from junctor.model.errors import InputError
from junctor.model.network import Network
from junctor.model.options import ComputeOptions
from junctor.model.query import Query
from junctor.model.strategies import Strategy
from junctor.planning.budget import Budget
from junctor.strategies.exact_budget import ExactBudget
from junctor.strategies.facts import Facts, PlanStore
from junctor.strategies.registry import way
from junctor.strategies.strategy import Allowance, Offer, Price

NETWORK = layered(layers=5, width=5, states=3, parents=2, seed=1)


def batch_of(rows: int = 600, gaps: float = 0.0) -> EvidenceBatch:
    states = sample(NETWORK, rows, seed=1)[:, ::2].astype(np.int32)
    states[np.random.default_rng(1).random(states.shape) < gaps] = UNOBSERVED
    return EvidenceBatch(rows, {2 * v: np.ascontiguousarray(column) for v, column in enumerate(states.T)})


def told(choice: Choice) -> list[Any]:
    groups = choice.groups
    return [(g.strategy, g.shared, g.pattern, g.rows.tolist(), g.copies, g.price, g.rejected) for g in groups]


@pytest.mark.parametrize("query", [Query(), Query("mpe"), Query(precision="log")])
@pytest.mark.parametrize("gaps", [0.0, 0.2])
@pytest.mark.parametrize("strategy", [None, Strategy.ROW_TREES, Strategy.CPU_BLOCKS])
def test_a_batch_gets_the_same_groups_whatever_was_chosen_before(
    query: Query, gaps: float, strategy: Strategy | None
) -> None:
    batch = batch_of(100, gaps)
    facts, other = (Facts(NETWORK, query, on_cpu(1 << 28, strategy=strategy), expected_rows=5000) for _ in range(2))
    first = told(choose(batch, facts))
    told(choose(batch_of(300, 0.4), facts))
    assert told(choose(batch, facts)) == told(choose(batch, other)) == first


def test_the_method_says_which_rows_are_sampled() -> None:
    """All, or those that a budget refuses, whatever the process has; how others go is chosen without these."""
    wide = np.arange(100) % 4 > 0
    columns = sample(NETWORK, 100, seed=1).T[:-1].astype(np.int32)
    states = {v: np.where(wide & (v > 0), UNOBSERVED, column) for v, column in enumerate(columns)}
    batch = EvidenceBatch(100, states, invalid={7: "bad"})
    (group,) = choose(batch, Facts(NETWORK, Query(method="sampling"), on_cpu(1 << 28))).groups
    assert (group.strategy, group.rows.tolist()) == (Strategy.SAMPLES, batch.valid.tolist())
    assert {each.reason for each in group.rejected} == {"samples are asked for"}
    store = PlanStore(budget=ExactBudget(1 << 28, 0, 3e-5))
    machines = on_cpu(1 << 28, time_limit=1e-9), on_cpu(1 << 40)
    one, other = (choose(batch, Facts(NETWORK, Query(method="auto"), each, store=store)) for each in machines)
    assert told(replace(one, groups=one.groups[-1:])) == told(replace(other, groups=other.groups[-1:]))
    *exact, sampled = one.groups
    assert sampled.rows.tolist() == np.setdiff1d(np.flatnonzero(wide), [7]).tolist()
    assert "allowed are 3e-05 s (--time-limit)" in sampled.rejected[0].reason
    within = replace(batch, invalid=dict.fromkeys(np.flatnonzero(wide).tolist(), "bad"))
    assert told(replace(one, groups=exact)) == told(choose(within, Facts(NETWORK, Query(), on_cpu(1 << 28))))


def test_nothing_is_opened_and_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*_: Any) -> None:
        raise AssertionError("opened")

    monkeypatch.setattr("junctor.engine.engine.open_gpu", opened)
    monkeypatch.setattr("junctor.backends.numpy.Program.__init__", opened)
    monkeypatch.setattr("junctor.strategies.facts.has_gpu", lambda: True)
    engine = Engine(NETWORK, Query(), ComputeOptions(1 << 32, 1, "auto"), expected_rows=10**9)
    assert {route.strategy for route in engine.routes(batch_of())} == {Strategy.GPU_BLOCKS}


def offering(monkeypatch: pytest.MonkeyPatch, strategy: Strategy, row: float | str) -> None:
    """Let a strategy offer all rows for so many seconds each, or refuse them in words."""

    def offer(_: Any, group: PatternGroup, *__: Any) -> Offer | str:
        return row if isinstance(row, str) else Offer(replace(group, strategy=strategy), Price(row=row))

    monkeypatch.setattr(type(way(strategy)), "offer", offer)


@pytest.mark.parametrize(("trees", "blocks"), [(1.0, 2.0), (2.0, 1.0), ("no", 1.0), (1.0, "no")])
def test_the_cheapest_offer_wins(trees: float | str, blocks: float | str, monkeypatch: pytest.MonkeyPatch) -> None:
    offering(monkeypatch, Strategy.ENTRIES, "dear")
    offering(monkeypatch, Strategy.ROW_TREES, trees)
    offering(monkeypatch, Strategy.CPU_BLOCKS, blocks)
    # Trees of their own take forever, whatever the cache holds.
    monkeypatch.setattr(Facts, "seconds_alone", lambda *_: np.inf)
    (group,) = choose(batch_of(), Facts(NETWORK, Query(), on_cpu(1 << 32), expected_rows=10**7)).groups
    by_trees = blocks == "no" or (trees != "no" and float(trees) < float(blocks))
    assert (group.strategy is Strategy.ROW_TREES) == by_trees
    assert group.price > 0
    # The loser, with what it offered.
    loser = next(e for e in group.rejected if e.strategy is (Strategy.CPU_BLOCKS if by_trees else Strategy.ROW_TREES))
    assert loser.reason == ("no" if "no" in (trees, blocks) else "takes longer")
    assert np.isnan(loser.seconds) == ("no" in (trees, blocks))


def test_few_light_rows_load_no_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = Facts(NETWORK, Query(), on_cpu(1 << 32))
    for row, light in ((1e-6, True), (1.0, False)):
        offering(monkeypatch, Strategy.ENTRIES, row)
        (group,) = choose(batch_of(100), facts).groups
        assert (group.strategy is Strategy.ENTRIES) == light
        assert not light or group.rejected[0].strategy is Strategy.ROW_TREES


def test_what_does_not_fit_goes_to_the_next() -> None:
    batch = batch_of()
    facts = Facts(NETWORK, Query(), on_cpu(1 << 40), expected_rows=10**6)
    (rows,) = patterns_of(batch).exact(np.arange(batch.rows))
    group = replace(by_plan(rows, batch, facts), strategy=Strategy.CPU_BLOCKS)
    memory = facts.plan_memory(group.pattern, 10**6)
    room = [memory.least_in_blocks, memory.least_in_blocks - 1, memory.least, memory.least - 1]
    routes = [route_of(group, batch, facts, Allowance(Budget(free, 0), None, {}), uses=10**6) for free in room]
    names = [route.strategy for route in routes[:3] if route.refused is None]
    assert names == [Strategy.CPU_BLOCKS, Strategy.ENTRIES, Strategy.ENTRIES]
    assert routes[3].strategy is Strategy.CHUNKS or "in chunks" in str(routes[3].refused)


def test_patterns_that_do_not_fit_in_one_piece_go_in_chunks() -> None:
    states = {0: np.array([0, -1, -1], np.int32), 5: np.array([0, -1, 0], np.int32)}
    engine = Engine(grid(10, 10, seed=1), Query(), on_cpu(4 << 30, device_memory=1 << 13), expected_rows=3)
    routes = engine.routes(EvidenceBatch(3, states))
    assert [(route.strategy, len(route.group.rows)) for route in routes] == 3 * [(Strategy.CHUNKS, 1)]


def test_ways_that_cannot_be_are_refused_in_words() -> None:
    facts = Facts(NETWORK, Query(), on_cpu(strategy=Strategy.JOINT_TABLE))
    with pytest.raises(InputError, match=r"strategy joint-table: .*too many joint states; leave the choice to junctor"):
        choose(EvidenceBatch(1), facts)
    assert "no GPU" in str(refusal(Strategy.GPU_BLOCKS, facts))


@pytest.mark.parametrize("network", [NETWORK, grid(2, 2, seed=1)], ids=["trees", "joint table"])
def test_groups_of_few_rows_do_not_depend_on_equal_rows_or_invalid_ones_before(network: Network) -> None:
    alike, differ = np.zeros(64, np.int32), np.arange(64, dtype=np.int32) % 2
    batches = [EvidenceBatch(64, {0: alike}), EvidenceBatch(64, {0: differ, 1: alike}), EvidenceBatch(64)]
    batches.append(EvidenceBatch(64, {0: differ}, invalid={3: "broken"}))
    facts = Facts(network, Query(), on_cpu(1 << 32), expected_rows=64)
    for batch in [*batches, *reversed(batches)]:
        choice = choose(batch, facts)
        assert [group.rows.tolist() for group in choice.groups] == [choice.batch.answered.tolist()]
        assert sum(group.served for group in choice.groups) == 64 - len(batch.invalid)
