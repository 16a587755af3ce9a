"""Evidence from standard input and named pipes."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.evidence_reference import small_network
from junctor.evidence import pipes
from junctor.evidence.read import digest_of, open_evidence, stamps_of
from junctor.model.errors import EvidenceError

ASIA = Path(__file__).parents[2] / "data" / "asia.bif"
TABLE = pa.table({"smoke": ["yes", None], "grade": ["low", "high"]})


def of_parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(TABLE, sink)
    return sink.getvalue()


def of_arrow() -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, TABLE.schema) as writer:
        writer.write_table(TABLE)
    return sink.getvalue()


CSV = b"smoke,grade\nyes,low\n,high\n"


@pytest.mark.parametrize(
    ("data", "format"),
    [
        (CSV, None),
        (CSV.replace(b",", b"\t"), None),
        (gzip.compress(CSV), None),
        (gzip.compress(CSV.replace(b",", b"\t")), None),
        (of_parquet(), None),
        (of_arrow(), None),
        (b"1\n2 0 0 1 0\n", "evid"),
    ],
    ids=["csv", "tsv", "csv.gz", "tsv.gz", "parquet", "arrow", "evid"],
)
def test_a_named_pipe_is_read_once_and_used_twice(tmp_path: Path, data: bytes, format: str | None) -> None:
    pipe, file = tmp_path / "rows", tmp_path / "same"
    os.mkfifo(pipe)
    file.write_bytes(data)
    writer = threading.Thread(target=pipe.write_bytes, args=[data])
    writer.start()
    assert digest_of(pipe) == digest_of(file)
    writer.join()
    source = open_evidence(pipe, small_network(), evidence_format=format)
    (part,) = source.partitions(100)
    assert part.batch.states[0].tolist()[:1] == [0]
    assert part.batch.states[1].tolist()[:1] == [0]


def test_an_empty_pipe_and_one_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EvidenceError, match="/dev/null: it is empty"):
        open_evidence("/dev/null", small_network())
    monkeypatch.setattr(pipes, "_SHARE", 0.0)
    with pytest.raises(EvidenceError, match="/dev/zero: it takes more than half of what is free"):
        open_evidence("/dev/zero", small_network())


@pytest.mark.parametrize("name", ["in", "in/*", "in/**/*.csv"])
def test_a_pipe_among_files_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_bytes(CSV)
    os.mkfifo(tmp_path / "in" / "z.csv")
    for read in (digest_of, stamps_of, lambda source: open_evidence(source, small_network())):
        with pytest.raises(EvidenceError, match=r"z\.csv: found a pipe, socket or device, expected a file"):
            read(tmp_path / name)


def test_standard_input_of_the_command_line() -> None:
    rows = b"smoke\nyes\n-\nNULL\n"
    for words, told in ((("validate", "-"), b'"rows": 3'), (("map", "/dev/stdin"), b'"covered": 1.0')):
        command = [Path(sys.executable).with_name("junctor"), words[0], str(ASIA), words[1], "--json"]
        done = subprocess.run(command, input=rows, capture_output=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert told in done.stdout
