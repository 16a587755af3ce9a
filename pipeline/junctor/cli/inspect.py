"""`junctor inspect`: what a network is, and what it will take to answer evidence on it."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import typer

from junctor.cli import options as cli
from junctor.cli.choices import choices, chosen_lines, show_choices
from junctor.cli.chunks import chunk_facts, show_chunks
from junctor.cli.lines import print_document
from junctor.cli.validate import network_facts
from junctor.model import option_table as table
from junctor.model.errors import counted
from junctor.model.options import ComputeOptions
from junctor.model.query import has_intervals
from junctor.planning.budget import approximate, format_bytes

if TYPE_CHECKING:
    from junctor.engine.engine import Engine
    from junctor.evidence.batch import EvidenceBatch
    from junctor.evidence.read import RowSample
    from junctor.model.network import Network
    from junctor.model.strategies import Chosen
    from junctor.out_of_core.cluster.workers import WorkerPool
    from junctor.planning.junction_tree import JunctionTree
    from junctor.planning.plan import Plan
    from junctor.strategies.facts import Facts
    from junctor.strategies.strategy import Route

# Largest tables and most expensive evidence patterns that are shown.
SHOWN = 5
# Rows of evidence that are looked at, at the most.
SAMPLE_ROWS = 65_536
# Joint posteriors whose forecast says from how many on stored tables are worth it.
QUESTIONS = 16
# Zeros are counted in plans with at most so many operations: a second or two.
MOST_BOUND_OPERATIONS = 10**9


class InspectOptions(
    table.TargetOptions,
    table.HidingOptions,
    table.QueryOptions,
    table.ScoreOptions,
    table.PrecisionOptions,
    table.SamplingOptions,
    table.MemoryOptions,
    table.DeviceOptions,
    table.WorkerOptions,
    table.SpillOptions,
    table.TimeOptions,
    table.StrategyOptions,
    table.CaseOptions,
    table.KeepOptions,
    table.MeaningOptions,
    table.NetworkOptions,
    table.FormatOptions,
    table.SeparatorOptions,
    table.IncrementOptions,
    cli.JsonOptions,
    total=False,
):
    """Options that `junctor inspect` shares with other commands."""


@cli.takes_options(
    memory={"help": "What propagation may take, such as 4GiB."},
    device={"help": "Where it would run; a GPU need not be here. auto: a GPU if there is one.", "is_setting": False},
    workers={"help": "Processes that would share rows in chunks; 0 or 1: this one alone."},
    incremental={"help": "Read each file of EVIDENCE by itself; their columns may differ.", "panel": table.EVIDENCE},
)
def inspect(
    network: cli.NetworkFile,
    evidence: Annotated[
        str | None,
        typer.Argument(metavar="[EVIDENCE]", help="Evidence: a run of all of it is forecast, by some of its rows."),
    ] = None,
    plot: Annotated[str | None, typer.Option(help="Draw the junction tree to this file: .png, .svg or .pdf.")] = None,
    **options: Unpack[InspectOptions],
) -> None:
    """Show the variables of NETWORK, its junction tree and plan, and the work and memory that EVIDENCE will take."""
    from junctor.engine.engine import Engine
    from junctor.engine.forecast import tree_of
    from junctor.evidence.mapping import hiding, read_mapping
    from junctor.evidence.read import sample_rows
    from junctor.runs.forecast import sampled_rows
    from junctor.runtime.installed import require_extra
    from junctor.runtime.machine import allowed_memory, compute_options

    if plot is not None:
        require_extra("report", "--plot")
    model = cli.network_of(network, options)
    resources = compute_options(**table.options_for(table.RowResources, options))
    # Settled once: parts of the report must not disagree because memory was taken in between.
    resources = replace(resources, memory=allowed_memory(resources), all_gpus=True)
    asked = table.query_of(table.options_for(table.QuestionOptions, options))
    cli.refuse_idle(asked, options)
    engine = Engine(model, asked, resources)
    if (workers := options.get("workers") or 0) > 1:
        # Workers that only plan: no process is started.
        engine = engine.with_options(resources, _workers_like(engine.facts, workers))
    from junctor.runtime.remote import shown

    record: dict[str, Any] = {"network": network_facts(model, zeros=True), "variables": _variables(model)}
    if not options["json"]:
        # Before seconds of planning.
        _print_network(shown(network), record)
    tree = tree_of(engine.facts.shape)
    stored = _stored_facts(engine, tree)
    record |= {
        "tree": _tree_facts(tree, engine.network) | {"stored": stored},
        "allowed_bytes": engine.allowed,
        "no_evidence": _no_evidence(engine, stored),
    }
    if evidence is not None:
        # A sample: reading all of it would take as long as answering it.
        sample = sample_rows(
            evidence,
            model,
            sampled_rows(model, asked, SAMPLE_ROWS),
            options["incremental"],
            mapping=hiding(read_mapping(options["mapping"], model), model, asked),
            **table.options_for(table.ReadingOptions, options),
        )
        record["evidence"] = _run_work(engine, sample, stored, record["no_evidence"]["resident_bytes"])
    if plot is not None:
        # Imported here, because matplotlib takes a second.
        from junctor.cli.picture import draw_tree

        draw_tree(tree, engine.network, plot)
    if options["json"]:
        print_document(record)
    else:
        _print(None if evidence is None else shown(evidence), record)


def _workers_like(facts: Facts, workers: int) -> WorkerPool:
    """Return workers like the processes that a run on this machine would start."""
    from junctor.out_of_core.cluster.workers import WorkerPool, pool_here

    return pool_here(workers, facts.gpu_room().bytes) if facts.takes_gpu else WorkerPool(workers)


def _variables(network: Network) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = [{"name": v.name, "states": list(v.states)} for v in network.public]
    # Tables of a Markov network belong to no variable.
    if network.kind == "bayes":
        for i, record in enumerate(records):
            record["parents"] = [network.variables[parent].name for parent in network.parents(i)]
            record["table_entries"] = network.factors[i].table.size
    return records


def _tree_facts(tree: JunctionTree, network: Network) -> dict[str, Any]:
    from junctor.planning.shape import shape_of

    shape = shape_of(network)
    largest = max(tree.cliques, key=lambda clique: shape.entries(clique.scope))
    return {
        "cliques": len(tree.cliques),
        "components": len(tree.roots()),
        "treewidth": max(len(clique.scope) for clique in tree.cliques) - 1,
        "total_entries": tree.total_entries(shape),
        "largest_clique": [network.public[i].name for i in largest.scope if i < len(network.public)],
        "largest_clique_entries": shape.entries(largest.scope),
        "largest_separator_entries": max(shape.entries(clique.separator) for clique in tree.cliques),
    }


def _stored_facts(engine: Engine, tree: JunctionTree) -> dict[str, Any]:
    """Return what `junctor calibrate` takes on a CPU, without evidence: bytes of all tables, and seconds of a core."""
    from junctor.cost.stored import stored_forecast
    from junctor.engine.forecast import tree_of
    from junctor.planning.cliques import stored_plan
    from junctor.planning.shape import shape_of

    # Of whole tables, which may have axes that plans leave out.
    shape = shape_of(engine.network)
    plan = stored_plan(tree if shape == engine.facts.shape else tree_of(shape), shape)
    algebra = engine.facts.ladder[0]
    seconds = stored_forecast(plan, frozenset(), algebra, engine.facts.cpu_costs)
    return {
        "bytes": plan.total_entries() * algebra.dtype.itemsize,
        # Small tables, and those in log space, were not measured.
        "making_seconds": None if seconds is None else seconds.making,
        "case_seconds": None if seconds is None else seconds.case,
        "pays_from_questions": None if seconds is None else _questions(engine),
    }


def _questions(engine: Engine) -> int | None:
    """Return from how many joint posteriors on stored tables take less than messages, None where they do not fit.

    Questions are taken to be like those of pairs of variables of some cliques.
    """
    from junctor.cliques.joint import JointQuestions
    from junctor.planning.cliques import plan_stored
    from junctor.planning.shape import shape_of

    public = range(len(engine.network.public))
    layouts = ([v for v in clique.layout if v in public] for clique in plan_stored(shape_of(engine.network)).cliques)
    scopes = [layout[:2] for layout in layouts if len(layout) > 1]
    # Spread over the tree, because questions take differently long in its parts.
    asked = scopes[:: -(-len(scopes) // QUESTIONS)]
    names = [[engine.network.variables[v].name for v in scope] for scope in asked]
    options = ComputeOptions(engine.allowed, device="cpu")
    seconds = JointQuestions(engine.network, names, {}, engine.query.precision, options).forecast()
    # Stored tables take about the same for any number of questions, messages a share for each of them.
    return math.ceil(seconds.stored * len(names) / seconds.messages) if math.isfinite(seconds.stored) else None


def _no_evidence(engine: Engine, stored: dict[str, Any]) -> dict[str, Any]:
    from junctor.engine.forecast import forecast
    from junctor.evidence.batch import EvidenceBatch

    batch = EvidenceBatch(1)
    routes = forecast(engine, batch, bound=MOST_BOUND_OPERATIONS)
    seconds = sum(route.seconds for route in routes)
    operations = sum(route.operations for route in routes)
    found = _work(engine, batch, routes, stored) | {"operations": operations, "seconds": _finite(seconds)}
    return found | ({"mini_buckets": _mini_buckets(engine)} if found["fits"] else {})


def _mini_buckets(engine: Engine) -> dict[str, Any] | None:
    """Return sizes and the upper bound of what rows are sampled from without evidence; None of other samplers."""
    if engine.query.method != "sampling" or not has_intervals(engine.network, engine.query):
        return None
    from junctor.sampling.bounded import BoundedEngine

    sampler = engine.facts.sampler()
    assert isinstance(sampler, BoundedEngine)
    found = sampler.facts()
    return found | {"bound": _finite(found["bound"])}


def _run_work(engine: Engine, sample: RowSample, stored: dict[str, Any], resident: int) -> dict[str, Any]:
    """Return the forecast of a run; resident: bytes of this process, which has planned and read no evidence."""
    from junctor.runs.forecast import forecast_run

    batch = sample.rows.batch
    found = forecast_run(engine, sample.rows, sample.total, MOST_BOUND_OPERATIONS)
    work = _work(engine, batch, found.routes, stored)
    seconds = {name: _finite(each) for name, each in asdict(found.seconds).items() if name != "parts"}
    return work | {
        "rows": sample.total,
        "rows_counted": sample.is_counted,
        "sampled_rows": batch.rows,
        "parts": found.seconds.parts,
        "operations": found.operations,
        "seconds": _finite(found.seconds.total),
        "seconds_of": seconds,
        "process_bytes": resident + found.held + work["planned_bytes"],
    }


def _finite(seconds: float) -> float | None:
    # JSON knows no infinity.
    return seconds if math.isfinite(seconds) else None


def _work(engine: Engine, batch: EvidenceBatch, routes: list[Route], stored: dict[str, Any]) -> dict[str, Any]:
    """Return what is known of a batch and its routes, those with most operations first."""
    from junctor.engine.choose import told_of
    from junctor.runtime.machine import peak_memory

    facts = engine.facts
    # Rows in chunks may be left to the CPU where workers with GPUs were asked about.
    on_gpu = any(route.on_gpu for route in routes) or (facts.asks_gpu and not routes[0].chunks if routes else False)
    refusals = [str(route.refused) for route in routes if route.refused is not None]
    return {
        "rows": batch.rows,
        "invalid_rows": len(batch.invalid),
        "patterns": len(routes),
        "forecast_for": "gpu" if on_gpu else "cpu",
        "measured_on": (facts.gpu_costs if on_gpu else facts.cpu_costs).device.name,
        "needed_bytes": max((route.memory.needed for route in routes), default=0),
        "planned_bytes": max((route.memory.projected for route in routes), default=0),
        # What this process takes, which has read and planned as a run does, and propagated nothing.
        "resident_bytes": peak_memory(),
        "fits": not refusals,
        "refused": refusals[0] if refusals else None,
        "plans": [_plan_facts(route, engine.network, told_of(route, batch, facts)) for route in routes[:SHOWN]],
        "savings": _savings(facts, routes),
        "choices": choices(facts, routes, stored),
    }


def _savings(facts: Facts, routes: list[Route]) -> list[dict[str, Any]]:
    """Return what the plan with the most work does not have to do, in multiply-adds of a row."""
    from junctor.planning.savings import Saving, count_savings
    from junctor.strategies.facts import rounded

    # Routes are sorted by work; rows with trees of their own have no plan that could be compared.
    largest = next((route for route in routes if route.plan is not None and route.plan.case_operations), None)
    # What is refused does not run faster either, and each order takes seconds to find.
    if largest is None or largest.plan is None or largest.refused is not None:
        return []
    plan = largest.plan
    targets = facts.problem(plan.pattern)[1]
    savings = count_savings(plan.shape, plan.pattern, targets, facts.explains, rounded(largest.uses))
    # Zeros need the numbers of all tables, which are not bound where the plan is refused or cut.
    in_memory = largest.refused is None and largest.chunks is None
    if in_memory and plan.operations <= MOST_BOUND_OPERATIONS:
        savings.append(Saving("zeros of the tables skipped", plan.case_operations, _nonzero_operations(facts, plan)))
    return [asdict(saving) for saving in savings]


def _nonzero_operations(facts: Facts, plan: Plan) -> int:
    """Return the multiply-adds of a row without terms that are zero whatever the evidence."""
    from junctor_kernels.tables import reference

    from junctor.backends.numpy import Program

    # Zeros are the same in any format, so that plain numbers will do.
    algebra = reference.MAX_LOG if facts.explains else reference.DOUBLE
    return Program(plan, facts.plan_network(plan.pattern), algebra).nonzero_operations


def _plan_facts(route: Route, network: Network, chosen: Chosen) -> dict[str, Any]:
    pattern, plan = route.group.pattern, route.plan
    # In chunks nothing is shared: every row goes through all operations.
    shares = plan is not None and route.chunks is None
    # Rows with trees of their own have no common plan: their operations are a mean.
    facts: dict[str, Any] = {
        "rows": route.rows,
        "patterns": route.group.patterns,
        "strategy": chosen.strategy,
        "chosen": asdict(chosen),
        "one_by_one": route.group.alone,
        "shared_tree": route.group.shared,
        "observed": [network.variables[i].name for i in sorted(pattern.sliced)],
        "likelihoods": [network.variables[i].name for i in sorted(pattern.weighted)],
        "operations_per_row": plan.case_operations if plan and shares else route.operations // len(route.group.rows),
        "operations_once": plan.shared_operations if plan and shares else 0,
        "block_cases": route.block_cases,
        "threads": route.threads,
        "needed_bytes": route.memory.needed,
        "planned_bytes": route.memory.projected,
    }
    if plan:
        facts |= {
            "clique_entries": plan.total_clique_entries,
            "largest_clique_entries": max(plan.clique_entries, default=0),
            "steps": len(plan.steps),
            "levels": plan.levels,
            "criterion": plan.criterion,
        }
    if route.chunks is not None:
        facts["chunks"] = chunk_facts(route.chunks, network)
    return facts


def _print_network(network: str, record: dict[str, Any]) -> None:
    facts = record["network"]
    typer.echo(f"{network}: {facts['kind']} network {facts['name']!r}")
    typer.echo(f"  variables   {facts['variables']:,}, {counted(facts['states'], 'state')}")
    entries = counted(facts["table_entries"], "entry", "entries")
    typer.echo(f"  tables      {facts['tables']:,}, {entries}, {facts['zero_entries']:,} zero")
    largest = sorted(record["variables"], key=lambda variable: -variable.get("table_entries", 0))[:SHOWN]
    if facts["kind"] == "bayes":
        typer.echo(
            "  largest     " + ", ".join(f"{variable['name']} {variable['table_entries']:,}" for variable in largest)
        )


def _print(evidence: str | None, record: dict[str, Any]) -> None:
    tree = record["tree"]
    typer.echo("junction tree of all variables")
    entries, largest_entries, separator = (
        approximate(tree[name]) for name in ("total_entries", "largest_clique_entries", "largest_separator_entries")
    )
    typer.echo(f"  cliques     {tree['cliques']:,} in {counted(tree['components'], 'tree')}, {entries} entries")
    typer.echo(f"  largest     {largest_entries} entries, {counted(tree['treewidth'] + 1, 'variable')}")
    typer.echo(f"  separator   {separator} entries at most")
    typer.echo(f"  stored      {_stored_line(tree['stored'])} (junctor calibrate)")
    _print_work("plan without evidence", record["no_evidence"], record["allowed_bytes"])
    if evidence is not None:
        work = record["evidence"]
        title = f"{evidence}: {_rows_line(work)}"
        _print_work(title, work, record["allowed_bytes"])


def _rows_line(work: dict[str, Any]) -> str:
    rows, sampled = counted(work["rows"], "row"), work["sampled_rows"]
    if sampled == work["rows"]:
        return f"{rows}, {work['invalid_rows']:,} of them invalid"
    about = "" if work["rows_counted"] else "about "
    return f"{about}{rows}, by {sampled:,} of them, {work['invalid_rows']:,} invalid"


def _stored_line(stored: dict[str, Any]) -> str:
    from junctor.cli.display import duration

    size = format_bytes(stored["bytes"])
    if stored["making_seconds"] is None:
        return size
    times = f"{duration(stored['making_seconds'])} to make, {duration(stored['case_seconds'])} a case on one core"
    return f"{size}, {times}"


def _plan_line(plan: dict[str, Any]) -> str:
    operations = approximate(plan["operations_per_row"])
    if plan["strategy"] == "joint-table":
        return f"  {plan['rows']:>9,} rows on the table of all joint states: {operations} operations each"
    if plan["strategy"] == "circuit":
        return f"  {plan['rows']:>9,} rows by a circuit: {approximate(plan['operations_per_row'] // 2)} edges"
    if plan["strategy"] == "samples":
        return f"  {plan['rows']:>9,} rows by samples of each"
    if plan["one_by_one"] and not plan["patterns"]:
        return f"  {plan['rows']:>9,} rows, each with a tree of its own: about {operations} operations each"
    if plan["one_by_one"]:
        return (
            f"  {plan['rows']:>9,} rows of {plan['patterns']:,} patterns, each with a tree of its own: "
            f"about {operations} operations each"
        )
    if plan["shared_tree"]:
        return (
            f"  {plan['rows']:>9,} rows of {plan['patterns']:,} patterns on one tree, {len(plan['observed'])} observed "
            f"in all of them and {len(plan['likelihoods'])} in some: about {operations} operations each"
        )
    if "levels" not in plan:
        return f"  {plan['rows']:>9,} rows, without a plan: {operations} operations each"
    return (
        f"  {plan['rows']:>9,} rows with {len(plan['observed'])} observed and {len(plan['likelihoods'])} as "
        f"likelihoods: {operations} operations each and "
        f"{approximate(plan['operations_once'])} once, in {plan['levels']} levels"
    )


def _print_work(title: str, work: dict[str, Any], allowed: int) -> None:
    from junctor.cli.display import duration

    typer.echo(title)
    for plan in work["plans"]:
        typer.echo(_plan_line(plan))
        for line in chosen_lines(plan["chosen"]):
            typer.echo(f"            {line}")
        if "chunks" in plan:
            show_chunks(plan["chunks"])
    if work["patterns"] > len(work["plans"]):
        typer.echo(f"  and {work['patterns'] - len(work['plans']):,} groups of rows with less work")
    if work["savings"]:
        typer.echo("  operations a row of the plan with the most work, without each saving and with all of them")
    for saving in work["savings"]:
        counts = f"{approximate(saving['before']):>17} {approximate(saving['after']):>17}"
        typer.echo(f"    {saving['name']:<45}{counts} {_ratio(saving['before'], saving['after']):>10} x")
    if buckets := work.get("mini_buckets"):
        bound = -math.inf if buckets["bound"] is None else buckets["bound"]
        typer.echo(
            f"  bound       {bound:.6g} on the log of the sum: {buckets['split']:,} of "
            f"{counted(buckets['variables'], 'variable')} split into mini-buckets, {buckets['entries']:,} entries"
        )
    where = "a GPU" if work["forecast_for"] == "gpu" else "one core"
    typer.echo(
        f"  work        {approximate(work['operations'])} operations, {duration(work['seconds'])} on {where} "
        f"({_measured(work)})"
    )
    if "seconds_of" in work:
        of = {name: duration(seconds).removeprefix("about ") for name, seconds in work["seconds_of"].items()}
        typer.echo(
            f"              from start to end of a run: {of['starting']} to start, {of['reading']} to read evidence, "
            f"{of['answering']} to answer, {of['writing']} to write"
        )
    fits = "" if work["fits"] else ": too much, it will be refused"
    typer.echo(
        f"  memory      {format_bytes(work['planned_bytes'])} planned, {format_bytes(work['needed_bytes'])} needed, "
        f"{format_bytes(allowed)} allowed{fits}"
    )
    takes = f"a process takes {format_bytes(work['resident_bytes'])} beside it"
    if "process_bytes" in work:
        takes = f"a process that runs all of it takes {format_bytes(work['process_bytes'])}"
    typer.echo(
        f"              for propagation alone; {takes} (interpreter, Arrow, compiled code, network"
        f"{', evidence, answers' if 'process_bytes' in work else ''})"
    )
    if work["refused"] is not None:
        typer.echo(f"              {work['refused']}")
    show_choices(work["choices"])


def _measured(work: dict[str, Any]) -> str:
    """Return by what a forecast goes, and what to do where that is another device."""
    from junctor.cost.model import cpu_name
    from junctor.runtime.devices import count_gpus, gpu_at_hand

    on_gpu = work["forecast_for"] == "gpu"
    here = gpu_at_hand()[0] if on_gpu else cpu_name()
    # Where a GPU is only asked about there is none here to be measured.
    if here == work["measured_on"] or (on_gpu and not count_gpus()):
        return f"measured on {work['measured_on']}"
    return f"measured on {work['measured_on']}, not on {here}: see junctor tune"


def _ratio(before: int, after: int) -> str:
    # Counts of any size do not fit a float; of an impossible pattern nothing is left.
    after = max(1, after)
    return approximate(before // after) if before >= 100 * after else f"{before / after:.2f}"
