"""Random kills of client, workers, scheduler and Prefect server: no row is lost or doubled, the bytes stay the same."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import time
from pathlib import Path

import junctor
import psutil
import pytest
from helpers.signals import COMMAND, children_of, command_of, dask_cluster, workers_of
from junctor.generate import evidence_table, random_network, sample
from junctor.runs.integrity import verify
from junctor.runs.storage import RunDirectory
from pyarrow import parquet

ROWS, PARTS = 4_800, 24
# Of each output; four modes in turns.
KILLS = 4
EPISODES = 25
MODES = ("here", "workers", "scheduler", "server")
PATIENCE = 120.0


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    network = random_network(25, seed=5)
    junctor.write_network(network, folder / "net.bif")
    table = evidence_table(network, sample(network, ROWS), observed=0.3, pattern="missing", missing=0.01)
    parquet.write_table(table, folder / "evidence.parquet")
    done = subprocess.run(
        command(folder, folder / "whole", "--no-prefect", "--workers", "0"), stderr=subprocess.PIPE, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder


def command(inputs: Path, out: Path, *more: str) -> list[str]:
    words = ["run", str(inputs / "net.bif"), str(inputs / "evidence.parquet"), "-o", str(out), "--case-id", "case_id"]
    return [*COMMAND, *words, "--partition-rows", str(ROWS // PARTS), "--quiet", *more]


class Episode:
    """One output and its kills: each at a random moment of a call, and a last call that nobody kills."""

    def __init__(self, inputs: Path, out: Path, seed: int, kills: int = KILLS) -> None:
        self.inputs, self.out, self.kills = inputs, out, kills
        self.random = random.Random(seed)
        self.mode = MODES[seed % len(MODES)]
        self.killed: list[str] = []

    def run(self) -> None:
        while len(self.killed) < self.kills:
            self.call(kill=True, first=not self.killed)
            # With a worker killed it may have ended well, or before its moment came.
            if (self.out / "manifest.json").exists():
                self.lose_some()
        for _ in range(3):
            if self.call(kill=False) == 0:
                return
        raise AssertionError("it does not end")

    def call(self, kill: bool, first: bool = False) -> int:
        with contextlib.ExitStack() as stack:
            cluster = None
            if self.mode == "scheduler":
                cluster, address = stack.enter_context(dask_cluster())
                how = ["--no-prefect", "--scheduler", address]
            elif self.mode == "server":
                how = ["--prefect", "--workers", self.random.choice("02")]
            else:
                how = ["--no-prefect", "--workers", "0" if self.mode == "here" else "2"]
            words = command(self.inputs, self.out, *how)
            process = stack.enter_context(subprocess.Popen(words, stderr=subprocess.PIPE, text=True))
            if kill and self.moment(process, first):
                self.strike(process, cluster)
            said = process.communicate(timeout=PATIENCE)[1]
            # Ended well, by a kill, or by a message.
            assert process.returncode in (0, -9, 6), said
            assert "Traceback" not in said
            if not kill and process.returncode:
                raise AssertionError(said)
            return process.returncode

    def lose_some(self) -> None:
        (self.out / "manifest.json").unlink()
        for path in sorted(self.out.glob("posteriors/part-*")):
            if self.random.random() < 0.7:
                path.unlink()

    def moment(self, process: subprocess.Popen[str], first: bool) -> bool:
        """Wait for a random moment; False if the process has ended before."""
        done = len(list(self.out.glob("posteriors/part-*")))
        stages = [("posteriors/part-*", self.random.randint(min(done, PARTS - 1), PARTS - 1)) for _ in range(3)]
        stages += [("posteriors/.*.tmp", 1)]
        if first:
            stages += [("evidence/part-*", self.random.randrange(PARTS)), ("run.json", 1)]
        pattern, count = self.random.choice(stages)
        patience = self.random.random() * 4 if pattern.endswith("tmp") else PATIENCE
        started = time.monotonic()
        while len(list(self.out.glob(pattern))) < count and time.monotonic() - started < patience:
            if process.poll() is not None:
                return False
            time.sleep(0.001)
        time.sleep(self.random.random() * 0.05)
        return process.poll() is None

    def strike(self, process: subprocess.Popen[str], cluster: subprocess.Popen[str] | None) -> None:
        victims = ["client"]
        workers = workers_of(cluster or process)
        if workers:
            victims += ["worker", "worker"]
        if cluster is not None:
            victims += ["scheduler"]
        servers = [each for each in children_of(process) if "junctor_flows.server" in command_of(each)]
        if servers:
            victims += ["server"] * 3
        victim = self.random.choice(victims)
        with contextlib.suppress(psutil.NoSuchProcess):
            if victim == "worker":
                self.random.choice(workers).kill()
            elif victim == "server":
                servers[0].kill()
            else:
                (cluster if victim == "scheduler" and cluster else process).kill()
            self.killed.append(victim)

    def check(self) -> None:
        whole = self.inputs / "whole"
        names = sorted(path.name for path in (whole / "posteriors").iterdir())
        assert sorted(path.name for path in (self.out / "posteriors").iterdir()) == names
        for name in names:
            assert (self.out / "posteriors" / name).read_bytes() == (whole / "posteriors" / name).read_bytes()
        ids = parquet.read_table(self.out / "posteriors", columns=["case_id"])["case_id"]
        assert ids.equals(parquet.read_table(self.inputs / "evidence.parquet")["case_id"].cast(ids.type))
        parts = [json.loads((each / "manifest.json").read_text())["parts"] for each in (self.out, whole)]
        assert parts[0] == parts[1]
        assert verify(RunDirectory(self.out)).faults == ()
        assert not list(self.out.rglob("*.tmp"))


def test_kills(inputs: Path, tmp_path: Path) -> None:
    kill(Episode(inputs, tmp_path / "out", seed=0, kills=2))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(EPISODES))
@pytest.mark.timeout(900)
def test_random_kills(inputs: Path, tmp_path: Path, seed: int) -> None:
    kill(Episode(inputs, tmp_path / "out", seed))


def kill(episode: Episode) -> None:
    episode.run()
    print(f"{episode.mode}: killed {', '.join(episode.killed) or 'nobody'}")
    episode.check()
