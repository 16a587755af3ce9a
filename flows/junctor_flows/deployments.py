"""Deployments of flows on a Prefect server, and the process that runs them without a work pool.

Main functions: `deploy` and `serve`, for the commands of these names.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self
from uuid import UUID

import httpx
from junctor.cli.signals import is_heard
from junctor.model.errors import InputError, RunError
from prefect import Flow, State
from prefect.client.orchestration import PrefectClient, SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.filters import FlowFilter, FlowFilterName
from prefect.client.schemas.objects import ConcurrencyLimitStrategy, ConcurrencyOptions, FlowRun
from prefect.client.schemas.schedules import CronSchedule
from prefect.exceptions import ObjectNotFound
from prefect.runner import Runner
from prefect.runner._state_proposer import StateProposer
from prefect.server.schemas.schedules import CronSchedule as ServerCronSchedule
from prefect.settings import PREFECT_API_URL
from prefect.types._datetime import now
from pydantic import ValidationError

from junctor_flows.batch import score_batch
from junctor_flows.ingesting import ingest_evidence
from junctor_flows.learning import learn_chain, learn_network
from junctor_flows.patience import bear_with_server
from junctor_flows.reporter import RETRY_SECONDS
from junctor_flows.sequences import decode_sequences

# By the names of their commands.
FLOWS: dict[str, Flow[..., Any]] = {
    "run": score_batch,
    "ingest": ingest_evidence,
    "learn": learn_network,
    "learn-chain": learn_chain,
    "viterbi": decode_sequences,
}


# Seconds in which the process of a run that has its last state may end.
ENDING = 30.0


@dataclass(frozen=True, slots=True)
class DeploymentOptions:
    """When and where a deployment runs.

    cron: schedule; None for runs that are asked for.
    timezone: of the schedule, such as Europe/Berlin; None for UTC.
    work_pool: whose workers run it; None for `junctor serve`.
    concurrency: runs at the same time, None for any number.
    skips: whether a run above that number is cancelled, or waits.
    paused: whether nothing is scheduled yet.
    """

    cron: str | None = None
    timezone: str | None = None
    work_pool: str | None = None
    concurrency: int | None = 1
    skips: bool = True
    paused: bool = False


def deploy(command: str, name: str, parameters: dict[str, Any], options: DeploymentOptions) -> str:
    """Make or update a deployment; returns its full name.

    command: whose flow it is.
    name: of the deployment.
    parameters: of the flow, without defaults.
    options: schedule and limits.
    Raises InputError for a schedule that is none, RunError without a server or work pool.
    """
    overlap = ConcurrencyLimitStrategy.CANCEL_NEW if options.skips else ConcurrencyLimitStrategy.ENQUEUE
    schedules, flow = _schedules(options), FLOWS[command]
    with _client() as client:
        if options.work_pool is not None:
            _check_pool(client, options.work_pool)
        client.create_deployment(
            client.create_flow_from_name(flow.name),
            name,
            # A module, not a file: it is wherever Junctor is installed.
            entrypoint=f"{flow.fn.__module__}.{flow.fn.__name__}",
            parameters=parameters,
            parameter_openapi_schema=flow.parameters.model_dump(),
            enforce_parameter_schema=True,
            schedules=schedules,
            paused=options.paused,
            work_pool_name=options.work_pool,
            concurrency_limit=options.concurrency,
            concurrency_options=None if options.concurrency is None else ConcurrencyOptions(collision_strategy=overlap),
            description=flow.description,
            tags=["junctor"],
        )
    return f"{flow.name}/{name}"


def _schedules(options: DeploymentOptions) -> list[DeploymentScheduleCreate]:
    if options.cron is None:
        return []
    found = f"found the schedule {options.cron!r} in {options.timezone or 'UTC'}"
    try:
        schedule = CronSchedule(cron=options.cron, timezone=options.timezone)
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise InputError(f"{found}: {reason}") from error
    try:
        # As the server does, which would take the schedule and begin no run.
        asyncio.run(ServerCronSchedule(cron=schedule.cron, timezone=schedule.timezone).get_dates(1))
    except ValueError as error:
        raise InputError(f"{found}: it never comes, because no month that it names has such a day") from error
    return [DeploymentScheduleCreate(schedule=schedule, active=True)]


def _check_pool(client: SyncPrefectClient, name: str) -> None:
    try:
        client.request("GET", "/work_pools/{name}", path_params={"name": name})
    except httpx.HTTPStatusError as error:
        if error.response.status_code != 404:
            raise
        raise RunError(
            f"Prefect's server has no work pool {name!r}: make one with `prefect work-pool create {name} --type "
            "process`, or leave --work-pool out and use `junctor serve`"
        ) from error


@contextmanager
def _client() -> Iterator[SyncPrefectClient]:
    """Context manager: a client of the configured server; raises RunError where it does not answer or refuses."""
    try:
        with get_client(sync_client=True) as client:
            # Asked first without patience: Prefect would try again for a minute.
            if (failed := client.api_healthcheck()) is not None:
                raise RunError(f"Prefect's server at {PREFECT_API_URL.value()} does not answer: {failed}")
            yield client
    except httpx.HTTPStatusError as error:
        raise RunError(f"Prefect's server refused it: {error.response.text}") from error
    except httpx.TransportError as error:
        raise RunError(f"Prefect's server at {PREFECT_API_URL.value()} does not answer: {error}") from error


def serve(names: Sequence[str], limit: int) -> None:
    """Run the deployments without a work pool, until the process is ended.

    names: of deployments; all where none is given.
    limit: runs at the same time.
    Raises RunError for unknown names, and where there is none.
    """
    with _client() as client:
        flows = FlowFilter(name=FlowFilterName(any_=[flow.name for flow in FLOWS.values()]))
        found: dict[str, list[UUID]] = {}
        for each in client.read_deployments(flow_filter=flows):
            if each.work_pool_name is None:
                # Deployments of different flows may have the same name.
                found.setdefault(each.name, []).append(each.id)
    if unknown := [name for name in names if name not in found]:
        there = ", ".join(found) or "none"
        raise RunError(f"no deployment {unknown[0]!r} without a work pool on Prefect's server; there are: {there}")
    if not found:
        raise RunError("no deployment without a work pool on Prefect's server: make one with `junctor deploy`")
    # Schedules stay as they are: what is missed meanwhile runs late, or is skipped.
    runner = _Server(name="junctor", limit=limit, pause_on_shutdown=False)
    for name in names or found:
        for id in found[name]:
            runner._deployment_registry.register_deployment(id, name)
    bear_with_server()
    # Ctrl-C, and a terminal that goes, as SIGTERM, which the runner handles itself.
    for number in (signal.SIGINT, *((signal.SIGHUP,) if is_heard(signal.SIGHUP) else ())):
        signal.signal(number, runner.handle_sigterm)
    asyncio.run(runner.start())


class _Proposer(StateProposer):  # type: ignore[misc]
    """Tells the server of the runs of `junctor serve`: of their beginning at their time, of crashes once it answers."""

    def __init__(self, client: PrefectClient) -> None:
        super().__init__(client=client)
        self.is_ending = asyncio.Event()

    async def propose_pending(self, flow_run: FlowRun) -> bool:
        """Let a run begin at its time; returns False for one that is not to begin then."""
        # Prefect asks up to ten seconds before, where a run that ends until then still counts as an overlap.
        at = flow_run.next_scheduled_start_time
        if at is not None and (early := (at - now("UTC")).total_seconds()) > 0:
            await self._pause(early)
            # It may have been cancelled meanwhile, or put off.
            there = await self._client.read_flow_run(flow_run.id)
            if self.is_ending.is_set() or there.state_id != flow_run.state_id:
                return False
        return bool(await super().propose_pending(flow_run))

    async def propose_crashed(self, flow_run: FlowRun, message: str) -> State[Any] | None:
        """Report a crash, until the server has heard of it: what becomes of the run depends on that."""
        while True:
            state: State[Any] | None = await super().propose_crashed(flow_run, message)
            if state is not None or self.is_ending.is_set() or await self._has_ended(flow_run.id):
                return state
            await self._pause(RETRY_SECONDS)

    async def _has_ended(self, id: UUID) -> bool:
        """Return True if a run has its last state, or is no longer known; False while the server does not answer."""
        try:
            state = (await self._client.read_flow_run(id)).state
            return state is None or state.is_final()
        except ObjectNotFound:
            return True
        except (httpx.TransportError, httpx.HTTPStatusError):
            return False

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.is_ending.wait()


class _Server(Runner):  # type: ignore[misc]
    """A runner that cancels its runs when it is ended, and begins them at their time."""

    async def __aenter__(self) -> Self:
        """Enter as Prefect's does, with a proposer of our own."""
        await super().__aenter__()
        self._state_proposer = self._scheduled_run_poller._state_proposer = _Proposer(self._client)
        return self

    def handle_sigterm(self, *args: Any, **kwargs: Any) -> None:
        """Cancel all runs, then end."""
        # Prefect's own ends before they know, and their page shows them as running.
        loop = asyncio.get_running_loop()
        loop.call_soon_threadsafe(self._begin_to_stop)

    async def cancel_all(self) -> None:
        """Cancel what is under way. A run that has its last state keeps it: its process is about to end."""
        self._state_proposer.is_ending.set()
        ended = []
        for id in self._process_manager.flow_run_ids():
            try:
                run = await self._client.read_flow_run(id)
                if run.state is not None and run.state.is_final():
                    ended.append(id)
                else:
                    await self._cancellation_manager.cancel(run, state_msg="`junctor serve` has been ended.")
            except Exception:
                self._logger.exception("run %s could not be cancelled", id)
        for id in ended:
            await self._process_manager.wait_for_exit(id, grace_seconds=ENDING)

    def _begin_to_stop(self) -> None:
        # Kept: a loop holds its tasks weakly.
        self._stopping = asyncio.ensure_future(self.astop())
