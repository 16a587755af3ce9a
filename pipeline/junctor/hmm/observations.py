"""Steps that are observed in part, or whose states are known: symbols of their own, for models and kernels.

Main function: `observed`, called by the engine and by expected counts. An observation is a set of symbols in a set of
states; its emission is the sum over the symbols that agree with what is seen, 0 in a state that contradicts a label.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from junctor.hmm.model import HiddenMarkovModel, SparseMatrix
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


def contradictions(model: HiddenMarkovModel, batch: SequenceBatch, sequences: Integers) -> dict[int, str]:
    """Return, for impossible sequences with labels, the first step that no path reaches, and what rules it out.

    model: whose zeros rule them out.
    batch: of the sequences.
    sequences: int64, their numbers.
    """
    seen = observed(batch, model)
    wide, steps = (model, batch) if seen is None else (seen.model_of(model), seen.batch)
    assert batch.labels is not None
    found = {}
    for n in sequences.tolist():
        first, end = batch.starts[n : n + 2].tolist()
        if not (batch.labels[first:end] >= 0).any():
            continue
        reached: npt.NDArray[np.bool_] = model.start > 0
        for step in range(first, end):
            reached = (_followed(model, reached) if step > first else reached) & _emitting(wide, steps, step)
            if not reached.any():
                found[n] = f"step {step - first}: {_cause(model, batch, first, step)}"
                break
    return found


def _followed(model: HiddenMarkovModel, states: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return the states that can follow some states."""
    after = np.zeros(model.states, np.bool_)
    if isinstance(model.transition, SparseMatrix):
        after[model.transition.columns[states[model.transition.rows]]] = True
    else:
        after |= (model.transition[states] > 0).any(axis=0)
    return after


def _emitting(model: HiddenMarkovModel, batch: SequenceBatch, step: int) -> npt.NDArray[np.bool_]:
    """Return the states in which a step is possible."""
    if batch.likelihoods is not None:
        possible: npt.NDArray[np.bool_] = batch.likelihoods[step] > -np.inf
        return possible
    assert batch.symbols is not None
    assert model.emission is not None
    symbol = batch.symbols[step]
    return np.ones(model.states, np.bool_) if symbol < 0 else model.emission[:, symbol] > 0


def _cause(model: HiddenMarkovModel, batch: SequenceBatch, first: int, step: int) -> str:
    """Return what rules out the step of a sequence, which begins with the step `first`."""

    def named(state: int) -> str:
        return repr(model.state_names[state]) if model.state_names else f"state {state}"

    assert batch.labels is not None
    label, before = int(batch.labels[step]), int(batch.labels[step - 1]) if step > first else -1
    if label < 0:
        return "no state that the labels leave emits what is observed"
    unlabelled = replace(batch, labels=None)
    seen = observed(unlabelled, model)
    wide, steps = (model, unlabelled) if seen is None else (seen.model_of(model), seen.batch)
    if not _emitting(wide, steps, step)[label]:
        return f"{named(label)} does not emit what is observed"
    if step == first:
        return f"no sequence starts in {named(label)}"
    return (
        f"no transition leads from {named(before)} to {named(label)}"
        if before >= 0
        else f"no path leads to {named(label)}"
    )


def _sizes(model: HiddenMarkovModel) -> list[int]:
    return [len(states) for _, states in model.sensors]
