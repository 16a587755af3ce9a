"""All kinds of files that are read: how to make some that are whole, and how to read them. Main name: KINDS."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from helpers.command_line import junctor_cli
from helpers.encoding import encode_table
from helpers.format_helpers import CONTENT
from helpers.hmm_models import random_model, sparse_of
from junctor.cli.report import _outcome as outcome
from junctor.cliques.calibrated import load_cliques
from junctor.cliques.tree import StoredTree
from junctor.cost import dataset
from junctor.cost.model import local_cost_models
from junctor.evidence.encode import as_arrow
from junctor.evidence.encoded import read_partition, write_partition
from junctor.evidence.read import open_evidence
from junctor.formats import read_network, store, write_network
from junctor.generate import random_network
from junctor.hmm import build_model, read_model, write_model
from junctor.hmm import run as hmm_run
from junctor.hmm.sequences import open_sequences
from junctor.model.errors import JunctorError
from junctor.model.options import ComputeOptions
from junctor.out_of_core.kept_cuts import OVERLAP
from junctor.out_of_core.memory_splits import Overlap
from junctor.runs import partition
from junctor.runs.answers import answer_batches, read_answers
from junctor.runs.run import read_manifest, run
from junctor.runs.workload import Job
from junctor.runtime.cache import Cache
from junctor.runtime.dask_cluster import Resources

from fuzz.footers import mutated_footer
from fuzz.mutations import mutated, toml_of

NETWORK = random_network(6, seed=1)
SIZES = NETWORK.cardinalities
NAMES = [variable.name for variable in NETWORK.variables]
# Of runs: one thread, and no more memory than the limit of a mutant.
HERE = Resources(compute=ComputeOptions(memory=2**28, threads=1, device="cpu"))


@dataclass(frozen=True)
class Kind:
    """Files that belong together.

    make: writes whole ones into a folder.
    read: reads them; raises JunctorError alone.
    damaged: patterns of the files of which one is damaged.
    share: of the mutants, less than 1 where they take long.
    mutate: damages the content of a file.
    """

    make: Callable[[Path], object]
    read: Callable[[Path], object]
    damaged: tuple[str, ...] = ("**/*",)
    share: float = 1.0
    mutate: Callable[[str, bytes, Random], bytes] = mutated


def _network(ending: str, content: str | bytes) -> Kind:
    data = content.encode() if isinstance(content, str) else content
    data = gzip.compress(data) if ending.endswith(".gz") else data
    return Kind(
        lambda folder: (folder / f"net.{ending}").write_bytes(data),
        lambda folder: read_network(folder / f"net.{ending}"),
    )


def _resealed_footer(name: str, data: bytes, random: Random) -> bytes:
    """Return a network with a damaged footer, and the seal of it unless that is damaged as well."""
    damaged = mutated_footer(name, data, random)
    return damaged if store._seal_digits(damaged) is None else store.sealed(damaged)


def _evidence_table() -> pa.Table:
    states = [variable.states for variable in NETWORK.variables]
    rng = np.random.default_rng(0)
    columns = {name: [s[i] for i in rng.integers(0, len(s), 20)] for name, s in zip(NAMES[:4], states, strict=False)}
    columns[NAMES[0]][3] = None
    columns[NAMES[1]][5] = "unknown"
    columns["case_id"] = [f"case {i}" for i in range(20)]
    return pa.table(columns)


def _write_evidence(folder: Path, name: str) -> None:
    table, path = _evidence_table(), folder / name
    soft = [rng.tolist() for rng in np.random.default_rng(1).random((20, SIZES[5]))]
    if name.endswith(".parquet"):
        pq.write_table(table.append_column(NAMES[5], pa.array(soft)), path, row_group_size=8)
    elif name.endswith((".arrow", ".arrows")):
        table = table.append_column(NAMES[5], pa.array(soft))
        writer = pa.ipc.new_file if name.endswith(".arrow") else pa.ipc.new_stream
        options = pa.ipc.IpcWriteOptions(compression="lz4" if name.endswith(".arrow") else None)
        with writer(path, table.schema, options=options) as file:
            file.write_table(table, max_chunksize=8)
    elif ".evid" in name:
        text = b"3\n1 0 0\n2 1 1 2 0\n0\n" if "several" in name else b"2 0 0 3 1"
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    else:
        mark, nothing = {".tsv": ("\t", ""), ".txt": ("\t", ""), ".cas": ("  ", "*")}.get(Path(name).suffix, (",", ""))
        rows = [table.column_names, *zip(*(column.to_pylist() for column in table.columns), strict=True)]
        text = "".join(
            mark.join(f'"{cell}"' if i == 2 or " " in str(cell) else str(cell or nothing) for i, cell in enumerate(row))
            + "\n"
            for row in rows
        )
        if name.endswith(".cas"):
            text = f"// ~->[CASE-1]->~\n{text}"
        data = text.encode("utf-16" if name.endswith(".txt") else "utf-8")
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)


def _read_evidence(folder: Path, name: str) -> None:
    for options in ({}, {"strict": True}, {"ignore_extra": True, "keep": ["case_id"]}):
        refusal = None
        try:
            for part in open_evidence(folder / name, NETWORK, **options).partitions(7):  # type: ignore[arg-type]
                _check(part)
        except JunctorError as error:
            refusal = error
        if refusal is not None and not options:
            raise refusal


def _check(part: Any) -> None:
    """What is read is of the network: a state out of range would index outside of tables."""
    for variable, states in part.batch.states.items():
        assert states.shape == (part.batch.rows,)
        assert states.min(initial=-1) >= -1
        assert states.max(initial=-1) < SIZES[variable]
    for variable, soft in part.batch.likelihoods.items():
        assert soft.values.shape == (len(soft.rows), SIZES[variable])
        assert np.isfinite(soft.values).all()
    assert len(part.case_ids) == part.batch.rows


def _model(sparse: bool = False) -> Any:
    bare = random_model(4, 3, 1, zeros=0.3 if sparse else 0.0)
    transition = sparse_of(bare.transition) if sparse else bare.transition
    return build_model(bare.start, transition, bare.emission, list("abcd"), ["one", "two", "three"])


def _write_sequences(folder: Path) -> None:
    rows = [["one", "two"], ["three"], [], None, ["one", None, "uno"]]
    table = pa.table({"case_id": [f"c{i}" for i in range(5)], "words": pa.array(rows)})
    pq.write_table(table, folder / "words.parquet")


def _make_cliques(folder: Path) -> None:
    StoredTree(NETWORK).propagate({}).save(folder)


def _ask_cliques(folder: Path) -> None:
    cliques = load_cliques(folder)
    for variable in cliques.variables:
        cliques.posterior(variable.name)


def _make_encoded(folder: Path) -> None:
    table = as_arrow({"b": [1.0] * 3, NAMES[0]: ["0", None, "1"], NAMES[1]: [[1.0] * SIZES[1], None, None]})
    write_partition(encode_table(table, NETWORK, keep=["b"], ignore_extra=True), NETWORK, folder / "part-00000.parquet")


def _job(folder: Path) -> Job:
    paths = (str(folder / name) for name in ("net.bif", "evidence.parquet", "out"))
    return Job(*paths, partition_rows=8, csv=True)


def _make_run(folder: Path, unfinished: bool) -> None:
    write_network(NETWORK, folder / "net.bif")
    _write_evidence(folder, "evidence.parquet")
    job = _job(folder)
    run(job, HERE)
    if unfinished:
        job.directory.manifest.unlink()
        job.directory.answers_part("posteriors", 1).unlink()


def _forget() -> None:
    # What a process keeps from partition to partition would hide what is damaged.
    for kept in (
        partition.tables_of,
        partition.engine_of,
        hmm_run.model_for,
        hmm_run.engine_for,
    ):
        kept.cache_clear()
    partition._network = None


def _go_on(folder: Path) -> None:
    _forget()
    job = _job(folder) if (folder / "net.bif").exists() else _sequence_job(folder)
    run(job, HERE)
    read_manifest(job.directory)


def _sequence_job(folder: Path) -> hmm_run.SequenceJob:
    paths = (str(folder / name) for name in ("model.json", "words.parquet", "out"))
    return hmm_run.SequenceJob(*paths, partition_rows=2)


def _make_sequence_run(folder: Path, unfinished: bool) -> None:
    write_model(_model(), folder / "model.json")
    _write_sequences(folder)
    job = _sequence_job(folder)
    run(job, HERE)
    if unfinished:
        job.directory.manifest.unlink()
        job.directory.answers_part("viterbi", 1).unlink()


def _junctor(*args: str) -> None:
    """Call the command line; a refusal is an error of ours, anything but an exit code of ours a failure."""
    result = junctor_cli(*args)
    if isinstance(result.exception, Exception):
        raise result.exception
    assert result.exit_code in (0, 3, 4, 5, 6, 7), result.output
    assert "Traceback" not in result.output
    if result.exit_code:
        raise JunctorError(result.output)


def _ask_records(folder: Path) -> None:
    """Call all that read the records of a run; a refusal by one of them is one by all."""
    out = str(folder / "out")
    asked = [partial(_junctor, "status", out), partial(_junctor, "verify", out), partial(outcome, out)]
    # Increments have no end of their own.
    if not (folder / "inputs").exists():
        asked.append(partial(_junctor, "finalise", out))
    _all_of([*asked, partial(read_answers, out)])


def _all_of(calls: Sequence[Callable[[], object]]) -> None:
    """Make calls, whatever becomes of those before; raises the last refusal."""
    refusal = None
    for call in calls:
        try:
            call()
        except JunctorError as error:
            refusal = error
    if refusal is not None:
        raise refusal


def _make_increments(folder: Path) -> None:
    write_network(NETWORK, folder / "net.bif")
    for day in ("22", "23"):
        (folder / "in" / f"date=2026-11-{day}").mkdir(parents=True)
        _write_evidence(folder / "in" / f"date=2026-11-{day}", "t.parquet")
        _run_increment(folder)
    # Copies are other folders, which a run takes for its own where that is gone.
    (folder / "in").rename(folder / "inputs")


def _run_increment(folder: Path) -> None:
    inputs = "in" if (folder / "in").exists() else "inputs"
    paths = (str(folder / name) for name in ("net.bif", inputs, "out"))
    run(Job(*paths, partition_rows=16, incremental=True, ignore_extra=True), HERE)


def _go_on_with_increments(folder: Path) -> None:
    _forget()
    _all_of([partial(_run_increment, folder), partial(_ask_records, folder)])


MAPPING: dict[str, Any] = {
    "ignore": ["comment", "case_id"],
    "columns": {"first": NAMES[0], "second": NAMES[2]},
    "variables": {
        NAMES[0]: {"states": {"ja": "0", "nein": "1"}, "missing": ["-9", 7, -9.5], "other_is_missing": True},
        NAMES[1]: {"edges": [0, 1.5, float("inf")], "labels": ["0", "1"], "factor": 2.0, "offset": -1},
        NAMES[3]: {"edges": [0, 2, 4], "labels": ["1", "0"], "outside": "0", "outside_is_missing": False},
    },
}


def _make_mapping(folder: Path) -> None:
    (folder / "mapping.toml").write_text(toml_of(MAPPING))
    _write_evidence(folder, "t.csv")
    text = (folder / "t.csv").read_text().replace(NAMES[0], "first", 1).replace(NAMES[2], "second", 1)
    (folder / "t.csv").write_text(text)


def _read_mapped(folder: Path) -> None:
    options = {"mapping": folder / "mapping.toml", "ignore_extra": True}
    for part in open_evidence(folder / "t.csv", NETWORK, **options).partitions(7):  # type: ignore[arg-type]
        _check(part)


def _make_measurements(folder: Path) -> None:
    _, shipped = next(pair for pair in dataset.shipped_files() if not pair[0].is_gpu)
    rows = {row.backend: [] for row in dataset.read(shipped)}  # type: ignore[var-annotated]
    for row in dataset.read(shipped):
        rows[row.backend].append(row)
    few = [row for backend in sorted(rows)[:3] for row in rows[backend][:8]]
    (folder / "junctor" / "measured").mkdir(parents=True)
    dataset.write(
        dataset.MeasuredDevice("my cpu"), "2026-01-01", few, folder / "junctor" / "measured" / "my-cpu.parquet"
    )


def _use_measurements(folder: Path) -> None:
    os.environ["XDG_CACHE_HOME"] = str(folder)
    local_cost_models.cache_clear()
    try:
        for model in local_cost_models().devices[:1]:
            for backend in sorted(model.coefficients)[:3]:
                assert all(0 <= seconds < float("inf") for seconds in model.coefficients[backend].work)
        # A damaged file is passed over.
        local_cost_models().cpu("my cpu")
    except JunctorError as error:
        raise AssertionError(f"not passed over: {error}") from error
    finally:
        del os.environ["XDG_CACHE_HOME"]


def _make_cache(folder: Path) -> None:
    cache = Cache(folder)
    cache.write("overlap", "key", OVERLAP.to_bytes(Overlap(2, 3)))
    cache.write("network", "key", store.to_bytes(NETWORK))


def _use_cache(folder: Path) -> None:
    try:
        assert Cache(folder).read("overlap", "key", OVERLAP.read) in (None, (2, 3))
        network = Cache(folder).read("network", "key", store.read)
        assert network is None or network.digest == NETWORK.digest
    except JunctorError as error:
        raise AssertionError(f"not passed over: {error}") from error


EVIDENCE = (
    "t.csv",
    "t.tsv",
    "t.csv.gz",
    "t.cas",
    "t.txt",
    "t.parquet",
    "t.arrow",
    "t.arrows",
    "t.evid",
    "several.evid",
    "several.evid.gz",
)
MODELS = {"m.json": False, "m.json.gz": True, "m.parquet": False, "sparse.parquet": True}
KINDS: dict[str, Kind] = {
    **{f"network-{ending}": _network(ending, content) for ending, content in CONTENT.items()},
    "network-bif.gz": _network("bif.gz", CONTENT["bif"]),
    **{
        f"evidence-{name}": Kind(partial(_write_evidence, name=name), partial(_read_evidence, name=name))
        for name in EVIDENCE
    },
    **{
        f"model-{name}": Kind(
            lambda folder, name=name, sparse=sparse: write_model(_model(sparse), folder / name),  # type: ignore[misc]
            lambda folder, name=name: read_model(folder / name),  # type: ignore[misc]
        )
        for name, sparse in MODELS.items()
    },
    "sequences": Kind(
        _write_sequences, lambda folder: [*open_sequences(folder / "words.parquet", _model()).partitions(2, 10)]
    ),
    "cliques": Kind(_make_cliques, _ask_cliques),
    "encoded": Kind(_make_encoded, lambda folder: _check(read_partition(folder / "part-00000.parquet", NETWORK, True))),
    "footer-evidence": Kind(
        partial(_write_evidence, name="t.parquet"), partial(_read_evidence, name="t.parquet"), mutate=mutated_footer
    ),
    "footer-sequences": Kind(
        _write_sequences,
        lambda folder: [*open_sequences(folder / "words.parquet", _model()).partitions(2, 10)],
        mutate=mutated_footer,
    ),
    "footer-model": Kind(
        lambda folder: write_model(_model(True), folder / "m.parquet"),
        lambda folder: read_model(folder / "m.parquet"),
        mutate=mutated_footer,
    ),
    # With the seal of what it says: that of a damaged file is none.
    "footer-network": Kind(
        lambda folder: write_network(NETWORK, folder / "net.parquet"),
        lambda folder: read_network(folder / "net.parquet"),
        mutate=_resealed_footer,
    ),
    "footer-answers": Kind(
        partial(_make_run, unfinished=False),
        lambda folder: pa.Table.from_batches([*answer_batches(folder / "out")]),
        ("out/posteriors/*.parquet",),
        0.5,
        mutated_footer,
    ),
    "footer-measurements": Kind(_make_measurements, _use_measurements, share=0.1, mutate=mutated_footer),
    "mapping": Kind(_make_mapping, _read_mapped, ("mapping.toml",)),
    "manifest": Kind(partial(_make_run, unfinished=False), _ask_records, ("out/manifest.json",), 0.1),
    "records": Kind(partial(_make_run, unfinished=False), _ask_records, ("out/**/*.json",), 0.1),
    "records-sequences": Kind(partial(_make_sequence_run, unfinished=False), _ask_records, ("out/**/*.json",), 0.1),
    "records-increments": Kind(_make_increments, _go_on_with_increments, ("out/**/*.json",), 0.05),
    "run-unfinished": Kind(partial(_make_run, unfinished=True), _go_on, ("out/**/*",), 0.1),
    "run-finished": Kind(partial(_make_run, unfinished=False), _go_on, ("out/*.json", "out/evidence/*.json"), 0.1),
    "run-sequences": Kind(partial(_make_sequence_run, unfinished=True), _go_on, ("out/**/*",), 0.1),
    "measurements": Kind(_make_measurements, _use_measurements, share=0.1),
    "cache": Kind(_make_cache, _use_cache),
}
