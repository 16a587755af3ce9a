"""What jobs reach inside the package for: devices that stand in for GPUs, and choices made earlier than by size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from emulation.blocks import EmulatedDevice, small_items
from emulation.chains import SIDE, EmulatedViterbi
from emulation.sampling import EmulatedSampling
from emulation.stored import EmulatedStored
from helpers.chunk_plans import cut_for
from helpers.encoding import encode_table
from helpers.format_helpers import CONTENT
from junctor.backends import gpu_items
from junctor.backends.numpy import BlockOutcome, EvidenceBlock
from junctor.cliques import streamed as stored_stream
from junctor.cliques.tree import StoredTree
from junctor.cost.model import CostModel
from junctor.engine import engine
from junctor.engine.engine import Engine
from junctor.model.network import Network
from junctor.model.options import ComputeOptions
from junctor.model.query import Query, Sampling
from junctor.model.strategies import Strategy
from junctor.out_of_core.gpu import slots as chunk_slots
from junctor.out_of_core.gpu.devices import DeviceGroup
from junctor.out_of_core.gpu.run import ChunkedGpuProgram
from junctor.placement.placement import slot_bytes
from junctor.planning.chunks import ChunkPlan, chunk_plan
from junctor.planning.compile import compile_plan
from junctor.planning.shape import Pattern, shape_of
from junctor.runs import placement
from junctor.runs.results import tables_for
from junctor.runtime import devices
from junctor.runtime.machine import compute_options
from junctor.sampling import gpu as sampling_gpu
from junctor.sampling.gpu import GpuSampling
from junctor.strategies import entries
from junctor.strategies import facts as planner
from junctor.strategies.facts import Facts
from junctor_kernels.gpu import blocks as gpu
from junctor_kernels.gpu import stored_tasks
from junctor_kernels.hmm import device as hmm_gpu
from junctor_kernels.sampling import loopy_gpu as beliefs_gpu
from junctor_kernels.tables.reference import DOUBLE, LOG, SINGLE

ALGEBRAS = {"double": DOUBLE, "single": SINGLE, "log": LOG}
ROOM = 1 << 28
# Entries that a task of these small networks has in memory.
WORKING = 16


@contextmanager
def compiled(strategy: Strategy) -> Iterator[None]:
    """Context manager: rows go one way, in compiled code as for long jobs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entries, "_compiled_seconds", lambda *_: 0.0)
        patch.setattr(Facts, "forced", strategy)
        yield


@contextmanager
def chunks_on_disk() -> Iterator[None]:
    """Send every row in chunks, most of its tables through files."""
    with cut_for(50, disk=True):
        yield


@contextmanager
def no_gpu() -> Iterator[None]:
    """Plan for the GPU that is known best, whatever is here."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (devices, planner, placement):
            patch.setattr(module, "has_gpu", lambda: False)
        patch.setattr(devices, "count_gpus", lambda: 0)
        devices.gpu_at_hand.cache_clear()
        yield
    devices.gpu_at_hand.cache_clear()


@contextmanager
def block_gpu() -> Iterator[EmulatedDevice]:
    """Context manager: a device for blocks of rows, with few threads, each of which is one of this machine's."""
    few = {"FEW_THREADS": 32, "MANY_THREADS": 64, "WRITE_THREADS": 32, "WRITE_BLOCKS": 3, "WRITE_CASES": 17, "RUN": 4}
    device = EmulatedDevice()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in few.items():
            patch.setattr(gpu, name, value)
        patch.setattr(gpu_items, "MAKE_ROWS", 3)
        patch.setattr(CostModel, "launch_tuner", lambda speeds, algebra: small_items())
        for module in (planner, placement):
            patch.setattr(module, "has_gpu", lambda: True)
        patch.setattr(engine, "open_gpu", lambda memory: device)
        patch.setattr("junctor.runtime.dask_cluster.check_device", lambda choice: None)
        yield device


def answers_on(device: EmulatedDevice, network: Network, table: pa.Table, precision: Any) -> pa.Table:
    """Return the posteriors that a device has for rows of evidence."""
    query, encoded = Query(precision=precision), encode_table(table, network)
    found = Engine(network, query, ComputeOptions(1 << 30, 2, "cpu"), expected_rows=table.num_rows, gpu=device)  # type: ignore[arg-type]
    return tables_for(network, query).table(found.answer(encoded.batch), encoded.case_ids)


