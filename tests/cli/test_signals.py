"""SIGTERM and SIGHUP in every mode and stage: a message, a code, no children, and a directory to go on with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import junctor
import psutil
import pyarrow as pa
import pytest
import typer
from helpers.signals import COMMAND, children_of, hear_ctrl_c, lines_until
from junctor.cli.failures import interrupt_message
from junctor.cli.signals import Terminated
from junctor.generate import evidence_batches, random_network
from junctor.model.errors import RunError
from pyarrow import csv, parquet

# What service managers are promised; the machine of the tests has other work as well.
SECONDS = 10.0
ROWS = 8_000


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network, and rows of evidence that take a while to read and longer to answer."""
    folder = tmp_path_factory.mktemp("inputs")
    network = random_network(25, seed=5)
    junctor.write_network(network, folder / "net.bif")
    first = next(evidence_batches(network, 65_000, observed=0.3, pattern="random"))
    table = pa.Table.from_batches([first])
    csv.write_csv(pa.concat_tables([table] * 2), folder / "many.csv")
    parquet.write_table(table.slice(0, ROWS), folder / "some.parquet")
    return folder


def end(process: subprocess.Popen[str], said: str, group: bool = False, number: int = signal.SIGTERM) -> str:
    """Send a signal; check code, message, seconds and children; return what was said."""
    children = children_of(process)
    started = time.monotonic()
    if group:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    assert process.stderr is not None
    said += process.stderr.read()
    assert process.wait(60) == 143, said
    assert time.monotonic() - started < SECONDS
    assert "Traceback" not in said
    assert said.endswith("run the same command again to go on\n"), said
    assert "error: terminated" in said
    _, left = psutil.wait_procs(children, 5)
    # Where process 1 waits for no orphans, dead ones stay.
    assert all(child.status() == psutil.STATUS_ZOMBIE for child in left)
    return said


def goes_on(command: list[str], out: Path) -> None:
    again = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    assert again.returncode == 0, again.stderr
    assert (out / "manifest.json").exists()
    assert not list(out.rglob("*.tmp"))


OTHERS = ("reading the network", "planning", "writing CSV")
MODES = {"here": ["--workers", "0"], "workers": ["--workers", "2"], "group": ["--workers", "2"]}


