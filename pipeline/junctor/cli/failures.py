"""How the command line fails: one line on stderr and an exit code that means something.

| code | meaning                                                  |
|------|----------------------------------------------------------|
| 0    | done; single rows may still be without an answer         |
| 1    | unexpected: a fault of junctor                           |
| 2    | the command line was not understood                      |
| 3    | network, evidence or settings cannot be used, or an      |
|      | extra of the installation is missing                     |
| 4    | done, but all rows are invalid                           |
| 5    | the work does not fit the memory or disk that is allowed |
| 6    | no run directory, scheduler or worker can be used, or    |
|      | standard output cannot be written                        |
| 7    | done, but a threshold of --fail-if is crossed            |
| 130  | interrupted (Ctrl-C)                                     |
| 141  | whoever read standard output has closed it (| head)      |
| 143  | terminated (SIGTERM, SIGHUP)                             |
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from junctor.cli.lines import CLOSED, is_json, say
from junctor.cli.signals import INTERRUPTED, TERMINATED, Terminated
from junctor.model.errors import AllInvalidError, InputError, JunctorError, RunError


class Commands(TyperGroup):
    """Commands whose expected errors are printed in one line, without a traceback."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Understand the command line; the version and help are printed here."""
        with _in_one_line():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        # Not 1, which Typer would exit with: scripts tell a user's wish from a fault.
        with _in_one_line(), interrupt_message():
            return super().invoke(ctx)


@contextmanager
def _in_one_line() -> Iterator[None]:
    """Context manager: expected errors are printed, and the exit is raised in their place."""
    try:
        yield
    except JunctorError as error:
        raise _exit(str(error), error.exit_code) from error
    except typer.BadParameter as error:
        # What checks a choice says which type of exception it raised.
        error.message = error.message.removeprefix("Value error, ")
        raise
    except OSError as error:
        ours = of_system(error)
        raise _exit(str(ours), ours.exit_code) from error


def flushed(code: int) -> int:
    """Flush standard output and return the exit code: that of what cannot be written if `code` is 0."""
    try:
        sys.stdout.flush()
    except SystemExit:
        return code or CLOSED
    except JunctorError as error:
        return code or _exit(str(error), error.exit_code).exit_code
    return code


def all_invalid(rows: int, why: str | None = None) -> AllInvalidError:
    """Return the error to raise where no row has an answer; rows that are invalid beside others are no failure.

    rows: how many there are.
    why: the first one is invalid; None where the answers say it of each.
    """
    which = "the only row is" if rows == 1 else f"all {rows:,} rows are"
    return AllInvalidError(f"{which} invalid: {why or 'the column `reason` of answers or rejects says why'}")


def of_system(error: OSError) -> JunctorError:
    """Return an error of the operating system as one of ours."""
    if error.filename is not None:
        return InputError(f"{error.filename}: {error.strerror or error}")
    # An error without a file is one of a socket: scheduler and workers.
    return RunError(error.strerror or str(error))


@contextmanager
def interrupt_message(advice: str | None = None) -> Iterator[None]:
    """Context manager: if the user, or a service manager, stops what is inside, say so and exit."""
    try:
        yield
    except BaseException as error:
        wish: BaseException | None = error
        while not isinstance(wish, KeyboardInterrupt | None):
            # Python 3.11 wraps what is raised while a class is made, as modules are when they are imported. And what
            # is raised between two steps of a lock makes that lock fail.
            is_fault = not isinstance(wish, JunctorError | OSError | SystemExit) and not wish.__suppress_context__
            wish = wish.__cause__ or (wish.__context__ if is_fault else None)
        if wish is None:
            raise
        what, code = ("terminated", TERMINATED) if isinstance(wish, Terminated) else ("interrupted", INTERRUPTED)
        raise _exit(f"{what}: {advice}" if advice else what, code) from None


def _exit(message: str, code: int) -> typer.Exit:
    if is_json():
        say("error", message, level="error", exit_code=code)
    else:
        typer.secho("error: ", fg="red", bold=True, err=True, nl=False)
        typer.echo(message, err=True)
    return typer.Exit(code)
