"""The command line, `junctor`: one file a command, and nothing heavy imported before it is needed."""

from __future__ import annotations

import atexit
import gc
import os
import re
import sys
import threading
from contextlib import suppress
from importlib import import_module
from typing import Annotated, NamedTuple

import typer

from junctor.cli.failures import Commands, flushed
from junctor.cli.lines import drop_lost_lines, end_on_lost_output, have_input
from junctor.cli.signals import end_on_sigterm

# Objects between two searches for garbage: more than the start of a run makes. Hardly any of them is garbage that waits
# for a search, 2,000 of 240,000 in a run of munin2, with 30 partitions as with one.
COLLECTED_OBJECTS = 300_000


class _Command(NamedTuple):
    """A command.

    place: module and function.
    panel: of the help of all commands.
    example: the words after its name, on files of the repository.
    page: of the documentation.
    """

    place: str
    panel: str
    example: str
    page: str

    @property
    def module(self) -> str:
        """Where its function is."""
        return f"junctor.cli.{self.place.partition('.')[0]}"


# Of the repository.
DOCS = "docs"
ANSWER, LOOK, LEARN, SEQUENCES = "Answer", "Look", "Learn", "Sequences"
CLIQUES, SCHEDULE, MACHINE = "Cliques", "Schedule", "Machine"
_PATIENTS = "data/asia.bif data/patients.csv"
# In the order in which help shows them; one at a time, because all of them load as much again as one takes.
_COMMANDS = {
    "run": _Command("run.run", ANSWER, f"{_PATIENTS} -o answers", "running.md"),
    "joint": _Command("cliques.joint", ANSWER, "data/asia.bif lung,bronc --given smoke=yes", "memory.md"),
    "map": _Command("map.propose_mapping", ANSWER, f"{_PATIENTS} -o map.toml", "mapping.md"),
    "ingest": _Command("ingest.ingest", ANSWER, f"{_PATIENTS} -o dataset", "running.md"),
    "finalise": _Command("finalise.finalise", ANSWER, "answers", "array_jobs.md"),
    "demo": _Command("demo.demo", ANSWER, "--rows 1000 --no-prefect", "quick_start.md"),
    "inspect": _Command("inspect.inspect", LOOK, _PATIENTS, "forecasts.md"),
    "validate": _Command("validate.validate", LOOK, _PATIENTS, "networks.md"),
    "convert": _Command("convert.convert", LOOK, "data/asia.bif asia.xdsl", "networks.md"),
    "compare": _Command("compare.compare", LOOK, "data/asia.bif fitted.bif", "networks.md"),
    "sample": _Command("sample.sample", LOOK, "data/asia.bif -n 1000 -o rows.csv", "evidence.md"),
    "draw": _Command("draw.draw", LOOK, "data/asia.bif -o asia.svg", "networks.md"),
    "status": _Command("status.status", LOOK, "answers", "increments.md"),
    "report": _Command("report.report", LOOK, "answers", "reports.md"),
    "verify": _Command("verify.verify", LOOK, "answers", "faults.md"),
    "learn": _Command("learn.learn", LEARN, f"{_PATIENTS} -o fitted.bif", "learning.md"),
    "counts": _Command("counts.counts", LEARN, f"{_PATIENTS} -o counts.parquet", "learning.md"),
    "viterbi": _Command("viterbi.viterbi", SEQUENCES, "model.json sequences.parquet -o paths", "hmm.md"),
    "learn-chain": _Command(
        "learn_chain.learn_chain", SEQUENCES, "model.json steps.csv --case-id who -o fitted.json", "hmm.md"
    ),
    "calibrate": _Command("cliques.calibrate", CLIQUES, "data/asia.bif --keep-cliques cliques", "memory.md"),
    "ask": _Command("cliques.ask", CLIQUES, "cliques lung bronc", "memory.md"),
    "deploy": _Command("deploy.app", SCHEDULE, f"run {_PATIENTS} -o answers --cron '0 5 * * *'", "scheduling.md"),
    "serve": _Command("serve.serve", SCHEDULE, "", "scheduling.md"),
    "warmup": _Command("warmup.warmup", MACHINE, "", "running.md"),
    "tune": _Command("tune.tune", MACHINE, "", "forecasts.md"),
    "cache": _Command("cache.cache", MACHINE, "--clear", "running.md"),
}


def _show_version(asked: bool) -> None:
    if asked:
        import junctor

        typer.echo(f"junctor {junctor.__version__}")
        raise typer.Exit


def _about(
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Print the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Exact answers from discrete Bayesian and Markov networks for whole tables of evidence at once."""


def main() -> None:
    """Run the command line, and end the process."""
    # Modules, the network and plans stay; to look for garbage among them every 700 objects takes a tenth of a second.
    gc.set_threshold(COLLECTED_OBJECTS)
    have_input()
    drop_lost_lines()
    end_on_lost_output()
    end_on_sigterm()
    try:
        app_for(_word())()
    except SystemExit as end:
        if isinstance(end.code, int | None):
            _leave(end.code or 0)
        raise


def _leave(code: int) -> None:
    """End the process as Python does, but leave what it holds to the system: to free a GPU's takes 0.3 s."""
    # The order of Python: threads, then whatever asked to be called at the end.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    code = flushed(code)
    # Lost lines are no reason not to end.
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code)


def app_for(word: str = "") -> typer.Typer:
    """Return what understands a command line that begins with a word: its command alone, or all of them."""
    app = typer.Typer(
        cls=Commands,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        help=_about.__doc__,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_about)
    for name in [word] if word in _COMMANDS else _COMMANDS:
        row = _COMMANDS[name]
        command = getattr(import_module(row.module), row.place.rpartition(".")[2])
        epilog = f"Example: `{f'junctor {name} {row.example}'.strip()}`\n\nMore: {DOCS}/{row.page}"
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, rich_help_panel=row.panel, epilog=epilog)
        else:
            app.command(name, rich_help_panel=row.panel, epilog=epilog)(command)
    return app


def _word() -> str:
    """Return the name of the command, where it is known: of the command line, or of one that a shell completes."""
    line = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS", "")
    if "_JUNCTOR_COMPLETE" in os.environ:
        # The last word is that which is completed.
        words = re.split(r"\s", line)[:-1]
    else:
        words = sys.argv
    return words[1] if len(words) > 1 else ""