@pytest.mark.parametrize(
    "mode", ["workers", *(pytest.param(each, marks=pytest.mark.slow) for each in ("here", "group", "scheduler"))]
)
def test_sigterm_while_rows_are_answered(
    inputs: Path, tmp_path: Path, mode: str, request: pytest.FixtureRequest
) -> None:
    options = MODES.get(mode) or ["--scheduler", request.getfixturevalue("scheduler")]
    out = tmp_path / "out"
    command = [*COMMAND, "run", str(inputs / "net.bif"), str(inputs / "some.parquet"), "-o", str(out), "--no-prefect"]
    command += ["--partition-rows", "200", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        said = lines_until(process, "propagating")
        while not list(out.glob("posteriors/part-*.parquet")) and process.poll() is None:
            time.sleep(0.02)
        end(process, said, mode == "group")
    assert not (out / "manifest.json").exists()
    done = len(list(out.glob("posteriors/part-*.parquet")))
    assert 0 < done < ROWS // 200
    # By whatever workers.
    goes_on([*command[: -len(options)], *MODES["here"]], out)


@pytest.mark.parametrize(
    "stage",
    ["reading the evidence", *(pytest.param(each, marks=pytest.mark.slow) for each in OTHERS)],
)
def test_sigterm_in_other_stages(inputs: Path, tmp_path: Path, stage: str) -> None:
    out = tmp_path / "out"
    command = [*COMMAND, "run", str(inputs / "net.bif"), str(inputs / "many.csv"), "-o", str(out), "--no-prefect"]
    command += ["--targets", "*1", "--csv", "--workers", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        end(process, lines_until(process, stage))
    assert not (out / "posteriors.csv").exists()
    goes_on(command, out)


@pytest.mark.parametrize("options", [["--workers", "0"], pytest.param(MODES["group"], marks=pytest.mark.slow)])
def test_sighup_ends_as_sigterm_does(inputs: Path, tmp_path: Path, options: list[str]) -> None:
    """A terminal that goes sends it to all processes of the command in it."""
    command = [*COMMAND, "run", str(inputs / "net.bif"), str(inputs / "some.parquet"), "-o", str(tmp_path / "out")]
    command += ["--no-prefect", "--partition-rows", "200", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        end(process, lines_until(process, "propagating"), group=True, number=signal.SIGHUP)
    goes_on(command, tmp_path / "out")


def test_a_sighup_that_nohup_lets_be_ignored_ends_nothing(inputs: Path, tmp_path: Path) -> None:
    command = [*COMMAND, "validate", str(inputs / "net.bif"), str(inputs / "many.csv")]
    with subprocess.Popen(
        ["nohup", *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for _ in range(10):
            time.sleep(0.1)
            process.send_signal(signal.SIGHUP)
        assert process.stdout is not None
        said = process.stdout.read()
    assert process.returncode == 0, said


def test_sigterm_while_code_is_compiled(inputs: Path, tmp_path: Path) -> None:
    command = [*COMMAND, "run", str(inputs / "net.bif"), str(inputs / "some.parquet"), "-o", str(tmp_path / "out")]
    command += ["--no-prefect", "--workers", "0"]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "compiled")}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        said = lines_until(process, "compiling")
        time.sleep(1.0)
        end(process, said)


@pytest.mark.parametrize(
    "name", ["SIGTERM", pytest.param("SIGHUP", marks=pytest.mark.slow), pytest.param("SIGINT", marks=pytest.mark.slow)]
)
def test_signal_inside_of_a_callback_of_compiled_code(name: str) -> None:
    code = f"""
import ctypes, os, signal, time
from junctor.cli.signals import end_on_sigterm
end_on_sigterm()
@ctypes.CFUNCTYPE(None)
def callback():
    os.kill(os.getpid(), signal.{name})
    time.sleep(0.01)
try:
    callback()
    time.sleep(5)
except KeyboardInterrupt as error:
    print(type(error).__name__)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=20, preexec_fn=hear_ctrl_c
    )
    assert done.stdout.strip() == ("KeyboardInterrupt" if name == "SIGINT" else "Terminated")
    assert not done.stderr
    assert not done.returncode


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_signal_inside_of_the_import_system(name: str) -> None:
    code = (
        "import os, signal, sys, time\n"
        "from junctor.cli.signals import end_on_sigterm\n"
        "end_on_sigterm()\n"
        # As if it were a function of the import system.
        f"body = 'def find_spec(*_): os.kill(os.getpid(), signal.{name}); time.sleep(0.01)'\n"
        "exec(compile(body, '<frozen importlib._bootstrap>', 'exec'))\n"
        "sys.meta_path.insert(0, type('Finder', (), {'find_spec': staticmethod(find_spec)}))\n"
        "try: import colorsys; sys.meta_path.pop(0); time.sleep(5)\n"
        "except KeyboardInterrupt as error: print(type(error).__name__, 'colorsys' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=20, preexec_fn=hear_ctrl_c
    )
    expected = "Terminated" if name == "SIGTERM" else "KeyboardInterrupt"
    assert (done.stdout.split()[-2:], done.stderr) == ([expected, "True"], "")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_signal_while_a_module_is_imported(name: str, tmp_path: Path) -> None:
    """Arrow goes on without pandas where its import raises anything: half of pandas stayed, and a signal was lost."""
    (tmp_path / "module.py").write_text(f"import os, signal\nos.kill(os.getpid(), signal.{name})\nwhole = True\n")
    code = (
        "import time\n"
        "from junctor.cli.signals import end_on_sigterm\n"
        "end_on_sigterm()\n"
        "try:\n"
        "    try: import module\n"
        "    except BaseException: pass\n"
        "    time.sleep(5)\n"
        "except KeyboardInterrupt as error: print(type(error).__name__, module.whole)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=20, preexec_fn=hear_ctrl_c
    )
    expected = "Terminated" if name == "SIGTERM" else "KeyboardInterrupt"
    assert (done.stdout.split(), done.stderr) == ([expected, "True"], "")


def test_signal_while_a_class_is_made() -> None:
    class Slow:
        def __set_name__(self, _owner: type, _name: str) -> None:
            raise Terminated

    with pytest.raises(typer.Exit) as caught, interrupt_message():
        type("Class", (), {"member": Slow()})
    assert caught.value.exit_code == 143
    with pytest.raises(RuntimeError), interrupt_message():
        raise RuntimeError from ValueError()


def test_signal_between_two_steps_of_a_lock() -> None:
    """As in `Condition.wait`, which has given its lock back and not taken it again: leaving it fails."""
    condition = threading.Condition(threading.Lock())

    def signalled() -> None:
        with condition:
            condition.release()
            raise Terminated

    with pytest.raises(typer.Exit) as caught, interrupt_message():
        signalled()
    assert caught.value.exit_code == 143


@pytest.mark.parametrize("error", [RunError("no space"), OSError("no space")])
def test_what_is_said_of_files_and_work_is_not_lost_for_a_signal(error: Exception) -> None:
    def clear_away() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise error

    with pytest.raises(type(error)), interrupt_message():
        clear_away()


@pytest.mark.prefect
def test_sigterm_while_an_embedded_server_starts(inputs: Path, tmp_path: Path) -> None:
    """It ends at once: the run waited for it to start, to be told the end of what it was not told of, and to end."""
    command = [*COMMAND, "run", str(inputs / "net.bif"), str(inputs / "some.parquet"), "-o", str(tmp_path / "out")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    words = [*command, "--prefect", "--workers", "0", "--partition-rows", "200"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment) as process:
        while not children_of(process) and process.poll() is None:
            time.sleep(0.02)
        started = time.monotonic()
        assert "WARNING" not in end(process, "")
        assert time.monotonic() - started < 4


@pytest.mark.prefect
@pytest.mark.parametrize(
    ("stage", "everyone"),
    [
        pytest.param("", False, marks=pytest.mark.slow),
        pytest.param("propagating", False, marks=pytest.mark.slow),
        ("propagating", True),
    ],
)
def test_sigterm_with_an_embedded_server(inputs: Path, tmp_path: Path, stage: str, everyone: bool) -> None:
    out = tmp_path / "out"
    command = [*COMMAND, "run", str(inputs / "net.bif"), str(inputs / "some.parquet"), "-o", str(out), "--prefect"]
    command += ["--partition-rows", "200", "--workers", "0"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        if stage:
            said = lines_until(process, stage)
        else:
            said = ""
            while not children_of(process) and process.poll() is None:
                time.sleep(0.02)
        if everyone:
            # As systemd does: the server is told, too.
            for child in children_of(process):
                child.send_signal(signal.SIGTERM)
        assert "before all was cleared away" not in end(process, said)
    goes_on([*command, "--no-prefect"], out)


def test_what_cannot_be_interrupted_is_ended(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys, time\n"
        "from junctor.cli import signals\n"
        "signals.GRACE_SECONDS = 0.5\n"
        "signals.end_on_sigterm()\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        "words = ['here']\n"
        "while True:\n"
        "    try:\n"
        # Within reach of `except`: the signal comes at once.
        "        print(words.pop(), file=sys.stderr, flush=True)\n"
        "    except BaseException:\n"
        "        pass\n"
        "    try:\n"
        "        time.sleep(60)\n"
        "    except BaseException:\n"
        "        pass\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True) as process:
        end(process, lines_until(process, "here"))
