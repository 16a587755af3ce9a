"""The parameters of a hidden Markov model as one flat array: start, transitions, emissions; and their M-step.

Main classes: ChainParameters, and ChainFit for `junctor.learning.em` (Rabiner 1989, equations 40a to 40c).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from junctor.hmm.counts import SequenceCounter
from junctor.hmm.model import HiddenMarkovModel, SparseMatrix
from junctor.learning.choices import SMOOTHING
from junctor.learning.em import log_dirichlet
from junctor.learning.expectation import Expectation, Floats
from junctor.model.errors import ModelError

Part = Literal["start", "transition", "emission"]


@dataclass(frozen=True, eq=False)
class ChainParameters:
    """The layout of the parameters of one model; which of them are zero never changes.

    model: whose values they are.
    fixed: parts that stay as they are.
    tied: groups of states that share their emissions; those of the first of a group are the values of all.
    Raises ModelError for ties of what is fixed, or is not there.
    """

    model: HiddenMarkovModel
    fixed: frozenset[Part] = frozenset()
    tied: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if self.tied and (self.model.emission is None or "emission" in self.fixed):
            why = "the model has none" if self.model.emission is None else "they stay as they are"
            raise ModelError(f"--tie: states cannot share emissions: {why}")

    @cached_property
    def values(self) -> Floats:
        """The parameters of the model: start, entries of the transition matrix, emissions if there are any."""
        values = np.concatenate([table.reshape(-1) for table in self._tables.values()])
        return values[self.sources] if self.tied else values

    @cached_property
    def sources(self) -> npt.NDArray[np.int64]:
        """The number of the first parameter that each parameter is, its own where it is not tied."""
        sources = np.arange(sum(self._sizes))
        rows = self.part_of(sources, "emission") if self.tied else sources
        for first, *others in self.tied:
            # A view: the rows are those of `sources`.
            rows[others] = rows[first]
        return sources

    def pooled(self, counts: Floats) -> Floats:
        """Return the counts, those of tied states added up."""
        if not self.tied:
            return counts
        sums: Floats = np.bincount(self.sources, counts).astype(np.float64)
        return sums[self.sources]

    @cached_property
    def distributions(self) -> npt.NDArray[np.int64]:
        """Where each distribution begins, int64."""
        size, symbols = self.model.states, self.model.symbols
        rows = np.arange(size + 1) * size
        if isinstance(self.model.transition, SparseMatrix):
            rows = self.model.transition.starts
        parts = [np.zeros(1), rows[:-1] + size, np.arange(size if symbols else 0) * symbols + rows[-1] + size]
        return np.concatenate(parts).astype(np.int64)

    @cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Entries of each distribution."""
        return np.diff(self.distributions, append=len(self.values))

    @cached_property
    def is_fixed(self) -> npt.NDArray[np.bool_]:
        """Which parameters stay."""
        return self.spread(dict.fromkeys(self.fixed, 1.0)) > 0

    def spread(self, numbers: Mapping[Part, float]) -> Floats:
        """Return a number of each part (0 where there is none) for each parameter."""
        return np.repeat([numbers.get(part, 0.0) for part in self._tables], self._sizes)

    def places(self, numbers: npt.NDArray[np.int64]) -> list[tuple[Part, int, int]]:
        """Return part, row (of a start -1) and column of parameters by their numbers."""
        parts, firsts, found = list(self._tables), np.cumsum([0, *self._sizes]), []
        for number, at in zip(numbers.tolist(), np.searchsorted(firsts, numbers, side="right").tolist(), strict=True):
            part, place = parts[at - 1], number - int(firsts[at - 1])
            if part == "start":
                found.append((part, -1, place))
            elif part == "transition" and isinstance(self.model.transition, SparseMatrix):
                row = int(np.searchsorted(self.model.transition.starts, place, side="right")) - 1
                found.append((part, row, int(self.model.transition.columns[place])))
            else:
                width = self.model.symbols if part == "emission" else self.model.states
                found.append((part, *divmod(place, width)))
        return found

    def part_of(self, values: npt.NDArray[Any], part: Part) -> npt.NDArray[Any]:
        """Return the values of a part, in the shape of its table; of a sparse matrix a value for each entry."""
        at = list(self._tables).index(part)
        return np.split(values, np.cumsum(self._sizes))[at].reshape(self._tables[part].shape)

    def model_of(self, values: Floats) -> HiddenMarkovModel:
        """Return the model that has these parameters."""
        start, entries, emission = np.split(values, np.cumsum(self._sizes))[:3]
        transition = self.model.transition
        if isinstance(transition, SparseMatrix):
            transition = replace(transition, values=entries)
        else:
            transition = entries.reshape(transition.shape)
        if self.model.emission is None:
            return replace(self.model, start=start, transition=transition)
        emission = emission.reshape(self.model.emission.shape)
        return replace(self.model, start=start, transition=transition, emission=emission)

    def smoothed(self) -> ChainParameters:
        """Return the parameters of a model without zeros, but for those of fixed parts and sparse matrices."""
        kept = self.is_fixed
        if self.model.sparse:
            kept = kept | (self.spread({"transition": 1.0}) > 0)
        lifted = (1.0 - SMOOTHING) * self.values + SMOOTHING / np.repeat(self.lengths, self.lengths)
        return replace(self, model=self.model_of(np.where(kept, self.values, lifted)))

    def normalised(self, amounts: Floats, otherwise: Floats) -> Floats:
        """Return amounts divided by the sums of their distributions, `otherwise` where these are 0, or fixed.

        Those of tied states are the first's.
        """
        amounts = amounts[self.sources] if self.tied else amounts
        sums = np.repeat(np.add.reduceat(amounts, self.distributions), self.lengths)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.is_fixed | (sums == 0), otherwise, amounts / sums)

    def uniform(self) -> Floats:
        """Return distributions with equal entries above zero."""
        return self.normalised(np.where(self.values > 0, 1.0, 0.0), self.values)

    def random(self, seed: tuple[int, int]) -> Floats:
        """Return distributions that are drawn uniformly among those with the same zeros."""
        amounts = np.random.default_rng(seed).standard_exponential(len(self.values))
        return self.normalised(np.where(self.values > 0, amounts, 0.0), self.values)

    @cached_property
    def _tables(self) -> dict[Part, Floats]:
        tables: dict[Part, Floats] = {"start": self.model.start, "transition": self.model.entries}
        if self.model.emission is not None:
            tables["emission"] = self.model.emission
        return tables

    @cached_property
    def _sizes(self) -> list[int]:
        """Parameters of each part."""
        return [table.size for table in self._tables.values()]


