from __future__ import annotations

import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import junctor
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from helpers.engine_cases import complete
from helpers.figures import set_figures
from helpers.files import ASIA
from junctor.engine.engine import Engine
from junctor.engine.forecast import forecast
from junctor.evidence.batch import EvidenceBatch
from junctor.generate import chain, random_network
from junctor.hmm import engine as hmm_engine
from junctor.hmm.model import HiddenMarkovModel
from junctor.model.errors import BudgetError, EvidenceError, JunctorError
from junctor.model.query import Query
from junctor.runs.results import default_partition_rows, statuses_of
from junctor.runtime.machine import compute_options

ROWS = [{"smoke": "yes", "xray": "no"}, {"asia": "yes"}, {}]


@pytest.fixture(scope="module")
def asia() -> junctor.Network:
    return junctor.read_network(ASIA)


@pytest.mark.parametrize(
    "evidence",
    [
        ROWS,
        {"smoke": ["yes", None, None], "xray": ["no", None, None], "asia": [None, "yes", None]},
        pd.DataFrame(ROWS),
        pa.Table.from_pylist([{**dict.fromkeys(["smoke", "xray", "asia"]), **row} for row in ROWS]),
    ],
    ids=["rows", "columns", "pandas", "arrow"],
)
def test_any_table_will_do(asia: junctor.Network, evidence: object) -> None:
    table = junctor.posteriors(asia, evidence, ["lung", "smoke"])
    assert table.column_names == ["case_id", "lung", "smoke", "log_evidence", "status", "reason"]
    assert table["status"].to_pylist() == ["ok"] * 3
    assert table["smoke"].to_pylist()[0] == [1.0, 0.0]
    # P(lung = yes) = 0.5 * 0.1 + 0.5 * 0.01, from the published tables.
    np.testing.assert_allclose(table["lung"].to_pylist()[2], [0.055, 0.945], atol=1e-12)
    np.testing.assert_allclose(table["log_evidence"].to_pylist()[1:], [np.log(0.01), 0.0], atol=1e-12)


def test_explanations(asia: junctor.Network) -> None:
    table = junctor.most_probable(ASIA, ROWS, "lung")
    assert table.column_names == ["case_id", "lung", "log_probability", "status", "reason"]
    assert table["lung"].to_pylist() == ["no"] * 3
    full = junctor.most_probable(asia, ROWS)
    assert full["smoke"].to_pylist()[0] == "yes"


def test_explanations_have_the_resources_of_posteriors(tmp_path: Path) -> None:
    wide = random_network(14, seed=3, states=3, parents=3)
    options: dict[str, Any] = {"device": "cpu", "device_memory": "40KiB", "spill": tmp_path, "disk": "1GiB"}
    rows = [{}, {"x_5": "1"}]
    found, expected = junctor.most_probable(wide, rows, **options), junctor.most_probable(wide, rows)
    model = junctor.Model(wide).most_probable(rows, **options)
    assert model.equals(found)
    np.testing.assert_allclose(found["log_probability"].to_pylist(), expected["log_probability"].to_pylist())
    with pytest.raises(BudgetError):
        junctor.most_probable(wide, rows, device="cpu", device_memory=8)


@pytest.mark.parametrize("precision", ["double", "single", "log"])
def test_precisions(asia: junctor.Network, precision: str) -> None:
    table = junctor.posteriors(asia, ROWS, precision=precision)  # type: ignore[arg-type]
    number = pa.float32() if precision == "single" else pa.float64()
    assert table.schema.field("dysp").type.value_type == number


def test_modules_show_their_names_before_they_are_used() -> None:
    assert set(junctor.hmm.__all__) <= set(dir(junctor.hmm))
    assert set(junctor.__all__) <= set(dir(junctor))


