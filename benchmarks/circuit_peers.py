"""Other programs on what `circuits.py` writes for them: Ganak counts a formula, KLay and PyJuice evaluate a circuit.

    python benchmarks/circuit_peers.py ganak FILE.cnf
    python benchmarks/circuit_peers.py {klay,pyjuice} CIRCUIT.npz [--device cuda] [--seconds 5]

Runs in the environment of the peer, which does not have Junctor: NumPy, the peer, and PyTorch for circuits. Prints a
line of JSON. A circuit is the arrays of a `FlatCircuit`, `variables` and `states` of its indicators (-1 for one that is
always 1), `observed` [rows, variables] (-1 where nothing is) and what the answers are to be: `logs` and `posteriors`
[rows, indicators].
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

# Rows at a time: as many as memory has room for, of these.
BATCHES = (4096, 1024, 256, 64, 16)
# PyJuice has a Python object for each node.
MOST_NODES = 50_000


def ganak(path: Path) -> dict[str, Any]:
    """Return the CPU seconds and the logarithm of a weighted count."""
    from pyganak import WeightedCounter

    counter = WeightedCounter()
    for line in path.read_text().splitlines():
        words = line.split()
        if line.startswith("p cnf"):
            counter.new_vars(int(words[2]))
        elif line.startswith("c p weight"):
            counter.set_lit_weight(int(words[3]), float(words[4]))
        elif words[0] != "c":
            counter.add_clause([int(word) for word in words[:-1]])
    start = time.process_time()
    count = counter.count()
    return {"seconds": time.process_time() - start, "log": math.log(count) if count > 0 else -math.inf}


class Circuit:
    """A circuit, its rows, and what the answers to them are."""

    def __init__(self, path: Path) -> None:
        self.arrays = dict(np.load(path))
        self.leaves = len(self.arrays["indicators"])
        self.logs, self.posteriors = self.arrays["logs"], self.arrays["posteriors"]
        self.variables, self.states = self.arrays["variables"], self.arrays["states"]
        self.observed = self.arrays["observed"]

    def nodes(self) -> Iterator[tuple[bool, dict[int, float]]]:
        """Yield of each node but the indicators whether it is a sum, and its children with their weights."""
        at, is_sum = self.arrays["edges_at"].tolist(), self.arrays["is_sum"].tolist()
        children, weights = self.arrays["children"].tolist(), self.arrays["weights"].tolist()
        for node in range(self.leaves, len(is_sum)):
            terms: dict[int, float] = {}
            for child, weight in zip(children[at[node] : at[node + 1]], weights[at[node] : at[node + 1]], strict=True):
                terms[child] = terms.get(child, 0.0) + weight if is_sum[node] else 1.0
            yield is_sum[node], terms

    def indicators(self) -> np.ndarray:
        """Return the values of the indicators: float64 [rows, indicators]."""
        seen = self.observed[:, self.variables]
        return ((self.variables < 0) | (seen < 0) | (seen == self.states)).astype(np.float64)

    def compared(self, logs: np.ndarray, posteriors: np.ndarray) -> dict[str, float]:
        """Return the largest differences: of log P(e) in parts of itself beyond 1, and of posteriors."""
        real = self.variables >= 0
        scale = np.maximum(1.0, np.abs(self.logs[: len(logs)]))
        return {
            "log_difference": float(np.max(np.abs(logs - self.logs[: len(logs)]) / scale)),
            "posterior_difference": float(np.max(np.abs(posteriors - self.posteriors[: len(logs)])[:, real])),
        }


def klay(path: Path, device: str, seconds: float) -> dict[str, Any]:
    """Return rows a second of KLay, in doubles, upward alone and with what flows back to indicators."""
    import torch

    circuit = Circuit(path)
    start = time.perf_counter()
    module, literals, weights = _klay_module(circuit, device)
    built = time.perf_counter() - start
    inputs = np.ones((len(circuit.observed), literals))
    inputs[:, : circuit.leaves] = circuit.indicators()
    for weight, literal in weights.items():
        inputs[:, literal - 1] = weight
    values = torch.tensor(inputs, dtype=torch.float64, device=device)

    def both(x: Any) -> tuple[Any, Any]:
        roots = module(x.requires_grad_()).reshape(-1)
        (slopes,) = torch.autograd.grad(roots.sum(), x)
        # What a CUDA graph has written, it writes over the next time.
        return roots.detach().clone(), slopes.clone()

    def upward(x: Any) -> None:
        with torch.no_grad():
            module(x)

    found: dict[str, Any] = {"built": built}
    try:
        batch, roots, slopes = _largest_batch(both, values)
    except Exception as error:
        if device == "cpu":
            raise
        # A compiler that PyTorch lacks, say.
        found["not compiled"] = str(error).splitlines()[0]
        module = module._orig_mod
        batch, roots, slopes = _largest_batch(both, values)
    found["batch"] = batch
    found["rows_a_second"] = _rate(lambda: both(values[:batch]), batch, device, seconds)
    found["upward_rows_a_second"] = _rate(lambda: upward(values[:batch].detach()), batch, device, seconds)
    flows = (slopes * values[:batch] / roots[:, None])[:, : circuit.leaves]
    return found | circuit.compared(roots.detach().log().cpu().numpy(), flows.detach().cpu().numpy())


def _klay_module(circuit: Circuit, device: str) -> tuple[Any, int, dict[float, int]]:
    """Return a module, the number of its literals, and those that stand for weights, which KLay's sums do not have."""
    import klay as library

    made, weights = library.Circuit(), dict[float, int]()
    nodes = [
        made.literal_node(leaf + 1) if variable >= 0 else made.true_node()
        for leaf, variable in enumerate(circuit.variables)
    ]

    def term(child: int, weight: float) -> Any:
        if weight == 1:
            return nodes[child]
        literal = weights.setdefault(weight, circuit.leaves + 1 + len(weights))
        return made.and_node([made.literal_node(literal), nodes[child]])

    for is_sum, terms in circuit.nodes():
        children = [term(child, weight) for child, weight in terms.items()]
        nodes.append(made.or_node(children) if is_sum else made.and_node(children))
    made.set_root(nodes[-1])
    made.remove_unused_nodes()
    module = made.to_torch_module(semiring="real", compile=device != "cpu").to(device)
    return module, circuit.leaves + len(weights), weights


