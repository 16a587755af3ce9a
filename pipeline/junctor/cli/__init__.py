"""The command line, `junctor`: one file a command, and nothing heavy imported before it is needed."""

from __future__ import annotations

import atexit
import copy
import gc
import sys
from typing import Annotated

import typer
from typer.main import get_command_name

from junctor.cli.cache import cache
from junctor.cli.cliques import ask, calibrate, joint
from junctor.cli.convert import convert
from junctor.cli.counts import counts
from junctor.cli.demo import demo
from junctor.cli.deploy import app as deploy
from junctor.cli.failures import Commands
from junctor.cli.finalise import finalise
from junctor.cli.inspect import inspect
from junctor.cli.learn import learn
from junctor.cli.learn_chain import learn_chain
from junctor.cli.map import propose_mapping
from junctor.cli.report import report
from junctor.cli.run import run
from junctor.cli.serve import serve
from junctor.cli.signals import end_on_sigterm
from junctor.cli.status import status
from junctor.cli.tune import tune
from junctor.cli.validate import validate
from junctor.cli.verify import verify
from junctor.cli.viterbi import viterbi
from junctor.cli.warmup import warmup

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Exact answers from discrete Bayesian and Markov networks for whole tables of evidence at once.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
# Objects between two searches for garbage.
COLLECTED_OBJECTS = 10_000
_RUNS = (run, report, finalise, status, verify, serve)
_NETWORKS = (inspect, convert, validate, learn, counts, calibrate, ask, joint)
for command in (*_RUNS, *_NETWORKS, viterbi, learn_chain, tune, warmup, cache, demo):
    app.command()(command)
app.command("map")(propose_mapping)
app.add_typer(deploy, name="deploy")


def _show_version(asked: bool) -> None:
    if asked:
        import junctor

        typer.echo(f"junctor {junctor.__version__}")
        raise typer.Exit


@app.callback()
def show_help(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Exact answers from discrete Bayesian and Markov networks for whole tables of evidence at once."""


def main() -> None:
    """Run the command line."""
    # Modules, the network and plans stay; to look for garbage among them every 700 objects takes a tenth of a second.
    gc.set_threshold(COLLECTED_OBJECTS)
    # What the process holds at its end is freed with it; to look for garbage in it first takes a third of a second.
    atexit.register(gc.freeze)
    end_on_sigterm()
    _app_for(sys.argv[1] if len(sys.argv) > 1 else "")()


def _app_for(word: str) -> typer.Typer:
    """Return what understands a command line that begins with a word: its command alone, or all of them."""
    commands = [each for each in app.registered_commands if word == _name_of(each)]
    groups = [each for each in app.registered_groups if word == each.name]
    if not commands and not groups:
        return app
    # Typer looks at every option of every command before it looks at the command line: a twentieth of a second.
    chosen = copy.copy(app)
    chosen.registered_commands, chosen.registered_groups = commands, groups
    return chosen


def _name_of(command: typer.models.CommandInfo) -> str:
    return command.name or get_command_name(command.callback.__name__ if command.callback else "")
