"""Parameters recovered from samples with gaps, against the errors that the observed information predicts.

    uv run python benchmarks/recovery.py NETWORK.bif ... [--rows 100000] [--missing 0.2]

Each network is sampled, a share of the cells is taken out, and its tables are fitted by EM from tables halfway to
uniform ones. If the fitted parameters are normal around the true ones with the inverse of the observed information as
their covariance, then u'I(fitted - true) / sqrt(u'Iu) is standard normal for every direction u. Directions are random,
over parameters of which both states have been counted 20 times or more. Prints the number of free parameters, EM
iterations and seconds, what a row's log-likelihood differs by, and root mean square and share below 1.96 of these
numbers: 1 and 95 % are expected.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from junctor.evidence.batch import EvidenceBatch
from junctor.formats import read_network
from junctor.learning.em import FitOptions, fit
from junctor.learning.errors import ObservedInformation
from junctor.learning.network_fit import NetworkFit
from junctor.learning.observations import observe, values_of
from junctor.learning.parameters import NetworkParameters
from junctor.model.options import ComputeOptions
from learning import cells_of, started

# Counts of both states that a parameter needs for its error to be normal.
LEAST_COUNT = 20


def recovered(path: str, rows: int, missing: float, directions: int, threads: int) -> str:
    """Return the line of a network."""
    network = read_network(path)
    cells = cells_of(network, rows, missing)
    begin = time.perf_counter()
    batch = EvidenceBatch(rows, {v: cells[:, v].copy() for v in range(cells.shape[1])})
    observations = observe(network, [batch], options=ComputeOptions(threads=threads, device="cpu"))
    parameters = NetworkParameters(network, frozenset(), ())
    model = NetworkFit(parameters, np.zeros(len(parameters.values)), observations)
    beginning = NetworkParameters(started(network), frozenset(), ()).values
    found = fit(model, beginning, FitOptions(tolerance=1e-8, max_iterations=100))
    seconds = time.perf_counter() - begin
    truth, values = values_of(network), parameters.tables(found.parameters)
    information = ObservedInformation(observations, values)
    counts = observations.expect(values).counts
    entries, references = information.entries, information.references
    known = np.minimum(counts[entries], counts[references]) >= LEAST_COUNT
    apart = values[entries] - truth[entries]
    rng, numbers = np.random.default_rng(0), []
    for _ in range(directions):
        direction = np.where(known, rng.choice([-1.0, 1.0], len(known)), 0.0) / information.scale
        product = information.times(direction)
        numbers.append(float(product @ apart) / float(np.sqrt(product @ direction)))
    gain = (found.trace[-1].log_likelihood - observations.expect(truth).log_likelihood) / rows
    size, below = float(np.sqrt(np.mean(np.square(numbers)))), float(np.mean(np.abs(numbers) < 1.96))
    return (
        f"{Path(path).stem} | {len(entries):,} | {int(known.sum()):,} | {found.trace[-1].number} | {seconds:.1f} | "
        f"{gain:.2e} | {size:.2f} | {below:.0%}"
    )


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--missing", type=float, default=0.2)
    parser.add_argument("--directions", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    print("network | free | counted | iterations | seconds | nats a row | root mean square | below 1.96")
    print("|".join(["---"] * 8))
    for path in options.networks:
        print(recovered(path, options.rows, options.missing, options.directions, options.threads), flush=True)


if __name__ == "__main__":
    main()
