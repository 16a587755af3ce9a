"""What `junctor inspect` says of rows that go in chunks, because their plan exceeds the memory or the device."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import typer

from junctor.planning.budget import format_bytes, traded

if TYPE_CHECKING:
    from junctor.model.network import Network
    from junctor.out_of_core.memory_splits import ChunkRoute

# Chunk variables that are named.
SHOWN = 8


def chunk_facts(route: ChunkRoute, network: Network) -> dict[str, Any]:
    """Return how a row goes through its passes, as a record for JSON; bytes and seconds of one row."""
    chunks, limits = route.chunks, route.limits
    # The variables that cut most passes first: they say most of how the plan was cut.
    uses = Counter(v for pass_ in chunks.passes for v in pass_.fixed)
    # The way of a full round of rows.
    abreast = route.side.rounds(route.side.rows)[0][1] if route.side else 1
    return {
        "device": "gpu" if limits.on_gpu else "cpu",
        "workers": route.workers,
        "rows_side_by_side": abreast,
        "gpus_of_leader": route.side.share(abreast) if route.side and route.workers and limits.on_gpu else 0,
        "passes": len(chunks.passes),
        "tasks": route.propagations * chunks.tasks,
        "chunk_variables": [network.variables[v].name for v, _ in uses.most_common() if v < len(network.public)],
        "cut_tables": sum(bool(cuts) for cuts in chunks.cuts.values()),
        "stored_tables": len(chunks.cuts),
        "sliced_variables": [network.variables[v].name for v in route.slices],
        "propagations": route.propagations,
        "messages_made_again": route.again.messages,
        "times_the_operations": route.slower,
        "binding": route.option,
        "working_bytes": route.working,
        "device_bytes": route.working + route.resident if limits.on_gpu else 0,
        "memory_bytes": route.memory,
        "disk_bytes": route.disk,
        "allowed_disk_bytes": limits.disk,
        "folder": str(limits.folder),
        "loaded_bytes": route.propagations * route.loaded,
        "stored_bytes": route.propagations * route.stored,
        "seconds_per_row": route.seconds,
    }


def show_chunks(facts: dict[str, Any]) -> None:
    """Print such a record for people."""
    # Not at the top: `display` loads Rich, which `junctor inspect --help` must not wait for.
    from junctor.cli.display import duration

    # Bytes as people read them; the record for programs keeps plain numbers.
    gpu, size = facts["device"] == "gpu", {name: format_bytes(facts[name]) for name in facts if name.endswith("bytes")}
    names = ", ".join(facts["chunk_variables"][:SHOWN]) + ", ..." * (len(facts["chunk_variables"]) > SHOWN)
    where = "the memory of the GPU" if gpu else "memory for a task"
    seconds = duration(facts["seconds_per_row"])
    over, led = f" over {facts['workers']} workers" if facts["workers"] else "", facts["gpus_of_leader"]
    over += f", each row by one with {led} GPU{'s' * (led > 1)}" if led else ""
    over += f", {facts['rows_side_by_side']} rows side by side" if facts["rows_side_by_side"] > 1 else ""
    typer.echo(f"    in chunks: {facts['passes']:,} passes, {facts['tasks']:,} tasks a row{over}, {seconds}")
    typer.echo(f"      chunk variables   {len(facts['chunk_variables']):,}{': ' if names else ''}{names}")
    typer.echo(f"      tables            {facts['stored_tables']:,} stored, {facts['cut_tables']:,} of them in pieces")
    held = facts["sliced_variables"]
    if done := traded(len(held), facts["messages_made_again"], facts["times_the_operations"], f" ({', '.join(held)})"):
        typer.echo(f"      for the memory    {done}")
    task = size["device_bytes" if gpu else "working_bytes"]
    typer.echo(f"      peaks             {task} of {where}, {size['memory_bytes']} of memory in all,")
    allowed = size["allowed_disk_bytes"]
    typer.echo(f"                        {size['disk_bytes']} of disk in {facts['folder']}, {allowed} allowed")
    typer.echo(f"      binds             {facts['binding']}, of which more would help first")
    way = "over the bus to the GPU" if gpu else "to tasks"
    typer.echo(f"      moved a row       {size['loaded_bytes']} {way}, {size['stored_bytes']} back")
