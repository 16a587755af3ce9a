"""Samples of one row on the CPU: its importance function, how it learns, and sums over samples, on several threads.

Main class: CpuSampling; called by `sampling.engine` through SampleDevice, which `sampling.gpu` implements as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from typing import Protocol

import numpy as np
import numpy.typing as npt
from junctor_kernels.sampling import cpu as sampling_cpu
from junctor_kernels.sampling.layout import BLOCK, STATES, WEIGHED, Function, SampledCase, Samples, Sums, add, own_share
from junctor_kernels.sampling.philox import RandomStream
from junctor_kernels.sampling.reference import blocks_of

from junctor.model.query import Sampler
from junctor.runtime.threads import in_threads
from junctor.sampling.cases import CaseLayout
from junctor.sampling.epis import LoopyMessages, epis_function
from junctor.sampling.estimate import pieces_of
from junctor.sampling.importance import first_function, least_of, make_uniform, own_function
from junctor.sampling.tables import SampledNetwork

# Samples that a thread draws at a time. Sums are added in the order of these pieces, so that threads change no digit.
PIECE = 64 * BLOCK

Scores = npt.NDArray[np.int64]
# Waits for samples and returns their sums.
Pending = Callable[[], Sums]


class RowSampler(Protocol):
    """Draws samples of one row from its importance function; a device may still be drawing when its methods return."""

    def sums(self, stream: RandomStream, first: int, count: int, own: float) -> Pending:
        """Begin to draw samples and return a function that waits for their sums.

        stream: random numbers of the row and stage.
        first: number of the first sample, a multiple of BLOCK.
        count: number of samples.
        own: share of the samples of the stage that is drawn from the tables themselves, see `own_share`; 0 for none.
        """

    def learn(self, stream: RandomStream, count: int, rate: float, sums: bool) -> Pending | None:
        """Begin to learn from samples; returns a function that waits for their sums, or None.

        stream: random numbers of the row and stage.
        count: number of samples.
        rate: share of the weighted samples in the new importance function.
        sums: whether their sums are wanted.
        """


@dataclass(frozen=True, eq=False, slots=True)
class SamplingRequest:
    """A row to be sampled.

    layout, case: draws of its pattern, and the row.
    sampler: kind of the importance function.
    free: variables that are drawn uniformly at first.
    logs: whether weights are logarithms.
    threads: CPU threads.
    beliefs: the messages of EPIS-BN.
    samples: number that will be drawn in any case.
    """

    layout: CaseLayout
    case: SampledCase
    sampler: Sampler
    free: Sequence[int] = ()
    logs: bool = False
    threads: int = 1
    beliefs: LoopyMessages | None = None
    samples: int = 0


class SampleDevice(Protocol):
    """The CPU or GPUs that draw samples."""

    def row(self, ask: SamplingRequest) -> RowSampler:
        """Return the sampler of a row."""


class CpuSampling:
    """Samples on the CPU of this machine; caches initial importance functions."""

    def __init__(self, network: SampledNetwork) -> None:
        self.network = network
        self._starts: dict[tuple[Sampler, bool], Function] = {}

    def row(self, ask: SamplingRequest) -> RowSampler:
        """Return the sampler of a row."""
        # Likelihood weighting draws from the tables themselves: nothing is copied.
        if ask.sampler == "lw":
            return CpuRow(self.network, ask.case, self.network.function(ask.logs), ask.threads)
        if ask.beliefs is not None:
            function = epis_function(self.network, ask.beliefs, ask.case, ask.logs, ask.threads)
        else:
            function = own_function(ask.layout, self.start(ask.sampler, ask.logs))
            make_uniform(self.network, function, ask.free)
        return CpuRow(self.network, ask.case, function, ask.threads)

    def start(self, sampler: Sampler, logs: bool) -> Function:
        """Return the initial function of learning, which does not depend on evidence."""
        if (sampler, logs) not in self._starts:
            self._starts[sampler, logs] = first_function(self.network, sampler, logs)
        return self._starts[sampler, logs]


class CpuRow:
    """Samples of one row; see RowSampler."""

    def __init__(self, network: SampledNetwork, case: SampledCase, function: Function, threads: int) -> None:
        self._network = network
        self._case = case
        self.function = function
        self._threads = threads

    def sums(self, stream: RandomStream, first: int, count: int, own: float) -> Pending:
        """Draw samples and return a function of their sums."""
        pieces = pieces_of(first, count, PIECE)
        parts = in_threads(
            lambda piece, _: sampling_cpu.sums(self._case, self.function, stream, *piece, own), pieces, self._threads
        )
        # In the order of the pieces: sums of floats depend on it.
        total = reduce(add, parts)
        return lambda: total

    def learn(self, stream: RandomStream, count: int, rate: float, sums: bool) -> Pending | None:
        """Move the importance function by a share `rate` towards what `count` samples say."""
        samples = self.draw(stream, count)
        totals = sampling_cpu.sums_of(self._case, samples, self.function.logs, count) if sums else None
        top = float(samples.weights.max())
        # Nothing to learn where all weights are zero.
        if top > (-np.inf if self.function.logs else 0.0):
            # Nodes own disjoint parts of the function, so that threads take nodes.
            nodes = np.flatnonzero(self._case.nodes[:, WEIGHED]).tolist()
            in_threads(partial(self._learn, samples, top, rate), nodes, self._threads)
        return None if totals is None else lambda: totals

    def draw(self, stream: RandomStream, count: int) -> Samples:
        """Draw samples from number 0 on, a share of them from the tables themselves."""
        blocks = blocks_of(count)
        # All samples of a stage are kept until every node has learned from them.
        samples = Samples(np.empty((blocks, len(self._case.nodes), BLOCK), np.uint8), np.empty((blocks, BLOCK)))
        own = own_share(count)

        def draw(piece: tuple[int, int], _: int) -> None:
            sampling_cpu.draw(self._case, self.function, stream, *piece, own, samples, piece[0] // BLOCK)

        in_threads(draw, pieces_of(0, count, 4 * BLOCK), self._threads)
        return samples

    def _learn(self, samples: Samples, top: float, rate: float, node: int, _: int) -> None:
        least = least_of(int(self._case.nodes[node, STATES]))
        tables = self._network.tables.probabilities
        sampling_cpu.learn(self._case, self.function, tables, samples, node, top, rate, least, self._scores[node])

    @cached_property
    def _scores(self) -> dict[int, Scores]:
        """Scores of each weighed node, int64, for the rows that its drawn parents can select; zero between stages."""
        case = self._case
        nodes = np.flatnonzero(case.nodes[:, WEIGHED]).tolist()
        return {n: np.zeros(case.spans[n] * case.nodes[n, STATES], dtype=np.int64) for n in nodes}
