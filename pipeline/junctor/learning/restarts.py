"""Fits from several starts, the best of which is kept. Main function: `best_of_starts`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from junctor.learning.checkpoint import Checkpoint, LearnState, Restart
from junctor.learning.em import Fit, FitOptions, FitState, Fitted, Iteration, fit
from junctor.learning.expectation import Floats


def best_of_starts(
    model: Fitted,
    starts: int,
    begin: Callable[[int], Floats],
    options: FitOptions,
    watch: Callable[[int, Iteration], None] | None = None,
    checkpoint: Checkpoint | None = None,
) -> tuple[Fit, tuple[Restart, ...]]:
    """Return the best fit of all starts, the first among equals, and what came of each.

    model: what is fitted.
    starts: number of starts.
    begin: returns the first parameters of a start.
    options: when a fit ends.
    watch: told of each iteration, with the number of its start.
    checkpoint: where the state is kept after each iteration, and taken from.
    """
    state = (checkpoint.state if checkpoint is not None else None) or LearnState((), None, None)
    for number in range(len(state.restarts), starts):
        before, current = replace(state, current=None), state.current

        def keep(loop: FitState, before: LearnState = before) -> None:
            if checkpoint is not None:
                checkpoint.keep(replace(before, current=loop))

        def tell(iteration: Iteration, number: int = number) -> None:
            if watch is not None:
                watch(number, iteration)

        found = fit(model, begin(number) if current is None else current, options, tell, keep)
        best = before.best
        if best is None or found.log_posterior > best.log_posterior:
            best = found
        state = LearnState((*before.restarts, Restart.of(found)), best, None)
    assert state.best is not None
    return state.best, state.restarts
