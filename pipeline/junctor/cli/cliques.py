"""`junctor calibrate`, `ask` and `joint`: clique tables kept for a case, and joint posteriors, later or at once."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from junctor.cli import options as cli
from junctor.cli.lines import print_document
from junctor.model import option_table as table

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from junctor.cliques.parts import Part
    from junctor.model.network import Variable

Given = Annotated[
    list[str] | None, typer.Option(metavar="VARIABLE=STATE", help="Evidence, such as smoke=yes; repeatable.")
]
Row = tuple[list[str], float]


class CalibrateOptions(
    table.PrecisionOptions,
    table.CliqueResources,
    table.StreamingOptions,
    table.NetworkOptions,
    cli.JsonOptions,
    total=False,
):
    """Options that `junctor calibrate` shares with other commands."""


class AskOptions(table.DeviceOptions, table.StreamingOptions, cli.JsonOptions, total=False):
    """Options that `junctor ask` shares with other commands."""


class JointCommandOptions(
    table.PrecisionOptions, table.JointOptions, table.NetworkOptions, cli.JsonOptions, total=False
):
    """Options that `junctor joint` shares with other commands."""


# Of all three commands.
OF_GPU = {"help": "What tables may take of the GPU, such as 40GiB, by default 85 %; what does not fit goes through it."}


@cli.takes_options(
    memory={"help": "What tables may take, such as 4GiB; by default 60 % of what is free."}, device_memory=OF_GPU
)
def calibrate(
    network: cli.NetworkFile,
    keep_cliques: Annotated[
        str | None,
        typer.Option(
            "--keep-cliques", metavar="DIRECTORY", help="Directory for the calibrated clique tables, for junctor ask."
        ),
    ] = None,
    given: Given = None,
    **options: Unpack[CalibrateOptions],
) -> None:
    """Store the clique tables of NETWORK, calibrate them for one case, and print how long each part of that took."""
    if keep_cliques is not None:
        cli.refuse_empty(keep_cliques, "--keep-cliques")
    from junctor.cliques.tree import StoredTree
    from junctor.runtime.machine import compute_options

    # First of all: mistakes on the command line need no network to be seen.
    evidence = evidence_of(given or [])
    model = cli.network_of(network, options)
    resources = compute_options(**table.options_for(table.RowResources, options))
    streaming = table.options_for(table.StreamingOptions, options)
    tree = StoredTree(model, options["precision"], resources, timed=True, **streaming)
    cliques = tree.propagate(evidence)
    if keep_cliques is not None:
        cliques.save(keep_cliques)
    facts = {
        "log_evidence": cliques.log_evidence,
        "cliques": len(cliques.scopes),
        "entries": tree.plan.total_entries(),
        "numbers": cliques.algebra.name,
        "place": tree.place,
    }
    parts = cliques.part_seconds()
    if options["json"]:
        print_document(facts | {"log_evidence": _number(cliques.log_evidence), "milliseconds": _milliseconds(parts)})
    else:
        where = "" if keep_cliques is None else f"{keep_cliques}: "
        typer.echo(
            f"{where}{facts['cliques']:,} cliques, {facts['entries']:,} entries ({facts['numbers']}), "
            f"log P(e) = {cliques.log_evidence:.9g}"
        )
    _print_parts(tree.place, parts, streaming)


@cli.takes_options(device_memory=OF_GPU)
def ask(
    directory: Annotated[str, typer.Argument(metavar="DIRECTORY", help="What `junctor calibrate` kept.")],
    names: Annotated[list[str], typer.Argument(metavar="VARIABLE...", help="Variables that share a clique.")],
    **options: Unpack[AskOptions],
) -> None:
    """Print the joint posterior of some variables, without any further propagation."""
    cli.refuse_empty(directory, "DIRECTORY")
    from junctor.cliques.calibrated import load_cliques
    from junctor.runtime.machine import compute_options

    resources = compute_options(**table.options_for(table.RowResources, options))
    streaming = table.options_for(table.StreamingOptions, options)
    cliques = load_cliques(directory, resources, **streaming)
    rows = _rows(cliques.variables, names, cliques.posterior(*names))
    parts = cliques.part_seconds()
    if options["json"]:
        answer = {"log_evidence": _number(cliques.log_evidence), "variables": names}
        print_document(answer | {"posterior": _records(rows), "milliseconds": _milliseconds(parts)})
    else:
        _print_rows(names, rows)
    _print_parts(cliques.place(), parts, streaming)


@cli.takes_options(
    memory={"help": "What this may take, such as 4GiB; by default 60 % of what is free."}, device_memory=OF_GPU
)
def joint(
    network: cli.NetworkFile,
    questions: Annotated[
        list[str],
        typer.Argument(metavar="A,B...", help="Variables that belong together, A,B,C (names with commas in quotes)."),
    ],
    given: Given = None,
    **options: Unpack[JointCommandOptions],
) -> None:
    """Print the joint posterior of the variables of each question, for one case of NETWORK."""
    from junctor.cliques.joint import JointQuestions, observed_question
    from junctor.runtime.machine import compute_options

    evidence = evidence_of(given or [])
    model = cli.network_of(network, options)
    wanted = [list(cli.names_in(question)) for question in questions]
    resources = compute_options(**table.options_for(table.CliqueResources, options))
    streaming = table.options_for(table.StreamingOptions, options)
    asked = JointQuestions(model, wanted, evidence, options["precision"], resources, **streaming)
    for name in asked.observed:
        typer.echo(f"warning: {observed_question(name)}", err=True)
    answers = asked.answer(options["architecture"])
    tables = [
        (names, _rows(model.variables, names, posterior))
        for names, posterior in zip(wanted, answers.posteriors, strict=True)
    ]
    if options["json"]:
        records = [{"variables": names, "posterior": _records(rows)} for names, rows in tables]
        facts = {"architecture": answers.architecture, "log_evidence": answers.log_evidence, "questions": records}
        parts = {"milliseconds": _milliseconds(answers.part_seconds)} if answers.part_seconds else {}
        print_document(facts | parts)
        return
    # On stderr, so that the tables can be piped into a file.
    typer.echo("by messages" if answers.architecture == "messages" else "from stored clique tables", err=True)
    for number, (names, rows) in enumerate(tables):
        if number:
            typer.echo()
        _print_rows(names, rows)
    if answers.place is not None:
        _print_parts(answers.place, answers.part_seconds, streaming)


def _milliseconds(seconds: Mapping[Part, float]) -> dict[str, float]:
    return {part: 1e3 * taken for part, taken in seconds.items()}


def _print_parts(place: str, seconds: Mapping[Part, float], streaming: table.StreamingOptions) -> None:
    """Print what tables took where they are, part by part, on stderr: tables of answers can be piped into a file."""
    total = sum(seconds.values())
    typer.echo(f"tables {place}:", err=True)
    for part, taken in seconds.items():
        typer.echo(f"  {part:14}{1e3 * taken:12,.2f} ms  {taken / total if total else 0:6.1%}", err=True)
    if any(streaming.values()) and not place.startswith("through"):
        typer.echo("note: --pipeline and --in-flight are for tables that exceed the GPU (--device-memory)", err=True)


def _rows(variables: Sequence[Variable], names: list[str], posterior: npt.NDArray[np.float64]) -> Iterator[Row]:
    of = {variable.name: variable.states for variable in variables}
    states = product(*(of[name] for name in names))
    # One at a time: as objects they take far more memory than the table.
    return ((list(row), float(share)) for row, share in zip(states, posterior.flat, strict=True))


def _records(rows: Iterable[Row]) -> list[dict[str, list[str] | float]]:
    return [{"states": states, "probability": share} for states, share in rows]


def _print_rows(names: list[str], rows: Iterable[Row]) -> None:
    # Names and states may have commas, and then need quotes.
    lines = csv.writer(sys.stdout, lineterminator="\n")
    lines.writerow([*names, "probability"])
    # Nine digits, as everywhere on the command line; --json has all of them.
    lines.writerows([*states, f"{share:.9g}"] for states, share in rows)


def _number(log_evidence: float) -> float | None:
    # JSON has no infinity.
    return log_evidence if log_evidence > float("-inf") else None


def evidence_of(given: list[str], option: str = "--given") -> dict[str, str]:
    """Return the states that VARIABLE=STATE give, by their variables; raises BadParameter for others."""
    evidence: dict[str, str] = {}
    for text in given:
        name, equals, state = text.partition("=")
        if not state.strip() or name in evidence:
            fault = "a variable twice" if name in evidence else "no state" if equals else "no '='"
            raise typer.BadParameter(
                f"found {fault} in {text!r}, expected VARIABLE=STATE, once a variable", param_hint=option
            )
        evidence[name] = state
    return evidence
