"""What a computation may use: the same record from the command line, flows, Python and settings down to the engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from junctor.model.errors import EvidenceError
from junctor.model.query import one_of
from junctor.model.strategies import Strategy

# Defined here and not with the devices, so that the command line offers the choices without looking for a GPU.
DeviceChoice = Literal["cpu", "gpu", "auto"]
DEVICE_CHOICES: tuple[DeviceChoice, ...] = get_args(DeviceChoice)
# How copies of chunks of clique tables overlap with the work on a GPU: not at all, in one queue for both ways, in two,
# one for either way.
PipelineName = Literal["none", "one", "two"]
PIPELINES: tuple[PipelineName, ...] = get_args(PipelineName)
OutputFormat = Literal["parquet", "arrow"]
# What becomes of a sequence whose numbered steps have gaps: it is invalid; nothing was observed there; or rows are
# neighbours all the same.
Gaps = Literal["invalid", "unobserved", "ignore"]
Layout = Literal["lists", "columns"]
Compression = Literal["zstd", "lz4", "none"]
# Parameters that EM begins with, of a network and of a hidden Markov model.
Start = Literal["network", "random", "uniform"]
ChainStart = Literal["model", "random", "uniform"]
# What becomes of rows that the zeros of the network rule out.
Impossible = Literal["refuse", "skip", "smooth"]
Acceleration = Literal["squarem", "none"]


@dataclass(frozen=True, slots=True)
class ComputeOptions:
    """Memory, threads, devices and disk of one process (or of all workers together, where a run divides them).

    memory: bytes for propagation; None for a share of the free memory.
    threads: number of CPU threads, None for the usable cores, of which engines take 32 at most for a batch; answers do
        not depend on it.
    device: "auto" takes a GPU where there is one and the forecast favours it.
    device_memory: bytes of each GPU for blocks and chunks, None for a share of its free memory; on a CPU the bytes
        for the tables of one block or task, None for no limit in addition to `memory`.
    spill_dir: folder for tables that exceed the memory; None for the system's temporary folder.
    spill_bytes: bytes of files in that folder; None for half of its free space.
    all_gpus: whether out-of-core rows use all GPUs that the process sees, not only the first.
    time_limit: seconds that a row may be forecast to take, None for the default: a day, or what `--method auto` allows.
    strategy: the way that all rows go, None for the one that is forecast to take least.
    """

    memory: int | None = None
    threads: int | None = None
    device: DeviceChoice = "auto"
    device_memory: int | None = None
    spill_dir: Path | None = None
    spill_bytes: int | None = None
    all_gpus: bool = False
    time_limit: float | None = None
    strategy: Strategy | None = None


@dataclass(frozen=True, slots=True)
class AnswerFiles:
    """How the answers of a run are written; raises EvidenceError for unknown names.

    format: Parquet or Arrow IPC.
    layout: posteriors as a list for each variable, or as a column of numbers for each state.
    compression: of columns; `zstd` at its first level. Its default is that of the question.
    keep: columns of the evidence that are carried through, after the case ids.
    """

    format: OutputFormat = "parquet"
    layout: Layout = "lists"
    compression: Compression = "zstd"
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        one_of("output format", self.format, OutputFormat)
        one_of("layout", self.layout, Layout)
        one_of("compression", self.compression, Compression)
        if twice := [name for name in self.keep if self.keep.count(name) > 1]:
            raise EvidenceError(f"column {twice[0]!r} to keep is named twice")


# What an engine of its own gets without options: answers need no more, and a caller's other threads stay free.
ONE_THREAD = ComputeOptions(threads=1, device="cpu")