def test_a_long_table_is_taken_in_pieces(asia: junctor.Network, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = junctor.posteriors(asia, ROWS * 5)
    monkeypatch.setattr("junctor.runs.results.PARTITION_ROWS", 4)
    assert default_partition_rows(asia, junctor.api.Query()) == 4
    # A network of its own, for which nothing is prepared yet.
    pieces = junctor.posteriors(ASIA, ROWS * 5)
    assert pieces["case_id"].to_pylist() == list(range(15)) == whole["case_id"].to_pylist()
    for name in whole.column_names:
        assert pieces[name].to_pylist() == whole[name].to_pylist()
    # The metadata counts the rows of all pieces.
    assert sum(statuses_of(pieces.schema).values()) == 15
    assert pieces.schema.equals(whole.schema, check_metadata=True)


@pytest.mark.parametrize("rows", [3, 200])
@pytest.mark.parametrize("make", [dict, pd.DataFrame])
def test_answers_stay_what_they_are_when_their_evidence_changes(asia: junctor.Network, make: Any, rows: int) -> None:
    ids, weight = np.arange(rows), np.arange(rows, dtype=np.float64)
    evidence = make({"case_id": ids, "weight": weight, "smoke": ["yes"] * rows})
    for answers in (
        junctor.posteriors(asia, evidence, ["lung"], keep=["weight"]),
        junctor.posteriors(asia, evidence, ["lung"], ignore_extra=True),
    ):
        before = answers.to_pydict()
        for name in ("case_id", "weight"):
            if isinstance(evidence, dict):
                evidence[name] += 1
            else:
                evidence.loc[:, name] += 1
        assert answers.to_pydict() == before


@pytest.mark.parametrize("rows", [1, 200])
def test_halves_of_characters_are_no_states(asia: junctor.Network, rows: int) -> None:
    # As `json.loads` returns them.
    evidence = {"case_id": ["\ud800"] * rows + ["b"], "smoke": ["\ud800"] * rows + ["yes"]}
    answers = junctor.posteriors(asia, evidence, ["lung"])
    assert answers["status"].to_pylist() == ["invalid"] * rows + ["ok"]
    assert "unknown state" in answers["reason"][0].as_py()
    assert answers["case_id"].to_pylist()[-1] == "b"
    (alone,) = junctor.posteriors(asia, [{"smoke": "\ud800"}], ["lung"])["status"].to_pylist()
    assert alone == "invalid"
    with pytest.raises(junctor.EvidenceError, match=r"unknown column '\\\\ud800'"):
        junctor.posteriors(asia, [{"\ud800": "yes"}])


def test_no_rows_have_the_columns(asia: junctor.Network) -> None:
    table = junctor.posteriors(asia, [])
    assert table.num_rows == 0
    assert table.schema.field("lung").type == pa.list_(pa.float64(), 2)


def test_no_columns_are_priors(asia: junctor.Network) -> None:
    assert junctor.posteriors(asia, [{}, {}])["lung"].to_pylist() == [pytest.approx([0.055, 0.945])] * 2


def test_errors_are_ours(asia: junctor.Network) -> None:
    with pytest.raises(junctor.EvidenceError, match="unknown target 'lungs', did you mean 'lung'"):
        junctor.posteriors(asia, ROWS, ["lungs"])
    with pytest.raises(junctor.EvidenceError, match="smok"):
        junctor.posteriors(asia, [{"smok": "yes"}])
    assert junctor.posteriors(asia, [{"smok": "yes"}], ignore_extra=True).num_rows == 1
    with pytest.raises(junctor.EvidenceError, match="perhaps"):
        junctor.posteriors(asia, [{"smoke": "perhaps"}], strict=True)
    with pytest.raises(junctor.BudgetError, match="allowed are"):
        junctor.posteriors(asia, ROWS, memory=1000)
    with pytest.raises(junctor.ModelError, match="nowhere"):
        junctor.posteriors("nowhere.bif", ROWS)
    assert issubclass(junctor.ModelError, junctor.InputError)
    with pytest.raises(AttributeError, match="no attribute 'posterior'"):
        junctor.posterior  # noqa: B018


def test_public_names() -> None:
    for name in junctor.__all__:
        assert getattr(junctor, name).__name__ == name
        assert name in dir(junctor)
    assert junctor.__version__


def test_neither_prefect_nor_dask_is_imported() -> None:
    script = (
        "import sys, junctor\n"
        "assert 'numpy' not in sys.modules, 'import junctor has to be light'\n"
        f"junctor.posteriors({str(ASIA)!r}, [{{'smoke': 'yes'}}])\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'prefect', 'dask', 'distributed', 'typer'}))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"precision": "half"}, "found precision 'half', expected 'double' or 'single' or 'log'"),
        ({"memory": "much"}, "found the size 'much'"),
        ({"memory": -1}, "found the size '-1'"),
        ({"targets": []}, "no targets given"),
        ({"threads": 0}, "found 0 threads, expected at least one"),
    ],
)
def test_bad_arguments_are_ours(arguments: dict, message: str) -> None:
    with pytest.raises(JunctorError, match=message):
        junctor.posteriors(ASIA, {"asia": [None]}, **arguments)


def test_what_is_no_device_is_refused(asia: junctor.Network) -> None:
    with pytest.raises(JunctorError, match="found device 'tpu', expected cpu or gpu or auto"):
        junctor.posteriors(asia, [{}], device="tpu")
    with pytest.raises(JunctorError, match="found device 'tpu', expected cpu or gpu or auto"):
        junctor.most_probable(asia, [{}], device="tpu")


