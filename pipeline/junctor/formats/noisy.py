"""Noisy-OR and noisy-MAX nodes: their tables, whole for few parents, else as a chain of auxiliary variables.

Main class: NoisyMax; `tables_of` is called by the readers of XDSL, DSL, Netica and OpenMarkov files. Diez (UAI 1993)
for the model, Heckerman (UAI 1993) for the chain (temporal transformation).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from junctor.model.errors import ModelError, Place
from junctor.model.network import ROW_SUM_TOLERANCE, DraftTable, DraftVariable, table_size

_Array = npt.NDArray[np.float64]

# Entries up to which a node gets one table: the auxiliary variables of a chain cost more than they save there (0035).
LARGEST_TABLE = 1024


@dataclass(frozen=True, eq=False, slots=True)
class NoisyMax:
    """A node that is the strongest of independent contributions: one of each parent, and the leak.

    scope: names of the parents, then the child.
    contributions: for each parent float64 [states of the parent, states of the child].
    leak: float64 [states of the child].
    strongest_last: whether the last state of the child is the strongest, else the first.
    place: where it stands in the file.
    """

    scope: Sequence[str]
    contributions: Sequence[_Array]
    leak: _Array
    strongest_last: bool
    place: Place

    @property
    def entries(self) -> int:
        """Entries of its whole table."""
        return math.prod(self.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the parents, then of the child."""
        return (*map(len, self.contributions), len(self.leak))

    @property
    def chain_entries(self) -> int:
        """Entries of all tables of its chain."""
        first, *others, states = self.shape
        return first * states + sum(states * size * states for size in others)

    @property
    def is_whole(self) -> bool:
        """Whether it gets one table."""
        return len(self.scope) < 3 or self.entries <= max(LARGEST_TABLE, self.chain_entries)

    def table(self) -> DraftTable:
        """Return the whole table."""
        table = self._flipped(self.leak)[None]
        for contribution in self.contributions:
            table = _strongest(table, self._flipped(contribution))
        return DraftTable(self.scope, self._flipped(table), self.place)

    def chain(self, names: Sequence[str]) -> list[DraftTable]:
        """Return the tables of the auxiliary variables `names`, one for each parent but the last, and of the child.

        An auxiliary variable is the strongest contribution of the leak and of the parents up to its own.
        """
        *parents, child = self.scope
        first = _strongest(self._flipped(self.leak)[None], self._flipped(self.contributions[0]))
        tables = [DraftTable([parents[0], names[0]], self._flipped(first), self.place)]
        unit = np.eye(len(self.leak))
        for i, (parent, contribution) in enumerate(zip(parents[1:], self.contributions[1:], strict=True)):
            # [strongest so far, state of the parent, strongest with it], all of them from the strongest on.
            step = _strongest(unit, self._flipped(contribution)).reshape(len(unit), len(contribution), len(unit))
            step = step[::-1, :, ::-1] if self.strongest_last else step
            result = names[i + 1] if i + 1 < len(names) else child
            tables.append(DraftTable([names[i], parent, result], np.ascontiguousarray(step), self.place))
        return tables

    def _flipped(self, table: _Array) -> _Array:
        return np.ascontiguousarray(table[..., ::-1]) if self.strongest_last else table


def tables_of(nodes: Sequence[NoisyMax], taken: Iterable[str]) -> tuple[list[DraftVariable], list[DraftTable]]:
    """Return the auxiliary variables and the tables of noisy nodes.

    nodes: of one network.
    taken: names of its variables.
    Raises ModelError for a parent that stands twice.
    """
    names = set(taken)
    variables: list[DraftVariable] = []
    tables: list[DraftTable] = []
    for node in nodes:
        if len(set(node.scope)) != len(node.scope):
            raise ModelError(
                f"table of {node.scope[-1]!r}: a variable stands twice in its scope {list(node.scope)}", node.place
            )
        what = f"table of {node.scope[-1]!r}"
        if node.is_whole:
            table_size(node.shape, what, node.place)
            tables.append(node.table())
            continue
        table_size([node.chain_entries], f"the chain for the {what}", node.place)
        links = [_free(f"{node.scope[-1]} after {parent}", names) for parent in node.scope[:-2]]
        states = [str(i) for i in range(len(node.leak))]
        variables += [DraftVariable(link, states, node.place) for link in links]
        tables += node.chain(links)
    return variables, tables


def distributions(values: _Array, states: int, what: str, place: Place) -> _Array:
    """Return parameters as distributions, float64 [number, states], divided by their sums; raises ModelError.

    values: float64, flat.
    states: of the child.
    what, place: the node in errors.
    """
    columns = values.reshape(-1, states)
    # Sums of what is refused below may be no double.
    with np.errstate(over="ignore", invalid="ignore"):
        off = np.abs(columns.sum(axis=1) - 1.0)
    wrong = ~(off <= ROW_SUM_TOLERANCE) | ~(columns >= 0).all(axis=1)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise ModelError(
            f"{what}: found {columns[at].tolist()} as distribution {at + 1} of the parameters, expected numbers that "
            "are not negative and sum to 1",
            place,
        )
    normalised: _Array = columns / columns.sum(axis=1, keepdims=True)
    return normalised


def binary(
    scope: Sequence[str], probabilities: Sequence[float], leak: float, shape: NoisyShape, place: Place
) -> NoisyMax:
    """Return a noisy-OR or noisy-AND node of two-state variables.

    scope: names of the parents, then the child.
    probabilities: for each parent that it acts.
    leak: probability of an effect though no parent acts.
    shape: which states act, and which is the effect.
    place: of the node.
    """
    effect = shape.effect
    rows = []
    for probability, active in zip(probabilities, shape.active, strict=True):
        rows.append(np.array([_pair(probability if state == active else 0.0, effect) for state in (0, 1)]))
    return NoisyMax(scope, rows, np.array(_pair(leak, effect)), effect == 1, place)


@dataclass(frozen=True, slots=True)
class NoisyShape:
    """The states of a noisy node of two-state variables: of each parent the one that acts, of the child its effect."""

    active: Sequence[int]
    effect: int


def _pair(probability: float, effect: int) -> tuple[float, float]:
    return (probability, 1.0 - probability) if effect == 0 else (1.0 - probability, probability)


def _free(name: str, names: set[str]) -> str:
    """Return `name`, or one like it that is not taken, and take it."""
    while name in names:
        name += "'"
    names.add(name)
    return name


def _strongest(table: _Array, contribution: _Array) -> _Array:
    """Return the distribution of the stronger of two effects, [configurations * parent's states, states].

    Distributions go from the strongest state to the weakest.
    """
    # Sums of products without differences: nothing cancels, zeros stay zeros and small numbers exact.
    table = table[:, None, :]
    stronger: _Array = table * _at_or_below(contribution) + _below(table) * contribution
    return stronger.reshape(-1, contribution.shape[-1])


def _at_or_below(distribution: _Array) -> _Array:
    return np.cumsum(distribution[..., ::-1], axis=-1)[..., ::-1]


def _below(distribution: _Array) -> _Array:
    weaker = np.zeros_like(distribution)
    weaker[..., :-1] = _at_or_below(distribution)[..., 1:]
    return weaker
