"""Seconds of what a new user does first, in a new environment with empty caches.

    uv run python benchmarks/first_hour.py [--python 3.13] [--pages README.md docs/quick_start.md]

Clones this repository's last commit into a temporary folder, installs it there by uv (from uv's cache of packages, as
far as they are in it), and runs, as a reader does from top to bottom: the first answer of asia from Python, the demo,
then all commands and Python snippets of the README, the quick start and the tutorials, but for those that need a
server, a GPU or files of the reader's. Nothing that this machine keeps of Junctor is used: each command compiles and
keeps there what it would. Prints a line for each, with seconds by the clock on the wall and of all cores; exits with 1
where something fails, or takes longer than it may.
"""

from __future__ import annotations

import argparse
import doctest
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from common import machine_record

ROOT = Path(__file__).parents[1]
TUTORIALS = ("score_a_table", "schedule_it", "beyond_memory", "learn_with_gaps", "sequences")
PAGES = ("README.md", "docs/quick_start.md", *(f"docs/tutorials/{name}.md" for name in TUTORIALS))
# Seconds that the first answer, and the demo, may take at most on two cores.
FIRST_ANSWER, DEMO = 5.0, 45.0
ASIA = """
import junctor
network = junctor.read_network("data/asia.bif")
print(junctor.posteriors(network, {"smoke": ["yes", None], "xray": ["yes", "no"]}, targets=["lung"])["lung"])
"""
FENCED = re.compile(r"^```(sh|python|csv)\n(.*?)^```", re.M | re.S)
# What needs a server, another machine or a GPU, or is here already.
ELSEWHERE = re.compile(
    r"://|--device gpu|--prefect|junctor (demo|tune|warmup|serve|deploy|status)\b|\.(serve|deploy)\("
)
# Runs the snippets of a page one after the other, as one session.
SESSION = """
import json, sys
names = {}
for line in sys.stdin:
    exec(compile(json.loads(line), "snippet", "exec"), names)
    print("done", file=sys.stderr, flush=True)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--python", default=f"{sys.version_info.major}.{sys.version_info.minor}", help="version, or an interpreter"
    )
    parser.add_argument("--pages", nargs="*", default=PAGES, help="files of this repository")
    asked = parser.parse_args()
    about = machine_record()
    print(f"{about['device']}, {about['date']}, Python {_version(asked.python)}\n")
    print("| what | seconds | of all cores |\n|---|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        here = Reader(Path(folder), asked.python)
        first = here.run("the first answer of asia", ["python", "-c", ASIA])
        demo = here.run("`junctor demo`", ["junctor", "demo"])
        for page in asked.pages:
            here.read(Path(page))
    reached = first <= FIRST_ANSWER and demo <= DEMO
    print(
        f"\nfirst answer {first:.1f} s, of {FIRST_ANSWER:g} at most; demo {demo:.1f} s, of {DEMO:g} at most; "
        f"{here.failed} failed"
    )
    return int(here.failed > 0 or not reached)


class Reader:
    """Somebody who has cloned the repository and nothing else.

    folder: empty.
    python: version.
    """

    def __init__(self, folder: Path, python: str) -> None:
        self.failed = 0
        self._home = folder / "junctor"
        self._environment = _environment(folder, python)
        subprocess.run(["git", "clone", "-q", str(ROOT), str(self._home)], check=True)
        self.run("`uv sync`, packages at hand", ["uv", "sync", "-q"])
        self._environment["PATH"] = f"{self._home / '.venv' / 'bin'}{os.pathsep}{self._environment['PATH']}"

    def run(self, name: str, command: list[str] | str, place: str = "") -> float:
        """Run a command, or a line of the shell, in a folder of the clone, and print and return its seconds."""
        here: dict[str, Any] = {"cwd": self._home / place, "env": self._environment, "text": True}
        with Timed(name) as timed:
            done = subprocess.run(command, shell=isinstance(command, str), capture_output=True, check=False, **here)
            timed.failed = done.returncode != 0
        self._note(timed, done.stderr)
        return timed.seconds

    def read(self, page: Path) -> None:
        """Do what a page says, from top to bottom, in a folder of its own: pages name their outputs alike."""
        place = f"as_told_by_{page.stem}"
        shutil.copytree(self._home / "data", self._home / place / "data")
        command = [shutil.which("python", path=self._environment["PATH"]) or "python", "-c", SESSION]
        here: dict[str, Any] = {"cwd": self._home / place, "env": self._environment, "text": True}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, **here, **pipes) as session:
            for language, text in FENCED.findall((ROOT / page).read_text()):
                if language == "sh":
                    for line in _commands(text):
                        self.run(f"{page.name}: `{line}`", line, place)
                elif language == "python" and not ELSEWHERE.search(text):
                    self._continue(session, page, text)
            assert session.stdin is not None
            session.stdin.close()

    def _continue(self, session: subprocess.Popen[str], page: Path, text: str) -> None:
        """Run a snippet in the session of its page."""
        assert session.stdin is not None
        assert session.stderr is not None
        script = doctest.script_from_examples(text) if ">>>" in text else text
        said: list[str] = []
        with Timed(f"{page.name}: Python, `{text.strip().splitlines()[-1][:60]}`") as timed:
            session.stdin.write(json.dumps(script) + "\n")
            session.stdin.flush()
            for line in session.stderr:
                if line == "done\n":
                    break
                said.append(line)
            else:
                timed.failed = True
        self._note(timed, "".join(said))

    def _note(self, timed: Timed, said: str) -> None:
        self.failed += timed.failed
        if timed.failed:
            print(said[-2000:], file=sys.stderr)


class Timed:
    """Context manager: prints a line of the table with what is done in it."""

    def __init__(self, name: str) -> None:
        self.failed = False
        self.seconds = 0.0
        self._name = name

    def __enter__(self) -> Timed:
        self._started, self._cores = time.monotonic(), _cores()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.monotonic() - self._started
        # Of a session that goes on nobody knows it.
        cores = f"{used:.1f}" if (used := _cores() - self._cores) else ""
        print(f"| {self._name}{' FAILED' * self.failed} | {self.seconds:.1f} | {cores} |", flush=True)


def _version(python: str) -> str:
    """Return the version of an interpreter that uv finds."""
    told = ["uv", "run", "-q", "--no-project", "--python", python, "python", "--version"]
    return subprocess.run(told, capture_output=True, text=True, check=True).stdout.split()[-1]


def _cores() -> float:
    """Return the seconds of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _environment(folder: Path, python: str) -> dict[str, str]:
    """Return an environment in which nothing of Junctor, Numba or Prefect is kept yet."""
    kept = subprocess.run(["uv", "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip()
    left_out = re.compile(r"JUNCTOR_|NUMBA_|PREFECT_|PYTHON|VIRTUAL_ENV|UV_PROJECT")
    plain: Mapping[str, str] = {name: text for name, text in os.environ.items() if not left_out.match(name)}
    own = {"XDG_CACHE_HOME": "cache", "XDG_CONFIG_HOME": "config", "PREFECT_HOME": "prefect"}
    return {
        **plain,
        "UV_CACHE_DIR": kept,
        "UV_PYTHON": python,
        **{name: str(folder / place) for name, place in own.items()},
    }


def _commands(text: str) -> Iterator[str]:
    """Yield the commands of a snippet that run here."""
    for line in text.replace("\\\n", " ").splitlines():
        command = line.partition(" #")[0].strip()
        if command.startswith(("junctor ", "mkdir ")) and not ELSEWHERE.search(command):
            yield command


if __name__ == "__main__":
    sys.exit(main())