def test_impossible_rows_say_which_findings_contradict_each_other(asia: junctor.Network) -> None:
    evidence = {"lung": ["yes", "yes", "no"], "smoke": ["no", "yes", "no"], "either": ["no", "yes", None]}
    table = junctor.posteriors(asia, evidence, ["xray"])
    assert table["status"].to_pylist() == ["impossible", "ok", "ok"]
    assert table["reason"].to_pylist() == ["impossible: lung = yes with either = no", None, None]
    assert junctor.most_probable(asia, evidence)["reason"].to_pylist() == table["reason"].to_pylist()


def test_a_mapping_without_columns_has_no_number_of_rows(asia: junctor.Network) -> None:
    with pytest.raises(JunctorError, match=r"found no columns, so no number of rows; \[\{\}\] is one row without"):
        junctor.posteriors(asia, {})
    assert junctor.posteriors(asia, [{}]).num_rows == 1
    assert junctor.posteriors(asia, []).num_rows == 0


def test_a_row_without_evidence_alone_and_among_others(asia: junctor.Network) -> None:
    # Other routes add in another order: equal to rounding, as the numbers page says.
    alone = junctor.posteriors(asia, [{}])["log_evidence"].to_pylist()[0]
    others = junctor.posteriors(asia, [{}, {"smoke": "yes"}, {"xray": "no", "asia": "yes"}] * 100)["log_evidence"]
    assert abs(alone) < 1e-14
    assert max(map(abs, others.to_pylist()[::3])) < 1e-14


def test_parts_of_the_package_need_no_import_of_their_own() -> None:
    code = "import junctor; print(junctor.generate.random_network, junctor.hmm.viterbi)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert {"generate", "hmm"} <= set(dir(junctor))


class OwnType(pa.ExtensionType):
    """A type of a user, which has no hash, as any such type in Python."""

    def __init__(self) -> None:
        super().__init__(pa.string(), "junctor.tests.own")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> OwnType:
        return cls()


def test_types_of_users_are_told_or_kept() -> None:
    own = pa.ExtensionArray.from_storage(OwnType(), pa.array(["yes"]))
    with pytest.raises(EvidenceError, match=r"column 'smoke': found cells of type .*own.*, expected text or numbers"):
        junctor.posteriors(ASIA, pa.table({"smoke": own}))
    with pytest.raises(EvidenceError, match=r"case ids of type .*own.* cannot be carried through"):
        junctor.posteriors(ASIA, pa.table({"case_id": own}))
    kept = junctor.posteriors(ASIA, pa.table({"note": own}), ["lung"], keep=["note"])
    assert kept.schema.field("note").type == own.type


def test_long_integers_are_told() -> None:
    (row,) = junctor.posteriors(ASIA, {"smoke": [10**30]}).to_pylist()
    assert (row["status"], "unknown state '1000" in row["reason"]) == ("invalid", True)
    with pytest.raises(EvidenceError, match="column 'smoke' has a number that is too long"):
        junctor.posteriors(ASIA, {"smoke": [10**5000]})


@pytest.mark.parametrize(("length", "limit"), [(30, None), (33, "none"), (60, None)])
def test_what_fits_the_memory_and_takes_years_is_refused(length: int, limit: str | None) -> None:
    """A clique without neighbours has no messages: it needs no memory, and as many operations as it has entries."""
    network = complete(*[11] * length)
    said = f"a row is forecast to take .* years, allowed are {'24 h' if limit is None else '3.2 years'} .*--time-limit"
    with pytest.raises(BudgetError, match=f"{said}.*; give evidence on more variables$"):
        junctor.most_probable(network, [{}], device="cpu", time_limit=limit)
    with pytest.raises(BudgetError, match=f"{said}.*; ask for fewer targets"):
        junctor.posteriors(network, [{}], ["x0"], device="cpu", time_limit=limit)
    with pytest.raises(BudgetError, match=said):
        junctor.joint_posteriors(network, [["x0", "x1"]], time_limit=limit)
    # What evidence leaves is small.
    rest = {f"x{v}": ["0"] for v in range(2, length)}
    assert junctor.most_probable(network, rest, device="cpu")["status"].to_pylist() == ["ok"]


def test_the_limit_is_that_of_a_row() -> None:
    network = complete(*[2] * 31)
    for limit, refused in ((1, True), ("1d", False)):
        engine = Engine(network, Query(targets=("x0",)), compute_options(device="cpu", time_limit=limit))
        (route,) = forecast(engine, EvidenceBatch(1))
        assert (route.refused is not None) == refused
        assert 1 < route.seconds < 86_400
    with pytest.raises(BudgetError, match=r"a row is forecast to take .*, allowed are 1 s \(--time-limit\)"):
        junctor.posteriors(network, [{}] * 2, ["x0"], device="cpu", time_limit=1)
    # Many rows may take longer than one is allowed.
    rows = {"x_0": ["0", "1"] * 200_000}
    answers = junctor.posteriors(chain(500, states=6), rows, ["x_499"], device="cpu", threads=1, time_limit="1s")
    assert set(answers["status"].to_pylist()) == {"ok"}


