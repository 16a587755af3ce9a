"""Networks with known answers from files to files, by the command line as users have it: seconds and differences.

    uv run python benchmarks/circuit_instances.py FOLDER [NAME ...] [--seconds 60] [--json FILE]
    uv run python benchmarks/circuit_instances.py FOLDER [NAME ...] --rows [--seconds 120]

FOLDER has for each NAME its network, NAME.uai.gz, evidence of one case, NAME.uai.evid, a table, NAME.rows.csv.gz, and
right answers, NAME.values.json: `log_evidence` (null where nobody knows), `posteriors` (variable -> probabilities),
`rows` (case_id -> {`log_evidence`}) and `impossible_rows` (case_id -> why). Each run is a process that keeps nothing
for the next one, compiled code excepted; run `junctor warmup` before. Exits with 1 where an answer is wrong; an
instance that takes longer than `--seconds`, or is refused, is told.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from common import machine_record
from pyarrow import parquet

COMMAND = (sys.executable, "-c", "from junctor.cli import main; main()")
TOLERANCE = 1e-9
HEADS = ("instance", "strategies", "seconds", "CPU seconds", "log P(e), difference", "posteriors", "what is wrong")

Row = Mapping[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="default: all")
    parser.add_argument("--rows", action="store_true", help="the table of each, instead of the evidence")
    parser.add_argument("--seconds", type=float, help="most of each (default: 60, of tables 120)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="where the record goes")
    asked = parser.parse_args()
    seconds = asked.seconds or (120.0 if asked.rows else 60.0)
    names = asked.names or sorted(path.name.removesuffix(".values.json") for path in asked.folder.glob("*.values.json"))
    record: dict[str, Any] = machine_record() | {"rows": asked.rows, "seconds": seconds, "instances": []}
    print(f"{record['device']}, {record['date']}\n\n| {' | '.join(HEADS)} |\n|---|---|---:|---:|---:|---:|---|")
    for name in names:
        found = measured(asked.folder, name, asked.rows, seconds, asked.threads)
        record["instances"].append(found)
        print(line(found), flush=True)
        if asked.json:
            asked.json.write_text(json.dumps(record, indent=1) + "\n")
    print(f"\n{summary(record['instances'], seconds)}")
    return int(any(found["wrong"] for found in record["instances"]))


def measured(folder: Path, name: str, rows: bool, seconds: float, threads: int) -> dict[str, Any]:
    """Return what a run of an instance took, and how far its answers are from the right ones."""
    evidence = folder / f"{name}.{'rows.csv.gz' if rows else 'uai.evid'}"
    found: dict[str, Any] = {"name": name, "wrong": []}
    before, start = _cores(), time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        output = Path(place) / "answers"
        why = _run([str(folder / f"{name}.uai.gz"), str(evidence), "-o", str(output)], seconds, threads)
        found |= {"seconds": time.monotonic() - start, "cpu": _cores() - before}
        if why:
            return found | {"unanswered": why}
        values = json.loads((folder / f"{name}.values.json").read_text())
        answers = parquet.read_table(output / "posteriors").to_pylist()
        choices = json.loads((output / "manifest.json").read_text())["choices"]
        ways = [f"{choice['rows']} {choice['strategy']}" if rows else choice["strategy"] for choice in choices]
    return found | {"ways": ways} | (compared_rows(answers, values) if rows else compared(answers[0], values))


def _run(arguments: list[str], seconds: float, threads: int) -> str:
    """Run `junctor run`, and return why there is no answer, nothing where there is one."""
    command = [*COMMAND, "run", *arguments, "--workers", "0", "--threads", str(threads)]
    environment = os.environ | {"JUNCTOR_CACHE": "off", "JUNCTOR_QUIET": "true"}
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, env=environment)
    except subprocess.TimeoutExpired:
        return f"over {seconds:g} s"
    return (run.stderr.strip().splitlines() or [f"exit code {run.returncode}"])[-1] if run.returncode else ""


def _cores() -> float:
    """Return the CPU seconds of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def compared(answer: Row, values: Row) -> dict[str, Any]:
    """Return the largest differences of an answer from the right one, and what is wrong with it."""
    known = {} if values["log_evidence"] is None else {"": {"log_evidence": values["log_evidence"]}}
    found = compared_rows([{**answer, "case_id": ""}], {"rows": known, "impossible_rows": {}})
    if answer["status"] != "ok":
        return found | {"wrong": [f"status {answer['status']}"]}
    pairs = ((answer[variable], right) for variable, right in values["posteriors"].items())
    found["posterior"] = max((_largest(got, right) for got, right in pairs), default=None)
    if (found["posterior"] or 0.0) > TOLERANCE:
        found["wrong"].append("posteriors")
    return found


def compared_rows(answers: list[dict[str, Any]], values: Row) -> dict[str, Any]:
    """Return the largest difference of log P(e), and which rows are wrong, of those whose answers are known."""
    rows = {answer["case_id"]: answer for answer in answers}
    logs = {case: _difference(rows[case], right["log_evidence"]) for case, right in values["rows"].items()}
    wrong = [f"{case}: log P(e)" for case, difference in logs.items() if not difference <= TOLERANCE]
    return {"log": max(logs.values(), default=None), "wrong": wrong + list(_impossible(rows, values))}


def _impossible(rows: Mapping[str, Row], values: Row) -> Iterator[str]:
    """Yield rows that are to be impossible, and are not, or without a reason."""
    for case in values["impossible_rows"]:
        if rows[case]["status"] != "impossible":
            yield f"{case}: {rows[case]['status']}, not impossible"
        elif not rows[case]["reason"]:
            yield f"{case}: no reason"


def _difference(row: Row, right: float) -> float:
    """Return the difference of log P(e), in parts of itself beyond 1; infinite where there is none."""
    got = row["log_evidence"]
    return math.inf if got is None else abs(got - right) / max(1.0, abs(right))


def _largest(got: list[float], right: list[float]) -> float:
    return max(abs(one - other) for one, other in zip(got, right, strict=True))


def line(found: Row) -> str:
    """Return a line of the table."""
    numbers = [f"{found[key]:.1f}" for key in ("seconds", "cpu")]
    numbers += ["–" if found.get(key) is None else f"{found[key]:.0e}" for key in ("log", "posterior")]
    wrong = found.get("unanswered") or ", ".join(found["wrong"])
    return f"| {' | '.join([found['name'], ', '.join(found.get('ways', [])), *numbers, wrong])} |"


def summary(instances: list[dict[str, Any]], seconds: float) -> str:
    """Return a line of how many were answered, and which were not."""
    missing = [found["name"] for found in instances if "unanswered" in found]
    wrong = [found["name"] for found in instances if found["wrong"]]
    told = f"{len(instances) - len(missing)} of {len(instances)} answered within {seconds:g} s"
    for what, names in (("not", missing), ("wrong", wrong)):
        told += f"; {what}: {', '.join(names)}" if names else ""
    return told


if __name__ == "__main__":
    sys.exit(main())
