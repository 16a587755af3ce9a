"""Tables with a row for each step: which rows make a sequence, in which order, and what leaves that unclear."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from helpers.command_line import junctor_cli
from helpers.hmm_models import random_model, sensor_model
from hypothesis import given
from hypothesis import strategies as st
from junctor.hmm import build_model, learn, posteriors, read_model, viterbi, write_model
from junctor.hmm import step_tables as module
from junctor.hmm.columns import SequenceColumns
from junctor.hmm.model import HiddenMarkovModel
from junctor.hmm.sequences import encode_sequences, open_sequences
from junctor.model.errors import EvidenceError, InputError
from pyarrow import parquet

WORDS = ["one", "two", "three"]
ROWS = "who,day,x,mood\nb,2,two,cold\na,1,one,\nb,1,three,hot\na,3,three,cold\na,2,,hot\n"
NAMES: Any = {"case_id": "who", "step": "day", "column": "x"}


def named() -> HiddenMarkovModel:
    model = random_model(2, 3)
    return build_model(model.start, model.transition, model.emission, ["hot", "cold"], WORDS)


def frame() -> pd.DataFrame:
    return pd.DataFrame([line.split(",") for line in ROWS.split()[1:]], columns=ROWS.split()[0].split(","))


def found(table: Any, **names: Any) -> dict[Any, Any]:
    """Symbols of each sequence by its case id, or why it is invalid."""
    encoded = encode_sequences(table, named(), names=SequenceColumns(**{**NAMES, **names}))
    batch = encoded.batch
    assert batch.symbols is not None
    lists = [part.tolist() for part in np.split(batch.symbols, batch.starts[1:-1])]
    reasons = batch.invalid or {}
    return {key: reasons.get(n, lists[n]) for n, key in enumerate(encoded.case_ids.to_pylist())}


@given(
    st.lists(st.lists(st.integers(-1, 2), min_size=1, max_size=5), min_size=1, max_size=5),
    st.randoms(use_true_random=False),
    st.sampled_from([int, float, str, "time"]),
)
def test_rows_in_any_order_are_the_lists(sequences: list[list[int]], random: Any, kind: Any) -> None:
    rows: list[Any] = [
        {"who": n, "day": 8 + step, "x": None if symbol < 0 else WORDS[symbol]}
        for n, each in enumerate(sequences)
        for step, symbol in enumerate(each)
    ]
    random.shuffle(rows)
    table = pd.DataFrame(rows)
    # As text 10 comes before 8.
    table["day"] = pd.to_datetime(table["day"], unit="D") if kind == "time" else table["day"].astype(kind)
    assert found(table) == dict(enumerate(sequences))


@pytest.mark.parametrize("name", ["s.csv", "s.tsv", "s.csv.gz", "s.parquet", "s.arrow", "folder"])
def test_files_with_a_row_for_each_step(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "folder":
        # A sequence may go on in the next file.
        path.mkdir()
        lines = ROWS.splitlines(keepends=True)
        (path / "1.csv").write_text("".join(lines[:3]))
        (path / "2.csv").write_text("".join([lines[0], *lines[3:]]))
    elif name == "s.csv.gz":
        path.write_bytes(gzip.compress(ROWS.encode()))
    elif name == "s.parquet":
        table = pa.table({key: cells.replace("", None) for key, cells in frame().items()})
        parquet.write_table(table.set_column(1, "day", pa.array([2, 1, 1, 3, 2])), path, row_group_size=2)
    elif name == "s.arrow":
        with pa.ipc.new_file(path, pa.Table.from_pandas(frame()).schema) as writer:
            writer.write_table(pa.Table.from_pandas(frame()), 2)
    else:
        path.write_text(ROWS.replace(",", "\t") if name == "s.tsv" else ROWS)
    (part,) = open_sequences(path, named(), SequenceColumns("x", "who", "day", labels="mood")).partitions(9, 99)
    assert part.case_ids.to_pylist() == ["b", "a"]
    assert part.batch.symbols is not None
    assert part.batch.labels is not None
    assert part.batch.symbols.tolist() == [2, 1, 0, -1, 2]
    assert part.batch.labels.tolist() == [0, 1, -1, 0, 1]
    halves = list(open_sequences(path, named(), SequenceColumns("x", "who", "day")).partitions(1, 99))
    assert [half.batch.lengths.tolist() for half in halves] == [[2], [3]]


def test_answers_of_the_command_and_of_the_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(named(), "model.json")
    Path("s.csv").write_text(ROWS)
    names = ("--case-id", "who", "--step", "day", "--column", "x")
    run = junctor_cli("viterbi", "model.json", "s.csv", "-o", "out", *names, "--no-prefect")
    assert run.exit_code == 0, run.output
    wanted = viterbi(named(), [["three", "two"], ["one", None, "three"]])
    for answers in (parquet.read_table("out/viterbi"), viterbi(named(), frame(), **NAMES)):
        assert answers["case_id"].to_pylist() == ["b", "a"]
        assert answers["path"].to_pylist() == wanted["path"].to_pylist()
        assert answers["log_probability"].to_pylist() == wanted["log_probability"].to_pylist()
    run = junctor_cli("viterbi", "model.json", "s.csv", "-o", "out", *names, "--gaps", "ignore", "--no-prefect")
    assert "gaps was 'invalid', now 'ignore'" in run.stderr
    smooth = posteriors(named(), frame(), **NAMES)["log_likelihood"].to_pylist()
    assert smooth == posteriors(named(), [["three", "two"], ["one", None, "three"]])["log_likelihood"].to_pylist()
    run = junctor_cli("learn-chain", "model.json", "s.csv", "-o", "fitted.json", *names, "--labels", "mood")
    assert run.exit_code == 0, run.output
    assert "labels: of 4 of 5 steps" in run.stdout
    fitted = learn(named(), frame(), labels="mood", **NAMES).model
    assert read_model("fitted.json").digest == fitted.digest
    lists = learn(named(), [["three", "two"], ["one", None, "three"]], labels=[["hot", "cold"], [None, "hot", "cold"]])
    assert lists.model.digest == fitted.digest


def test_without_steps_rows_follow_each_other() -> None:
    ordered = frame().sort_values(["who", "day"])
    assert found(ordered, step=None) == {"a": [0, -1, 2], "b": [2, 1]}
    with pytest.raises(
        EvidenceError, match=r"^row 3: sequence 'b' goes on behind rows of others: --step names the col"
    ):
        found(frame(), step=None)
    # The rows of a table without case ids are one sequence.
    assert found(ordered.iloc[:3], case_id=None) == {0: [0, -1, 2]}
    assert found(ordered.rename(columns={"who": "case_id"}), case_id=None) == {"a": [0, -1, 2], "b": [2, 1]}


def test_gaps_in_numbers_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = frame().query("day != '2' or who == 'b'")
    said = "no row for step 2, before row 4: --gaps unobserved takes it as a step without observation, --gaps ignore"
    assert found(rows)["a"].startswith(said)
    assert found(rows)["b"] == [2, 1]
    assert found(rows, gaps="unobserved") == {"a": [0, -1, 2], "b": [2, 1]}
    assert found(rows, gaps="ignore") == {"a": [0, 2], "b": [2, 1]}
    assert found(rows.replace("3", "9"))["a"].startswith("no row for step 2 to 8, before row 4: ")
    assert found(rows.replace("3", "3.5")) == {"a": [0, 2], "b": [2, 1]}
    with pytest.raises(EvidenceError, match="--gaps unobserved: steps are no whole numbers"):
        found(rows.replace("3", "3.5"), gaps="unobserved")
    monkeypatch.setattr(module, "MOST_UNOBSERVED", 10)
    with pytest.raises(EvidenceError, match=r"4 rows would become 1e\+09 steps: are these numbers of steps\?"):
        found(rows.replace("3", "1000000000"), gaps="unobserved")
    with pytest.raises(InputError, match="--gaps is for a table with a row for each step"):
        found(rows, step=None, gaps="ignore")
    with pytest.raises(InputError, match="found gaps 'fill', expected 'invalid' or 'unobserved' or 'ignore'"):
        found(rows, gaps="fill")


def test_steps_that_are_unclear_make_a_sequence_invalid() -> None:
    rows = frame()
    assert found(rows.replace("3", "1")) == {"b": [2, 1], "a": "row 2 and row 4 are the same step"}
    assert found(rows.replace("3", "NA"))["a"] == "row 4: no step in column 'day'"
    reasons = found(rows.replace("three", "four"))
    assert [reasons[key].partition(";")[0] for key in "ba"] == [f"row {n}: unknown symbol 'four'" for n in (3, 4)]
    rows.loc[3, "mood"] = "wet"
    assert learn(named(), rows, labels="mood", **NAMES).reasons == {
        1: "row 4: label: unknown state 'wet'; states are hot, cold"
    }


@pytest.mark.parametrize(
    ("changes", "names", "message"),
    [
        ({"who": ["b", "", "b", "a", "a"]}, {}, "row 2: column 'who': found no case id"),
        (
            {"day": ["2", "1", "x", "3", "2"]},
            {},
            "row 3: column 'day': found 'x', expected whole numbers, numbers, or t",
        ),
        ({"day": ["2", "1", "2026-11-29", "3", "2"]}, {}, "column 'day': found cells of several kinds, expected whole"),
        ({"day": [[1]] * 5}, {}, "--step is for a table with a row for each step, this one has a column of lists"),
        ({"day": [True] * 5}, {}, "row 1: column 'day': found True, expected whole numbers"),
        ({}, {"column": None}, r"found the columns \['x', 'mood'\], expected one of symbols: --column names it"),
        ({}, {"column": "y"}, "no column 'y'"),
        ({}, {"case_id": "whom"}, "no column 'whom', did you mean 'who'"),
        ({}, {"case_id": None, "step": None}, "found no column of lists; where rows are steps, --case-id names the"),
    ],
)
def test_tables_that_are_unclear_are_refused(
    tmp_path: Path, changes: dict[str, Any], names: dict[str, Any], message: str
) -> None:
    table = frame().assign(**changes)
    with pytest.raises(EvidenceError, match=message):
        found(table, **names)
    table.to_parquet(tmp_path / "s.parquet")
    with pytest.raises(EvidenceError, match=rf"s\.parquet: .*{message.split('found no col')[0]}"):
        open_sequences(tmp_path / "s.parquet", named(), SequenceColumns(**{**NAMES, **names}))


def test_times_of_steps() -> None:
    for kinds in (
        ["2026-11-29 10:30", "2026-01-01", "2026-11-29 09:59:59", "2026-03-01", "2026-02-01"],
        [
            "2026-11-29T10:30:00Z",
            "2026-01-01T00:00:00Z",
            "2026-11-29T10:30:00+02:00",
            "2026-03-01T00:00:00Z",
            "2026-02-01T00:00:00Z",
        ],
        pa.array([5, 1, 4, 3, 2], pa.time32("s")),
        pa.array([5, 1, 4, 3, 2], pa.date32()),
        pa.array([5, 1, 4, 3, 2], pa.duration("ms")),
    ):
        table = pa.Table.from_pandas(frame()).set_column(
            1, "day", pa.array(kinds) if isinstance(kinds, list) else kinds
        )
        assert found(table) == {"b": [2, 1], "a": [0, -1, 2]}


def test_rows_of_several_files_are_named(tmp_path: Path) -> None:
    lines = ROWS.replace("three,hot", "four,hot").splitlines(keepends=True)
    (tmp_path / "1.csv").write_text("".join(lines[:3]))
    (tmp_path / "2.csv").write_text("".join([lines[0], *lines[3:]]))
    names = SequenceColumns("x", "who", "day")
    (part,) = open_sequences(tmp_path, named(), names).partitions(9, 99)
    assert part.batch.invalid is not None
    assert part.batch.invalid[0].startswith(f"row 1 of {tmp_path / '2.csv'}: unknown symbol 'four'")
    with pytest.raises(EvidenceError, match=r"1\.csv: sequence 'b': row 1 of .*2\.csv: unknown symbol 'four'"):
        list(open_sequences(tmp_path, named(), names, strict=True).partitions(9, 99))
    (tmp_path / "2.csv").write_text("who,x\na,one\n")
    with pytest.raises(EvidenceError, match=r"2\.csv: found the columns \['who', 'x'\], but in .*1\.csv \['who'"):
        open_sequences(tmp_path, named(), names)


def test_weights_of_sequences(tmp_path: Path) -> None:
    table = frame().assign(w=["2", "0.5", "2", "0.5", "0.5"])
    table.to_csv(tmp_path / "s.csv", index=False)
    names = SequenceColumns("x", "who", "day", weight="w")
    assert open_sequences(tmp_path / "s.csv", named(), names).weights("w").tolist() == [2, 0.5]
    table.assign(w=["2", "1", "2", "1", "3"]).to_csv(tmp_path / "s.csv", index=False)
    with pytest.raises(EvidenceError, match=r"row 5: column 'w': found '3', but '1' in row 2 of the same sequence"):
        open_sequences(tmp_path / "s.csv", named(), names)


def test_impossible_sequences_go_by_their_case_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(build_model([1], [[1]], [[1, 0]], symbols=["one", "two"]), "model.json")
    Path("s.csv").write_text("case_id,t,x\nu,1,one\nv,1,two\nv,2,one\n")
    run = junctor_cli("learn-chain", "model.json", "s.csv", "-o", "fitted.json", "--step", "t")
    assert run.exit_code == EvidenceError.exit_code
    assert "sequence 'v' is impossible by zeros of the model" in run.stderr


def test_a_table_without_rows(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text("case_id,t,x\n")
    source = open_sequences(tmp_path / "s.csv", named(), SequenceColumns(step="t"))
    assert sum(len(part.batch) for part in source.partitions(9, 9)) == 0
    assert source.no_case_ids.type == pa.string()


@pytest.mark.parametrize("ends", ["", "_1", "'"])
def test_sensors_in_columns_of_their_own(tmp_path: Path, ends: str) -> None:
    bare = sensor_model(0, (2, 2))
    model = build_model(
        bare.start,
        bare.transition,
        bare.emission,
        sensors={f"Noise{ends}": ["low", "loud"], f"Heat{ends}": ["ok", "hot"]},
    )
    words = [["loud,hot", "loud,", ",ok"], [None, "low,hot"]]
    wanted = encode_sequences(words, model).batch
    noise: Any = [["loud", "loud", None], ["", "low"]]
    heat: Any = [["hot", None, "ok"], [None, "hot"]]
    rows = [
        {"who": n, "day": step, "Noise": sound, "Heat": warm}
        for n in range(2)
        for step, (sound, warm) in enumerate(zip(noise[n], heat[n], strict=True))
    ]
    parquet.write_table(pa.table({"Heat": heat, "Noise": noise}), tmp_path / "s.parquet", row_group_size=1)
    pd.DataFrame(rows).to_csv(tmp_path / "s.csv", index=False)
    names = SequenceColumns(case_id="who", step="day")
    records = [[{"Noise": row["Noise"], "Heat": row["Heat"]} for row in rows if row["who"] == n] for n in range(2)]
    batches = [
        encode_sequences({"Noise": noise, "Heat": heat}, model).batch,
        encode_sequences(pd.DataFrame(rows), model, names=names).batch,
        encode_sequences(records, model).batch,
        next(open_sequences(tmp_path / "s.parquet", model).partitions(9, 9)).batch,
        next(open_sequences(tmp_path / "s.csv", model, names).partitions(9, 9)).batch,
    ]

    def seen(batch: Any) -> list[Any]:
        return [batch.partial[s - 4].tolist() if s >= 4 else s for s in batch.symbols.tolist()]

    for batch in batches:
        assert (seen(batch), batch.lengths.tolist(), batch.invalid) == (seen(wanted), [3, 2], {})


def test_sensors_whose_columns_do_not_fit() -> None:
    model = sensor_model(0, (2, 2))
    table: dict[str, Any] = {"u": [["u0"], ["u1", "u0"], None, ["x"]], "v": [["v0"], ["v1"], None, ["v1"]]}
    assert encode_sequences(table, model).batch.invalid == {
        1: "found lists of 2 and 1 steps in the columns of the sensors, expected one number",
        2: "there is no sequence",
        3: "step 0: unknown u state 'x'; u states are u0, u1",
    }
    for sequences in ({"u": [["u0"]], "w": [["v0"]]}, [[{"u": "u0", "w": "v0"}]]):
        with pytest.raises(EvidenceError, match=r"found columns of \['u'\], but none of 'v'"):
            encode_sequences(sequences, model)
    for records in ([[{"u": "u0", "v": "v0", "w": 1}]], [[{"a": 1}]]):
        with pytest.raises(EvidenceError, match=r"found records of \[.*\] for the steps, expected \['u', 'v'\]"):
            encode_sequences(records, model)
