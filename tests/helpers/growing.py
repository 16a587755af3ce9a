"""Evidence that grows, and the outputs of runs beside it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import junctor
import pyarrow as pa
import pyarrow.dataset as ds
from junctor.generate import evidence_table, sample
from junctor.model.network import Network
from junctor.runs.increments import IncrementDirectory
from junctor.runs.run import Manifest, read_manifest, run
from junctor.runs.workload import Job
from junctor.runtime.dask_cluster import Resources
from pyarrow import csv, parquet

from helpers.options import on_cpu

HERE = Resources(workers=0, compute=on_cpu())
DAY = "date=2026-11-{:02d}"
ROWS = 5


def rows_of(network: Network, seed: int, rows: int = ROWS) -> pa.Table:
    table = evidence_table(network, sample(network, rows, seed=seed), observed=0.5, pattern="random", seed=seed)
    return table.set_column(
        table.column_names.index("case_id"), "case_id", pa.array([f"{seed}-{i}" for i in range(rows)])
    )


class World:
    """A folder of evidence that grows, and the outputs of runs beside it."""

    def __init__(self, folder: Path, network: Network) -> None:
        self.folder = folder
        self.network = network
        self.evidence = folder / "in"
        junctor.write_network(network, folder / "net.bif")

    def write(self, name: str, seed: int, rows: int = ROWS) -> Path:
        path = self.evidence / name
        path.parent.mkdir(parents=True, exist_ok=True)
        table = rows_of(self.network, seed, rows)
        if path.suffix == ".csv":
            csv.write_csv(table, path)
        else:
            parquet.write_table(table, path)
        return path

    def days(self, days: Sequence[int], names: Sequence[str] = ("a.parquet",)) -> None:
        for day in days:
            for name in names:
                self.write(f"{DAY.format(day)}/{name}", seed=100 * day + ord(name[0]))

    def job(self, output: str = "out", **changes: object) -> Job:
        asked = {"incremental": True, "partition_rows": 3, **changes}
        paths = str(self.folder / "net.bif"), str(asked.pop("evidence", self.evidence)), str(self.folder / output)
        return Job(*paths, **asked)  # type: ignore[arg-type]

    def run(self, output: str = "out", **changes: object) -> Manifest:
        return run(self.job(output, **changes), HERE)

    def tree(self, output: str = "out") -> dict[str, bytes]:
        """Return the files of the answers, by their names."""
        folder = self.folder / output / "posteriors"
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.glob("**/*") if path.is_file()}

    def answers(self, output: str = "out") -> pa.Table:
        """Return the answers as readers find them."""
        folder = self.folder / output
        manifest = json.loads((folder / "manifest.json").read_text())
        files = [str(folder / part["file"]) for part in manifest["parts"]]
        dataset = ds.dataset(files, partitioning="hive", partition_base_dir=str(folder / "posteriors"))
        return dataset.to_table()

    def equals_one_run(self, output: str = "out") -> None:
        """Assert that the answers are those of one run of all that is there now, byte for byte."""
        shutil.rmtree(self.folder / "whole", ignore_errors=True)
        whole = self.run("whole")
        found = read_manifest(IncrementDirectory(self.folder / output))
        # Copies of one content are told apart by their keys, whose numbers depend on the order in which they came.
        assert sorted(self.tree(output).values()) == sorted(self.tree("whole").values())
        assert [(each.path, each.digest, each.rows, each.statuses) for each in found.inputs] == [
            (each.path, each.digest, each.rows, each.statuses) for each in whole.inputs
        ]
        assert {part.file for part in found.parts} == {f"posteriors/{name}" for name in self.tree(output)}
        cases = self.answers(output)["case_id"].to_pylist()
        assert cases == self.answers("whole")["case_id"].to_pylist()
        assert not [path for path in (self.folder / output).glob("**/*") if path.suffix == ".tmp"]
        assert not (self.folder / output / "evidence").exists()


def write_notes(world: World, **notes: list[object]) -> None:
    """Write a file for each column of notes; all of them missing, they have no type."""
    world.evidence.mkdir(exist_ok=True)
    for name, cells in notes.items():
        ids = [f"{name}{i}" for i in range(len(cells))]
        table = pa.table({"case_id": ids, "x_0": pa.nulls(len(cells), pa.string()), "k": cells})
        parquet.write_table(table, world.evidence / f"{name}.parquet")
