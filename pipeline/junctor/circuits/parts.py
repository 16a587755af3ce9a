"""Targets in parts, each with a circuit of its own, where there is none for all of them.

Main function: `in_parts`; main class: CircuitParts. Barren variables are the reason: of a Bayesian network each part
needs its targets, the evidence and the ancestors of these alone, which may be far fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, TypeVar

from junctor.circuits.evaluate import CircuitProgram
from junctor.evidence.batch import EvidenceBatch, Rows
from junctor.model.answers import Answers
from junctor.model.network import Network

if TYPE_CHECKING:
    from junctor_kernels.gpu.blocks import BlockDevice

Found = TypeVar("Found")

# Searches for parts of the targets of which one may fail.
MOST_SEARCHES = 64


class CircuitParts:
    """Circuits that answer rows together, one of all targets or one of each part; safe between threads."""

    def __init__(self, programs: Sequence[CircuitProgram]) -> None:
        self.programs = tuple(programs)
        self.fixed = programs[0].circuit.fixed
        self.edges = sum(each.circuit.edges for each in programs)
        self.decisions = sum(each.circuit.decisions for each in programs)
        self.nbytes = sum(each.nbytes for each in programs)
        self.block_bytes = max(each.block_bytes for each in programs)

    def answer(
        self, batch: EvidenceBatch, rows: Rows, answers: Answers, threads: int, device: BlockDevice | None = None
    ) -> None:
        """Do what `CircuitProgram.answer` does, part by part."""
        for program in self.programs:
            program.answer(batch, rows, answers, threads, device)

    def gpu_host_bytes(self, batch: EvidenceBatch, rows: int) -> int:
        """Return the bytes of memory beside GPUs, as of `CircuitProgram.gpu_host_bytes`."""
        return sum(each.gpu_host_bytes(batch, rows) for each in self.programs)

    def explain(self, batch: EvidenceBatch, rows: Rows, answers: Answers, threads: int) -> None:
        """Do what `CircuitProgram.explain` does, by the one circuit that there is."""
        (program,) = self.programs
        program.explain(batch, rows, answers, threads)


def in_parts(targets: Sequence[int], search: Callable[[Collection[int]], Found | str]) -> list[Found] | str:
    """Return what a search finds of each part of the targets, or why there is nothing of some; halves come first.

    targets: neighbours are best in one part.
    search: returns what it found of some targets, or why there is nothing.
    """
    found: list[Found] = []
    # Without a target there is P(e) to find; where it is not, no part can be.
    nothing = search(())
    if isinstance(nothing, str):
        return nothing
    waiting = [half for half in _halves(targets) if half]
    for _ in range(MOST_SEARCHES):
        if not waiting:
            return found or [nothing]
        part = waiting.pop()
        one = search(part)
        if not isinstance(one, str):
            found.append(one)
        elif len(part) == 1:
            return one
        else:
            waiting += _halves(part)
    return f"no circuits of parts of the targets after {MOST_SEARCHES} searches"


def _halves(targets: Sequence[int]) -> list[Sequence[int]]:
    """Return two halves, the first of them last."""
    middle = len(targets) // 2
    return [targets[middle:], targets[:middle]]


def parents_first(network: Network, first: Collection[int]) -> list[int]:
    """Return all variables of a Bayesian network, ancestors of some before others, and of each before itself."""
    found: dict[int, None] = {}
    for v in (*sorted(first), *range(len(network.variables))):
        waiting = [v]
        while waiting:
            parents = [parent for parent in network.factors[waiting[-1]].scope[:-1] if parent not in found]
            if parents and waiting[-1] not in found:
                waiting += parents
            else:
                found.setdefault(waiting.pop())
    return list(found)
