"""Joint posteriors of pairs of variables: by messages and from stored tables, forecast and measured.

    uv run python benchmarks/joint.py NETWORK ... [--questions 1 16 64 200]

Pairs share a clique and are chosen at random. Seconds are those of the process after the forecast, all threads
together, in a process that has loaded its code.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from junctor.cliques.joint import JointPosteriors, JointQuestions
from junctor.formats import read_network
from junctor.model.network import Network
from junctor.planning.cliques import plan_stored
from junctor.planning.shape import shape_of


def pairs(network: Network, count: int) -> list[list[str]]:
    """Return pairs of variables that share a clique, the same ones every time."""
    scopes = [clique.layout for clique in plan_stored(shape_of(network)).cliques if len(clique.layout) > 1]
    rng = np.random.default_rng(count)
    chosen = [rng.permutation(scopes[rng.integers(len(scopes))])[:2] for _ in range(count)]
    return [[network.variables[v].name for v in pair] for pair in chosen]


def seconds_of(ask: Callable[[], JointPosteriors]) -> tuple[float, JointPosteriors]:
    """Return what an answer takes, and the answer."""
    started = time.process_time()
    found = ask()
    return time.process_time() - started, found


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--questions", nargs="+", type=int, default=[1, 16, 64, 200])
    options = parser.parse_args()
    print("network | questions | messages: said | taken | stored: said | taken | chosen | apart")
    print("|".join(["---"] * 8))
    for path in options.networks:
        network, name = read_network(path), Path(path).name.split(".")[0]
        for number, count in enumerate((options.questions[0], *options.questions)):
            asked = pairs(network, count)
            questions = JointQuestions(network, asked, {})
            said = questions.forecast()
            messages, one = seconds_of(questions.by_messages)
            stored, other = seconds_of(questions.from_tables)
            apart = max(float(np.abs(a - b).max()) for a, b in zip(one.posteriors, other.posteriors, strict=True))
            # The first one loads compiled code.
            if number:
                print(
                    f"{name} | {count} | {said.messages:.3g} | {messages:.3g} | {said.stored:.3g} | {stored:.3g} | "
                    f"{said.chosen} | {apart:.1e}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