@pytest.mark.parametrize("limit", ["soon", 0.5, True, "10"])
def test_a_limit_is_a_time(asia: junctor.Network, limit: Any) -> None:
    with pytest.raises(BudgetError, match=r"found the time .*, expected"):
        junctor.posteriors(asia, ROWS, time_limit=limit)


def test_sequences_have_a_limit() -> None:
    model = HiddenMarkovModel(np.full(3, 1 / 3), np.full((3, 3), 1 / 3), np.full((3, 2), 0.5))
    # As if a core took ten million steps an hour.
    with pytest.MonkeyPatch.context() as patch:
        set_figures(patch, hmm_engine, walks={"transition": 1 / 25_000})
        sequences = [[0, 1], [0] * 10_000]
        said = r"a sequence of 10,000 steps is forecast to take 3\.6 s, allowed are 3 s"
        for answer in (junctor.hmm.viterbi, junctor.hmm.posteriors, junctor.hmm.learn):
            with pytest.raises(BudgetError, match=said):
                answer(model, sequences, device="cpu", time_limit=3)
        assert junctor.hmm.viterbi(model, sequences, device="cpu", time_limit="4s")["status"].to_pylist() == ["ok"] * 2


def test_an_explanation_of_a_clique_with_more_axes_than_arrays_have() -> None:
    few, many = complete(3, 2, 3), complete(3, 2, 3, *[1] * 70)
    expected, found = (
        junctor.most_probable(network, [{}], ["x0", "x1", "x2"], device="cpu") for network in (few, many)
    )
    assert found.select(["x0", "x1", "x2"]).equals(expected.select(["x0", "x1", "x2"]))


def test_answers_that_repeat_the_input_are_told(asia: junctor.Network) -> None:
    """Of targets that are named; rows without a label, invalid ones and likelihoods do not count."""
    rows = [{"lung": "yes"}, {"lung": "no", "smoke": "yes"}, {"smoke": "maybe", "lung": "no"}, {}]
    soft = {"smoke": ["yes"], "lung": [[0.2, 0.8]]}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        junctor.posteriors(asia, rows, ["lung", "dysp"])
        junctor.most_probable(asia, rows[:2], ["lung"])
        junctor.Model(asia).posteriors({"lung": ["no"]}, answers="scores", probabilities=["lung=yes"])
    hint = "(hide_targets=True takes targets as unobserved)"
    assert [str(each.message) for each in caught] == [
        f"target lung is observed in 2 of 3 rows: there its answers repeat the input {hint}",
        f"target lung is observed in all 2 rows: its answers repeat the input {hint}",
        f"target lung is observed in the only row: its answers repeat the input {hint}",
    ]
    # The line of the caller.
    assert {each.filename for each in caught} == {__file__}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        junctor.posteriors(asia, rows)
        junctor.posteriors(asia, soft, ["lung"])
        junctor.posteriors(asia, rows, ["lung"], hide_targets=True)
        junctor.posteriors(asia, rows, ["xray"])


@pytest.mark.parametrize(
    "options", [{"hide_targets": True}, {"mapping": {"hide_targets": True}}], ids=["option", "map"]
)
def test_hidden_targets_are_as_if_they_were_not_in_the_table(asia: junctor.Network, options: dict[str, Any]) -> None:
    rows = {"smoke": ["yes", None], "lung": ["yes", "a label of others"], "tub=yes": [0.1, 1.0], "tub=no": [-1.0, 0.0]}
    plain = {"smoke": rows["smoke"]}
    model = junctor.Model(asia)
    for ask in (partial(junctor.posteriors, asia), partial(junctor.most_probable, asia), model.posteriors):
        assert ask(rows, ["lung", "t*"], **options).equals(ask(plain, ["lung", "t*"]))
    scores: dict[str, Any] = {"answers": "scores", "probabilities": ["lung=yes"]}
    scored = junctor.posteriors(asia, rows, ["tub"], **scores, **options)
    assert scored.equals(junctor.posteriors(asia, plain, ["tub"], **scores))
    # The label comes along, and the column of another variable keeps its name.
    kept = junctor.posteriors(asia, rows, ["lung", "tub"], keep=["lung", "smoke"], **options)
    assert kept.column_names[:3] == ["case_id", "lung_", "smoke"]
    assert kept["lung_"].to_pylist() == rows["lung"]
    with pytest.raises(EvidenceError, match="none is named"):
        junctor.posteriors(asia, rows, **options)