def pyjuice(path: Path, device: str, seconds: float) -> dict[str, Any]:
    """Return rows a second of PyJuice, which has single precision, and needs a GPU even to compile a circuit."""
    import pyjuice as library
    import torch

    circuit = Circuit(path)
    if len(circuit.arrays["is_sum"]) > MOST_NODES:
        return {"error": f"PyJuice has a Python object for each node: more than {MOST_NODES:,}"}
    start = time.perf_counter()
    root, inputs = _pyjuice_nodes(circuit)
    if not torch.cuda.is_available():
        return {"error": "PyJuice compiles a circuit on a GPU only"}
    model = library.compile(root, verbose=False).to(device)
    built = time.perf_counter() - start
    rows = torch.tensor(circuit.observed, dtype=torch.long, device=device)
    missing = rows < 0

    def both(rows: Any) -> tuple[Any, None]:
        logs = model(rows.clamp(min=0), missing_mask=missing[: len(rows)])
        model.backward(
            rows.clamp(min=0),
            compute_param_flows=False,
            logspace_flows=False,
            allow_modify_flows=False,
            missing_mask=missing[: len(rows)],
        )
        return logs.reshape(-1), None

    batch, logs, _ = _largest_batch(both, rows)
    flows = torch.stack([model.node_flows[node._output_ind_range[0]] for node in inputs], dim=1)
    found = {"batch": batch, "built": built} | circuit.compared(logs.cpu().numpy(), flows.cpu().numpy())
    return found | {"rows_a_second": _rate(lambda: both(rows[:batch]), batch, device, seconds)}


def _pyjuice_nodes(circuit: Circuit) -> tuple[Any, list[Any]]:
    """Return the root and the indicators as nodes, of which products and sums have to alternate."""
    import pyjuice as library
    import torch
    from pyjuice.nodes.distributions import Literal

    pairs = zip(circuit.variables.tolist(), circuit.states.tolist(), strict=True)
    nodes = [library.inputs(variable, num_node_blocks=1, dist=Literal(state)) for variable, state in pairs]
    inputs, turned = list(nodes), dict[int, Any]()

    def child(number: int, of_sum: bool) -> Any:
        node = nodes[number]
        if not (node.is_sum() if of_sum else node.is_prod()):
            return node
        if number not in turned:
            turned[number] = library.multiply(node) if of_sum else library.summate(node, num_node_blocks=1)
            if not of_sum:
                turned[number].set_params(torch.ones(1, 1, 1), normalize=False)
        return turned[number]

    for is_sum, terms in circuit.nodes():
        children = [child(number, is_sum) for number in terms]
        if is_sum:
            node = library.summate(*children, num_node_blocks=1)
            node.set_params(torch.tensor(list(terms.values())).reshape(-1, 1, 1), normalize=False)
        else:
            node = library.multiply(*children)
        nodes.append(node)
    return nodes[-1], inputs


def _largest_batch(answer: Callable[[Any], tuple[Any, Any]], rows: Any) -> tuple[int, Any, Any]:
    """Return the rows of the largest batch that fits, and what it answers."""
    import torch

    for batch in BATCHES:
        try:
            return (min(batch, len(rows)), *answer(rows[:batch].detach()))
        except (torch.OutOfMemoryError, MemoryError):
            torch.cuda.empty_cache()
    raise MemoryError(f"no batch of {BATCHES[-1]} rows fits")


def _rate(answer: Callable[[], object], rows: int, device: str, seconds: float) -> float:
    """Return the rows a second of the best of several rounds."""
    import torch

    best, end = math.inf, time.perf_counter() + seconds
    while best == math.inf or time.perf_counter() < end:
        start = time.perf_counter()
        answer()
        if device != "cpu":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return rows / best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=("ganak", "klay", "pyjuice"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--device", default="cuda", help="of PyTorch")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a measurement")
    asked = parser.parse_args()
    if asked.peer == "ganak":
        found = ganak(asked.file)
    else:
        found = {"klay": klay, "pyjuice": pyjuice}[asked.peer](asked.file, asked.device, asked.seconds)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
