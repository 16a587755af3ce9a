"""The frame of all flows: a command of the command line as a Prefect flow, with its parameters.

Main functions: `flow_of`, a decorator, and `run_command`, the body of a flow.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Annotated, Any
from uuid import UUID

import httpx
import typer
from junctor.cli.deployed import conclusion, deployed
from junctor.cli.failures import of_system
from junctor.cli.parameters import (
    Parameter,
    arguments,
    own_parameters,
    parameters_of,
    places_in,
    refuse_unattended,
    seconds_of,
)
from junctor.model.errors import EvidenceError, RunError
from prefect import Flow, State, flow, runtime
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, FlowRunPolicy
from prefect.context import FlowRunContext
from prefect.states import AwaitingRetry, Completed
from prefect.types._datetime import now
from prefect.utilities.timeout import timeout
from pydantic import Field

from junctor_flows.patience import bear_in_flow_run
from junctor_flows.reporter import DEPLOYED_PATIENCE, RETRY_SECONDS, Reporter

# What a flow takes in addition to its command.
OWN_PARAMETERS = own_parameters()


def flow_of(command: Callable[..., Any], name: str, inputs: str, model: str) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that makes a flow of a function of `**given`, with the parameters of a command.

    Types, bounds and defaults become the form on Prefect's page, and the help texts its descriptions.
    name: of the flow.
    inputs, model: parameters that name its runs.
    """
    parameters = (*parameters_of(command), *OWN_PARAMETERS)

    def decorate(function: Callable[..., Any]) -> Any:
        # Types, not texts: Prefect evaluates them in other processes.
        function.__signature__ = inspect.Signature([_in_signature(each) for each in parameters])  # type: ignore[attr-defined]
        helps = "\n".join(f"    {each.name}: {each.help}" for each in parameters)
        function.__doc__ = f"{function.__doc__}\n\nArgs:\n{helps}\n"
        names: Callable[[], str] = partial(run_name, inputs, model)
        return flow(name=name, flow_run_name=names, persist_result=False, on_crashed=[try_again])(function)

    return decorate


def _in_signature(parameter: Parameter) -> inspect.Parameter:
    kind: Any = Annotated[parameter.type, Field(ge=parameter.least, le=parameter.most)]
    return inspect.Parameter(parameter.name, inspect.Parameter.KEYWORD_ONLY, default=parameter.default, annotation=kind)


def run_name(inputs: str, model: str) -> str:
    """Return the name of a flow run: inputs, model and the time that it is for."""
    given = runtime.flow_run.parameters
    # Of several places the first one.
    places = [place for name in (inputs, model) for place in places_in(given.get(name))[:1]]
    names = (place.rstrip("/").rpartition("/")[2] for place in places)
    return f"{' on '.join(names)}, {runtime.flow_run.scheduled_start_time:%Y-%m-%d %H:%M}"


def run_command(command: Callable[..., Any], given: Mapping[str, Any]) -> State[Any]:
    """Run a command in a flow run; returns its last state, or raises what made it fail.

    given: parameters of the flow.
    """
    context = FlowRunContext.get()
    assert context is not None
    assert context.flow_run is not None
    reporter = Reporter("", DEPLOYED_PATIENCE, str(context.flow_run.id), _deployment_name())
    token = deployed.set(reporter)
    try:
        _set_retries(context.flow_run, given["retries"], seconds_of(given["retry_delay"]))
        with _time_limit(given["timeout"]):
            told = arguments(command, given)
            # Asked for by a form, not by `junctor deploy`; the standard input that Prefect gives never ends.
            refuse_unattended(command, told)
            command(**told)
    except TimeoutError:
        raise
    except OSError as error:
        raise of_system(error) from error
    except typer.BadParameter as error:
        raise EvidenceError(error.format_message()) from error
    except typer.Exit as ended:
        raise RunError("interrupted: run it again to go on") from ended
    finally:
        deployed.reset(token)
    return Completed(message=reporter.message or conclusion())


def _set_retries(flow_run: Any, retries: int, delay: float) -> None:
    # A deployment has no retries of its own in Prefect, a flow only those of its code; a run has.
    with suppress(Exception), get_client(sync_client=True) as client:
        policy = FlowRunPolicy(retries=retries, retry_delay=round(delay))
        client.update_flow_run(flow_run.id, empirical_policy=policy)


async def try_again(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Let a run that has crashed begin anew after its pause, unless it has had all its retries; a hook of Prefect's.

    flow: of the run.
    flow_run: its parameters are those that were given.
    state: that it is in.
    """
    # Prefect's own retries are made by the process of the run: with that one killed, whoever started it is asked.
    given = {each.name: each.default for each in OWN_PARAMETERS} | flow_run.parameters
    until = time.monotonic() + DEPLOYED_PATIENCE
    while True:
        try:
            return await _schedule_again(flow_run.id, given["retries"], seconds_of(given["retry_delay"]), state.message)
        except (httpx.TransportError, httpx.HTTPStatusError):
            if time.monotonic() > until:
                raise
            await asyncio.sleep(RETRY_SECONDS)


async def _schedule_again(id: UUID, retries: int, delay: float, message: str | None) -> None:
    async with get_client() as client:
        # Not the count of runs: one that does not reach its server has not run.
        used = sum(each.name == AwaitingRetry().name for each in await client.read_flow_run_states(id))
        if used < retries:
            at = now("UTC") + timedelta(seconds=delay)
            await client.set_flow_run_state(id, AwaitingRetry(scheduled_time=at, message=message))


def _deployment_name() -> str | None:
    # Asked of the server, which may be away.
    with suppress(Exception):
        name = runtime.deployment.name
        return None if name is None else str(name)
    return None


@contextmanager
def _time_limit(limit: str | None) -> Iterator[None]:
    """Context manager: raises TimeoutError in the body after so long; Prefect calls such a run timed out."""
    if limit is None:
        yield
        return
    try:
        with timeout(seconds_of(limit), timeout_exc_type=TimeoutError):
            yield
    except TimeoutError as error:
        raise TimeoutError(f"took longer than {limit}: the next attempt goes on where this one stopped") from error


if "PREFECT__FLOW_RUN_ID" in os.environ:
    bear_in_flow_run()
