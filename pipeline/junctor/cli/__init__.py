"""The command line, `junctor`: one file a command, and nothing heavy imported before it is needed."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
from contextlib import suppress
from importlib import import_module
from typing import Annotated

import typer

from junctor.cli.failures import Commands, flushed
from junctor.cli.lines import drop_lost_lines, end_on_lost_output, have_input
from junctor.cli.signals import end_on_sigterm

# Objects between two searches for garbage: more than the start of a run makes. Hardly any of them is garbage that waits
# for a search, 2,000 of 240,000 in a run of munin2, with 30 partitions as with one.
COLLECTED_OBJECTS = 300_000
# Where each command is, in the order in which help shows them: with all of them loads as much again as one takes.
_COMMANDS = {
    "run": "run.run",
    "ingest": "ingest.ingest",
    "report": "report.report",
    "finalise": "finalise.finalise",
    "status": "status.status",
    "verify": "verify.verify",
    "serve": "serve.serve",
    "inspect": "inspect.inspect",
    "convert": "convert.convert",
    "validate": "validate.validate",
    "compare": "compare.compare",
    "sample": "sample.sample",
    "draw": "draw.draw",
    "learn": "learn.learn",
    "counts": "counts.counts",
    "calibrate": "cliques.calibrate",
    "ask": "cliques.ask",
    "joint": "cliques.joint",
    "viterbi": "viterbi.viterbi",
    "learn-chain": "learn_chain.learn_chain",
    "tune": "tune.tune",
    "warmup": "warmup.warmup",
    "cache": "cache.cache",
    "demo": "demo.demo",
    "map": "map.propose_mapping",
    "deploy": "deploy.app",
}


def _show_version(asked: bool) -> None:
    if asked:
        import junctor

        typer.echo(f"junctor {junctor.__version__}")
        raise typer.Exit


def _about(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_show_version)
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
        app_for(sys.argv[1] if len(sys.argv) > 1 else "")()
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
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        help=_about.__doc__,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_about)
    for name in [word] if word in _COMMANDS else _COMMANDS:
        module, what = _COMMANDS[name].split(".")
        command = getattr(import_module(f"junctor.cli.{module}"), what)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app
