"""The table of options: what type checkers, users of Python and the command line see of it."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any, Unpack

import junctor
import pytest
from helpers.files import ROOT
from junctor.cli.options import takes_options
from junctor.model.option_table import (
    PosteriorOptions,
    ResourceOptions,
    defaults_of,
    options_of,
    query_of,
    takes_keywords,
)
from junctor.model.query import Query
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


@pytest.mark.parametrize("function", [junctor.posteriors, junctor.Model.posteriors])
def test_functions_show_all_of_their_keywords(function: Any) -> None:
    keywords = [each for each in inspect.signature(function).parameters.values() if each.kind is each.KEYWORD_ONLY]
    assert {each.name: each.default for each in keywords} == defaults_of(PosteriorOptions)


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
    assert all(options_of(RunOptions)[name] is options_of(ViterbiOptions)[name] for name in shared)
    assert {n for n, row in options_of(RunOptions).items() if row.is_setting} == options_of(Settings).keys() - {"cache"}
