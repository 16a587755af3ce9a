"""`junctor learn-chain`: a model file and sequences in, the fitted model out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from helpers.command_line import junctor_cli
from helpers.hmm_models import random_model
from junctor.cli.fits import FitLines
from junctor.hmm import build_model, learn, learning_files, read_model, write_model
from junctor.learning import checkpoint
from junctor.learning.checkpoint import Checkpoint, LearnState
from junctor.learning.holdout import is_held_out
from junctor.runtime.devices import has_gpu
from pyarrow import parquet

FILES = ("model.parquet", "words.parquet", "-o", "fitted.json")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checkpoint, "LEAST_SECONDS", 0.0)
    bare = random_model(4, 3, 1, 0.3)
    write_model(build_model(bare.start, bare.transition, bare.emission, list("uvwx"), list("abc")), "model.parquet")
    words: list[Any] = [[*row] for row in np.random.default_rng(0).choice(list("abc"), (30, 8)).tolist()]
    words[3][2] = None
    write_words([*words, [], ["d"]])
    return tmp_path


def write_words(words: list[Any], **columns: Any) -> None:
    parquet.write_table(pa.table({"words": pa.array(words, pa.list_(pa.string())), **columns}), "words.parquet")


def words_there() -> list[Any]:
    words: list[Any] = parquet.read_table("words.parquet")["words"].to_pylist()
    return words


def run(*args: str, code: int = 0) -> Any:
    result = junctor_cli("learn-chain", *FILES, *args)
    assert result.exit_code == code, result.output
    return result


def test_the_command_is_the_function() -> None:
    options = ("--prior", "emission=0.5", "--prior", "start=1", "--fix", "transition", "--max-iterations", "7")
    result = run(*options)
    wanted = learn(
        read_model("model.parquet"),
        words_there(),
        prior={"emission": 0.5, "start": 1},
        fix=["transition"],
        max_iterations=7,
    )
    assert read_model("fitted.json").digest == wanted.model.digest
    assert "fitted.json: 4 states, 3 symbols; sequences: 30 ok, 2 invalid\n" in result.stdout
    assert (
        "left out: sequence 31: the sequence is empty\nleft out: sequence 32: step 0: unknown symbol 'd'"
        in result.stderr
    )
    each = (
        f"{wanted.log_likelihood:.9g}, {wanted.log_likelihood / 30:.6g} a sequence; not converged at 7 (7 iterations)"
    )
    assert f"log-likelihood {each}" in result.stdout
    assert not Path("fitted.json.checkpoint").exists()


def test_a_fit_that_crosses_a_threshold_is_not_written() -> None:
    found = run("--fail-if", "invalid > 5%", "--report", "fit.html", code=7)
    assert "invalid > 5%: found 2 of 32 rows, 6.25%; nothing is written" in found.stderr
    assert "the page of the fit is fit.html" in found.stderr
    assert Path("fit.html").exists()
    assert not Path("fitted.json").exists()
    assert "are never missed" in run("--fail-if", "missed > 0", code=3).stderr
    assert "no column of the inputs is counted" in run("--fail-if", "missing(words) > 0", code=3).stderr
    run("--fail-if", "invalid > 2", "--fail-if", "mean(log_likelihood) < -99")
    assert Path("fitted.json").exists()


def test_a_document_of_the_fit() -> None:
    found = json.loads(run("--json", "--start", "random", "--restarts", "3", "--seed", "5", "-q").stdout)
    wanted = learn(read_model("model.parquet"), words_there(), start="random", restarts=3, seed=5)
    assert found["log_likelihood"] == wanted.log_likelihood
    assert [each["log_posterior"] for each in found["restarts"]] == [each.log_posterior for each in wanted.restarts]
    assert found["sequences"] == {"ok": 30, "impossible": 0, "invalid": 2, "held_out": 0}
    assert (found["weight"], found["steps"], found["missing"], found["holdout"]) == (30, 240, 1, None)
    assert found["reasons"]["31"].startswith("step 0: unknown symbol 'd'")
    assert found["trace"][0]["change"] is None


def test_a_check_a_page_and_errors() -> None:
    options = ("--holdout", "20%", "--report", "fit.html", "--errors", "--tie", "u=v", "--impossible", "smooth")
    result = run(*options, "--prior", "transition=1")
    model = read_model("model.parquet")
    prior: Any = {"transition": 1}
    wanted = learn(model, words_there(), holdout=0.2, errors=True, tie=["u=v"], impossible="smooth", prior=prior)
    assert read_model("fitted.json").digest == wanted.model.digest
    found, each = wanted.holdout, parquet.read_table("fitted.parameters.parquet")
    assert found is not None
    assert found.rows > 0
    assert f"sequences: {30 - found.rows} ok, 2 invalid, {found.rows} held_out\n" in result.stdout
    told = f"held out: {found.rows} sequences, log-likelihood {found.log_likelihood:.9g}, "
    assert f"{told}{found.log_likelihood / found.weight:.6g} a sequence" in result.stdout
    assert wanted.parameters is not None
    assert each.equals(wanted.parameters)
    assert "standard errors of free parameters: " in result.stderr
    page = Path("fit.html").read_text()
    assert "model.parquet" in page
    assert "fitted.json" in page
    record = json.loads(run(*options, "--prior", "transition=1", "--json", "-q").stdout)
    assert record["holdout"]["log_likelihood"] == found.log_likelihood


def test_what_the_fitted_model_rules_out_is_counted() -> None:
    write_model(build_model([1], [[1]], [[0.5, 0.5]]), "model.parquet")
    every = [["0"]] * 40
    held_out = int(np.flatnonzero(is_held_out(np.arange(40), 0.1, 0))[0])
    every[held_out] = ["1"]
    write_words(every)
    done = run("--holdout", "10%")
    assert "1 more sequences are impossible under the fitted model (a prior helps)" in done.stdout


def test_impossible_sequences() -> None:
    write_model(build_model([1], [[1]], [[1, 0]], None, ["a", "b"]), "model.parquet")
    write_words([["a"], ["b"]])
    refused = run(code=3).stderr
    assert "sequence 2 is impossible by zeros of the model: --impossible skip leaves such sequences out" in refused
    skipped = run("--impossible", "skip")
    assert "sequences: 1 ok, 1 impossible" in skipped.stdout
    assert "left out: sequence 2: the sequence has probability 0" in skipped.stderr
    assert "sequences: 2 ok" in run("--impossible", "smooth").stdout
    assert (read_model("fitted.json").emission == [[0.5, 0.5]]).all()  # type: ignore[union-attr]
    Path("folder").mkdir()
    parquet.write_table(pa.table({"words": [["a"]]}), "folder/1.parquet")
    Path("words.parquet").rename("folder/2.parquet")
    in_folder = junctor_cli("learn-chain", "model.parquet", "folder", "-o", "fitted.json")
    assert "sequence 2 of folder/2.parquet is impossible by zeros" in in_folder.stderr


def test_interrupted_errors_leave_the_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    run("--errors")
    wanted = [Path(name).read_bytes() for name in ("fitted.json", "fitted.parameters.parquet")]
    Path("fitted.json").unlink()

    def stop(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FitLines, "tell_extra", stop)
        run("--errors", code=130)
    assert Path("fitted.json.checkpoint").exists()
    # A page that cannot be written loses nothing either.
    run("--report", "/proc/nowhere/fit.html", code=6)
    assert "going on with the fit in" in run("--errors").stderr
    assert [Path(name).read_bytes() for name in ("fitted.json", "fitted.parameters.parquet")] == wanted
    assert not Path("fitted.json.checkpoint").exists()


def test_a_column_of_weights() -> None:
    words = words_there()[:4]
    weights = [2.0, 0.0, 1.0, 1.5]
    write_words(words, w=weights, t=["2", "0", "1", "1.5"])
    wanted = learn(read_model("model.parquet"), words, weights=weights).model.digest
    for name in ("w", "t"):
        run("--weight", name)
        assert read_model("fitted.json").digest == wanted


@pytest.mark.parametrize("kept", [1, 4, 9])
def test_an_interrupted_fit_goes_on(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--start", "random", "--restarts", "2", "--max-iterations", "6", "--tolerance", "0")
    run(*options)
    wanted = Path("fitted.json").read_bytes()
    Path("fitted.json").unlink()
    plainly, states = Checkpoint.keep, []

    def keep(self: Checkpoint, state: LearnState) -> None:
        plainly(self, state)
        states.append(state)
        if len(states) == kept:
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "keep", keep)
    assert "run the same command again to go on" in run(*options, code=130).stderr
    assert not Path("fitted.json").exists()
    monkeypatch.setattr(Checkpoint, "keep", plainly)
    assert "other options" in run("--max-iterations", "5", code=6).stderr
    run(*options)
    assert Path("fitted.json").read_bytes() == wanted
    assert not Path("fitted.json.checkpoint").exists()


def test_the_state_of_another_fit_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: Checkpoint, state: LearnState) -> None:
        plainly(self, state)
        raise KeyboardInterrupt

    plainly = Checkpoint.keep
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "keep", interrupt)
        run(code=130)
    write_words(words_there()[:5])
    assert "an interrupted fit with other sequences" in run(code=6).stderr
    run("--overwrite")


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("--prior", "emission"), 2, "expected PART=COUNT"),
        (("--prior", "emission=x"), 2, "expected PART=COUNT"),
        (("--prior", "start=1", "--prior", "start=2"), 2, "start is given twice"),
        (("--prior", "emissions=1"), 3, "found part of a model 'emissions'"),
        (("--prior", "start=-1"), 3, "a pseudo count of -1.0"),
        (("--fix", "all"), 3, "found part of a model 'all'"),
        (("--restarts", "2"), 3, "add --start random"),
        (("--report", "words.parquet"), 3, "words.parquet of the same command"),
        (("--output", "words.parquet"), 3, "words.parquet of the same command"),
        (("--report", "f.json.checkpoint", "-o", "f.json"), 3, "f.json.checkpoint of the same command"),
        (("--report", "f.parameters.parquet", "-o", "f.json", "--errors"), 3, "f.parameters.parquet of the same"),
        (("--start", "network"), 2, "network"),
        (("--weight", "w"), 3, "no column 'w' of weights"),
        (("--weight", "words"), 3, "column 'words': found lists, expected weights"),
        (("--column", "word"), 3, "no list column 'word'"),
        (("--fix", "start,,emission"), 2, "a name is empty"),
        (("--holdout", "100%"), 2, "expected a share such as 10%"),
        (("--impossible", "ignore"), 2, "impossible"),
        (("--tie", "u=y"), 3, "--tie: no state is named 'y'"),
        (("--tie", "u=v", "--fix", "emission"), 3, "--tie: states cannot share emissions"),
        (("--strict",), 3, "row 31: the sequence is empty"),
        (("--memory", "1KiB"), 5, "raise --memory"),
        (("--memory", "much"), 2, "much"),
        (("-o", "fitted.bif"), 3, "expected a name that ends in .parquet, .json, .json.gz"),
    ],
)
def test_bad_options(args: tuple[str, ...], code: int, message: str) -> None:
    result = run(*args, code=code)
    assert message in " ".join(result.stderr.replace("│", " ").split())
    assert not Path("fitted.json").exists()


@pytest.mark.skipif(has_gpu(), reason="it would be used")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    assert "found no NVIDIA GPU" in run("--device", "gpu", code=5).stderr


def test_bad_weights() -> None:
    write_words(words_there()[:3], w=[1.0, None, -1.0], v=["1", "a", "2"], n=[0.0, 0.0, 0.0])
    assert (
        "row 2: column 'w': found None, expected a weight of 0, or from 1e-100 to 1e100"
        in run("--weight", "w", code=3).stderr
    )
    assert "row 2: column 'v': found 'a', expected a weight" in run("--weight", "v", code=3).stderr
    assert "none of 3 sequences takes part" in run("--weight", "n", code=3).stderr


def test_sequences_that_change_while_they_are_read_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real = learning_files.digest_of

    def then_change(path: Any) -> str:
        digest = real(path)
        write_words(words_there()[:-1])
        return digest

    monkeypatch.setattr(learning_files, "digest_of", then_change)
    assert "words.parquet: was written to while it was read" in run(code=3).stderr
    assert not Path("fitted.json").exists()


def test_no_sequences() -> None:
    write_words([])
    assert "none of 0 sequences takes part" in run(code=3).stderr
