"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from junctor.model.query import LEAST_SAMPLES, Method, Sampler, Stages

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
DeviceMemory = Annotated[
    str | None,
    typer.Option(
        help="What blocks, and tasks of tables in chunks, may take of each GPU, such as 40GiB; 70 % of what is free. "
        "On a CPU: what their tables may take of the memory."
    ),
]
Spill = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="Folder for tables that exceed the memory; the temporary one if not given."),
]
Disk = Annotated[
    str | None, typer.Option(help="What such tables may take there, such as 200GiB; half of what is free if not given.")
]
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
MethodOption = Annotated[
    Method,
    typer.Option(
        "--method", help="Exact answers, estimates by sampling, or auto: sampling where exact ones exceed the memory."
    ),
]
SamplerOption = Annotated[
    Sampler,
    typer.Option("--sampler", help="EPIS-BN, AIS-BN, self-importance sampling or likelihood weighting."),
]
Samples = Annotated[
    int | None, typer.Option(min=LEAST_SAMPLES, help="Samples of each row, learning included; 100,000 if not given.")
]
Error = Annotated[
    float | None, typer.Option(help="Sample each row until no posterior has a larger standard error, such as 0.001.")
]
StagesOption = Annotated[
    Stages, typer.Option("--stages", help="Which samples count: those after learning, or all, by what they are worth.")
]
Seed = Annotated[int, typer.Option(min=0, help="Of the random numbers; the same seed, the same answers.")]
