"""`junctor serve`: deployments of this machine, without a work pool."""

from __future__ import annotations

from typing import Annotated

import typer


def serve(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Deployments; all without a work pool if not given.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Runs at the same time on this machine.")] = 4,
) -> None:
    """Run the deployments that `junctor deploy` made without a work pool, until it is interrupted.

    Each run is a process of its own. A Prefect server that is away does not end them.
    """
    from junctor.cli.prefect_server import configured_server

    configured_server()
    from junctor_flows.deployments import serve

    serve(names or [], limit)
