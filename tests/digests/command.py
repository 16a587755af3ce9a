"""The command: run the jobs, and record what they give or compare it with a record."""

from __future__ import annotations

import argparse
import fnmatch
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from digests import record
from digests.jobs import JOBS, Job
from digests.outputs import digests
from digests.record import RECORD, Digests


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code, 1 where something differs or fails."""
    asked = parser().parse_args(words)
    chosen = [each for name, each in JOBS.items() if fnmatch.fnmatch(name, asked.jobs)]
    if not chosen:
        parser().error(f"no job has a name like {asked.jobs!r}; --list prints the names")
    if asked.list:
        for each in chosen:
            print(f"{each.name}{'  (slow)' if each.slow else ''}")
        return 0
    if asked.what == "record":
        return make_record(chosen, asked.file)
    return make_comparison(chosen, asked.file)


def parser() -> argparse.ArgumentParser:
    """Return what reads the words of the command."""
    found = argparse.ArgumentParser(prog="python tests/digests", description=__doc__)
    found.add_argument("what", nargs="?", choices=["record", "compare"], default="compare")
    found.add_argument(
        "file", nargs="?", type=Path, default=RECORD, help="the record; that of the project if not given"
    )
    found.add_argument("--jobs", default="*", metavar="PATTERN", help="only jobs with such names, as 'chunks-*'")
    found.add_argument("--list", action="store_true", help="print the names of the jobs and do nothing")
    return found


def run(job: Job) -> Digests:
    """Return the digests of what a job gives in an empty folder."""
    with tempfile.TemporaryDirectory(prefix="junctor-digests-") as folder:
        return digests(job.run(Path(folder)))


def make_record(jobs: Sequence[Job], file: Path) -> int:
    """Record what jobs give; jobs that were not asked for stay as they are on the same platform."""
    old = record.read(file) if file.exists() else {"platform": record.here(), "jobs": {}}
    if len(jobs) < len(JOBS) and old["platform"] != record.here():
        print("the record is of another platform: record all jobs")
        return 1
    known = {name: each for name, each in old["jobs"].items() if name in JOBS}
    failed = 0
    for job, seconds, found in done(jobs):
        if isinstance(found, BaseException):
            failed += 1
            continue
        changed = "unchanged" if known.get(job.name) == found else "changed" if job.name in known else "new"
        print(f"{job.name:<32} {changed:<12} {seconds:6.1f} s", flush=True)
        known[job.name] = found
    record.write(file, known)
    return min(failed, 1)


def make_comparison(jobs: Sequence[Job], file: Path) -> int:
    """Compare what jobs give with a record."""
    recorded = record.read(file)
    by_bytes = recorded["platform"] == record.here()
    print(f"{'the platform of the record: bytes' if by_bytes else 'another platform: numbers within a tolerance'}")
    differing = 0
    for job, seconds, found in done(jobs):
        known = recorded["jobs"].get(job.name)
        if isinstance(found, BaseException) or known is None:
            differing += 1
            if known is None:
                print(f"{job.name:<32} not recorded")
            continue
        result = record.compare(found, known, job.tolerance, by_bytes)
        differing += not result.equal
        print(
            f"{job.name:<32} {'equal' if result.equal else 'DIFFERS':<8} {result.apart:8.1e} {seconds:6.1f} s",
            flush=True,
        )
        for name, by in result.differing.items():
            print(f"    {name}: {record.apart(by)}")
    print(f"{len(jobs)} jobs, {differing} of them differ or fail")
    return min(differing, 1)


def done(jobs: Sequence[Job]) -> Iterator[tuple[Job, float, Digests | BaseException]]:
    """Run jobs one by one, and print what went wrong with those that fail."""
    for job in jobs:
        started = time.monotonic()
        found: Digests | BaseException
        try:
            found = run(job)
        except (Exception, pytest.fail.Exception) as error:
            traceback.print_exc()
            print(f"{job.name:<32} FAILED: {error}")
            found = error
        yield job, time.monotonic() - started, found
