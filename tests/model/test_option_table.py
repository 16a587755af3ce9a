"""The table of options: what type checkers, users of Python and the command line see of it."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Unpack, is_typeddict

import junctor
import pytest
from helpers.files import ROOT
from junctor import cli, hmm
from junctor.cli.options import takes_options
from junctor.hmm.run import SequenceJob
from junctor.model import option_table as table
from junctor.model.option_table import (
    ResourceOptions,
    defaults_of,
    options_of,
    query_of,
    takes_keywords,
)
from junctor.model.query import Query
from junctor.runs.workload import Job
from typer import BadParameter

CALLS = """
from typing import Unpack
from junctor.model.option_table import LearningOptions, PosteriorOptions

def ask(**options: Unpack[PosteriorOptions]) -> None: ...
def fit(**options: Unpack[LearningOptions]) -> None: ...

ask(threads=2, device="cpu", memory="4GiB", keep=["x"], top=3)
ask(thread=2)
ask(threads="two")
ask(device="tpu")
fit(keep=["x"])
"""


@takes_keywords(device={"default": "cpu", "python": "of this one."})
def answer(evidence: Any, **options: Unpack[ResourceOptions]) -> dict[str, Any]:
    """Return the options.

    evidence: of no use.
    options: of the table.

    The end.
    """
    return {"evidence": evidence, **options}


@takes_options(device={"default": "cpu", "is_setting": False})
def command(evidence: str, **options: Unpack[ResourceOptions]) -> None:
    """Say what is given."""
    raise ValueError({"evidence": evidence, **options})


def test_type_checkers_find_wrong_names_types_and_literals(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="of those who develop")
    calls = tmp_path / "calls.py"
    calls.write_text(CALLS)
    # As the source is checked, strictly: what is known of it is used again.
    words = [sys.executable, "-m", "mypy", str(calls)]
    said = subprocess.run(words, capture_output=True, text=True, cwd=ROOT).stdout
    for number, words_of_it in ((9, '"thread"'), (10, '"threads"'), (11, "\"Literal['tpu']\""), (12, '"keep"')):
        assert any(f"calls.py:{number}: error" in line and words_of_it in line for line in said.splitlines()), said
    assert "Found 4 errors" in said


def test_keywords_have_the_defaults_and_texts_of_the_table() -> None:
    assert answer(1, threads=2) == {"evidence": 1, **defaults_of(ResourceOptions), "device": "cpu", "threads": 2}
    shown = inspect.signature(answer).parameters
    assert [*shown] == ["evidence", *options_of(ResourceOptions)]
    assert (shown["device"].default, shown["memory"].annotation) == ("cpu", int | str | None)
    lines = (inspect.getdoc(answer) or "").splitlines()
    assert lines[3].startswith("threads: None for the cores")
    assert "device: of this one." in lines
    assert lines[-2:] == ["", "The end."]
    with pytest.raises(TypeError, match=r"answer\(\) got an unexpected keyword argument 'thread'"):
        answer(1, thread=2)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("function", "group"),
    [
        (junctor.posteriors, table.PosteriorOptions),
        (junctor.Model.posteriors, table.PosteriorOptions),
        (junctor.most_probable, table.ExplanationOptions),
        (junctor.joint_posteriors, table.JointOptions),
        (junctor.learn, table.NetworkLearningOptions),
        (junctor.expected_counts, table.LearningOptions),
        (hmm.viterbi, table.SequenceOptions),
        (hmm.posteriors, table.SequenceOptions),
        (hmm.learn, table.ChainLearningOptions),
        (Job, table.JobOptions),
        (SequenceJob, table.SequenceJobOptions),
    ],
    ids=lambda each: getattr(each, "__qualname__", None),
)
def test_functions_show_all_of_their_keywords(function: Any, group: Any) -> None:
    keywords = [each for each in inspect.signature(function).parameters.values() if each.kind is each.KEYWORD_ONLY]
    own = {"lengths", "labels", "weights", "watch"}
    assert {each.name for each in keywords} - own == options_of(group).keys()
    # Fits take no GPU unasked.
    shared = [each for each in keywords if each.name not in {*own, "device"}]
    assert all(each.default == options_of(group)[each.name].default for each in shared)


def test_texts_of_keywords_are_in_the_docstring() -> None:
    text = inspect.getdoc(junctor.learn) or ""
    assert all(f"\n{name}: " in text for name in options_of(table.NetworkLearningOptions))


def test_commands_name_no_option_of_the_table_again() -> None:
    groups = [each for each in vars(table).values() if is_typeddict(each)]
    known = {name for group in groups for name in options_of(group)}
    assert len(known) > 60
    found = set()
    for command, row in cli._COMMANDS.items():
        function = inspect.unwrap(getattr(import_module(row.module), row.place.rpartition(".")[2]))
        if inspect.isfunction(function):
            own = inspect.getfullargspec(function)
            found |= {(command, each) for each in (*own.args, *own.kwonlyargs) if each in known}
    # Of a meaning of their own.
    assert found == {("demo", "prefect"), ("tune", "device"), ("warmup", "device")}


def test_a_job_with_other_options_is_another_job() -> None:
    job = Job("net.bif", "in.csv", "out", partition_rows=3)
    other = job.but(evidence="other.csv", case_id="id")
    assert (other.evidence, other.options["case_id"], other.options["partition_rows"]) == ("other.csv", "id", 3)
    assert job.facts == {"network": "net.bif", "evidence": "in.csv", "output": "out", "partition_rows": 3}
    with pytest.raises(TypeError, match="unexpected keyword argument 'partition_row'"):
        job.but(partition_row=3)


def test_commands_get_the_values_of_functions() -> None:
    shown = inspect.signature(command).parameters
    # A setting that is not given has no value of its own.
    assert [shown[name].default for name in ("threads", "memory", "device")] == [None, None, "cpu"]
    for given, told in (
        ({}, {"device": "cpu"}),
        ({"memory": "1KiB", "time_limit": "2min"}, {"device": "cpu", "memory": 1024, "time_limit": 120.0}),
    ):
        with pytest.raises(ValueError) as found:
            command(evidence="rows", **given)  # type: ignore[arg-type]
        assert found.value.args == ({"evidence": "rows", **told},)
    with pytest.raises(BadParameter) as refused:
        command(evidence="rows", device_memory="much")
    assert refused.value.param_hint == "--device-memory"


def test_a_question_without_options_is_the_default_one() -> None:
    assert query_of({}) == Query()
    assert query_of({"targets": ["a"], "samples": 200, "method": "sampling"}).sampling.samples == 200


def test_a_name_means_one_option() -> None:
    from junctor.cli.run import RunOptions
    from junctor.cli.viterbi import ViterbiOptions
    from junctor.runtime.settings import Settings

    shared = options_of(RunOptions).keys() & options_of(ViterbiOptions).keys() - {"case_id", "strict"}
    assert all(options_of(RunOptions)[name] == options_of(ViterbiOptions)[name] for name in shared)
    # Where the environment says it, no command asks.
    settings = options_of(Settings).keys() - {"cache", "quiet"}
    assert {n for n, row in options_of(RunOptions).items() if row.is_setting} == settings
