"""Steps that are observed in part, or whose states are known: symbols of their own, for models and kernels.

Main function: `observed`, called by the engine and by expected counts. An observation is a set of symbols in a set of
states; its emission is the sum over the symbols that agree with what is seen, 0 in a state that contradicts a label.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from junctor.hmm.model import HiddenMarkovModel
from junctor.hmm.packing import SequenceBatch

Doubles = npt.NDArray[np.float64]
Integers = npt.NDArray[Any]


@dataclass(frozen=True, eq=False, slots=True)
class Observed:
    """A batch whose steps all have symbols, some beyond those of its model.

    batch: with the symbols; log-likelihoods are -inf in states that contradict a label.
    seen: int32 [n], as `SequenceBatch.symbols`, of each symbol behind those of the model.
    labels: int32 [n], the state that each of them is seen in, -1 for any.
    partial: as in `SequenceBatch`.
    """

    batch: SequenceBatch
    seen: Integers
    labels: Integers
    partial: Integers

    def model_of(self, model: HiddenMarkovModel) -> HiddenMarkovModel:
        """Return the model with the emissions of these symbols as well."""
        if model.emission is None or not len(self.seen):
            return model
        columns = np.ones((model.states, len(self.seen)))
        is_whole = (self.seen >= 0) & (self.seen < model.symbols)
        columns[:, is_whole] = model.emission[:, self.seen[is_whole]]
        for number, agreeing in self._agreeing(model):
            columns[:, number] = agreeing.sum(axis=tuple(range(1, agreeing.ndim)))
        contradicts = (self.labels >= 0) & (self.labels != np.arange(model.states)[:, None])
        columns[contradicts] = 0.0
        return replace(model, emission=np.concatenate([model.emission, columns], axis=1), symbol_names=None, sensors=())

    def counts_of(self, model: HiddenMarkovModel, counts: Doubles) -> Doubles:
        """Return the expected counts of the emissions of a model.

        model: as for `model_of`.
        counts: float64 [states, symbols and these], of what that returned.
        """
        found, more = counts[:, : model.symbols].copy(), counts[:, model.symbols :]
        is_whole = (self.seen >= 0) & (self.seen < model.symbols)
        np.add.at(found.T, self.seen[is_whole], more[:, is_whole].T)
        shares = found.reshape(model.states, *_sizes(model)) if model.sensors else found
        for number, agreeing in self._agreeing(model):
            # The symbols that agree, in proportion to their probabilities (the E-step for what is not seen).
            sums = agreeing.sum(axis=tuple(range(1, agreeing.ndim)), keepdims=True)
            each = more[:, number].reshape(sums.shape)
            share = np.divide(agreeing, sums, out=np.zeros(agreeing.shape), where=sums > 0)
            shares[self._place(number, model)] += each * share
        return found

    def _agreeing(self, model: HiddenMarkovModel) -> list[tuple[int, Doubles]]:
        """Return the emissions of the symbols that agree with each partial observation: [states, unseen sensors]."""
        numbers = np.flatnonzero(self.seen >= model.symbols).tolist()
        if model.emission is None or not numbers:
            return []
        table = model.emission.reshape(model.states, *_sizes(model))
        return [(number, table[self._place(number, model)]) for number in numbers]

    def _place(self, number: int, model: HiddenMarkovModel) -> tuple[slice | int, ...]:
        states = self.partial[self.seen[number] - model.symbols].tolist()
        return (slice(None), *(slice(None) if state < 0 else state for state in states))


def observed(batch: SequenceBatch, model: HiddenMarkovModel) -> Observed | None:
    """Return a batch whose steps all have symbols; None where they do already."""
    nothing = np.zeros(0, np.int32)
    if batch.symbols is None:
        if batch.labels is None or batch.likelihoods is None:
            return None
        contradicts = (batch.labels >= 0)[:, None] & (batch.labels[:, None] != np.arange(model.states))
        likelihoods = np.where(contradicts, -np.inf, batch.likelihoods)
        return Observed(replace(batch, likelihoods=likelihoods, labels=None), nothing, nothing, nothing)
    partial = nothing if batch.partial is None else batch.partial
    if batch.labels is None and not len(partial):
        return None
    labels = np.full(len(batch.symbols), -1, np.int32) if batch.labels is None else batch.labels
    others = np.flatnonzero((labels >= 0) | (batch.symbols >= model.symbols))
    # Pairs of symbol and label, from 0: both may be -1.
    keys = (batch.symbols[others].astype(np.int64) + 1) * (model.states + 1) + labels[others] + 1
    pairs, which = np.unique(keys, return_inverse=True)
    symbols = batch.symbols.copy()
    symbols[others] = model.symbols + which
    seen, states = (pairs // (model.states + 1) - 1).astype(np.int32), (pairs % (model.states + 1) - 1).astype(np.int32)
    return Observed(replace(batch, symbols=symbols, labels=None, partial=None), seen, states, partial)


def _sizes(model: HiddenMarkovModel) -> list[int]:
    return [len(states) for _, states in model.sensors]
