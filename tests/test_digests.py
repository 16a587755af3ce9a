"""Answers, records and plans are those of the record, and a run that was interrupted before can still go on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import junctor
import numpy as np
import pytest
from digests import record
from digests.command import run
from digests.jobs import JOBS, OLD_RUN, Job, old_run, settled
from digests.outputs import digest_of

RECORDED = record.read()
COMPILES = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to compile the GPU kernels for the CPU")
REMEDY = "where that is meant: python tests/digests record --jobs"


def marks(job: Job) -> list[Any]:
    return [pytest.mark.slow] * job.slow + [COMPILES] * ("gpu" in job.name)


@pytest.mark.parametrize("job", [pytest.param(each, id=name, marks=marks(each)) for name, each in JOBS.items()])
def test_nothing_has_changed(job: Job) -> None:
    """Bytes are compared where the platform is that of the record, else numbers within a tolerance."""
    by_bytes = RECORDED["platform"] == record.here()
    result = record.compare(run(job), RECORDED["jobs"][job.name], job.tolerance, by_bytes)
    assert result.equal, f"{job.name}: {result}; {REMEDY} {job.name}"


def test_every_job_is_recorded() -> None:
    assert RECORDED["jobs"].keys() == JOBS.keys()


def test_a_run_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    """Its finished part is not computed again, and the others are those of a run that was never interrupted.

    What a run is known by depends on the contents of its files and not on where they lie.
    """
    before = (OLD_RUN / "out/posteriors/part-00000.parquet").read_bytes()
    with settled(tmp_path):
        found = old_run(tmp_path)
        assert Path("out/posteriors/part-00000.parquet").read_bytes() == before
        whole = junctor.posteriors("network.bif", _rows(Path("evidence.csv")), device="cpu", memory="1GiB")
    assert found["manifest.json"]["reused_parts"] == 1
    assert found["answers"].num_rows == whole.num_rows == 8
    for name in ("status", "reason"):
        assert found["answers"][name].to_pylist() == whole[name].to_pylist()
    for name in ("x_0", "x_6"):
        one, other = (each[name].combine_chunks().flatten() for each in (found["answers"], whole))
        np.testing.assert_allclose(one, other, rtol=1e-12)


def _rows(path: Path) -> Any:
    from pyarrow import csv

    table = csv.read_csv(path)
    return table.set_column(0, "case_id", table["case_id"].cast("string"))


@pytest.mark.parametrize(
    ("one", "other", "by"),
    [([1.0, 2.0], [1.0, 2.0], 0.0), ([1.0, 2.0], [1.0, 2.0 + 1e-9], 1e-9), ([1, "a"], [1, "b"], float("inf"))],
)
def test_differences_are_seen(one: Any, other: Any, by: float) -> None:
    assert record.apart_by(digest_of(one), digest_of(other)) == pytest.approx(by, rel=0.9)


def test_numbers_that_change_places_are_seen() -> None:
    assert record.apart_by(digest_of([1.0, 2.0]), digest_of([2.0, 1.0])) > 0.1
