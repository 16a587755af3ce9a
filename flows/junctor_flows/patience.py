"""Habits of Prefect that end or drown a run when its server, or who started it, is away, and what takes their place.

Main functions: `bear_with_server` for the process of `junctor serve`, `bear_in_flow_run` for that of a deployed run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import httpx
import prefect.flow_engine as flow_engine
from junctor.cli.lines import drop_lost_lines, drop_lost_output
from junctor.model.errors import JunctorError
from prefect._internal import observers
from prefect.runner import _scheduled_run_poller
from rich.console import Console

logger = logging.getLogger("junctor")


def bear_with_server() -> None:
    """Let the loops of a runner go on while the server is away, one line for both ends of it."""
    # Of runs, which go on where nobody reads it any more.
    drop_lost_output()
    _scheduled_run_poller.critical_service_loop = _patient_loop(logger.warning)
    observers.critical_service_loop = _polling_loop
    _shorten_tracebacks()


def bear_in_flow_run() -> None:
    """Let a deployed run go on while the server is away; its reporter says so."""
    observers.critical_service_loop = _polling_loop
    # Prefect would end a run whose concurrency lease cannot be renewed. A second run in the same directory is refused
    # by its lock anyway.
    maintain = flow_engine.maintain_concurrency_lease
    flow_engine.maintain_concurrency_lease = lambda lease, seconds, **_: maintain(
        lease, seconds, suppress_warnings=True
    )
    # What is printed goes to whoever started the run; it may be killed, and ends no run with it.
    drop_lost_lines()
    drop_lost_output()
    Console.on_broken_pipe = _be_quiet  # type: ignore[assignment, method-assign]
    _shorten_tracebacks()


def _be_quiet(console: Console) -> None:
    """Print nothing any more, where Rich would end the process."""
    console.quiet = True


def _patient_loop(say: Callable[..., None]) -> Callable[..., Awaitable[None]]:
    """Return a loop that does a work every `interval` seconds, whatever the server says."""

    # Prefect's loop ends after three failures, and the runner, its runs or the cancellation of runs with it.
    async def loop(workload: Callable[[], Awaitable[Any]], interval: float, **_: Any) -> None:
        is_away = False
        while True:
            try:
                await workload()
            except (httpx.TransportError, httpx.HTTPStatusError) as error:
                if not is_away:
                    say("Prefect's server does not answer (%s): runs go on, and none begins until it does", error)
                is_away = True
            else:
                if is_away:
                    say("Prefect's server answers again")
                is_away = False
            await asyncio.sleep(interval)

    return loop


async def _polling_loop(**work: Any) -> None:
    """Run the loop of an observer of Prefect's, which asks for cancelled runs, until it is cancelled itself."""
    # At the end of its process. Prefect asks the task for its error then, which fails for one that was cancelled: a
    # traceback would be the last that is said.
    with suppress(asyncio.CancelledError):
        await _patient_loop(logger.debug)(**work)


class _OneLine(logging.Filter):
    """Takes tracebacks off errors that say all in one line: those of users, and of connections."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep the record."""
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if isinstance(error, JunctorError) or record.name != "prefect.flow_runs":
            record.exc_info = None
        return True


def _shorten_tracebacks() -> None:
    for name in ("flow_runs", "FlowRunCancellingObserver", "FlowRunSuspendingObserver"):
        logging.getLogger(f"prefect.{name}").addFilter(_OneLine())
