"""`junctor validate`: whether a network, and evidence for it, can be used."""

from __future__ import annotations

import json as json_module
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from junctor.cli.options import AsJson, CaseId, EvidenceFormat, IgnoreExtra, NetworkFile, NetworkFormat

if TYPE_CHECKING:
    from junctor.evidence.read import EvidenceSource
    from junctor.model.network import Network

# Invalid rows that are shown; all of them are counted.
SHOWN = 10
CHUNK = 65_536


def validate(
    network: NetworkFile,
    evidence: Annotated[str | None, typer.Argument(metavar="[EVIDENCE]", help="Evidence to check against it.")] = None,
    case_id: CaseId = None,
    ignore_extra: IgnoreExtra = False,
    network_format: NetworkFormat = None,
    evidence_format: EvidenceFormat = None,
    json: AsJson = False,
) -> None:
    """Check NETWORK, and every row of EVIDENCE against it; exit code 3 where something is wrong."""
    from junctor.evidence.read import open_evidence
    from junctor.formats import read_network

    model = read_network(network, network_format)
    report: dict[str, Any] = {"network": _network_facts(model)}
    if evidence is not None:
        source = open_evidence(evidence, model, case_id=case_id, ignore_extra=ignore_extra, format=evidence_format)
        report["evidence"] = _evidence_facts(source)
    if json:
        typer.echo(json_module.dumps(report, indent=2))
    else:
        _print(network, report["network"], evidence, report.get("evidence"))
    if report.get("evidence", {}).get("invalid_rows"):
        raise typer.Exit(3)


def _network_facts(network: Network) -> dict[str, Any]:
    return {
        "name": network.name,
        "kind": network.kind,
        "variables": len(network.variables),
        "states": sum(network.cardinalities),
        "tables": len(network.factors),
        "table_entries": sum(factor.table.size for factor in network.factors),
        "digest": network.digest,
    }


def _evidence_facts(source: EvidenceSource) -> dict[str, Any]:
    rows = invalid = 0
    shown: list[dict[str, Any]] = []
    for partition in source.partitions(CHUNK):
        batch = partition.batch
        rows += batch.rows
        invalid += len(batch.invalid)
        for row, reason in islice(sorted(batch.invalid.items()), SHOWN - len(shown)):
            shown.append({"row": partition.first_row + row + 1, "reason": reason})
    return {"rows": rows, "invalid_rows": invalid, "first_invalid": shown}


def _print(network: str, model: dict[str, Any], evidence: str | None, facts: dict[str, Any] | None) -> None:
    typer.echo(
        f"{network}: {model['kind']} network, {model['variables']:,} variables, {model['states']:,} states, "
        f"{model['tables']:,} tables with {model['table_entries']:,} entries"
    )
    if facts is None:
        return
    typer.echo(f"{evidence}: {facts['rows']:,} rows, {facts['invalid_rows']:,} invalid")
    for item in facts["first_invalid"]:
        typer.echo(f"  row {item['row']:,}: {item['reason']}")
    if facts["invalid_rows"] > len(facts["first_invalid"]):
        typer.echo(f"  and {facts['invalid_rows'] - len(facts['first_invalid']):,} more")
