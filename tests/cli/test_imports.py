"""What the package and the command line load before there is work to do: a start takes a tenth of a second."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pyarrow as pa
import pytest
from helpers.files import ROOT
from junctor.cli import app_for
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pyarrow import parquet
from typer.main import get_command
from typer.testing import CliRunner

HEAVY = {
    "numpy",
    "numba",
    "pyarrow",
    "cupy",
    "dask",
    "distributed",
    "prefect",
    "pandas",
    "matplotlib",
    "jinja2",
    "lark",
    "psutil",
}
COMMANDS = (
    *("run", "inspect", "convert", "validate", "calibrate", "ask", "joint", "viterbi"),
    *("learn", "counts", "learn-chain"),
    *("tune", "warmup", "cache", "status", "demo", "deploy", "serve", "report"),
)


def loaded(code: str) -> set[str]:
    """The packages that a fresh interpreter loads for `code`."""
    told = "import atexit, json, sys\natexit.register(lambda: print('\\n' + json.dumps([*sys.modules])))\n"
    answer = subprocess.run([sys.executable, "-c", told + code], capture_output=True, text=True, check=True).stdout
    return {name.partition(".")[0] for name in json.loads(answer.splitlines()[-1])}


def test_the_package_loads_nothing_heavy() -> None:
    found = loaded("import junctor")
    assert "junctor" in found
    assert not found & (HEAVY | {"typer", "rich", "junctor_kernels", "junctor_flows"})


def test_help_loads_nothing_heavy() -> None:
    # One after the other in a single interpreter, each with what is loaded by then.
    unwanted = HEAVY | {"junctor_kernels", "junctor_flows"}
    code = (
        "import contextlib, io\nfrom junctor.cli import app_for\n"
        f"for command in {[*([name] for name in COMMANDS), []]}:\n"
        "    said = io.StringIO()\n"
        "    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):\n"
        "        app_for(*command)([*command, '--help'])\n"
        "    assert 'Usage' in said.getvalue(), command\n"
        f"    found = {{name.partition('.')[0] for name in sys.modules}} & {unwanted}\n"
        "    assert not found, (command, found)\n"
    )
    assert "typer" in loaded(code)


def test_errors_of_the_package_load_nothing_heavy() -> None:
    assert not loaded("from junctor import BudgetError, EvidenceError, JunctorError, ModelError, RunError") & HEAVY


def test_a_command_line_is_understood_by_its_command_alone() -> None:
    commands = get_command(app_for()).commands  # type: ignore[attr-defined]
    assert set(COMMANDS) <= commands.keys()
    for name in commands:
        assert [*get_command(app_for(name)).commands] == [name]  # type: ignore[attr-defined]


def test_a_command_loads_no_other_one() -> None:
    code = "import sys\nfrom junctor.cli import app_for\napp_for('run')\nprint('junctor.cli.learn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("words", [["run", "--help"], ["map"], ["deploy", "learn", "--help"], ["rnu"], ["--help"], []])
def test_it_says_what_all_commands_together_say(words: list[str]) -> None:
    alone, together = (CliRunner().invoke(each, words) for each in (app_for(words[0] if words else ""), app_for()))
    assert (alone.exit_code, alone.output) == (together.exit_code, together.output)


def test_a_run_of_scores_does_without_what_arrow_loads(tmp_path: Path) -> None:
    # Pandas alone is a quarter of a second, and Arrow loads it for `to_numpy`.
    parquet.write_table(pa.table({"smoke": ["yes", "no"]}), tmp_path / "in.parquet")
    words = ["run", str(ROOT / "data" / "asia.bif"), str(tmp_path / "in.parquet"), "--output", str(tmp_path / "out")]
    words += ["--answers", "scores", "--no-prefect", "--quiet"]
    found = loaded(f"import sys\nfrom junctor.cli import main\nsys.argv = {['junctor', *words]}\nmain()\n")
    assert "pyarrow" in found
    assert not found & {"pandas", "prefect", "distributed", "matplotlib"}


# What needs an extra, the extra, and how the line begins that names it.
IN_EXTRAS = [
    (["run", "NETWORK", "EVIDENCE", "--output", "page", "--report"], "report", "a page"),
    (["finalise", "answers", "--report"], "report", "a page"),
    (["report", "answers"], "report", "junctor report"),
    (["inspect", "NETWORK", "--plot", "tree.png"], "report", "--plot"),
    (["learn", "NETWORK", "EVIDENCE", "--output", "fit.bif", "--report", "fit.html"], "report", "a page"),
    (["run", "NETWORK", "EVIDENCE", "--output", "two", "--workers", "2"], "cluster", "work in other processes"),
    (["run", "NETWORK", "EVIDENCE", "--output", "far", "--scheduler", "tls://a:1"], "cluster", "work in other"),
    (["learn", "NETWORK", "EVIDENCE", "--output", "fit.bif", "--workers", "2"], "cluster", "work in other processes"),
    (["counts", "NETWORK", "EVIDENCE", "--output", "counts.csv", "--workers", "2"], "cluster", "work in other"),
    (["run", "NETWORK", "EVIDENCE", "--output", "shown", "--prefect"], "flow", "--prefect"),
    (["demo"], "flow", "the page of Prefect"),
    (["serve"], "flow", "a deployment"),
    (["deploy", "NETWORK", "EVIDENCE", "--output", "nightly"], "flow", "a deployment"),
]


def base_packages() -> set[str]:
    """The distributions that an installation without extras has."""
    found: set[str] = set()
    waiting = ["junctor"]
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name not in found:
            found.add(name)
            needed = map(Requirement, metadata.requires(name) or ())
            waiting += [each.name for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})]
    return found


def packages_of_extras() -> list[str]:
    base = base_packages()
    homes = metadata.packages_distributions()
    return sorted(top for top, names in homes.items() if not base & {*map(canonicalize_name, names)})


def light(code: str, folder: Path) -> list[str]:
    """The lines that a fresh interpreter prints for `code` where nothing but the base can be imported."""
    before = f"import sys\nsys.modules.update(dict.fromkeys({packages_of_extras()}))\n"
    done = subprocess.run([sys.executable, "-c", before + code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_base_is_small() -> None:
    assert {"matplotlib", "jinja2", "prefect", "dask", "distributed", "pydantic", "httpx"} <= {*packages_of_extras()}
    assert {"numpy", "numba", "pyarrow", "lark", "typer"} <= base_packages()
    assert len(base_packages()) <= 16


def test_all_modules_are_imported_without_extras(tmp_path: Path) -> None:
    code = (
        "import importlib, pkgutil, junctor, junctor_kernels\n"
        "for package in junctor, junctor_kernels:\n"
        "    for module in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        try: importlib.import_module(module.name)\n"
        "        except ImportError: print(module.name)\n"
        "        except junctor.JunctorError as error: print(error)\n"
        "print(sum(name.startswith('junctor') for name in sys.modules) > 300)\n"
        "try: import junctor_flows\n"
        "except junctor.JunctorError as error: print(error)\n"
    )
    *missing, many, flows = light(code, tmp_path)
    assert missing == ['junctor.sklearn needs sklearn, not installed here: pip install "junctor[sklearn]"']
    assert many == "True"
    assert flows == 'junctor_flows needs prefect, not installed here: pip install "junctor[flow]"'


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, str]]:
    """Exit codes and outputs of the commands above without extras, after those of three runs."""
    folder = tmp_path_factory.mktemp("light")
    (folder / "rows.csv").write_text("smoke,xray\nyes,\nno,yes\n")
    files = {"NETWORK": str(ROOT / "data" / "asia.bif"), "EVIDENCE": "rows.csv"}
    runs = [["run", "NETWORK", "EVIDENCE", "--output", name] for name in ("server", "answers", "set")]
    words = [[files.get(word, word) for word in each] for each in (*runs, *(case for case, _, _ in IN_EXTRAS))]
    code = (
        "import json, os, junctor\nfrom junctor.cli import app_for\nfrom typer.testing import CliRunner\n"
        "os.environ.pop('PREFECT_API_URL', None)\n"
        f"network = junctor.read_network({files['NETWORK']!r})\n"
        "print(json.dumps(junctor.posteriors(network, {'smoke': ['yes']}, targets=['lung'])['lung'].to_pylist()))\n"
        "try: junctor.learn(network, {'smoke': ['yes']}, report='fit.html')\n"
        "except junctor.JunctorError as error: print(json.dumps(str(error)))\n"
        f"for number, words in enumerate({words}):\n"
        "    env = {'JUNCTOR_MEMORY': '1GiB', 'JUNCTOR_THREADS': '1'} if number == 2 else {}\n"
        "    env |= {'PREFECT_API_URL': 'http://127.0.0.1:1/api'} if number == 0 else {}\n"
        "    done = CliRunner().invoke(app_for(words[0]), words, env=env)\n"
        "    print(json.dumps([done.exit_code, done.output]))\n"
    )
    return [json.loads(line) for line in light(code, folder)]


def test_the_base_answers_from_python_and_files(said: list[tuple[int, str]]) -> None:
    assert said[0] == [pytest.approx([0.1, 0.9])]
    assert said[1] == 'a page needs matplotlib and jinja2, not installed here: pip install "junctor[report]", ' + (
        "or leave the report out"
    )
    with_server, plain, with_settings = said[2:5]
    assert [plain[0], with_settings[0], with_server[0]] == [0, 0, 0]
    assert "2 ok" in plain[1]
    assert "2 ok" in with_settings[1]
    assert 'hears nothing of this run: pip install "junctor[flow]", or use --no-prefect' in with_server[1]
    assert "Prefect" not in plain[1]


@pytest.mark.parametrize("number", range(len(IN_EXTRAS)), ids=lambda number: " ".join(IN_EXTRAS[number][0]))
def test_a_missing_extra_is_named_in_one_line(number: int, said: list[tuple[int, str]]) -> None:
    _, extra, begins = IN_EXTRAS[number]
    code, output = said[5 + number]
    assert code == 3
    (line,) = output.splitlines()
    assert line.startswith(f"error: {begins}")
    assert f'not installed here: pip install "junctor[{extra}]"' in line
