"""What a command measures: evidence files, pyAgrum's part, the record of what was found. Main class: Measurement."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from common import in_a_child, machine_record
from junctor.formats import read_network
from junctor.generate import sample
from table_cells import Cell, evidence


class Measurement:
    """The files of one command, what it has found, and the record that is stored as it grows."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.record: dict[str, Any] = machine_record() | {"threads": options.threads, "cells": [], "peers": []}
        if options.resume and options.json.exists():
            self.record |= json.loads(options.json.read_text())

    def note(self, what: str, found: dict[str, Any]) -> dict[str, Any]:
        """Add what was found to the record, and store it."""
        self.record.setdefault(what, []).append(found)
        if self.options.json:
            self.options.json.write_text(json.dumps(self.record, indent=1) + "\n")
        return found

    def evidence(self, path: Path, kinds: Sequence[str], rows: int) -> Iterator[tuple[str, Path]]:
        """Yield each kind, and the file of its rows."""
        network, name = read_network(path), path.name.split(".")[0]
        samples = sample(network, rows, self.options.seed)
        for kind in kinds:
            file = self.folder / f"{kind}.npy"
            evidence(network, name, kind, samples, self.options.seed).store(file)
            yield kind, file

    def peer(self, path: Path, kind: str, file: Path) -> Path | None:
        """Have pyAgrum answer the first rows, and return the file of its answers, if there is one."""
        name = {"network": path.name.split(".")[0], "kind": kind}
        stem, seconds = f"{name['network']}-{kind}-{self.options.seed}", self.options.peer_seconds
        folder = self.options.peer or self.folder
        folder.mkdir(parents=True, exist_ok=True)
        times, answers = folder / f"{stem}.json", folder / f"{stem}.npz"
        found: dict[str, Any] = {}
        if times.exists():
            found = json.loads(times.read_text())
        elif seconds > 0:
            from table_peer import answer_peer

            try:
                for said in in_a_child(answer_peer, str(path), file, seconds, answers, silence=60 + 10 * seconds):
                    found = said
            except (TimeoutError, RuntimeError) as error:
                found["error"] = str(error)
                print(f"{stem}: pyAgrum: {error}", file=sys.stderr, flush=True)
            times.write_text(json.dumps(found, indent=1) + "\n")
        if name not in [{key: each[key] for key in name} for each in self.record["peers"]]:
            self.note("peers", name | found)
        return answers if answers.exists() else None

    def cell(self, path: Path, file: Path, kind: str, rows: int, precision: Any, truth: Path | None = None) -> Cell:
        """Return a cell on the CPU with the threads and seconds of the command."""
        threads, seconds = self.options.threads[0], self.options.seconds
        return Cell(str(path), file, kind, rows, precision, threads, "cpu", seconds, truth, self.options.query)
