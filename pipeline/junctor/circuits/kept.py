"""What stays of circuits from process to process. Main function: `kept_circuit`, called by the strategy."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
from junctor_kernels.circuits.nodes import FlatCircuit

from junctor.backends.prepared_plans import Section
from junctor.circuits.compile import Circuit, compile_circuit, first_indicators
from junctor.circuits.limits import SearchLimits
from junctor.model.network import Network

# Part of keys: another way to search, or other circuits, another one.
SEARCH = 8
# Shorter searches take no longer than to read what they found.
LEAST_DECISIONS = 1000
DTYPES = {"indicators": np.int32, "edges_at": np.int64, "children": np.int32, "weights": np.float64, "is_sum": np.bool_}


def kept_circuit(
    network: Network, fixed: Mapping[int, int], needed: AbstractSet[int], limits: SearchLimits, threads: int
) -> Circuit | str:
    """Return the circuit of a network, or why there is none, searched for unless it is kept.

    All arguments: as of `compile_circuit`.
    """
    key = SEARCH, network.digest, sorted(fixed.items()), sorted(needed), limits
    indicators = int(first_indicators(network)[-1])
    made = lambda: compile_circuit(network, fixed, needed, limits, threads)  # noqa: E731
    return CIRCUIT.kept(key, (indicators,), made, _is_worth)


def _is_worth(found: Circuit | str) -> bool:
    return isinstance(found, str) or found.decisions >= LEAST_DECISIONS


def _pack(found: Circuit | str) -> tuple[Any, dict[str, Any]]:
    if isinstance(found, str):
        return found, {}
    record = found.log, found.fixed, found.order, found.decisions
    return record, found.flat._asdict()


def _unpack(record: Any, arrays: dict[str, Any], indicators: int) -> Circuit | str:
    if isinstance(record, str):
        return record
    log, fixed, order, decisions = record
    flat = FlatCircuit(**{name: arrays[name].astype(dtype, copy=False) for name, dtype in DTYPES.items()})
    _check(flat, indicators)
    return Circuit(flat, log, tuple((v, state) for v, state in fixed), order, decisions)


def _check(flat: FlatCircuit, indicators: int) -> None:
    """Raise ValueError for numbers that are none of the circuit's nodes or of the network's states."""
    nodes, edges, leaves = len(flat.is_sum), len(flat.children), len(flat.indicators)
    counts = np.diff(flat.edges_at)
    owners = np.repeat(np.arange(nodes), counts) if (counts >= 0).all() else np.zeros(0)
    fits = (
        0 < nodes == len(flat.edges_at) - 1
        and leaves <= nodes
        and flat.edges_at[0] == 0
        and len(owners) == edges == len(flat.weights)
        and not counts[:leaves].any()
        and counts[leaves:].all()
        and (flat.children >= 0).all()
        and (flat.children < owners).all()
        and (flat.indicators < indicators).all()
        and (flat.weights > 0).all()
    )
    if not fits:
        raise ValueError("no circuit of this network")


CIRCUIT: Section[Circuit | str] = Section("circuit", _pack, _unpack)