@dataclass(frozen=True, eq=False)
class ChainFit:
    """A model that is fitted to sequences, as `junctor.learning.em.Fitted`.

    parameters: their layout, zeros and fixed parts.
    counter: of the sequences that take part; none of them is impossible.
    prior: pseudo count of each entry above zero, by part.
    """

    parameters: ChainParameters
    counter: SequenceCounter
    prior: Mapping[Part, float]

    @property
    def distributions(self) -> npt.NDArray[np.int64]:
        """Where each distribution begins, int64."""
        return self.parameters.distributions

    @property
    def weight(self) -> float:
        """Sum of the weights of the sequences."""
        return math.fsum(self.counter.weights)

    @cached_property
    def pseudo_counts(self) -> Floats:
        """The pseudo count of each parameter; none for those that stay."""
        is_free = (self.parameters.values > 0) & ~self.parameters.is_fixed
        return np.where(is_free, self.parameters.spread(self.prior), 0.0)

    def expect(self, parameters: Floats) -> Expectation:
        """Return the expected counts, and the log-likelihood; raises BudgetError."""
        found = self.counter.count(self.parameters.model_of(parameters))
        emission = found.emission
        if emission is None:
            emission = np.zeros(self.parameters.model.states * self.parameters.model.symbols)
        counts = np.concatenate([found.start, found.transition.reshape(-1), emission.reshape(-1)])
        # Exact sums: the same number in whatever order the sequences come.
        taken = self.counter.weights > 0
        terms = self.counter.weights[taken] * found.log_value[taken]
        return Expectation(counts, math.fsum(terms) if np.isfinite(terms).all() else -math.inf)

    def maximise(self, counts: Floats, parameters: Floats) -> Floats:
        """Return parameters in proportion to counts and pseudo counts; distributions without any stay."""
        return self.parameters.normalised(self.parameters.pooled(counts + self.pseudo_counts), parameters)

    def log_prior(self, parameters: Floats) -> float:
        """Return the sum of pseudo count * log(parameter)."""
        return log_dirichlet(self.pseudo_counts, parameters)