@contextmanager
def sequence_gpu() -> Iterator[None]:
    """Context manager: a device for sequences."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hmm_gpu, "SIDE", SIDE)
        for module in ("decode_gpu", "smooth_gpu"):
            patch.setattr(f"junctor.hmm.{module}.open_device", EmulatedViterbi)
        patch.setattr("junctor.runtime.dask_cluster.check_device", lambda choice: None)
        yield


@contextmanager
def chunk_gpus() -> Iterator[Any]:
    """Context manager: CuPy's stand-in, which runs streams in a random order, the same one every time."""
    from emulation import cupy_memory as emulated_cupy

    with pytest.MonkeyPatch.context() as patch:
        emulated_cupy.stand_in(patch)
        emulated_cupy.chance.seed(0)
        yield emulated_cupy


def cut(network: Network, working: int = WORKING) -> ChunkPlan:
    """Return the plan of a network without evidence, cut for so many entries a task."""
    plan = compile_plan(shape_of(network), Pattern(frozenset(), frozenset()), rows=1)
    return chunk_plan(plan, working, 1 << 40, 0)


def chunks_on_gpus(network: Network, precision: str, count: int, room: int | None = None) -> pa.Table:
    """Return the posteriors of one row over so many devices; room: bytes that each has for tables."""
    chunks, algebra = cut(network), ALGEBRAS[precision]
    beside = chunk_slots.OFFSET_BYTES + chunk_slots.SLOTS * slot_bytes(chunks, algebra.dtype.itemsize)
    with chunk_gpus() as cupy:
        found = [cupy.Device(ROOM, n) for n in range(count)]
        for device in found if room is not None else []:
            device.room = beside + (room or 0)
        program = ChunkedGpuProgram(chunks, network, algebra, DeviceGroup(chunks, algebra, *found))
        return table_of(network, program.run(EvidenceBlock(1, {}, {})))


def table_of(network: Network, outcome: BlockOutcome) -> pa.Table:
    """Return what a propagation of one row gives."""
    columns: dict[str, Any] = {"log_value": np.atleast_1d(outcome.log_value), "doubtful": np.array(outcome.doubtful)}
    rows = {network.variables[v].name: [each[:, 0]] for v, each in sorted(outcome.posteriors.items())}
    return pa.table({name: pa.array(list(values)) for name, values in (columns | rows).items()})


def samples_on_gpu(network: Network, table: pa.Table, sampler: Any) -> pa.Table:
    """Return estimates that a device makes for rows of evidence."""
    query = Query(method="sampling", sampling=Sampling(sampler, 200, seed=11))
    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((sampling_gpu, "THREADS"), (sampling_gpu, "WAVE_THREADS"), (beliefs_gpu, "THREADS")):
            patch.setattr(module, name, 64)
        engine = Engine(network, query, ComputeOptions(threads=1, device="gpu"))
        found = engine.facts.sampler()
        found.__dict__["gpu"] = GpuSampling(found.sampled, EmulatedSampling(), found.cpu)  # type: ignore[arg-type]
        encoded = encode_table(table, network)
        return tables_for(network, query).table(engine.answer(encoded.batch), encoded.case_ids)


def stored_on_gpu(
    network: Network, said: Mapping[str, Any], size: str, names: tuple[str, ...]
) -> Mapping[str, float | list[float]]:
    """Return log P(evidence) and a joint posterior from clique tables on a device with so many bytes."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in (
            (stored_tasks, "THREADS", 64),
            (stored_tasks, "TILE", 256),
            (stored_tasks, "BLOCKS", 8),
            (stored_stream, "GROUP", 3),
        ):
            patch.setattr(module, name, value)
        device: Any = EmulatedStored()
        options = compute_options(device_memory=size)
        found = StoredTree(network, options=options, pipeline="one", gpu=device).propagate(said)
        return {"log_evidence": found.log_evidence, "posterior": found.posterior(*names).reshape(-1).tolist()}


def network_files() -> dict[str, bytes]:
    """Return one small network in each format that the record has, by a name that says which."""
    endings = {"hugin": "net", "xmlbif": "xmlbif", "xdsl": "xdsl", "bif": "bif", "uai": "uai", "parquet": "parquet"}
    return {f"small.{endings[name]}": content for name, content in CONTENT.items() if name in endings}
