"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

NetworkFile = Annotated[
    str,
    typer.Argument(
        metavar="NETWORK", help="Network: BIF, XMLBIF, Hugin .net, GeNIe .xdsl, UAI or our Parquet, or any .gz."
    ),
]
EvidenceFile = Annotated[
    str,
    typer.Argument(metavar="EVIDENCE", help="Evidence, one row a case: CSV, Parquet (file or folder), Arrow or .evid."),
]
CaseId = Annotated[str | None, typer.Option(help="Evidence column that names the cases.")]
IgnoreExtra = Annotated[bool, typer.Option("--ignore-extra", help="Pass over columns that are not in the network.")]
Strict = Annotated[bool, typer.Option("--strict", help="Refuse the evidence at its first invalid row.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
NetworkFormat = Annotated[
    str | None,
    typer.Option(
        "--format", help="Format of NETWORK, if its name does not say: bif, xmlbif, hugin, xdsl, uai, parquet."
    ),
]
EvidenceFormat = Annotated[
    str | None, typer.Option(help="Format of EVIDENCE, if its name does not say: csv, tsv, parquet, arrow, evid.")
]
