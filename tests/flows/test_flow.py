"""Runs of the command line on the page of a Prefect server, one that dies included; the embedded server."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from helpers.command_line import junctor_cli
from helpers.files import ASIA
from helpers.hmm_models import random_model
from helpers.prefect_servers import BIN, PrefectServer
from helpers.stores import Bucket
from junctor.cli import prefect_server
from junctor.cli.ingest import ingest
from junctor.cli.learn import learn
from junctor.cli.learn_chain import learn_chain as fit_chain
from junctor.cli.parameters import parameters_of, seconds_of, values
from junctor.cli.run import run
from junctor.cli.viterbi import viterbi
from junctor.formats import read_network
from junctor.hmm import build_model, read_model, write_model
from junctor.hmm import learn as learn_model
from junctor.hmm.run import SequenceJob
from junctor.learning.learn import learn as learn_tables
from junctor.runs.run import run as run_plainly
from junctor.runs.workload import Job
from junctor.runtime.dask_cluster import Resources
from junctor.runtime.remote import location
from junctor_flows import patience
from prefect._internal.observers import FlowRunCancellingObserver
from pyarrow import parquet
from typer import BadParameter
from typer.main import get_command_from_info
from typer.models import CommandInfo

pytestmark = [pytest.mark.prefect, pytest.mark.timeout(400)]

ROWS = "smoke,xray\nyes,no\n,yes\nno,\nperhaps,\n" + "yes,yes\n" * 20


@pytest.fixture
def evidence(tmp_path: Path) -> str:
    path = tmp_path / "evidence.csv"
    path.write_text(ROWS)
    return str(path)


def last_run(server: PrefectServer) -> Any:
    return server.runs()[-1]


def test_a_run_is_on_the_page_and_has_the_same_answers(server: PrefectServer, tmp_path: Path, evidence: str) -> None:
    options = ("--partition-rows", "10", "--workers", "0", "--memory", "1GiB")
    done = server.junctor("run", ASIA, evidence, "-o", "out", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    plain = Job(ASIA, evidence, str(tmp_path / "plain"), partition_rows=10)
    run_plainly(plain, Resources(workers=0))
    assert parquet.read_table(tmp_path / "out" / "posteriors").equals(parquet.read_table(tmp_path / "plain/posteriors"))
    found = server.ask("/flow_runs/filter", {"flow_runs": {"name": {"any_": ["evidence.csv on asia.bif"]}}})[0]
    assert found["state"]["type"] == "COMPLETED"
    assert found["state"]["message"].endswith("s: 23 ok, 1 invalid")
    assert found["parameters"] == {"network": ASIA, "evidence": evidence, "output": "out", "partition_rows": 10}
    tasks = [(task["name"], task["state"]["type"]) for task in server.tasks(found["id"])]
    stages = (
        "reading the network",
        "reading the evidence",
        "planning",
        "propagating",
        "verifying the parts",
        "writing the manifest",
        "writing the report",
    )
    named = [f"{stage}: evidence.csv on asia.bif" for stage in stages]
    named += [f"posteriors/part-0000{part}.parquet" for part in range(3)]
    assert sorted(tasks) == sorted((name, "COMPLETED") for name in named)
    artifacts = server.artifacts(found["id"])
    assert artifacts["evidence-csv-on-asia-bif-progress"] == 100.0
    assert "24 rows" in artifacts["evidence-csv-on-asia-bif-summary"]
    page = f"file://{tmp_path}/out/report.html"
    assert f"Page of the run: [{page}]({page})" in artifacts["evidence-csv-on-asia-bif-summary"]
    rows = json.loads(artifacts["evidence-csv-on-asia-bif-statuses"])
    assert rows == [{"status": name, "rows": count} for name, count in (("ok", 23), ("impossible", 0), ("invalid", 1))]
    assert "propagating 24 rows: evidence.csv on asia.bif" in server.lines(found["id"])


def test_a_users_error_is_ours_and_one_line(server: PrefectServer, tmp_path: Path, evidence: str) -> None:
    done = server.junctor_here("run", ASIA, evidence, "-o", str(tmp_path / "out"), "-q", "--targets", "lungs")
    assert done.exit_code == 3
    assert done.stderr.count("\n") == 1
    assert "did you mean 'lung'" in done.stderr
    found = server.ask("/flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": ["FAILED"]}}}})
    assert any("did you mean 'lung'" in run["state"]["message"] for run in found)


def test_a_reported_run_leaves_its_page_and_fails_by_a_threshold(
    server: PrefectServer, tmp_path: Path, evidence: str
) -> None:
    out = tmp_path / "out"
    words = ["run", ASIA, evidence, "-o", str(out), "-q", "--workers", "0"]
    done = server.junctor_here(*words, "--fail-if", "invalid > 0", "--rejects", str(tmp_path / "bad.csv"))
    assert done.exit_code == 7
    assert "invalid > 0: found 1 of 24 rows, 4.17% (row 4)" in done.stderr
    assert "1 threshold crossed" in (out / "report.html").read_text()
    assert len((tmp_path / "bad.csv").read_text().splitlines()) == 2
    found = server.ask("/flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": ["FAILED"]}}}})
    assert any("invalid > 0: found 1 of 24 rows" in run["state"]["message"] for run in found)
    # The answers are there: the same command with another threshold is done at once.
    (out / "report.html").unlink()
    assert server.junctor_here(*words, "--fail-if", "invalid > 1", "--no-report").exit_code == 0
    assert not (out / "report.html").exists()


def begun(server: PrefectServer, folder: Path, long: list[str]) -> subprocess.Popen[str]:
    """A command in a process of its own, some of whose parts are there."""
    command = [str(BIN / "junctor"), "run", *long, "-o", str(folder / "out")]
    process = subprocess.Popen(command, env=server.environment, cwd=folder, stderr=subprocess.PIPE, text=True)
    server.until(lambda: len(list(folder.glob("out/posteriors/part-*.parquet"))) > 1 or process.poll() is not None, 120)
    assert process.poll() is None
    return process


@pytest.mark.slow
def test_a_server_that_is_killed_ends_no_run_and_hears_of_it_when_it_is_back(
    mortal: PrefectServer, tmp_path: Path, long: list[str]
) -> None:
    process = begun(mortal, tmp_path, long)
    mortal.kill()
    time.sleep(4.0)
    mortal.start()
    assert process.stderr is not None
    said = process.stderr.read()
    assert process.wait() == 0
    assert said.count("does not answer") == 1
    assert said.count("answers again") == 1
    assert len(said) < 2_000
    found = last_run(mortal)
    assert found["state"]["type"] == "COMPLETED"
    assert found["state"]["message"].startswith("16,000 rows")
    assert {task["state"]["type"] for task in mortal.tasks(found["id"])} == {"COMPLETED"}
    assert any("does not answer" in line for line in mortal.lines(found["id"]))


@pytest.mark.slow
def test_a_server_that_never_comes_back_costs_ten_seconds(
    mortal: PrefectServer, tmp_path: Path, long: list[str]
) -> None:
    process = begun(mortal, tmp_path, long)
    mortal.kill()
    manifest = tmp_path / "out" / "manifest.json"
    mortal.until(manifest.exists, 200)
    finished = time.monotonic()
    assert process.stderr is not None
    said = process.stderr.read()
    assert process.wait() == 0
    assert time.monotonic() - finished < 60
    assert said.count("does not answer") == 1
    assert said.count("was not told of the end") == 1
    assert len(said) < 2_000


@pytest.mark.slow
def test_without_its_server_a_run_begins_all_the_same(tmp_path: Path, evidence: str) -> None:
    server = PrefectServer(tmp_path / "prefect")
    done = server.junctor("run", ASIA, evidence, "-o", "out", "-q", "--workers", "0", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr.count("does not answer") == 1
    done = server.junctor("deploy", ASIA, evidence, "-o", "out", cwd=tmp_path)
    assert done.returncode == 6
    assert "does not answer" in done.stderr


@pytest.mark.slow
def test_a_deployed_run_outlives_its_server(mortal: PrefectServer, tmp_path: Path, long: list[str]) -> None:
    done = mortal.junctor("deploy", *long, "-o", "out", "--name", "long", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with mortal.serve(tmp_path):
        id = mortal.begin("long")
        mortal.until(lambda: list(tmp_path.glob("out/posteriors/part-*.parquet")), 120)
        mortal.kill()
        mortal.until((tmp_path / "out" / "manifest.json").exists, 200)
        # Longer than Prefect's own runner bears.
        time.sleep(30.0)
        mortal.start()
        assert mortal.ended(id, 120)["state"]["message"].startswith("16,000 rows")
        assert {task["state"]["type"] for task in mortal.tasks(id)} == {"COMPLETED"}
        said = (tmp_path / "process.log").read_text()
        assert "Traceback" not in said
        assert len(said) < 4_000
        # And it is there for the next one.
        assert mortal.ended(mortal.begin("long"), 120)["state"]["type"] == "COMPLETED"


@pytest.mark.parametrize("command", [run, ingest, viterbi, learn, fit_chain])
def test_parameters_of_flows_are_the_options_of_the_command(command: Callable[..., None]) -> None:
    from junctor_flows.batch import score_batch
    from junctor_flows.ingesting import ingest_evidence
    from junctor_flows.learning import learn_chain, learn_network
    from junctor_flows.sequences import decode_sequences

    flows = {
        run: score_batch,
        ingest: ingest_evidence,
        viterbi: decode_sequences,
        learn: learn_network,
        fit_chain: learn_chain,
    }
    batch_flow, is_fit = flows[command], command in (learn, fit_chain)
    info = CommandInfo(callback=command)
    click = get_command_from_info(info, pretty_exceptions_short=False, rich_markup_mode=None)
    options = {max(each.opts, key=len).lstrip("-").replace("-", "_").lower() for each in click.params} - {"help"}
    of_terminals, own = {"prefect", "json", "quiet", "log_format"}, {"retries", "retry_delay", "timeout"}
    of_terminals -= {"prefect"} if is_fit else set()
    assert of_terminals <= options
    form = batch_flow.parameters.properties
    assert set(form) == options - of_terminals | own
    assert all(each["description"] for each in form.values())
    if command is not ingest:
        choice = {"acceleration": ["squarem", "none"]} if is_fit else {"precision": ["double", "single", "log"]}
        assert all(form[name]["enum"] == names for name, names in choice.items())
    # Nothing that only a text names: Prefect reads it in other processes.
    assert not any(isinstance(each.annotation, str) for each in inspect.signature(batch_flow.fn).parameters.values())


def test_values_that_differ_from_defaults_are_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    defaults = {each.argument: each.default for each in parameters_of(run)}
    given = {**defaults, "network": "s3://bucket/n.bif", "evidence": "e.csv", "output": "o", "network_format": "bif"}
    expected = {"network": "s3://bucket/n.bif", "evidence": str(tmp_path / "e.csv"), "output": str(tmp_path / "o")}
    assert values(run, given) == {**expected, "format": "bif"}


def scored(server: PrefectServer, call: dict[str, Any], before: str = "") -> subprocess.CompletedProcess[str]:
    """Score a batch in a process of its own, which prints the type of the last state and its message."""
    code = (
        f"{before}from junctor_flows.batch import score_batch\n"
        f"state = score_batch(**{call!r}, return_state=True)\n"
        "print(state.type.value, state.message)"
    )
    return subprocess.run(
        [sys.executable, "-c", code], env=server.environment, capture_output=True, text=True, timeout=200
    )


def test_a_part_that_fails_is_tried_again_alone(server: PrefectServer, tmp_path: Path, evidence: str) -> None:
    code = (
        "from junctor.runs import partition\n"
        "real, failures = partition._Partition.write, [RuntimeError('the disk went')]\n"
        "def write(self):\n"
        "    if self.task.part == 1 and failures:\n"
        "        raise failures.pop()\n"
        "    return real(self)\n"
        "partition._Partition.write = write\n"
    )
    call = {"network": ASIA, "evidence": evidence, "output": str(tmp_path / "out"), "workers": 0, "partition_rows": 10}
    done = scored(server, call, code)
    assert "COMPLETED 24 rows" in done.stdout, done.stderr
    (id,) = [run["id"] for run in server.runs() if run["parameters"].get("output") == call["output"]]
    tasks = server.tasks(id)
    parts = sorted((task["name"], task["state"]["type"]) for task in tasks if task["name"].startswith("posteriors/"))
    names = [f"posteriors/part-0000{part}.parquet" for part in range(3)]
    failed = [(name, kind) for name, kind in parts if kind == "FAILED"]
    assert failed[0] == (names[1], "FAILED")
    assert [name for name, kind in parts if kind == "COMPLETED"] == names
    assert any("a part failed (the disk went)" in line for line in server.lines(id))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param({"memory": "much"}, "Invalid value for --memory: found the size 'much', ", marks=pytest.mark.slow),
        pytest.param({"fail_if": ["invalid >"]}, "Invalid value for --fail-if: ", marks=pytest.mark.slow),
        ({"retry_delay": "soon"}, "Invalid value: found the time 'soon', expected a number and a unit"),
    ],
)
def test_a_parameter_that_makes_no_sense_is_an_error_of_ours(
    server: PrefectServer, tmp_path: Path, evidence: str, given: dict[str, Any], message: str
) -> None:
    call = {"network": ASIA, "evidence": evidence, "output": str(tmp_path / "out"), "workers": 0} | given
    done = scored(server, call)
    assert done.stdout.startswith("FAILED "), done.stderr
    assert f"EvidenceError: {message}" in done.stdout
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_flow_all_of_whose_rows_are_invalid_says_so(server: PrefectServer, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("smoke\nperhaps\n")
    call = {"network": ASIA, "evidence": str(tmp_path / "rows.csv"), "output": str(tmp_path / "out"), "workers": 0}
    done = scored(server, call)
    said = "AllInvalidError: the only row is invalid: column 'smoke': unknown state 'perhaps'"
    assert said in done.stdout, done.stderr
    assert (tmp_path / "out" / "manifest.json").exists()


def test_the_end_of_an_observer_is_no_error() -> None:
    errors: list[dict[str, Any]] = []

    async def ask() -> None:
        """Ask for cancelled runs."""

    async def end() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        # As where the server was away: the observer asks then, and is no longer told.
        polling = asyncio.create_task(patience._polling_loop(workload=ask, interval=60.0))
        polling.add_done_callback(FlowRunCancellingObserver(lambda _: None)._handle_polling_task_done)
        await asyncio.sleep(0)
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
        await asyncio.sleep(0)

    asyncio.run(end())
    assert errors == []


# What the command line does before it calls anything, and what `junctor serve` does then.
SERVE = (
    "from junctor.cli.lines import drop_lost_lines, end_on_lost_output\n"
    "drop_lost_lines()\n"
    "end_on_lost_output()\n"
    "from junctor_flows.patience import bear_with_server\n"
    "bear_with_server()\n"
    "go_on()"
)


@pytest.mark.parametrize(
    ("begin", "given"),
    [
        ("import junctor_flows.frame\ngo_on()", {"PREFECT__FLOW_RUN_ID": "00000000-0000-0000-0000-000000000000"}),
        (SERVE, {}),
    ],
    ids=["run", "serve"],
)
def test_deployed_runs_outlive_those_who_read_what_they_print(
    tmp_path: Path, begin: str, given: dict[str, str]
) -> None:
    code = (
        "import logging, sys\n"
        "from pathlib import Path\n"
        "def go_on():\n"
        "    sys.stdin.readline()\n"
        "    for _ in range(3):\n"
        "        print('line', flush=True)\n"
        "        print('line', file=sys.stderr, flush=True)\n"
        "        logging.getLogger('prefect').error('line')\n"
        "    Path('done').touch()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code + begin],
        env={**os.environ, **given},
        cwd=tmp_path,
        stdin=-1,
        stdout=-1,
        stderr=-1,
        bufsize=0,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    # As after `kill -9` of `junctor serve`.
    process.stdout.close()
    process.stderr.close()
    process.stdin.write(b"\n")
    process.wait(100)
    assert (tmp_path / "done").exists()


def test_times_have_units() -> None:
    assert [seconds_of(text) for text in ("90s", "1.5min", "2h", "1 d")] == [90, 90, 7200, 86400]
    for text in ("90", "", "h", "-1s", "0s", "inf h", "nan s", "2weeks"):
        with pytest.raises(BadParameter, match="expected a number and a unit"):
            seconds_of(text)


@pytest.mark.parametrize("command", ["deploy", "serve"])
def test_without_a_configured_server_nothing_is_deployed(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    result = junctor_cli(command, *([ASIA, "e.csv", "-o", "out"] if command == "deploy" else []))
    assert result.exit_code == 6
    assert "no Prefect server is configured" in result.stderr


def test_the_embedded_server_keeps_its_files_in_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_HOME", raising=False)
    monkeypatch.setenv("PREFECT_LOGGING_LEVEL", "DEBUG")
    prefect_server.embed(tmp_path)

    assert os.environ.pop("PREFECT_HOME") == str(tmp_path / ".prefect")
    assert os.environ["PREFECT_LOGGING_LEVEL"] == "DEBUG"


def test_an_embedded_server_of_a_run_in_a_store_keeps_its_files_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_HOME", raising=False)
    monkeypatch.setenv("PREFECT_LOGGING_LEVEL", "DEBUG")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    home = prefect_server.embed(location("s3://bucket/out"))
    assert os.environ.pop("PREFECT_HOME") == str(home)
    assert home.is_dir()
    assert home.is_relative_to(tmp_path / "junctor" / "prefect")


def test_a_reported_run_reads_and_writes_a_store(server: PrefectServer, bucket: Bucket, evidence: str) -> None:
    bucket.put("asia.bif", Path(ASIA).read_bytes())
    bucket.put("evidence.csv", Path(evidence).read_bytes())
    places = [bucket.url("asia.bif"), bucket.url("evidence.csv"), "-o", bucket.url("out")]
    done = server.junctor_here("run", *places, "--workers", "0", "-q")
    assert done.exit_code == 0, done.stderr
    assert "out/manifest.json" in bucket.names("out")
    # Prefect's server would keep what is in the URL.
    secret = bucket.url("other").replace("s3://", "s3://AKIAEXAMPLE:s3cr3t@")
    to_secret = [*places[:2], "-o", secret]
    for words in (
        ["run", *to_secret, "--workers", "0", "-q"],
        ["deploy", *to_secret],
        ["deploy", *places, "--mapping", secret],
        ["deploy", *places, "--rejects", f"{secret}.csv"],
    ):
        refused = server.junctor_here(*words)
        assert refused.exit_code == 3
        assert "would keep them" in refused.stderr
        assert "s3cr3t" not in refused.stderr
    assert not bucket.names("other")


def test_a_summary_says_what_is_new(tmp_path: Path) -> None:
    from junctor_flows.reporter import statuses, summary

    evidence = tmp_path / "in" / "date=2026-11-22" / "a.csv"
    evidence.parent.mkdir(parents=True)
    evidence.write_text("smoke,xray\nyes,no\n")
    job = Job(ASIA, str(tmp_path / "in"), str(tmp_path / "out"), incremental=True)
    manifest = run_plainly(job, Resources(workers=0))
    assert "Increment 1: 1 row\n\n- new: date=2026-11-22/a.csv, 1 row\n" in summary("", "", manifest)
    assert re.match(r"# 1 row in \d\.\d s; 1 row in all\n", summary("", "", manifest))
    manifest = run_plainly(job, Resources(workers=0))
    assert re.match(r"# Nothing is new in \d\.\d s; 1 row in all\n", summary("", "", manifest))
    assert re.fullmatch(r"nothing is new in \d\.\d s; 1 row in all: 1 ok", statuses(manifest))


@pytest.mark.slow
def test_an_embedded_server_starts_from_a_database_that_is_ready_and_ends_with_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # Set here, so that what the server sets is forgotten afterwards.
    monkeypatch.setenv("PREFECT_API_URL", "")
    monkeypatch.setenv("PREFECT_LOGGING_LEVEL", "CRITICAL")
    # It takes three seconds to end, and more on a busy machine.
    monkeypatch.setattr(prefect_server, "STOP_SECONDS", 60)
    kept = tmp_path / "cache" / "junctor" / f"prefect-{version('prefect')}.db"
    for name in ("first", "second"):
        monkeypatch.setenv("PREFECT_HOME", str(tmp_path / name))
        server = prefect_server.EmbeddedServer(prefect_server.embed(tmp_path))
        # Nobody has one ready for the first.
        assert kept.exists() == (name == "second")
        assert (tmp_path / name / "prefect.db").exists() == kept.exists()
        server.wait()
        assert os.environ["PREFECT_API_URL"].startswith("http://127.0.0.1:")
        assert kept.exists()
        # The server sees its standard input end, as it would if we were killed.
        assert server.stop() == 0
        assert (tmp_path / name / "server.log").read_text() == ""


def test_a_server_that_cannot_start_is_one_line_and_the_run_goes_on(tmp_path: Path, evidence: str) -> None:
    # Prefect takes a server that ends while it starts for one whose port was taken, and would start another for ever.
    command = "from junctor.cli import main; main()"
    args = [sys.executable, "-c", command, "run", ASIA, evidence, "-o", str(tmp_path / "out"), "--prefect", "-q"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment["PREFECT_API_DATABASE_CONNECTION_URL"] = f"sqlite+aiosqlite:///{tmp_path}/nowhere/prefect.db"
    done = subprocess.run(args, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0
    line = next(line for line in done.stderr.splitlines() if "Prefect's server did not start (" in line)
    assert "--no-prefect" in line
    assert line.endswith("it goes on without")
    assert "Traceback" not in done.stderr
    assert (tmp_path / "out" / "manifest.json").exists()


@pytest.fixture(scope="module")
def called(server: PrefectServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Outputs of all flows, called from Python in one process; parameters as on the command line."""
    folder = tmp_path_factory.mktemp("called")
    (folder / "evidence.csv").write_text(ROWS)
    bare = random_model(6, 3, 1)
    write_model(build_model(bare.start, bare.transition, bare.emission, list("uvwxyz"), None), folder / "model.parquet")
    words = [[str(int(n) % 3) for n in f"{2 ** (20 * row + 7)}"] for row in range(9)]
    parquet.write_table(pa.table({"words": words}), folder / "words.parquet")
    code = (
        "from prefect import flow\n"
        "from junctor_flows.batch import score_batch\n"
        "from junctor_flows.ingesting import ingest_evidence\n"
        "from junctor_flows.sequences import decode_sequences\n"
        "from junctor_flows.learning import learn_chain, learn_network\n"
        f"score_batch(network={ASIA!r}, evidence='evidence.csv', output='scored', targets='l*', answers='scores', "
        "top=2, probability=['tub=yes'], workers=0)\n"
        "@flow\ndef chained():\n"
        f"    ingest_evidence(network={ASIA!r}, evidence=['evidence.csv'], output='set')\n"
        "    score_batch(network='set', output='of-set', workers=0)\n"
        "chained()\n"
        "decode_sequences(model='model.parquet', sequences='words.parquet', output='decoded', workers=0)\n"
        f"learn_network(network={ASIA!r}, evidence='evidence.csv', output='fitted.bif', prior='bdeu:1', "
        "start='random')\n"
        "learn_chain(model='model.parquet', sequences='words.parquet', output='fitted.json', prior=['emission=1'], "
        "holdout='30%', report='chain.html')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=server.environment, cwd=folder, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_the_flow_learns_what_python_does(called: Path) -> None:
    expected = learn_tables(ASIA, called / "evidence.csv", prior="bdeu:1", start="random").network
    found = read_network(called / "fitted.bif")
    assert all((a.table == b.table).all() for a, b in zip(found.factors, expected.factors, strict=True))


def test_the_flow_learns_models_of_sequences_as_python_does(called: Path) -> None:
    words = parquet.read_table(called / "words.parquet")
    expected = learn_model(str(called / "model.parquet"), words, prior={"emission": 1}, holdout=0.3).model
    assert read_model(called / "fitted.json").digest == expected.digest
    assert "Fit of model.parquet" in (called / "chain.html").read_text()


def test_the_flow_makes_scores_of_sampled_and_other_rows(called: Path) -> None:
    names = parquet.read_table(called / "scored" / "scores").column_names
    assert names[:4] == ["case_id", "lung", "lung_probability", "lung_entropy"]
    assert "tub=yes" in names
    assert json.loads((called / "scored" / "manifest.json").read_text())["statuses"]["ok"] == 23


def test_a_flow_takes_the_dataset_of_another(server: PrefectServer, called: Path, tmp_path: Path) -> None:
    runs = server.ask("/flow_runs/filter", {"flows": {"name": {"any_": ["junctor-ingest"]}}})
    artifacts = [data for key, data in server.artifacts(runs[0]["id"]).items() if key.endswith("summary")]
    assert "`evidence.csv` on " in artifacts[0]
    assert "asia.bif`, encoded\n" in artifacts[0]
    run_plainly(Job(ASIA, str(called / "evidence.csv"), str(tmp_path / "plain")), Resources(workers=0))
    folders = called / "of-set" / "posteriors", tmp_path / "plain" / "posteriors"
    assert parquet.read_table(folders[0]).equals(parquet.read_table(folders[1]))
    assert [path.name for path in (called / "of-set" / "evidence").iterdir()] == ["done.json"]


def test_the_flow_of_sequences_answers_as_the_plain_run_does(called: Path, tmp_path: Path) -> None:
    plain = SequenceJob(str(called / "model.parquet"), str(called / "words.parquet"), str(tmp_path / "plain"))
    run_plainly(plain, Resources(workers=0))
    assert parquet.read_table(called / "decoded" / "viterbi").equals(parquet.read_table(tmp_path / "plain" / "viterbi"))
