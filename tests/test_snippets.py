"""Snippets of the README and of docs/ run, and what they print is compared."""

from __future__ import annotations

import doctest
import json
import re
import shlex
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import junctor
import pytest
from helpers.command_line import junctor_cli
from pyarrow import parquet

ROOT = Path(__file__).parents[1]
# Pages whose snippets are one session from the first to the last, each with what it prints.
SESSIONS = [ROOT / "docs" / "tables.md", *sorted((ROOT / "docs" / "tutorials").glob("*.md"))]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "data" / "README.md"]
PAGES = [page for page in PAGES if page not in SESSIONS]
# Calls of other libraries beside ours.
OTHERS = ROOT / "docs" / "coming_from.md"
SERVICE = ROOT / "docs" / "service.md"
FENCED = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)
# What needs a server, another machine, a GPU or minutes.
ELSEWHERE = re.compile(r"://|--device gpu|--prefect|junctor (demo|tune|warmup|serve|deploy|status)\b")
SERVERS = re.compile(r"\.serve\(|\.deploy\(|://")
# Names of files that whoever reads the page has.
INPUT = re.compile(r"[\w./*-]+\.(?:csv|parquet|arrow|evid|bif|uai|net|xdsl|xmlbif|json|toml|dne|pgmx)$|[A-Z]{5,}$")


def snippets(page: Path, *languages: str) -> list[str]:
    return [text for language, text in FENCED.findall(page.read_text()) if language in languages]


def commands(page: Path) -> list[list[str]]:
    """The commands of a page, without those that need what is not here."""
    lines = "".join(snippets(page, "sh")).replace("\\\n", " ").splitlines()
    found = [line.removeprefix("uv run ") for line in lines if not ELSEWHERE.search(line)]
    return [shlex.split(line, comments=True)[1:] for line in found if line.startswith("junctor ")]


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the shipped networks and the README's table of patients, where snippets run."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "data", tmp_path / "data")
    (patients,) = snippets(ROOT / "README.md", "csv")
    (tmp_path / "patients.csv").write_text(patients)
    return tmp_path


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.name)
def test_commands_run(page: Path, scratch: Path) -> None:
    ran = 0
    for command in commands(page):
        # The examples of a page may be about files that nobody has.
        inputs = [word for before, word in pairwise(command) if before not in ("--output", "-o") and "=" not in word]
        if any(INPUT.fullmatch(word) and not Path(word).exists() for word in inputs):
            continue
        result = junctor_cli(*command)
        assert result.exit_code == 0, f"{shlex.join(command)}: {result.output}"
        ran += 1
    assert ran, "no command of this page runs here"


@pytest.mark.parametrize("page", [page for page in PAGES if snippets(page, "python")], ids=lambda page: page.name)
def test_python_runs(page: Path, scratch: Path) -> None:
    names: dict[str, object] = {}
    if any('"answers"' in text for text in snippets(page, "python")):
        # Those of the first command of the README.
        assert junctor_cli(*commands(ROOT / "README.md")[0]).exit_code == 0
    for text in snippets(page, "python"):
        # Some go on from a run of the page's reader.
        if not SERVERS.search(text) and 'Path("out")' not in text and ">>>" not in text:
            exec(compile(text, page.name, "exec"), names)


SHOWN = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def printed(lines: str) -> str:
    """What the commands of a snippet print, but those that need a server of Prefect's."""
    said = ""
    for words in (shlex.split(line, comments=True) for line in lines.replace("\\\n", " ").splitlines()):
        if words[0] == "mkdir":
            Path(words[1]).mkdir()
        elif words[0] == "junctor" and words[1] not in ("deploy", "serve"):
            result = junctor_cli(*words[1:])
            assert result.exit_code == 0, f"{shlex.join(words)}: {result.output}"
            said += result.stdout
    return said


@pytest.mark.parametrize("page", SESSIONS, ids=lambda page: page.name)
def test_sessions_show_what_the_reader_sees(page: Path, scratch: Path) -> None:
    names: dict[str, object] = {}
    said, compared = "", 0
    for language, text in FENCED.findall(page.read_text()):
        if language == "sh":
            said = printed(text)
        elif language == "python":
            test = doctest.DocTestParser().get_doctest(text, names, page.name, str(page), 0)
            assert doctest.DocTestRunner(optionflags=SHOWN).run(test, clear_globs=False).failed == 0
            names, compared = test.globs, compared + 1
        elif said:
            assert doctest.OutputChecker().check_output(text, said, SHOWN), f"{page.name} shows\n{text}\nnot\n{said}"
            said, compared = "", compared + 1
    assert compared > 2


@pytest.mark.parametrize("page", [page for page in PAGES if ">>> " in page.read_text()], ids=lambda page: page.name)
def test_what_python_prints(page: Path, scratch: Path) -> None:
    for library in ("pgmpy", "pyagrum") if page == OTHERS else ():
        pytest.importorskip(library)
    # The examples in all snippets are one session.
    text = "\n".join(text for text in snippets(page, "python") if ">>>" in text)
    test = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    runner = doctest.DocTestRunner(optionflags=SHOWN)
    assert runner.run(test).failed == 0


def test_other_libraries_have_the_same_numbers() -> None:
    for section in OTHERS.read_text().split("\n## ")[1:]:
        examples = doctest.DocTestParser().get_examples(
            "".join(re.findall(r"^```python\n(.*?)^```", section, re.M | re.S))
        )
        said = [example.want for example in examples if example.want]
        assert len(said) == section.count("# pgmpy") + section.count("# pyAgrum") + 1 > 1, section
        assert len(set(said)) == 1, section


