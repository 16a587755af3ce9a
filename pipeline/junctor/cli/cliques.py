"""`junctor calibrate`, `ask` and `joint`: clique tables kept for a case, and joint posteriors, later or at once."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from junctor.cli import options as cli
from junctor.cli.lines import print_document
from junctor.model import option_table as table

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from junctor.model.network import Variable

Given = Annotated[
    list[str] | None, typer.Option(metavar="VARIABLE=STATE", help="Evidence, such as smoke=yes; repeatable.")
]
Row = tuple[list[str], float]


class CalibrateOptions(
    table.PrecisionOptions,
    table.MemoryOptions,
    table.DeviceOptions,
    table.TimeOptions,
    table.NetworkOptions,
    cli.JsonOptions,
    total=False,
):
    """Options that `junctor calibrate` shares with other commands."""


class JointCommandOptions(
    table.PrecisionOptions, table.JointOptions, table.NetworkOptions, cli.JsonOptions, total=False
):
    """Options that `junctor joint` shares with other commands."""


@cli.takes_options(
    memory={"help": "What tables may take, such as 4GiB; by default 60 % of what is free."},
    device=cli.ON_CPU | {"help": "CPU or GPU; auto: a GPU where there is one."},
    device_memory={"help": "What tables may take of the GPU; they are streamed where they do not fit."},
)
def calibrate(
    network: cli.NetworkFile,
    keep_cliques: Annotated[
        str, typer.Option("--keep-cliques", metavar="DIRECTORY", help="Directory for the calibrated clique tables.")
    ],
    given: Given = None,
    **options: Unpack[CalibrateOptions],
) -> None:
    """Store the clique tables of NETWORK, calibrate them for one case and keep them for `junctor ask`."""
    cli.refuse_empty(keep_cliques, "--keep-cliques")
    from junctor.cliques.tree import StoredTree
    from junctor.runtime.machine import compute_options

    # First of all: mistakes on the command line need no network to be seen.
    evidence = _evidence(given or [])
    model = cli.network_of(network, options)
    resources = compute_options(**table.options_for(table.RowResources, options))
    tree = StoredTree(model, options["precision"], resources)
    cliques = tree.propagate(evidence)
    cliques.save(keep_cliques)
    facts = {
        "log_evidence": cliques.log_evidence,
        "cliques": len(cliques.scopes),
        "entries": tree.plan.total_entries(),
        "numbers": cliques.algebra.name,
    }
    if options["json"]:
        print_document(facts | {"log_evidence": _number(cliques.log_evidence)})
    else:
        typer.echo(
            f"{keep_cliques}: {facts['cliques']:,} cliques, {facts['entries']:,} entries ({facts['numbers']}), "
            f"log P(e) = {cliques.log_evidence:.9g}"
        )


@cli.takes_options()
def ask(
    directory: Annotated[str, typer.Argument(metavar="DIRECTORY", help="What `junctor calibrate` kept.")],
    names: Annotated[list[str], typer.Argument(metavar="VARIABLE...", help="Variables that share a clique.")],
    **options: Unpack[cli.JsonOptions],
) -> None:
    """Print the joint posterior of some variables, without any further propagation."""
    cli.refuse_empty(directory, "DIRECTORY")
    from junctor.cliques.calibrated import load_cliques

    cliques = load_cliques(directory)
    rows = _rows(cliques.variables, names, cliques.posterior(*names))
    if options["json"]:
        answer = {"log_evidence": _number(cliques.log_evidence), "variables": names}
        print_document(answer | {"posterior": _records(rows)})
    else:
        _print_rows(names, rows)


@cli.takes_options(memory={"help": "What this may take, such as 4GiB; by default 60 % of what is free."})
def joint(
    network: cli.NetworkFile,
    questions: Annotated[
        list[str],
        typer.Argument(metavar="A,B...", help="Variables that belong together, A,B,C (names with commas in quotes)."),
    ],
    given: Given = None,
    **options: Unpack[JointCommandOptions],
) -> None:
    """Print the joint posterior of the variables of each question, for one case of NETWORK, on the CPU."""
    from junctor.cliques.joint import JointQuestions, observed_question
    from junctor.runtime.machine import compute_options

    evidence = _evidence(given or [])
    model = cli.network_of(network, options)
    wanted = [list(cli.names_in(question)) for question in questions]
    resources = compute_options(**table.options_for(table.JointResources, options), device="cpu")
    asked = JointQuestions(model, wanted, evidence, options["precision"], resources)
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
        print_document(facts)
        return
    # On stderr, so that the tables can be piped into a file.
    typer.echo("by messages" if answers.architecture == "messages" else "from stored clique tables", err=True)
    for number, (names, rows) in enumerate(tables):
        if number:
            typer.echo()
        _print_rows(names, rows)


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


def _evidence(given: list[str]) -> dict[str, str]:
    evidence: dict[str, str] = {}
    for text in given:
        name, equals, state = text.partition("=")
        if not state.strip() or name in evidence:
            fault = "a variable twice" if name in evidence else "no state" if equals else "no '='"
            raise typer.BadParameter(
                f"found {fault} in {text!r}, expected VARIABLE=STATE, once a variable", param_hint="--given"
            )
        evidence[name] = state
    return evidence
