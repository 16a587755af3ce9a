"""Where the parts of a run are answered: the device, the number of processes, and whether these share rows.

Main function: `place`, which is pure; nothing else in `junctor.runs` compares devices or chooses a number of processes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.util import find_spec

from junctor.cost import policy
from junctor.cost.figures import shipped_figures
from junctor.model.options import DeviceChoice
from junctor.model.strategies import Chosen
from junctor.planning.budget import format_bytes
from junctor.runtime.dask_cluster import Resources
from junctor.runtime.devices import count_gpus, has_gpu
from junctor.runtime.installed import has_extra
from junctor.runtime.machine import allowed_memory, usable_cores

# Cores that one process keeps busy with its threads; only machines with more get several processes by default, of so
# many cores each. Measured on 16 and 32 cores (docs/measurements/threads.md); 2026-11-26.
PROCESS_CORES, WORKER_CORES = 16, 4


@dataclass(frozen=True, slots=True)
class RunEstimate:
    """Estimate of the remaining partitions.

    least: bytes for each process.
    seconds: of one core, or of the GPU that was asked for.
    gpu_seconds: of a GPU that was not asked for, infinite without one; None if nothing is known of GPUs.
    in_chunks: part of `seconds` for out-of-core rows.
    by_parts, by_rows: seconds of those rows where each process answers those of its partitions, and where workers
        answer each of them, one or all together; equal where nobody asked.
    choices: how rows of the first partition are answered.
    """

    least: int = 0
    seconds: float = 0.0
    gpu_seconds: float | None = None
    in_chunks: float = 0.0
    by_parts: float = 0.0
    by_rows: float = 0.0
    choices: tuple[Chosen, ...] = ()

    @property
    def is_mostly_in_chunks(self) -> bool:
        """True if out-of-core rows take more than half of the time."""
        return self.in_chunks > self.seconds / 2


@dataclass(frozen=True, slots=True)
class Machine:
    """What a run may use.

    device, workers: that are asked for; of a scheduler the workers that are there.
    cores: of this machine.
    gpus: that may be used, of this machine or of a scheduler's workers.
    memory: bytes for propagation, of all processes together.
    is_remote: whether workers of a scheduler answer.
    has_cluster, has_gpu_cluster: whether other processes can be started, and some with a GPU each.
    """

    device: DeviceChoice = "auto"
    workers: int | None = None
    cores: int = 1
    gpus: int = 0
    memory: int = 1 << 30
    is_remote: bool = False
    has_cluster: bool = True
    has_gpu_cluster: bool = True

    @classmethod
    def of(cls, resources: Resources) -> Machine:
        """Return what there is here of what is asked for."""
        compute, remote = resources.compute, resources.scheduler is not None
        gpus = count_gpus() if compute.device != "cpu" and has_gpu() else 0
        extras = has_extra("cluster"), find_spec("dask_cuda") is not None
        return cls(compute.device, resources.workers, usable_cores(), gpus, allowed_memory(compute), remote, *extras)

    @property
    def is_for_gpu(self) -> bool:
        """True if rows are planned for this machine's GPUs; where nobody asks for them, for the CPU until `place`."""
        return self.device == "gpu" and not self.is_remote

    @property
    def has_choice(self) -> bool:
        """True if the CPU or a GPU of this machine may answer."""
        return self.device == "auto" and self.gpus > 0

    @property
    def is_one_gpu(self) -> bool:
        """True if this process is sure to use the first GPU, whatever there is to do."""
        return self.is_for_gpu and (self.gpus == 1 if self.workers is None else self.workers < 2)

    @property
    def processes(self) -> int:
        """How many may share rows: with a GPU each, or those that are asked for."""
        if self.is_for_gpu:
            return self.gpus if self.workers is None else min(self.workers, self.gpus)
        return self.workers or 1

    def takes_all_gpus(self, partitions: int) -> bool:
        """Return True if this process plans with all GPUs, because there are too few partitions for others."""
        return self.is_for_gpu and partitions < self.gpus

    def may_spread(self, estimate: RunEstimate | None, partitions: int) -> bool:
        """Return True if `place` has to know what out-of-core rows take `by_parts` and `by_rows`.

        estimate: None where no worker of a scheduler can answer a row alone.
        partitions: number of those that are not answered.
        """
        if estimate is None:
            # Each worker with a GPU has files; others have more memory together.
            return not self.gpus and self.processes > 1
        if self.is_remote:
            may = self.gpus > 0 or partitions < self.processes
        elif self.is_for_gpu:
            # With a partition for each there are processes in any case; whoever asked for some is told what they lack.
            may = partitions < self.processes and (self.workers is not None or self.has_gpu_cluster)
        else:
            # Without sharing one process answers such rows, as each takes all the memory.
            may = self.processes > 1
        return may and estimate.is_mostly_in_chunks


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the parts of a run are answered.

    device: of all processes; where it is "auto", workers of a scheduler choose.
    workers: processes of this machine that answer parts, or rows; 1 for this one, or none beside a scheduler's.
    spread: whether this process plans out-of-core rows, and workers answer each of them.
    reason: for people.
    seconds: of all work on the device, 0 where nothing is known.
    abreast: out-of-core rows that are answered at a time, at the most.
    warnings: why there are no more processes, where others would do better.
    """

    device: DeviceChoice
    workers: int
    spread: bool
    reason: str
    seconds: float = 0.0
    abreast: int = 1
    warnings: tuple[str, ...] = ()


def place(estimate: RunEstimate, machine: Machine, partitions: int) -> Placement:
    """Return where the parts of a run are answered.

    estimate: of the partitions.
    machine: what they may use.
    partitions: number of those that are not answered.
    """
    device, where = _device(estimate, machine)
    # Whoever asks for processes does not mind their start.
    start = shipped_figures().gpu_host.start if machine.is_for_gpu and machine.workers is None else 0.0
    # Where no device was asked for, it is for CPUs that workers were found to be faster.
    spread = estimate.by_rows + start < estimate.by_parts and device in (machine.device, "cpu")
    # Those of a GPU that was asked for are its own.
    known = estimate.gpu_seconds if device == "gpu" and estimate.gpu_seconds != math.inf else estimate.seconds
    seconds = 0.0 if known is None or math.isinf(known) else known
    if machine.is_remote:
        # Rows that all workers share have seconds of their own.
        who = f"workers of the scheduler take {'rows that exceed the memory one by one' if spread else 'parts'}"
        return Placement(device, 1, spread, f"{where}; {who}", 0.0 if spread else seconds)
    workers, why, warnings = _processes(estimate, machine, device, partitions)
    if spread:
        workers, warnings = machine.workers or machine.gpus, ()
        why = f"rows that exceed the memory one by one take {estimate.by_rows:.3g} s, by parts {estimate.by_parts:.3g}"
    abreast = max(machine.workers or 1, machine.gpus if device == "gpu" else 1) if estimate.in_chunks else 1
    who = "this process" if workers == 1 else f"{workers} processes"
    return Placement(device, workers, spread, f"{where}; {who}: {why}", seconds, abreast, warnings)


def _device(estimate: RunEstimate, machine: Machine) -> tuple[DeviceChoice, str]:
    """Return the device and why; workers of a scheduler choose for themselves."""
    if machine.device != "auto":
        return machine.device, f"device {machine.device}: asked for"
    if machine.is_remote:
        return machine.device, "device auto: each worker chooses"
    # A GPU without measurements counts as far faster than a core.
    there = (estimate.gpu_seconds or 0.0) + shipped_figures().gpu_host.ready
    here = estimate.seconds / machine.cores**policy.CORES
    device: DeviceChoice = "gpu" if machine.gpus and there < here else "cpu"
    beside = f", with a GPU {there:.3g}" if machine.gpus else ", no GPU here"
    return device, f"device {device}: about {here:.3g} s by {machine.cores} cores{beside}"


def _processes(
    estimate: RunEstimate, machine: Machine, device: DeviceChoice, partitions: int
) -> tuple[int, str, tuple[str, ...]]:
    """Return how many processes answer parts, why, and warnings: those asked for, or by the estimate."""
    warnings: list[str] = []
    if machine.workers is not None:
        workers, why = machine.workers, "asked for"
    elif device == "gpu":
        # Those of a core where a GPU was not asked about, or is not known.
        seconds = min(estimate.seconds, math.inf if estimate.gpu_seconds is None else estimate.gpu_seconds)
        workers, why = (
            int(min(machine.gpus, seconds / policy.GPU_PROCESS)),
            f"a GPU for each {policy.GPU_PROCESS:g} s of work",
        )
        if partitions < workers and estimate.is_mostly_in_chunks:
            # A worker has one GPU, and some would have nothing to do.
            workers, why = 1, "rows that exceed the memory take all GPUs of one process"
    elif machine.cores > PROCESS_CORES:
        workers = int(min(machine.cores // WORKER_CORES, estimate.seconds / policy.PROCESS))
        why = f"{WORKER_CORES} cores for each {policy.PROCESS:g} s of work"
    else:
        workers, why = 1, "its threads keep the cores busy"
    if machine.workers is None and workers > 1 and not machine.has_cluster:
        warnings.append(f'one process answers, {workers} would be faster: pip install "junctor[cluster]"')
        workers = 1
    # Fewer processes rather than smaller shares: a plan that does not fit would end the run.
    if workers * estimate.least > machine.memory:
        fitting = machine.memory // estimate.least
        sizes = format_bytes(machine.memory), format_bytes(estimate.least)
        warnings.append("memory for {} of {} workers: {} are allowed, a plan needs {}".format(fitting, workers, *sizes))
        workers = fitting
    return max(1, min(workers, partitions)), why, tuple(warnings)
