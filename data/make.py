"""Write generated networks and evidence tables to files, for benchmarks and experiments.

uv run python data/make.py grid --rows 10 --columns 10 --output grid.uai
uv run python data/make.py evidence grid.uai --rows 100000 --pattern random --output evidence.parquet
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from junctor import generate
from junctor.formats import read_network, write_network
from junctor.model.errors import JunctorError
from junctor.model.network import Network
from junctor.model.pumping_station import SENSORS, plant


def casino(steps: int = 60) -> Network:
    """Return the occasionally dishonest casino of Durbin et al. (1998), chapter 3: two dice, one of them loaded."""
    return generate.hmm(
        steps,
        start=[0.5, 0.5],
        transition=[[0.95, 0.05], [0.1, 0.9]],
        emission=[[1 / 6] * 6, [0.1] * 5 + [0.5]],
        states=["fair", "loaded"],
        symbols=list("123456"),
    )


NETWORKS: dict[str, Callable[..., Network]] = {
    "grid": generate.grid,
    "chain": generate.chain,
    "layered": generate.layered,
    "random": generate.random_network,
    "casino": casino,
    "plant": plant,
}


def main(arguments: list[str] | None = None) -> int:
    options = vars(parser().parse_args(arguments))
    write = options.pop("write")
    try:
        write(**options)
    except JunctorError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = top.add_subparsers(required=True, metavar="WHAT")
    for name, make in NETWORKS.items():
        command = commands.add_parser(name, help=(make.__doc__ or "").splitlines()[0])
        for setting in inspect.signature(make).parameters.values():
            add_setting(command, setting)
        command.add_argument("-o", "--output", type=Path, required=True, help="a .bif, .uai or .parquet file")
        command.set_defaults(write=write_generated, make=make)
    add_evidence(commands.add_parser("evidence", help="Write an evidence table with rows sampled from a network."))
    return top


def add_setting(command: argparse.ArgumentParser, setting: inspect.Parameter) -> None:
    """Give a parameter of a generator its option."""
    required = setting.default is inspect.Parameter.empty
    kind: Any = state_range if setting.name == "states" else float if isinstance(setting.default, float) else int
    shown = None if required else f"default {setting.default}"
    command.add_argument(
        f"--{setting.name}", type=kind, required=required, default=None if required else setting.default, help=shown
    )


def add_evidence(command: argparse.ArgumentParser) -> None:
    command.add_argument("network", type=Path)
    command.add_argument("--rows", type=int, default=10_000)
    command.add_argument(
        "--observed", type=share_or_names, default=0.2, help="share, names A,B,C, or `sensors` of the plant"
    )
    command.add_argument("--pattern", choices=("fixed", "missing", "random"), default="missing")
    command.add_argument("--missing", type=float, default=0.05, help="share of cells left out by `missing`")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("-o", "--output", type=Path, required=True, help="a .parquet, .arrow or .csv file")
    command.set_defaults(write=write_evidence)


def state_range(text: str) -> int | tuple[int, int]:
    """Read `3` or `2-4`."""
    least, dash, most = text.partition("-")
    return (int(least), int(most)) if dash else int(least)


def share_or_names(text: str) -> float | list[str]:
    try:
        return float(text)
    except ValueError:
        return list(SENSORS) if text == "sensors" else text.split(",")


def write_generated(make: Callable[..., Network], output: Path, **settings: Any) -> None:
    network = make(**settings)
    write_network(network, output)
    print(f"{output}: {network!r}")


def write_evidence(network: Path, rows: int, output: Path, **settings: Any) -> None:
    batches = generate.evidence_batches(read_network(network), rows, **settings)
    first = next(batches)
    with writer(output, first.schema) as sink:
        sink.write_batch(first)
        for batch in batches:
            sink.write_batch(batch)
    print(f"{output}: {rows:,} rows, {first.num_columns - 1} variables")


def writer(output: Path, schema: pa.Schema) -> Any:
    """Return the writer of the format that the extension names: a context manager with `write_batch`."""
    if output.suffix == ".csv":
        return pyarrow.csv.CSVWriter(output, schema)
    if output.suffix == ".arrow":
        return pa.ipc.new_file(output, schema)
    return pyarrow.parquet.ParquetWriter(output, schema)


if __name__ == "__main__":
    sys.exit(main())
