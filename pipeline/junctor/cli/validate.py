"""`junctor validate`: whether a network, and evidence for it, can be used."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import typer

from junctor.cli import options as cli
from junctor.cli.lines import print_document, warn_no_rows
from junctor.model import option_table as table
from junctor.model.errors import counted

if TYPE_CHECKING:
    from junctor.evidence.read import EvidenceSource
    from junctor.model.network import Network

# Invalid rows that are shown; all of them are counted.
SHOWN = 10
# Rows that are checked at a time, so that a file of any size fits the memory.
CHUNK = 65_536


class ValidateOptions(
    table.TargetOptions,
    table.HidingOptions,
    table.CaseOptions,
    table.KeepOptions,
    table.MeaningOptions,
    table.NetworkOptions,
    table.FormatOptions,
    table.SeparatorOptions,
    cli.JsonOptions,
    total=False,
):
    """Options of `junctor validate`."""


@cli.takes_options()
def validate(
    network: cli.NetworkFile,
    evidence: Annotated[str | None, typer.Argument(metavar="[EVIDENCE]", help="Evidence to check against it.")] = None,
    **options: Unpack[ValidateOptions],
) -> None:
    """Check NETWORK, and every row of EVIDENCE against it; exit code 3 where something is wrong."""
    from junctor.evidence.mapping import hiding, read_mapping
    from junctor.evidence.read import open_evidence
    from junctor.model.query import named_variables

    model = cli.network_of(network, options)
    report: dict[str, Any] = {"network": network_facts(model)}
    # Unknown targets are told, with evidence and without.
    asked = table.query_of({"targets": options["targets"], "hide_targets": options["hide_targets"]})
    names = named_variables(model, asked)
    if evidence is not None:
        meant = read_mapping(options["mapping"], model)
        source = open_evidence(
            evidence,
            model,
            # A mapping that hides targets is as good as another where none are named.
            mapping=hiding(meant, model, asked) if names or options["hide_targets"] else meant,
            **table.options_for(table.ReadingOptions, options),
        )
        report["evidence"] = _evidence_facts(source)
    if options["json"]:
        print_document(report)
    else:
        from junctor.runtime.remote import shown

        told = None if evidence is None else shown(evidence)
        _print(shown(network), report["network"], told, report.get("evidence"))
    if evidence is not None and not report["evidence"]["rows"]:
        warn_no_rows(evidence)
    # After printing: a script gets the report as well as the exit code.
    if report.get("evidence", {}).get("invalid_rows"):
        raise typer.Exit(3)


def network_facts(network: Network, zeros: bool = False) -> dict[str, Any]:
    """Return a record of a network for JSON; zeros: with a count of them, for which all tables are read."""
    facts: dict[str, Any] = {
        "name": network.name,
        "kind": network.kind,
        "variables": len(network.public),
        "states": sum(variable.cardinality for variable in network.public),
        "tables": len(network.factors),
        "table_entries": sum(factor.table.size for factor in network.factors),
    }
    if zeros:
        facts["zero_entries"] = sum(int((factor.table == 0).sum()) for factor in network.factors)
    # The digest stays the last field: the printed document keeps its bytes.
    return facts | {"digest": network.digest}


def _evidence_facts(source: EvidenceSource) -> dict[str, Any]:
    from junctor.runtime.machine import usable_cores

    rows = invalid = 0
    shown: list[dict[str, Any]] = []
    for partition in source.partitions(CHUNK, usable_cores()):
        batch = partition.batch
        rows += batch.rows
        invalid += len(batch.invalid)
        # Counting goes on where enough rows are shown.
        for row, reason in islice(sorted(batch.invalid.items()), SHOWN - len(shown)):
            shown.append({"row": partition.first_row + row + 1, "reason": reason})
    return {"rows": rows, "invalid_rows": invalid, "first_invalid": shown}


def _print(network: str, model: dict[str, Any], evidence: str | None, facts: dict[str, Any] | None) -> None:
    typer.echo(
        f"{network}: {model['kind']} network, {counted(model['variables'], 'variable')}, "
        f"{counted(model['states'], 'state')}, {counted(model['tables'], 'table')} with "
        f"{counted(model['table_entries'], 'entry', 'entries')}"
    )
    if facts is None:
        return
    typer.echo(f"{evidence}: {counted(facts['rows'], 'row')}, {facts['invalid_rows']:,} invalid")
    for item in facts["first_invalid"]:
        typer.echo(f"  row {item['row']:,}: {item['reason']}")
    if facts["invalid_rows"] > len(facts["first_invalid"]):
        typer.echo(f"  and {facts['invalid_rows'] - len(facts['first_invalid']):,} more")