def clinic() -> dict[str, Any]:
    """The names of the module that the page of the service shows."""
    names: dict[str, Any] = {}
    exec(compile(snippets(SERVICE, "python")[0], "clinic.py", "exec"), names)
    return names


@pytest.fixture
def service(scratch: Path) -> Iterator[str]:
    """The address of the service of its page, while it runs."""
    uvicorn = pytest.importorskip("uvicorn")
    server = uvicorn.Server(uvicorn.Config(clinic()["app"], port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
        assert thread.is_alive()
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/posteriors"
    server.should_exit = True
    thread.join(30)
    assert not thread.is_alive()


REFUSED = [
    ({"evidence": {"smokes": "yes"}, "targets": ["lung"]}, "unknown column 'smokes'"),
    (
        {"evidence": {"smoke": "maybe"}, "targets": ["lung"]},
        "column 'smoke': unknown state 'maybe'; states are yes, no",
    ),
    ({"evidence": {"lung": "yes", "either": "no"}, "targets": ["tub"]}, "impossible: lung = yes with either = no"),
    ({"evidence": {}, "targets": ["cough"]}, "cough"),
    ({"evidence": {}}, "targets"),
]


def test_the_service_answers_many_requests_at_once(service: str) -> None:
    httpx = pytest.importorskip("httpx")
    network = junctor.read_network(ROOT / "data" / "asia.bif")
    rows = [
        {name: cell for name, cell in row.items() if cell is not None and name != "case_id"}
        for row in network.sample(300, observed=0.5, seed=1).to_pylist()
    ]
    expected = junctor.posteriors(network, rows, ["lung"], hide_targets=True)

    def ask(case: Any) -> Any:
        return client.post(service, json=case)

    # As many bad requests as good ones, among them.
    cases = [each for i, row in enumerate(rows) for each in ({"evidence": row, "targets": ["lung"]}, REFUSED[i % 5][0])]
    with httpx.Client(trust_env=False, timeout=60) as client, ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(ask, cases))
        seen = ask({"evidence": {"xray": [0.8, 0.2]}, "targets": ["lung"]}).json()
        said = ask(json.loads(re.findall("--json '(.*)'", SERVICE.read_text())[0])).json()
    (shown,) = map(json.loads, snippets(SERVICE, "json"))
    assert said["posteriors"]["lung"] == pytest.approx(shown["posteriors"]["lung"], abs=1e-12)
    assert said["log_evidence"] == pytest.approx(shown["log_evidence"], abs=1e-12)
    assert seen["posteriors"]["lung"] == pytest.approx({"yes": 0.162826, "no": 0.837174}, abs=1e-6)
    for answer, posterior, log in zip(answers[::2], expected["lung"], expected["log_evidence"], strict=True):
        assert answer.status_code == 200, answer.text
        assert list(answer.json()["posteriors"]["lung"].values()) == pytest.approx(posterior.as_py(), abs=1e-12)
        assert answer.json()["log_evidence"] == pytest.approx(log.as_py(), abs=1e-12)
    for i, answer in enumerate(answers[1::2]):
        assert answer.status_code == 422
        assert REFUSED[i % 5][1] in str(answer.json()["detail"])


def test_the_service_tells_whose_matter_an_error_is(scratch: Path) -> None:
    refused = clinic()["refused"]
    errors = (junctor.EvidenceError, junctor.BudgetError, junctor.DeviceError)
    assert [refused(None, error("why")).status_code for error in errors] == [422, 503, 503]


def test_answers_in_the_readme(scratch: Path) -> None:
    first = commands(ROOT / "README.md")[0]
    assert junctor_cli(*first).exit_code == 0
    answers = parquet.read_table(scratch / first[first.index("--output") + 1] / "posteriors").to_pylist()
    shown = [line.strip("|").split("|") for line in (ROOT / "README.md").read_text().splitlines() if line[:2] == "| "]
    header, *rows = [[cell.strip() for cell in row] for row in shown if row[0].strip() in ("case_id", "17", "18", "19")]
    assert len(rows) == len(answers)
    for cells, answer in zip(rows, answers, strict=True):
        for name, cell in zip(header, cells, strict=True):
            assert name == "..." or not cell or is_shown(cell, answer[name]), f"{name}: {cell}, answered {answer[name]}"
            assert cell or name == "..." or answer[name] is None


def is_shown(cell: str, value: object) -> bool:
    """Whether a cell shows a value; `0.48...` shows 0.4871."""
    numbers = value if isinstance(value, list) else [value]
    texts = cell.strip("[]").split(", ") if isinstance(value, list) else [cell]
    if not all(isinstance(number, float) for number in numbers):
        return cell == str(value)
    return len(texts) == len(numbers) and all(
        f"{number:.15f}".startswith(text.removesuffix("..."))
        if text.endswith("...")
        else abs(float(text) - number) < 1e-12
        for text, number in zip(texts, numbers, strict=True)
    )


@pytest.mark.slow
def test_the_demo_in_the_quick_start(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    result = junctor_cli("demo")
    assert result.exit_code == 0, result.output
    table = next(text for text in snippets(ROOT / "docs" / "quick_start.md", "text") if "fault" in text)
    rows = [line for line in table.splitlines() if line.startswith("│")]
    assert rows
    for row in rows:
        assert row in result.output
